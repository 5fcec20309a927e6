//! One merge queue as it lies in its journal: plain values, and which of them
//! may be picked next. There is one for each repository and base branch.

use serde::{Deserialize, Serialize};

/// Number of an item, in the order in which the queue heard of them.
pub type ItemId = u64;

/// Where an item is on its way to the base branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "state")]
pub enum State {
    /// Its turn has not come.
    Queued,
    /// It is being built, verified or landed.
    Active,
    /// It conflicts with the base, and the resolver is at it.
    Resolving,
    /// On the base branch, as this commit.
    Landed { commit: String },
    /// There was nothing to land.
    Noop,
    /// It cannot be merged as it is.
    Conflict { files: Vec<String> },
    /// The verification says no.
    Rejected { reason: String },
    /// Something outside keeps it from landing; a retry looks again.
    Waiting { reason: String, files: Vec<String> },
    /// A person took it out.
    Dropped,
}

impl State {
    /// The word for it, on the screen and in JSON.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Active => "active",
            Self::Resolving => "resolving",
            Self::Landed { .. } => "landed",
            Self::Noop => "noop",
            Self::Conflict { .. } => "conflict",
            Self::Rejected { .. } => "rejected",
            Self::Waiting { .. } => "waiting",
            Self::Dropped => "dropped",
        }
    }

    /// Whether a person may take it out: not while it may be landing at this
    /// moment, and not when it has.
    pub fn may_be_dropped(&self) -> bool {
        !matches!(self, Self::Active | Self::Resolving | Self::Landed { .. } | Self::Noop)
    }

    /// Whether a person may have it tried again.
    pub fn may_be_retried(&self) -> bool {
        self.is_settled() && !matches!(self, Self::Landed { .. } | Self::Noop)
    }

    /// Whether nothing more will be done about it by itself.
    pub fn is_settled(&self) -> bool {
        match self {
            Self::Queued | Self::Active | Self::Resolving => false,
            Self::Landed { .. }
            | Self::Noop
            | Self::Conflict { .. }
            | Self::Rejected { .. }
            | Self::Waiting { .. }
            | Self::Dropped => true,
        }
    }
}

/// One completion: the pinned tip of somebody's work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    pub id: ItemId,
    /// Worker or branch.
    pub name: String,
    /// The commit that is to land; pinned under `refs/swarm/done/`.
    pub tip: String,
    /// Higher goes first.
    pub priority: i32,
    /// Unix milliseconds.
    pub added_ms: u64,
    #[serde(flatten)]
    pub state: State,
    /// How often a resolver has tried.
    #[serde(default)]
    pub resolved: u32,
    /// Its verification failed once and passed on the same commit.
    #[serde(default)]
    pub flaky: bool,
    /// It is to be built without others: together they could not land.
    #[serde(default)]
    pub alone: bool,
}

/// A step of the chain that is under way: one item on top of the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    pub item: ItemId,
    /// The candidate: the base with this item and all before it.
    pub commit: String,
}

/// What is under way. Every commit in it is only a candidate, so that a crash
/// loses work and never a decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "phase")]
pub enum Phase {
    #[default]
    Idle,
    /// Items are being put on top of each other; those of `todo` are to come.
    Building { base: Option<String>, chain: Vec<Link>, todo: Vec<ItemId> },
    /// A commit of the chain is being verified.
    Verifying { base: String, chain: Vec<Link>, search: Search },
    /// The base is being moved to the last link.
    Landing { base: String, chain: Vec<Link> },
}

/// What is known of a chain's links, and which is being looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Search {
    pub at: usize,
    /// It is looked at for the second time.
    pub again: bool,
    /// So many from the first on are known to be good.
    pub green: usize,
    /// The first that is known to be bad.
    pub red: Option<Red>,
    /// How often in a row a look came to nothing.
    pub lost: u32,
}

/// A link whose verification failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Red {
    pub at: usize,
    /// Said twice of the same commit.
    pub sure: bool,
    pub reason: String,
}

/// How items are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Items that are built and verified together.
    pub batch: usize,
    /// Verify each item of a batch, not only the last.
    pub verify_each: bool,
    /// Whether there is anything to verify with.
    pub verifies: bool,
    /// Tries of the resolver for one item; zero when there is none.
    pub resolver_tries: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self { batch: 1, verify_each: false, verifies: true, resolver_tries: 0 }
    }
}

/// The whole of it, as journaled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    pub items: Vec<Item>,
    pub next: ItemId,
    pub paused: bool,
    pub rules: Rules,
    #[serde(flatten)]
    pub phase: Phase,
}

impl Queue {
    pub fn item(&self, id: ItemId) -> Option<&Item> {
        self.items.iter().find(|item| item.id == id)
    }

    pub(super) fn item_mut(&mut self, id: ItemId) -> Option<&mut Item> {
        self.items.iter_mut().find(|item| item.id == id)
    }

    /// Whether something is under way.
    pub fn is_busy(&self) -> bool {
        self.phase != Phase::Idle || self.items.iter().any(|item| item.state == State::Resolving)
    }

    /// Those whose turn is next: by priority, then by age, as many as a batch holds.
    pub fn turn(&self) -> Vec<ItemId> {
        let mut queued: Vec<&Item> = self.items.iter().filter(|item| item.state == State::Queued).collect();
        queued.sort_by_key(|item| (std::cmp::Reverse(item.priority), item.id));
        let together = match queued.first() {
            Some(first) if first.alone => 1,
            _ => queued.iter().take_while(|item| !item.alone).count(),
        };
        queued.iter().take(self.rules.batch.max(1).min(together)).map(|item| item.id).collect()
    }
}
