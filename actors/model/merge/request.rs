//! What a command asks of merge queues and sees of them: bodies of the API under
//! `/v1/merge`.

use serde::{Deserialize, Serialize};

use super::queue::{ItemId, Queue, Strategy};
use crate::request::Caller;

/// Where a queue lands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Target {
    /// The repository's common directory, absolute.
    pub repository: String,
    /// Full name of the base branch, `refs/heads/…`.
    pub branch: String,
}

impl Target {
    /// The base as people write it.
    pub fn base(&self) -> &str {
        self.branch.strip_prefix("refs/heads/").unwrap_or(&self.branch)
    }
}

/// What was typed about the rules of a queue; what was not comes from
/// `swarm.toml` at the repository's root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MergeSettings {
    pub verify: Option<String>,
    pub verify_each: Option<bool>,
    pub batch: Option<usize>,
    /// Seconds.
    pub timeout: Option<u64>,
    pub resolver: Option<String>,
    pub max_retries: Option<u32>,
    pub strategy: Option<Strategy>,
}

/// `POST /v1/merge`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergeRequest {
    pub caller: Caller,
    #[serde(flatten)]
    pub order: MergeOrder,
}

/// What is to be done with queues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "order")]
pub enum MergeOrder {
    /// Workers or branches of the repository at the caller's directory.
    Add {
        names: Vec<String>,
        /// A branch; by default the one recorded at the spawn, for a branch the one
        /// that is checked out.
        base: Option<String>,
        #[serde(default)]
        priority: i32,
        #[serde(default)]
        settings: MergeSettings,
    },
    Retry {
        target: Target,
        item: ItemId,
    },
    Drop {
        target: Target,
        item: ItemId,
    },
    Pause {
        target: Target,
    },
    Resume {
        target: Target,
    },
}

/// One item that was added or changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeLine {
    pub target: Target,
    /// None where the whole queue was meant.
    pub item: Option<ItemId>,
    pub name: String,
    /// `queued`, `waiting`, `dropped`, `paused` or `resumed`.
    pub done: String,
    /// Why, where it waits.
    #[serde(default)]
    pub reason: Option<String>,
    /// Untracked paths of the worker that do not land, being of a kind that tools make.
    #[serde(default)]
    pub left_out: Vec<String>,
}

/// One queue, as `GET /v1/merge` lists them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueView {
    pub target: Target,
    pub queue: Queue,
    /// Why its journal cannot be written; it goes on when that is over.
    #[serde(default)]
    pub stuck: Option<String>,
}
