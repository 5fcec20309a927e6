//! Merge queue as its journal stores it, and the choice of the next items. There is one queue for each repository and
//! base branch.

use serde::{Deserialize, Serialize};

pub use super::rules::{RESOLVER_TRIES, Rules, Strategy, TIMEOUT_MS};

/// Maximum number of past items that the queue keeps.
pub const HISTORY_MAX: usize = 1_000;

/// Longest pause of an item, in milliseconds.
pub const PAUSE_MS_MAX: u64 = 30 * 60 * 1000;

/// Number of an item in its queue, in the order of addition.
pub type ItemId = u64;

/// State of an item on its way to the base branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "state")]
pub enum State {
    /// Waiting for its turn.
    Queued,
    /// Being built, verified or landed.
    Active,
    /// Conflicts with the base, and a resolver is working on that.
    Resolving,
    /// On the base branch as this commit.
    Landed { commit: String },
    /// There was nothing to land.
    Noop,
    /// Conflicts with the base in `files`.
    Conflict { files: Vec<String> },
    /// The verification failed.
    Rejected { reason: String },
    /// Something other than the work itself keeps the item from landing. A retry checks again.
    Waiting { reason: String, files: Vec<String> },
    /// Dropped by a person.
    Dropped,
}

impl State {
    /// Returns the name of the state, on the screen and in JSON.
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

    /// Reports whether a person may drop the item: not while it may be landing, and not after it has landed.
    pub fn may_be_dropped(&self) -> bool {
        !matches!(self, Self::Active | Self::Resolving | Self::Landed { .. } | Self::Noop)
    }

    /// Reports whether a person may retry the item.
    pub fn may_be_retried(&self) -> bool {
        self.is_settled() && !self.is_done()
    }

    /// Reports whether a run that continues may retry the item, or give it other rules: not after a decision, which a person
    /// or the machine of the run takes note of.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Queued | Self::Active | Self::Resolving | Self::Waiting { .. })
    }

    /// Reports whether the item waits for a person, or for an obstacle.
    pub fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting { .. })
    }

    /// Reports whether the item has landed, or had nothing to land.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Landed { .. } | Self::Noop)
    }

    /// Returns the commit on the base. `None` if the item has not landed.
    pub fn commit(&self) -> Option<&str> {
        if let Self::Landed { commit } = self { Some(commit) } else { None }
    }

    /// Returns why the item was rejected, or why it waits.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Rejected { reason } | Self::Waiting { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Returns the paths that keep the item from the base.
    pub fn files(&self) -> &[String] {
        match self {
            Self::Conflict { files } | Self::Waiting { files, .. } => files,
            _ => &[],
        }
    }

    /// Reports whether nothing more happens to the item unless a person acts.
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

