//! Property tests: invariants of every flow under any order of actions by agents and people.

use std::collections::{BTreeMap, HashMap, HashSet};

use proptest::prelude::*;

use super::block::{Signal, Target};
use super::consent::{Answer, Request, Wish, await_answer, deny_stale, settle};
use super::document::{FlowRun, NewFlow};
use super::graph::{Graph, Node};
use super::handoff::{Artifact, Ended, finish};
use super::json::{Json, Members};
use super::names::{FlowRef, RoleId, edge_key};
use super::operator::{self, To};
use super::schedule::{claim, take_initial};
use super::state::Reason;
use super::validate::OwnerRules;

const ROLES: [&str; 5] = ["owner", "dev", "dev_2", "qa", "owner"];

/// Action of an agent or a person.
#[derive(Clone, Debug)]
enum Act {
    Restart,
    Claim,
    Say { who: Pick, said: Said },
    Answer { who: Pick },
    AnswerRole { role: usize },
    Approve { who: Pick },
    Decline { who: Pick, message: bool },
    Abort { who: Pick },
    Ask { who: Pick },
    Settle { who: Pick, allow: bool },
}

/// Selection of a node, resolved when the action runs.
#[derive(Clone, Debug)]
enum Pick {
    /// A node that the action fits; any node if there is none.
    Fit(usize),
    Any(usize),
}

#[derive(Clone, Debug)]
enum Said {
    Targets(Vec<(Pick, What)>),
    Ask,
    Await,
    Close,
    Findings,
}

/// Selection of an artifact.
#[derive(Clone, Debug)]
enum What {
    /// An artifact that no block has named yet. One block may name it for several targets.
    New(usize),
    /// A staged artifact, or one of a few that are named repeatedly.
    Known(usize),
    /// An artifact that does not exist.
    Missing,
    Nothing,
}

fn picks() -> impl Strategy<Value = Pick> {
    prop_oneof![12 => (0..8_usize).prop_map(Pick::Fit), 1 => (0..9_usize).prop_map(Pick::Any)]
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let artifact = prop_oneof![
        8 => (0..2_usize).prop_map(What::New),
        6 => (0..4_usize).prop_map(What::Known),
        1 => Just(What::Missing),
        1 => Just(What::Nothing),
    ];
    let targets = prop::collection::vec((picks(), artifact), 0..4).prop_map(Said::Targets);
    let said = prop_oneof![
        10 => targets,
        1 => Just(Said::Ask),
        1 => Just(Said::Await),
        1 => Just(Said::Close),
        1 => Just(Said::Findings),
    ];
    let act = prop_oneof![
        1 => Just(Act::Restart),
        10 => Just(Act::Claim),
        14 => (picks(), said).prop_map(|(who, said)| Act::Say { who, said }),
        4 => picks().prop_map(|who| Act::Answer { who }),
        1 => (0..5_usize).prop_map(|role| Act::AnswerRole { role }),
        3 => picks().prop_map(|who| Act::Approve { who }),
        1 => (picks(), any::<bool>()).prop_map(|(who, message)| Act::Decline { who, message }),
        1 => picks().prop_map(|who| Act::Abort { who }),
        1 => picks().prop_map(|who| Act::Ask { who }),
        1 => (picks(), any::<bool>()).prop_map(|(who, allow)| Act::Settle { who, allow }),
    ];
    prop::collection::vec(act, 0..120)
}

