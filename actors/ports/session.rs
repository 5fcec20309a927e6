//! The files of sessions: `.agent/` in a worker's worktree, or wherever it was told to
//! have one.

use std::sync::Arc;

use super::BoxFuture;
use swarm_model::Recovery;
use swarm_model::{Ended, Fence, ProcessId, Reason, Resume, Rungs, SessionPlan, Spec, WatchRules};

/// A session that is about to be worked on.
#[derive(Clone, Debug, PartialEq)]
pub struct Opening {
    pub plan: SessionPlan,
    pub worker: String,
    pub generation: u64,
    /// The launch, by its token.
    pub session_id: String,
    /// It was left and is gone on with.
    pub again: bool,
    /// Which counts as an attempt.
    pub counts: bool,
}

/// A worker that runs, as its beats need it.
#[derive(Clone, Debug, PartialEq)]
pub struct Life {
    pub worker: String,
    pub generation: u64,
    pub session_id: String,
    pub process: ProcessId,
    /// None for one that is only watched.
    pub plan: Option<SessionPlan>,
    /// Names below `logs/`.
    pub logs: Vec<String>,
    pub watch: Option<WatchRules>,
    /// It has a window, which can be looked at and typed into.
    pub window: bool,
    /// Its screens are known.
    pub agent: bool,
    /// What an earlier supervisor did about it.
    pub rungs: Rungs,
}

/// What is seen of an agent from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// Another value whenever it has written something.
    pub output: u64,
    /// What it is at, by its own word, and the how manieth thing that is.
    pub operation: Option<(String, u64)>,
    /// What it waits for, by its own word.
    pub waiting: Option<String>,
    /// That is its next task: it has done the last one.
    pub idle: bool,
}

/// How a life ended; none where nobody knows.
pub type LifeEnd = Option<(Ended, Reason)>;

/// What a beat met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beaten {
    /// Written, or not worth saying why not: the next one tries again.
    Done,
    /// Somebody removed the state; it has to be written anew.
    Missing,
    /// The session is somebody else's now.
    Lost { found: Fence },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    #[error("{path} holds the session of '{found}', not of '{wanted}'")]
    Mismatch {
        path: String,
        found: String,
        wanted: String,
        /// The worker that it is of, where it says so.
        worker: Option<String>,
    },
    /// An agent is at work in it that nobody here has started.
    #[error("an agent is at work in the session in {path}: {evidence}")]
    Alive { path: String, evidence: String },
    /// Another launch has taken it since.
    #[error("the session in {path} belongs to another launch by now")]
    Taken { path: String, found: Fence },
    #[error("{0}")]
    System(String),
}

impl SessionError {
    /// The session of this plan is that of another issue.
    pub fn mismatch(plan: &SessionPlan, found: String) -> Self {
        Self::Mismatch { path: plan.folder(), found, wanted: plan.identifier.clone(), worker: None }
    }
}

pub trait Sessions: Send + Sync {
    /// Between two beats, in milliseconds.
    fn interval_ms(&self) -> u64;

    /// How often one is gone on with.
    fn attempts_max(&self) -> i64;

    /// What the session of this plan says of itself; none where it cannot be looked at.
    fn check<'a>(&'a self, plan: &'a SessionPlan) -> BoxFuture<'a, Recovery>;

    /// How this start goes on with what an earlier one left.
    fn resume<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Resume>;

    /// What this start executes so that its agent tells what it is at; none for a program
    /// that cannot be told to.
    fn hooked(&self, spec: &Spec) -> Option<Vec<String>>;

    /// Before anything is executed: looks whose session it is, and writes that it is being
    /// begun. Gives what a person should know of what was found there.
    fn open<'a>(&'a self, opening: &'a Opening) -> BoxFuture<'a, Result<Option<String>, SessionError>>;

    /// What was opened is not worked on after all.
    fn abandon<'a>(&'a self, opening: &'a Opening, cause: &'a str) -> BoxFuture<'a, ()>;

    /// Its agent runs. Done again for one that was found running, or whose state somebody
    /// removed: `known` is what it was by then.
    fn run<'a>(&'a self, life: &'a Life, known: Option<Fence>) -> BoxFuture<'a, Result<Fence, SessionError>>;

    /// Its agent has ended. Done again, it changes nothing.
    fn end<'a>(&'a self, life: &'a Life, end: LifeEnd) -> BoxFuture<'a, Result<(), SessionError>>;

    /// Beats for each of them that has a session, in one go, and looks at all; an answer
    /// for each, in their order.
    fn beat(&self, lives: Vec<(Arc<Life>, Option<Fence>)>) -> BoxFuture<'static, Vec<(Beaten, Sight)>>;

    /// The worktree stays because of what is in it.
    fn preserve<'a>(&'a self, dir: &'a str, reason: &'a str, details: &'a str) -> BoxFuture<'a, ()>;
}