/// One entry of a merge queue: the pinned tip of finished work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    pub id: ItemId,
    /// Name of the worker or branch.
    pub name: String,
    /// Commit to land, pinned under `refs/swarm/done/`. Empty if the item waits for a commit.
    pub tip: String,
    /// Items with a higher priority go first.
    pub priority: i32,
    /// Time of addition in Unix milliseconds.
    pub added_ms: u64,
    #[serde(flatten)]
    pub state: State,
    /// Number of tries of a resolver. Tries whose result was overtaken by the base do not count.
    #[serde(default)]
    pub resolved: u32,
    /// Commit with which a resolver is merging, or has merged, the item.
    #[serde(default)]
    pub onto: Option<String>,
    /// Number of results of a resolver that were overtaken by the base.
    #[serde(default)]
    pub races: u32,
    /// Whether the item conflicts and waits until the resolver is free.
    #[serde(default)]
    pub held: bool,
    /// Whether the verification failed once and then passed on the same commit.
    #[serde(default)]
    pub flaky: bool,
    /// Whether to build the item without others, because together they could not land.
    #[serde(default)]
    pub alone: bool,
    /// Worker token or request that asked for the item. The queue adds only one item per key.
    #[serde(default)]
    pub key: Option<String>,
    /// Time when the item settled, in Unix milliseconds.
    #[serde(default)]
    pub settled_ms: Option<u64>,
    /// Command that verified the item. `None` if none did.
    #[serde(default)]
    pub verified_by: Option<String>,
    /// Whether a later item of the same name has replaced this one.
    #[serde(default)]
    pub replaced: bool,
    /// Commit of the base from which the work started, which must still be on the base. `None` if unknown, or if a
    /// person accepted that it is not.
    #[serde(default)]
    pub fork: Option<String>,
    /// Key of the caller that added the item, as whom git and the commands run. `None`: the caller that added last.
    #[serde(default)]
    pub caller: Option<String>,
    /// Whether a worker starts again if the item is rejected.
    #[serde(default)]
    pub mends: bool,
    /// Obstacle after which a waiting item continues by itself. `None`: only a person can retry it.
    #[serde(default)]
    pub until: Option<Obstacle>,
    /// Time before which the item is not built, in Unix milliseconds. `None`: at once.
    #[serde(default)]
    pub later_ms: Option<u64>,
    /// Why the item is paused until then. `None` if it is not paused, or only because the base moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_later: Option<String>,
    /// Tip of the work before the first resolver replaced it. `None` if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unresolved: Option<String>,
    /// Number of tries of a resolver that ended at a limit of its provider. They do not count as tries.
    #[serde(default)]
    pub limited: u32,
    /// Number of candidates of the item that the base overtook.
    #[serde(default)]
    pub moved: u32,
    /// Number of times that the item continued by itself since a person queued it.
    #[serde(default)]
    pub continued: u32,
    /// Uncommitted paths of the worker that do not land: files of kinds that tools generate, and the
    /// places of submodules and other repositories with uncommitted work (with a slash at the end).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Whether the base had all changes of the item already, so that nothing of it was left to land.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub contained: bool,
    /// Rules for the item, as they were when it was added.
    #[serde(default)]
    pub rules: Rules,
}

impl Item {
    /// Returns the obstacle after which the item continues by itself. `None` if it does not wait for one, or if a later
    /// item has replaced it.
    pub fn obstacle(&self) -> Option<&Obstacle> {
        self.until.as_ref().filter(|_| matches!(self.state, State::Waiting { .. }) && !self.replaced)
    }

    /// Reports whether the item is queued and may be built at `now_ms`, in Unix milliseconds. A time that is further
    /// away than any pause comes from a clock that was set back.
    pub fn is_due(&self, now_ms: u64) -> bool {
        let has_come = |at_ms: u64| at_ms <= now_ms || at_ms > now_ms + PAUSE_MS_MAX;
        self.state == State::Queued && self.later_ms.is_none_or(has_come)
    }

    /// Returns why the item was rejected, why it waits, or why it is paused.
    pub fn reason(&self) -> Option<&str> {
        let paused = || self.why_later.as_deref().filter(|_| self.state == State::Queued);
        self.state.reason().or_else(paused)
    }

    /// Returns the tip of the work itself, without what resolvers merged into it.
    pub fn work(&self) -> &str {
        self.unresolved.as_deref().unwrap_or(&self.tip)
    }

    /// Reports whether the item has landed, or had nothing to land. Not if all that its worker left does not land.
    pub fn is_complete(&self) -> bool {
        let is_empty = self.state == State::Noop && !self.contained && !self.left_out.is_empty();
        self.state.is_done() && !is_empty
    }

    /// Reports whether nothing is left to do for the item, not even for a person.
    pub fn is_past(&self) -> bool {
        self.state.is_done() || self.state == State::Dropped || self.replaced
    }
}

/// Obstacle that keeps an item from landing and that may disappear without a word to the queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Obstacle {
    /// The base is at a commit that does not pass the verification.
    Base(String),
    /// Uncommitted edits to these paths.
    Edits(Vec<String>),
    /// A git of a person is at work in a directory that has the base checked out, as long as this file or directory of it
    /// exists. Absolute.
    File(String),
    /// What a failed landing left in the directories that have the base checked out.
    Leftovers,
}

