//! The merge queue as a pure function: queue, event → effects.
//!
//! ```text
//!   idle ─▶ building ─▶ verifying ─▶ landing ─▶ idle …
//!              │            │            └─ base moved: build again
//!              │            └─ red: bisect, land what is green, reject one
//!              └─ conflict: the item leaves, the others go on
//! ```
//!
//! A chain is verified at its tip. When that is red, twice, the longest green
//! prefix is looked for by bisection; it lands, the link after it is rejected,
//! and what came after is queued again. So one bad item of a batch costs a
//! logarithm of verifications and never the others' place.

use super::queue::{Addition, Item, ItemId, Link, Phase, Queue, Red, Search, State};

/// Looks at one commit that may come to nothing before its items wait.
const LOST_MAX: u32 = 3;

/// What the world answers, or a person asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Added(Addition, u64),
    /// Answers of effects.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Build {
    /// The item's tip on top of what was given.
    Made(String),
    /// Everything of it is there already.
    Nothing,
    Conflict(Vec<String>),
    /// It could not be found out; the item waits.
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Green,
    Red(String),
    /// The command was ended by a signal that the queue did not send, or could
    /// not be started: that says nothing about the commit.
    Unknown(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Landing {
    /// The base holds it. Commits that landed under another name, as a signature
    /// gives them one: the candidate's and theirs.
    Done(Vec<(String, String)>),
    /// The base is no longer where the chain began.
    Moved,
    /// A person's uncommitted edits are in the way.
    Overlap(Vec<String>),
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// A tip that is to take the place of the item's.
    Done(String),
    Failed(String),
}

/// What is to be done once the queue is durable. Each but `Settled` is answered
/// by one event. One step of the chain is under way at a time; resolvers work
/// beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    ReadBase,
    Build {
        item: ItemId,
        onto: String,
    },
    /// `of` is the item whose link it is.
    Verify {
        commit: String,
        of: ItemId,
    },
    /// Move the base from `from` to `to` if it is still there.
    Land {
        from: String,
        to: String,
    },
    Resolve {
        item: ItemId,
        onto: String,
        files: Vec<String>,
    },
    /// The item has reached its end for now.
    Settled(ItemId),
}

