//! What a command asks of loops: bodies of the API under `/v1/loop`.

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

/// What is to be done with the loop of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "order")]
pub enum LoopOrder {
    Begin {
        plan: Box<Plan>,
        /// Make way first: end a worker of that name, with its worktree and its loop.
        replace: bool,
        /// Forget what an earlier loop of that name left.
        clean_state: bool,
    },
    /// Begin no next iteration.
    Pause { name: String, reason: String },
    /// Go on after a pause, or with a loop that nobody looks after.
    Resume { name: String },
    /// Look after a loop that was begun without (`--no-run`); nothing where somebody does.
    Attend { name: String },
    /// End it, for a worker that is not there any more.
    Stop { name: String },
    /// Forget it. A worker that runs goes on.
    Clean { name: String },
}

/// What became of such a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopLine {
    pub name: String,
    /// `replaced`, `cleared`, `paused`, `resumed`, `attended`, `stopped`, `cleaned`; `unchanged`, with the reason
    /// as a warning before it.
    pub done: String,
    /// Lines for stderr, each without prefix: (severity, text).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<(String, String)>,
}
