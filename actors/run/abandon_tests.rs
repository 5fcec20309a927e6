//! Tests of the machine: attempts that are given up.

use super::machine::{Effect, Machine};
use super::machine_tests::{begun, ended, job, queued, run, stages, words};
use swarm_model::run::plan::{Plan, Rules, Seats};
use swarm_model::run::progress::{ClosedKind, Mode, Run, Verdict};
use swarm_model::run::words::Word;
use swarm_model::run::{Abandoned, Event, FaultKind, Outcome};

const MINUTE_MS: u64 = 60_000;

/// A run of one job whose first attempt works on `a`.
fn at_a(hosts: &[&str]) -> Machine {
    let mut run = run(vec![job("j")], 9);
    let on = hosts.iter().map(|host| Seats { host: (*host).to_owned(), cap: 1, tags: Vec::new() }).collect();
    let plan = Plan { rules: Rules { limit: 9, on, ..Rules::default() }, ..(*run.plan).clone() };
    run = Machine::new(Run::begin(plan, None, false));
    run.on(&Event::Began, 0);
    sent(&mut run, 1, "a");
    run
}

fn sent(run: &mut Machine, attempt: u32, host: &str) {
    run.on(&Event::Sent { job: 0, attempt, host: host.to_owned() }, 0);
    run.on(&Event::Started { job: 0, attempt, pid: 0 }, 0);
}

/// The first attempt of `j` has come back from `a`.
fn returned(reference: Option<String>) -> Event {
    Event::Returned { id: "j".to_owned(), attempt: 1, host: "a".to_owned(), reference, more: Vec::new() }
}

/// The host does not answer about the first attempt of the first job.
fn lost(host: &str) -> Event {
    Event::Lost { host: host.to_owned(), cause: "no route".to_owned(), of: Some((0, 1)) }
}

fn found(host: &str) -> Event {
    Event::Found { host: host.to_owned(), of: Some((0, 1)) }
}

/// Nothing more can be sent to `a`.
fn unplaced(kind: ClosedKind) -> Event {
    Event::Unplaced { job: 1, attempt: 1, host: "a".to_owned(), kind, cause: "no key".to_owned() }
}

fn fetched() -> Event {
    let (tip, left_out, ignored, kept) = (Some("c".to_owned()), Vec::new(), Vec::new(), Vec::new());
    Event::Fetched { job: 0, attempt: 1, tip, left_out, ignored, kept }
}

fn abandoned() -> Event {
    Event::Abandoned { job: 0, attempt: 1, host: "a".to_owned() }
}

fn place(run: &Machine) -> (&'static str, u32, Option<&str>) {
    let progress = &run.jobs[0];
    (progress.stage.word(), progress.attempt, progress.host.as_deref())
}

#[test]
fn an_attempt_whose_host_is_out_of_reach_is_repeated_elsewhere_and_is_no_failure() {
    let mut run = at_a(&["a", "b"]);
    run.on(&lost("a"), 0);
    assert_eq!(run.giving_up("j"), Ok(abandoned()));
    let effects = run.on(&abandoned(), 125 * MINUTE_MS);
    let abandoned = Abandoned::new("j", 1, "a");
    assert!(effects.contains(&Effect::Reclaim(abandoned.clone())));
    assert_eq!(words(&effects), [&Word::Abandoned { attempt: 1, host: "a".to_owned() }]);
    assert_eq!(begun(&effects), [(0, 2)]);
    assert_eq!((place(&run), run.jobs[0].failures), (("working", 2, Some("b")), 0));
    assert_eq!(run.abandoned, [abandoned]);
    let told = "Attempt 1 at this task was sent to a, which has been out of reach for 2 h 5 min, and was given up. What it has \
                done is not here. It may come back later, as refs/swarm/from/a/j.1.";
    assert_eq!(run.jobs[0].given_up.as_deref(), Some(told));
    sent(&mut run, 2, "b");
    run.on(&ended(0, 2, Outcome::Success { summary: None }), 0);
    assert_eq!((stages(&run), &run.jobs[0].given_up), (vec!["finishing"], &None));
}

