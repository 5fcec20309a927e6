//! Commands of people. Commands that the flow does not await are refused.

use thiserror::Error;

use super::block::{Refusal, Target};
use super::document::FlowRun;
use super::graph::Graph;
use super::handoff::{self, Approval, Artifact, Ended};
use super::json::{Json, Members};
use super::names::RoleId;
use super::state::{RUNNING, Reason};

/// Reason why a person's command was refused. A refusal leaves the flow unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Denied {
    #[error("The runtime is not currently accepting human input.")]
    NotAccepting,
    #[error("Node '{0}' is not accepting human input.")]
    NodeNotAccepting(String),
    #[error("Node '{node}' is awaiting {what}, not a text reply.")]
    OtherWait { node: String, what: &'static str },
    #[error("Role '{0}' is not accepting human input.")]
    RoleNotAccepting(String),
    #[error("Role '{0}' has multiple nodes accepting human input. Specify nodeId.")]
    RoleAmbiguous(String),
    #[error("Multiple nodes are accepting human input. Specify nodeId or role.")]
    Ambiguous,
    #[error("Node '{0}' already has queued human input.")]
    AlreadyAnswered(String),
    #[error("Node '{0}' is not awaiting handoff approval.")]
    NotStaged(String),
    #[error("The staged handoff cannot be applied: {}", .0.message)]
    Refused(Refusal),
    #[error("No active turn is currently stoppable.")]
    NothingToStop,
    #[error("The runtime is not currently waiting for an improvement mode selection.")]
    NoChoiceAwaited,
    #[error("The runtime is not currently waiting for a feedback consent decision.")]
    NoFeedbackAwaited,
    #[error("No active improvement phase for this flow.")]
    NoImprovement,
    #[error("Role \"{0}\" is not currently awaiting human input in the improvement phase.")]
    RoleNotAwaiting(String),
    #[error("Role \"{0}\" already has queued human input.")]
    RoleAlreadyAnswered(String),
    #[error("{0}")]
    InvalidRole(String),
    #[error("{0}")]
    NoPlan(String),
}

