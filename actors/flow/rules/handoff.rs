//! Applies an agent's signal to the flow. All checks precede any change.

use std::collections::HashSet;

use super::block::{Code, Refusal, Signal, Target};
use super::document::FlowRun;
use super::graph::{Graph, Node};
use super::improvement;
use super::json::{Json, trim};
use super::names::{OWNER, RoleId, edge_key, split_edge_key};
use super::schedule::outstanding;
use super::state::{RUNNING, Reason};
use super::validate::OwnerRules;

/// Kind of file at the path of an artifact. Relative paths start at the workspace root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Artifact {
    File,
    Missing,
    /// A folder, or something else that is not a regular file.
    NotAFile,
}

/// Outcome of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Handed over to these nodes, each with its role.
    Handed(Vec<(String, String)>),
    /// The handoff awaits approval by a person.
    Staged,
    /// The agent asked a person.
    Asked,
    /// The node waits for handoffs of other nodes.
    Suspended,
    /// The forward pass is closed.
    Closed,
}

/// Whether a person approved the handoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approval {
    Given,
    NotAsked,
}

/// Applies the signal of the agent at a running node.
///
/// # Errors
/// Returns a refusal if the signal is not possible; the flow is unchanged.
pub fn finish(
    flow: &mut FlowRun,
    graph: &Graph,
    node: &str,
    signal: &Signal,
    look: impl Fn(&str) -> Artifact,
    rules: OwnerRules,
) -> Result<Ended, Refusal> {
    let at = running_node(flow, graph, node)?;
    match signal {
        Signal::Targets(targets) => apply(flow, graph, node, targets, look, Approval::NotAsked),
        Signal::PromptHuman => {
            flow.suspend(node, &at.role, Reason::PromptHuman);
            Ok(Ended::Asked)
        }
        Signal::AwaitHandoff => await_handoff(flow, graph, node),
        Signal::ForwardPassClosed => close(flow, graph, at, rules),
        Signal::MetaAnalysisComplete { .. } | Signal::BackwardPassComplete { .. } => Err(Refusal::new(
            Code::UnexpectedSignal,
            "Improvement signal in the forward pass",
            "Error: This signal belongs to the improvement phase, which has not started. Hand over, or emit prompt-human.",
        )),
    }
}

fn running_node<'a>(flow: &FlowRun, graph: &'a Graph, node: &str) -> Result<&'a Node, Refusal> {
    if flow.status() != RUNNING || !flow.is_running(node) {
        let message = format!("Error: Node '{node}' is not running, so it cannot hand over.");
        return Err(Refusal::new(Code::NotRunning, "Signal from a node that is not running", message));
    }
    graph.node(node).ok_or_else(|| mismatch(&format!("Node '{node}' not found in workflow.")))
}

/// Hands over to targets in either direction.
///
/// # Errors
/// Returns a refusal if a target or an artifact is not valid; the flow is unchanged.
pub fn apply(
    flow: &mut FlowRun,
    graph: &Graph,
    node: &str,
    targets: &[Target],
    look: impl Fn(&str) -> Artifact,
    approval: Approval,
) -> Result<Ended, Refusal> {
    let at = graph.node(node).ok_or_else(|| mismatch(&format!("Node '{node}' not found in workflow.")))?;
    let (forward, backward) = split(flow, graph, node, targets)?;
    for (index, target) in targets.iter().enumerate() {
        let label = if targets.len() == 1 { "the handoff target".to_owned() } else { format!("target {index}") };
        check_artifact(target, &label, &look)?;
    }
    check_forward(flow, node, &forward)?;
    check_backward(flow, node, &backward)?;
    let is_gated = at.human_colab && !forward.is_empty();
    let is_altered = targets.iter().any(|target| graph.is_altered(node, &target.node));
    if (is_gated || is_altered) && approval == Approval::NotAsked {
        stage(flow, at, targets);
        return Ok(Ended::Staged);
    }
    flow.release(node);
    for target in &forward {
        let edge = edge_key(node, &target.node);
        flow.add("completedHandoffs", &edge);
        flow.queue(&edge, target.artifact.as_deref().unwrap_or_default());
    }
    if !backward.is_empty() {
        flow.add("awaitingHandoff", node);
    }
    for target in &backward {
        flow.queue(&edge_key(node, &target.node), target.artifact.as_deref().unwrap_or_default());
        let reopened = edge_key(&target.node, node);
        flow.drop("completedHandoffs", |key| key == reopened);
    }
    flow.set_status(RUNNING);
    let role = |target: &&Target| graph.node(&target.node).map(|node| node.role.clone()).unwrap_or_default();
    let handed = forward.iter().chain(&backward).map(|target| (target.node.clone(), role(target)));
    Ok(Ended::Handed(handed.collect()))
}

