//! Who may work next, and what changes hands when they begin.
//!
//! ```text
//!                    claim                  handoff, close
//!   runnable ────────────────▶ running ──────────────────────▶ (visited)
//!      ▲  ▲                      │  │                              │
//!      │  └── answer, handoff ── │ ─┴─▶ awaiting handoff ◀─ backward handoff
//!      │                         ▼                                 │
//!      └───── answer ───── awaiting a person                       │
//!      └───────────── something is queued for it, or it owes ──────┘
//! ```
//!
//! Nothing is kept of who was runnable and not claimed: it is derived anew each time.
//! The cost of a claim grows with the size of graph and state, not with their product.

use std::collections::{HashMap, HashSet};

use super::document::FlowRun;
use super::entry::{Contract, Entry, Side, Superseded, Taken};
use super::graph::{Graph, Node};
use super::json::Json;
use super::names::{RoleId, edge_key, split_edge_key};
use super::state::{RUNNING, Reason, Wait};

/// Predecessors that have not handed over to a node, in the order of the edges.
pub fn outstanding(flow: &FlowRun, graph: &Graph, node: &str) -> Vec<String> {
    let completed: HashSet<&str> = flow.completed().collect();
    outstanding_in(&completed, graph, node)
}

fn outstanding_in(completed: &HashSet<&str>, graph: &Graph, node: &str) -> Vec<String> {
    graph
        .predecessors(node)
        .filter(|from| !completed.contains(edge_key(from, node).as_str()))
        .map(str::to_owned)
        .collect()
}

/// What may be worked on, in the order in which it is claimed. Whoever waited for a
/// handoff that has come does so no longer.
pub fn derive(flow: &mut FlowRun, graph: &Graph) -> Vec<String> {
    let queue = Queue::of(flow, graph);
    derive_with(flow, graph, &queue)
}

fn derive_with(flow: &mut FlowRun, graph: &Graph, queue: &Queue) -> Vec<String> {
    flow.drop("awaitingHandoff", |node| queue.has(node));
    let completed: HashSet<&str> = flow.completed().collect();
    let visited: HashSet<&str> = flow.visited().collect();
    let suspended: HashSet<&str> = flow.awaiting_handoff().collect();
    let running: HashSet<&str> = flow.running().collect();
    let waits: HashMap<&str, &str> = flow.waits().map(|wait| (wait.node, wait.reason)).collect();
    let answered: HashSet<&str> = flow.answered().collect();
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for node in graph.nodes() {
        let id = node.id.as_str();
        let idle = !suspended.contains(id) && !running.contains(id) && !waits.contains_key(id);
        let owes = || graph.successors(id).any(|to| !completed.contains(edge_key(id, to).as_str()));
        if visited.contains(id) && idle && owes() && seen.insert(id) {
            found.push(id.to_owned());
        }
    }
    for node in graph.nodes() {
        let id = node.id.as_str();
        let asleep = match waits.get(id) {
            None => false,
            Some(reason) => *reason != Reason::PromptHuman.word() || answered.contains(id),
        };
        let free = !suspended.contains(id) && !running.contains(id) && !asleep;
        let complete = || !node.await_all_inputs || outstanding_in(&completed, graph, id).is_empty();
        if queue.has(id) && free && complete() && seen.insert(id) {
            found.push(id.to_owned());
        }
    }
    found
}

/// Takes what was running when the flow was last left: it is worked on first.
pub fn take_initial(flow: &mut FlowRun) -> Vec<String> {
    let initial: Vec<String> = flow.running().map(str::to_owned).collect();
    flow.drop("runningNodes", |_| true);
    initial
}

