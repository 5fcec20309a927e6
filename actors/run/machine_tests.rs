//! Tests of the machine: tables, and random events in any order.

use proptest::prelude::*;

use super::machine::{Effect, LIMIT_MS_MAX, LIMITED_MAX, Machine, PASSING_MAX, PAUSE_MS, PAUSE_MS_MAX, is_last};
use super::place::has_room_for_resolver;
use swarm_model::run::plan::{CommandWork, Job, Plan, Rules, Work};
use swarm_model::run::progress::{Mode, Progress, Run, Spent, Stage, Verdict};
use swarm_model::run::words::Word;
use swarm_model::run::{Event, FaultKind, Merged, Outcome};

pub fn job(id: &str) -> Job {
    Job { id: id.to_owned(), merge: true, branch: Some(format!("arial/{id}")), ..Job::default() }
}

fn after(id: &str, others: &[&str]) -> Job {
    Job { after: others.iter().map(ToString::to_string).collect(), ..job(id) }
}

pub fn run(jobs: Vec<Job>, limit: usize) -> Machine {
    let rules = Rules { limit, ..Rules::default() };
    Machine::new(Run::begin(
        Plan { id: "r".to_owned(), slug: "p".to_owned(), jobs, rules, ..Plan::default() },
        None,
        false,
    ))
}

pub fn ended(job: usize, attempt: u32, outcome: Outcome) -> Event {
    Event::Ended { job, attempt, outcome, spent: Spent::default() }
}

pub fn well(job: usize) -> Event {
    ended(job, 1, Outcome::Success { summary: Some("did it".to_owned()) })
}

fn badly(job: usize, attempt: u32, fault: FaultKind) -> Event {
    ended(job, attempt, Outcome::Failure { cause: "no".to_owned(), evidence: None, fault })
}

fn landed(job: usize, attempt: u32) -> Event {
    Event::Merged { job, attempt, merged: Merged::Landed { commit: "c".to_owned() }, spent: Spent::default() }
}

pub(super) fn queued(job: usize, attempt: u32) -> Event {
    Event::Queued { job, attempt, left_out: Vec::new() }
}

pub fn stages(run: &Run) -> Vec<&'static str> {
    run.jobs.iter().map(|job| job.stage.word()).collect()
}

pub fn begun(effects: &[Effect]) -> Vec<(usize, u32)> {
    let attend =
        |effect: &Effect| if let Effect::Attend { job, attempt } = effect { Some((*job, *attempt)) } else { None };
    effects.iter().filter_map(attend).collect()
}

pub fn words(effects: &[Effect]) -> Vec<&Word> {
    effects.iter().filter_map(|effect| if let Effect::Tell(_, _, word) = effect { Some(word) } else { None }).collect()
}

#[test]
fn a_job_is_done_only_when_it_has_landed() {
    let mut run = run(vec![job("a")], 1);
    assert_eq!(begun(&run.on(&Event::Began, 1)), [(0, 1)]);
    run.on(&Event::Started { job: 0, attempt: 1, pid: 7 }, 2);
    assert_eq!(run.jobs[0].pid, Some(7));
    assert!(run.on(&well(0), 3).contains(&Effect::Land { job: 0, attempt: 1 }));
    assert_eq!(stages(&run), ["finishing"]);
    run.on(&queued(0, 1), 4);
    assert_eq!(stages(&run), ["merging"]);
    let effects = run.on(&landed(0, 1), 5);
    assert!(effects.contains(&Effect::Tidy { job: 0 }) && effects.contains(&Effect::End(Verdict::Completed)));
    let progress = &run.jobs[0];
    assert_eq!((progress.started_ms, progress.ended_ms, progress.commit.as_deref()), (Some(1), Some(5), Some("c")));
}

#[test]
fn the_limit_holds_and_priority_goes_first() {
    let urgent = Job { priority: 5, ..job("c") };
    let mut run = run(vec![job("a"), job("b"), urgent], 2);
    assert_eq!(begun(&run.on(&Event::Began, 0)), [(2, 1), (0, 1)]);
    // A job whose work is in the merge queue does not count towards the limit.
    assert_eq!(begun(&run.on(&well(0), 0)), [(1, 1)]);
}

#[test]
fn jobs_of_a_group_run_one_at_a_time() {
    let in_group = |id| Job { group: Some("db".to_owned()), ..job(id) };
    let mut run = run(vec![in_group("a"), in_group("b"), job("c")], 9);
    assert_eq!(begun(&run.on(&Event::Began, 0)), [(0, 1), (2, 1)]);
    assert_eq!(begun(&run.on(&well(0), 0)), [(1, 1)]);
}

