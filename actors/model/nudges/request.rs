//! What a command asks of nudges: bodies of the API under `/v1/nudges`.

use serde::{Deserialize, Serialize};

use crate::request::Caller;

/// When beats are due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Every {
    /// Each time that so many milliseconds have passed.
    Interval { ms: u64 },
    /// At the dates of a cron expression of five fields, in local time.
    Cron { expression: String },
}

/// What was typed about a nudge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NudgeSettings {
    pub every: Every,
    pub message: String,
    /// Milliseconds until it ends by itself.
    #[serde(default)]
    pub expire_ms: Option<u64>,
    /// Each beat comes up to so many milliseconds later than it is due.
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

/// What is to be done with the nudge of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "order")]
pub enum NudgeOrder {
    Start {
        settings: NudgeSettings,
        /// In place of one that is active.
        #[serde(default)]
        force: bool,
    },
    Stop,
    Pause,
    Resume,
}

/// What became of such a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NudgeLine {
    pub worker: String,
    /// `started`, `stopped`, `paused`, `resumed`, or `inactive` where there was nothing to stop.
    pub done: String,
}
