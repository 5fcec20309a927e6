use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use swarm_model::merge::queue::{Addition, Rules};

/// Model of a repository, in which a commit is the list of the items that it contains.
#[derive(Clone, Debug, Default)]
struct World {
    base: Vec<ItemId>,
    /// Items whose commits fail the verification.
    bad: BTreeSet<ItemId>,
    /// Items that conflict with another item if that is below them.
    conflicts: BTreeMap<ItemId, ItemId>,
    /// Items whose landing is blocked by uncommitted edits.
    edited: BTreeSet<ItemId>,
    /// Numbers of verifications that fail although nothing is wrong.
    flakes: BTreeSet<usize>,
    verifications: usize,
    /// All states of the base so far.
    history: Vec<Vec<ItemId>>,
}

fn name(commit: &[ItemId]) -> String {
    commit.iter().map(u64::to_string).collect::<Vec<_>>().join("+")
}

fn read(commit: &str) -> Vec<ItemId> {
    commit.split('+').filter(|part| !part.is_empty()).map(|part| part.parse().expect("an id")).collect()
}

impl World {
    /// Returns the result of an effect.
    fn answer(&mut self, effect: &Effect) -> Event {
        match effect {
            Effect::ReadBase => Event::BaseRead(Ok(name(&self.base))),
            Effect::Build { item, onto } => {
                let mut commit = read(onto);
                if commit.contains(item) {
                    return Event::Built(Build::Nothing);
                }
                if self.conflicts.get(item).is_some_and(|other| commit.contains(other)) {
                    return Event::Built(Build::Conflict(vec!["f".into()]));
                }
                commit.push(*item);
                Event::Built(Build::Made(name(&commit)))
            }
            Effect::Verify { commit, of, fresh } => {
                self.verifications += 1;
                assert!(read(commit).contains(of) || (*fresh && self.base.starts_with(&read(commit))));
                let red = read(commit).iter().any(|item| self.bad.contains(item));
                let flake = self.flakes.contains(&self.verifications);
                Event::Verified(if red || flake { Verdict::Red("red".into()) } else { Verdict::Green })
            }
            Effect::Land { from, to, .. } => Event::Landed(self.land(&read(from), read(to))),
            Effect::Resolve { item, .. } => Event::Resolved(*item, Resolution::Failed("cannot".into())),
            Effect::Settled(_) => unreachable!("is not answered"),
        }
    }

    fn land(&mut self, from: &[ItemId], to: Vec<ItemId>) -> Landing {
        if self.base.starts_with(&to) {
            return Landing::Done(Vec::new());
        }
        if self.base != from {
            return Landing::Moved;
        }
        if to.iter().any(|item| self.edited.contains(item)) {
            return Landing::Overlap(vec!["f".into()]);
        }
        self.base.clone_from(&to);
        self.history.push(to);
        Landing::Done(Vec::new())
    }
}

/// Returns the step of the chain that waits for a result. There is never more than one.
fn waiting(effects: &[Effect]) -> Option<Effect> {
    let beside = |effect: &&Effect| !matches!(effect, Effect::Settled(_) | Effect::Resolve { .. });
    let asked: Vec<&Effect> = effects.iter().filter(beside).collect();
    assert!(asked.len() <= 1, "{asked:?}");
    asked.first().map(|effect| (*effect).clone())
}

/// Returns the items whose resolvers were started.
fn resolvers(effects: &[Effect]) -> Vec<ItemId> {
    let item = |effect: &Effect| if let Effect::Resolve { item, .. } = effect { Some(*item) } else { None };
    effects.iter().filter_map(item).collect()
}

fn add(queue: &mut Machine, count: u64) -> Vec<Effect> {
    let mut effects = Vec::new();
    for at_ms in 0..count {
        let id = queue.next;
        let added =
            Event::Added(vec![Addition { name: format!("w{id}"), tip: format!("t{id}"), ..Addition::default() }]);
        let more = queue.on(added, at_ms);
        if waiting(&more).is_some() {
            effects = more;
        }
    }
    effects
}

