use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::{Effect, Event, Machine};
use swarm_model::merge::queue::{Addition, ItemId, PAUSE_MS_MAX, Queue, Rules, State};
use swarm_model::merge::{Build, Landing, Resolution, Verdict};

/// Repository with one file, to which every item and every foreign commit appends a line. A commit is the list of its
/// lines, and an item conflicts with each line that its tip does not contain.
#[derive(Default)]
struct File {
    base: Vec<ItemId>,
    /// Lines that a resolver merged into the tip of an item.
    merged: BTreeMap<ItemId, Vec<ItemId>>,
}

fn name(lines: &[ItemId]) -> String {
    lines.iter().map(u64::to_string).collect::<Vec<_>>().join("+")
}

fn read(commit: &str) -> Vec<ItemId> {
    commit.split('+').filter_map(|line| line.parse().ok()).collect()
}

impl File {
    fn answer(&mut self, effect: &Effect) -> Event {
        match effect {
            Effect::ReadBase => Event::BaseRead(Ok(name(&self.base))),
            Effect::Build { item, onto } => {
                let (mut commit, known) = (read(onto), self.merged.get(item).cloned().unwrap_or_default());
                if commit.iter().any(|line| !known.contains(line)) {
                    return Event::Built(Build::Conflict(vec!["CHANGELOG".into()]));
                }
                commit.push(*item);
                Event::Built(Build::Made(name(&commit)))
            }
            Effect::Verify { .. } => Event::Verified(Verdict::Green),
            Effect::Land { from, to, .. } => {
                let is_current = self.base == read(from);
                if is_current {
                    self.base = read(to);
                }
                let is_landed = self.base.starts_with(&read(to));
                Event::Landed(if is_landed { Landing::Done(Vec::new()) } else { Landing::Moved })
            }
            // Always right.
            Effect::Resolve { item, onto, .. } => {
                self.merged.insert(*item, read(onto));
                Event::Resolved(*item, Resolution::Done(format!("{item} on {onto}")))
            }
            Effect::Settled(_) => unreachable!("is not answered"),
        }
    }
}

/// Effects that wait for their answers: the step of the chain, and the resolver.
#[derive(Default)]
struct Pending {
    step: Option<Effect>,
    resolver: Option<Effect>,
    resolvers: usize,
    /// Items whose resolvers wait for a place.
    unplaced: Vec<ItemId>,
}

impl Pending {
    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Settled(_) => {}
                Effect::Resolve { .. } => {
                    assert!(self.resolver.replace(effect).is_none(), "two resolvers at once");
                    self.resolvers += 1;
                }
                _ => assert!(self.step.replace(effect).is_none(), "two steps at once"),
            }
        }
    }
}

fn machine(count: u64, batch: usize, tries: u32) -> Machine {
    let (verify, resolver) = (Some("check".to_owned()), Some("resolve".to_owned()));
    let rules = Rules { batch, verify, resolver, resolver_tries: tries, ..Rules::default() };
    let mut queue = Machine::new(Queue { rules, ..Queue::default() });
    queue.on(Event::Pause, 0);
    for id in 0..count {
        queue.on(
            Event::Added(vec![Addition { name: format!("w{id}"), tip: format!("t{id}"), ..Addition::default() }]),
            id,
        );
    }
    queue
}

/// Steps at which something happens from outside.
#[derive(Default)]
struct Odds {
    /// Somebody else appends a line.
    moves: BTreeSet<usize>,
    /// The supervisor dies.
    crashes: BTreeSet<usize>,
    /// There is no place for a resolver that would start.
    full: BTreeSet<usize>,
    /// There is a place for one that waits.
    free: BTreeSet<usize>,
}

