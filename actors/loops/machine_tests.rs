//! Tests of the machine: tables, and invariants under any order of events.

use proptest::prelude::*;

use super::machine::{Effect, Event, Machine};
use super::sight::Sight;
use swarm_model::loops::progress::{ExitReason, Loop, Plan, Stage, Status, Then, Wire};
use swarm_model::loops::words::Word;

fn plan(max: u32) -> Plan {
    Plan { name: "w".into(), max_iterations: max, inactivity_timeout_s: 180, ..Plan::default() }
}

/// Returns a loop whose first prompt is entered.
fn watched(plan: Plan) -> Machine {
    let mut it = Machine::new(Loop::new(plan, 0));
    it.on(&Event::Began, 0);
    prompt(&mut it);
    it
}

fn prompt(it: &mut Machine) {
    let iteration = it.iteration;
    it.on(&Event::Started { iteration, generation: u64::from(iteration) }, 0);
    it.on(&Event::Typing { iteration }, 0);
    it.on(&Event::Prompted { iteration, baseline: "p".into(), log_from: 0 }, 0);
    it.on(&Event::Entered { iteration }, 0);
    assert!(matches!(it.stage, Stage::Watching { .. }), "{it:?}");
}

fn ended(it: &Loop, code: i32) -> Event {
    Event::Ended { iteration: it.iteration, code: Some(code), asked: false, done: false }
}

fn seen(it: &Loop, sight: Sight) -> Event {
    Event::Seen { iteration: it.iteration, sight }
}

fn not_started(iteration: u32, cause: &str, passes: bool) -> Event {
    Event::NotStarted { iteration, cause: cause.to_owned(), passes }
}

fn words(effects: &[Effect]) -> Vec<String> {
    let told = effects.iter().filter_map(|effect| match effect {
        Effect::Tell(word) => Some(format!("{} {word}", word.event())),
        _ => None,
    });
    told.collect()
}

#[test]
fn with_a_maximum_of_n_exactly_n_iterations_run() {
    for max in [1, 2, 20] {
        let mut it = watched(plan(max));
        let mut runs = 1;
        loop {
            let event = ended(&it, 0);
            let effects = it.on(&event, 5_000);
            if it.stage == Stage::Over {
                assert_eq!(
                    words(&effects).last().map(String::as_str),
                    Some(format!("DONE loop complete after {max} iterations reason=max_iterations").as_str())
                );
                break;
            }
            runs += 1;
            prompt(&mut it);
        }
        assert_eq!((runs, it.iteration, it.durations.len()), (max, max, max as usize));
        assert_eq!((it.status, it.exit_reason), (Status::Stopped, Some(ExitReason::MaxIterations)));
    }
}

#[test]
fn failures_in_a_row_back_off_and_the_fifth_ends_the_loop() {
    let mut it = watched(plan(50));
    for (n, backoff) in [(1, 1), (2, 2), (3, 4), (4, 8)] {
        let event = ended(&it, 3);
        let told = words(&it.on(&event, 1_000));
        assert_eq!(told[1], format!("FAIL iteration {n} exit=3 attempt={n}/5 backoff={backoff}s"));
        let until_ms = 1_000 + backoff * 1000;
        assert_eq!(it.stage, Stage::BackingOff { until_ms, again: false });
        it.on(&Event::Due { iteration: it.iteration }, until_ms);
        prompt(&mut it);
    }
    let event = Event::Ended { iteration: 5, code: None, asked: false, done: false };
    let told = words(&it.on(&event, 0));
    assert_eq!(
        told,
        ["END iteration 5 exit=unknown duration=0s", "DONE loop complete after 5 iterations reason=failed"]
    );
    assert_eq!((it.status, it.exit_reason, it.total_failures), (Status::Failed, Some(ExitReason::Failed), 5));
}