#[test]
fn nothing_that_a_given_up_attempt_tells_counts() {
    let failure = Outcome::Failure { cause: "no".to_owned(), evidence: None, fault: FaultKind::Task };
    let late = [
        Event::Started { job: 0, attempt: 1, pid: 0 },
        fetched(),
        ended(0, 1, failure),
        ended(0, 1, Outcome::Success { summary: None }),
        Event::Unplaced { job: 0, attempt: 1, host: "a".to_owned(), kind: ClosedKind::Busy, cause: "full".to_owned() },
        Event::Unreached { job: 0, attempt: 1 },
        abandoned(),
        queued(0, 1),
    ];
    for event in late {
        for hosts in [&["a", "b"][..], &["a"]] {
            let mut run = at_a(hosts);
            run.on(&lost("a"), 0);
            run.on(&abandoned(), 0);
            let before = run.clone();
            assert_eq!(run.on(&event, 1), [], "{event:?}");
            assert_eq!(run, before, "{event:?}");
        }
    }
}

#[test]
fn without_another_host_the_job_waits_until_its_host_answers() {
    let mut run = at_a(&["a"]);
    run.on(&lost("a"), 0);
    assert_eq!(begun(&run.on(&abandoned(), 0)), []);
    run.on(&Event::HostDue { host: "a".to_owned() }, 1);
    run.on(&found("a"), 2);
    assert_eq!((place(&run), run.mode), (("pending", 1, None), Mode::Running), "it still has the first attempt");
    let reference = Some("refs/swarm/from/a/j.1".to_owned());
    let returned = returned(reference.clone());
    let effects = run.on(&returned, 3);
    assert_eq!(words(&effects), [&Word::Returned { attempt: 1, host: "a".to_owned(), reference }]);
    assert_eq!((begun(&effects), place(&run)), (vec![(0, 2)], ("working", 2, Some("a"))));
    assert_eq!(run.on(&returned, 4), [], "it is told once");
    assert!(!run.resume().iter().any(|effect| matches!(effect, Effect::Reclaim(_))));
}

#[test]
fn only_an_attempt_that_was_sent_to_a_host_out_of_reach_is_given_up() {
    let refused = |run: &Machine, id: &str| run.giving_up(id).expect_err("refused").cause;
    let mut run = at_a(&["a", "b"]);
    assert_eq!(refused(&run, "k"), "workstream 'k' not found");
    let refusal = run.giving_up("j").expect_err("refused");
    assert_eq!(refusal.cause, "workstream 'j' works on a, which answers");
    assert_eq!(refusal.remedy.as_deref(), Some("run 'swarm --host a kill p.j-r' to end it"));
    run.on(&Event::Lost { host: "a".to_owned(), cause: "no route".to_owned(), of: None }, 0);
    assert_eq!(refused(&run, "j"), "workstream 'j' works on a, which answers", "it was another attempt");
    run.on(&lost("a"), 0);
    run.on(&found("a"), 0);
    assert_eq!(refused(&run, "j"), "workstream 'j' works on a, which answers", "it came back just before");
    let mut here = self::run(vec![job("j")], 9);
    here.on(&Event::Began, 0);
    assert_eq!(refused(&here, "j"), "workstream 'j' does not work on another host");
}

#[test]
fn a_run_that_is_stopped_keeps_what_was_given_up() {
    let mut run = at_a(&["a", "b"]);
    run.on(&lost("a"), 0);
    run.on(&Event::Stop, 0);
    let effects = run.on(&abandoned(), 0);
    assert!(effects.contains(&Effect::End(Verdict::Interrupted)));
    assert_eq!(place(&run), ("paused", 1, None));
    // The supervisor was killed right after the write.
    let reclaim = Effect::Reclaim(run.abandoned[0].clone());
    assert!(run.resume().contains(&reclaim));
    let mut again = Machine::new(Run::begin((*run.plan).clone(), Some(&run), false));
    let effects = again.on(&Event::Began, 0);
    assert!(effects.contains(&reclaim));
    assert_eq!((begun(&effects), again.jobs[0].sent), (vec![(0, 2)], false));
}

#[test]
fn an_attempt_that_was_sent_by_a_stopped_run_is_given_up_by_the_next_one() {
    let mut run = at_a(&["a", "b"]);
    run.on(&lost("a"), 0);
    run.on(&Event::Stop, 0);
    run.on(&Event::Unreached { job: 0, attempt: 1 }, 0);
    let mut again = Machine::new(Run::begin((*run.plan).clone(), Some(&run), false));
    again.on(&Event::Began, 0);
    assert!(again.jobs[0].carried);
    again.on(&lost("a"), 0);
    assert_eq!(begun(&again.on(&abandoned(), 0)), [(0, 2)]);
    assert_eq!((place(&again), again.jobs[0].carried), (("working", 2, Some("b")), false));
}

const LOST_MS: u64 = 60 * MINUTE_MS;

