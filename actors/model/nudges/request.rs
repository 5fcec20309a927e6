//! Requests about nudges: bodies of the API under `/v1/nudges`.

use serde::{Deserialize, Serialize};

use crate::request::Caller;

/// Schedule of beats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Every {
    /// Every `ms` milliseconds.
    Interval { ms: u64 },
    /// At the dates of a cron expression with five fields, in local time.
    Cron { expression: String },
}

/// Settings of a new nudge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NudgeSettings {
    pub every: Every,
    pub message: String,
    /// Milliseconds until the nudge expires.
    #[serde(default)]
    pub expire_ms: Option<u64>,
    /// Maximum random delay of each beat, in milliseconds.
    #[serde(default)]
    pub jitter_ms: u64,
}

/// `POST /v1/nudges`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NudgeRequest {
    pub caller: Caller,
    pub worker: String,
    #[serde(flatten)]
    pub order: NudgeOrder,
}

/// Order for a worker's nudge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "order")]
pub enum NudgeOrder {
    Start {
        settings: NudgeSettings,
        /// Replace an active nudge.
        #[serde(default)]
        force: bool,
    },
    Stop,
    Pause,
    Resume,
}

/// Result of such a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NudgeLine {
    pub worker: String,
    /// `started`, `stopped`, `paused`, `resumed`, or `inactive` if there was nothing to stop.
    pub done: String,
}