/// Lets the time pass until a paused item may be built.
fn wake(queue: &mut Machine) -> Option<Effect> {
    let at_ms = queue.next_ms()?;
    waiting(&queue.on(Event::Woke, at_ms))
}

/// Runs until nothing waits. Crashes and restarts at the steps in `crashes`.
fn run(queue: &mut Machine, world: &mut World, effects: &[Effect], crashes: &BTreeSet<usize>) {
    let mut asked = waiting(effects);
    for step in 0..5_000 {
        let Some(effect) = asked.or_else(|| wake(queue)) else { return };
        let event = world.answer(&effect);
        if crashes.contains(&step) {
            // The effect was carried out, but its result is lost in the crash.
            let journal = serde_json::to_string(&queue.kept()).expect("is written");
            *queue = Machine::new(serde_json::from_str(&journal).expect("is read"));
            asked = waiting(&queue.resume(0));
        } else {
            asked = waiting(&queue.on(event, 0));
        }
    }
    panic!("no end: {queue:?}");
}

fn with_rules(batch: usize, verify_each: bool) -> Machine {
    let rules = Rules { batch, verify_each, verify: Some("check".to_owned()), ..Rules::default() };
    Machine::new(Queue { rules, ..Queue::default() })
}

fn landed(queue: &Queue) -> Vec<ItemId> {
    let is_landed = |item: &&Item| matches!(item.state, State::Landed { .. });
    queue.items.iter().filter(is_landed).map(|item| item.id).collect()
}

#[test]
fn one_bad_of_32_in_batches_of_8_costs_twelve_verifications_at_most() {
    for bad in 0..32 {
        let (mut queue, mut world) = (with_rules(8, false), World { bad: [bad].into(), ..World::default() });
        queue.on(Event::Pause, 0);
        add(&mut queue, 32);
        let effects = queue.on(Event::Resume, 0);
        run(&mut queue, &mut world, &effects, &BTreeSet::new());
        assert_eq!((landed(&queue).len(), world.base.len()), (31, 31));
        assert!(matches!(queue.items[usize::try_from(bad).expect("small")].state, State::Rejected { .. }));
        assert!(world.verifications <= 12, "{} for {bad}", world.verifications);
    }
}

#[test]
fn a_flaky_verification_rejects_nothing_and_is_recorded() {
    let mut queue = with_rules(4, false);
    let mut world = World { flakes: [1].into(), ..World::default() };
    queue.on(Event::Pause, 0);
    add(&mut queue, 4);
    let effects = queue.on(Event::Resume, 0);
    run(&mut queue, &mut world, &effects, &BTreeSet::new());
    assert_eq!(landed(&queue), [0, 1, 2, 3]);
    assert_eq!(queue.items.iter().filter(|item| item.flaky).count(), 1);
}

#[test]
fn priority_comes_before_age() {
    let mut queue = with_rules(1, false);
    queue.on(Event::Pause, 0);
    for (number, priority) in [0, 5, 0, 9].into_iter().enumerate() {
        queue.on(
            Event::Added(vec![Addition {
                name: number.to_string(),
                tip: String::new(),
                priority,
                ..Addition::default()
            }]),
            0,
        );
    }
    let (mut world, effects) = (World::default(), queue.on(Event::Resume, 0));
    run(&mut queue, &mut world, &effects, &BTreeSet::new());
    assert_eq!(world.base, [3, 1, 0, 2]);
}

#[test]
fn a_conflict_with_another_item_of_a_batch_is_built_alone_and_the_others_continue() {
    let mut queue = with_rules(8, false);
    let mut world = World { conflicts: [(1, 0)].into(), ..World::default() };
    queue.on(Event::Pause, 0);
    add(&mut queue, 3);
    let effects = queue.on(Event::Resume, 0);
    run(&mut queue, &mut world, &effects, &BTreeSet::new());
    assert_eq!(world.base, [0, 2]);
    assert_eq!(queue.items[1].state, State::Conflict { files: vec!["f".into()] });
    // Only a person can retry the item.
    assert_eq!(waiting(&queue.on(Event::Pause, 0)), None);
    assert_eq!(waiting(&queue.on(Event::Retry { item: 1, caller: None, accepts: true }, 0)), None);
    assert_eq!(waiting(&queue.on(Event::Resume, 0)), Some(Effect::ReadBase));
}

