//! What a person tells a flow. Refused is what the flow does not wait for.

use thiserror::Error;

use super::block::{Refusal, Target};
use super::document::FlowRun;
use super::graph::Graph;
use super::handoff::{self, Approval, Artifact, Ended};
use super::json::{Json, Members};
use super::names::RoleId;
use super::state::{RUNNING, Reason};

/// Why a person's command was not carried out. Nothing was changed.
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
    #[error("The handoff that waits for approval cannot be made: {}", .0.message)]
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

/// Whom a person speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To<'a> {
    Node(&'a str),
    Role(&'a str),
    /// Whoever is the only one to wait.
    Anyone,
}

/// Queues an answer for the node that is returned; it is delivered with the next claim.
///
/// # Errors
/// Where nobody waits for it.
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

/// Nodes that take a text, with their roles: who asked, and who waits for a handoff.
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
        // Who asked is meant before who merely waits.
        _ => match asked().collect::<Vec<_>>().as_slice() {
            [node] => Ok((**node).to_owned()),
            _ => Err(Denied::RoleAmbiguous(role.to_owned())),
        },
    }
}

/// Makes the handoff that waits for approval, without another turn.
///
/// # Errors
/// Where none waits, or it cannot be made any more.
pub fn approve(
    flow: &mut FlowRun,
    graph: &Graph,
    node: &str,
    look: impl Fn(&str) -> Artifact,
) -> Result<Ended, Denied> {
    let targets = staged(flow, node).ok_or_else(|| Denied::NotStaged(node.to_owned()))?;
    handoff::apply(flow, graph, node, &targets, look, Approval::Given).map_err(Denied::Refused)
}

/// What waits for approval at a node; none where nothing does.
pub fn staged(flow: &FlowRun, node: &str) -> Option<Vec<Target>> {
    flow.wait(node).filter(|wait| wait.reason == Reason::HandoffApproval.word())?;
    let list = flow.object("pendingHandoffApprovals").and_then(|staged| staged.get(node)).and_then(Json::as_list);
    let target = |entry: &Members| {
        let artifact = entry.text("artifact_path").map(str::to_owned);
        Some(Target { node: entry.text("target_node_id")?.to_owned(), artifact })
    };
    Some(list.unwrap_or_default().iter().filter_map(Json::as_object).filter_map(target).collect())
}

/// Drops the handoff that waits for approval. The node waits for words then; with
/// `message` they are there already.
///
/// # Errors
/// Where none waits.
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

/// The turn of a node ended without a result: it was stopped, failed, or said nothing.
///
/// # Errors
/// Where the node is not at work.
pub fn abort(flow: &mut FlowRun, graph: &Graph, node: &str) -> Result<(), Denied> {
    let role = match flow.wait(node) {
        // Its turn is under way too: it stands still at a question.
        Some(wait) if wait.reason == Reason::Consent.word() => wait.role.to_owned(),
        _ if flow.is_running(node) => graph.node(node).map(|node| node.role.clone()).unwrap_or_default(),
        _ => return Err(Denied::NothingToStop),
    };
    flow.suspend(node, &role, Reason::AutonomousAbort);
    Ok(())
}
