//! What holds of every flow, whatever agents and people do, in whatever order.

use std::collections::{BTreeMap, HashMap, HashSet};

use proptest::prelude::*;

use super::block::{Signal, Target};
use super::consent::{Answer, Request, Wish, await_answer, deny_stale, settle};
use super::document::{FlowRun, NewFlow};
use super::graph::{Graph, Node};
use super::handoff::{Artifact, Ended, finish};
use super::json::Json;
use super::names::FlowRef;
use super::operator::{self, To};
use super::schedule::{claim, take_initial};
use super::state::Reason;
use super::validate::OwnerRules;

const ROLES: [&str; 5] = ["owner", "dev", "dev_2", "qa", "owner"];

/// One thing that somebody does.
#[derive(Clone, Debug)]
enum Act {
    Restart,
    Claim,
    Say { node: usize, signal: Said },
    Answer { node: usize },
    AnswerRole { role: usize },
    Approve { node: usize },
    Decline { node: usize, message: bool },
    Abort { node: usize },
    Ask { node: usize },
    Settle { node: usize, allow: bool },
}

#[derive(Clone, Debug)]
enum Said {
    /// Whom to, and which artifact: some are used before, some are not there.
    Targets(Vec<(usize, usize)>),
    Ask,
    Await,
    Close,
    Findings,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let node = || 0..9_usize;
    let targets = prop::collection::vec((node(), 0..60_usize), 0..4).prop_map(Said::Targets);
    let said = prop_oneof![
        8 => targets,
        2 => Just(Said::Ask),
        2 => Just(Said::Await),
        2 => Just(Said::Close),
        1 => Just(Said::Findings),
    ];
    let act = prop_oneof![
        1 => Just(Act::Restart),
        6 => Just(Act::Claim),
        12 => (node(), said).prop_map(|(node, signal)| Act::Say { node, signal }),
        3 => node().prop_map(|node| Act::Answer { node }),
        1 => (0..5_usize).prop_map(|role| Act::AnswerRole { role }),
        2 => node().prop_map(|node| Act::Approve { node }),
        1 => (node(), any::<bool>()).prop_map(|(node, message)| Act::Decline { node, message }),
        1 => node().prop_map(|node| Act::Abort { node }),
        1 => node().prop_map(|node| Act::Ask { node }),
        1 => (node(), any::<bool>()).prop_map(|(node, allow)| Act::Settle { node, allow }),
    ];
    prop::collection::vec(act, 0..80)
}

fn graphs() -> impl Strategy<Value = Graph> {
    (2..8_usize).prop_flat_map(|count| {
        let nodes = prop::collection::vec((0..ROLES.len(), any::<bool>(), prop::bool::weighted(0.2)), count);
        let edges = prop::collection::vec(prop::bool::weighted(0.45), count * count);
        (nodes, edges).prop_map(move |(nodes, edges)| {
            let node = |(at, (role, join, colab)): (usize, &(usize, bool, bool))| Node {
                id: format!("n{at}"),
                role: ROLES[*role].to_owned(),
                await_all_inputs: *join,
                human_colab: *colab,
                ..Node::default()
            };
            let pairs = (0..count).flat_map(|from| (from + 1..count).map(move |to| (from, to)));
            // A chain through all of them, and shortcuts.
            let edges = pairs.filter(|(from, to)| *to == from + 1 || edges[from * count + to]);
            let edges = edges.map(|(from, to)| (format!("n{from}"), format!("n{to}"))).collect();
            Graph::new(nodes.iter().enumerate().map(node).collect(), edges)
        })
    })
}

fn new_flow() -> FlowRun {
    let id = FlowRef::new("p", "f").expect("is a name");
    FlowRun::new(&NewFlow { id: &id, workspace_root: "/ws", record_folder: "/ws/r", first_node: "n0" })
}

/// Of each five artifacts, one is not there.
fn look(path: &str) -> Artifact {
    let number: usize = path.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
    if number % 5 == 4 { Artifact::Missing } else { Artifact::File }
}

fn signal(said: &Said) -> Signal {
    match said {
        Said::Targets(targets) => Signal::Targets(
            targets
                .iter()
                .map(|(node, artifact)| Target { node: format!("n{node}"), artifact: Some(format!("a{artifact}.md")) })
                .collect(),
        ),
        Said::Ask => Signal::PromptHuman,
        Said::Await => Signal::AwaitHandoff,
        Said::Close => Signal::ForwardPassClosed,
        Said::Findings => Signal::MetaAnalysisComplete { findings: "f.md".to_owned() },
    }
}

