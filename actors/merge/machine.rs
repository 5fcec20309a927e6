//! Decisions of a merge queue as a pure function: queue, event → queue, effects.
//!
//! ```text
//!   idle ─▶ building ─▶ verifying ─▶ landing ─▶ idle …
//!              │            │            └─ base moved: build again
//!              │            └─ red: bisect ([`search`]), land what is green, reject one
//!              └─ conflict: the item leaves, the others continue ([`conflict`])
//! ```
//!
//! If a link of a chain is rejected, those before it land, and those after it are queued again. One bad item of a batch
//! therefore costs a logarithmic number of verifications, and never the place of the others.

mod conflict;
mod places;
mod search;

use std::collections::BTreeSet;
use std::ops::Deref;

use swarm_model::merge::queue::{Addition, Item, ItemId, Link, Obstacle, Phase, Queue, Rules, Search, State};
use swarm_model::merge::{Build, Landing, Resolution, Verdict};

/// Number of candidates of one item that the base may overtake before the item waits.
const MOVED_MAX: u32 = 10;
/// Pause after the second overtaken candidate, in milliseconds. Each further pause is twice as long.
const MOVED_MS: u64 = 1_000;
/// Longest such pause, in milliseconds.
const MOVED_MS_MAX: u64 = 60_000;
/// Maximum number of times that an item continues by itself when an obstacle is gone.
const CONTINUED_MAX: u32 = 50;
/// Pause before the second continuation after edits or a lock, in milliseconds. Each further pause is twice as long.
const CONTINUED_MS: u64 = 1_000;
/// Longest such pause, in milliseconds.
const CONTINUED_MS_MAX: u64 = 60_000;
/// Number of consecutive verifications of one commit without a result after which its items wait.
const LOST_MAX: u32 = 3;

/// Result of an effect, or request of a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Several items that were added together are built together.
    Added(Vec<Addition>),
    /// Result of [`Effect::ReadBase`].
    BaseRead(Result<String, String>),
    Built(Build),
    Verified(Verdict),
    Landed(Landing),
    Resolved(ItemId, Resolution),
    /// The resolver of the item was not started: it waits for a place.
    Waits(ItemId),
    /// There is a place for the resolver.
    Placed(ItemId),
    /// The time has come at which a paused item may be built.
    Woke,
    Pause,
    Resume,
    Drop(ItemId),
    /// Somebody retries the item. The key is that of the caller as whom the item goes on; `None` for that which added it.
    /// `accepts`: also if the base was rewritten since the work started, as only a person may say.
    Retry {
        item: ItemId,
        caller: Option<String>,
        accepts: bool,
    },
    /// A run that continues retries the item if it waits, and gives it the change. An item that was dropped or rejected
    /// meanwhile stays so.
    Again(ItemId, Change),
    /// An obstacle for which items wait is gone.
    Cleared(Obstacle),
}

/// What has changed since an item was added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub rules: Option<Box<Rules>>,
    /// Key of another caller. See [`Item::caller`].
    pub caller: Option<String>,
}

impl Change {
    /// Reports whether nothing has changed.
    pub fn is_none(&self) -> bool {
        self.rules.is_none() && self.caller.is_none()
    }
}

/// Effect, carried out once the queue is durable. Each one but `Settled` is answered by one event, `Resolve` perhaps by
/// [`Event::Waits`]. Only one step of the chain is under way at a time; resolvers run beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    ReadBase,
    Build {
        item: ItemId,
        onto: String,
    },
    /// Verify a commit: the link of the item `of`, or the base on which that link failed. `fresh`: in a directory
    /// without anything that earlier verifications left, because a failure decides.
    Verify {
        commit: String,
        of: ItemId,
        fresh: bool,
    },
    /// Move the base from `from` to `to`, if it is still at `from`. `of` is the last item that lands.
    Land {
        from: String,
        to: String,
        of: ItemId,
    },
    Resolve {
        item: ItemId,
        onto: String,
        files: Vec<String>,
    },
    /// The item has settled.
    Settled(ItemId),
}

/// State of a merge queue, which only events change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    queue: Queue,
    /// Whether an item under way has got other rules or another caller since it was taken.
    is_outdated: bool,
    /// Items whose resolvers wait for a place.
    unplaced: BTreeSet<ItemId>,
}

impl Deref for Machine {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.queue
    }
}

impl Machine {
    /// Creates the machine of a queue as journaled.
    pub fn new(queue: Queue) -> Self {
        Self { queue, is_outdated: false, unplaced: BTreeSet::new() }
    }

