//! Looking at processes and ending them. Identity is boot, pid and start time;
//! a bare pid is never signalled.

use super::{BoxFuture, StopOrder};
use swarm_model::{Lease, ProcessId, Row};

#[derive(Clone, Debug, thiserror::Error)]
pub enum ProcessError {
    /// Some processes of the tree outlived SIGKILL.
    #[error("these processes outlived SIGKILL: {0:?}")]
    Survivors(Vec<i32>),
    #[error("{0}")]
    Tool(String),
}

/// The named process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// A window of a row that the other program made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowTarget {
    pub session: String,
    pub window: String,
    pub socket: Option<String>,
}

pub trait Processes: Send + Sync {
    /// Resolves when the process no longer exists (a zombie does not exist).
    /// Reaps it when it is a child of this process.
    fn gone(&self, process: ProcessId) -> BoxFuture<'static, Gone>;

    /// Whether this very process is alive.
    fn is_alive(&self, process: &ProcessId) -> bool;

    /// Asks the shim to end its worker's tree (TERM, five seconds, KILL) and to
    /// record the end. Returns at once; `gone(shim)` tells when it is done.
    ///
    /// # Errors
    /// When the signal could not be sent to a living shim.
    fn stop_by_shim(&self, lease: &Lease, order: StopOrder) -> Result<(), ProcessError>;

    /// Ends what is left of a worker whose shim is gone: everything that
    /// carries its token, its session, its descendants, its control groups and these themselves.
    fn stop_unsupervised<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), ProcessError>>;

    /// Ends a worker of the other program: its window by exact name, or its
    /// process, when it started no later than the row says, with its tree.
    fn stop_foreign<'a>(&'a self, row: &'a Row) -> BoxFuture<'a, Result<(), ProcessError>>;

    /// Whether a worker of the other program runs, and the process to watch.
    fn foreign<'a>(&'a self, row: &'a Row) -> BoxFuture<'a, Result<Option<ProcessId>, ProcessError>>;
}