#[test]
fn a_success_resets_the_consecutive_failures() {
    let mut it = watched(plan(50));
    let event = ended(&it, 1);
    it.on(&event, 0);
    it.on(&Event::Due { iteration: 1 }, 1_000);
    prompt(&mut it);
    let event = ended(&it, 0);
    it.on(&event, 0);
    assert_eq!((it.consecutive_failures, it.total_failures, it.iteration), (0, 1, 3));
}

#[test]
fn the_content_of_the_window_decides() {
    let of = |plan: Plan, sight: Sight| {
        let mut it = watched(plan);
        let event = seen(&it, sight);
        let effects = it.on(&event, 9_000);
        (words(&effects), it.stage.clone(), it.exit_reason)
    };
    let ending = |then| Stage::Ending { then };
    let continuous = Plan { check_done_continuous: true, ..plan(9) };
    let done = Sight { done: true, ..Sight::default() };
    let (told, stage, reason) = of(continuous, done.clone());
    assert_eq!(told, ["DONE loop complete after 1 iterations reason=done_pattern"]);
    assert_eq!((stage, reason), (ending(Then::Over), Some(ExitReason::DonePattern)));
    assert_eq!(of(plan(9), done).1, Stage::Watching { generation: 1 }, "only at the end of the worker");
    let (told, stage, reason) = of(plan(9), Sight { fatal: true, ..Sight::default() });
    assert_eq!(told, ["FATAL iteration 1 -- compaction detected, killing"]);
    assert_eq!((stage, reason), (ending(Then::Next), Some(ExitReason::Compaction)));
    let full = Plan { max_context: Some(70), ..plan(9) };
    let context = |percent| Sight { context: Some(percent), ..Sight::default() };
    assert_eq!(of(full.clone(), context(69)).0, Vec::<String>::new());
    assert_eq!(of(full.clone(), context(70)).0, ["WARN iteration 1: context nudge sent at 70%"]);
    assert_eq!(of(full.clone(), context(84)).1, Stage::Watching { generation: 1 });
    let (told, stage, reason) = of(full, context(85));
    assert_eq!(told, ["FATAL iteration 1 -- context threshold exceeded, killing"]);
    assert_eq!((stage, reason), (ending(Then::Next), Some(ExitReason::ContextThreshold)));
    let quiet = |quiet_ms| Sight { quiet_ms, ..Sight::default() };
    assert_eq!(of(plan(9), quiet(179_999)).0, Vec::<String>::new());
    let stuck = Sight { stuck: vec![0], preflight: true, ..Sight::default() };
    let (told, stage, reason) = of(plan(9), stuck);
    let text = "Worker stuck at login prompt. Check auth credentials.";
    assert_eq!(told[1], format!("ERROR iteration 1: pre-flight check failed — {text}"));
    assert_eq!((stage, reason), (ending(Then::Over), Some(ExitReason::PreflightFailed)));
    assert_eq!(of(plan(9), quiet(180_000)).0, ["TIMEOUT iteration 1 inactivity_timeout=180s"]);
}

#[test]
fn each_iteration_warns_once_of_a_stuck_screen_and_nudges_once() {
    let mut it = watched(Plan { max_context: Some(50), ..plan(9) });
    let sight = Sight { stuck: vec![0, 1], context: Some(55), ..Sight::default() };
    let event = seen(&it, sight);
    assert_eq!(it.on(&event, 0).iter().filter(|effect| matches!(effect, Effect::Type { .. })).count(), 1);
    assert_eq!(it.on(&event, 0), []);
    let end = ended(&it, 0);
    it.on(&end, 0);
    prompt(&mut it);
    let event = Event::Seen { iteration: 2, sight: Sight { stuck: vec![1], ..Sight::default() } };
    assert_eq!(words(&it.on(&event, 0)).len(), 1);
}

