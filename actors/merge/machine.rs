//! Decisions of a merge queue as a pure function: queue, event → queue, effects.
//!
//! ```text
//!   idle ─▶ building ─▶ verifying ─▶ landing ─▶ idle …
//!              │            │            └─ base moved: build again
//!              │            └─ red: bisect, land what is green, reject one
//!              └─ conflict: the item leaves, the others continue
//! ```
//!
//! A chain is verified at its tip. If that fails, bisection searches for the longest good prefix. A link is rejected
//! only after two failures on the same commit; then the prefix lands, and the links after the rejected one are queued
//! again. One bad item of a batch therefore costs a logarithmic number of verifications, and never the place of the
//! others.

use std::ops::Deref;

use swarm_model::merge::queue::{Addition, Item, ItemId, Link, Phase, Queue, Red, Search, State};
use swarm_model::merge::{Build, Landing, Resolution, Verdict};

/// Number of consecutive verifications of one commit without a result after which its items wait.
const LOST_MAX: u32 = 3;

/// Result of an effect, or request of a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Added(Addition),
    /// Result of [`Effect::ReadBase`].
    BaseRead(Result<String, String>),
    Built(Build),
    Verified(Verdict),
    Landed(Landing),
    Resolved(ItemId, Resolution),
    Pause,
    Resume,
    Drop(ItemId),
    Retry(ItemId),
}

