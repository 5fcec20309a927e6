//! Resolvers beside the attempts of a run.

use super::machine::{Effect, Machine};
use super::machine_tests::{begun, job, run, stages, well};
use super::place::{has_room_for_resolver, without_place};
use swarm_model::run::Event;
use swarm_model::run::plan::{Plan, Rules, Seats};
use swarm_model::run::progress::{Run, Stage, Verdict};

#[test]
fn a_resolver_takes_the_place_of_an_attempt_and_goes_first() {
    let mut run = run(vec![job("a"), job("b"), job("c"), job("d")], 2);
    assert_eq!(begun(&run.on(&Event::Began, 0)), [(0, 1), (1, 1)]);
    assert!(!has_room_for_resolver(&run, 0));
    assert_eq!(run.on(&Event::resolvers(1), 0), []);
    assert_eq!(begun(&run.on(&well(0), 0)), [], "the resolver waits");
    assert!(has_room_for_resolver(&run, 0) && !has_room_for_resolver(&run, 1));
    assert_eq!(begun(&run.on(&well(1), 0)), [(2, 1)]);
    assert!(!has_room_for_resolver(&run, 1));
    assert_eq!(begun(&run.on(&Event::resolvers(0), 0)), [(3, 1)]);
}

#[test]
fn more_resolvers_than_places_start_nothing_and_do_not_end_the_run() {
    let mut run = run(vec![job("a"), job("b")], 1);
    run.on(&Event::Began, 0);
    run.on(&Event::resolvers(3), 0);
    run.on(&well(0), 0);
    let merged = swarm_model::run::Merged::Landed { commit: "c".to_owned() };
    let effects = run.on(&Event::Merged { job: 0, attempt: 1, merged, spent: Default::default() }, 0);
    assert_eq!((stages(&run), begun(&effects)), (vec!["done", "pending"], vec![]));
    assert!(!effects.contains(&Effect::End(Verdict::Failed)), "{effects:?}");
    assert_eq!(begun(&run.on(&Event::resolvers(0), 0)), [(1, 1)]);
}

#[test]
fn older_programs_read_the_number_of_resolvers_as_an_event_without_effect() {
    let line = serde_json::to_string(&(5, Event::resolvers(2))).expect("plain values");
    assert_eq!(line, format!(r#"[5,{{"due":{{"job":{},"attempt":0,"resolvers":2}}}}]"#, usize::MAX));
    assert_eq!(serde_json::from_str::<(u64, Event)>(&line).expect("it reads what it wrote").1, Event::resolvers(2));
    // As they read it, and as they wrote their own.
    let older: Event =
        serde_json::from_str(&format!(r#"{{"due":{{"job":{},"attempt":0}}}}"#, usize::MAX)).expect("valid");
    let mut run = run(vec![job("a"), job("b")], 1);
    run.on(&Event::Began, 0);
    let before = run.clone();
    assert_eq!((run.on(&older, 0), &run), (Vec::new(), &before));
    let mut damaged = run.clone();
    damaged.catch_up(&older, 0);
    assert_eq!(damaged, before);
}

#[test]
fn a_resolver_takes_a_place_of_this_machine() {
    let seats = |host: &str, cap| Seats { host: host.to_owned(), cap, tags: Vec::new() };
    let plan = |on| Plan {
        jobs: vec![job("a"), job("b"), job("c")],
        rules: Rules { on, ..Rules::default() },
        ..Plan::default()
    };
    let working = |run: &Run, host: Option<&str>| {
        run.jobs.iter().filter(|job| job.stage == Stage::Working && job.host.as_deref() == host).count()
    };
    let mut run = Machine::new(Run::begin(plan(vec![seats(Seats::LOCAL, 1), seats("box", 1)]), None, false));
    run.on(&Event::resolvers(1), 0);
    run.on(&Event::Began, 0);
    assert_eq!((working(&run, None), working(&run, Some("box"))), (0, 1));
    assert!(has_room_for_resolver(&run, 0));
    assert_eq!(without_place(&run)[0].0, 1, "it waits for a place");
    assert_eq!(begun(&run.on(&Event::resolvers(0), 0)), [(1, 1)]);
    assert_eq!(working(&run, None), 1);
    assert!(!has_room_for_resolver(&run, 0), "one works here");
    // Nobody limits a machine that the run does not use; only the limit of the run counts.
    let mut run = Machine::new(Run::begin(plan(vec![seats("box", 1)]), None, false));
    run.on(&Event::Began, 0);
    assert!(has_room_for_resolver(&run, 0) && !has_room_for_resolver(&run, run.plan.rules.limit - 1));
}