#[test]
fn after_the_tries_of_the_resolver_a_person_must_act() {
    let mut queue = with_rules(1, false);
    queue.queue.rules.resolver = Some("resolve".to_owned());
    let mut world = World { conflicts: [(0, 7)].into(), base: vec![7], ..World::default() };
    let mut effects = add(&mut queue, 2);
    for tried in 0..2 {
        // The other items continue while the resolver runs.
        let mut at_work = Vec::new();
        while let Some(effect) = waiting(&effects) {
            effects = queue.on(world.answer(&effect), 0);
            at_work.extend(resolvers(&effects));
        }
        assert_eq!((at_work, landed(&queue)), (vec![0], vec![1]));
        assert_eq!((queue.items[0].resolved, queue.items[0].state.word()), (tried, "resolving"));
        assert_eq!(waiting(&queue.on(Event::Drop(0), 0)), None, "the resolver is running");
        effects = queue.on(Event::Resolved(0, Resolution::Failed("cannot".into())), 0);
    }
    run(&mut queue, &mut world, &effects, &BTreeSet::new());
    assert_eq!(queue.items[0].state, State::Conflict { files: vec!["f".into()] });
    // A retry resets the tries, and the tip of the resolver lands.
    let mut effects = queue.on(Event::Retry { item: 0, caller: None, accepts: true }, 0);
    while let Some(effect) = waiting(&effects) {
        effects = queue.on(world.answer(&effect), 0);
    }
    world.conflicts.clear();
    let effects = queue.on(Event::Resolved(0, Resolution::Done("other tip".into())), 0);
    run(&mut queue, &mut world, &effects, &BTreeSet::new());
    assert_eq!((queue.items[0].tip.as_str(), landed(&queue)), ("other tip", vec![0, 1]));
}

#[test]
fn only_the_item_that_touches_uncommitted_edits_waits() {
    let mut queue = with_rules(8, false);
    let mut world = World { edited: [1].into(), ..World::default() };
    queue.on(Event::Pause, 0);
    add(&mut queue, 3);
    let effects = queue.on(Event::Resume, 0);
    run(&mut queue, &mut world, &effects, &BTreeSet::new());
    assert_eq!(landed(&queue), [0, 2]);
    assert!(matches!(&queue.items[1].state, State::Waiting { files, .. } if files == &["f"]));
}

#[test]
fn a_verification_without_result_is_repeated_and_then_the_item_waits() {
    let mut queue = with_rules(1, false);
    let mut effects = add(&mut queue, 1);
    let mut verifications = Vec::new();
    let mut world = World::default();
    while let Some(effect) = waiting(&effects) {
        let event = if let Effect::Verify { fresh, .. } = effect {
            verifications.push(fresh);
            Event::Verified(Verdict::Unknown("killed".into()))
        } else {
            world.answer(&effect)
        };
        effects = queue.on(event, 0);
    }
    assert_eq!(verifications, [false, false, true], "leftovers of earlier ones may be the cause");
    assert!(matches!(&queue.items[0].state, State::Waiting { reason, .. } if reason == "killed"));
}

#[test]
fn a_key_has_one_item_however_often_and_in_which_company_it_is_added() {
    let mut queue = with_rules(8, false);
    let one = |name: &str, key: Option<&str>| {
        let (name, tip, key) = (name.to_owned(), format!("tip of {name}"), key.map(str::to_owned));
        Addition { name, tip, key, ..Addition::default() }
    };
    let mut add = |additions: &[Addition]| {
        let (ids, new) = queue.number(additions.to_vec());
        queue.on(Event::Added(new), 0);
        ids
    };
    let (a, b) = (one("a", Some("1")), one("b", Some("2")));
    assert_eq!(add(&[a.clone(), b.clone(), a.clone()]), [0, 1, 0]);
    assert_eq!(add(&[one("c", Some("1")), one("d", Some("3")), b, one("e", Some("3"))]), [0, 2, 1, 2]);
    // Without a key, each is a new item.
    assert_eq!(add(&[one("f", None), one("f", None), a]), [3, 4, 0]);
    let names: Vec<&str> = queue.items.iter().map(|item| item.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "d", "f", "f"]);
}

