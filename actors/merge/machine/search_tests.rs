use std::collections::BTreeSet;
use std::ops::Deref as _;

use super::super::{Change, Effect, Event, Machine};
use swarm_model::merge::queue::{Addition, ItemId, Obstacle, Queue, Rules, State};
use swarm_model::merge::{Build, Landing, Verdict};

/// Repository whose base fails the verification unless it contains the item that mends it.
#[derive(Default)]
struct World {
    base: Vec<ItemId>,
    is_red: bool,
    mender: Option<ItemId>,
    bad: BTreeSet<ItemId>,
    /// Verified commits, with whether the directory was fresh.
    verified: Vec<(String, bool)>,
}

fn name(commit: &[ItemId]) -> String {
    format!("c{}", commit.iter().map(|item| format!("+{item}")).collect::<String>())
}

fn read(commit: &str) -> Vec<ItemId> {
    commit.split('+').skip(1).map(|item| item.parse().expect("an id")).collect()
}

impl World {
    fn answer(&mut self, effect: &Effect) -> Event {
        match effect {
            Effect::ReadBase => Event::BaseRead(Ok(name(&self.base))),
            Effect::Build { item, onto } => {
                let commit = [read(onto), vec![*item]].concat();
                Event::Built(Build::Made(name(&commit)))
            }
            Effect::Verify { commit, fresh, .. } => {
                self.verified.push((commit.clone(), *fresh));
                let commit = read(commit);
                let is_mended = !self.is_red || self.mender.is_some_and(|mender| commit.contains(&mender));
                let is_good = is_mended && !commit.iter().any(|item| self.bad.contains(item));
                Event::Verified(if is_good { Verdict::Green } else { Verdict::Red("exit code 1".into()) })
            }
            Effect::Land { to, .. } => {
                self.base = read(to);
                Event::Landed(Landing::Done(Vec::new()))
            }
            Effect::Resolve { .. } | Effect::Settled(_) => unreachable!("has no resolver, or is not answered"),
        }
    }

    fn run(&mut self, queue: &mut Machine, event: Event) {
        let mut effects = queue.on(event, 0);
        while let Some(effect) = effects.iter().find(|effect| !matches!(effect, Effect::Settled(_))) {
            let event = self.answer(effect);
            effects = queue.on(event, 0);
        }
    }
}

fn machine(count: u64, batch: usize) -> Machine {
    let rules = Rules { batch, verify: Some("check".to_owned()), ..Rules::default() };
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

fn words(queue: &Queue) -> Vec<&'static str> {
    queue.items.iter().map(|item| item.state.word()).collect()
}

#[test]
fn on_a_base_that_fails_the_items_wait_and_the_base_is_verified_once() {
    let (mut queue, mut world) = (machine(3, 1), World { is_red: true, ..World::default() });
    world.run(&mut queue, Event::Resume);
    assert_eq!(words(&queue), ["waiting"; 3]);
    let verified: Vec<_> = world.verified.iter().map(|(commit, fresh)| (commit.as_str(), *fresh)).collect();
    assert_eq!(verified, [("c+0", false), ("c", true), ("c", true), ("c+1", false), ("c+2", false)]);
    let why = "the base itself does not pass: exit code 1";
    assert!(queue.items.iter().all(|item| item.state.reason() == Some(why)), "{queue:?}");
    assert_eq!(queue.items[2].obstacle(), Some(&Obstacle::Base("c".into())));
    assert!(queue.is_busy(), "it continues by itself");
    // The base is mended by somebody else.
    world.base.push(90);
    world.is_red = false;
    world.run(&mut queue, Event::Cleared(Obstacle::Base("c".into())));
    assert_eq!(words(&queue), ["landed"; 3]);
}

#[test]
fn the_item_that_mends_the_base_lands_and_the_others_continue() {
    for batch in [1, 3] {
        let (mut queue, mut world) = (machine(3, batch), World { is_red: true, ..World::default() });
        world.mender = Some(1);
        world.bad = [2].into();
        world.run(&mut queue, Event::Resume);
        let expected = if batch == 1 { ["waiting", "landed", "rejected"] } else { ["landed", "landed", "rejected"] };
        assert_eq!(words(&queue)[1..], expected[1..], "{batch}: {queue:?}");
        world.run(&mut queue, Event::Cleared(Obstacle::Base("c".into())));
        assert_eq!(words(&queue), ["landed", "landed", "rejected"], "{batch}");
    }
}