/// Effect, carried out once the queue is durable. Each one but `Settled` is answered by one event. Only one step of
/// the chain is under way at a time; resolvers run beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    ReadBase,
    Build {
        item: ItemId,
        onto: String,
    },
    /// Verify a commit. `of` is the item whose link it is.
    Verify {
        commit: String,
        of: ItemId,
    },
    /// Move the base from `from` to `to`, if it is still at `from`.
    Land {
        from: String,
        to: String,
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
        Self { queue }
    }

    /// Applies one event at `now_ms`, in Unix milliseconds, and returns its effects.
    pub fn on(&mut self, event: Event, now_ms: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Added(addition) => self.add(addition, now_ms, &mut effects),
            Event::BaseRead(base) => self.base_read(base, &mut effects),
            Event::Built(build) => self.built(build, &mut effects),
            Event::Verified(verdict) => self.verified(verdict, &mut effects),
            Event::Landed(landing) => self.landed(landing, &mut effects),
            Event::Resolved(id, resolution) => self.resolved(id, resolution),
            Event::Pause => self.queue.paused = true,
            Event::Resume => self.queue.paused = false,
            Event::Drop(id) => self.drop_item(id, &mut effects),
            Event::Retry(id) => self.retry(id),
        }
        self.begin(&mut effects);
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
            earlier.replaced = true;
        }
        let rules = self.queue.items.last().map_or(&self.queue.rules, |last| &last.rules).clone();
        self.queue.items.push(addition.into_item(id, &rules, at_ms));
        if let Some(reason) = waits {
            self.settle(id, State::Waiting { reason, files: Vec::new() }, effects);
        }
    }

    /// Returns the effects that continue after a start of the supervisor. Building and verifying start again. A
    /// landing is requested once more; git reports whether it has happened.
    pub fn resume(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        match self.queue.phase.clone() {
            Phase::Idle => {}
            Phase::Building { .. } | Phase::Verifying { .. } => self.queue.give_back(),
            Phase::Landing { base, chain } => effects.push(land(base, &chain)),
        }
        for item in &mut self.queue.items {
            // The work of a resolver counts only once it has reported a result.
            if item.state == State::Resolving {
                item.state = State::Queued;
            }
        }
        self.begin(&mut effects);
        effects
    }

    /// Starts the next items if nothing is under way.
    fn begin(&mut self, effects: &mut Vec<Effect>) {
        let todo = self.queue.turn();
        if self.queue.phase != Phase::Idle || self.queue.paused || todo.is_empty() {
            return;
        }
        if let Some(first) = self.queue.item(todo[0]) {
            // Items that are added later do not change the rules for these.
            self.queue.rules = first.rules.clone();
        }
        for id in &todo {
            self.set(*id, State::Active);
        }
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
            Err(reason) => self.all_wait(&reason, Vec::new(), effects),
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
            effects.push(verify(&chain, at));
            self.queue.phase = Phase::Verifying { base, chain, search: Search { at, ..Search::default() } };
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
            Build::Nothing | Build::Failed(_) | Build::Conflict(_) if !self.is_first_link() => {
                self.set(id, State::Queued)
            }
            Build::Nothing => self.settle(id, State::Noop, effects),
            Build::Failed(reason) => self.settle(id, State::Waiting { reason, files: Vec::new() }, effects),
            Build::Conflict(files) => {
                let tries = self.queue.item(id).map_or(0, |item| item.resolved);
                if self.queue.rules.resolver.is_some() && tries < self.queue.rules.resolver_tries {
                    self.set(id, State::Resolving);
                    effects.push(Effect::Resolve { item: id, onto, files });
                } else {
                    self.settle(id, State::Conflict { files }, effects);
                }
            }
        }
        self.build_next(effects);
    }

    fn is_first_link(&self) -> bool {
        matches!(&self.queue.phase, Phase::Building { chain, .. } if chain.is_empty())
    }

    fn verified(&mut self, verdict: Verdict, effects: &mut Vec<Effect>) {
        let Phase::Verifying { base, chain, mut search } = self.queue.phase.clone() else { return };
        match verdict {
            Verdict::Unknown(reason) => {
                search.lost += 1;
                if search.lost >= LOST_MAX {
                    return self.stopped(&chain, &reason, Vec::new(), effects);
                }
                effects.push(verify(&chain, search.at));
                self.queue.phase = Phase::Verifying { base, chain, search };
                return;
            }
            Verdict::Green => {
                if search.again
                    && let Some(item) = self.queue.item_mut(chain[search.at].item)
                {
                    item.flaky = true;
                }
                search.red = search.red.filter(|red| red.at != search.at);
                search.green = search.at + 1;
            }
            Verdict::Red(reason) => search.red = Some(Red { at: search.at, sure: search.again, reason }),
        }
        match self.next_look(&chain, &search) {
            Some((at, again)) => {
                effects.push(verify(&chain, at));
                self.queue.phase = Phase::Verifying { base, chain, search: Search { at, again, lost: 0, ..search } };
            }
            None => self.decide(base, chain, search, effects),
        }
    }

    /// Returns the link to verify next, and whether it is for the second time. `None` if the search is over. A link
    /// is bad only if it failed twice, but only the link that will be rejected is verified a second time.
    fn next_look(&self, chain: &[Link], search: &Search) -> Option<(usize, bool)> {
        let green = search.green;
        match &search.red {
            // The first bad link is between the last good and the first failed one.
            Some(red) if red.at > green => Some((green + (red.at - green - 1) / 2, false)),
            Some(red) if !red.sure => Some((red.at, true)),
            Some(_) => None,
            None if green == chain.len() => None,
            None if self.queue.rules.verify_each => Some((green, false)),
            None => Some((chain.len() - 1, false)),
        }
    }

    /// Ends the search: lands the good links, rejects the first bad one, and queues those after it again.
    fn decide(&mut self, base: String, mut chain: Vec<Link>, search: Search, effects: &mut Vec<Effect>) {
        let mut later = chain.split_off(search.green);
        if let Some(red) = search.red {
            let bad = later.remove(0);
            self.settle(bad.item, State::Rejected { reason: red.reason }, effects);
        }
        for link in later {
            self.set(link.item, State::Queued);
        }
        if chain.is_empty() {
            self.queue.phase = Phase::Idle;
        } else {
            self.land(base, chain, effects);
        }
    }

    fn land(&mut self, base: String, chain: Vec<Link>, effects: &mut Vec<Effect>) {
        effects.push(land(base.clone(), &chain));
        self.queue.phase = Phase::Landing { base, chain };
    }

    fn landed(&mut self, landing: Landing, effects: &mut Vec<Effect>) {
        let Phase::Landing { chain, .. } = &self.queue.phase else { return };
        let chain = chain.clone();
        match landing {
            Landing::Done(renamed) => {
                let verified_by = self.queue.rules.verify.clone();
                for link in chain {
                    if let Some(item) = self.queue.item_mut(link.item) {
                        item.verified_by.clone_from(&verified_by);
                    }
                    let named = renamed.iter().find(|(candidate, _)| *candidate == link.commit);
                    let commit = named.map_or(link.commit, |(_, landed)| landed.clone());
                    self.settle(link.item, State::Landed { commit }, effects);
                }
                self.queue.phase = Phase::Idle;
            }
            Landing::Moved => self.queue.give_back(),
            Landing::Overlap(files) => self.stopped(&chain, "uncommitted edits are in the way", files, effects),
            Landing::Failed(reason) => self.stopped(&chain, &reason, Vec::new(), effects),
        }
    }

    /// Queues the item again, with the new tip if the resolver made one. If the item still conflicts and no try is
    /// left, the next build settles it as a conflict.
    fn resolved(&mut self, id: ItemId, resolution: Resolution) {
        let Some(item) = self.queue.item_mut(id).filter(|item| item.state == State::Resolving) else { return };
        item.resolved += 1;
        item.state = State::Queued;
        if let Resolution::Done(tip) = resolution {
            item.tip = tip;
        }
    }

    fn drop_item(&mut self, id: ItemId, effects: &mut Vec<Effect>) {
        if self.queue.item(id).is_some_and(|item| item.state.may_be_dropped()) {
            self.settle(id, State::Dropped, effects);
        }
    }

    fn retry(&mut self, id: ItemId) {
        if let Some(item) = self.queue.item_mut(id).filter(|item| item.state.may_be_retried()) {
            item.resolved = 0;
            item.replaced = false;
            item.state = State::Queued;
        }
    }

    /// Handles an obstacle that stops a chain. It may concern only one item, so the items of a longer chain are built
    /// again, each alone, so that one item does not stop the others.
    fn stopped(&mut self, chain: &[Link], reason: &str, files: Vec<String>, effects: &mut Vec<Effect>) {
        if chain.len() < 2 {
            return self.all_wait(reason, files, effects);
        }
        for link in chain {
            if let Some(item) = self.queue.item_mut(link.item) {
                item.alone = true;
            }
        }
        self.queue.give_back();
    }

    fn all_wait(&mut self, reason: &str, files: Vec<String>, effects: &mut Vec<Effect>) {
        let active = self.queue.items.iter().filter(|item| item.state == State::Active);
        for id in active.map(|item| item.id).collect::<Vec<_>>() {
            self.settle(id, State::Waiting { reason: reason.to_owned(), files: files.clone() }, effects);
        }
        self.queue.phase = Phase::Idle;
    }

    fn settle(&mut self, id: ItemId, state: State, effects: &mut Vec<Effect>) {
        self.set(id, state);
        effects.push(Effect::Settled(id));
        self.queue.forget_oldest();
    }

    fn set(&mut self, id: ItemId, state: State) {
        if let Some(item) = self.queue.item_mut(id) {
            item.state = state;
        }
    }
}

fn verify(chain: &[Link], at: usize) -> Effect {
    Effect::Verify { commit: chain[at].commit.clone(), of: chain[at].item }
}

fn land(from: String, chain: &[Link]) -> Effect {
    Effect::Land { from, to: chain[chain.len() - 1].commit.clone() }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
