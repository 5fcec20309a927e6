//! Status of a flow's nodes, and detection of stalled flows.

use std::collections::HashSet;

use super::document::FlowRun;
use super::graph::Graph;
use super::improvement::{self, ResumePath};
use super::names::edge_key;
use super::schedule::{claim, derive};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowStatus {
    pub nodes: Vec<NodeStatus>,
    /// Nodes that a claim would start now, in order.
    pub next: Vec<String>,
    pub stall: Option<Stall>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    pub node: String,
    pub role: String,
    pub doing: Doing,
    /// Whether an answer is queued for the node.
    pub answered: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Not reached yet, or not started.
    Idle,
    /// Claimable once its role is free.
    Ready,
    Running,
    /// The reason as `flow.json` has it.
    AwaitingHuman(String),
    AwaitingHandoff,
    Done,
}

impl Doing {
    pub fn word(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::AwaitingHuman(_) => "awaiting-human",
            Self::AwaitingHandoff => "awaiting-handoff",
            Self::Done => "done",
        }
    }
}

/// Why a flow stalls: nothing runs, nothing can be claimed, and no person was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// Some nodes await handoffs that no other node will send. An answer to one of them continues
    /// the flow.
    Suspended,
    /// No node can ever run again.
    Dead,
}

pub fn status(flow: &FlowRun, graph: &Graph) -> FlowStatus {
    let mut after = flow.clone();
    let ready: HashSet<String> = derive(&mut after, graph).into_iter().collect();
    let forward = ResumePath::of(flow) == ResumePath::FlowRunner;
    let mut claimed = flow.clone();
    let next: Vec<String> = match forward {
        true => claim(&mut claimed, graph, &[], |_| true).into_iter().map(|entry| entry.node).collect(),
        false => Vec::new(),
    };
    let visited: HashSet<&str> = flow.visited().collect();
    let completed: HashSet<&str> = flow.completed().collect();
    let is_covered = |node: &str| {
        let into = graph.predecessors(node).all(|from| completed.contains(edge_key(from, node).as_str()));
        into && graph.successors(node).all(|to| completed.contains(edge_key(node, to).as_str()))
    };
    let running: HashSet<&str> = flow.running().collect();
    let suspended: HashSet<&str> = after.awaiting_handoff().collect();
    let answered: HashSet<&str> = flow.answered().collect();
    let doing = |node: &str| {
        if running.contains(node) {
            Doing::Running
        } else if let Some(wait) = flow.wait(node) {
            Doing::AwaitingHuman(wait.reason.to_owned())
        } else if suspended.contains(node) {
            Doing::AwaitingHandoff
        } else if forward && ready.contains(node) {
            Doing::Ready
        } else if visited.contains(node) && is_covered(node) {
            Doing::Done
        } else {
            Doing::Idle
        }
    };
    let nodes = graph.nodes().iter().map(|node| NodeStatus {
        node: node.id.clone(),
        role: node.role.clone(),
        doing: doing(&node.id),
        answered: answered.contains(node.id.as_str()),
    });
    FlowStatus { nodes: nodes.collect(), stall: forward.then(|| stall(flow, graph, &next)).flatten(), next }
}

fn stall(flow: &FlowRun, graph: &Graph, next: &[String]) -> Option<Stall> {
    // Running nodes that the workflow lacks are dropped when the flow is resumed.
    let runs = flow.running().any(|node| graph.node(node).is_some());
    if runs || !next.is_empty() || flow.waits().next().is_some() || improvement::is_running(flow) {
        return None;
    }
    let wakes = flow.awaiting_handoff().any(|node| graph.node(node).is_some());
    Some(if wakes { Stall::Suspended } else { Stall::Dead })
}