#[test]
fn a_pause_lets_only_the_present_iteration_continue() {
    let mut it = watched(Plan { check_done_continuous: true, ..plan(9) });
    let told = words(&it.on(&Event::Pause { reason: "user".into() }, 0));
    assert_eq!(told, ["PAUSE loop paused reason=user"]);
    let all = Sight { done: true, fatal: true, quiet_ms: 1 << 40, context: Some(100), ..Sight::default() };
    let event = seen(&it, all);
    assert_eq!((it.on(&event, 0), &it.stage), (vec![], &Stage::Watching { generation: 1 }));
    let event = ended(&it, 0);
    it.on(&event, 0);
    assert_eq!((it.is_active(), &it.stage), (false, &Stage::Between { again: false }));
    assert_eq!(it.status, Status::Paused);
    let told = words(&it.on(&Event::Resume, 0));
    assert_eq!((told, it.status), (vec!["START iteration 2/9".to_owned()], Status::Running));
    // A pause during a backoff ends the backoff.
    prompt(&mut it);
    let event = ended(&it, 1);
    it.on(&event, 0);
    it.on(&Event::Pause { reason: "user".into() }, 0);
    assert_eq!(it.stage, Stage::Between { again: false });
    assert_eq!(it.on(&Event::Due { iteration: 2 }, 0), []);
}

#[test]
fn a_loop_that_is_done_while_paused_ends_when_resumed() {
    let mut it = watched(plan(1));
    it.on(&Event::Pause { reason: "user".into() }, 0);
    let event = Event::Ended { iteration: 1, code: Some(0), asked: false, done: true };
    it.on(&event, 0);
    assert_eq!((it.status, &it.stage), (Status::Paused, &Stage::Between { again: false }));
    it.on(&Event::Resume, 0);
    assert_eq!((it.status, it.exit_reason), (Status::Stopped, Some(ExitReason::DonePattern)));
}

#[test]
fn a_kill_ends_the_loop_at_any_stage() {
    let mut starting = Machine::new(Loop::new(plan(3), 0));
    starting.on(&Event::Began, 0);
    let effects = starting.on(&Event::Killed, 0);
    assert!(effects.contains(&Effect::End { drop: false }), "a starting worker is ended: {effects:?}");
    starting.on(&Event::Gone { iteration: 1, done: false }, 0);
    assert_eq!(starting.stage, Stage::Over);
    for paused in [false, true] {
        let mut it = watched(plan(3));
        if paused {
            it.on(&Event::Pause { reason: "user".into() }, 0);
        }
        let told = words(&it.on(&Event::Killed, 0));
        assert_eq!(told, ["DONE loop complete after 1 iterations reason=killed"]);
        assert_eq!((it.status, it.exit_reason, &it.stage), (Status::Stopped, Some(ExitReason::Killed), &Stage::Over));
        assert_eq!(it.on(&Event::Killed, 0), []);
    }
}

#[test]
fn a_failed_first_start_leaves_nothing_and_a_later_one_is_retried() {
    let mut it = Machine::new(Loop::new(plan(3), 0));
    it.on(&Event::Began, 0);
    let effects = it.on(&not_started(1, "no tmux", false), 0);
    assert_eq!(effects, [Effect::Withdraw { cause: "no tmux".into() }]);
    let mut it = watched(plan(3));
    let event = ended(&it, 0);
    it.on(&event, 0);
    let told = words(&it.on(&not_started(2, "no tmux", false), 0));
    assert_eq!(told[1], "FAIL iteration 2 exit=1 attempt=1/5 backoff=1s");
    let told = words(&it.on(&Event::Due { iteration: 2 }, 0));
    assert_eq!((told, it.iteration), (vec![], 2), "the same iteration again");
    let told = words(&it.on(&Event::NoPrompt { iteration: 2, cause: "prompt file not found: /p".into() }, 0));
    assert_eq!(told[0], "ERROR prompt file not found: /p");
    assert_eq!(it.status, Status::Failed);
}