/// A run of two jobs: the first one works on `a`, the second one is being sent there.
fn with_lost(lost_ms: Option<u64>) -> Machine {
    let mut run = run(vec![job("j"), job("k")], 9);
    let on = ["a", "b"].map(|host| Seats { host: host.to_owned(), cap: 2, tags: Vec::new() }).to_vec();
    let rules = Rules { limit: 9, on, lost_ms, ..Rules::default() };
    run = Machine::new(Run::begin(Plan { rules, ..(*run.plan).clone() }, None, false));
    run.on(&Event::Began, 0);
    sent(&mut run, 1, "a");
    run
}

fn is_armed(effect: &Effect) -> bool {
    matches!(effect, Effect::ArmLost { .. })
}

#[test]
fn after_the_time_that_is_set_an_attempt_that_cannot_be_reached_is_given_up() {
    assert!(!with_lost(None).on(&lost("a"), 1).iter().any(is_armed), "a person decides");
    let mut run = with_lost(Some(LOST_MS));
    let armed = Effect::ArmLost { host: "a".to_owned(), since_ms: 5, at_ms: 5 + LOST_MS };
    assert!(run.on(&lost("a"), 5).contains(&armed) && run.resume().contains(&armed));
    run.on(&Event::HostDue { host: "a".to_owned() }, 10);
    let effects = [run.on(&unplaced(ClosedKind::Refused), 20), run.on(&lost("a"), 20)].concat();
    assert!(!effects.iter().any(is_armed), "it is the same outage");
    let due = |since_ms: u64| Event::LostDue { host: "a".to_owned(), since_ms };
    assert_eq!(run.on(&due(4), 30), [], "another outage");
    let effects = run.on(&due(5), 5 + LOST_MS);
    assert_eq!((begun(&effects), run.abandoned.len(), stages(&run)), (vec![(0, 2)], 1, vec!["working"; 2]));
    assert_eq!((run.jobs[0].host.as_deref(), run.jobs[1].attempt), (Some("b"), 1));
    // The host was back in between.
    let mut run = with_lost(Some(LOST_MS));
    run.on(&lost("a"), 5);
    run.on(&found("a"), 6);
    run.on(&lost("a"), 7);
    assert_eq!(run.on(&due(5), 5 + LOST_MS), []);
    assert_eq!(run.jobs[0].attempt, 1);
}

#[test]
fn a_host_to_which_nothing_more_can_be_sent_keeps_the_attempts_about_which_it_answers() {
    for kind in [ClosedKind::Away, ClosedKind::Refused, ClosedKind::Busy] {
        let mut run = with_lost(Some(LOST_MS));
        let effects = run.on(&unplaced(kind), 5);
        assert!(run.closed.contains_key("a") && !effects.iter().any(is_armed) && !run.resume().iter().any(is_armed));
        let refusal = run.giving_up("j").expect_err("refused");
        assert_eq!(refusal.cause, "workstream 'j' works on a, which answers");
        run.on(&Event::LostDue { host: "a".to_owned(), since_ms: 5 }, 5 + LOST_MS);
        assert_eq!((run.jobs[0].attempt, run.abandoned.len()), (1, 0));
        // From here on, it cannot be reached either. That is an outage of its own.
        let armed = Effect::ArmLost { host: "a".to_owned(), since_ms: 9, at_ms: 9 + LOST_MS };
        assert!(run.on(&lost("a"), 9).contains(&armed));
        assert!(run.giving_up("j").is_ok());
    }
}

#[test]
fn an_attempt_of_a_job_that_leaves_the_plan_is_given_up() {
    let mut run = at_a(&["a", "b"]);
    run.on(&lost("a"), 0);
    run.on(&Event::Stop, 0);
    run.on(&Event::Unreached { job: 0, attempt: 1 }, 0);
    let plan = Plan { jobs: vec![job("k")], ..(*run.plan).clone() };
    let mut next = Machine::new(Run::begin(plan, Some(&run), false));
    let effects = next.on(&Event::Began, 0);
    assert!(effects.contains(&Effect::Reclaim(Abandoned::new("j", 1, "a"))));
    assert_eq!((begun(&effects), next.jobs[0].host.as_deref()), (vec![(0, 1)], Some("a")));
    let reference = Some("r".to_owned());
    let returned = returned(reference.clone());
    let effects = next.on(&returned, 0);
    assert_eq!(words(&effects), [&Word::Returned { attempt: 1, host: "a".to_owned(), reference }]);
    let known = Run::begin((*next.plan).clone(), Some(&next), false).abandoned;
    assert_eq!(known.len(), 1, "it stays known until a person drops its work");
}