impl Queue {
    /// Takes one event.
    pub fn on(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Added(addition, at_ms) => self.add(addition, at_ms, &mut effects),
            Event::BaseRead(base) => self.base_read(base, &mut effects),
            Event::Built(build) => self.built(build, &mut effects),
            Event::Verified(verdict) => self.verified(verdict, &mut effects),
            Event::Landed(landing) => self.landed(landing, &mut effects),
            Event::Resolved(id, resolution) => self.resolved(id, resolution),
            Event::Pause => self.paused = true,
            Event::Resume => self.paused = false,
            Event::Drop(id) => self.drop_item(id, &mut effects),
            Event::Retry(id) => self.retry(id),
        }
        self.begin(&mut effects);
        effects
    }

    fn add(&mut self, addition: Addition, at_ms: u64, effects: &mut Vec<Effect>) {
        let Addition { name, tip, priority, key, rules, waits } = addition;
        let rules = rules.unwrap_or_else(|| self.items.last().map_or(&self.rules, |last| &last.rules).clone());
        let id = self.next;
        self.next += 1;
        // What did not land is on record; what is to be done about it is done here.
        for earlier in self.items.iter_mut().filter(|earlier| earlier.name == name && earlier.state.may_be_retried()) {
            earlier.replaced = true;
        }
        self.items.push(Item {
            id,
            name,
            tip,
            priority,
            added_ms: at_ms,
            state: State::Queued,
            resolved: 0,
            flaky: false,
            alone: false,
            key,
            settled_ms: None,
            verified_by: None,
            replaced: false,
            rules,
        });
        if let Some(reason) = waits {
            self.settle(id, State::Waiting { reason, files: Vec::new() }, effects);
        }
    }

    /// After a start of the supervisor: what was under way is done again, from
    /// what git says. A landing is asked for once more; git answers whether it
    /// has happened.
    pub fn resume(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        match self.phase.clone() {
            Phase::Idle => {}
            Phase::Building { .. } | Phase::Verifying { .. } => self.give_back(),
            Phase::Landing { base, chain } => effects.push(land(base, &chain)),
        }
        for item in &mut self.items {
            // Nothing of a resolver's attempt is kept before it has said so.
            if item.state == State::Resolving {
                item.state = State::Queued;
            }
        }
        self.begin(&mut effects);
        effects
    }

    /// Starts on the next items when nothing is under way.
    fn begin(&mut self, effects: &mut Vec<Effect>) {
        let todo = self.turn();
        if self.phase != Phase::Idle || self.paused || todo.is_empty() {
            return;
        }
        if let Some(first) = self.item(todo[0]) {
            // What is added meanwhile does not change how these are judged.
            self.rules = first.rules.clone();
        }
        for id in &todo {
            self.set(*id, State::Active);
        }
        self.phase = Phase::Building { base: None, chain: Vec::new(), todo };
        effects.push(Effect::ReadBase);
    }

    fn base_read(&mut self, read: Result<String, String>, effects: &mut Vec<Effect>) {
        let Phase::Building { base, .. } = &mut self.phase else { return };
        match read {
            Ok(commit) => {
                *base = Some(commit);
                self.build_next(effects);
            }
            Err(reason) => self.all_wait(&reason, Vec::new(), effects),
        }
    }

    fn build_next(&mut self, effects: &mut Vec<Effect>) {
        let Phase::Building { base: Some(base), chain, todo } = &self.phase else { return };
        let onto = chain.last().map_or(base, |link| &link.commit).clone();
        if let Some(item) = todo.first() {
            effects.push(Effect::Build { item: *item, onto });
            return;
        }
        let (base, chain) = (base.clone(), chain.clone());
        if chain.is_empty() {
            self.phase = Phase::Idle;
        } else if self.rules.verify.is_some() {
            let at = if self.rules.verify_each { 0 } else { chain.len() - 1 };
            effects.push(verify(&chain, at));
            self.phase = Phase::Verifying { base, chain, search: Search { at, ..Search::default() } };
        } else {
            self.land(base, chain, effects);
        }
    }

    fn built(&mut self, build: Build, effects: &mut Vec<Effect>) {
        let Phase::Building { base: Some(base), chain, todo } = &mut self.phase else { return };
        if todo.is_empty() {
            return;
        }
        let id = todo.remove(0);
        let onto = chain.last().map_or(&*base, |link| &link.commit).clone();
        match build {
            Build::Made(commit) => chain.push(Link { item: id, commit }),
            // With others below it that have not landed, it may be because of them: what it
            // is shows alone. They go on first.
            Build::Nothing | Build::Failed(_) | Build::Conflict(_) if !self.is_first_link() => {
                self.set(id, State::Queued)
            }
            Build::Nothing => self.settle(id, State::Noop, effects),
            Build::Failed(reason) => self.settle(id, State::Waiting { reason, files: Vec::new() }, effects),
            Build::Conflict(files) => {
                let tries = self.item(id).map_or(0, |item| item.resolved);
                if self.rules.resolver.is_some() && tries < self.rules.resolver_tries {
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
        matches!(&self.phase, Phase::Building { chain, .. } if chain.is_empty())
    }

    fn verified(&mut self, verdict: Verdict, effects: &mut Vec<Effect>) {
        let Phase::Verifying { base, chain, mut search } = self.phase.clone() else { return };
        match verdict {
            Verdict::Unknown(reason) => {
                search.lost += 1;
                if search.lost >= LOST_MAX {
                    return self.stopped(&chain, &reason, Vec::new(), effects);
                }
                effects.push(verify(&chain, search.at));
                self.phase = Phase::Verifying { base, chain, search };
                return;
            }
            Verdict::Green => {
                if search.again
                    && let Some(item) = self.item_mut(chain[search.at].item)
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
                self.phase = Phase::Verifying { base, chain, search: Search { at, again, lost: 0, ..search } };
            }
            None => self.decide(base, chain, search, effects),
        }
    }

    /// Which link to verify next, and whether for the second time: a commit is
    /// bad when it was bad twice, but only the one that is rejected for it has to be.
    fn next_look(&self, chain: &[Link], search: &Search) -> Option<(usize, bool)> {
        let green = search.green;
        match &search.red {
            // Still looking for the first bad one, between what is green and what is red.
            Some(red) if red.at > green => Some((green + (red.at - green - 1) / 2, false)),
            Some(red) if !red.sure => Some((red.at, true)),
            Some(_) => None,
            None if green == chain.len() => None,
            None if self.rules.verify_each => Some((green, false)),
            None => Some((chain.len() - 1, false)),
        }
    }

    /// Everything is known: what is green lands, the first bad one is rejected,
    /// what came after it has its turn again.
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
            self.phase = Phase::Idle;
        } else {
            self.land(base, chain, effects);
        }
    }

    fn land(&mut self, base: String, chain: Vec<Link>, effects: &mut Vec<Effect>) {
        effects.push(land(base.clone(), &chain));
        self.phase = Phase::Landing { base, chain };
    }

    fn landed(&mut self, landing: Landing, effects: &mut Vec<Effect>) {
        let Phase::Landing { chain, .. } = &self.phase else { return };
        let chain = chain.clone();
        match landing {
            Landing::Done(renamed) => {
                let verified_by = self.rules.verify.clone();
                for link in chain {
                    if let Some(item) = self.item_mut(link.item) {
                        item.verified_by.clone_from(&verified_by);
                    }
                    let named = renamed.iter().find(|(candidate, _)| *candidate == link.commit);
                    let commit = named.map_or(link.commit, |(_, landed)| landed.clone());
                    self.settle(link.item, State::Landed { commit }, effects);
                }
                self.phase = Phase::Idle;
            }
            Landing::Moved => self.give_back(),
            Landing::Overlap(files) => self.stopped(&chain, "uncommitted edits are in the way", files, effects),
            Landing::Failed(reason) => self.stopped(&chain, &reason, Vec::new(), effects),
        }
    }

    /// The item has its turn again, with what the resolver made or without. When
    /// it conflicts still and no try is left, that is told with the files.
    fn resolved(&mut self, id: ItemId, resolution: Resolution) {
        let Some(item) = self.item_mut(id).filter(|item| item.state == State::Resolving) else { return };
        item.resolved += 1;
        item.state = State::Queued;
        if let Resolution::Done(tip) = resolution {
            item.tip = tip;
        }
    }

    fn drop_item(&mut self, id: ItemId, effects: &mut Vec<Effect>) {
        if self.item(id).is_some_and(|item| item.state.may_be_dropped()) {
            self.settle(id, State::Dropped, effects);
        }
    }

    fn retry(&mut self, id: ItemId) {
        if let Some(item) = self.item_mut(id).filter(|item| item.state.may_be_retried()) {
            item.resolved = 0;
            item.replaced = false;
            item.state = State::Queued;
        }
    }

    /// Something outside stops a chain. Perhaps it is because of one of them only:
    /// then each is looked at alone, so that it stops nobody else.
    fn stopped(&mut self, chain: &[Link], reason: &str, files: Vec<String>, effects: &mut Vec<Effect>) {
        if chain.len() < 2 {
            return self.all_wait(reason, files, effects);
        }
        for link in chain {
            if let Some(item) = self.item_mut(link.item) {
                item.alone = true;
            }
        }
        self.give_back();
    }

    fn all_wait(&mut self, reason: &str, files: Vec<String>, effects: &mut Vec<Effect>) {
        let active = self.items.iter().filter(|item| item.state == State::Active);
        for id in active.map(|item| item.id).collect::<Vec<_>>() {
            self.settle(id, State::Waiting { reason: reason.to_owned(), files: files.clone() }, effects);
        }
        self.phase = Phase::Idle;
    }

    fn settle(&mut self, id: ItemId, state: State, effects: &mut Vec<Effect>) {
        self.set(id, state);
        effects.push(Effect::Settled(id));
        self.forget_oldest();
    }

    fn set(&mut self, id: ItemId, state: State) {
        if let Some(item) = self.item_mut(id) {
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