/// Recipient of a person's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To<'a> {
    Node(&'a str),
    Role(&'a str),
    /// The only node that accepts an answer.
    Anyone,
}

/// Queues an answer and returns the node that gets it with the next claim.
///
/// # Errors
/// Fails if no such node accepts an answer, the recipient is ambiguous, or it already has an
/// answer.
pub fn answer(flow: &mut FlowRun, graph: &Graph, to: To<'_>, text: &str, at_iso: &str) -> Result<String, Denied> {
    let candidates = accepting(flow, graph);
    if flow.status() != RUNNING || candidates.is_empty() {
        return Err(Denied::NotAccepting);
    }
    let node = match to {
        To::Node(node) => by_node(flow, node)?,
        To::Role(role) => by_role(flow, &candidates, role)?,
        To::Anyone => match candidates.as_slice() {
            [(node, _)] => node.clone(),
            _ => return Err(Denied::Ambiguous),
        },
    };
    if flow.answered().any(|answered| answered == node) {
        return Err(Denied::AlreadyAnswered(node));
    }
    flow.object_mut("pendingHumanInputs").set(&node, input(text, at_iso));
    Ok(node)
}

pub(super) fn input(text: &str, at_iso: &str) -> Json {
    Json::from([("text", Json::from(text)), ("receivedAt", Json::from(at_iso))])
}

/// Returns the nodes that accept a text answer, with their roles: first those that wait for a
/// person, then those that await a handoff.
fn accepting(flow: &FlowRun, graph: &Graph) -> Vec<(String, String)> {
    let asked = flow.waits().filter(|wait| Reason::takes_text(wait.reason));
    let asked = asked.map(|wait| (wait.node.to_owned(), wait.role.to_owned()));
    let role = |node: &str| graph.node(node).map(|node| node.role.clone()).unwrap_or_default();
    let suspended = flow.awaiting_handoff().map(|node| (node.to_owned(), role(node)));
    asked.chain(suspended).collect()
}

fn by_node(flow: &FlowRun, node: &str) -> Result<String, Denied> {
    let Some(wait) = flow.wait(node) else {
        let suspended = flow.awaits_handoff(node);
        return suspended.then(|| node.to_owned()).ok_or_else(|| Denied::NodeNotAccepting(node.to_owned()));
    };
    if Reason::takes_text(wait.reason) {
        return Ok(node.to_owned());
    }
    let what = if wait.reason == Reason::RoleConfiguration.word() {
        "role configuration"
    } else if wait.reason == Reason::HandoffApproval.word() {
        "handoff approval"
    } else {
        "consent"
    };
    Err(Denied::OtherWait { node: node.to_owned(), what })
}

fn by_role(flow: &FlowRun, candidates: &[(String, String)], role: &str) -> Result<String, Denied> {
    let wanted = RoleId::parse(role).map_err(Denied::InvalidRole)?.instance;
    let matches: Vec<&str> =
        candidates.iter().filter(|(_, role)| RoleId::key(role) == wanted).map(|(node, _)| node.as_str()).collect();
    let asked = || matches.iter().filter(|node| flow.wait(node).is_some_and(|wait| Reason::takes_text(wait.reason)));
    match matches.as_slice() {
        [] => Err(Denied::RoleNotAccepting(role.to_owned())),
        [node] => Ok((*node).to_owned()),
        // A node that asked takes precedence over one that awaits a handoff.
        _ => match asked().collect::<Vec<_>>().as_slice() {
            [node] => Ok((**node).to_owned()),
            _ => Err(Denied::RoleAmbiguous(role.to_owned())),
        },
    }
}

/// Applies the staged handoff of a node without another turn.
///
/// # Errors
/// Fails if none is staged, or it is no longer valid.
pub fn approve(
    flow: &mut FlowRun,
    graph: &Graph,
    node: &str,
    look: impl Fn(&str) -> Artifact,
) -> Result<Ended, Denied> {
    let targets = staged(flow, node).ok_or_else(|| Denied::NotStaged(node.to_owned()))?;
    handoff::apply(flow, graph, node, &targets, look, Approval::Given).map_err(Denied::Refused)
}

/// Returns the staged handoff of a node. `None` if none awaits approval.
pub fn staged(flow: &FlowRun, node: &str) -> Option<Vec<Target>> {
    flow.wait(node).filter(|wait| wait.reason == Reason::HandoffApproval.word())?;
    let list = flow.object("pendingHandoffApprovals").and_then(|staged| staged.get(node)).and_then(Json::as_list);
    let target = |entry: &Members| {
        let artifact = entry.text("artifact_path").map(str::to_owned);
        Some(Target { node: entry.text("target_node_id")?.to_owned(), artifact })
    };
    Some(list.unwrap_or_default().iter().filter_map(Json::as_object).filter_map(target).collect())
}

/// Drops the staged handoff of a node. The node then waits for a text answer; `message` (text and
/// ISO time) is queued as that answer.
///
/// # Errors
/// Fails if none is staged.
pub fn decline(flow: &mut FlowRun, node: &str, message: Option<(&str, &str)>) -> Result<(), Denied> {
    let wait = flow.wait(node).filter(|wait| wait.reason == Reason::HandoffApproval.word());
    let role = wait.ok_or_else(|| Denied::NotStaged(node.to_owned()))?.role.to_owned();
    flow.forget_approval(node);
    flow.suspend(node, &role, Reason::PromptHuman);
    if let Some((text, at_iso)) = message {
        flow.object_mut("pendingHumanInputs").set(node, input(text, at_iso));
    }
    Ok(())
}

/// Lets a node whose turn ended without a result start again without an answer. If one is queued, it starts anyway.
///
/// # Errors
/// Fails if the node does not wait for that reason.
pub fn resume(flow: &mut FlowRun, node: &str) -> Result<(), Denied> {
    let wait = flow.wait(node).filter(|wait| wait.reason == Reason::AutonomousAbort.word());
    wait.ok_or_else(|| Denied::NodeNotAccepting(node.to_owned()))?;
    if !flow.answered().any(|answered| answered == node) {
        flow.object_mut("awaitingHumanNodes").remove(node);
        flow.add("runningNodes", node);
        flow.set_status(RUNNING);
    }
    Ok(())
}

/// Records that a node's turn ended without a result: it was stopped, failed, or sent no signal.
///
/// # Errors
/// Fails if the node has no active turn.
pub fn abort(flow: &mut FlowRun, graph: &Graph, node: &str) -> Result<(), Denied> {
    let role = match flow.wait(node) {
        // A turn that awaits a permission is active too.
        Some(wait) if wait.reason == Reason::Consent.word() => wait.role.to_owned(),
        _ if flow.is_running(node) => graph.node(node).map(|node| node.role.clone()).unwrap_or_default(),
        _ => return Err(Denied::NothingToStop),
    };
    flow.suspend(node, &role, Reason::AutonomousAbort);
    Ok(())
}
