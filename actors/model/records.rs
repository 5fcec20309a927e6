//! Records on disk of one generation (one start of a worker name): the launch contract, the lease, the exit record and
//! the wanted state. Readers ignore unknown keys of newer versions. Each record has exactly one writer.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::job::JobOrder;
use super::limits::{Held, Hits, Limits};
use super::origin::Origin;
use super::session_plan::{SessionRules, WatchRules};

/// Launch token: 128 random bits in lower-case hex, which identify one start.
pub type Token = String;

/// Environment variables in order. Shared, because every step of a start needs them.
pub type Environment = Arc<Vec<(String, String)>>;

fn is_empty(environment: &Environment) -> bool {
    environment.is_empty()
}

/// Returns the name of a generation's directory below `w/`.
pub fn worker_dir_name(name: &str, generation: u64) -> String {
    format!("{name}.{generation}")
}

/// `spec.json`: everything needed to start the worker, and to start it again.
///
/// The file is written as `spec.pending`. The child renames it immediately before it executes the command, so
/// `spec.json` means "was executed".
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub name: String,
    pub generation: u64,
    pub token: Token,
    /// Request that asked for this start. If it is repeated, it finds this worker.
    pub request: String,
    /// Naive local time with microseconds, as in the row.
    pub started: String,
    pub contract: Contract,
    /// Worktree, and which parts of it this start creates. `None` without a worktree.
    #[serde(default)]
    pub worktree: Option<WorktreePlan>,
    /// Names below `logs/` of the files for stdout and stderr, or for the pane's output in tmux.
    pub logs: Vec<String>,
    /// How to resume an earlier generation. `None` for a start from the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
    /// Command to execute, with hooks added. `None` if the program takes no hooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooked: Option<Vec<String>>,
    /// Machine of the supervisor that wrote this contract. `None` in contracts of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// Number of the slot for the worker's exit record in `exit.slots`. `None` if the shim syncs the record's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_slot: Option<u32>,
}

/// How a worker resumes earlier work: in its own conversation, if the agent keeps one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Command to execute instead of the contract's. `None`: the contract's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Path of the file that describes the earlier work. The worker finds it in `SWARM_RECOVERY`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Id of the agent's conversation. `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Content of that file, if it is to be written among the records of the start.
    #[serde(skip)]
    pub text: Option<String>,
}

impl Spec {
    /// Reports whether the file of the contract must be durable before the start goes on: a worktree that was made in
    /// part is rolled back by it. Other starts leave nothing before their row is recorded, with the contract.
    pub fn is_synced(&self) -> bool {
        self.worktree.as_ref().is_some_and(|plan| plan.makes_tree || plan.makes_branch)
    }

    /// Returns a lease in place of one whose content a power cut took away: its processes belong to the boot in which
    /// the contract was written, and have pid 0. `None` if that is the present boot, or if the contract does not name it.
    pub fn lost_lease(&self, boot: &str) -> Option<Lease> {
        let machine = self.machine.clone().filter(|machine| machine.boot != boot)?;
        let process = ProcessId { pid: 0, start_ticks: 0, boot: machine.boot.clone() };
        Some(Lease {
            token: self.token.clone(),
            started: self.started.clone(),
            worker: process.clone(),
            shim: process,
            pane: None,
            restart: self.contract.restart,
            limits: None,
            machine: Some(machine),
            process_namespace: None,
            survivors: Vec::new(),
        })
    }

    /// Returns the command to execute.
    pub fn argv(&self) -> &[String] {
        self.hooked.as_deref().unwrap_or_else(|| self.unhooked())
    }

    /// Returns the command to execute, without hooks.
    pub fn unhooked(&self) -> &[String] {
        self.resume.as_ref().and_then(|resume| resume.argv.as_ref()).unwrap_or(&self.contract.argv)
    }
}