/// Splits the targets into successors and predecessors of the node.
fn split<'a>(
    flow: &FlowRun,
    graph: &Graph,
    node: &str,
    targets: &'a [Target],
) -> Result<(Vec<&'a Target>, Vec<&'a Target>), Refusal> {
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    for target in targets {
        match (graph.is_edge(node, &target.node), graph.is_edge(&target.node, node)) {
            (true, false) => forward.push(target),
            (false, true) => backward.push(target),
            (true, true) => {
                return Err(mismatch(&format!(
                    "Target node '{}' is both a successor and a predecessor of '{node}', which is unsupported.",
                    target.node
                )));
            }
            (false, false) if graph.node(&target.node).is_none() => {
                return Err(mismatch(&format!("Target node '{}' not found in workflow.", target.node)));
            }
            (false, false) => return Err(no_neighbour(flow, graph, node, &target.node)),
        }
    }
    if targets.is_empty() {
        return Err(mismatch(&format!("Node '{node}' emitted no valid handoff targets.")));
    }
    Ok((forward, backward))
}

fn no_neighbour(flow: &FlowRun, graph: &Graph, node: &str, target: &str) -> Refusal {
    let mut lines = vec![format!(
        "Error: Node '{node}' cannot hand over to '{target}', which is not a direct neighbor. Reach it through the nodes in between."
    )];
    lines.extend(hints(flow, graph, node));
    Refusal::new(Code::InvalidTransition, "Handoff target mismatch", lines.join(" "))
}

/// Returns sentences that name the allowed targets of a node.
fn hints(flow: &FlowRun, graph: &Graph, node: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let ahead: Vec<&str> = graph.successors(node).collect();
    if !ahead.is_empty() {
        lines.push(format!("You can forward handoff to: {}.", ahead.join(", ")));
    }
    let completed: HashSet<&str> = flow.completed().collect();
    let behind: Vec<&str> =
        graph.predecessors(node).filter(|from| completed.contains(edge_key(from, node).as_str())).collect();
    if !behind.is_empty() {
        lines.push(format!("In case of doubts, you can backward handoff to: {}.", behind.join(", ")));
    }
    lines.push("If you need human guidance, emit prompt-human.".to_owned());
    lines
}

fn check_artifact(target: &Target, label: &str, look: &impl Fn(&str) -> Artifact) -> Result<(), Refusal> {
    let Some(path) = target.artifact.as_deref().filter(|path| !trim(path).is_empty()) else {
        let message = format!("Error: {label} has no artifact_path. Write the artifact first, then hand over again.");
        return Err(Refusal::new(Code::MissingRequiredField, "Handoff block missing required field", message));
    };
    let detail = match look(path) {
        Artifact::File => return Ok(()),
        Artifact::Missing => "there is no file at that path",
        Artifact::NotAFile => "that path is not a file",
    };
    let message =
        format!("Error: artifact_path is \"{path}\", but {detail}. Write the artifact, then hand over again.");
    Err(Refusal::new(Code::ArtifactUnavailable, "Referenced artifact unavailable", message))
}

fn check_forward(flow: &FlowRun, node: &str, forward: &[&Target]) -> Result<(), Refusal> {
    check_distinct(node, forward, "forward")?;
    forward.iter().try_for_each(|target| check_unused(flow, target))
}

fn check_backward(flow: &FlowRun, node: &str, backward: &[&Target]) -> Result<(), Refusal> {
    check_distinct(node, backward, "backward")?;
    for target in backward {
        check_unused(flow, target)?;
        let edge = edge_key(&target.node, node);
        if !flow.is_completed(&edge) {
            return Err(mismatch(&format!(
                "Node '{node}' attempted to send work back to predecessor '{}', but edge '{edge}' is not currently realized.",
                target.node
            )));
        }
    }
    Ok(())
}

