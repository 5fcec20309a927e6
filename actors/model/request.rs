//! Requests to the supervisor and its replies: bodies of the API under `/v1`.
//!
//! A reply is a stream of lines with one JSON value each: `accepted` at once, then reports, and `done` as the last
//! line. A stream without `done` was cut off; the client then repeats the request with the same id.

use serde::{Deserialize, Serialize};

use super::loops::LoopLine;
use super::merge::MergeLine;
use super::nudges::NudgeLine;
use super::records::{Attributes, Contract, Environment, Rlimit};
use super::run::RunLine;
use crate::flow::FlowLine;

/// Process that made the request: what a worker inherits from it, and what tools run with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Caller {
    /// Id of the request.
    pub request: String,
    /// Number of times that the request was sent before. Above 0, the supervisor searches for an earlier answer.
    #[serde(default)]
    pub repeated: u32,
    pub cwd: String,
    /// Environment of the process. Empty in a spawn, whose contract has it.
    #[serde(default)]
    pub environment: Environment,
    pub umask: u32,
    pub rlimits: Vec<Rlimit>,
    pub nice: i32,
    /// Absent in requests of older versions.
    #[serde(default, skip_serializing_if = "Attributes::is_unknown")]
    pub attributes: Attributes,
    /// Namespaces of the process. `None` if they are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Namespaces>,
    /// Work of an agent, perhaps, on whose behalf the process asks. `None` for a person. Determined by the supervisor.
    #[serde(skip)]
    pub below: Option<Below>,
}

/// What is above a process that may act for an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Below {
    /// Worker of this name.
    Worker(String),
    /// A command that the supervisor executes, for example a verification.
    Command,
    /// The process could not be examined.
    Unknown,
}

impl std::fmt::Display for Below {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Worker(name) => write!(out, "worker '{name}'"),
            Self::Command => out.write_str("a command that the supervisor executes"),
            Self::Unknown => out.write_str("a process that the supervisor cannot examine"),
        }
    }
}

/// Inode numbers of a process's namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    pub mount: u64,
    pub process: u64,
    pub network: u64,
    pub user: u64,
}

impl Namespaces {
    /// Returns the kind of the first namespace that differs. `None` if all are the same.
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        let kinds = [
            ("mount", self.mount == other.mount),
            ("process", self.process == other.process),
            ("network", self.network == other.network),
            ("user", self.user == other.user),
        ];
        kinds.into_iter().find(|(_, is_same)| !is_same).map(|(kind, _)| kind)
    }
}

/// `POST /v1/workers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpawnRequest {
    pub caller: Caller,
    pub name: String,
    pub contract: Contract,
    #[serde(default)]
    pub worktree: Option<WorktreeRequest>,
    /// Prefix of a request id. If a request with this prefix started the worker of that name, and it has ended, the
    /// new worker replaces it and keeps its worktree.
    #[serde(default)]
    pub replaces: Option<String>,
    /// Start time of a row. If the row of that name has it, and its worker has ended, the new worker replaces it and
    /// keeps its worktree, whoever started it.
    #[serde(default)]
    pub takes_over: Option<String>,
}

/// Worktree options of a spawn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorktreeRequest {
    /// Directory from which the repository is found.
    pub cwd: String,
    /// Branch of the worktree. `None`: the worker's name.
    pub branch: Option<String>,
    /// Directory for worktrees, relative to the parent of the repository. `None`: `<repository>-worktrees`.
    pub dir: Option<String>,
    /// Branch or commit from which the worktree starts. `None`: HEAD.
    pub base: Option<String>,
    /// Name of the worktree's directory. `None`: the worker's name.
    #[serde(default)]
    pub leaf: Option<String>,
    /// Use an existing branch as it is, regardless of `base`.
    #[serde(default)]
    pub resume: bool,
    /// The worktree of an earlier generation. It is not made again if its disk may not be mounted. Set by the supervisor.
    #[serde(skip)]
    pub is_known: bool,
    /// Worktrees of all workers, each with its repository. Set by the supervisor.
    #[serde(skip)]
    pub trees: Vec<(String, String)>,
}