/// Claims what may be worked on now. `initial` is what was running before and is not yet
/// claimed again; while there is some, nothing is derived. `configured` says whether
/// what a role waits for was chosen meanwhile.
pub fn claim(
    flow: &mut FlowRun,
    graph: &Graph,
    initial: &[String],
    configured: impl Fn(&Wait<'_>) -> bool,
) -> Vec<Entry> {
    if flow.status() != RUNNING {
        return Vec::new();
    }
    let queue = Queue::of(flow, graph);
    let mut pool = resumable(flow, configured);
    // Derived also where it is not looked at: it ends waits for handoffs.
    let derived = derive_with(flow, graph, &queue);
    let first = still_to_do(flow, graph, initial);
    pool.extend(if first.is_empty() { derived } else { first });
    let chosen = choose(flow, graph, &pool);
    let before: HashSet<&str> = initial.iter().map(String::as_str).collect();
    let draft = Draft::of(flow, graph, &queue);
    let entries: Vec<Entry> =
        chosen.into_iter().map(|node| draft.entry(node, before.contains(node.id.as_str()))).collect();
    enter(flow, &entries);
    entries
}

/// Answers first, then roles that waited for a choice.
fn resumable(flow: &FlowRun, configured: impl Fn(&Wait<'_>) -> bool) -> Vec<String> {
    let answered = flow.answered().filter(|node| flow.wait(node).is_some() || flow.awaits_handoff(node));
    let mut pool: Vec<String> = answered.map(str::to_owned).collect();
    let chosen = flow.waits().filter(|wait| wait.reason == Reason::RoleConfiguration.word() && configured(wait));
    pool.extend(chosen.map(|wait| wait.node.to_owned()));
    pool
}

fn still_to_do(flow: &FlowRun, graph: &Graph, initial: &[String]) -> Vec<String> {
    let is_open = |node: &&String| {
        let known = graph.node(node).is_some();
        known && !flow.is_running(node) && !flow.awaits_handoff(node) && flow.wait(node).is_none()
    };
    initial.iter().filter(is_open).cloned().collect()
}

/// Of each role one node, unless another one of that role works or waits.
fn choose<'a>(flow: &FlowRun, graph: &'a Graph, pool: &[String]) -> Vec<&'a Node> {
    let busy = flow.running().chain(flow.waits().map(|wait| wait.node));
    let mut busy: HashMap<String, &str> =
        busy.filter_map(|node| graph.node(node)).map(|node| (RoleId::key(&node.role), node.id.as_str())).collect();
    let mut met = HashSet::new();
    let mut chosen = Vec::new();
    for node in pool.iter().filter(|node| met.insert(node.as_str())).filter_map(|node| graph.node(node)) {
        let role = RoleId::key(&node.role);
        if busy.get(&role).is_none_or(|other| *other == node.id) {
            busy.insert(role, &node.id);
            chosen.push(node);
        }
    }
    chosen
}

/// What is queued and may be delivered, by whom it is for.
struct Queue {
    for_node: HashMap<String, Vec<String>>,
}

impl Queue {
    fn of(flow: &FlowRun, graph: &Graph) -> Self {
        let keys: HashSet<&str> = flow.queued().map(|(key, _)| key).collect();
        let mut for_node: HashMap<String, Vec<String>> = HashMap::new();
        for (from, to) in flow.queued().filter_map(|(key, _)| split_edge_key(key)) {
            // What a predecessor sent is stale while the request to it is not read.
            let fresh = || graph.is_edge(from, to) && !keys.contains(edge_key(to, from).as_str());
            if graph.is_edge(to, from) || fresh() {
                for_node.entry(to.to_owned()).or_default().push(from.to_owned());
            }
        }
        Self { for_node }
    }

    fn has(&self, node: &str) -> bool {
        self.for_node.contains_key(node)
    }
}

/// What entries are written from. Entering one node changes nothing for another one that
/// is entered with it: what the one drops as stale could not be delivered to the other.
struct Draft<'a> {
    flow: &'a FlowRun,
    graph: &'a Graph,
    queue: &'a Queue,
    queued: HashMap<&'a str, &'a Json>,
    visited: HashSet<&'a str>,
    completed: HashSet<&'a str>,
}