#[test]
fn a_retry_verifies_a_base_again_that_failed() {
    let (mut queue, mut world) = (machine(1, 1), World { is_red: true, ..World::default() });
    world.run(&mut queue, Event::Resume);
    assert_eq!(world.verified.len(), 3);
    world.run(&mut queue, Event::Retry { item: 0, caller: None, accepts: true });
    assert_eq!((words(&queue), world.verified.len()), (vec!["waiting"], 6));
    // What made it fail was outside of the repository, and only the item is bad now.
    world.is_red = false;
    world.bad = [0].into();
    world.run(&mut queue, Event::Retry { item: 0, caller: None, accepts: true });
    assert_eq!(words(&queue), ["rejected"]);
}

#[test]
fn a_retry_by_other_rules_verifies_by_these_and_keeps_the_commit() {
    let (mut queue, mut world) = (machine(2, 1), World { is_red: true, ..World::default() });
    world.run(&mut queue, Event::Resume);
    let before = queue.items[0].clone();
    assert_eq!(words(&queue), ["waiting"; 2]);
    let other = Rules { verify: Some("other".into()), ..before.rules.clone() };
    world.is_red = false;
    world.run(&mut queue, Event::Again(0, ruled(other.clone())));
    let after = &queue.items[0];
    assert_eq!((words(&queue), after.verified_by.as_deref()), (vec!["landed", "waiting"], Some("other")));
    assert_eq!((&after.tip, &after.key, after.id), (&before.tip, &before.key, before.id));
    // An item that is queued again already only gets the rules; one that has landed keeps its own.
    queue.on(Event::Pause, 0);
    queue.on(Event::Again(1, Change::default()), 0);
    queue.on(Event::Again(1, ruled(other.clone())), 0);
    queue.on(Event::Again(0, ruled(before.rules)), 0);
    assert_eq!(queue.items.iter().map(|item| &item.rules).collect::<Vec<_>>(), [&other; 2]);
    assert_eq!(words(&queue), ["landed", "queued"]);
}

#[test]
fn a_change_of_an_item_under_way_discards_its_step_and_keeps_a_landing() {
    let other = Rules { batch: 1, verify: Some("other".into()), ..Rules::default() };
    // Steps of a red item: base, build, item, base, base; those of a green one: base, build, item, landing.
    for (is_red, step) in [(true, 0), (true, 1), (true, 2), (true, 3), (true, 4), (false, 2), (false, 3)] {
        let (mut queue, mut world) = (machine(1, 1), World { is_red, ..World::default() });
        let mut effects = queue.on(Event::Resume, 0);
        for _ in 0..step {
            effects = queue.on(world.answer(&effects[0]), 0);
        }
        let answer = world.answer(&effects[0]);
        assert_eq!(words(&queue), ["active"]);
        assert!(queue.on(Event::Again(0, ruled(other.clone())), 0).is_empty());
        // The command that replaces it passes.
        world.is_red = false;
        world.run(&mut queue, answer);
        let by = if (is_red, step) == (false, 3) { "check" } else { "other" };
        let known = queue.checked.as_ref().map(|known| (known.command.as_str(), known.reason.is_none()));
        assert_eq!(
            (words(&queue), queue.items[0].verified_by.as_deref()),
            (vec!["landed"], Some(by)),
            "{is_red} {step}"
        );
        assert_eq!(known, (by == "other").then_some(("other", true)), "{is_red} {step}");
    }
}