#[test]
fn a_start_that_the_system_prevents_is_tried_again_without_a_failure() {
    let mut it = watched(plan(3));
    it.on(&Event::Lost { iteration: 1 }, 0);
    it.on(&Event::Due { iteration: 1 }, 0);
    for time in 0..20 {
        let effects = it.on(&not_started(1, "not mounted", true), time);
        let told: &[&str] = if time == 0 { &["WARN iteration 1: worker not started yet: not mounted"] } else { &[] };
        assert_eq!(words(&effects), told);
        let until_ms = time + 10_000;
        assert_eq!(it.stage, Stage::BackingOff { until_ms, again: true });
        assert_eq!(effects.last(), Some(&Effect::Arm { at_ms: until_ms }));
        it.on(&Event::Due { iteration: 1 }, until_ms);
    }
    assert_eq!((it.status, it.total_failures), (Status::Running, 0));
    it.on(&Event::Pause { reason: "user".into() }, 0);
    it.on(&not_started(1, "not mounted", true), 0);
    assert_eq!(it.stage, Stage::Between { again: true });
    it.on(&Event::Resume, 0);
    it.on(&Event::Started { iteration: 1, generation: 2 }, 0);
    assert_eq!((it.stage.generation(), it.held_back.as_deref()), (Some(2), None));
}

#[test]
fn changes_by_another_program_apply() {
    let mut it = watched(plan(3));
    it.on(&Event::Others(Wire { status: Status::Paused, max_iterations: 7 }), 0);
    assert_eq!((it.status, it.max_iterations), (Status::Paused, 7));
    it.on(&Event::Others(Wire { status: Status::Running, max_iterations: 7 }), 0);
    assert_eq!(it.status, Status::Running);
    it.on(&Event::Others(Wire { status: Status::Stopped, max_iterations: 7 }), 0);
    assert_eq!(it.exit_reason, Some(ExitReason::Killed));
}

#[test]
fn an_unsupervised_loop_is_left_once_its_prompt_is_entered() {
    let mut it = Machine::new(Loop::new(Plan { no_run: true, ..plan(3) }, 0));
    it.on(&Event::Began, 0);
    it.on(&Event::Started { iteration: 1, generation: 1 }, 0);
    it.on(&Event::Prompted { iteration: 1, baseline: String::new(), log_from: 0 }, 0);
    assert!(it.is_active(), "Enter is still to be pressed");
    let effects = it.on(&Event::Entered { iteration: 1 }, 0);
    assert_eq!(effects, [Effect::Abandon]);
    assert!(!it.is_active());
    assert_eq!(it.on(&Event::Attend, 0).last(), Some(&Effect::Attend));
    assert!(it.is_active());
}