#[test]
fn an_item_cannot_be_dropped_while_it_lands() {
    let mut queue = with_rules(1, false);
    queue.queue.rules.verify = None;
    let mut world = World::default();
    let mut effects = add(&mut queue, 1);
    while let Some(effect) = waiting(&effects) {
        queue.on(Event::Drop(0), 0);
        effects = queue.on(world.answer(&effect), 0);
    }
    assert_eq!(landed(&queue), [0]);
}

proptest! {
    /// Invariants of the queue for any batch size, bad items, conflicts, crashes and foreign commits: every good item
    /// lands exactly once, bad items never land, the base only moves forward, and every item settles.
    #[test]
    fn good_items_land_once_and_bad_items_never(
        count in 1_u64..20,
        batch in 1_usize..9,
        verify_each in any::<bool>(),
        bad in proptest::collection::btree_set(0_u64..20, 0..4),
        conflicts in proptest::collection::btree_map(0_u64..20, 0_u64..20, 0..4),
        crashes in proptest::collection::btree_set(0_usize..120, 0..20),
        moves in proptest::collection::btree_set(0_usize..120, 0..6),
    ) {
        let mut queue = with_rules(batch, verify_each);
        let conflicts: BTreeMap<_, _> = conflicts.into_iter().filter(|(item, other)| item != other).collect();
        let mut world = World { bad: bad.clone(), conflicts: conflicts.clone(), ..World::default() };
        queue.on(Event::Pause, 0);
        add(&mut queue, count);
        let mut asked = waiting(&queue.on(Event::Resume, 0));
        let mut step = 0;
        while let Some(effect) = asked.or_else(|| wake(&mut queue)) {
            prop_assert!(step < 5_000, "no end: {:?}", queue);
            if moves.contains(&step) {
                // Another process commits to the base.
                world.base.push(1_000 + u64::try_from(step).expect("small"));
            }
            let before = world.base.clone();
            let event = world.answer(&effect);
            prop_assert!(world.base.starts_with(&before), "the base was moved back");
            asked = if crashes.contains(&step) {
                let journal = serde_json::to_string(&*queue).expect("is written");
                queue = Machine::new(serde_json::from_str(&journal).expect("is read"));
                waiting(&queue.resume(0))
            } else {
                waiting(&queue.on(event, 0))
            };
            step += 1;
        }
        let on_base: Vec<ItemId> = world.base.iter().copied().filter(|item| *item < 1_000).collect();
        let once: BTreeSet<ItemId> = on_base.iter().copied().collect();
        prop_assert_eq!(once.len(), on_base.len(), "landed twice");
        for item in &queue.items {
            prop_assert!(item.state.is_settled(), "{:?}", item);
            let landed = matches!(item.state, State::Landed { .. } | State::Noop);
            prop_assert_eq!(landed, once.contains(&item.id), "{:?}", item);
            let rejected = matches!(item.state, State::Rejected { .. });
            prop_assert!(!rejected || bad.contains(&item.id), "{:?}", item);
            prop_assert!(!landed || !bad.contains(&item.id), "{:?}", item);
            let free = !bad.contains(&item.id) && !conflicts.contains_key(&item.id);
            prop_assert!(!free || landed, "a good item did not land: {:?}", item);
        }
        // Every state of the base that the queue created passes the verification.
        for state in &world.history {
            prop_assert!(state.iter().all(|item| !bad.contains(item)));
        }
    }
}