/// Launch contract: what was asked for, and what `respawn` and `recover` repeat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Contract {
    pub argv: Vec<String>,
    /// Working directory, as the row shows it.
    pub cwd: String,
    /// Complete environment of the caller. Stored in the file of the contract and, for a time, in the registry's journal.
    pub environment: Environment,
    /// Variables for the worker's own process only. Neither tmux nor any tool gets them.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub private: Environment,
    /// `--env` pairs. They override `environment` and are written to `state.json`.
    pub env: BTreeMap<String, String>,
    pub tags: Vec<String>,
    pub umask: u32,
    #[serde(default)]
    pub rlimits: Vec<Rlimit>,
    #[serde(default)]
    pub nice: i32,
    /// Absent in contracts of older versions: the worker then has those of the supervisor.
    #[serde(default, skip_serializing_if = "Attributes::is_unknown")]
    pub attributes: Attributes,
    #[serde(default)]
    pub tmux: Option<TmuxPlace>,
    #[serde(default)]
    pub restart: RestartPolicy,
    /// Time limit in milliseconds, time in suspend included. `None`: no limit.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Size in bytes at which a log file is rotated.
    pub log_limit_bytes: u64,
    /// Add the work to the merge queue once the worker ends with success.
    #[serde(default)]
    pub merge: bool,
    /// Port for a server that the worker may run. Every worker with a worktree gets one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    #[serde(default)]
    pub session: SessionRules,
    /// Further entries for `metadata` of the row.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// When the worker counts as stuck. `None`: it is not watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<WatchRules>,
    /// Resource limits.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    /// How the worker is submitted as a job. `None`: it is a process of this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobOrder>,
    /// Beginning of the requests of the run's workstream, or of the flow's role, for which the worker was started first.
    /// A respawn keeps it, so that their next worker of this name still replaces this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<String>,
    /// Work of an agent from which the worker was started. `None` if a person started it. Set by the supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// Attributes of the caller's process that the scheduler and the memory management of the kernel use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// CPUs on which the process may run, as in `Cpus_allowed_list` of proc(5): `0-3,8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// Preference of the kernel when it kills for lack of memory, from -1000 to 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// Scheduling policy: its number in `<sched.h>`, and the priority of a real-time policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// I/O priority as ioprio_set(2) takes it: class and level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_priority: Option<i32>,
}

/// Scheduling policy of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    pub number: i32,
    pub priority: i32,
}

impl Attributes {
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// Resource limit of the caller's process, by its number in `<sys/resource.h>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    pub resource: u32,
    pub soft: u64,
    pub hard: u64,
}

/// Requested place of a tmux worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TmuxPlace {
    pub session: String,
    /// Name given to `--tmux-socket` (`tmux -L`). `None` is the default server.
    pub socket: Option<String>,
    /// Resolved path of the server's socket. `None` until a window exists.
    #[serde(default)]
    pub socket_path: Option<String>,
}

/// Base of a worktree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseRef {
    /// Name of the branch. `None` if HEAD was detached or a commit was given.
    pub branch: Option<String>,
    pub commit: String,
}

/// Worktree that a start creates or takes over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorktreePlan {
    pub path: String,
    pub branch: String,
    pub base_repo: String,
    pub base: BaseRef,
    /// Whether this start creates the branch. `false` if it existed before.
    pub makes_branch: bool,
    /// Commit at which an earlier start created the branch: one of this worker, or of the one whose worktree it continues
    /// in. `None` if this start creates it, or if swarm did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_at: Option<String>,
    /// Whether this start creates the directory. `false` if it existed before.
    pub makes_tree: bool,
}

impl WorktreePlan {
    /// Returns the commit at which swarm created the branch. `None` if it was there before.
    pub fn branch_origin(&self) -> Option<&str> {
        if self.makes_branch { Some(&self.base.commit) } else { self.made_at.as_deref() }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    #[default]
    Never,
    OnFailure,
    Always,
}

/// Identity of a process: its pid, its start time in clock ticks since boot (`/proc/PID/stat` field 22), and the boot
/// id. Unlike a pid alone, the kernel never reuses it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: i32,
    pub start_ticks: u64,
    pub boot: String,
}

/// Boot of a machine. A home directory may be shared by several machines, and processes are only visible on their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Id of the installation, hashed. Empty if the machine has none, as most containers.
    pub id: String,
    pub boot: String,
    /// Name of the machine, for messages only: names change, and different machines may have the same name.
    pub host: String,
}

impl Machine {
    /// Reports whether this is certainly another machine than `here`. The same boot is the same machine, whatever the id
    /// says: containers share a kernel. Without an id on both sides, nothing is certain.
    pub fn is_other(&self, here: &Self) -> bool {
        let known = !self.id.is_empty() && !here.id.is_empty();
        known && self.id != here.id && self.boot != here.boot
    }
}

/// `lease`: proof of life. The content identifies the worker and its shim; the lock that the shim holds on the file
/// proves that the shim is alive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    pub token: Token,
    pub started: String,
    pub worker: ProcessId,
    pub shim: ProcessId,
    #[serde(default)]
    pub pane: Option<TmuxPane>,
    /// Restart policy, so that readers need not open the contract.
    #[serde(default)]
    pub restart: RestartPolicy,
    /// Resource limits, and what enforces each. `None` if none was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Held>,
    /// Machine of the shim. `None` in leases of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// Process namespace of the shim, by its inode. `None` in leases of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_namespace: Option<u64>,
    /// Processes of the worker's tree that the shim could not end. Written at its own end; empty before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub survivors: Vec<ProcessId>,
}