impl<'a> Draft<'a> {
    fn of(flow: &'a FlowRun, graph: &'a Graph, queue: &'a Queue) -> Self {
        Self {
            flow,
            graph,
            queue,
            queued: flow.queued().collect(),
            visited: flow.visited().collect(),
            completed: flow.completed().collect(),
        }
    }

    fn entry(&self, node: &Node, interrupted: bool) -> Entry {
        let id = node.id.as_str();
        let first_visit = !self.visited.contains(id);
        let answer = self.flow.answer(id).map(str::to_owned);
        let (taken, superseded) = if answer.is_none() { self.takes(id) } else { Default::default() };
        let again: HashSet<&str> = superseded.iter().map(|sent| sent.to.as_str()).collect();
        let is_sent = |to: &&str| self.completed.contains(edge_key(id, to).as_str()) && !again.contains(to);
        let (sent, not_sent): (Vec<&str>, Vec<&str>) = self.graph.successors(id).partition(is_sent);
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        Entry {
            node: node.id.clone(),
            role: node.role.clone(),
            first_visit,
            interrupted,
            answer,
            contract: first_visit.then(|| Contract::of(node)),
            taken,
            superseded,
            not_received: outstanding_in(&self.completed, self.graph, id),
            sent: owned(sent),
            not_sent: owned(not_sent),
        }
    }

    fn takes(&self, node: &str) -> (Vec<Taken>, Vec<Superseded>) {
        let artifacts = |key: &str| {
            let list = self.queued.get(key).and_then(|list| list.as_list()).unwrap_or_default();
            list.iter().filter_map(Json::as_text).map(str::to_owned).collect()
        };
        let (mut taken, mut superseded) = (Vec::new(), Vec::new());
        for from in self.queue.for_node.get(node).into_iter().flatten() {
            let side = if self.graph.is_edge(from, node) { Side::Predecessor } else { Side::Successor };
            taken.push(Taken { from: from.clone(), side, artifacts: artifacts(&edge_key(from, node)) });
            let sent = edge_key(node, from);
            if side == Side::Successor && self.queued.contains_key(sent.as_str()) {
                superseded.push(Superseded { to: from.clone(), artifacts: artifacts(&sent) });
            }
        }
        (taken, superseded)
    }
}

/// The state in which all of them are at work.
fn enter(flow: &mut FlowRun, entries: &[Entry]) {
    if entries.is_empty() {
        return;
    }
    let mut gone: HashSet<String> = HashSet::new();
    let mut reopened: HashSet<String> = HashSet::new();
    for entry in entries {
        gone.extend(entry.taken.iter().map(|taken| edge_key(&taken.from, &entry.node)));
        reopened.extend(entry.superseded.iter().map(|sent| edge_key(&entry.node, &sent.to)));
        if entry.answer.is_some() {
            flow.object_mut("pendingHumanInputs").remove(&entry.node);
            flow.object_mut("awaitingHumanNodes").remove(&entry.node);
        } else {
            let ends = |wait: Wait<'_>| {
                wait.reason == Reason::RoleConfiguration.word()
                    || (wait.reason == Reason::PromptHuman.word() && entry.by_handoff())
            };
            if flow.wait(&entry.node).is_some_and(ends) {
                flow.object_mut("awaitingHumanNodes").remove(&entry.node);
            }
        }
    }
    let answered: HashSet<&str> =
        entries.iter().filter(|entry| entry.answer.is_some()).map(|entry| entry.node.as_str()).collect();
    if !answered.is_empty() {
        flow.drop("awaitingHandoff", |node| answered.contains(node));
    }
    if !gone.is_empty() || !reopened.is_empty() {
        flow.object_mut("receivingHandoff").retain(|key| !gone.contains(key) && !reopened.contains(key));
        flow.drop("completedHandoffs", |key| reopened.contains(key));
    }
    let nodes: Vec<String> = entries.iter().map(|entry| entry.node.clone()).collect();
    flow.add_all("visitedNodeIds", &nodes);
    flow.add_all("runningNodes", &nodes);
}
