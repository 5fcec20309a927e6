//! The improvement phase: each role writes findings about the flow (meta-analysis), then feedback may be written.
//!
//! ```text
//!   awaiting_choice ──choose──▶ running ──all done──▶ awaiting_feedback_consent
//!         │ none                 │  ▲ answer                │ denied     │ granted
//!         ▼                      ▼  │                       ▼            ▼
//!      skipped              awaiting human              completed ◀── running (feedback)
//! ```
//!
//! The flow's status changes together with the phase's status.

use std::collections::HashSet;

use super::block::{Code, Refusal, Signal};
use super::document::FlowRun;
use super::handoff::Artifact;
use super::json::{Json, Members};
use super::names::{FEEDBACK_ROLE, RoleId};
use super::operator::{Denied, input};
use super::plan::{ImprovementMode, Plan, PlanEntry, Step};
use super::state::{RUNNING, Reason, list_in, object_in};

const PHASE: &str = "improvementPhase";
const AWAITING_CHOICE: &str = "awaiting_improvement_choice";
const AWAITING_FEEDBACK: &str = "awaiting_feedback_consent";
const COMPLETED: &str = "completed";

/// Which part of the runner resumes a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumePath {
    FlowRunner,
    Improvement,
    None,
}

impl ResumePath {
    pub fn of(flow: &FlowRun) -> Self {
        match (flow.status() == RUNNING, is_running(flow)) {
            (true, true) => Self::Improvement,
            (true, false) => Self::FlowRunner,
            (false, _) => Self::None,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::FlowRunner => "flow-runner",
            Self::Improvement => "improvement",
            Self::None => "none",
        }
    }
}

/// How a role's step starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// First start: the role gets its instructions and the findings of other roles.
    First,
    /// Continued with a person's answer.
    Answered(String),
    /// Restarted: the step was in progress when the flow was last stopped.
    Again,
}

/// Outcome of a role's signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleEnded {
    Done,
    Asked,
}

pub fn is_running(flow: &FlowRun) -> bool {
    flow.phase_status() == Some(RUNNING)
}

/// Starts the phase after the forward pass: a person has to choose the mode.
pub(super) fn await_choice(flow: &mut FlowRun, single_role: bool) {
    flow.set_status(AWAITING_CHOICE);
    let path = feedback_path(flow);
    let phase = Json::from([
        ("status", Json::from("awaiting_choice")),
        ("completedRoles", Json::List(Vec::new())),
        ("runningRoles", Json::List(Vec::new())),
        ("findingsProduced", Json::object()),
        ("feedbackArtifactPath", Json::from(path)),
        ("feedbackConsent", Json::from("pending")),
        ("singleRole", Json::from(single_role)),
    ]);
    flow.doc.set(PHASE, phase);
}

/// Returns the path of the feedback file, relative to the workspace root.
pub fn feedback_path(flow: &FlowRun) -> String {
    if let Some(path) =
        flow.phase().and_then(|phase| phase.text("feedbackArtifactPath")).filter(|path| !path.is_empty())
    {
        return path.to_owned();
    }
    let context = flow.object("feedbackContext");
    let text = |key| context.and_then(|context| context.text(key));
    let kind = match (text("kind"), text("initializationMode")) {
        (Some("initialization"), Some("greenfield")) => "initialization-greenfield",
        (Some("initialization"), _) => "initialization-takeover",
        (Some("update"), _) => "update",
        _ => "flow",
    };
    let id = flow.id();
    format!("a-society/feedback/{}-{kind}-{}.md", slug(&id.project), id.flow)
}

fn slug(project: &str) -> String {
    let mut slug = String::new();
    for c in super::json::trim(project).to_lowercase().chars() {
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            slug.push(c);
        } else if !slug.ends_with('-') {
            slug.push('-');
        }
    }
    let slug = slug.trim_matches('-');
    if slug.is_empty() { "project".to_owned() } else { slug.to_owned() }
}

fn phase_mut(flow: &mut FlowRun) -> &mut Members {
    object_in(&mut flow.doc, PHASE)
}