/// Runs the queue to its end. `first` decides at each step whether the resolver or the chain is answered first. A resolver that
/// waits gets a place at last.
fn run(queue: &mut Machine, first: &[bool], odds: &Odds) -> (File, usize) {
    let (mut file, mut pending) = (File::default(), Pending::default());
    pending.take(queue.on(Event::Resume, 0));
    for step in 0..5_000 {
        if odds.moves.contains(&step) {
            file.base.push(1_000 + u64::try_from(step).expect("small"));
        }
        let resolver_first = first.get(step % first.len().max(1)).copied().unwrap_or_default();
        let is_idle = pending.step.is_none() && pending.resolver.is_none();
        if !pending.unplaced.is_empty() && (is_idle || odds.free.contains(&step)) {
            let item = pending.unplaced.remove(0);
            assert!(queue.awaits_place(item) && queue.is_busy(), "{queue:?}");
            pending.take(queue.on(Event::Placed(item), 0));
            continue;
        }
        let chosen = match (pending.step.is_some(), pending.resolver.is_some()) {
            (false, false) => match queue.next_ms() {
                Some(at_ms) => {
                    pending.take(queue.on(Event::Woke, at_ms));
                    continue;
                }
                None => return (file, pending.resolvers),
            },
            (true, true) if resolver_first => pending.resolver.take(),
            (true, _) => pending.step.take(),
            (false, true) => pending.resolver.take(),
        };
        let chosen = chosen.expect("something is pending");
        if let Effect::Resolve { item, .. } = chosen
            && odds.full.contains(&step)
        {
            pending.resolvers -= 1;
            pending.unplaced.push(item);
            pending.take(queue.on(Event::Waits(item), 0));
            continue;
        }
        let event = file.answer(&chosen);
        if odds.crashes.contains(&step) {
            let journal = serde_json::to_string(&queue.kept()).expect("is written");
            *queue = Machine::new(serde_json::from_str(&journal).expect("is read"));
            pending = Pending { resolvers: pending.resolvers, ..Pending::default() };
            pending.take(queue.resume(0));
        } else {
            pending.take(queue.on(event, 0));
        }
    }
    panic!("no end: {queue:?}");
}

#[test]
fn items_that_all_conflict_land_with_one_try_each() {
    for count in 1..9 {
        for batch in [1, 3, 8] {
            for resolver_first in [false, true] {
                let mut queue = machine(count, batch, 1);
                let (file, resolvers) = run(&mut queue, &[resolver_first], &Odds::default());
                assert_eq!(file.base.len(), usize::try_from(count).expect("small"), "{queue:?}");
                let tries: Vec<u32> = queue.items.iter().map(|item| item.resolved).collect();
                assert_eq!(tries[0], 0);
                assert!(tries[1..].iter().all(|tries| *tries == 1), "{tries:?}");
                assert_eq!(resolvers, tries.len() - 1);
            }
        }
    }
}

#[test]
fn a_result_overtaken_by_the_base_is_no_try() {
    let mut queue = machine(2, 1, 1);
    // The base moves after each of the first results.
    let (file, resolvers) = run(&mut queue, &[true], &Odds { moves: [6, 11].into(), ..Odds::default() });
    assert!(file.base.contains(&1) && resolvers >= 2, "{:?} {resolvers}", file.base);
    assert_eq!(queue.items[1].resolved, 1);
}

#[test]
fn a_base_that_always_moves_ends_the_tries() {
    let mut queue = machine(1, 1, 1);
    let everywhere: BTreeSet<usize> = (0..5_000).collect();
    let (_, resolvers) = run(&mut queue, &[false], &Odds { moves: everywhere, ..Odds::default() });
    assert!(matches!(queue.items[0].state, State::Conflict { .. }), "{queue:?}");
    assert_eq!(resolvers, 6);
}

#[test]
fn a_conflict_that_is_left_lets_the_next_be_considered() {
    let mut queue = machine(3, 1, 1);
    let mut file = File { base: vec![1_000], ..File::default() };
    let mut pending = Pending::default();
    pending.take(queue.on(Event::Resume, 0));
    while let Some(effect) = pending.step.take().or_else(|| pending.resolver.take()) {
        let event = match &effect {
            Effect::Resolve { item: 0, .. } => Event::Resolved(0, Resolution::Failed("cannot".into())),
            other => file.answer(other),
        };
        pending.take(queue.on(event, 0));
    }
    let words: Vec<&str> = queue.items.iter().map(|item| item.state.word()).collect();
    assert_eq!((words, queue.resolving), (vec!["conflict", "landed", "landed"], None));
}

