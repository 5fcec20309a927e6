//! Stored flows, and all that the other program computes for each.

use serde_json::{Map, Value, json};
use swarm_actors::flow::block::Signal;
use swarm_actors::flow::consent::deny_stale;
use swarm_actors::flow::document::{FlowRun, FlowSummary};
use swarm_actors::flow::graph::Graph;
use swarm_actors::flow::handoff::Artifact;
use swarm_actors::flow::improvement::{self, Feedback, ResumePath};
use swarm_actors::flow::names::FlowRef;
use swarm_actors::flow::plan::{ImprovementMode, Plan, Step};
use swarm_actors::flow::record::{Record, Rewrite, sync};
use swarm_actors::flow::schedule::{derive, outstanding};
use swarm_actors::flow::validate::OwnerRules;
use swarm_actors::flow::{live, operator};

use super::replay::{Runner, data, flow_in, state_of, strings, table_of_cases, timeless, whole};
use super::tables_tests::plan_value;
use super::traces_tests::operate;
use super::yaml;

const ROOT: &str = "/root-of-cases";

#[test]
fn every_stored_flow_is_what_it_is_there() {
    let cases = table_of_cases(ROOT);
    assert_eq!(cases.len(), 69);
    for case in &cases {
        Case::of(case).check(&case["expected"]);
    }
}

#[test]
fn every_flow_comes_about_as_it_did_there() {
    let mut steps = 0;
    for case in &table_of_cases(ROOT) {
        let driven = case["driven"].as_array().expect("a list");
        if !driven.is_empty() {
            Case::of(case).drive(driven);
        }
        steps += driven.len();
    }
    assert_eq!(steps, 179);
}

struct Case<'a> {
    name: &'a str,
    project: &'a str,
    flow_id: &'a str,
    /// Where its files are, and where they are for the flow.
    folder: std::path::PathBuf,
    workspace: String,
    file: std::path::PathBuf,
}

impl<'a> Case<'a> {
    fn of(case: &'a Value) -> Self {
        let field = |key: &str| case[key].as_str().expect("is text");
        let file = data(field("flow"));
        Self {
            name: field("name"),
            project: field("project"),
            flow_id: field("flowId"),
            folder: file.parent().expect("is in a folder").to_owned(),
            workspace: format!("{ROOT}/{}", field("workspace")),
            file,
        }
    }

    fn document(&self, path: &str) -> Option<Value> {
        let text = std::fs::read_to_string(self.folder.join(path)).ok()?;
        yaml::parse(&text).ok()
    }

    fn graph(&self) -> Option<Graph> {
        Graph::resolve(&self.document("record/workflow.yaml")?, None).ok()
    }

    /// What is at a path of the flow's, among the files of the case.
    fn look(&self, path: &str) -> Artifact {
        let workspace = self.workspace.strip_prefix(ROOT).expect("is below");
        let below = path.strip_prefix(&self.workspace).unwrap_or(path).trim_start_matches('/');
        let file = data(workspace.trim_start_matches('/')).join(below);
        let written = below.contains("/findings/") || below.starts_with("a-society/feedback/");
        if file.is_file() || written { Artifact::File } else { Artifact::Missing }
    }

    fn check(&self, expected: &Value) {
        let name = self.name;
        let refused = |stage: &str| expected["error"] == "refused" && expected["stage"] == stage;
        let Ok(id) = FlowRef::new(self.project, self.flow_id) else {
            assert!(refused("load"), "{name}");
            return;
        };
        let here = self.folder.file_name().is_some_and(|folder| folder == self.flow_id);
        if !here {
            assert!(refused("load"), "{name}: there is no such flow");
            return;
        }
        let text = std::fs::read_to_string(&self.file).expect("is there").replace("@@ROOT@@", ROOT);
        let record = sync(self.document("record/record.yaml").as_ref(), self.document("record/workflow.yaml").as_ref());
        self.check_summary(&text, &id, &record.0, &expected["summary"]);
        let loaded = match FlowRun::load(&text, &id) {
            Ok(loaded) => loaded,
            Err(error) => {
                assert!(refused("load"), "{name}: {error}");
                return;
            }
        };
        assert_ne!(expected["stage"], "load", "{name}");
        let mut flow = loaded.flow;
        assert_eq!(loaded.changed.is_empty(), flow.render() == text, "{name} is written as it was read");
        (flow.record_name, flow.record_summary) = (record.0.name, record.0.summary);
        let has_record = self.folder.join("record/record.yaml").is_file();
        assert_eq!(record.1 == Rewrite::NotNeeded, has_record, "{name}");
        assert_eq!(whole(&flow), timeless(expected["loaded"].clone()), "{name}");
        if flow.check_root(&self.workspace).is_err() {
            assert!(refused("workspace-root"), "{name}");
            return;
        }
        // Behind some names there is a remark.
        let changed = strings(&expected["hydrationChanged"]);
        let changed: Vec<&str> = changed.iter().filter_map(|words| words.split(' ').next()).collect();
        assert_eq!(loaded.changed, changed, "{name}");
        assert_eq!(ResumePath::of(&flow).word(), expected["resumePath"], "{name}");
        let Some(graph) = self.graph() else {
            assert!(refused("scheduler"), "{name}");
            return;
        };
        assert_eq!(expected["stage"], "done", "{name}");
        self.check_schedule(&flow, &graph, expected);
        self.check_improvement(&flow, &graph, expected);
    }

