//! Requests about runs: bodies of the API under `/v1/run`.

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

/// Order for a run. `home` is the directory of the run's files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "order")]
pub enum RunOrder {
    /// Start the run, or resume an earlier one.
    Begin {
        plan: Box<Plan>,
        #[serde(default)]
        retry_failed: bool,
    },
    /// Stop running jobs, and keep their work for a later run.
    Stop {
        home: String,
    },
    /// Start no further job until `Resume`.
    Hold {
        home: String,
    },
    Resume {
        home: String,
    },
    /// Give up the present attempts of these jobs, whose hosts are out of reach: all of them, or none.
    #[serde(rename = "give-up")]
    GiveUp {
        home: String,
        jobs: Vec<String>,
    },
}

/// Result of such a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLine {
    pub run: String,
    pub home: String,
    /// `started`, `stopping`, `paused`, `resumed` or `given up`.
    pub done: String,
}