/// Applies a person's choice of mode. `None` skips the phase.
///
/// # Errors
/// Fails if the flow does not await a choice.
pub fn choose(flow: &mut FlowRun, mode: Option<ImprovementMode>) -> Result<(), Denied> {
    if flow.status() != AWAITING_CHOICE || flow.phase().is_none() {
        return Err(Denied::NoChoiceAwaited);
    }
    let feedback = feedback_path(flow);
    let Some(mode) = mode else {
        flow.set_status(COMPLETED);
        let phase = phase_mut(flow);
        phase.set("status", "skipped");
        phase.set("mode", "none");
        phase.set("feedbackArtifactPath", feedback);
        return Ok(());
    };
    let workflow = workflow_path(flow);
    flow.set_status(RUNNING);
    let phase = phase_mut(flow);
    phase.set("status", RUNNING);
    phase.set("mode", mode.word());
    for key in ["completedRoles", "runningRoles"] {
        phase.set(key, Json::List(Vec::new()));
    }
    for key in ["awaitingHumanRoles", "pendingHumanInputs", "findingsProduced"] {
        phase.set(key, Json::object());
    }
    phase.set("improvementWorkflowPath", workflow);
    phase.set("feedbackArtifactPath", feedback);
    phase.set("feedbackConsent", "pending");
    Ok(())
}

/// Returns the path of `improvement.yaml`, relative to the workspace root.
pub fn workflow_path(flow: &FlowRun) -> String {
    relative(flow.workspace_root(), &format!("{}/improvement.yaml", flow.record_folder()))
}

/// Returns the path of a role's findings file, relative to the workspace root.
pub fn findings_path(flow: &FlowRun, role: &str) -> String {
    let role = RoleId::key(role);
    relative(flow.workspace_root(), &format!("{}/findings/{role}-findings.md", flow.record_folder()))
}

/// Returns the absolute path `path` relative to the absolute path `root`, without accessing the
/// file system. A `path` that is not absolute is already relative to `root` and is only normalized.
pub fn relative(root: &str, path: &str) -> String {
    let parts = |path: &str| {
        let mut parts: Vec<String> = Vec::new();
        for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
            if part == ".." && parts.last().is_some_and(|last| last != "..") {
                parts.pop();
            } else {
                parts.push(part.to_owned());
            }
        }
        parts
    };
    let path_parts = parts(path);
    if !path.starts_with('/') {
        return path_parts.join("/");
    }
    let root_parts = parts(root);
    let shared = root_parts.iter().zip(&path_parts).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n("..", root_parts.len() - shared);
    up.chain(path_parts[shared..].iter().map(String::as_str)).collect::<Vec<_>>().join("/")
}

/// Returns the chosen mode.
pub fn mode(flow: &FlowRun) -> Option<ImprovementMode> {
    ImprovementMode::of(flow.phase()?.text("mode")?)
}

fn has(flow: &FlowRun, list: &str, role: &str) -> bool {
    let list = flow.phase().and_then(|phase| phase.get(list)).and_then(Json::as_list).unwrap_or_default();
    list.iter().any(|known| known.as_text() == Some(role))
}

/// Reports whether the role's step is running or waits for a person.
pub fn is_at_work(flow: &FlowRun, role: &str) -> bool {
    has(flow, "runningRoles", role)
}

fn is_kept(flow: &FlowRun, map: &str, role: &str) -> bool {
    let map = flow.phase().and_then(|phase| phase.get(map)).and_then(Json::as_object);
    map.and_then(|map| map.get(role)).is_some_and(Json::is_truthy)
}

/// Returns the roles that wait for a person, each with its reason.
pub fn waits(flow: &FlowRun) -> impl Iterator<Item = (&str, &str)> {
    let waits = flow.phase().and_then(|phase| phase.get("awaitingHumanRoles")).and_then(Json::as_object);
    waits.into_iter().flat_map(Members::iter).filter_map(|(role, wait)| Some((role, wait.as_object()?.text("reason")?)))
}

pub fn wait_reason<'a>(flow: &'a FlowRun, role: &str) -> Option<&'a str> {
    waits(flow).find(|(waiting, _)| *waiting == role).map(|(_, reason)| reason)
}

pub(super) fn set_wait(flow: &mut FlowRun, role: &str, reason: Reason) {
    let wait = [("reason", Json::from(reason.word()))];
    object_in(phase_mut(flow), "awaitingHumanRoles").set(role, wait);
}