fn check_distinct(node: &str, targets: &[&Target], direction: &str) -> Result<(), Refusal> {
    let mut met = HashSet::new();
    match targets.iter().find(|target| !met.insert(target.node.as_str())) {
        None => Ok(()),
        Some(target) => Err(mismatch(&format!(
            "Node '{node}' emitted duplicate {direction} handoffs for target '{}'.",
            target.node
        ))),
    }
}

fn check_unused(flow: &FlowRun, target: &Target) -> Result<(), Refusal> {
    match target.artifact.as_deref().filter(|path| flow.was_used(path)) {
        None => Ok(()),
        Some(path) => Err(mismatch(&format!(
            "Artifact '{path}' was already used in a previous handoff. Create a new artifact for this handoff."
        ))),
    }
}

fn mismatch(detail: &str) -> Refusal {
    let message = format!("Error: {detail} Correct the final `handoff` block and restate it.");
    Refusal::new(Code::InvalidTransition, "Handoff target mismatch", message)
}

fn stage(flow: &mut FlowRun, node: &Node, targets: &[Target]) {
    let staged = targets.iter().map(|target| {
        let artifact = target.artifact.as_deref().map_or(Json::Null, Json::from);
        Json::from([("target_node_id", Json::from(target.node.as_str())), ("artifact_path", artifact)])
    });
    flow.object_mut("pendingHandoffApprovals").set(&node.id, Json::List(staged.collect()));
    flow.suspend(&node.id, &node.role, Reason::HandoffApproval);
}

fn await_handoff(flow: &mut FlowRun, graph: &Graph, node: &str) -> Result<Ended, Refusal> {
    let is_target = |(key, _): (&str, &Json)| split_edge_key(key).is_some_and(|(_, to)| to == node);
    if outstanding(flow, graph, node).is_empty() && !flow.queued().any(is_target) {
        return Err(Refusal::new(
            Code::InvalidTransition,
            "await-handoff invalid: no inbound handoff established",
            format!(
                "Error: No predecessor owes '{node}' a handoff, and none is queued for it. To request a correction, first hand the work back to the node that should correct it."
            ),
        ));
    }
    flow.drop("runningNodes", |running| running == node);
    flow.add("awaitingHandoff", node);
    Ok(Ended::Suspended)
}

fn close(flow: &mut FlowRun, graph: &Graph, node: &Node, rules: OwnerRules) -> Result<Ended, Refusal> {
    let may = rules == OwnerRules::Relaxed || RoleId::key(&node.role) == OWNER;
    let is_last = may && graph.successors(&node.id).next().is_none();
    if !is_last || has_blockers(flow, graph, &node.id) {
        let mut lines = vec!["Only the last owner node may emit forward-pass-closed.".to_owned()];
        let owed = outstanding(flow, graph, &node.id);
        if !owed.is_empty() {
            lines.push(format!(
                "You are yet to receive a handoff from: {}. You can emit await-handoff to suspend and wait.",
                owed.join(", ")
            ));
        }
        lines.extend(hints(flow, graph, &node.id));
        return Err(Refusal::new(Code::InvalidTransition, "Invalid forward-pass-closed signal", lines.join(" ")));
    }
    flow.release(&node.id);
    let bases: HashSet<String> = graph.nodes().iter().map(|node| RoleId::base_of(&node.role)).collect();
    improvement::await_choice(flow, bases.len() <= 1);
    Ok(Ended::Closed)
}

/// Reports whether the forward pass has unfinished work besides `node`.
fn has_blockers(flow: &FlowRun, graph: &Graph, node: &str) -> bool {
    let completed: HashSet<&str> = flow.completed().collect();
    flow.running().any(|running| running != node)
        || flow.waits().next().is_some()
        || flow.answered().next().is_some()
        || graph.edges().any(|(from, to)| !completed.contains(edge_key(from, to).as_str()))
        || flow.queued().next().is_some()
        || flow.awaiting_handoff().next().is_some()
}
