//! What lies on disk for one generation of one worker: the launch contract, the
//! lease, how it ended, and what is wanted of it. Unknown keys of a newer
//! program are ignored on reading; a record is replaced only by its one writer.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::limits::{Held, Hits, Limits};
use super::session_plan::{SessionRules, WatchRules};

/// 128 random bits in lower-case hex: the identity of one start.
pub type Token = String;

/// Variables in their order. Shared, because every step of a start needs them.
pub type Environment = Arc<Vec<(String, String)>>;

fn is_empty(environment: &Environment) -> bool {
    environment.is_empty()
}

/// The directory of a generation below `w/`.
pub fn worker_dir_name(name: &str, generation: u64) -> String {
    format!("{name}.{generation}")
}

/// `spec.json`: everything needed to start the worker, and to start it again.
/// Written as `spec.pending`; the child itself renames it at the moment before
/// it executes the command, so `spec.json` means "was executed".
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub name: String,
    pub generation: u64,
    pub token: Token,
    /// The request that asked for this start; a repeated request finds it.
    pub request: String,
    /// Naive local time with microseconds, as the row carries it.
    pub started: String,
    pub contract: Contract,
    /// The worktree as it was made, with what this start made of it.
    #[serde(default)]
    pub worktree: Option<WorktreePlan>,
    /// Paths of stdout and stderr (process) or of the pane's output (tmux).
    pub logs: Vec<String>,
    /// How an earlier life is gone on with; none for a start from the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
    /// What is executed, with hooks of ours; none for a program that takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooked: Option<Vec<String>>,
}

/// How a worker that was left goes on: in its own conversation where there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Executed instead of the contract's command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// The file that says what was done; the worker finds it in `SWARM_RECOVERY`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The conversation, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
}

impl Spec {
    /// What is executed.
    pub fn argv(&self) -> &[String] {
        self.hooked.as_deref().unwrap_or_else(|| self.unhooked())
    }

    /// The same without our hooks.
    pub fn unhooked(&self) -> &[String] {
        self.resume.as_ref().and_then(|resume| resume.argv.as_ref()).unwrap_or(&self.contract.argv)
    }
}

/// The launch contract: what `respawn` and `recover` replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Contract {
    pub argv: Vec<String>,
    /// Directory as the row shows it.
    pub cwd: String,
    /// The caller's whole environment. Kept here and nowhere else.
    pub environment: Environment,
    /// Variables for the worker's own process alone: neither tmux nor a tool gets them.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub private: Environment,
    /// `--env` pairs, which win over the environment and are on the wire.
    pub env: BTreeMap<String, String>,
    pub tags: Vec<String>,
    pub umask: u32,
    #[serde(default)]
    pub rlimits: Vec<Rlimit>,
    #[serde(default)]
    pub nice: i32,
    #[serde(default)]
    pub tmux: Option<TmuxPlace>,
    #[serde(default)]
    pub restart: RestartPolicy,
    /// Longest life in milliseconds, counted through suspend.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Size in bytes at which a log is rotated.
    pub log_limit_bytes: u64,
    /// Enter the merge queue when it has ended with success.
    #[serde(default)]
    pub merge: bool,
    /// Its own, for a server that it may want to run; whoever works in a worktree has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    #[serde(default)]
    pub session: SessionRules,
    /// What else the row is to say in `metadata`.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// It is looked after when it stands still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<WatchRules>,
    /// What it may take of the machine.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
}

/// One resource limit of the caller, by its number in `<sys/resource.h>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    pub resource: u32,
    pub soft: u64,
    pub hard: u64,
}

/// Where a tmux worker is to live.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TmuxPlace {
    pub session: String,
    /// The name given to `--tmux-socket` (`tmux -L`), none for the default.
    pub socket: Option<String>,
    /// The resolved path of the server's socket, known once a window was made.
    #[serde(default)]
    pub socket_path: Option<String>,
}