/// Item that is to be added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addition {
    pub name: String,
    pub tip: String,
    pub priority: i32,
    pub key: Option<String>,
    /// Rules for the item. `None`: those of the previous item.
    pub rules: Option<Rules>,
    /// Why there is no tip yet. `None` if there is one.
    pub waits: Option<String>,
    /// See [`Item::fork`].
    pub fork: Option<String>,
    /// See [`Item::caller`].
    pub caller: Option<String>,
    /// See [`Item::mends`].
    pub mends: bool,
    /// See [`Item::left_out`].
    pub left_out: Vec<String>,
}

impl Addition {
    /// Returns the queued item. `rules`, those of the previous item, apply if the addition has none.
    pub fn into_item(self, id: ItemId, rules: &Rules, added_ms: u64) -> Item {
        Item {
            id,
            name: self.name,
            tip: self.tip,
            priority: self.priority,
            added_ms,
            state: State::Queued,
            resolved: 0,
            onto: None,
            races: 0,
            held: false,
            flaky: false,
            alone: false,
            key: self.key,
            settled_ms: None,
            verified_by: None,
            replaced: false,
            fork: self.fork,
            caller: self.caller,
            mends: self.mends,
            until: None,
            later_ms: None,
            why_later: None,
            unresolved: None,
            limited: 0,
            moved: 0,
            continued: 0,
            left_out: self.left_out,
            contained: false,
            rules: self.rules.unwrap_or_else(|| rules.clone()),
        }
    }
}

/// Link of the chain that is under way: one item on top of the previous one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    pub item: ItemId,
    /// Candidate: the base with this item and all items before it.
    pub commit: String,
}

/// Work that is under way. All its commits are only candidates, so that a crash loses work but never a decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "phase")]
pub enum Phase {
    #[default]
    Idle,
    /// Items are being built on top of each other. Those in `todo` follow.
    Building { base: Option<String>, chain: Vec<Link>, todo: Vec<ItemId> },
    /// A commit of the chain is being verified.
    Verifying { base: String, chain: Vec<Link>, search: Search },
    /// The base is being moved to the last link.
    Landing { base: String, chain: Vec<Link> },
}

/// Search for the first bad link of a chain: what is known, and which link is being verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Search {
    /// Index of the link that is being verified.
    pub at: usize,
    /// Whether the link is being verified for the second time.
    pub again: bool,
    /// Whether the base alone is being verified, because the link failed on it.
    #[serde(default)]
    pub of_base: bool,
    /// Number of links, from the first, that are known to be good.
    pub green: usize,
    /// First link that is known to be bad.
    pub red: Option<Red>,
    /// Number of consecutive verifications without a result.
    pub lost: u32,
}

/// Link whose verification failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Red {
    /// Index of the link.
    pub at: usize,
    /// Whether the verification failed twice on the same commit.
    pub sure: bool,
    pub reason: String,
}

/// Result of verifying a base alone, or as the tip of what landed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseCheck {
    pub commit: String,
    /// Command that verified it.
    pub command: String,
    /// Key of the caller as whom the command ran. See [`Item::caller`].
    #[serde(default)]
    pub caller: Option<String>,
    /// Why it failed. `None` if it passed.
    pub reason: Option<String>,
    /// Names of items that failed on it; twice if the item was rejected all the same.
    #[serde(default)]
    pub failed: Vec<String>,
}

/// Complete queue, as journaled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    pub items: Vec<Item>,
    /// Number of the next item.
    pub next: ItemId,
    pub paused: bool,
    /// Rules of the items that are under way, or were last.
    pub rules: Rules,
    /// Item whose conflicts are being resolved. No other conflict is considered until it has settled.
    #[serde(default)]
    pub resolving: Option<ItemId>,
    /// Last base of which it is known whether it passes.
    #[serde(default)]
    pub checked: Option<BaseCheck>,
    #[serde(flatten)]
    pub phase: Phase,
}

