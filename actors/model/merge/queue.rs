//! One merge queue as it lies in its journal: plain values, and which of them
//! may be picked next. There is one for each repository and base branch.

use serde::{Deserialize, Serialize};

/// Items that are done and still told of.
pub const HISTORY_MAX: usize = 1_000;

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
        self.is_settled() && !self.is_done()
    }

    /// Whether it is settled for good.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Landed { .. } | Self::Noop)
    }

    /// Where it is on the base.
    pub fn commit(&self) -> Option<&str> {
        if let Self::Landed { commit } = self { Some(commit) } else { None }
    }

    /// Why it is not on the base.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Rejected { reason } | Self::Waiting { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// The paths that keep it from the base.
    pub fn files(&self) -> &[String] {
        match self {
            Self::Conflict { files } | Self::Waiting { files, .. } => files,
            _ => &[],
        }
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
    /// What asked for it, which asks once: a worker's token or a request.
    #[serde(default)]
    pub key: Option<String>,
    /// When it came to its end for now, Unix milliseconds.
    #[serde(default)]
    pub settled_ms: Option<u64>,
    /// The command that verified it.
    #[serde(default)]
    pub verified_by: Option<String>,
    /// A later item of the same name has taken its place.
    #[serde(default)]
    pub replaced: bool,
    /// By which it is taken, as they were when it was added.
    #[serde(default)]
    pub rules: Rules,
}

impl Item {
    /// Whether nothing is left to do about it, by anybody.
    pub fn is_past(&self) -> bool {
        self.state.is_done() || self.state == State::Dropped || self.replaced
    }
}

/// An item in the making.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addition {
    pub name: String,
    pub tip: String,
    pub priority: i32,
    pub key: Option<String>,
    /// By which it is taken; those of the item before where nothing is said.
    pub rules: Option<Rules>,
    /// Why it cannot have a tip yet.
    pub waits: Option<String>,
}

impl Addition {
    /// The queued item that this addition becomes. `rules` are those of the item before, for an addition without rules.
    pub fn into_item(self, id: ItemId, rules: &Rules, added_ms: u64) -> Item {
        Item {
            id,
            name: self.name,
            tip: self.tip,
            priority: self.priority,
            added_ms,
            state: State::Queued,
            resolved: 0,
            flaky: false,
            alone: false,
            key: self.key,
            settled_ms: None,
            verified_by: None,
            replaced: false,
            rules: self.rules.unwrap_or_else(|| rules.clone()),
        }
    }
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

/// What lands for an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// A merge commit on the base.
    #[default]
    Merge,
    /// One commit with all of it.
    Squash,
    /// Its commits, one by one, on top of the base.
    Rebase,
}

/// How items are taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Items that are verified together. Where nothing verifies, all that wait land together.
    pub batch: usize,
    /// Verify each item of a batch, not only the last.
    pub verify_each: bool,
    /// The command that says whether a commit is good.
    pub verify: Option<String>,
    /// How long that may take, and the resolver too, in milliseconds.
    pub timeout_ms: u64,
    /// The command that resolves conflicts.
    pub resolver: Option<String>,
    /// Its tries for one item.
    pub resolver_tries: u32,
    pub strategy: Strategy,
}

/// [`Rules::timeout_ms`] where nobody said otherwise.
pub const TIMEOUT_MS: u64 = 30 * 60 * 1000;
/// [`Rules::resolver_tries`] where nobody said otherwise.
pub const RESOLVER_TRIES: u32 = 2;

impl Default for Rules {
    fn default() -> Self {
        Self {
            batch: 1,
            verify_each: false,
            verify: None,
            timeout_ms: TIMEOUT_MS,
            resolver: None,
            resolver_tries: RESOLVER_TRIES,
            strategy: Strategy::Merge,
        }
    }
}

/// The whole of it, as journaled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    pub items: Vec<Item>,
    pub next: ItemId,
    pub paused: bool,
    /// Of the items that are under way, or were last.
    pub rules: Rules,
    #[serde(flatten)]
    pub phase: Phase,
}

impl Queue {
    pub fn item(&self, id: ItemId) -> Option<&Item> {
        self.items.iter().find(|item| item.id == id)
    }

    /// The item that was asked for under this key.
    pub fn of_key(&self, key: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.key.as_deref() == Some(key))
    }

    /// The item with this number, to change it.
    pub fn item_mut(&mut self, id: ItemId) -> Option<&mut Item> {
        self.items.iter_mut().find(|item| item.id == id)
    }

    /// Whether something is under way.
    pub fn is_busy(&self) -> bool {
        self.phase != Phase::Idle || self.items.iter().any(|item| item.state == State::Resolving)
    }

    /// Those whose turn is next: by priority, then by age, as many as a batch holds,
    /// and of the same rules as the first.
    pub fn turn(&self) -> Vec<ItemId> {
        let mut queued: Vec<&Item> = self.items.iter().filter(|item| item.state == State::Queued).collect();
        queued.sort_by_key(|item| (std::cmp::Reverse(item.priority), item.id));
        let Some(first) = queued.first() else { return Vec::new() };
        let is_fit = |item: &&&Item| !item.alone && item.rules == first.rules;
        let together = if first.alone { 1 } else { queued.iter().take_while(is_fit).count() };
        let batch = if first.rules.verify.is_some() { first.rules.batch.max(1) } else { usize::MAX };
        queued.iter().take(batch.min(together)).map(|item| item.id).collect()
    }

    /// What of it has to outlive a crash. Candidates are built and verified anew;
    /// a landing is kept, because it may have happened.
    #[must_use]
    pub fn kept(&self) -> Self {
        let mut kept = self.clone();
        if !matches!(kept.phase, Phase::Idle | Phase::Landing { .. }) {
            kept.give_back();
        }
        kept
    }

    /// Nothing came of what is under way: its items have their turn again.
    pub fn give_back(&mut self) {
        for item in &mut self.items {
            if item.state == State::Active {
                item.state = State::Queued;
            }
        }
        self.phase = Phase::Idle;
    }

    /// Forgets the oldest of those that are done when there are too many.
    pub fn forget_oldest(&mut self) {
        if self.items.iter().filter(|item| item.is_past()).count() > HISTORY_MAX
            && let Some(oldest) = self.items.iter().position(Item::is_past)
        {
            self.items.remove(oldest);
        }
    }
}
