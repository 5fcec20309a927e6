//! What becomes of an attempt, and of the work that it left.

use serde::{Deserialize, Serialize};

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Success {
        summary: Option<String>,
    },
    Failure {
        cause: String,
        /// What the next attempt is to know.
        evidence: Option<String>,
        fault: FaultKind,
    },
    /// Somebody ended it.
    Stopped,
}

/// What kind of failure it was, which says whether and when to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultKind {
    /// Of the task: tried again at once.
    Task,
    /// Of the way there, and passing: tried again after a pause.
    Passing,
    /// The provider's limit, until then if it said so; does not count.
    Limit { until_ms: Option<u64> },
    /// Nobody knows how it ended: the machine went down, or what watched it was killed.
    Lost,
    /// Another attempt would end the same.
    Lasting,
}

/// What the merge queue says about a job's work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Merged {
    Landed {
        commit: String,
    },
    /// There was nothing in it that the base does not have.
    Nothing,
    Rejected {
        reason: String,
    },
    Conflict {
        files: Vec<String>,
    },
    Waiting {
        reason: String,
        files: Vec<String>,
    },
    Dropped,
    /// It could not be queued.
    Refused {
        cause: String,
    },
}