struct Walk {
    flow: FlowRun,
    graph: Graph,
    initial: Vec<String>,
    /// Artifacts by the block with which they were handed over.
    used: HashMap<String, usize>,
    blocks: usize,
}

impl Walk {
    fn act(&mut self, act: &Act) -> Result<(), TestCaseError> {
        let before = self.flow.clone();
        let name = |node: &usize| format!("n{node}");
        let (flow, graph) = (&mut self.flow, &self.graph);
        let refused = match act {
            Act::Restart => {
                deny_stale(flow);
                self.initial = take_initial(flow);
                false
            }
            Act::Claim => {
                let entries = claim(flow, graph, &self.initial, |_| true);
                self.initial.retain(|node| !entries.iter().any(|entry| entry.node == *node));
                false
            }
            Act::Say { node, signal: said } => {
                let ended = finish(flow, graph, &name(node), &signal(said), look, OwnerRules::Strict);
                self.note(&before, ended.as_ref().ok())?;
                ended.is_err()
            }
            Act::Answer { node } => operator::answer(flow, graph, To::Node(&name(node)), "x", "t").is_err(),
            Act::AnswerRole { role } => operator::answer(flow, graph, To::Role(ROLES[*role]), "x", "t").is_err(),
            Act::Approve { node } => {
                let ended = operator::approve(flow, graph, &name(node), look);
                self.note(&before, ended.as_ref().ok())?;
                ended.is_err()
            }
            Act::Decline { node, message } => {
                operator::decline(flow, &name(node), message.then_some(("no", "t"))).is_err()
            }
            Act::Abort { node } => operator::abort(flow, graph, &name(node)).is_err(),
            Act::Ask { node } if flow.is_running(&name(node)) => {
                let request = self.request(node);
                await_answer(&mut self.flow, &request);
                false
            }
            Act::Ask { .. } => true,
            Act::Settle { node, allow } => {
                let request = self.request(node);
                settle(&mut self.flow, &request, if *allow { Answer::AllowOnce } else { Answer::Deny });
                false
            }
        };
        prop_assert!(!refused || self.flow.render() == before.render(), "a refusal changed something: {act:?}");
        self.holds(&before)
    }

    fn request(&self, node: &usize) -> Request {
        let node = format!("n{node}");
        let role = self.graph.node(&node).map(|node| node.role.clone()).unwrap_or_default();
        Request { node, role, wish: Wish::Command { command: "make".to_owned() } }
    }

    /// No artifact is handed over with two blocks.
    fn note(&mut self, before: &FlowRun, ended: Option<&Ended>) -> Result<(), TestCaseError> {
        if !matches!(ended, Some(Ended::Handed(_))) {
            return Ok(());
        }
        self.blocks += 1;
        let (old, new) = (history(before), history(&self.flow));
        for (edge, list) in &new {
            for artifact in list.iter().filter(|artifact| !old.get(edge).is_some_and(|old| old.contains(artifact))) {
                let block = *self.used.entry(artifact.clone()).or_insert(self.blocks);
                prop_assert_eq!(block, self.blocks, "{} is handed over again along {}", artifact, edge);
            }
        }
        Ok(())
    }

    fn holds(&self, before: &FlowRun) -> Result<(), TestCaseError> {
        let flow = &self.flow;
        let running: HashSet<&str> = flow.running().collect();
        let waiting: HashSet<&str> = flow.waits().map(|wait| wait.node).collect();
        prop_assert!(running.is_disjoint(&waiting), "both at work and waiting");
        let mut roles: HashMap<&str, &str> = HashMap::new();
        for node in running.union(&waiting).filter_map(|node| self.graph.node(node)) {
            let other = roles.insert(&node.role, &node.id);
            prop_assert_eq!(other, None, "{} is twice at work or waiting", node.role.clone());
        }
        let visited: HashSet<&str> = flow.visited().collect();
        prop_assert!(visited.is_empty() || running.is_subset(&visited));
        let edges: HashSet<String> = self.graph.edges().map(|(from, to)| format!("{from}=>{to}")).collect();
        prop_assert!(flow.completed().all(|key| edges.contains(key)));
        let staged: HashSet<&str> =
            flow.object("pendingHandoffApprovals").into_iter().flat_map(super::json::Members::keys).collect();
        let asks = flow.waits().filter(|wait| wait.reason == Reason::HandoffApproval.word());
        prop_assert_eq!(staged, asks.map(|wait| wait.node).collect::<HashSet<_>>());
        let (old, new) = (history(before), history(flow));
        for (edge, list) in &old {
            prop_assert!(new.get(edge).is_some_and(|new| new.starts_with(list)), "the history of {} shrank", edge);
        }
        self.is_a_fixed_point()?;
        self.claims_once()
    }