pub(super) fn end_wait(flow: &mut FlowRun, role: &str) {
    object_in(phase_mut(flow), "awaitingHumanRoles").remove(role);
}

/// Returns the roles that can run now, in plan order: those whose downstream roles are done and
/// that do not wait for a person. They form one wave; the caller asks for the next wave when every
/// role of this one has ended or waits.
pub fn runnable<'a>(flow: &FlowRun, plan: &'a Plan) -> Vec<&'a PlanEntry> {
    if !is_running(flow) {
        return Vec::new();
    }
    let free = |role: &str| !is_kept(flow, "awaitingHumanRoles", role) || is_kept(flow, "pendingHumanInputs", role);
    if is_granted(flow) {
        let feedback = plan.entry(FEEDBACK_ROLE);
        return feedback
            .filter(|entry| !has(flow, "completedRoles", &entry.role) && free(&entry.role))
            .into_iter()
            .collect();
    }
    let done: HashSet<&str> =
        plan.steps().map(|entry| entry.role.as_str()).filter(|role| has(flow, "completedRoles", role)).collect();
    let ready = |entry: &&PlanEntry| {
        let role = entry.role.as_str();
        !done.contains(role) && entry.reads.iter().all(|other| done.contains(other.as_str())) && free(role)
    };
    plan.steps().filter(ready).collect()
}

fn is_granted(flow: &FlowRun) -> bool {
    flow.phase().and_then(|phase| phase.text("feedbackConsent")) == Some("granted")
}

/// Starts or continues a role's step.
pub fn begin(flow: &mut FlowRun, role: &str) -> Begun {
    if !has(flow, "runningRoles", role) {
        list_in(phase_mut(flow), "runningRoles").push(Json::from(role));
        return Begun::First;
    }
    if !is_kept(flow, "awaitingHumanRoles", role) {
        return Begun::Again;
    }
    let inputs = object_in(phase_mut(flow), "pendingHumanInputs");
    let Some(answer) = inputs.remove(role) else { return Begun::Again };
    end_wait(flow, role);
    Begun::Answered(answer.as_object().and_then(|answer| answer.text("text")).unwrap_or_default().to_owned())
}

/// Applies the signal of a role's agent.
///
/// # Errors
/// Returns a refusal that names the expected signal; nothing is changed.
pub fn finish(
    flow: &mut FlowRun,
    entry: &PlanEntry,
    signal: &Signal,
    look: impl Fn(&str) -> Artifact,
) -> Result<RoleEnded, Refusal> {
    let role = entry.role.as_str();
    if !is_running(flow) || !has(flow, "runningRoles", role) {
        let message = format!("Error: Role '{role}' is not running, so it cannot end its step.");
        return Err(Refusal::new(Code::NotRunning, "Signal from a role that is not running", message));
    }
    match (entry.step, signal) {
        (_, Signal::PromptHuman) => {
            set_wait(flow, role, Reason::PromptHuman);
            return Ok(RoleEnded::Asked);
        }
        (Step::MetaAnalysis, Signal::MetaAnalysisComplete { findings }) => {
            let assigned = findings_path(flow, role);
            let codes = (Code::AssignedFindingsPath, Code::MissingFindingsArtifact);
            check_path(flow, role, findings, &assigned, codes, look)?;
            object_in(phase_mut(flow), "findingsProduced").set(role, assigned);
        }
        (Step::Feedback, Signal::BackwardPassComplete { artifact }) => {
            let assigned = feedback_path(flow);
            let codes = (Code::AssignedFeedbackPath, Code::MissingFeedbackArtifact);
            check_path(flow, role, artifact, &assigned, codes, look)?;
        }
        (Step::MetaAnalysis | Step::Feedback, _) => return Err(unexpected(entry)),
    }
    if !has(flow, "completedRoles", role) {
        list_in(phase_mut(flow), "completedRoles").push(Json::from(role));
    }
    list_in(phase_mut(flow), "runningRoles").retain(|running| running.as_text() != Some(role));
    if entry.step == Step::Feedback {
        end(flow, "granted");
    }
    Ok(RoleEnded::Done)
}