fn graphs() -> impl Strategy<Value = Graph> {
    (2..8_usize).prop_flat_map(|count| {
        let nodes = prop::collection::vec((0..ROLES.len(), any::<bool>(), prop::bool::weighted(0.35)), count);
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
            // A chain through all nodes, plus shortcuts.
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

fn look(path: &str) -> Artifact {
    if path == "missing.md" { Artifact::Missing } else { Artifact::File }
}

impl Pick {
    fn of<'a>(&self, fit: impl Iterator<Item = &'a str>) -> String {
        let fit: Vec<&str> = fit.collect();
        match self {
            Self::Fit(number) if !fit.is_empty() => fit[number % fit.len()].to_owned(),
            Self::Fit(number) | Self::Any(number) => format!("n{number}"),
        }
    }
}

struct Walk {
    flow: FlowRun,
    graph: Graph,
    initial: Vec<String>,
    /// Number of the block that handed over each artifact.
    used: HashMap<String, usize>,
    /// Number of blocks so far, including refused ones.
    blocks: usize,
}

impl Walk {
    fn begin(graph: Graph) -> Result<Self, TestCaseError> {
        let mut walk = Self { flow: new_flow(), graph, initial: Vec::new(), used: HashMap::new(), blocks: 0 };
        walk.initial = take_initial(&mut walk.flow);
        walk.claim()?;
        Ok(walk)
    }

    /// Claims, and checks that delivered handoffs are no longer queued.
    fn claim(&mut self) -> Result<(), TestCaseError> {
        let entries = claim(&mut self.flow, &self.graph, &self.initial, |_| true);
        self.initial.retain(|node| !entries.iter().any(|entry| entry.node == *node));
        for entry in &entries {
            let stays = |from: &str| self.flow.is_queued(&edge_key(from, &entry.node));
            prop_assert!(!entry.taken.iter().any(|taken| stays(&taken.from)), "{:?} stays queued", entry.taken);
        }
        Ok(())
    }

    fn act(&mut self, act: &Act) -> Result<(), TestCaseError> {
        let before = self.flow.clone();
        let refused = match act {
            Act::Restart => {
                deny_stale(&mut self.flow);
                self.initial = take_initial(&mut self.flow);
                false
            }
            Act::Claim => {
                self.claim()?;
                false
            }
            Act::Say { who, said } => self.say(who, said)?,
            Act::Answer { who } => {
                let node = who.of(before.waits().map(|wait| wait.node).chain(before.awaiting_handoff()));
                operator::answer(&mut self.flow, &self.graph, To::Node(&node), "x", "t").is_err()
            }
            Act::AnswerRole { role } => {
                operator::answer(&mut self.flow, &self.graph, To::Role(ROLES[*role]), "x", "t").is_err()
            }
            Act::Approve { who } => self.approve(&who.of(waiting(&before, Reason::HandoffApproval)))?,
            Act::Decline { who, message } => {
                let node = who.of(waiting(&before, Reason::HandoffApproval));
                operator::decline(&mut self.flow, &node, message.then_some(("no", "t"))).is_err()
            }
            Act::Abort { who } => operator::abort(&mut self.flow, &self.graph, &who.of(before.running())).is_err(),
            Act::Ask { who } => {
                let node = who.of(before.running());
                if before.is_running(&node) {
                    let request = self.request(node);
                    await_answer(&mut self.flow, &request);
                }
                false
            }
            Act::Settle { who, allow } => {
                let request = self.request(who.of(waiting(&before, Reason::Consent)));
                settle(&mut self.flow, &request, if *allow { Answer::AllowOnce } else { Answer::Deny });
                false
            }
        };
        prop_assert!(!refused || self.flow.render() == before.render(), "a refusal changed something: {act:?}");
        self.holds(&before)
    }

    /// Returns whether the signal was refused.
    fn say(&mut self, who: &Pick, said: &Said) -> Result<bool, TestCaseError> {
        let node = who.of(self.flow.running());
        self.blocks += 1;
        let signal = match said {
            Said::Targets(targets) => Signal::Targets(self.targets(&node, targets)),
            Said::Ask => Signal::PromptHuman,
            Said::Await => Signal::AwaitHandoff,
            Said::Close => Signal::ForwardPassClosed,
            Said::Findings => Signal::MetaAnalysisComplete { findings: "f.md".to_owned() },
        };
        let ended = finish(&mut self.flow, &self.graph, &node, &signal, look, OwnerRules::Strict);
        if let (Ok(Ended::Handed(_)), Signal::Targets(targets)) = (&ended, &signal) {
            self.note(&node, targets)?;
        }
        Ok(ended.is_err())
    }

    fn targets(&self, node: &str, targets: &[(Pick, What)]) -> Vec<Target> {
        let staged = waiting(&self.flow, Reason::HandoffApproval).filter_map(|node| operator::staged(&self.flow, node));
        let staged: Vec<String> = staged.flatten().filter_map(|target| target.artifact).collect();
        let target = |(whom, what): &(Pick, What)| {
            let artifact = match what {
                What::New(number) => Some(format!("new-{}-{number}.md", self.blocks)),
                What::Known(number) => staged.get(*number).cloned().or_else(|| Some(format!("known-{number}.md"))),
                What::Missing => Some("missing.md".to_owned()),
                What::Nothing => None,
            };
            Target { node: whom.of(self.graph.successors(node).chain(self.graph.predecessors(node))), artifact }
        };
        targets.iter().map(target).collect()
    }

    fn approve(&mut self, node: &str) -> Result<bool, TestCaseError> {
        let staged = operator::staged(&self.flow, node);
        self.blocks += 1;
        let ended = operator::approve(&mut self.flow, &self.graph, node, look);
        if let (Ok(Ended::Handed(_)), Some(targets)) = (&ended, &staged) {
            self.note(node, targets)?;
        }
        Ok(ended.is_err())
    }

    fn request(&self, node: String) -> Request {
        let role = self.graph.node(&node).map(|node| node.role.clone()).unwrap_or_default();
        Request { node, role, wish: Wish::Command { command: "make".to_owned() } }
    }

    /// Checks that no artifact is handed over by two blocks, and that the history has all of them.
    fn note(&mut self, from: &str, targets: &[Target]) -> Result<(), TestCaseError> {
        let history = history(&self.flow);
        for target in targets {
            let (edge, artifact) = (edge_key(from, &target.node), target.artifact.clone().unwrap_or_default());
            prop_assert!(history.get(&edge).is_some_and(|list| list.contains(&artifact)), "{} is unknown", artifact);
            let block = *self.used.entry(artifact.clone()).or_insert(self.blocks);
            prop_assert_eq!(block, self.blocks, "{} is handed over again along {}", artifact, edge);
        }
        Ok(())
    }

    fn holds(&self, before: &FlowRun) -> Result<(), TestCaseError> {
        let flow = &self.flow;
        let running: HashSet<&str> = flow.running().collect();
        let waiting: HashSet<&str> = flow.waits().map(|wait| wait.node).collect();
        prop_assert!(running.is_disjoint(&waiting), "both running and waiting");
        prop_assert!(flow.awaiting_handoff().all(|node| !running.contains(node)), "both running and suspended");
        let mut roles: HashMap<String, &str> = HashMap::new();
        for node in running.union(&waiting).filter_map(|node| self.graph.node(node)) {
            let other = roles.insert(RoleId::key(&node.role), &node.id);
            prop_assert_eq!(other, None, "{} has two nodes running or waiting", node.role.clone());
        }
        let visited: HashSet<&str> = flow.visited().collect();
        prop_assert!(running.is_subset(&visited));
        let edges: HashSet<String> = self.graph.edges().map(|(from, to)| edge_key(from, to)).collect();
        prop_assert!(flow.completed().all(|key| edges.contains(key)));
        let staged: HashSet<&str> =
            flow.object("pendingHandoffApprovals").into_iter().flat_map(Members::keys).collect();
        prop_assert_eq!(staged, self::waiting(flow, Reason::HandoffApproval).collect::<HashSet<_>>());
        self.history_grows(before)?;
        self.is_a_fixed_point()?;
        self.claims_once()
    }

    /// Checks that the history never shrinks and has only artifacts that were handed over.
    fn history_grows(&self, before: &FlowRun) -> Result<(), TestCaseError> {
        let (old, new) = (history(before), history(&self.flow));
        for (edge, list) in &old {
            prop_assert!(new.get(edge).is_some_and(|new| new.starts_with(list)), "the history of {} shrank", edge);
        }
        for (edge, list) in &new {
            let known: HashSet<&String> = list.iter().collect();
            prop_assert_eq!(known.len(), list.len(), "the history of {} repeats itself", edge);
            prop_assert!(list.iter().all(|artifact| self.used.contains_key(artifact)), "{} has more", edge);
        }
        Ok(())
    }

    /// Checks that rendering and loading is a fixed point.
    fn is_a_fixed_point(&self) -> Result<(), TestCaseError> {
        let text = self.flow.render();
        let loaded = FlowRun::load(&text, &self.flow.id()).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(loaded.changed, Vec::<String>::new());
        prop_assert_eq!(loaded.flow.render(), text);
        Ok(())
    }

    /// Checks that a second claim without a change claims nothing.
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

/// Returns the nodes that wait for this reason.
fn waiting(flow: &FlowRun, reason: Reason) -> impl Iterator<Item = &str> {
    flow.waits().filter(move |wait| wait.reason == reason.word()).map(|wait| wait.node)
}

fn history(flow: &FlowRun) -> BTreeMap<String, Vec<String>> {
    let edges = flow.object("historyHandoff").into_iter().flat_map(Members::iter);
    let texts =
        |list: &Json| list.as_list().unwrap_or_default().iter().filter_map(Json::as_text).map(str::to_owned).collect();
    edges.map(|(edge, list)| (edge.to_owned(), texts(list))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn invariants_hold_on_every_walk(graph in graphs(), acts in acts()) {
        let mut walk = Walk::begin(graph)?;
        for act in &acts {
            walk.act(act)?;
        }
    }
}

/// An agent without mistakes: it hands over what it owes, then closes.
#[test]
fn a_flow_without_mistakes_completes() {
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
    assert_eq!(order, ["n0", "a", "b", "c"], "two nodes of one role run one after the other");
    assert_eq!(flow.status(), "awaiting_improvement_choice");
}

#[test]
fn all_runnable_nodes_are_claimed_at_once() {
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
