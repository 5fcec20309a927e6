//! Shared code of the replay tests: test data, and comparison of states.

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::{Map, Value, json};
use swarm_actors::flow::rules::block::{Refusal, Signal, Target, Which, parse};
use swarm_actors::flow::rules::document::FlowRun;
use swarm_actors::flow::rules::entry::{Conversation, Entry, EntryEvent};
use swarm_actors::flow::rules::graph::Graph;
use swarm_actors::flow::rules::handoff::{Artifact, Ended, finish};
use swarm_actors::flow::rules::names::FlowRef;
use swarm_actors::flow::rules::schedule::{claim, take_initial};
use swarm_actors::flow::rules::validate::OwnerRules;

use super::yaml;

pub fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/flows").join(name)
}

pub fn text(name: &str) -> String {
    std::fs::read_to_string(data(name)).expect("is there")
}

pub fn table(name: &str) -> Vec<Value> {
    serde_json::from_str(&text(name)).expect("is JSON")
}

/// Fields of a state that are compared after each step.
const STATE: [&str; 11] = [
    "status",
    "runningNodes",
    "awaitingHumanNodes",
    "pendingHumanInputs",
    "pendingHandoffApprovals",
    "visitedNodeIds",
    "completedHandoffs",
    "receivingHandoff",
    "historyHandoff",
    "awaitingHandoff",
    "improvementPhase",
];

pub fn state_of(flow: &FlowRun) -> Value {
    let Value::Object(doc) = whole(flow) else { panic!("a flow is an object") };
    let state: Map<String, Value> = doc.into_iter().filter(|(key, _)| STATE.contains(&key.as_str())).collect();
    Value::Object(state)
}

pub fn whole(flow: &FlowRun) -> Value {
    timeless(serde_json::to_value(flow.to_json()).expect("is JSON"))
}

/// Replaces all times by a placeholder.
pub fn timeless(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .map(|(key, value)| {
                    let is_time = ["receivedAt", "grantedAt"].contains(&key.as_str()) && value.is_string();
                    let value = if is_time { json!("<time>") } else { timeless(value) };
                    (key, value)
                })
                .collect(),
        ),
        Value::Array(list) => Value::Array(list.into_iter().map(timeless).collect()),
        other => other,
    }
}

/// Loads a flow in a recorded state.
pub fn flow_in(state: &Value, id: &FlowRef, root: &str) -> FlowRun {
    let mut doc = state.as_object().expect("an object").clone();
    doc.insert("flowId".into(), json!(id.flow));
    doc.insert("projectNamespace".into(), json!(id.project));
    doc.insert("workspaceRoot".into(), json!(root));
    doc.insert("recordFolderPath".into(), json!(record_folder(id, root)));
    doc.insert("stateVersion".into(), json!("11"));
    FlowRun::load(&Value::Object(doc).to_string(), id).expect("loads").flow
}

pub fn record_folder(id: &FlowRef, root: &str) -> String {
    format!("{root}/.a-society/state/{}/{}/record", id.project, id.flow)
}

pub fn graph_of(workflow: &str) -> Graph {
    Graph::resolve(&yaml::parse(workflow).expect("is YAML"), None).expect("is a workflow")
}

pub fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

/// Model of a program that runs flows, with the state that its events depend on.
#[derive(Default)]
pub struct Runner {
    conversations: HashMap<String, Conversation>,
    /// Nodes that were running before a restart and have not been claimed again.
    pub initial: Vec<String>,
}

impl Runner {
    pub fn restart(&mut self, flow: &mut FlowRun) {
        self.initial = take_initial(flow);
    }

    pub fn claim(&mut self, flow: &mut FlowRun, graph: &Graph) -> (Vec<String>, Vec<Value>) {
        let entries = claim(flow, graph, &self.initial, |_| true);
        let events = entries.iter().flat_map(|entry| self.enter(entry)).collect();
        let nodes: Vec<String> = entries.into_iter().map(|entry| entry.node).collect();
        self.initial.retain(|node| !nodes.contains(node));
        (nodes, events)
    }

