//! Files of sessions: `.agent/` in a worker's worktree, or in the directory that was given at its start.

use std::sync::Arc;

use super::BoxFuture;
use swarm_model::Recovery;
use swarm_model::{Ended, Fence, NeedKind, ProcessId, Reason, Resume, Rungs, SessionPlan, Spec, WatchRules};

/// Session that a start is about to use.
#[derive(Clone, Debug, PartialEq)]
pub struct Opening {
    pub plan: SessionPlan,
    pub worker: String,
    pub generation: u64,
    /// Id of the launch, derived from its token.
    pub session_id: String,
    /// Whether the start resumes the session of an earlier launch.
    pub again: bool,
    /// Whether resuming counts as an attempt.
    pub counts: bool,
}

/// Running worker, with what its beats need.
#[derive(Clone, Debug, PartialEq)]
pub struct Life {
    pub worker: String,
    pub generation: u64,
    pub session_id: String,
    pub process: ProcessId,
    /// Session of the worker. `None` if the worker is only watched.
    pub plan: Option<SessionPlan>,
    /// Names of its log files below `logs/`.
    pub logs: Vec<String>,
    pub watch: Option<WatchRules>,
    /// Whether the worker has a window, which can be read and typed into.
    pub window: bool,
    /// Whether the worker is an agent whose screens are known.
    pub agent: bool,
    /// Steps that an earlier supervisor took while the worker was stuck.
    pub rungs: Rungs,
}

/// Observation of an agent from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// Value that changes whenever the agent has written something.
    pub output: u64,
    /// Time since the agent has written something, in milliseconds.
    pub quiet_ms: u64,
    /// Whether the agent itself reports what it does.
    pub reports: bool,
    /// Present operation as the agent reports it, and its number.
    pub operation: Option<(String, u64)>,
    /// What the agent waits for, as it reports it. `None` if it does not wait.
    pub waiting: Option<String>,
    /// Kind of what it waits for.
    pub kind: NeedKind,
    /// Whether the agent waits for its next task, because it has done the last one.
    pub idle: bool,
    /// Whether a hook waits for the answer in place of a dialog, so that the screen looks as if the agent worked.
    pub held: bool,
}

/// News of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The agent has reported that it is idle, waits, or works again.
    Reported,
    /// The window of a waiting agent has changed: a person may have answered its dialog there.
    Drawn,
}

/// How a launch ended. `None` if that is unknown.
pub type LifeEnd = Option<(Ended, Reason)>;

/// Result of a beat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beaten {
    /// The beat was written, or failed for a reason that the next beat will overcome.
    Done,
    /// `state.json` was removed and must be written again.
    Missing,
    /// The session now belongs to another launch.
    Lost { found: Fence },
}

/// Reason why a session cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The session is that of another issue.
    #[error("the session in {path} belongs to '{found}', not to '{wanted}'")]
    Mismatch {
        path: String,
        found: String,
        wanted: String,
        /// Worker that owns the session, if the session names one.
        worker: Option<String>,
    },
    /// An agent that this launch did not start is using the session.
    #[error("the session in {path} is in use by a running agent: {evidence}")]
    Alive { path: String, evidence: String },
    /// Another launch has taken the session since.
    #[error("the session in {path} now belongs to another launch")]
    Taken { path: String, found: Fence },
    /// Something else is in the place of the folder or of one of its files.
    #[error("cannot start the session: {0}")]
    Blocked(String),
    #[error("{0}")]
    System(String),
}

impl SessionError {
    /// Returns the error for a session of another issue than the plan's.
    pub fn mismatch(plan: &SessionPlan, found: String) -> Self {
        Self::Mismatch { path: plan.folder(), found, wanted: plan.identifier.clone(), worker: None }
    }
}

/// Files of sessions.
pub trait Sessions: Send + Sync {
    /// Returns the time between two beats in milliseconds.
    fn interval_ms(&self) -> u64;

    /// Returns how many times a session may be resumed.
    fn attempts_max(&self) -> i64;

    /// Ends the request of this agent whose dialog a person has answered in its window. Best effort: what is not ended here
    /// is over when the agent reports the end of the step.
    fn answered<'a>(&'a self, life: &'a Life) -> BoxFuture<'a, ()>;

    /// Reports whether the session of this plan can be resumed. Returns [`Recovery::NoState`] if it cannot be read.
    fn check<'a>(&'a self, plan: &'a SessionPlan) -> BoxFuture<'a, Recovery>;

    /// Returns how this start resumes the work of an earlier one.
    fn resume<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Resume>;

    /// Returns the command of this start with hooks by which its agent reports what it does. `None` for a program
    /// without such hooks, and if its file is on a disk that does not answer.
    fn hooked<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Option<Vec<String>>>;

    /// Checks who owns the session, and writes that this launch is starting. Called before anything is executed.
    /// Returns a note for people about what was found there, if there is something to note.
    ///
    /// # Errors
    /// Fails if the session is that of another issue, if an agent is using it, or if its files cannot be written.
    fn open<'a>(&'a self, opening: &'a Opening) -> BoxFuture<'a, Result<Option<String>, SessionError>>;

    /// Withdraws an opened session, because the start failed for `cause`.
    fn abandon<'a>(&'a self, opening: &'a Opening, cause: &'a str) -> BoxFuture<'a, ()>;

    /// Writes that the agent runs, and returns the fence of the session. Repeated for a worker that was adopted, and
    /// after `state.json` was removed; `known` is then the fence so far.
    ///
    /// # Errors
    /// Fails if another launch has taken the session, or if its files cannot be written.
    fn run<'a>(&'a self, life: &'a Life, known: Option<Fence>) -> BoxFuture<'a, Result<Fence, SessionError>>;

    /// Writes that the agent has ended, and how. Repeating it changes nothing.
    ///
    /// # Errors
    /// Fails if another launch has taken the session, or if its files cannot be written.
    fn end<'a>(&'a self, life: &'a Life, end: LifeEnd) -> BoxFuture<'a, Result<(), SessionError>>;

    /// Writes a beat if the worker has a session, and observes the worker. One that could not be observed has no sight,
    /// which is no sign of progress. Waits for no other session: its disk may not answer.
    fn beat(&self, life: Arc<Life>, fence: Option<Fence>) -> BoxFuture<'static, (Beaten, Option<Sight>)>;

    /// Resolves when the agent of this launch reports that it is idle, waits or works again, or, at most once a second, when
    /// its window changes while it waits. Never resolves for agents that report nothing.
    fn news(&self, life: &Life) -> BoxFuture<'static, News>;

    /// Notes why the worktree `dir` was kept: it contains work that is not saved elsewhere.
    fn preserve<'a>(&'a self, dir: &'a str, reason: &'a str, details: &'a str) -> BoxFuture<'a, ()>;
}