/// Actual place of a tmux worker, by ids that one tmux server never reuses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TmuxPane {
    /// Pane id, such as `%7`.
    pub pane: String,
    pub socket_path: String,
    pub server_pid: i32,
}

/// `exit.json`: how the worker ended. Written once, and durable before the lease is released, by itself or by a slot of
/// `exit.slots`.
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
    /// Pids of processes of the worker's tree that survived SIGKILL. Their identities are in the [`Lease`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub survivors: Vec<i32>,
    /// Resource limits that the worker ran into.
    #[serde(default, skip_serializing_if = "Hits::is_none")]
    pub hits: Hits,
    /// Whether a signal that no supervisor sent ended the worker, such as the one that a machine sends to all processes
    /// before it shuts down. `reason` is then `Stopped`, as in records of older versions, and nobody asked for the end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// Whether its window was closed because its tmux server ended with all of its windows. `None` if its window was not
    /// closed or that is unknown, as in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_lost: Option<bool>,
}

impl ExitRecord {
    /// Reports whether the worker was told to end and has to stay ended.
    pub fn is_ordered(&self) -> bool {
        match self.reason {
            Reason::Stopped => !self.interrupted,
            Reason::Abandoned => true,
            Reason::Exited | Reason::Closed | Reason::Timeout | Reason::OutOfMemory | Reason::Output => false,
        }
    }
}

/// How a process ended, as `waitpid` reports it.
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

/// Why the worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The command ended by itself, or by a signal that swarm did not send.
    Exited,
    /// Ended by `swarm kill` or a respawn, or interrupted by a signal of somebody else ([`ExitRecord::interrupted`]).
    Stopped,
    /// The window was closed, or the terminal hung up.
    Closed,
    /// The time limit was reached.
    Timeout,
    /// Killed by the kernel for lack of memory.
    OutOfMemory,
    /// The output limit was exceeded.
    Output,
    /// The state directory was removed.
    Abandoned,
}

/// Resources used by the worker, including children that it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub user_us: u64,
    pub system_us: u64,
    pub rss_max_kb: u64,
}

/// `wanted.json`: the wanted state, separate from the actual one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    pub state: WantedState,
    /// Restarts since the worker last ran for ten minutes.
    pub restarts: u32,
    /// Time of the next start in Unix milliseconds. `None` if none is due.
    #[serde(default)]
    pub next_start_ms: Option<u64>,
    /// Times of recent restarts in Unix milliseconds, for the intensity limit.
    #[serde(default)]
    pub recent_ms: Vec<u64>,
    /// Number of recoveries since a person started the worker.
    #[serde(default)]
    pub recoveries: u32,
    /// Whether the worker is being ended in order to be started again.
    #[serde(default)]
    pub renewed: bool,
    /// Steps taken since the worker became stuck.
    #[serde(default, skip_serializing_if = "Rungs::is_foot")]
    pub rungs: Rungs,
}

/// Steps taken against a stuck worker, in the order of escalation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rungs {
    pub nudges: u32,
    pub interrupted: bool,
    pub restarts: u32,
    pub given_up: bool,
}

impl Rungs {
    /// Reports whether no step was taken.
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
    /// The intensity limit of restarts was reached, so a person must act.
    Failed,
}

#[cfg(test)]
mod tests {
    use super::Machine;

    #[test]
    fn only_another_id_and_another_boot_are_another_machine() {
        let machine =
            |id: &str, boot: &str, host: &str| Machine { id: id.into(), boot: boot.into(), host: host.into() };
        let here = machine("a", "1", "old-name");
        for (other, expected, why) in [
            (machine("a", "1", "new-name"), false, "renamed"),
            (machine("a", "2", "new-name"), false, "rebooted"),
            (machine("b", "1", "container"), false, "a container on the same kernel"),
            (machine("b", "2", "old-name"), true, "another machine of the same name"),
            (machine("", "2", "container"), false, "unknown"),
        ] {
            assert_eq!((other.is_other(&here), here.is_other(&other)), (expected, expected), "{why}");
        }
        assert!(!machine("a", "2", "h").is_other(&machine("", "1", "h")), "unknown here");
    }
}