#[test]
fn jobs_that_failed_for_a_dependency_run_once_it_may_run() {
    let command = |id: &str, text: &str| Job {
        work: Work::Command(CommandWork { argv: vec![text.to_owned()], ..CommandWork::default() }),
        ..job(id)
    };
    let jobs = |text| vec![command("a", text), after("b", &["a"]), after("c", &["b"]), job("d")];
    let mut earlier = run(jobs("wrong"), 9);
    earlier.on(&Event::Began, 0);
    earlier.on(&badly(0, 1, FaultKind::Lasting), 0);
    assert_eq!(stages(&earlier)[..3], ["failed"; 3]);
    let again = |text| stages(&Run::begin((*run(jobs(text), 9).plan).clone(), Some(&earlier), false));
    assert_eq!(again("wrong")[..3], ["failed"; 3]);
    assert_eq!(again("right")[..3], ["pending"; 3]);
}

#[test]
fn a_group_has_the_limit_that_is_set_for_it() {
    let in_group = |id, group: &str| Job { group: Some(group.to_owned()), ..job(id) };
    let jobs =
        vec![in_group("a", "db"), in_group("b", "db"), in_group("c", "db"), in_group("d", "x"), in_group("e", "x")];
    let mut plan = (*run(jobs, 9).plan).clone();
    plan.rules.groups = [("db".to_owned(), 2)].into();
    let mut run = Machine::new(Run::begin(plan, None, false));
    assert_eq!(begun(&run.on(&Event::Began, 0)), [(0, 1), (1, 1), (3, 1)]);
    assert_eq!(begun(&run.on(&well(1), 0)), [(2, 1)]);
}

#[test]
fn a_dependent_waits_until_what_it_needs_has_landed() {
    let mut run = run(vec![after("b", &["a"]), job("a")], 9);
    assert_eq!(begun(&run.on(&Event::Began, 0)), [(1, 1)]);
    assert_eq!(begun(&run.on(&well(1), 0)), []);
    assert_eq!(begun(&run.on(&landed(1, 1), 0)), [(0, 1)]);
}

#[test]
fn dependents_of_a_failed_job_fail_and_the_others_continue() {
    let mut run = run(vec![job("a"), after("b", &["a"]), after("c", &["b"]), job("d")], 9);
    run.on(&Event::Began, 0);
    let effects = run.on(&badly(0, 1, FaultKind::Task), 0);
    assert_eq!(stages(&run), ["failed", "failed", "failed", "working"]);
    assert_eq!(run.jobs[2].error.as_deref(), Some("dependency 'b' failed"));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::End(_))));
    run.on(&well(3), 0);
    assert!(run.on(&landed(3, 1), 0).contains(&Effect::End(Verdict::Failed)));
}

#[test]
fn a_failure_is_retried_up_to_the_limit_with_its_evidence() {
    let mut run = run(vec![Job { retries: 1, ..job("a") }], 1);
    run.on(&Event::Began, 0);
    let last =
        |run: &Machine| [FaultKind::Task, FaultKind::Lost, FaultKind::Lasting].map(|it| is_last(&run.now(0), it));
    assert_eq!(last(&run), [false, false, true]);
    assert_eq!(begun(&run.on(&badly(0, 1, FaultKind::Task), 0)), [(0, 2)]);
    assert_eq!(run.jobs[0].evidence.as_deref(), Some("no"));
    assert_eq!(last(&run), [true, false, true]);
    // Reports of an earlier attempt have no effect.
    assert_eq!(run.on(&badly(0, 1, FaultKind::Task), 0), []);
    assert!(run.on(&badly(0, 2, FaultKind::Task), 0).contains(&Effect::End(Verdict::Failed)));
    assert_eq!((run.jobs[0].failures, stages(&run)), (2, vec!["failed"]));
}

