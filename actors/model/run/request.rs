//! What a command asks of runs: bodies of the API under `/v1/run`.

use serde::{Deserialize, Serialize};

use super::plan::Plan;
use crate::request::Caller;

/// `POST /v1/run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRequest {
    pub caller: Caller,
    #[serde(flatten)]
    pub order: RunOrder,
}

/// What is to be done with a run. `home` is the directory of the run's files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "order")]
pub enum RunOrder {
    /// Begin it, or go on with what an earlier one left.
    Begin {
        plan: Box<Plan>,
        #[serde(default)]
        retry_failed: bool,
    },
    /// End what is at work, and keep it for later.
    Stop {
        home: String,
    },
    /// Begin nothing new.
    Hold {
        home: String,
    },
    Resume {
        home: String,
    },
}

/// What became of such a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLine {
    pub run: String,
    pub home: String,
    /// `started`, `stopping`, `paused` or `resumed`.
    pub done: String,
}
