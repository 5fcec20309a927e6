//! What a command asks of the supervisor and what it is told: the bodies of the
//! API under `/v1`. A reply is a stream of lines, one JSON value each: at once
//! `accepted`, then what there is to report, and as the last line `done`. A
//! stream without `done` was cut off, and the request is repeated with the same
//! id.

use serde::{Deserialize, Serialize};

use super::flows::FlowLine;
use super::loops::LoopLine;
use super::merge::MergeLine;
use super::nudges::NudgeLine;
use super::records::{Contract, Environment, Rlimit};
use super::run::RunLine;

/// Who calls: what a worker inherits and what tools run with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Caller {
    pub request: String,
    /// How often this request was sent before; above 0 an earlier answer is looked for.
    #[serde(default)]
    pub repeated: u32,
    pub cwd: String,
    /// Left out in a spawn, whose contract has it.
    #[serde(default)]
    pub environment: Environment,
    pub umask: u32,
    pub rlimits: Vec<Rlimit>,
    pub nice: i32,
}

/// `POST /v1/workers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpawnRequest {
    pub caller: Caller,
    pub name: String,
    pub contract: Contract,
    #[serde(default)]
    pub worktree: Option<WorktreeRequest>,
    /// It takes the place of a worker of that name that has ended and was started by a
    /// request that begins so, with its worktree.
    #[serde(default)]
    pub replaces: Option<String>,
    /// The same for one whose row says that it was started at this time, whoever did it.
    #[serde(default)]
    pub takes_over: Option<String>,
}

/// What was asked about a worktree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorktreeRequest {
    /// Directory from which the repository is found.
    pub cwd: String,
    /// The worker's name by default.
    pub branch: Option<String>,
    pub dir: Option<String>,
    /// HEAD by default.
    pub base: Option<String>,
    /// Name of its directory; the worker's by default.
    #[serde(default)]
    pub leaf: Option<String>,
    /// A branch that is there is taken as it is, whatever the base says.
    #[serde(default)]
    pub resume: bool,
}

/// Some workers or all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    Names(Vec<String>),
    All,
}

/// `POST /v1/kill`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KillRequest {
    pub caller: Caller,
    pub scope: Scope,
    pub rm_worktree: bool,
    pub force_dirty: bool,
}

/// `POST /v1/clean`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CleanRequest {
    pub caller: Caller,
    pub scope: Scope,
    pub rm_worktree: bool,
    pub force_dirty: bool,
}

/// `POST /v1/respawn`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RespawnRequest {
    pub caller: Caller,
    pub name: String,
    pub clean_first: bool,
    pub force_dirty: bool,
}

/// `POST /v1/recover`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoverRequest {
    pub caller: Caller,
    pub name: String,
}

/// One line of a reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The request arrived and work began.
    Accepted,
    /// A worker runs (spawn, respawn).
    Spawned(Spawned),
    /// Something about one worker that is final for it.
    Worker(WorkerLine),
    /// An item or queue was added or changed.
    Merge(MergeLine),
    /// A run was begun or changed.
    Run(RunLine),
    /// A loop was begun or changed.
    Loop(LoopLine),
    /// A flow was begun or changed.
    Flow(FlowLine),
    /// A nudge was changed.
    Nudge(NudgeLine),
    /// For stderr, while it goes on.
    Warning(String),
    /// Refused or failed; nothing (more) was done for `name`.
    Refused(Refusal),
    /// The last line.
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawned {
    pub name: String,
    pub generation: u64,
    pub pid: i32,
    /// `session:window`, when it lives in tmux.
    pub window: Option<String>,
    pub pane: Option<String>,
    pub socket_path: Option<String>,
    pub worktree: Option<String>,
    /// What of its worktree was there before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What was asked for and cannot be had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerLine {
    pub name: String,
    /// `killed` or `cleaned`.
    pub done: String,
    /// Lines for stderr, each without prefix: (severity, text).
    #[serde(default)]
    pub notes: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub kind: RefusalKind,
    #[serde(default)]
    pub name: Option<String>,
    pub cause: String,
    #[serde(default)]
    pub remedy: Option<String>,
}

/// What a script may branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalKind {
    Exists,
    NotFound,
    Invalid,
    Running,
    Worktree,
    Start,
    Registry,
    Tool,
    Stopping,
    Internal,
}

impl Refusal {
    pub fn new(kind: RefusalKind, cause: impl Into<String>) -> Self {
        Self { kind, name: None, cause: cause.into(), remedy: None }
    }

    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    #[must_use]
    pub fn of(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }
}

/// Which program this is: the version, and the time stamp of its file so that
/// a rebuilt one is newer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Build {
    pub version: String,
    pub built_ns: u64,
}

/// `GET /v1/hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub build: Build,
    pub pid: i32,
    pub guard: Option<i32>,
    pub state_dir: String,
    pub workers: usize,
    pub started_ms: u64,
}