#[test]
fn the_kind_of_failure_decides_when_to_retry() {
    let armed = |fault| {
        let mut run = run(vec![Job { retries: 3, ..job("a") }], 1);
        run.on(&Event::Began, 0);
        let effects = run.on(&badly(0, 1, fault), 1_000);
        let at =
            effects.iter().find_map(|effect| if let Effect::Arm { at_ms, .. } = effect { Some(*at_ms) } else { None });
        (at, run.jobs[0].failures, stages(&run)[0])
    };
    assert_eq!(armed(FaultKind::Task), (None, 1, "working"));
    assert_eq!(armed(FaultKind::Passing), (Some(1_000 + PAUSE_MS), 0, "retrying"));
    assert_eq!(armed(FaultKind::Limit { until_ms: Some(9_000) }), (Some(9_000), 0, "retrying"));
    assert_eq!(armed(FaultKind::Limit { until_ms: None }), (Some(1_000 + PAUSE_MS), 0, "retrying"));
    assert_eq!(armed(FaultKind::Lasting), (None, 1, "failed"));
}

#[test]
fn a_limit_whose_end_has_passed_does_not_use_up_its_retries_at_once() {
    // The provider names a time that has passed for a local clock that is ahead, again and again.
    for ahead_ms in [0, 1, 5_000, 120_000] {
        let mut run = run(vec![job("a")], 1);
        run.on(&Event::Began, 0);
        let mut now_ms = 1_000_000;
        for attempt in 1..=LIMITED_MAX {
            let until_ms = Some(now_ms - ahead_ms);
            let effects = run.on(&badly(0, attempt, FaultKind::Limit { until_ms }), now_ms);
            let armed = effects.iter().find_map(|effect| match effect {
                Effect::Arm { at_ms, .. } => Some(*at_ms),
                _ => None,
            });
            let at_ms = armed.expect("the retry is armed");
            let pause_ms = (PAUSE_MS << (attempt - 1).min(16)).min(PAUSE_MS_MAX);
            assert_eq!(at_ms - now_ms, pause_ms, "attempt {attempt}, {ahead_ms} ms ahead");
            now_ms = at_ms;
            run.on(&Event::Due { job: 0, attempt, resolvers: None }, now_ms);
        }
        assert_eq!((run.jobs[0].failures, stages(&run)), (0, vec!["working"]));
        assert!(now_ms > 2 * 3_600_000, "all retries took {now_ms} ms");
    }
}

#[test]
fn a_disk_that_is_full_for_some_time_uses_up_no_retries() {
    let mut run = run(vec![Job { retries: 0, ..job("a") }], 1);
    run.on(&Event::Began, 0);
    let mut now_ms = 0;
    for attempt in 1..=PASSING_MAX {
        let effects = run.on(&badly(0, attempt, FaultKind::Passing), now_ms);
        let at =
            effects.iter().find_map(|effect| if let Effect::Arm { at_ms, .. } = effect { Some(*at_ms) } else { None });
        let pause_ms = (PAUSE_MS << (attempt - 1)).min(PAUSE_MS_MAX);
        assert_eq!((at, run.jobs[0].failures), (Some(now_ms + pause_ms), 0), "attempt {attempt}");
        now_ms += pause_ms;
        run.on(&Event::Due { job: 0, attempt, resolvers: None }, now_ms);
    }
    assert!(now_ms > 30 * 60_000, "all retries took {now_ms} ms");
    run.on(&badly(0, PASSING_MAX + 1, FaultKind::Passing), now_ms);
    assert_eq!((stages(&run), run.jobs[0].failures), (vec!["failed"], 1), "not for ever");
}

#[test]
fn a_limit_is_waited_for_until_its_end() {
    let cases = [(1, 500, 500), (2, 500, 2 * PAUSE_MS), (2, 3_600_000, 3_600_000), (1, 0, PAUSE_MS)];
    for (times, in_ms, expected) in cases {
        let mut run = run(vec![job("a")], 1);
        run.on(&Event::Began, 0);
        let mut pause = None;
        for attempt in 1..=times {
            let effects = run.on(&badly(0, attempt, FaultKind::Limit { until_ms: Some(in_ms) }), 0);
            pause = effects.iter().find_map(|effect| match effect {
                Effect::Arm { at_ms, .. } => Some(*at_ms),
                _ => None,
            });
            run.on(&Event::Due { job: 0, attempt, resolvers: None }, 0);
        }
        assert_eq!(pause, Some(expected), "limit number {times}, in {in_ms} ms");
    }
}

#[test]
fn lost_attempts_are_retried_but_not_for_ever() {
    let mut run = run(vec![job("a")], 1);
    run.on(&Event::Began, 0);
    for attempt in 1..=3 {
        assert_eq!(begun(&run.on(&badly(0, attempt, FaultKind::Lost), 0)), [(0, attempt + 1)]);
    }
    run.on(&badly(0, 4, FaultKind::Lost), 0);
    assert_eq!((stages(&run), run.jobs[0].failures), (vec!["failed"], 1));
}

