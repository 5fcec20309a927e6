//! A worker as a person sees it: the row and what its records say now.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::limits::Held;
use super::records::{ExitRecord, RestartPolicy, TmuxPane};
use super::row::Row;

/// The state behind the original's two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FineState {
    /// Committed, not yet executing.
    Starting,
    Running,
    /// Alive, but suspended by a signal.
    Suspended,
    /// Alive, but its shim is gone: its exit code will be unknown.
    Unsupervised,
    /// Its exit is recorded and its last processes are being ended.
    Stopping,
    /// Ended by itself or by a signal.
    Exited,
    /// Ended by the kernel for want of memory.
    #[serde(rename = "out-of-memory")]
    OutOfMemory,
    /// Ended because somebody asked.
    Stopped,
    /// Ended; a restart is due.
    Backoff,
    /// Given up: restarts reached their limit.
    Failed,
    /// Ended and nobody recorded how.
    Lost,
    /// The machine went down under it.
    Interrupted,
}

impl FineState {
    /// Whether the original's word for it is `running`.
    pub fn is_running(self) -> bool {
        match self {
            Self::Starting | Self::Running | Self::Suspended | Self::Unsupervised | Self::Stopping => true,
            Self::Exited
            | Self::OutOfMemory
            | Self::Stopped
            | Self::Backoff
            | Self::Failed
            | Self::Lost
            | Self::Interrupted => false,
        }
    }
}

/// Everything a reading verb needs of one worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerView {
    pub row: Arc<Row>,
    pub state: FineState,
    /// The worker's own process, in both modes, while it is alive.
    pub pid: Option<i32>,
    /// The process to wait for: the shim, or the worker where there is none.
    pub watch: Option<super::records::ProcessId>,
    pub pane: Option<TmuxPane>,
    pub exit: Option<ExitRecord>,
    pub restart: RestartPolicy,
    pub restarts: u32,
    pub next_start_ms: Option<u64>,
    /// What a person would have to do before it goes on.
    pub waiting: Option<String>,
    /// It stands still, and what was done about it was in vain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
    /// Its limits and what holds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Held>,
    /// Directory name below `w/`, for workers of ours.
    pub dir: Option<String>,
}