#[test]
fn after_a_crash_of_a_landing_its_base_counts_as_unverified() {
    let by = |queue: &Machine| queue.items[0].caller.clone();
    let caller = |key: &str| Change { caller: Some(key.into()), ..Change::default() };
    for (crashes, is_known) in [(false, true), (true, false)] {
        let (mut queue, mut world) = (machine(1, 1), World::default());
        let mut effects = queue.on(Event::Resume, 0);
        while !matches!(effects[0], Effect::Land { .. }) {
            effects = queue.on(world.answer(&effects[0]), 0);
        }
        let answer = world.answer(&effects[0]);
        if crashes {
            queue.on(Event::Again(0, caller("another")), 0);
            queue = Machine::new(queue.deref().clone());
            assert_eq!(queue.resume(0), effects);
        }
        queue.on(answer, 0);
        assert_eq!((words(&queue), by(&queue).is_some()), (vec!["landed"], crashes));
        assert_eq!(queue.checked.is_some(), is_known, "crashes: {crashes}");
    }
}

#[test]
fn a_run_that_continues_changes_no_decision() {
    for decided in [State::Dropped, State::Rejected { reason: "r".into() }, State::Conflict { files: Vec::new() }] {
        let mut queue = machine(1, 1).deref().clone();
        queue.items[0].state = decided.clone();
        let mut queue = Machine::new(queue);
        for change in [Change::default(), ruled(Rules::default())] {
            queue.on(Event::Again(0, change), 0);
            assert_eq!(queue.items[0].state, decided);
        }
        queue.on(Event::Retry { item: 0, caller: None, accepts: false }, 0);
        assert_eq!(queue.items[0].state, State::Queued, "a person or an agent retries it");
    }
}

#[test]
fn another_caller_of_an_item_under_way_has_its_own_verdict() {
    let (mut queue, mut world) = (machine(2, 2), World { bad: [0].into(), ..World::default() });
    let mut effects = queue.on(Event::Resume, 0);
    for _ in 0..3 {
        effects = queue.on(world.answer(&effects[0]), 0);
    }
    assert!(matches!(effects[..], [Effect::Verify { .. }]), "{effects:?}");
    let answer = world.answer(&effects[0]);
    queue.on(Event::Again(0, Change { rules: None, caller: Some("other".into()) }), 0);
    let next = queue.on(answer, 0);
    // Both are built again, each for its own caller.
    assert_eq!((next, words(&queue)), (vec![Effect::ReadBase], vec!["active", "queued"]));
    world.run(&mut queue, Event::BaseRead(Ok("c".into())));
    assert_eq!(words(&queue), ["rejected", "landed"]);
}

#[test]
fn a_base_that_failed_once_and_then_passed_excuses_no_item() {
    let (mut queue, mut world) = (machine(1, 1), World { bad: [0].into(), ..World::default() });
    let mut effects = queue.on(Event::Resume, 0);
    let mut of_base = 0;
    while let Some(effect) = effects.iter().find(|effect| !matches!(effect, Effect::Settled(_))) {
        of_base += u32::from(matches!(effect, Effect::Verify { commit, .. } if commit == "c"));
        let is_flake = of_base == 1 && matches!(effect, Effect::Verify { .. });
        let event = if is_flake { Event::Verified(Verdict::Red("flake".into())) } else { world.answer(effect) };
        effects = queue.on(event, 0);
    }
    assert_eq!((words(&queue), of_base), (vec!["rejected"], 2), "{queue:?}");
    assert!(queue.checked.as_ref().is_some_and(|base| base.reason.is_none()));
}

#[test]
fn a_base_passes_for_one_caller_and_not_for_another() {
    let (mut queue, mut world) = (machine(0, 1), World::default());
    let add = |name: &str| {
        let (name, tip, caller) = (name.to_owned(), format!("tip of {name}"), Some(format!("as {name}")));
        Event::Added(vec![Addition { name, tip, caller, ..Addition::default() }])
    };
    world.run(&mut queue, Event::Resume);
    world.run(&mut queue, add("one"));
    assert_eq!(words(&queue), ["landed"]);
    // The second caller lacks what the command needs, so that nothing passes.
    world.is_red = true;
    world.run(&mut queue, add("two"));
    assert_eq!(words(&queue), ["landed", "waiting"], "{queue:?}");
    // Nor does its failure count for the first caller.
    world.is_red = false;
    world.bad = [2].into();
    world.run(&mut queue, add("one"));
    assert_eq!(words(&queue), ["landed", "waiting", "rejected"], "{queue:?}");
}