#[test]
fn a_stop_ends_running_jobs_and_the_next_run_resumes_them() {
    let mut first = run(vec![job("a"), job("b"), job("c")], 2);
    first.on(&Event::Began, 0);
    first.on(&well(1), 0);
    first.on(&queued(1, 1), 0);
    first.on(&Event::Started { job: 0, attempt: 1, pid: 2 }, 0);
    let effects = first.on(&Event::Stop, 0);
    assert!(effects.contains(&Effect::Stop { job: 0 }) && !effects.contains(&Effect::Stop { job: 2 }));
    // A job that was being started is stopped once its worker runs.
    assert_eq!(first.on(&Event::Started { job: 2, attempt: 1, pid: 3 }, 0), [Effect::Stop { job: 2 }]);
    first.on(&ended(0, 1, Outcome::Stopped), 0);
    // A worker whose shim was killed before leaves no exit record.
    let effects = first.on(&badly(2, 1, FaultKind::Lost), 0);
    assert!(effects.contains(&Effect::End(Verdict::Interrupted)));
    assert_eq!(stages(&first), ["paused", "merging", "paused"]);
    let mut second = Machine::new(Run::begin((*first.plan).clone(), Some(&first), false));
    let effects = second.on(&Event::Began, 0);
    assert_eq!(begun(&effects), [(0, 2), (2, 2)]);
    assert!(effects.contains(&Effect::Land { job: 1, attempt: 1 }), "the queue is asked for the result");
    assert!(second.told > first.told, "the numbers of reports continue");
}

#[test]
fn failed_jobs_stay_failed_without_retry_failed() {
    let mut first = run(vec![job("a"), after("b", &["a"])], 9);
    first.on(&Event::Began, 0);
    first.on(&badly(0, 1, FaultKind::Task), 0);
    let mut same = Machine::new(Run::begin((*first.plan).clone(), Some(&first), false));
    assert!(same.on(&Event::Began, 0).contains(&Effect::End(Verdict::Failed)));
    let mut again = Machine::new(Run::begin((*first.plan).clone(), Some(&first), true));
    assert_eq!(begun(&again.on(&Event::Began, 0)), [(0, 2)]);
    assert_eq!((again.jobs[0].failures, again.jobs[0].evidence.as_deref()), (0, Some("no")));
}

#[test]
fn attempt_numbers_of_a_job_that_returns_continue() {
    let mut first = run(vec![job("a"), job("b")], 9);
    first.on(&Event::Began, 0);
    first.on(&badly(0, 1, FaultKind::Lasting), 0);
    let second = Machine::new(Run::begin(Plan { jobs: vec![job("b")], ..(*first.plan).clone() }, Some(&first), false));
    let mut third = Machine::new(Run::begin((*first.plan).clone(), Some(&second), false));
    assert!(begun(&third.on(&Event::Began, 0)).contains(&(0, 2)), "attempt 1 was that of the first run");
}

#[test]
fn a_held_run_starts_nothing_new() {
    let mut run = run(vec![job("a"), job("b")], 1);
    run.on(&Event::Began, 0);
    run.on(&Event::Hold, 0);
    run.on(&well(0), 0);
    assert_eq!(begun(&run.on(&landed(0, 1), 0)), []);
    assert_eq!(run.mode, Mode::Held);
    assert_eq!(begun(&run.on(&Event::Resume, 0)), [(1, 1)]);
}

#[test]
fn fail_fast_starts_nothing_after_a_failure() {
    let rules = Rules { limit: 1, fail_fast: true, ..Rules::default() };
    let plan = Plan { jobs: vec![job("a"), job("b")], rules, ..Plan::default() };
    let mut run = Machine::new(Run::begin(plan, None, false));
    run.on(&Event::Began, 0);
    let effects = run.on(&badly(0, 1, FaultKind::Task), 0);
    assert!(effects.contains(&Effect::End(Verdict::Failed)));
    assert_eq!(stages(&run), ["failed", "pending"]);
    // A failure of the earlier run does not stop this one.
    let mut second = Machine::new(Run::begin((*run.plan).clone(), Some(&run), false));
    assert_eq!(begun(&second.on(&Event::Began, 0)), [(1, 1)]);
}