#[test]
fn nothing_lands_from_a_queue_that_was_paused_on_the_way() {
    let mut machine = Machine::default();
    let mut effects = add(&mut machine, 2);
    let mut world = World::default();
    machine.on(Event::Pause, 0);
    while let Some(step) = waiting(&effects) {
        assert!(!matches!(step, Effect::Land { .. }), "{step:?}");
        effects = machine.on(world.answer(&step), 0);
    }
    assert!(machine.items.iter().all(|item| item.state == State::Queued) && !machine.is_busy());
    machine.on(Event::Drop(0), 0);
    effects = machine.on(Event::Resume, 0);
    while !matches!(waiting(&effects), Some(Effect::Land { of: 1, .. })) {
        effects = machine.on(world.answer(&waiting(&effects).expect("a step")), 0);
    }
}

#[test]
fn edits_that_come_back_let_an_item_pause_between_its_tries() {
    let mut machine = Machine::default();
    let mut effects = add(&mut machine, 1);
    let (mut world, edits) = (World::default(), vec!["f".to_owned()]);
    let mut pauses = Vec::new();
    for _ in 0..9 {
        while !matches!(waiting(&effects), Some(Effect::Land { .. })) {
            effects = machine.on(world.answer(&waiting(&effects).expect("a step")), 0);
        }
        machine.on(Event::Landed(Landing::Overlap(edits.clone())), 0);
        effects = machine.on(Event::Cleared(Obstacle::Edits(edits.clone())), 0);
        let later_ms = machine.items[0].later_ms;
        assert_eq!(waiting(&effects).is_none(), later_ms.is_some());
        pauses.push(later_ms.unwrap_or(0));
        if let Some(later_ms) = later_ms {
            effects = machine.on(Event::Woke, later_ms);
        }
    }
    assert_eq!(pauses, [0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
}

#[test]
fn an_item_continues_once_no_other_git_is_at_work() {
    let mut machine = Machine::default();
    let mut effects = add(&mut machine, 1);
    let mut world = World::default();
    let file = |name: &str| Obstacle::File(format!("/repo/.git/{name}"));
    for (times, name) in ["index.lock", "rebase-merge"].into_iter().enumerate() {
        while !matches!(waiting(&effects), Some(Effect::Land { .. })) {
            effects = machine.on(world.answer(&waiting(&effects).expect("a step")), 0);
        }
        let Obstacle::File(path) = file(name) else { unreachable!() };
        machine.on(Event::Landed(Landing::Busy { reason: name.to_owned(), file: path }), 0);
        assert_eq!((machine.items[0].reason(), machine.items[0].obstacle()), (Some(name), Some(&file(name))));
        machine.on(Event::Cleared(file("other")), 0);
        assert!(machine.items[0].obstacle().is_some() && machine.is_busy(), "the supervisor stays");
        effects = machine.on(Event::Cleared(file(name)), 0);
        // The second time, others have their turn first.
        assert_eq!(machine.items[0].later_ms, (times > 0).then_some(CONTINUED_MS));
    }
    let text = serde_json::to_string(&file("index.lock")).expect("text");
    assert_eq!(serde_json::from_str::<Obstacle>(&text).expect("read"), file("index.lock"));
}

#[test]
fn an_item_continues_once_nothing_is_left_of_its_failed_landing() {
    let mut machine = Machine::default();
    let mut effects = add(&mut machine, 1);
    let mut world = World::default();
    while !matches!(waiting(&effects), Some(Effect::Land { .. })) {
        effects = machine.on(world.answer(&waiting(&effects).expect("a step")), 0);
    }
    machine.on(Event::Landed(Landing::Stuck("locked".into())), 0);
    let waits = |machine: &Machine| machine.items[0].obstacle() == Some(&Obstacle::Leftovers);
    assert!(waits(&machine) && machine.is_busy(), "the supervisor stays");
    machine.on(Event::Cleared(Obstacle::Edits(Vec::new())), 0);
    assert!(waits(&machine));
    assert!(waiting(&machine.on(Event::Cleared(Obstacle::Leftovers), 0)).is_some());
    // A supervisor that was killed meanwhile continues in the same way.
    let text = serde_json::to_string(&Obstacle::Leftovers).expect("text");
    assert_eq!(serde_json::from_str::<Obstacle>(&text).expect("read"), Obstacle::Leftovers);
}