#[test]
fn an_unsupervised_loop_rests_however_soon_its_agent_ends() {
    let ended = Event::Ended { iteration: 1, code: Some(0), asked: false, done: false };
    let prompted = Event::Prompted { iteration: 1, baseline: String::new(), log_from: 0 };
    for before in [vec![], vec![Event::Typing { iteration: 1 }], vec![Event::Typing { iteration: 1 }, prompted]] {
        let mut it = Machine::new(Loop::new(Plan { no_run: true, ..plan(3) }, 0));
        it.on(&Event::Began, 0);
        it.on(&Event::Started { iteration: 1, generation: 1 }, 0);
        for event in &before {
            it.on(event, 0);
        }
        assert_eq!(it.on(&ended, 0), [Effect::Abandon], "after {before:?}");
        assert!(!it.is_active());
        assert_eq!(it.on(&Event::Attend, 0).last(), Some(&Effect::Attend));
        it.on(&ended, 0);
        assert_eq!((it.iteration, &it.stage), (2, &Stage::Starting));
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    let i = 1_u32..5;
    let sight = (any::<bool>(), any::<bool>(), 0_u64..400_000, 0_u32..120, proptest::collection::vec(0_usize..4, 0..3));
    let sight = sight.prop_map(|(done, fatal, quiet_ms, context, stuck)| Sight {
        done,
        fatal,
        quiet_ms,
        context: Some(context),
        stuck,
        hash: 0,
        preflight: false,
        obstacle: None,
    });
    prop_oneof![
        (i.clone(), 1_u64..9).prop_map(|(iteration, generation)| Event::Started { iteration, generation }),
        (i.clone(), any::<bool>()).prop_map(|(iteration, passes)| Event::NotStarted {
            iteration,
            cause: "c".into(),
            passes
        }),
        i.clone().prop_map(|iteration| Event::NoPrompt { iteration, cause: "c".into() }),
        i.clone().prop_map(|iteration| Event::Typing { iteration }),
        i.clone().prop_map(|iteration| Event::Prompted { iteration, baseline: "b".into(), log_from: 1 }),
        i.clone().prop_map(|iteration| Event::Entered { iteration }),
        i.clone().prop_map(|iteration| Event::NotPrompted { iteration, cause: "c".into() }),
        i.clone().prop_map(|iteration| Event::Blocked { iteration, cause: "c".into() }),
        (i.clone(), sight).prop_map(|(iteration, sight)| Event::Seen { iteration, sight }),
        (i.clone(), 0_i32..3, any::<bool>(), any::<bool>()).prop_map(|(iteration, code, asked, done)| Event::Ended {
            iteration,
            code: Some(code),
            asked,
            done
        }),
        (i.clone(), any::<bool>()).prop_map(|(iteration, done)| Event::Gone { iteration, done }),
        i.clone().prop_map(|iteration| Event::Lost { iteration }),
        i.prop_map(|iteration| Event::Due { iteration }),
        Just(Event::Pause { reason: "user".into() }),
        Just(Event::Resume),
        Just(Event::Attend),
        Just(Event::Killed),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Invariants: never past the last iteration, never a second end, no start while paused, and
    /// one worker at a time.
    #[test]
    fn invariants_hold_under_any_events(events in proptest::collection::vec(any_event(), 1..80), max in 1_u32..4) {
        let plan = Plan { check_done_continuous: true, max_context: Some(60), ..plan(max) };
        let mut it = Machine::new(Loop::new(plan, 0));
        let (mut ends, mut starts) = (0, 0);
        let began = it.on(&Event::Began, 0);
        starts += began.iter().filter(|effect| matches!(effect, Effect::Tell(Word::Start { .. }))).count();
        for (at, event) in events.iter().enumerate() {
            let before = it.clone();
            let effects = it.on(event, at as u64 * 1000);
            ends += effects.iter().filter(|effect| matches!(effect, Effect::Tell(Word::Done { .. }))).count();
            starts += effects.iter().filter(|effect| matches!(effect, Effect::Tell(Word::Start { .. }))).count();
            prop_assert!(it.iteration <= max);
            prop_assert!(ends <= 1);
            prop_assert_eq!(starts, it.iteration as usize);
            // Only a resume ends a pause.
            if before.status == Status::Paused && !matches!(event, Event::Resume | Event::Killed) {
                let was_asked = matches!(event, Event::Ended { asked: true, .. }) && it.status == Status::Stopped;
                let gone = !before.has_run && it.status == Status::Failed;
                prop_assert!(it.status == Status::Paused || was_asked || gone, "{:?} {:?}", event, it);
                prop_assert!(it.iteration == before.iteration);
            }
            // A new worker starts only if no worker of this loop can exist.
            if it.stage == Stage::Starting && before.stage != Stage::Starting {
                prop_assert!(before.stage != Stage::Over);
                let is_gone = matches!(event, Event::Due { .. } | Event::Resume | Event::Gone { .. } | Event::Ended { .. });
                prop_assert!(is_gone, "{:?}", event);
            }
            if it.stage == Stage::Over {
                prop_assert!(matches!(it.status, Status::Stopped | Status::Failed));
                prop_assert!(!it.is_active());
            }
            let text = serde_json::to_string(&*it).expect("it is plain data");
            prop_assert_eq!(&serde_json::from_str::<Loop>(&text).expect("reads"), &*it);
        }
    }
}
