//! Requests about loops: bodies of the API under `/v1/loop`.

use serde::{Deserialize, Serialize};

use super::progress::Plan;
use crate::request::Caller;

/// `POST /v1/loop`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoopRequest {
    pub caller: Caller,
    #[serde(flatten)]
    pub order: LoopOrder,
}

/// Order for a worker's loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "order")]
pub enum LoopOrder {
    Begin {
        plan: Box<Plan>,
        /// First end a worker of that name, with its worktree and its loop.
        replace: bool,
        /// Delete the files of an earlier loop of that name.
        clean_state: bool,
    },
    /// Start no further iteration.
    Pause { name: String, reason: String },
    /// Resume a paused or unsupervised loop.
    Resume { name: String },
    /// Supervise a loop that was started with `--no-run`. No effect if it is already supervised.
    Attend { name: String },
    /// End the loop of a worker that no longer exists.
    Stop { name: String },
    /// Delete the loop's files. A running worker continues.
    Clean { name: String },
}

/// Result of such a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopLine {
    pub name: String,
    /// `replaced`, `cleared`, `paused`, `resumed`, `attended`, `stopped` or `cleaned`; or `unchanged`, with the
    /// reason as a warning in `notes`.
    pub done: String,
    /// Lines for stderr, each without prefix: (severity, text).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<(String, String)>,
}