/// Workers that a request applies to: some, or all.
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
    /// Request that has started the worker. A life that another request has started is left alone. `None`: any life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_by: Option<String>,
    /// Generation of the worker. Another generation is left alone. `None`: any generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
}

/// `POST /v1/clean`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CleanRequest {
    pub caller: Caller,
    pub scope: Scope,
    pub rm_worktree: bool,
    pub force_dirty: bool,
    /// Whether to delete a branch that was made for the worker, if its base contains it.
    #[serde(default)]
    pub drop_branch: bool,
    /// See [`KillRequest::started_by`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_by: Option<String>,
}

/// `POST /v1/respawn`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RespawnRequest {
    pub caller: Caller,
    pub name: String,
    pub clean_first: bool,
    pub force_dirty: bool,
    /// See [`KillRequest::generation`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
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
    /// The request arrived, and work has started.
    Accepted,
    /// A worker runs (answer to spawn and respawn).
    Spawned(Spawned),
    /// Final result for one worker.
    Worker(WorkerLine),
    /// A queue item was added or changed, or a queue was changed.
    Merge(MergeLine),
    /// A run was started or changed.
    Run(RunLine),
    /// A loop was started or changed.
    Loop(LoopLine),
    /// A flow was started or changed.
    Flow(FlowLine),
    /// A nudge was changed.
    Nudge(NudgeLine),
    /// Warning for stderr. The request continues.
    Warning(String),
    /// The request was refused or failed. Nothing (more) was done for `name`.
    Refused(Refusal),
    /// The last line.
    Done,
}

/// Worker that was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawned {
    pub name: String,
    pub generation: u64,
    pub pid: i32,
    /// `session:window`. `None` if the worker is not in tmux.
    pub window: Option<String>,
    pub pane: Option<String>,
    pub socket_path: Option<String>,
    pub worktree: Option<String>,
    /// Name of the job. `None` if the worker is a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Notes about parts of the worktree that existed before the start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Warnings about requested features that are not available.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Final result for one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerLine {
    pub name: String,
    /// `killed` or `cleaned`.
    pub done: String,
    /// Lines for stderr, each without prefix: (severity, text).
    #[serde(default)]
    pub notes: Vec<(String, String)>,
}

/// Refusal or failure of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub kind: RefusalKind,
    /// Worker, run or other subject of the refusal. `None` if it concerns the whole request.
    #[serde(default)]
    pub name: Option<String>,
    /// Text of the error message, without prefix.
    pub cause: String,
    /// Text of the hint, without prefix. `None` if there is no remedy.
    #[serde(default)]
    pub remedy: Option<String>,
    /// The same request may succeed later, whatever the kind says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub passes: bool,
}

/// Kind of a refusal, which scripts may branch on.
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
        Self { kind, name: None, cause: cause.into(), remedy: None, passes: false }
    }

    /// Returns the refusal for a worker name that is taken.
    pub fn exists(name: &str) -> Self {
        Self::new(RefusalKind::Exists, format!("worker '{name}' already exists")).of(name).remedy(format!(
            "run 'swarm respawn {name}' to start it again, run 'swarm clean {name}' to remove it, or use another name"
        ))
    }

    /// Returns the refusal of a request about one generation of a worker, of which another one is there.
    pub fn started_again(name: &str) -> Self {
        let cause = format!("'{name}' is not the one that was shown any more; nothing was done");
        Self::new(RefusalKind::Exists, cause).of(name).remedy(format!("run 'swarm status {name}' to see it"))
    }

    /// Adds a hint.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Names the subject of the refusal.
    #[must_use]
    pub fn of(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }
}

/// Build of a program: its version, and the time stamp of its file, so that a rebuilt program counts as newer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Build {
    pub version: String,
    /// Modification time of the executable in nanoseconds since the Unix epoch. 0 if it is unknown.
    pub built_ns: u64,
}

/// `GET /v1/hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub build: Build,
    pub pid: i32,
    /// Pid of the guard. `None` if it does not run.
    pub guard: Option<i32>,
    pub state_dir: String,
    /// Number of workers that need the supervisor.
    pub workers: usize,
    /// Start of the supervisor in Unix milliseconds.
    pub started_ms: u64,
}