fn check_path(
    flow: &FlowRun,
    role: &str,
    said: &str,
    assigned: &str,
    (other, missing): (Code, Code),
    look: impl Fn(&str) -> Artifact,
) -> Result<(), Refusal> {
    let said = relative(flow.workspace_root(), &said.replace('\\', "/"));
    if said != assigned {
        let summary = format!("{role} named {said}; expected {assigned}");
        let message = format!(
            "Error: This step must write to {assigned}. Write or move your file there, and use exactly that path."
        );
        return Err(Refusal::new(other, summary, message));
    }
    if look(assigned) != Artifact::File {
        let summary = format!("{role} ended its step without {assigned}");
        let message = format!("Error: There is no file at {assigned}. Write it, then end your step again.");
        return Err(Refusal::new(missing, summary, message));
    }
    Ok(())
}

fn unexpected(entry: &PlanEntry) -> Refusal {
    let (kind, key) = match entry.step {
        Step::MetaAnalysis => ("meta-analysis-complete", "findings_path"),
        Step::Feedback => ("backward-pass-complete", "artifact_path"),
    };
    let summary = format!("{} ended its {} step with another signal", entry.role, entry.step.word());
    let message = format!("Error: This step must end with `type: {kind}` and {key}, the file that you wrote.");
    Refusal::new(Code::UnexpectedSignal, summary, message)
}

/// Records that a role's turn ended without a result.
pub fn abort(flow: &mut FlowRun, role: &str) {
    set_wait(flow, role, Reason::AutonomousAbort);
}

/// Advances to the feedback decision once all roles are done, and reports whether it did.
pub fn settle(flow: &mut FlowRun, plan: &Plan) -> bool {
    let all_done = plan.steps().all(|entry| has(flow, "completedRoles", &entry.role));
    if flow.status() != RUNNING || !is_running(flow) || is_granted(flow) || !all_done {
        return false;
    }
    let feedback = feedback_path(flow);
    flow.set_status(AWAITING_FEEDBACK);
    let phase = phase_mut(flow);
    phase.set("status", AWAITING_FEEDBACK);
    phase.set("feedbackArtifactPath", feedback);
    phase.set("feedbackConsent", "pending");
    true
}

/// Decision about the feedback step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feedback {
    Granted,
    Denied,
}

/// Applies a person's decision about the feedback step.
///
/// # Errors
/// Fails if the flow does not await that decision.
pub fn decide(flow: &mut FlowRun, feedback: Feedback) -> Result<(), Denied> {
    if flow.status() != AWAITING_FEEDBACK || flow.phase().is_none() {
        return Err(Denied::NoFeedbackAwaited);
    }
    if feedback == Feedback::Denied {
        end(flow, "denied");
        return Ok(());
    }
    let (workflow, path) = (workflow_path(flow), feedback_path(flow));
    flow.set_status(RUNNING);
    let phase = phase_mut(flow);
    phase.set("status", RUNNING);
    phase.set("improvementWorkflowPath", workflow);
    phase.set("feedbackArtifactPath", path);
    phase.set("feedbackConsent", "granted");
    Ok(())
}

fn end(flow: &mut FlowRun, consent: &str) {
    let path = feedback_path(flow);
    flow.set_status(COMPLETED);
    let phase = phase_mut(flow);
    phase.set("status", COMPLETED);
    phase.set("feedbackArtifactPath", path);
    phase.set("feedbackConsent", consent);
}

/// Queues an answer for a role of the improvement phase. Returns the role.
///
/// # Errors
/// Fails if the role does not wait for an answer or already has one.
pub fn answer(flow: &mut FlowRun, role: &str, text: &str, at_iso: &str) -> Result<String, Denied> {
    if flow.phase().is_none() {
        return Err(Denied::NoImprovement);
    }
    let role = RoleId::parse(role).map_err(Denied::InvalidRole)?.instance;
    if !wait_reason(flow, &role).is_some_and(Reason::takes_text) {
        return Err(Denied::RoleNotAwaiting(role));
    }
    if is_kept(flow, "pendingHumanInputs", &role) {
        return Err(Denied::RoleAlreadyAnswered(role));
    }
    object_in(phase_mut(flow), "pendingHumanInputs").set(&role, input(text, at_iso));
    Ok(role)
}