#[test]
fn a_completed_file_of_jobs_runs_again_and_specs_do_not() {
    for (specs, expected) in [(None, vec![(0, 2)]), (Some("specs".to_owned()), Vec::new())] {
        let plan = Plan { jobs: vec![Job { merge: false, ..job("a") }], specs, ..Plan::default() };
        let mut first = Machine::new(Run::begin(plan.clone(), None, false));
        first.on(&Event::Began, 0);
        first.on(&well(0), 0);
        assert_eq!(first.mode, Mode::Over(Verdict::Completed));
        assert_eq!(begun(&Machine::new(Run::begin(plan, Some(&first), false)).on(&Event::Began, 0)), expected);
    }
}

#[test]
fn an_item_that_waits_for_a_person_does_not_keep_the_run_open() {
    let mut run = run(vec![job("a")], 1);
    run.on(&Event::Began, 0);
    run.on(&well(0), 0);
    let effects = run.on(&waits(false), 0);
    assert!(effects.contains(&Effect::End(Verdict::Failed)));
    assert_eq!((stages(&run), run.jobs[0].error.as_deref()), (vec!["waiting"], Some("in the way: f")));
}

#[test]
fn no_pause_is_longer_than_any_limit_of_a_provider() {
    let mut run = run(vec![job("a")], 1);
    run.on(&Event::Began, 0);
    let effects = run.on(&badly(0, 1, FaultKind::Limit { until_ms: Some(u64::MAX) }), 7);
    assert!(effects.contains(&Effect::Arm { job: 0, attempt: 1, at_ms: 7 + LIMIT_MS_MAX }), "{effects:?}");
}

fn waits(continues: bool) -> Event {
    let merged =
        Merged::Waiting { reason: "in the way: f".to_owned(), files: vec!["f".to_owned()], continues, is_empty: false };
    Event::Merged { job: 0, attempt: 1, merged, spent: Spent::default() }
}

#[test]
fn an_item_that_continues_by_itself_keeps_the_run_open() {
    let mut run = run(vec![job("a"), after("b", &["a"])], 1);
    run.on(&Event::Began, 0);
    run.on(&well(0), 0);
    let effects = run.on(&waits(true), 0);
    assert_eq!((stages(&run), run.mode), (vec!["waiting", "pending"], Mode::Running), "{effects:?}");
    let mut stopped = run.clone();
    assert_eq!(begun(&run.on(&landed(0, 1), 0)), [(1, 1)], "what depends on it starts");
    // It may continue only so often, and is then left to a person.
    let mut given_up = stopped.clone();
    let effects = given_up.on(&waits(false), 0);
    assert_eq!((words(&effects).len(), effects.contains(&Effect::End(Verdict::Failed))), (1, true), "{effects:?}");
    assert!(stopped.on(&Event::Stop, 0).contains(&Effect::End(Verdict::Interrupted)));
}

#[test]
fn a_run_with_nothing_to_do_is_over_at_once() {
    assert!(run(Vec::new(), 1).on(&Event::Began, 0).contains(&Effect::End(Verdict::Completed)));
}

#[test]
fn unknown_and_circular_dependencies_are_named() {
    let plan = |jobs| Plan { jobs, ..Plan::default() };
    assert_eq!(plan(vec![job("a"), after("b", &["a"])]).check_order(), Ok(()));
    let unknown = plan(vec![after("b", &["x"])]).check_order();
    assert_eq!(unknown, Err("job 'b': unknown dependency 'x'".to_owned()));
    let circle = plan(vec![job("a"), after("b", &["c"]), after("c", &["b"])]).check_order();
    assert_eq!(circle, Err("jobs depend on each other: b, c".to_owned()));
    let typo = plan(vec![job("build"), after("deploy", &["biuld"])]).check_order();
    assert_eq!(typo, Err("job 'deploy': unknown dependency 'biuld' (did you mean 'build'?)".to_owned()));
}