impl Queue {
    pub fn item(&self, id: ItemId) -> Option<&Item> {
        self.items.iter().find(|item| item.id == id)
    }

    /// Returns the item that was requested with this key.
    pub fn of_key(&self, key: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.key.as_deref() == Some(key))
    }

    /// Returns the item with this number for a change.
    pub fn item_mut(&mut self, id: ItemId) -> Option<&mut Item> {
        self.items.iter_mut().find(|item| item.id == id)
    }

    /// Reports whether any work is under way, or is awaited.
    pub fn is_busy(&self) -> bool {
        let is_live = |item: &Item| item.state == State::Resolving || item.obstacle().is_some();
        self.phase != Phase::Idle || self.next_ms().is_some() || self.items.iter().any(is_live)
    }

    /// Returns the time at which the next paused item may be built, in Unix milliseconds. `None` if no item is paused.
    pub fn next_ms(&self) -> Option<u64> {
        self.paused_until().min()
    }

    fn paused_until(&self) -> impl Iterator<Item = u64> {
        let queued = self.items.iter().filter(|item| item.state == State::Queued && !item.held && !self.paused);
        queued.filter_map(|item| item.later_ms)
    }

    /// Returns the time at which to try again to build the next items, in Unix milliseconds: `now_ms` if some are due
    /// and nothing is under way. `None` if there is nothing to wait for.
    pub fn wake_ms(&self, now_ms: u64) -> Option<u64> {
        if self.phase == Phase::Idle && !self.paused && !self.turn(now_ms).is_empty() {
            return Some(now_ms);
        }
        self.paused_until().filter(|at_ms| *at_ms > now_ms).min()
    }

    /// Returns the items to build next, by priority and then by age: at most one batch, and only items with the rules
    /// and the caller of the first.
    pub fn turn(&self, now_ms: u64) -> Vec<ItemId> {
        if let Some(first) = self.resolving.and_then(|id| self.item(id)) {
            match first.state {
                // Nothing else may move the base before the resolver's result lands.
                State::Queued if first.onto.is_some() => {
                    return first.is_due(now_ms).then_some(first.id).into_iter().collect();
                }
                // An item that lost once would otherwise lose again and again.
                State::Resolving if first.races > 0 => return Vec::new(),
                _ => {}
            }
        }
        let is_next = |item: &&Item| item.is_due(now_ms) && !item.held;
        let mut queued: Vec<&Item> = self.items.iter().filter(is_next).collect();
        queued.sort_by_key(|item| (std::cmp::Reverse(item.priority), item.id));
        let Some(first) = queued.first() else { return Vec::new() };
        let is_fit = |item: &&&Item| !item.alone && item.rules == first.rules && item.caller == first.caller;
        let together = if first.alone { 1 } else { queued.iter().take_while(is_fit).count() };
        let batch = if first.rules.verify.is_some() { first.rules.batch.max(1) } else { usize::MAX };
        queued.iter().take(batch.min(together)).map(|item| item.id).collect()
    }

    /// Returns the part of the queue that must survive a crash. Candidates are built and verified again; a landing is
    /// kept, because it may have happened.
    #[must_use]
    pub fn kept(&self) -> Self {
        let mut kept = self.clone();
        if !matches!(kept.phase, Phase::Idle | Phase::Landing { .. }) {
            kept.give_back();
        }
        kept
    }

    /// Abandons the work under way, and queues its items again.
    pub fn give_back(&mut self) {
        for item in &mut self.items {
            if item.state == State::Active {
                item.state = State::Queued;
            }
        }
        self.phase = Phase::Idle;
    }

    /// Removes the oldest past item if there are more than [`HISTORY_MAX`].
    pub fn forget_oldest(&mut self) {
        if self.items.iter().filter(|item| item.is_past()).count() > HISTORY_MAX
            && let Some(oldest) = self.items.iter().position(Item::is_past)
        {
            self.items.remove(oldest);
        }
    }
}