#[test]
fn a_held_item_that_was_dropped_can_be_retried() {
    let mut queue = machine(3, 1, 1);
    let (mut file, mut pending) = (File::default(), Pending::default());
    pending.take(queue.on(Event::Resume, 0));
    while let Some(effect) = pending.step.take() {
        let event = file.answer(&effect);
        pending.take(queue.on(event, 0));
    }
    assert!(queue.items[1].state == State::Resolving && queue.items[2].held, "{queue:?}");
    queue.on(Event::Drop(2), 0);
    assert!(!queue.items[2].held);
    pending.take(queue.on(Event::Retry { item: 2, caller: None, accepts: true }, 0));
    while let Some(effect) = pending.step.take().or_else(|| pending.resolver.take()) {
        let event = file.answer(&effect);
        pending.take(queue.on(event, 0));
    }
    assert_eq!(file.base, [0, 1, 2]);
}

#[test]
fn a_limit_of_the_provider_is_waited_for_and_is_no_try() {
    let (mut queue, mut now_ms) = (machine(2, 1, 1), 0);
    let mut file = File::default();
    let mut pending = Pending::default();
    pending.take(queue.on(Event::Resume, 0));
    let mut pauses = Vec::new();
    loop {
        while let Some(effect) = pending.step.take() {
            let event = file.answer(&effect);
            pending.take(queue.on(event, now_ms));
        }
        if pending.resolver.take().is_none() {
            break;
        }
        pending.take(queue.on(Event::Resolved(1, Resolution::Later("limit".into())), now_ms));
        if let Some(at_ms) = queue.next_ms() {
            assert!(queue.is_busy() && pending.step.is_none(), "it is paused");
            pauses.push((at_ms - now_ms) / 60_000);
            now_ms = at_ms;
            pending.take(queue.on(Event::Woke, now_ms));
        }
    }
    assert_eq!((&pauses[..7], pauses.len()), ([1, 2, 4, 8, 16, 30, 30].as_slice(), 20));
    assert!(matches!(queue.items[1].state, State::Conflict { .. }), "the last one was a try");
}

#[test]
fn a_pause_of_the_resolver_holds_no_other_conflict() {
    let mut queue = machine(3, 1, 1);
    let (mut file, mut pending) = (File::default(), Pending::default());
    let step = |queue: &mut Machine, pending: &mut Pending, file: &mut File| {
        while let Some(effect) = pending.step.take() {
            let event = file.answer(&effect);
            pending.take(queue.on(event, 0));
        }
    };
    pending.take(queue.on(Event::Resume, 0));
    step(&mut queue, &mut pending, &mut file);
    assert!(queue.items[2].held && pending.resolver.take().is_some(), "{queue:?}");
    pending.take(queue.on(Event::Resolved(1, Resolution::Later("limit".into())), 0));
    step(&mut queue, &mut pending, &mut file);
    assert_eq!((queue.resolving, queue.items[2].state.word()), (Some(2), "resolving"), "{queue:?}");
    assert_eq!(queue.items[1].reason(), Some("limit"), "it says why it is paused");
    let event = file.answer(&pending.resolver.take().expect("it resolves"));
    pending.take(queue.on(event, 0));
    step(&mut queue, &mut pending, &mut file);
    assert_eq!((file.base.as_slice(), queue.next_ms()), ([0, 2].as_slice(), Some(60_000)));
    // The paused one conflicts with that as well, and its resolver merges both.
    pending.take(queue.on(Event::Woke, 60_000));
    assert_eq!(queue.items[1].reason(), None);
    step(&mut queue, &mut pending, &mut file);
    let event = file.answer(&pending.resolver.take().expect("it resolves"));
    pending.take(queue.on(event, 60_000));
    step(&mut queue, &mut pending, &mut file);
    assert_eq!(file.base, [0, 2, 1]);
    assert_eq!((queue.items[1].work(), queue.items[1].tip.as_str()), ("t1", "1 on 0+2"));
}

/// Answers the chain until only resolvers are pending.
fn settle(queue: &mut Machine, pending: &mut Pending, file: &mut File) {
    while let Some(effect) = pending.step.take() {
        let event = file.answer(&effect);
        pending.take(queue.on(event, 0));
    }
}

/// Returns a queue in which the resolver of item 1 waits for a place, and that of item 2 works.
fn unplaced() -> (Machine, Pending, File) {
    let mut queue = machine(3, 1, 1);
    let (mut file, mut pending) = (File::default(), Pending::default());
    pending.take(queue.on(Event::Resume, 0));
    settle(&mut queue, &mut pending, &mut file);
    assert!(queue.items[2].held && pending.resolver.take().is_some(), "{queue:?}");
    pending.take(queue.on(Event::Waits(1), 0));
    settle(&mut queue, &mut pending, &mut file);
    assert_eq!((queue.resolving, queue.items[2].state.word()), (Some(2), "resolving"), "it holds no other conflict");
    (queue, pending, file)
}

