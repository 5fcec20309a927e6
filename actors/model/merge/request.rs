//! Requests about merge queues and their results: bodies of the API under `/v1/merge`.

use serde::{Deserialize, Serialize};

use super::queue::{ItemId, Queue, Strategy};
use crate::request::Caller;

/// Repository and base branch of a merge queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Target {
    /// Common git directory of the repository, absolute.
    pub repository: String,
    /// Full name of the base branch, `refs/heads/…`.
    pub branch: String,
}

impl Target {
    /// Returns the name of the base branch without `refs/heads/`.
    pub fn base(&self) -> &str {
        self.branch.strip_prefix("refs/heads/").unwrap_or(&self.branch)
    }
}

/// Rules of a queue as typed. Those that are `None` come from `swarm.toml` at the root of the repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MergeSettings {
    pub verify: Option<String>,
    pub verify_each: Option<bool>,
    pub batch: Option<usize>,
    /// Time limit of a verification or resolver, in seconds.
    pub timeout: Option<u64>,
    pub resolver: Option<String>,
    pub max_retries: Option<u32>,
    pub strategy: Option<Strategy>,
}

impl MergeSettings {
    /// Returns the typed settings that replace another value of these, which are those of the file.
    pub fn replaced(&self, typed: &Self) -> Vec<&'static str> {
        let differs = |typed: &Option<String>, own: &Option<String>| typed.is_some() && own.is_some() && typed != own;
        let all = [
            ("verify", differs(&typed.verify, &self.verify)),
            ("resolver", differs(&typed.resolver, &self.resolver)),
            ("strategy", typed.strategy.is_some() && self.strategy.is_some() && typed.strategy != self.strategy),
        ];
        all.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }

    /// Reports whether one of the settings that [`Self::replaced`] compares is given, by its key.
    pub fn sets(&self, key: &str) -> bool {
        match key {
            "verify" => self.verify.is_some(),
            "resolver" => self.resolver.is_some(),
            _ => self.strategy.is_some(),
        }
    }
}

/// `POST /v1/merge`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergeRequest {
    pub caller: Caller,
    #[serde(flatten)]
    pub order: MergeOrder,
}

/// Order for merge queues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "order")]
pub enum MergeOrder {
    /// Add workers, or branches of the repository at the caller's directory.
    Add {
        names: Vec<String>,
        /// Base branch. `None`: for a worker the base recorded at its spawn, for a branch the branch that is checked
        /// out.
        base: Option<String>,
        #[serde(default)]
        priority: i32,
        #[serde(default)]
        settings: MergeSettings,
        /// Workers whose uncommitted changes are committed although they still run.
        #[serde(default)]
        uncommitted: Vec<String>,
        /// Generation of each worker. Another generation is refused. `None`: any generation.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<u64>,
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

/// Queue item that was added or changed, or queue that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeLine {
    pub target: Target,
    /// Number of the item. `None` if the request was about the whole queue.
    pub item: Option<ItemId>,
    pub name: String,
    /// `queued`, `waiting`, `dropped`, `paused` or `resumed`.
    pub done: String,
    /// Why the item waits. `None` if it does not.
    #[serde(default)]
    pub reason: Option<String>,
    /// Uncommitted paths of the worker that do not land: files of kinds that tools generate, and the
    /// places of submodules and other repositories with uncommitted work (with a slash at the end).
    #[serde(default)]
    pub left_out: Vec<String>,
}

/// Merge queue as `GET /v1/merge` lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueView {
    pub target: Target,
    pub queue: Queue,
    /// Why the journal cannot be written. `None` if it can. The queue continues once it can be written again.
    #[serde(default)]
    pub stuck: Option<String>,
}