#[test]
fn an_item_that_is_replaced_no_longer_continues_and_says_so() {
    let (mut queue, mut world) = (machine(1, 1), World { is_red: true, ..World::default() });
    world.run(&mut queue, Event::Resume);
    assert!(queue.items[0].obstacle().is_some());
    let again = Addition { name: "w0".to_owned(), tip: "t".to_owned(), ..Addition::default() };
    let effects = queue.on(Event::Added(vec![again]), 0);
    assert!(effects.contains(&Effect::Settled(0)) && queue.items[0].obstacle().is_none(), "{effects:?}");
}

#[test]
fn what_landed_is_a_base_that_passes() {
    let (mut queue, mut world) = (machine(2, 1), World { bad: [1].into(), ..World::default() });
    world.run(&mut queue, Event::Resume);
    assert_eq!(words(&queue), ["landed", "rejected"]);
    let verified: Vec<_> = world.verified.iter().map(|(commit, fresh)| (commit.as_str(), *fresh)).collect();
    // The second failure, which decides, is in a fresh directory.
    assert_eq!(verified, [("c+0", false), ("c+0+1", false), ("c+0+1", true)]);
}

#[test]
fn an_item_continues_by_itself_a_limited_number_of_times() {
    let (mut queue, mut world) = (machine(1, 1), World { is_red: true, ..World::default() });
    world.run(&mut queue, Event::Resume);
    for moved in 1..=60 {
        let Some(obstacle) = queue.items[0].obstacle().cloned() else {
            assert_eq!(moved, 51);
            break;
        };
        world.base.push(100 + moved);
        world.run(&mut queue, Event::Cleared(obstacle));
    }
    assert!(matches!(queue.items[0].state, State::Waiting { .. }) && !queue.is_busy());
}

#[test]
fn a_verification_that_moves_the_base_itself_ends_in_waiting() {
    let (mut queue, mut world) = (machine(1, 1), World::default());
    let (mut now_ms, mut pauses) = (0, Vec::new());
    let mut effects = queue.on(Event::Resume, 0);
    loop {
        if let Some(effect) = effects.iter().find(|effect| !matches!(effect, Effect::Settled(_))) {
            let event = match effect {
                Effect::Land { .. } => Event::Landed(Landing::Moved),
                other => world.answer(other),
            };
            effects = queue.on(event, now_ms);
        } else if let Some(at_ms) = queue.next_ms() {
            pauses.push((at_ms - now_ms) / 1_000);
            now_ms = at_ms;
            effects = queue.on(Event::Woke, now_ms);
        } else {
            break;
        }
    }
    // The first two candidates follow each other at once.
    assert_eq!((pauses, world.verified.len()), (vec![1, 2, 4, 8, 16, 32, 60, 60], 10));
    let why = "the base moved 10 times while the work was on its way; check whether 'check' itself commits to it";
    assert_eq!((queue.items[0].state.word(), queue.items[0].state.reason()), ("waiting", Some(why)));
    world.run(&mut queue, Event::Retry { item: 0, caller: None, accepts: true });
    assert_eq!(words(&queue), ["landed"]);
}

#[test]
fn a_worker_may_try_once_more_to_mend_the_base_if_it_is_the_only_one_that_fails() {
    let (mut queue, mut world) = (machine(0, 1), World { is_red: true, ..World::default() });
    queue.on(Event::Resume, 0);
    let mut add = |name: &str, world: &mut World| {
        let (name, tip) = (name.to_owned(), "tip".to_owned());
        world.run(&mut queue, Event::Added(vec![Addition { name, tip, mends: true, ..Addition::default() }]));
        queue.items.last().expect("it was added").state.clone()
    };
    let reason = "exit code 1; the base itself does not pass either".to_owned();
    assert_eq!(add("fixes", &mut world), State::Rejected { reason });
    // It knows what fails by now, so further attempts are of no use. Others need none at all.
    for name in ["fixes", "fixes", "other", "fixes"] {
        let state = add(name, &mut world);
        assert_eq!(state.reason(), Some("the base itself does not pass: exit code 1"), "{state:?}");
        assert_eq!(state.word(), "waiting");
    }
    let base_checks = world.verified.iter().filter(|(commit, _)| commit == "c").count();
    assert_eq!(base_checks, 2, "the base is found to fail once, by two failures");
    world.mender = Some(5);
    assert_eq!(add("fixes", &mut world).word(), "landed");
}

