//! Where a worker comes from that an agent has started.

use serde::{Deserialize, Serialize};

use super::records::Environment;

/// Work of an agent from which another worker was started. A respawn keeps it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// Worker below which the start was requested.
    pub worker: String,
    /// Number of workers above the new one, from that worker to the one that a person has started.
    #[serde(default)]
    pub depth: u64,
    /// Branch and repository of the work of a run. The rules of that run apply to whatever the worker adds to a merge queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<RunWork>,
    /// Environment with which a person started the first worker of the line. Verifications are executed in it.
    pub environment: Environment,
}

/// Work of a run: a branch in a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunWork {
    pub branch: String,
    /// Main checkout of the repository.
    pub repository: String,
}
