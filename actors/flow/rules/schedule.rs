//! Scheduler: which nodes may run next, and what a claim delivers to them.
//!
//! ```text
//!                    claim                  handoff, close
//!   runnable ────────────────▶ running ──────────────────────▶ (visited)
//!      ▲  ▲                      │  │                              │
//!      │  └── answer, handoff ── │ ─┴─▶ awaiting handoff ◀─ backward handoff
//!      │                         ▼                                 │
//!      └───── answer ───── awaiting human                          │
//!      └─────── a handoff is queued for it, or it owes one ────────┘
//! ```
//!
//! Runnable nodes that were not claimed are not stored: each claim derives them again. The cost of a
//! claim grows with the size of graph and state, not with their product.

use std::collections::{HashMap, HashSet};

use super::board::Board;
use super::document::FlowRun;
use super::entry::{Contract, Entry, Superseded, Taken};
use super::graph::{Graph, Node};
use super::json::Json;
use super::names::RoleId;
use super::state::{RUNNING, Reason, Wait};

/// Returns the predecessors that have not handed over to a node, in edge order.
pub fn outstanding(flow: &FlowRun, graph: &Graph, node: &str) -> Vec<String> {
    let completed: HashSet<&str> = flow.completed().collect();
    let open = graph.coming(node).filter(|edge| !completed.contains(graph.key_of(*edge)));
    open.map(|edge| graph.ends(edge).0.to_owned()).collect()
}

/// Returns the runnable nodes in claim order. Removes nodes with a deliverable handoff from
/// `awaitingHandoff`.
pub fn derive(flow: &mut FlowRun, graph: &Graph) -> Vec<String> {
    let board = Board::of(flow, graph);
    derive_with(flow, &board).into_iter().map(str::to_owned).collect()
}

fn derive_with<'a>(flow: &mut FlowRun, board: &Board<'a>) -> Vec<&'a str> {
    flow.drop("awaitingHandoff", |node| board.has(node));
    let visited: HashSet<&str> = flow.visited().collect();
    let suspended: HashSet<&str> = flow.awaiting_handoff().collect();
    let running: HashSet<&str> = flow.running().collect();
    let waits: HashMap<&str, &str> = flow.waits().map(|wait| (wait.node, wait.reason)).collect();
    let answered: HashSet<&str> = flow.answered().collect();
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for node in board.graph.nodes() {
        let id = node.id.as_str();
        let idle = !suspended.contains(id) && !running.contains(id) && !waits.contains_key(id);
        let owes = || board.sent(id).any(|(_, is_sent)| !is_sent);
        if visited.contains(id) && idle && owes() && seen.insert(id) {
            found.push(id);
        }
    }
    for node in board.graph.nodes() {
        let id = node.id.as_str();
        let asleep = match waits.get(id) {
            None => false,
            Some(reason) => *reason != Reason::PromptHuman.word() || answered.contains(id),
        };
        let free = !suspended.contains(id) && !running.contains(id) && !asleep;
        let complete = || !node.await_all_inputs || board.not_received(id).next().is_none();
        if board.has(id) && free && complete() && seen.insert(id) {
            found.push(id);
        }
    }
    found
}

/// Removes and returns the nodes that were running when the flow was last stopped. They are claimed
/// first.
pub fn take_initial(flow: &mut FlowRun) -> Vec<String> {
    let initial: Vec<String> = flow.running().map(str::to_owned).collect();
    flow.drop("runningNodes", |_| true);
    initial
}

/// Claims the nodes that may run now. `initial` holds nodes that ran before a restart and are not
/// claimed yet; while some remain, derived nodes are not claimed. `configured` reports whether the
/// configuration that a role waits for was chosen.
pub fn claim(
    flow: &mut FlowRun,
    graph: &Graph,
    initial: &[String],
    configured: impl Fn(&Wait<'_>) -> bool,
) -> Vec<Entry> {
    if flow.status() != RUNNING {
        return Vec::new();
    }
    let board = Board::of(flow, graph);
    let mut pool = resumable(flow, graph, configured);
    // Always derived, because this also ends waits for handoffs.
    let derived = derive_with(flow, &board);
    let first = still_to_do(flow, graph, initial);
    pool.extend(if first.is_empty() { derived } else { first });
    let chosen = choose(flow, graph, &pool);
    let before: HashSet<&str> = initial.iter().map(String::as_str).collect();
    let draft = Draft::of(flow, &board);
    let entries: Vec<Entry> =
        chosen.into_iter().map(|node| draft.entry(node, before.contains(node.id.as_str()))).collect();
    enter(flow, &board, &entries);
    entries
}

/// Returns nodes with an answer, then those whose role configuration was chosen.
fn resumable<'a>(flow: &FlowRun, graph: &'a Graph, configured: impl Fn(&Wait<'_>) -> bool) -> Vec<&'a str> {
    let mut asleep: HashSet<&str> = flow.awaiting_handoff().collect();
    asleep.extend(flow.waits().map(|wait| wait.node));
    let answered = flow.answered().filter(|node| asleep.contains(node));
    let chosen = flow.waits().filter(|wait| wait.reason == Reason::RoleConfiguration.word() && configured(wait));
    answered.chain(chosen.map(|wait| wait.node)).filter_map(|node| known(graph, node)).collect()
}

fn still_to_do<'a>(flow: &FlowRun, graph: &'a Graph, initial: &[String]) -> Vec<&'a str> {
    let mut taken: HashSet<&str> = flow.running().chain(flow.awaiting_handoff()).collect();
    taken.extend(flow.waits().map(|wait| wait.node));
    initial.iter().filter(|node| !taken.contains(node.as_str())).filter_map(|node| known(graph, node)).collect()
}