#[test]
fn a_worker_that_knows_what_fails_waits_although_the_base_has_moved_since() {
    let (mut queue, mut world) = (machine(0, 1), World { is_red: true, ..World::default() });
    queue.on(Event::Resume, 0);
    let mut add = |name: &str, verify: Option<&str>, world: &mut World| {
        let rules = Rules { batch: 1, verify: verify.map(str::to_owned), ..Rules::default() };
        let (name, tip, rules) = (name.to_owned(), "tip".to_owned(), Some(rules));
        world.run(&mut queue, Event::Added(vec![Addition { name, tip, rules, mends: true, ..Addition::default() }]));
        queue.items.last().expect("it was added").state.word()
    };
    assert_eq!(add("fixes", Some("check"), &mut world), "rejected");
    assert_eq!(add("other", None, &mut world), "landed");
    assert_eq!(add("fixes", Some("check"), &mut world), "waiting");
}

#[test]
fn a_command_that_is_not_found_on_the_base_costs_no_attempt() {
    for code in [126, 127] {
        let reason = format!("'maek test' exited with code {code}; its output is in 0.log");
        let (mut queue, mut world) = (machine(0, 1), World { is_red: true, ..World::default() });
        queue.on(Event::Resume, 0);
        let added = Addition { name: "w".to_owned(), tip: "t".to_owned(), mends: true, ..Addition::default() };
        let mut effects = queue.on(Event::Added(vec![added]), 0);
        while let Some(effect) = effects.iter().find(|effect| !matches!(effect, Effect::Settled(_))) {
            let event = match effect {
                Effect::Verify { .. } => Event::Verified(Verdict::Red(reason.clone())),
                other => world.answer(other),
            };
            effects = queue.on(event, 0);
        }
        let why = format!("the base itself does not pass: {reason}");
        assert_eq!((words(&queue), queue.items[0].state.reason()), (vec!["waiting"], Some(why.as_str())));
    }
}

#[test]
fn a_worker_that_adds_the_command_may_try_again() {
    let (mut queue, mut world) = (machine(0, 1), World { is_red: true, ..World::default() });
    queue.on(Event::Resume, 0);
    let added = Addition { name: "w".to_owned(), tip: "t".to_owned(), mends: true, ..Addition::default() };
    let mut effects = queue.on(Event::Added(vec![added]), 0);
    let mut is_own = true;
    while let Some(effect) = effects.iter().find(|effect| !matches!(effect, Effect::Settled(_))) {
        let event = match effect {
            // The item's commit has the command, and the base does not.
            Effect::Verify { commit, .. } => {
                is_own = commit != "c";
                let code = if is_own { 1 } else { 127 };
                Event::Verified(Verdict::Red(format!("'./check' exited with code {code}; its output is in 0.log")))
            }
            other => world.answer(other),
        };
        effects = queue.on(event, 0);
    }
    assert!(is_own, "the item is judged by itself at the end");
    assert_eq!(words(&queue), ["rejected"]);
}

#[test]
fn an_item_that_was_replaced_does_not_continue_by_itself() {
    let (mut queue, mut world) = (machine(1, 1), World { is_red: true, ..World::default() });
    world.run(&mut queue, Event::Resume);
    let obstacle = queue.items[0].obstacle().cloned().expect("it waits");
    queue.on(Event::Pause, 0);
    let (name, tip) = ("w0".to_owned(), "newer".to_owned());
    world.run(&mut queue, Event::Added(vec![Addition { name, tip, ..Addition::default() }]));
    assert_eq!(queue.items[0].obstacle(), None);
    world.run(&mut queue, Event::Cleared(obstacle));
    assert_eq!(words(&queue), ["waiting", "queued"]);
}

fn ruled(rules: Rules) -> Change {
    Change { rules: Some(Box::new(rules)), caller: None }
}