    /// Returns the number of each addition's item, and the additions that need a new one. A key has only one item, also
    /// among these additions.
    pub fn number(&self, additions: Vec<Addition>) -> (Vec<ItemId>, Vec<Addition>) {
        let (mut ids, mut new): (_, Vec<Addition>) = (Vec::new(), Vec::new());
        for addition in additions {
            let known = addition.key.as_deref().and_then(|key| self.queue.of_key(key)).map(|item| item.id);
            let is_same = |other: &Addition| addition.key.is_some() && other.key == addition.key;
            let at = new.iter().position(is_same).unwrap_or(new.len());
            ids.push(known.unwrap_or(self.queue.next + at as ItemId));
            if known.is_none() && at == new.len() {
                new.push(addition);
            }
        }
        (ids, new)
    }

    /// Applies one event at `now_ms`, in Unix milliseconds, and returns its effects.
    pub fn on(&mut self, event: Event, now_ms: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Added(additions) => {
                additions.into_iter().for_each(|addition| self.add(addition, now_ms, &mut effects));
            }
            // A verification by earlier rules proves nothing, and blames no work.
            Event::BaseRead(_) | Event::Built(_) | Event::Verified(_) if self.is_outdated => self.queue.give_back(),
            Event::BaseRead(base) => self.base_read(base, &mut effects),
            Event::Built(build) => self.built(build, &mut effects),
            Event::Verified(verdict) => self.verified(verdict, &mut effects),
            Event::Landed(landing) => self.landed(landing, now_ms, &mut effects),
            Event::Resolved(id, resolution) => self.resolved(id, resolution, now_ms),
            Event::Waits(id) => self.waits(id),
            Event::Placed(id) => self.placed(id),
            Event::Woke => {}
            Event::Pause => self.queue.paused = true,
            Event::Resume => self.queue.paused = false,
            Event::Drop(id) => self.drop_item(id, &mut effects),
            Event::Retry { item, caller, accepts } => {
                self.change(item, Change { rules: None, caller });
                self.retry(item, accepts);
            }
            Event::Again(id, change) if self.queue.item(id).is_some_and(|item| item.state.is_open()) => {
                self.change(id, change);
                self.retry(id, false);
            }
            Event::Again(..) => {}
            Event::Cleared(obstacle) => self.cleared(&obstacle, now_ms),
        }
        self.go_on_waiting(now_ms);
        self.begin(now_ms, &mut effects);
        for effect in &effects {
            if let Effect::Settled(id) = effect
                && let Some(item) = self.queue.item_mut(*id)
            {
                item.settled_ms = Some(now_ms);
            }
        }
        effects
    }

    fn add(&mut self, mut addition: Addition, at_ms: u64, effects: &mut Vec<Effect>) {
        let waits = addition.waits.take();
        let id = self.queue.next;
        self.queue.next += 1;
        let replaced = |earlier: &&mut Item| earlier.name == addition.name && earlier.state.may_be_retried();
        // The new item replaces earlier ones of the same name that did not land.
        for earlier in self.queue.items.iter_mut().filter(replaced) {
            if earlier.obstacle().is_some() {
                // A run that waits for it must hear that it does not continue by itself any more.
                effects.push(Effect::Settled(earlier.id));
            }
            earlier.replaced = true;
        }
        let rules = self.queue.items.last().map_or(&self.queue.rules, |last| &last.rules).clone();
        self.queue.items.push(addition.into_item(id, &rules, at_ms));
        if let Some(reason) = waits {
            self.settle(id, State::Waiting { reason, files: Vec::new() }, effects);
        }
    }

    /// Returns the effects that continue after a start of the supervisor. Building and verifying start again. A
    /// landing is requested once more; git reports whether it has happened. `now_ms` is in Unix milliseconds.
    pub fn resume(&mut self, now_ms: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        match self.queue.phase.clone() {
            Phase::Idle => {}
            Phase::Building { .. } | Phase::Verifying { .. } => self.queue.give_back(),
            Phase::Landing { base, chain } => {
                // Its items may have got another caller since; the base then was not verified for that one.
                self.is_outdated = true;
                effects.push(land(base, &chain));
            }
        }
        self.forget_resolver();
        self.begin(now_ms, &mut effects);
        effects
    }

    /// Starts the next items if nothing is under way.
    fn begin(&mut self, now_ms: u64, effects: &mut Vec<Effect>) {
        let todo = self.queue.turn(now_ms);
        if self.queue.phase != Phase::Idle || self.queue.paused || todo.is_empty() {
            return;
        }
        if let Some(first) = self.queue.item(todo[0]) {
            // Items that are added later do not change the rules for these.
            self.queue.rules = first.rules.clone();
        }
        for id in &todo {
            self.set(*id, State::Active);
            if let Some(item) = self.queue.item_mut(*id) {
                (item.later_ms, item.why_later) = (None, None);
            }
        }
        self.is_outdated = false;
        self.queue.phase = Phase::Building { base: None, chain: Vec::new(), todo };
        effects.push(Effect::ReadBase);
    }

    fn base_read(&mut self, read: Result<String, String>, effects: &mut Vec<Effect>) {
        let Phase::Building { base, .. } = &mut self.queue.phase else { return };
        match read {
            Ok(commit) => {
                *base = Some(commit);
                self.build_next(effects);
            }
            Err(reason) => self.all_wait(&reason, None, effects),
        }
    }

    fn build_next(&mut self, effects: &mut Vec<Effect>) {
        let Phase::Building { base: Some(base), chain, todo } = &self.queue.phase else { return };
        let onto = chain.last().map_or(base, |link| &link.commit).clone();
        if let Some(item) = todo.first() {
            effects.push(Effect::Build { item: *item, onto });
            return;
        }
        let (base, chain) = (base.clone(), chain.clone());
        if chain.is_empty() {
            self.queue.phase = Phase::Idle;
        } else if self.queue.rules.verify.is_some() {
            let at = if self.queue.rules.verify_each { 0 } else { chain.len() - 1 };
            self.look(base, chain, Search { at, ..Search::default() }, effects);
        } else {
            self.land(base, chain, effects);
        }
    }

    fn built(&mut self, build: Build, effects: &mut Vec<Effect>) {
        let Phase::Building { base: Some(base), chain, todo } = &mut self.queue.phase else { return };
        if todo.is_empty() {
            return;
        }
        let id = todo.remove(0);
        let onto = chain.last().map_or(&*base, |link| &link.commit).clone();
        match build {
            Build::Made(commit) => chain.push(Link { item: id, commit }),
            // The cause may be items below this one that have not landed. They continue first, and this item is
            // built again later.
            Build::Nothing | Build::Contained | Build::Failed(_) | Build::Conflict(_) if !self.is_first_link() => {
                self.set(id, State::Queued)
            }
            Build::Nothing | Build::Contained => {
                if let Some(item) = self.queue.item_mut(id) {
                    item.contained = build == Build::Contained;
                }
                self.settle(id, State::Noop, effects);
            }
            Build::Failed(reason) => self.settle(id, State::Waiting { reason, files: Vec::new() }, effects),
            Build::Conflict(files) => self.conflicts(id, onto, files, effects),
        }
        self.build_next(effects);
    }

    fn is_first_link(&self) -> bool {
        matches!(&self.queue.phase, Phase::Building { chain, .. } if chain.is_empty())
    }

    fn land(&mut self, base: String, chain: Vec<Link>, effects: &mut Vec<Effect>) {
        if self.queue.paused {
            // Whoever pauses the queue must be able to stop what is on its way: it is verified again later.
            return self.queue.give_back();
        }
        effects.push(land(base.clone(), &chain));
        self.queue.phase = Phase::Landing { base, chain };
    }

    fn landed(&mut self, landing: Landing, now_ms: u64, effects: &mut Vec<Effect>) {
        let Phase::Landing { chain, .. } = &self.queue.phase else { return };
        let chain = chain.clone();
        match landing {
            Landing::Done(renamed) => {
                let verified_by = self.queue.rules.verify.clone();
                let caller = self.caller_of(&chain);
                for link in chain {
                    if let Some(item) = self.queue.item_mut(link.item) {
                        item.verified_by.clone_from(&verified_by);
                    }
                    let named = renamed.iter().find(|(candidate, _)| *candidate == link.commit);
                    let commit = named.map_or(link.commit, |(_, landed)| landed.clone());
                    if !self.is_outdated {
                        // The last one is the base now, and was verified.
                        self.remember_base(&commit, caller.clone(), None);
                    }
                    self.settle(link.item, State::Landed { commit }, effects);
                }
                self.queue.phase = Phase::Idle;
            }
            Landing::Moved => self.overtaken(&chain, now_ms, effects),
            Landing::Overlap(files) => {
                self.stopped(&chain, "uncommitted edits are in the way", Some(Obstacle::Edits(files)), effects);
            }
            Landing::Busy { reason, file } => self.stopped(&chain, &reason, Some(Obstacle::File(file)), effects),
            Landing::Failed(reason) => self.stopped(&chain, &reason, None, effects),
            Landing::Stuck(reason) => self.stopped(&chain, &reason, Some(Obstacle::Leftovers), effects),
        }
    }

    /// Handles candidates that the base has overtaken: they are built again, after a growing pause, because the
    /// verification itself may be what moves the base.
    fn overtaken(&mut self, chain: &[Link], now_ms: u64, effects: &mut Vec<Effect>) {
        let mut most = 0;
        for link in chain {
            if let Some(item) = self.queue.item_mut(link.item) {
                item.moved += 1;
                most = most.max(item.moved);
            }
        }
        if most >= MOVED_MAX {
            let times = format!("the base moved {most} times while the work was on its way");
            let reason = match &self.queue.rules.verify {
                Some(command) => format!("{times}; check whether '{command}' itself commits to it"),
                None => times,
            };
            return self.stopped(chain, &reason, None, effects);
        }
        let pause = pause_ms(MOVED_MS, most.saturating_sub(1), MOVED_MS_MAX);
        for link in chain {
            if let Some(item) = self.queue.item_mut(link.item) {
                item.later_ms = (pause > 0).then_some(now_ms + pause);
            }
        }
        self.queue.give_back();
    }

    fn drop_item(&mut self, id: ItemId, effects: &mut Vec<Effect>) {
        if self.queue.item(id).is_some_and(|item| item.state.may_be_dropped()) {
            self.settle(id, State::Dropped, effects);
        }
    }

    fn change(&mut self, id: ItemId, change: Change) {
        let Some(item) = self.queue.item_mut(id).filter(|item| !item.state.is_done()) else { return };
        if let Some(rules) = change.rules {
            item.rules = *rules;
        }
        if change.caller.is_some() {
            item.caller = change.caller;
        }
        // The step under way ends by the rules of the queue, which are still the earlier ones.
        self.is_outdated |= item.state == State::Active;
    }

    /// Queues a settled item again. `accepts`: also if the base was rewritten since the work started.
    fn retry(&mut self, id: ItemId, accepts: bool) {
        let Some(item) = self.queue.item_mut(id).filter(|item| item.state.may_be_retried()) else { return };
        item.resolved = 0;
        item.races = 0;
        (item.continued, item.limited, item.moved) = (0, 0, 0);
        (item.later_ms, item.why_later) = (None, None);
        item.replaced = false;
        item.state = State::Queued;
        if accepts {
            item.fork = None;
        }
        // What made the base fail may have been outside of the repository.
        self.queue.checked.take_if(|known| known.reason.is_some());
    }

    /// Queues all items again that wait for this obstacle. Edits and locks that come back let an item pause for longer each
    /// time, so that other items have their turn.
    fn cleared(&mut self, obstacle: &Obstacle, now_ms: u64) {
        let first = if matches!(obstacle, Obstacle::Edits(_) | Obstacle::File(_)) { CONTINUED_MS } else { 0 };
        for item in self.queue.items.iter_mut().filter(|item| item.obstacle() == Some(obstacle)) {
            let pause = pause_ms(first, item.continued, CONTINUED_MS_MAX);
            item.state = State::Queued;
            item.later_ms = (pause > 0).then_some(now_ms + pause);
            item.continued += 1;
        }
    }

    /// Handles an obstacle that stops a chain. It may concern only one item, so the items of a longer chain are built
    /// again, each alone, so that one item does not stop the others.
    fn stopped(&mut self, chain: &[Link], reason: &str, until: Option<Obstacle>, effects: &mut Vec<Effect>) {
        if chain.len() < 2 {
            return self.all_wait(reason, until, effects);
        }
        for link in chain {
            if let Some(item) = self.queue.item_mut(link.item) {
                item.alone = true;
            }
        }
        self.queue.give_back();
    }

    fn all_wait(&mut self, reason: &str, until: Option<Obstacle>, effects: &mut Vec<Effect>) {
        let files = if let Some(Obstacle::Edits(files)) = &until { files.clone() } else { Vec::new() };
        let active = self.queue.items.iter().filter(|item| item.state == State::Active);
        for id in active.map(|item| item.id).collect::<Vec<_>>() {
            self.settle(id, State::Waiting { reason: reason.to_owned(), files: files.clone() }, effects);
            if let Some(item) = self.queue.item_mut(id) {
                item.until = until.clone().filter(|_| item.continued < CONTINUED_MAX);
            }
        }
        self.queue.phase = Phase::Idle;
    }

    fn settle(&mut self, id: ItemId, state: State, effects: &mut Vec<Effect>) {
        self.set(id, state);
        if let Some(item) = self.queue.item_mut(id) {
            (item.until, item.onto) = (None, None);
            (item.later_ms, item.why_later) = (None, None);
            item.held = false;
        }
        self.release_held(id);
        effects.push(Effect::Settled(id));
        self.queue.forget_oldest();
    }

    fn set(&mut self, id: ItemId, state: State) {
        if let Some(item) = self.queue.item_mut(id) {
            item.state = state;
        }
    }
}

/// Returns the pause before a repetition: none before the first, then `first`, doubled each time, `max` at most.
fn pause_ms(first: u64, times: u32, max: u64) -> u64 {
    if times == 0 { 0 } else { (first << (times - 1).min(16)).min(max) }
}

fn land(from: String, chain: &[Link]) -> Effect {
    let last = &chain[chain.len() - 1];
    Effect::Land { from, to: last.commit.clone(), of: last.item }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