    fn enter(&mut self, entry: &Entry) -> Vec<Value> {
        let conversation = self.conversations.get(&entry.role);
        let event = |event: EntryEvent| json!({"kind": event.kind(), "nodeId": entry.node, "role": entry.role});
        let events = entry.events(conversation).into_iter().map(event).collect();
        let now = Conversation { node: entry.node.clone(), open: true, spoke_last: false };
        self.conversations.insert(entry.role.clone(), now);
        events
    }

    /// Plays a turn: the agent sends one text after another until one is accepted, and finally asks a person. Returns
    /// the events, and the number of refused texts.
    pub fn turn(
        &mut self,
        flow: &mut FlowRun,
        graph: &Graph,
        node: &str,
        texts: &[String],
        look: impl Fn(&str) -> Artifact,
    ) -> (Vec<Value>, usize) {
        let role = graph.node(node).expect("is in the workflow").role.clone();
        let mut events = Vec::new();
        let asks = "```handoff\ntype: prompt-human\n```".to_owned();
        for (refused, text) in texts.iter().chain([&asks]).enumerate() {
            let before = flow.render();
            match apply(flow, graph, node, text, &look) {
                Ok(ended) => {
                    let open = ended == Ended::Asked;
                    let now = Conversation { node: node.to_owned(), open, spoke_last: true };
                    self.conversations.insert(role.clone(), now);
                    events.push(ended_event(&ended, node, &role));
                    events.retain(|event| !event.is_null());
                    return (events, refused);
                }
                Err(refusal) => {
                    assert_eq!(flow.render(), before, "a refusal changes nothing");
                    events.push(json!({
                        "kind": "repair.requested", "scope": "node", "code": refusal.code.word(),
                        "summary": refusal.summary, "role": role, "nodeId": node,
                    }));
                }
            }
        }
        panic!("asking a person is never refused");
    }
}

fn apply(
    flow: &mut FlowRun,
    graph: &Graph,
    node: &str,
    text: &str,
    look: impl Fn(&str) -> Artifact,
) -> Result<Ended, Refusal> {
    let signal = parse(text, Which::First, yaml::parse)?;
    finish(flow, graph, node, &signal, look, OwnerRules::Strict)
}

fn ended_event(ended: &Ended, node: &str, role: &str) -> Value {
    let waits = |reason: &str| json!({"kind": "human.awaiting_input", "nodeId": node, "role": role, "reason": reason});
    match ended {
        Ended::Handed(targets) => {
            let targets: Vec<Value> =
                targets.iter().map(|(node, role)| json!({"nodeId": node, "role": role})).collect();
            json!({"kind": "handoff.applied", "fromNodeId": node, "fromRole": role, "targets": targets})
        }
        Ended::Staged => waits("handoff-approval"),
        Ended::Asked => waits("prompt-human"),
        Ended::Suspended => Value::Null,
        Ended::Closed => json!({"kind": "flow.forward_pass_closed"}),
    }
}

/// Converts a signal to its form in the table of blocks.
pub fn signal_value(signal: &Signal) -> Value {
    let target = |target: &Target| json!({"target_node_id": target.node, "artifact_path": target.artifact});
    match signal {
        Signal::Targets(targets) => {
            json!({"kind": "targets", "targets": targets.iter().map(target).collect::<Vec<_>>()})
        }
        Signal::PromptHuman => json!({"kind": "awaiting_human"}),
        Signal::AwaitHandoff => json!({"kind": "await-handoff"}),
        Signal::ForwardPassClosed => json!({"kind": "forward-pass-closed"}),
        Signal::MetaAnalysisComplete { findings } => {
            json!({"kind": "meta-analysis-complete", "findingsPath": findings})
        }
        Signal::BackwardPassComplete { artifact } => {
            json!({"kind": "backward-pass-complete", "artifactPath": artifact})
        }
    }
}

/// Returns the stored flows; `root` is the folder that their paths refer to.
pub fn table_of_cases(root: &str) -> Vec<Value> {
    let text = text("expected.json").replace("@@ROOT@@", root);
    let Value::Object(table) = serde_json::from_str(&text).expect("is JSON") else { panic!("no table") };
    table.get("cases").and_then(Value::as_array).expect("a list").clone()
}