fn any_event(jobs: usize) -> impl Strategy<Value = Event> {
    let fault = prop_oneof![
        Just(FaultKind::Task),
        Just(FaultKind::Passing),
        Just(FaultKind::Lasting),
        Just(FaultKind::Lost),
        Just(FaultKind::Limit { until_ms: Some(50) }),
    ];
    let outcome = prop_oneof![
        Just(Outcome::Success { summary: None }),
        fault.prop_map(|fault| Outcome::Failure { cause: "no".to_owned(), evidence: None, fault }),
        Just(Outcome::Stopped),
    ];
    let merged = prop_oneof![
        Just(Merged::Landed { commit: "c".to_owned() }),
        Just(Merged::Nothing),
        Just(Merged::Contained),
        Just(Merged::Elsewhere { item: 3, commit: "c".to_owned(), verified_by: None }),
        Just(Merged::Rejected { reason: "red".to_owned() }),
        Just(Merged::Conflict { files: vec!["f".to_owned()], tip: Some("t".to_owned()) }),
        any::<(bool, bool)>().prop_map(|(continues, is_empty)| Merged::Waiting {
            reason: "w".to_owned(),
            files: Vec::new(),
            continues,
            is_empty
        }),
        Just(Merged::Dropped),
        any::<bool>().prop_map(|is_mendable| Merged::Refused { cause: "no".to_owned(), is_mendable }),
    ];
    let at = (0..jobs, 1_u32..4);
    prop_oneof![
        8 => (at.clone(), outcome).prop_map(|((job, attempt), outcome)| ended(job, attempt, outcome)),
        6 => (at.clone(), merged).prop_map(|((job, attempt), merged)| Event::Merged { job, attempt, merged, spent: Spent::default() }),
        3 => at.clone().prop_map(|(job, attempt)| queued(job, attempt)),
        2 => at.clone().prop_map(|(job, attempt)| Event::Retried { job, attempt }),
        2 => at.clone().prop_map(|(job, attempt)| Event::Started { job, attempt, pid: 9 }),
        2 => at.prop_map(|(job, attempt)| Event::Due { job, attempt, resolvers: None }),
        1 => Just(Event::Stop),
        1 => Just(Event::Hold),
        1 => Just(Event::Resume),
        3 => (0_usize..4).prop_map(Event::resolvers),
    ]
}

proptest! {
    /// Checks for any events in any order: the limit holds, with the resolvers, each attempt starts once, landed jobs stay
    /// done, a replay leads to the same state, and the run is never idle unless it is held, over or behind resolvers.
    #[test]
    fn a_run_keeps_its_promises(events in proptest::collection::vec(any_event(5), 0..80), limit in 1_usize..4) {
        let jobs = vec![job("a"), after("b", &["a"]), Job { retries: 2, ..job("c") }, job("d"), after("e", &["c", "d"])];
        let mut run = run(jobs, limit);
        let mut replayed = run.clone();
        let mut attended = Vec::new();
        let mut done = 0;
        let mut number = 0;
        let mut running = 0;
        for event in std::iter::once(&Event::Began).chain(&events).chain([&Event::resolvers(0)]) {
            let effects = run.on(event, 10);
            prop_assert_eq!(&replayed.on(event, 10), &effects);
            attended.extend(begun(&effects));
            for effect in &effects {
                if let Effect::Tell(told, _, _) = effect {
                    prop_assert_eq!(*told, number);
                    number += 1;
                }
            }
            running = running.min(run.resolvers);
            while running < run.resolvers && has_room_for_resolver(&run, running) {
                running += 1;
            }
            prop_assert!(run.count(|stage| *stage == Stage::Working) + running <= limit);
            let now = run.count(|stage| *stage == Stage::Done);
            prop_assert!(now >= done);
            done = now;
            let is_idle = |job: &Progress| match job.stage {
                Stage::Waiting => !job.continues,
                Stage::Pending | Stage::Done | Stage::Failed | Stage::Paused => true,
                _ => false,
            };
            let may_be_idle = matches!(run.mode, Mode::Over(_) | Mode::Held) || running > 0;
            prop_assert!(!run.jobs.iter().all(is_idle) || may_be_idle, "the run is idle: {:?}", run);
        }
        prop_assert_eq!(&run, &replayed);
        let mut once = attended.clone();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), attended.len(), "an attempt was started twice");
        let text = serde_json::to_string(&*run).expect("plain values");
        prop_assert_eq!(serde_json::from_str::<Run>(&text).expect("it reads what it wrote"), Run::clone(&run));
    }
}

#[test]
fn sums_keep_what_is_unknown() {
    let priced = Spent { usd: Some(0.5), input_tokens: 1, ..Spent::default() };
    let unpriced = Spent { unpriced: true, output_tokens: 2, ..Spent::default() };
    let both = priced.plus(unpriced);
    assert_eq!((both.usd, both.unpriced, both.input_tokens, both.output_tokens), (Some(0.5), true, 1, 2));
    assert_eq!(Progress::default().spent.usd, None, "unknown is not zero");
}