    fn check_summary(&self, text: &str, id: &FlowRef, record: &Record, expected: &Value) {
        let summary = FlowSummary::of(text, id).map(|mut summary| {
            if summary.openable {
                summary.record_name.clone_from(&record.name);
                summary.record_summary.clone_from(&record.summary);
            }
            let mut value = json!({
                "projectNamespace": summary.id.project, "flowId": summary.id.flow, "status": summary.status,
                "recordFolderPath": summary.record_folder, "openable": summary.openable,
                "stateVersion": summary.version, "updatedAt": "<time>",
            });
            for (key, text) in [("recordName", summary.record_name), ("recordSummary", summary.record_summary)] {
                if let Some(text) = text {
                    value[key] = json!(text);
                }
            }
            value
        });
        assert_eq!(summary.unwrap_or(Value::Null), *expected, "{}", self.name);
    }

    fn check_schedule(&self, flow: &FlowRun, graph: &Graph, expected: &Value) {
        let name = self.name;
        let document = self.document("record/workflow.yaml").expect("is YAML");
        let findings = live::validate(&document, OwnerRules::Strict, flow);
        assert_eq!(findings.len(), expected["graphErrors"], "{name}: {findings:?}");
        let mut derived = flow.clone();
        assert_eq!(json!(derive(&mut derived, graph)), expected["derivedRunnable"], "{name}");
        let waiting: Vec<&str> = derived.awaiting_handoff().collect();
        assert_eq!(json!(waiting), expected["awaitingHandoffAfterDerive"], "{name}");
        let owed = graph.nodes().iter().map(|node| (node.id.clone(), json!(outstanding(flow, graph, &node.id))));
        let owed: Map<String, Value> = owed.filter(|(_, list)| *list != json!([])).collect();
        assert_eq!(Value::Object(owed), expected["outstandingInbound"], "{name}");
        if let Some(cold) = expected.get("coldResume") {
            let (mut flow, mut runner) = (flow.clone(), Runner::default());
            let stale = deny_stale(&mut flow);
            runner.restart(&mut flow);
            let initial = runner.initial.clone();
            let (claimed, events) = runner.claim(&mut flow, graph);
            let state = state_of(&flow);
            let (then, _) = runner.claim(&mut flow, graph);
            let found = json!({
                "initial": initial, "claimed": claimed, "events": events, "flow": state, "thenClaimed": then,
                "staleConsent": stale,
            });
            assert_eq!(found, timeless(cold.clone()), "cold resume of {name}");
        }
        if let Some(warm) = expected.get("warmClaim") {
            let mut flow = flow.clone();
            let (claimed, events) = Runner::default().claim(&mut flow, graph);
            let found = json!({"claimed": claimed, "events": events, "flow": state_of(&flow)});
            assert_eq!(found, timeless(warm.clone()), "warm claim of {name}");
        }
    }

    fn check_improvement(&self, flow: &FlowRun, graph: &Graph, expected: &Value) {
        let Some(improvement) = expected.get("improvement") else { return };
        let mode = improvement::mode(flow).expect("was chosen");
        let plan = Plan::of(graph, mode).expect("there is one");
        assert_eq!(plan_value(&plan), improvement["plan"], "{}", self.name);
        let runnable: Vec<&str> =
            improvement::runnable(flow, &plan).into_iter().map(|entry| entry.role.as_str()).collect();
        assert_eq!(json!(runnable), improvement["runnableRoles"], "{}", self.name);
        let written = serde_json::to_value(plan.document(mode)).expect("is JSON");
        assert_eq!(self.document("record/improvement.yaml"), Some(written), "{}", self.name);
    }

    fn drive(&self, driven: &[Value]) {
        // One was given a name afterwards that no flow can have.
        let id = FlowRef::new(self.project, self.flow_id).or_else(|_| FlowRef::new(self.project, "flow"));
        let id = id.expect("is a flow's name");
        // One of them lost its workflow afterwards; it ran by the same one as another.
        let other = table_of_cases(ROOT).into_iter().find(|case| case["name"] == "two-runnable").expect("is there");
        let graph = self.graph().or_else(|| Case::of(&other).graph()).expect("has a workflow");
        let mut flow = flow_in(&driven[0]["before"], &id, &self.workspace);
        let mut runner = Runner::default();
        for (at, step) in driven.iter().enumerate() {
            let place = format!("{} step {at}: {} {}", self.name, step["op"], step["action"]);
            if let Some(before) = step.get("before") {
                assert_eq!(state_of(&flow), timeless(before.clone()), "before {place}");
            }
            match step["op"].as_str() {
                Some(op @ ("turn" | "claim")) => self.turn(&mut flow, &graph, &mut runner, step, op, &place),
                Some("operator") => {
                    // Without a runner nothing is approved there; here there is always one.
                    if step["action"].get("active") == Some(&json!(false)) {
                        assert_eq!(step["before"], step["after"], "{place}");
                    } else {
                        let refused = self.operate(&mut flow, &graph, &step["action"]);
                        assert_eq!(u64::from(refused), step["errors"], "{place}");
                    }
                }
                Some("improve" | "feedback") => {
                    let events = self.look_back(&mut flow, &graph, step);
                    assert_eq!(Value::Array(events), step["events"], "{place}");
                }
                other => panic!("{other:?} in {place}"),
            }
            assert_eq!(state_of(&flow), timeless(step["after"].clone()), "after {place}");
        }
    }