/// The base that a worktree was made from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseRef {
    /// Branch name, or none when HEAD was detached or a commit was given.
    pub branch: Option<String>,
    pub commit: String,
}

/// A worktree that a start makes or takes over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorktreePlan {
    pub path: String,
    pub branch: String,
    pub base_repo: String,
    pub base: BaseRef,
    /// This start creates the branch (it was not there before).
    pub makes_branch: bool,
    /// This start creates the directory (it was not there before).
    pub makes_tree: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    #[default]
    Never,
    OnFailure,
    Always,
}

/// A process that cannot be confused with another one: a pid, its start time in
/// clock ticks since boot (`/proc/PID/stat` field 22) and the boot it lives in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: i32,
    pub start_ticks: u64,
    pub boot: String,
}

/// `lease`: proof of life. The content names who; the lock that the shim holds
/// on the file proves that it still is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    pub token: Token,
    pub started: String,
    pub worker: ProcessId,
    pub shim: ProcessId,
    #[serde(default)]
    pub pane: Option<TmuxPane>,
    /// The restart policy, so that readers need not open the contract.
    #[serde(default)]
    pub restart: RestartPolicy,
    /// Its limits and what holds them; none where none was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Held>,
}

/// Where a tmux worker does live, by ids that tmux never reuses in one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TmuxPane {
    /// `%7`
    pub pane: String,
    pub socket_path: String,
    pub server_pid: i32,
}

/// `exit.json`: how it ended. Written once, durably, before the lease goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExitRecord {
    pub token: Token,
    pub started: String,
    pub pid: i32,
    #[serde(flatten)]
    pub ended: Ended,
    pub reason: Reason,
    /// Milliseconds since the Unix epoch.
    pub ended_at_ms: u64,
    pub duration_ms: u64,
    pub usage: Usage,
    /// Processes of the tree that outlived SIGKILL, by pid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub survivors: Vec<i32>,
    /// What of its limits it ran into.
    #[serde(default, skip_serializing_if = "Hits::is_none")]
    pub hits: Hits,
}

/// How a process ended, as `waitpid` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    Code(i32),
    Signal(i32),
}

impl Ended {
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }
}

/// What made the worker end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// It ended by itself, or by a signal that was not ours.
    Exited,
    /// `swarm kill` or a respawn ended it.
    Stopped,
    /// Its window was closed or its terminal went away.
    Closed,
    /// Its time limit ended it.
    Timeout,
    /// The kernel ended it for want of memory.
    OutOfMemory,
    /// It wrote more than it may.
    Output,
    /// Its state directory was removed.
    Abandoned,
}

/// Resources of the worker and of what it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub user_us: u64,
    pub system_us: u64,
    pub rss_max_kb: u64,
}

/// `wanted.json`: the wanted state, apart from the actual one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    pub state: WantedState,
    /// Restarts since the worker was last up for ten minutes.
    pub restarts: u32,
    /// When the next start is due, milliseconds since the Unix epoch.
    #[serde(default)]
    pub next_start_ms: Option<u64>,
    /// Times of the recent restarts, for the intensity limit.
    #[serde(default)]
    pub recent_ms: Vec<u64>,
    /// How often it was recovered since a person started it.
    #[serde(default)]
    pub recoveries: u32,
    /// It is being ended in order to be started again.
    #[serde(default)]
    pub renewed: bool,
    /// What was done about it since it last stood still.
    #[serde(default, skip_serializing_if = "Rungs::is_foot")]
    pub rungs: Rungs,
}

/// How far the ladder for a worker that stands still was climbed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rungs {
    pub nudges: u32,
    pub interrupted: bool,
    pub restarts: u32,
    pub given_up: bool,
}

impl Rungs {
    pub fn is_foot(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WantedState {
    #[default]
    Running,
    Stopped,
    /// The intensity limit was reached: it needs a person.
    Failed,
}