/// Returns the id of a node if the workflow has it.
fn known<'a>(graph: &'a Graph, node: &str) -> Option<&'a str> {
    graph.node(node).map(|node| node.id.as_str())
}

/// Chooses at most one node per role, and none of a role that has another node running or waiting.
fn choose<'a>(flow: &FlowRun, graph: &'a Graph, pool: &[&str]) -> Vec<&'a Node> {
    let busy = flow.running().chain(flow.waits().map(|wait| wait.node));
    let mut busy: HashMap<String, &str> =
        busy.filter_map(|node| graph.node(node)).map(|node| (RoleId::key(&node.role), node.id.as_str())).collect();
    let mut met = HashSet::new();
    let mut chosen = Vec::new();
    for node in pool.iter().filter(|node| met.insert(**node)).filter_map(|node| graph.node(node)) {
        let role = RoleId::key(&node.role);
        if busy.get(&role).is_none_or(|other| *other == node.id) {
            busy.insert(role, &node.id);
            chosen.push(node);
        }
    }
    chosen
}

/// Precomputed inputs for entries. Entries of one claim are independent: a stale handoff that one
/// of them drops is not deliverable to another.
struct Draft<'a> {
    board: &'a Board<'a>,
    queued: Vec<&'a Json>,
    visited: HashSet<&'a str>,
    answers: HashMap<&'a str, &'a str>,
}

impl<'a> Draft<'a> {
    fn of(flow: &'a FlowRun, board: &'a Board<'a>) -> Self {
        Self {
            board,
            queued: flow.queued().map(|(_, list)| list).collect(),
            visited: flow.visited().collect(),
            answers: flow.answers().collect(),
        }
    }

    fn entry(&self, node: &Node, interrupted: bool) -> Entry {
        let id = node.id.as_str();
        let first_visit = !self.visited.contains(id);
        let answer = self.answers.get(id).map(|text| (*text).to_owned());
        let (taken, superseded) = if answer.is_none() { self.takes(id) } else { Default::default() };
        let again: HashSet<&str> = superseded.iter().map(|sent| sent.to.as_str()).collect();
        let (mut sent, mut not_sent) = (Vec::new(), Vec::new());
        for (to, is_sent) in self.board.sent(id) {
            let list = if is_sent && !again.contains(to) { &mut sent } else { &mut not_sent };
            list.push(to.to_owned());
        }
        Entry {
            node: node.id.clone(),
            role: node.role.clone(),
            first_visit,
            interrupted,
            answer,
            contract: first_visit.then(|| Contract::of(node)),
            taken,
            superseded,
            not_received: self.board.not_received(id).map(str::to_owned).collect(),
            sent,
            not_sent,
        }
    }

    fn takes(&self, node: &str) -> (Vec<Taken>, Vec<Superseded>) {
        let artifacts = |at: usize| {
            let list = self.queued[at].as_list().unwrap_or_default();
            list.iter().filter_map(Json::as_text).map(str::to_owned).collect()
        };
        let (mut taken, mut superseded) = (Vec::new(), Vec::new());
        for arrival in self.board.arrivals(node) {
            let from = || arrival.from.to_owned();
            taken.push(Taken { from: from(), side: arrival.side, artifacts: artifacts(arrival.at) });
            superseded.extend(arrival.superseded.map(|sent| Superseded { to: from(), artifacts: artifacts(sent.at) }));
        }
        (taken, superseded)
    }
}

/// Applies the entries to the state: their nodes are running.
fn enter(flow: &mut FlowRun, board: &Board<'_>, entries: &[Entry]) {
    if entries.is_empty() {
        return;
    }
    end_waits(flow, entries);
    let mut kept = vec![true; flow.queued().count()];
    let mut reopened: HashSet<&str> = HashSet::new();
    for entry in entries.iter().filter(|entry| entry.answer.is_none()) {
        for arrival in board.arrivals(&entry.node) {
            kept[arrival.at] = false;
            if let Some(sent) = arrival.superseded {
                kept[sent.at] = false;
                reopened.insert(board.graph.key_of(sent.edge));
            }
        }
    }
    if kept.contains(&false) {
        let mut kept = kept.into_iter();
        flow.object_mut("receivingHandoff").retain(|_| kept.next().unwrap_or(true));
        flow.drop("completedHandoffs", |key| reopened.contains(key));
    }
    let nodes: Vec<String> = entries.iter().map(|entry| entry.node.clone()).collect();
    flow.add_all("visitedNodeIds", &nodes);
    flow.add_all("runningNodes", &nodes);
}

/// Ends the waits of the claimed nodes and removes the answers that were delivered.
fn end_waits(flow: &mut FlowRun, entries: &[Entry]) {
    let answered = entries.iter().filter(|entry| entry.answer.is_some());
    let answered: HashSet<&str> = answered.map(|entry| entry.node.as_str()).collect();
    let waits: HashMap<&str, &str> = flow.waits().map(|wait| (wait.node, wait.reason)).collect();
    let ends = |entry: &&Entry| {
        let is = |reason: Reason| waits.get(entry.node.as_str()).is_some_and(|other| *other == reason.word());
        entry.answer.is_some() || is(Reason::RoleConfiguration) || (is(Reason::PromptHuman) && entry.by_handoff())
    };
    let ended: HashSet<&str> = entries.iter().filter(ends).map(|entry| entry.node.as_str()).collect();
    if !answered.is_empty() {
        flow.object_mut("pendingHumanInputs").retain(|node| !answered.contains(node));
        flow.drop("awaitingHandoff", |node| answered.contains(node));
    }
    if !ended.is_empty() {
        flow.object_mut("awaitingHumanNodes").retain(|node| !ended.contains(node));
    }
}
