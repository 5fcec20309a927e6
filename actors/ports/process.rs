//! Observation and end of processes. A process is identified by boot id, pid and start time; a bare pid is never
//! signalled.

use std::path::PathBuf;

use super::{BoxFuture, StopOrder};
use swarm_model::{Lease, ProcessId, Row};

/// Reason why processes were not ended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProcessError {
    /// Some processes of the tree survived SIGKILL.
    #[error("processes cannot be ended: {}", pid_list(.0))]
    Survivors(Vec<i32>),
    #[error("{0}")]
    Tool(String),
}

/// Returns pids as a text.
pub fn pid_list(pids: &[i32]) -> String {
    pids.iter().map(i32::to_string).collect::<Vec<_>>().join(", ")
}

/// The process no longer exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// Window of a row that the original `swarm` wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowTarget {
    pub session: String,
    pub window: String,
    pub socket: Option<String>,
}

/// Observation and end of processes.
pub trait Processes: Send + Sync {
    /// Resolves once the process no longer exists. A zombie counts as gone, and is reaped if it is a child of this
    /// process.
    fn gone(&self, process: ProcessId) -> BoxFuture<'static, Gone>;

    /// Reports whether this process is alive, and not another one with its pid.
    fn is_alive(&self, process: &ProcessId) -> bool;

    /// Reports whether the terminal of this process has hung up, because its window was closed.
    fn has_hung_up(&self, process: &ProcessId) -> bool;

    /// Returns the directory in which the process with this pid is now. `None` if that is unknown.
    fn dir(&self, _pid: i32) -> Option<PathBuf> {
        None
    }

    /// Asks the shim to end its worker's process tree (TERM, five seconds, KILL) and to write the exit record.
    /// Returns at once; `gone` for the shim resolves when that is done.
    ///
    /// # Errors
    /// Fails if the shim is alive and the signal could not be sent.
    fn stop_by_shim(&self, lease: &Lease, order: StopOrder) -> Result<(), ProcessError>;

    /// Ends what is left of a worker whose shim is gone: all processes that have its token, or are in its session or
    /// control groups, and their descendants. Then removes the control groups.
    ///
    /// # Errors
    /// Fails if a process survives, or cannot be signalled.
    fn stop_unsupervised<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), ProcessError>>;

    /// Tries again to end processes that a shim could not end, and their descendants.
    ///
    /// # Errors
    /// Fails if a process survives, or cannot be signalled.
    fn end_survivors<'a>(&'a self, survivors: &'a [ProcessId]) -> BoxFuture<'a, Result<(), ProcessError>>;

    /// Ends a worker of the original `swarm`: its window, by exact name; or its process with its tree, if that
    /// started no later than the row says.
    fn stop_foreign<'a>(&'a self, row: &'a Row) -> BoxFuture<'a, Result<(), ProcessError>>;

    /// Returns the process to watch of a worker of the original `swarm`. `None` if the worker does not run.
    fn foreign<'a>(&'a self, row: &'a Row) -> BoxFuture<'a, Result<Option<ProcessId>, ProcessError>>;
}