    /// What is written is what is read.
    fn is_a_fixed_point(&self) -> Result<(), TestCaseError> {
        let text = self.flow.render();
        let loaded = FlowRun::load(&text, &self.flow.id()).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(loaded.changed, Vec::<String>::new());
        prop_assert_eq!(loaded.flow.render(), text);
        Ok(())
    }

    /// Where nothing changed, nothing more is claimed.
    fn claims_once(&self) -> Result<(), TestCaseError> {
        let mut flow = self.flow.clone();
        claim(&mut flow, &self.graph, &[], |_| true);
        let text = flow.render();
        let again = claim(&mut flow, &self.graph, &[], |_| true);
        prop_assert!(again.is_empty(), "{:?} is claimed by a second claim", again);
        prop_assert_eq!(flow.render(), text);
        Ok(())
    }
}

fn history(flow: &FlowRun) -> BTreeMap<String, Vec<String>> {
    let edges = flow.object("historyHandoff").into_iter().flat_map(super::json::Members::iter);
    let texts =
        |list: &Json| list.as_list().unwrap_or_default().iter().filter_map(Json::as_text).map(str::to_owned).collect();
    edges.map(|(edge, list)| (edge.to_owned(), texts(list))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn what_must_hold_holds_on_every_walk(graph in graphs(), acts in acts()) {
        let mut walk =
            Walk { flow: new_flow(), graph, initial: Vec::new(), used: HashMap::new(), blocks: 0 };
        for act in &acts {
            walk.act(act)?;
        }
    }
}

/// An agent that always does the right thing: it hands on what it owes, and closes.
#[test]
fn a_flow_without_mistakes_comes_to_its_end() {
    let node = |id: &str, role: &str, join| Node {
        id: id.to_owned(),
        role: role.to_owned(),
        await_all_inputs: join,
        ..Node::default()
    };
    let pair = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    let nodes =
        vec![node("n0", "owner", false), node("a", "dev", false), node("b", "dev", false), node("c", "owner", true)];
    let edges = vec![pair("n0", "a"), pair("n0", "b"), pair("a", "c"), pair("b", "c")];
    let graph = Graph::new(nodes, edges);
    let mut flow = new_flow();
    let mut initial = take_initial(&mut flow);
    let mut order = Vec::new();
    for turn in 0..20 {
        claim(&mut flow, &graph, &initial, |_| true);
        initial.clear();
        let Some(node) = flow.running().next().map(str::to_owned) else { break };
        order.push(node.clone());
        let targets: Vec<Target> = graph
            .successors(&node)
            .map(|to| Target { node: to.to_owned(), artifact: Some(format!("{turn}-{to}.md")) })
            .collect();
        let signal = if targets.is_empty() { Signal::ForwardPassClosed } else { Signal::Targets(targets) };
        finish(&mut flow, &graph, &node, &signal, |_| Artifact::File, OwnerRules::Strict).expect("is right");
    }
    assert_eq!(order, ["n0", "a", "b", "c"], "the two of one role one after the other");
    assert_eq!(flow.status(), "awaiting_improvement_choice");
}

#[test]
fn whoever_may_work_is_claimed_at_once() {
    let count = 1000;
    let nodes = (0..count).map(|at| Node { id: format!("n{at}"), role: format!("dev_{}", at + 1), ..Node::default() });
    let edges = (0..count).flat_map(|from| (1..=4).map(move |step| (from, from + step)));
    let edges: Vec<(String, String)> =
        edges.filter(|(_, to)| *to < count).map(|(from, to)| (format!("n{from}"), format!("n{to}"))).collect();
    let mut flow = new_flow();
    for (from, to) in &edges {
        let edge = format!("{from}=>{to}");
        flow.queue(&edge, &format!("{edge}.md"));
        flow.doc.get_mut("completedHandoffs").and_then(Json::as_list_mut).expect("a list").push(Json::from(edge));
    }
    flow.drop("runningNodes", |_| true);
    let graph = Graph::new(nodes.collect(), edges);
    let entries = claim(&mut flow, &graph, &[], |_| true);
    assert_eq!(entries.len(), count - 1);
    assert_eq!(entries.iter().map(|entry| entry.taken.len()).sum::<usize>(), graph.edges().count());
    assert!(flow.queued().next().is_none() && flow.running().count() == count - 1);
}