    fn turn(&self, flow: &mut FlowRun, graph: &Graph, runner: &mut Runner, step: &Value, op: &str, place: &str) {
        runner.restart(flow);
        assert_eq!(runner.initial, strings(&step["initial"]), "{place}");
        let (claimed, mut events) = runner.claim(flow, graph);
        assert_eq!(claimed, strings(&step["claimed"]), "{place}");
        let told = if op == "turn" { "claimEvents" } else { "events" };
        if let Some(then) = step.get("thenClaimed") {
            let (claimed, more) = runner.claim(flow, graph);
            assert_eq!(claimed, strings(then), "{place}");
            events.extend(more);
        }
        assert_eq!(Value::Array(events), step[told], "{place}");
        if op == "turn" {
            assert_eq!(state_of(flow), timeless(step["afterClaim"].clone()), "claim of {place}");
            let node = step["node"].as_str().expect("a node");
            let look = |path: &str| self.look(path);
            let (events, refused) = runner.turn(flow, graph, node, &strings(&step["texts"]), look);
            assert_eq!(refused, step["repairMessages"], "{place}");
            assert_eq!(Value::Array(events), step["events"], "{place}");
        }
    }

    fn operate(&self, flow: &mut FlowRun, graph: &Graph, action: &Value) -> bool {
        let field = |key: &str| action[key].as_str().expect("is text");
        match field("kind") {
            "improve" => improvement::choose(flow, ImprovementMode::of(field("mode"))).is_err(),
            "feedback" => improvement::decide(flow, Feedback::Denied).is_err(),
            "answer-improvement" => improvement::answer(flow, field("role"), field("text"), "now").is_err(),
            _ => operate(flow, graph, action, |path| self.look(path)),
        }
    }

    /// Waves of roles, each ending its step, as far as they came.
    fn look_back(&self, flow: &mut FlowRun, graph: &Graph, step: &Value) -> Vec<Value> {
        let mode = ImprovementMode::of(step["mode"].as_str().expect("a mode")).expect("a mode");
        let plan = Plan::of(graph, mode).expect("there is one");
        let result = &step["after"]["improvementPhase"];
        if step["op"] == "improve" {
            improvement::choose(flow, Some(mode)).expect("is awaited");
        } else {
            improvement::decide(flow, Feedback::Granted).expect("is awaited");
        }
        let done = strings(&result["completedRoles"]);
        let mut events = Vec::new();
        loop {
            let wave: Vec<_> = improvement::runnable(flow, &plan).into_iter().cloned().collect();
            for entry in &wave {
                assert_eq!(improvement::begin(flow, &entry.role), improvement::Begun::First);
                events.push(json!({"kind": "role.active", "nodeId": entry.role, "role": entry.role}));
            }
            for entry in wave.iter().filter(|entry| done.contains(&entry.role)) {
                let findings = improvement::findings_path(flow, &entry.role);
                let signal = match entry.step {
                    Step::MetaAnalysis => Signal::MetaAnalysisComplete { findings },
                    Step::Feedback => Signal::BackwardPassComplete { artifact: improvement::feedback_path(flow) },
                };
                improvement::finish(flow, entry, &signal, |path| self.look(path)).expect("is done");
            }
            for (role, _) in result["awaitingHumanRoles"].as_object().into_iter().flatten() {
                let entry = plan.entry(role).expect("is in the plan");
                improvement::finish(flow, entry, &Signal::PromptHuman, |_| Artifact::Missing).expect("may ask");
            }
            improvement::settle(flow, &plan);
            let rest = wave.iter().any(|entry| !done.contains(&entry.role));
            if rest || wave.is_empty() {
                return events;
            }
        }
    }
}

#[test]
fn what_is_refused_is_refused_in_its_own_words() {
    let error = FlowRun::load("{\"stateVersion\": 11}", &FlowRef::new("p", "f").expect("is a name"));
    let text = error.expect_err("is another version").to_string();
    assert!(text.contains("version \"11\"") && text.starts_with("Unsupported"), "{text}");
    let denied = operator::Denied::NodeNotAccepting("x".into()).to_string();
    assert_eq!(denied, "Node 'x' is not accepting human input.");
}
