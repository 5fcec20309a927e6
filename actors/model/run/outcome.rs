//! Result of an attempt, and of landing its work.

use serde::{Deserialize, Serialize};

use crate::NeedKind;

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Success {
        summary: Option<String>,
    },
    Failure {
        cause: String,
        /// What the next attempt should know. `None` if the cause says all.
        evidence: Option<String>,
        fault: FaultKind,
    },
    /// The worker was ended on request.
    Stopped,
    /// The agent asks a person and has ended. It continues after the answer.
    Parked {
        /// Number of the request.
        ask: u64,
        /// What is asked, in one line.
        what: String,
        /// Kind of what the agent needs.
        kind: NeedKind,
    },
}

/// Kind of a failure, which decides whether and when to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultKind {
    /// The task failed. Retried at once.
    Task,
    /// A temporary failure outside the task, such as a full disk. Retried after a growing pause. Does not count as a failure
    /// at first.
    Passing,
    /// The provider's usage limit was reached. Retried at `until_ms` (Unix milliseconds) if the provider named a
    /// time, else after a pause. Does not count as a failure.
    Limit { until_ms: Option<u64> },
    /// The end is unknown: the machine went down, or the process that watched the worker was killed.
    Lost,
    /// Permanent: another attempt would fail in the same way.
    Lasting,
}

/// Result of the merge queue for the work of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Merged {
    Landed {
        commit: String,
    },
    /// There was nothing to land.
    Nothing,
    /// The work has changes of its own, and the base has all of them already.
    Contained,
    /// Another item of the queue, which the run did not add, has landed the work.
    Elsewhere {
        item: u64,
        commit: String,
        /// Command that verified that item. `None` if none did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        verified_by: Option<String>,
    },
    Rejected {
        reason: String,
    },
    Conflict {
        files: Vec<String>,
        /// Commit of the work that conflicts. `None` in journals of older versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tip: Option<String>,
    },
    Waiting {
        reason: String,
        files: Vec<String>,
        /// Whether the queue continues by itself when what is in the way is gone.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        continues: bool,
        /// Whether the item has no commit: the queue could not even look at the work.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_empty: bool,
    },
    Dropped,
    /// The work could not be queued.
    Refused {
        cause: String,
        /// Whether the next attempt can fix it in its worktree.
        #[serde(default)]
        is_mendable: bool,
    },
}