#[test]
fn a_resolver_without_a_place_holds_nothing_and_begins_with_the_base_of_its_turn() {
    let (mut queue, mut pending, mut file) = unplaced();
    let waits = |queue: &Machine| (queue.items[1].state.word(), queue.items[1].reason().is_some(), queue.is_busy());
    assert_eq!(waits(&queue), ("queued", true, true));
    let event = file.answer(&pending.resolver.take().expect("it resolves"));
    pending.take(queue.on(event, 0));
    settle(&mut queue, &mut pending, &mut file);
    assert_eq!(file.base, [0, 2]);
    // However much time passes.
    for now_ms in [1_000, PAUSE_MS_MAX, 3 * PAUSE_MS_MAX] {
        assert!(queue.on(Event::Woke, now_ms).is_empty() && queue.wake_ms(now_ms) > Some(now_ms), "{queue:?}");
    }
    pending.take(queue.on(Event::Placed(1), 4 * PAUSE_MS_MAX));
    settle(&mut queue, &mut pending, &mut file);
    let Some(Effect::Resolve { item: 1, onto, .. }) = &pending.resolver else { panic!("{queue:?}") };
    assert_eq!((onto.as_str(), queue.items[1].reason(), queue.items[1].races), ("0+2", None, 0));
}

#[test]
fn an_item_whose_resolver_waits_for_a_place_can_be_dropped() {
    let (mut queue, mut pending, mut file) = unplaced();
    assert_eq!(queue.on(Event::Drop(1), 0), [Effect::Settled(1)]);
    assert!(!queue.awaits_place(1));
    assert_eq!(queue.on(Event::Placed(1), 0), [], "too late");
    pending.take(queue.on(Event::Retry { item: 1, caller: None, accepts: true }, 0));
    settle(&mut queue, &mut pending, &mut file);
    let event = file.answer(&pending.resolver.take().expect("it resolves"));
    pending.take(queue.on(event, 0));
    settle(&mut queue, &mut pending, &mut file);
    assert_eq!((file.base.as_slice(), queue.items[1].state.word()), ([0, 2].as_slice(), "resolving"));
}

#[test]
fn the_next_supervisor_asks_for_the_place_again_at_once() {
    let (mut file, mut pending, mut queue) = (File::default(), Pending::default(), machine(2, 1, 1));
    pending.take(queue.on(Event::Resume, 0));
    settle(&mut queue, &mut pending, &mut file);
    queue.on(Event::Waits(1), 0);
    let kept = queue.kept();
    assert_eq!((kept.items[1].later_ms, kept.items[1].state.word()), (None, "queued"));
    let mut queue = Machine::new(kept);
    pending = Pending::default();
    pending.take(queue.resume(0));
    settle(&mut queue, &mut pending, &mut file);
    assert!(matches!(pending.resolver, Some(Effect::Resolve { item: 1, .. })), "{queue:?}");
}

proptest! {
    /// With resolvers that are always right, all items land, each with one counted try at most, whatever the order of
    /// the answers, whoever else commits or dies meanwhile, and however long resolvers wait for a place.
    #[test]
    fn right_resolvers_land_everything(
        count in 1_u64..10,
        batch in 1_usize..5,
        first in proptest::collection::vec(any::<bool>(), 1..20),
        moves in proptest::collection::btree_set(0_usize..150, 0..5),
        crashes in proptest::collection::btree_set(0_usize..150, 0..6),
        full in proptest::collection::btree_set(0_usize..150, 0..60),
        free in proptest::collection::btree_set(0_usize..150, 0..20),
    ) {
        let mut queue = machine(count, batch, 1);
        let (file, _) = run(&mut queue, &first, &Odds { moves, crashes, full, free });
        for item in &queue.items {
            prop_assert!(matches!(item.state, State::Landed { .. } | State::Noop), "{:?}", item);
            prop_assert!(item.resolved <= 1, "{:?}", item);
            prop_assert!(!item.held && item.reason().is_none());
            prop_assert_eq!(file.base.iter().filter(|line| **line == item.id).count(), 1);
        }
    }
}
