//! Runs through the supervisor: each job lands once, whatever is interrupted.

use std::time::Duration;

use swarm_actors::supervisor::Exit;
use swarm_actors::testing::{ASKS, Fault};
use swarm_model::run::plan::{Job, Plan, Rules};
use swarm_model::run::progress::{Mode, Run, Verdict};
use swarm_model::run::words::Word;
use swarm_model::{Answer, Caller, Ended, EventKind, MergeOrder, MergeRequest, MergeSettings, RunOrder, RunRequest};

use swarm_ports::Settled;

use crate::fixture::{Rig, caller};

pub const HOME: &str = "/repo/.arial";

pub fn job(id: &str) -> Job {
    Job { id: id.to_owned(), merge: true, branch: Some(format!("arial/{id}")), retries: 1, ..Job::default() }
}

pub fn plan(jobs: Vec<Job>) -> Plan {
    let rules = Rules { limit: 2, ..Rules::default() };
    let (id, home, slug) = ("r1".to_owned(), HOME.to_owned(), "p".to_owned());
    Plan { id, home, slug, root: "/repo".to_owned(), base: Some("main".to_owned()), jobs, rules, ..Plan::default() }
}

async fn order(rig: &Rig, order: RunOrder) -> Answer {
    rig.swarm().run(RunRequest { caller: caller(), order }).recv().await.expect("an answer")
}

pub async fn begin(rig: &Rig, jobs: Vec<Job>) -> Answer {
    let answer = order(rig, RunOrder::Begin { plan: Box::new(plan(jobs)), retry_failed: false }).await;
    rig.world.settle().await;
    answer
}

pub fn stages(run: &Run) -> Vec<&'static str> {
    run.jobs.iter().map(|job| job.stage.word()).collect()
}

/// Ends the agent of a job, if one runs.
pub fn end(rig: &Rig, id: &str, code: i32) {
    rig.world.end(&format!("p.{id}"), Ended::Code(code));
}

pub async fn pass(rig: &Rig) {
    rig.world.pass(Duration::from_secs(30)).await;
}

fn count(rig: &Rig, is: impl Fn(&Word) -> bool) -> usize {
    rig.world.runs.told(HOME).iter().filter(|telling| is(&telling.word)).count()
}

#[tokio::test(start_paused = true)]
async fn specs_become_landed_work_and_leave_nothing_behind() {
    let rig = Rig::start().await;
    assert!(
        matches!(begin(&rig, vec![job("a"), job("b"), job("c")]).await, Answer::Run(line) if line.done == "started")
    );
    assert_eq!(stages(&rig.world.runs.run(HOME)), ["working", "working", "pending"]);
    end(&rig, "a", 0);
    pass(&rig).await;
    assert_eq!(stages(&rig.world.runs.run(HOME)), ["done", "working", "working"]);
    end(&rig, "b", 0);
    end(&rig, "c", 0);
    pass(&rig).await;
    let run = rig.world.runs.run(HOME);
    assert_eq!((stages(&run), run.mode), (vec!["done"; 3], Mode::Over(Verdict::Completed)));
    assert_eq!(rig.world.landings.base().len(), 3);
    assert_eq!(rig.world.rows(), [], "its workers are forgotten");
    rig.check();
    assert_eq!(rig.swarm().ended().await, Exit::Idle);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_a_shutdown_interrupts_is_repeated_and_does_not_count() {
    for sees in [false, true] {
        let mut rig = Rig::start().await;
        begin(&rig, vec![Job { retries: 0, ..job("a") }]).await;
        if !sees {
            rig.crash().await;
        }
        rig.world.interrupt("p.a", Ended::Code(0));
        if !sees {
            rig.world.kernel.reboot();
            rig.up().await;
        }
        pass(&rig).await;
        let progress = rig.world.runs.run(HOME).jobs[0].clone();
        assert_eq!((progress.stage.word(), progress.attempt, progress.failures), ("working", 2, 0), "seen: {sees}");
        end(&rig, "a", 0);
        pass(&rig).await;
        assert_eq!(rig.world.runs.run(HOME).mode, Mode::Over(Verdict::Completed));
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_does_not_restart_a_finished_run() {
    let rig = Rig::start().await;
    let ask = async |repeated| {
        let caller = Caller { request: "the same".to_owned(), repeated, ..caller() };
        let order = RunOrder::Begin { plan: Box::new(plan(vec![job("a")])), retry_failed: false };
        rig.swarm().run(RunRequest { caller, order }).recv().await.expect("an answer")
    };
    ask(0).await;
    rig.world.settle().await;
    end(&rig, "a", 0);
    pass(&rig).await;
    assert_eq!(rig.world.runs.run(HOME).mode, Mode::Over(Verdict::Completed));
    assert!(matches!(ask(1).await, Answer::Run(line) if line.done == "started"));
    rig.world.settle().await;
    assert_eq!(count(&rig, |word| matches!(word, Word::RunStarted { .. })), 1);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_left_its_branch_is_started_again_and_lands() {
    let rig = Rig::start().await;
    begin(&rig, vec![job("a")]).await;
    rig.world.landings.switch_away(true);
    end(&rig, "a", 0);
    pass(&rig).await;
    let run = rig.world.runs.run(HOME);
    assert_eq!((stages(&run), run.jobs[0].attempt), (vec!["working"], 2));
    assert_eq!(run.jobs[0].evidence.as_deref(), Some("another branch is checked out"));
    assert_eq!(rig.swarm().queues().await.map(|queues| queues.len()), Some(0), "nothing was queued");
    rig.world.landings.switch_away(false);
    end(&rig, "a", 0);
    pass(&rig).await;
    assert_eq!(stages(&rig.world.runs.run(HOME)), ["done"]);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn queue_steps_are_reported_after_the_item_was_queued() {
    let rig = Rig::start().await;
    let verified = Job { verify: Some("make test".to_owned()), ..job("a") };
    begin(&rig, vec![verified]).await;
    end(&rig, "a", 0);
    pass(&rig).await;
    let told = rig.world.runs.told(HOME);
    let merges = told.iter().filter(|telling| {
        matches!(telling.word, Word::MergeStarted { .. } | Word::MergeVerifying { .. } | Word::MergeCompleted { .. })
    });
    let told: Vec<_> = merges.map(|telling| (telling.word.clone(), telling.job, telling.number.is_some())).collect();
    let commit = || "0".to_owned();
    assert_eq!(
        told,
        [
            (Word::MergeStarted { base: "main".to_owned(), left_out: Vec::new() }, Some(0), true),
            (Word::MergeVerifying { commit: commit() }, Some(0), false),
            (Word::MergeCompleted { commit: commit() }, Some(0), true),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_is_retried_in_the_same_worktree() {
    let rig = Rig::start().await;
    begin(&rig, vec![job("a")]).await;
    let first = rig.world.row("p.a").expect("it runs").worktree;
    end(&rig, "a", 1);
    rig.world.pass(Duration::from_secs(1)).await;
    let second = rig.world.row("p.a").expect("it runs again");
    assert_eq!((&second.worktree, second.swarm().map(|meta| meta.generation)), (&first, Some(2)));
    end(&rig, "a", 1);
    pass(&rig).await;
    assert_eq!(stages(&rig.world.runs.run(HOME)), ["failed"]);
    assert!(rig.world.row("p.a").is_some(), "a failed worker stays for inspection");
    assert_eq!(count(&rig, |word| matches!(word, Word::Retrying { .. })), 1);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_rejected_item_and_a_conflict_are_retried() {
    let rig = Rig::start().await;
    rig.world.landings.make_conflicting(1);
    let verified = Job { verify: Some("make test".to_owned()), ..job("a") };
    begin(&rig, vec![verified, job("b")]).await;
    rig.world.landings.make_bad(0);
    end(&rig, "a", 0);
    pass(&rig).await;
    end(&rig, "b", 0);
    pass(&rig).await;
    let run = rig.world.runs.run(HOME);
    assert_eq!((stages(&run)[1], run.jobs[1].attempt), ("working", 2), "{run:?}");
    assert_eq!(run.jobs[1].error.as_deref(), Some("conflicts with the base: f"));
    assert_eq!((run.jobs[0].attempt, run.jobs[1].failures), (2, 1));
    end(&rig, "b", 0);
    pass(&rig).await;
    assert_eq!(stages(&rig.world.runs.run(HOME))[1], "done");
}

#[tokio::test(start_paused = true)]
async fn each_job_lands_once_whatever_is_interrupted() {
    let steps = [
        "run.begin",
        "run.begin.after",
        "run.append",
        "run.append.after",
        "run.tell",
        "run.tell.after",
        "run.prepare",
        "reserve",
        "prepare",
        "open",
        "open.after",
        "complete",
        "save",
        "save.after",
        "build",
        "land",
        "land.after",
        "run.close",
        "run.forget",
    ];
    for step in steps {
        for nth in 0.. {
            let mut rig = Rig::start().await;
            (0..nth).for_each(|_| rig.world.script.at(step, Fault::Run(Box::new(|| {}))));
            rig.world.script.at(step, Fault::Hang);
            let request = RunOrder::Begin { plan: Box::new(plan(vec![job("a"), job("b")])), retry_failed: false };
            let mut answers = rig.swarm().run(RunRequest { caller: caller(), order: request.clone() });
            let _ = tokio::time::timeout(Duration::from_secs(1), answers.recv()).await;
            // The jobs start, end and land, unless the fault strikes first.
            for _ in 0..4 {
                finish(&rig).await;
            }
            rig.crash().await;
            let reached = rig.world.script.forget_faults();
            rig.up().await;
            // Like a command that lost its answer together with its supervisor.
            let again = swarm_model::Caller { repeated: 1, ..caller() };
            if rig.world.runs.told(HOME).is_empty() && rig.swarm().runs().await.is_some_and(|runs| runs.is_empty()) {
                rig.swarm().run(RunRequest { caller: again, order: request }).recv().await.expect("an answer");
            }
            for _ in 0..4 {
                finish(&rig).await;
            }
            let run = rig.world.runs.run(HOME);
            assert_eq!((stages(&run), run.mode), (vec!["done"; 2], Mode::Over(Verdict::Completed)), "{step} {nth}");
            assert_eq!(rig.world.landings.base().len(), 2, "{step} {nth}");
            let numbers: Vec<u64> = rig.world.runs.told(HOME).iter().filter_map(|telling| telling.number).collect();
            assert_eq!(numbers, (0..run.told).collect::<Vec<_>>(), "{step} {nth}: everything is reported exactly once");
            let ends = rig.world.events.all();
            let ends = ends.iter().filter(|event| matches!(event.kind, EventKind::RunEnded { .. })).count();
            assert_eq!(ends, 1, "{step} {nth}: its end is announced exactly once");
            assert!(run.jobs.iter().all(|job| job.attempt == 1), "{step} {nth}: {run:?}");
            if !reached {
                assert!(nth > 0, "{step} was never reached");
                break;
            }
        }
    }
}

/// Ends all running agents successfully.
async fn finish(rig: &Rig) {
    for id in ["a", "b"] {
        if rig.world.row(&format!("p.{id}")).is_some() && rig.world.records.newest(&format!("p.{id}")).is_some() {
            end(rig, id, 0);
        }
    }
    pass(rig).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_pauses_running_jobs_and_the_next_run_resumes_them() {
    let rig = Rig::start().await;
    begin(&rig, vec![job("a"), job("b"), job("c")]).await;
    end(&rig, "a", 0);
    pass(&rig).await;
    let answer = order(&rig, RunOrder::Stop { home: HOME.to_owned() }).await;
    assert!(matches!(&answer, Answer::Run(line) if line.done == "stopping"), "{answer:?}");
    pass(&rig).await;
    let run = rig.world.runs.run(HOME);
    assert_eq!((stages(&run), run.mode), (vec!["done", "paused", "paused"], Mode::Over(Verdict::Interrupted)));
    begin(&rig, vec![job("a"), job("b"), job("c")]).await;
    end(&rig, "b", 0);
    end(&rig, "c", 0);
    pass(&rig).await;
    let run = rig.world.runs.run(HOME);
    assert_eq!((stages(&run), run.mode), (vec!["done"; 3], Mode::Over(Verdict::Completed)));
    assert_eq!(rig.world.landings.base().len(), 3);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn one_home_has_one_run() {
    let rig = Rig::start().await;
    begin(&rig, vec![job("a")]).await;
    let Answer::Refused(refusal) = begin(&rig, vec![job("b")]).await else { panic!("a second one began") };
    assert_eq!(refusal.cause, format!("a run is in progress in {HOME}"));
    let answer = order(&rig, RunOrder::Stop { home: "/other".to_owned() }).await;
    assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_cannot_be_written_holds_back_all_effects() {
    let rig = Rig::start().await;
    begin(&rig, vec![job("a")]).await;
    for _ in 0..3 {
        rig.world.script.at("run.append", Fault::Error("no space left on device"));
    }
    end(&rig, "a", 0);
    rig.world.pass(Duration::from_millis(1500)).await;
    assert_eq!(rig.world.landings.base(), Vec::<u64>::new(), "nothing follows from what is not durable");
    pass(&rig).await;
    assert_eq!((stages(&rig.world.runs.run(HOME)), rig.world.landings.base().len()), (vec!["done"], 1));
    assert!(rig.world.script.unmet().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_base_that_fails_burns_no_attempts() {
    let rig = Rig::start().await;
    rig.world.landings.commit(100);
    rig.world.landings.make_bad(100);
    let verified = |id: &str| Job { verify: Some("make test".to_owned()), retries: 5, ..job(id) };
    begin(&rig, vec![verified("a"), verified("b")]).await;
    for id in ["a", "b", "a"] {
        end(&rig, id, 0);
        pass(&rig).await;
    }
    let run = rig.world.runs.run(HOME);
    // The first one might have had to mend the base.
    let attempts: Vec<u32> = run.jobs.iter().map(|job| job.attempt).collect();
    assert_eq!((stages(&run), attempts), (vec!["waiting"; 2], vec![2, 1]));
    assert_eq!(run.jobs[1].error.as_deref(), Some("the base itself does not pass: exit code 1"));
    assert_eq!(run.mode, Mode::Running, "both continue by themselves");
    rig.world.landings.make_good(100);
    rig.world.landings.commit(101);
    pass(&rig).await;
    assert_eq!(rig.world.landings.base().len(), 4, "both landed by themselves");
    assert_eq!(rig.world.runs.run(HOME).mode, Mode::Over(Verdict::Completed));
}

#[tokio::test(start_paused = true)]
async fn a_run_waits_for_work_that_continues_by_itself() {
    for is_killed in [false, true] {
        let mut rig = Rig::start().await;
        rig.world.landings.edit(true);
        begin(&rig, vec![job("a"), Job { after: vec!["a".to_owned()], ..job("b") }]).await;
        end(&rig, "a", 0);
        pass(&rig).await;
        let run = rig.world.runs.run(HOME);
        assert_eq!((stages(&run), run.mode), (vec!["waiting", "pending"], Mode::Running));
        if is_killed {
            rig.crash().await;
            rig.up().await;
        }
        rig.world.landings.edit(false);
        pass(&rig).await;
        assert_eq!(stages(&rig.world.runs.run(HOME)), ["done", "working"]);
        end(&rig, "b", 0);
        pass(&rig).await;
        assert_eq!(rig.world.runs.run(HOME).mode, Mode::Over(Verdict::Completed));
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_ends_the_run_at_once_names_it() {
    let rig = Rig::start().await;
    rig.world.landings.edit(true);
    begin(&rig, vec![job("a")]).await;
    end(&rig, "a", 0);
    pass(&rig).await;
    let answer = order(&rig, RunOrder::Stop { home: HOME.to_owned() }).await;
    assert!(matches!(&answer, Answer::Run(line) if line.run == "r1"), "{answer:?}");
    pass(&rig).await;
    assert_eq!(rig.world.runs.run(HOME).mode, Mode::Over(Verdict::Interrupted));
}

#[tokio::test(start_paused = true)]
async fn work_that_conflicted_and_was_merged_by_hand_is_done_without_its_worker() {
    let rig = Rig::start().await;
    rig.world.landings.make_conflicting(0);
    begin(&rig, vec![Job { retries: 0, ..job("a") }]).await;
    end(&rig, "a", 0);
    pass(&rig).await;
    assert_eq!(rig.world.runs.run(HOME).mode, Mode::Over(Verdict::Failed));
    rig.world.runs.merge_by_hand(HOME);
    rig.clean("p.a").await.expect("a person cleans it");
    let jobs = vec![Job { retries: 0, ..job("a") }];
    order(&rig, RunOrder::Begin { plan: Box::new(plan(jobs)), retry_failed: true }).await;
    rig.world.settle().await;
    pass(&rig).await;
    let run = rig.world.runs.run(HOME);
    assert_eq!((stages(&run), run.mode), (vec!["done"], Mode::Over(Verdict::Completed)), "{:?}", run.jobs);
    assert_eq!(rig.world.landings.base(), [0_u64; 0], "the queue did not land it");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_asks_leaves_its_place_to_others_and_continues_after_the_answer() {
    let rig = Rig::start().await;
    let mut one = plan(vec![job("a"), job("b"), job("c")]);
    one.rules.limit = 1;
    order(&rig, RunOrder::Begin { plan: Box::new(one), retry_failed: false }).await;
    rig.world.settle().await;
    end(&rig, "a", ASKS);
    pass(&rig).await;
    let run = rig.world.runs.run(HOME);
    assert_eq!(stages(&run), ["asking", "working", "pending"]);
    assert_eq!((run.jobs[0].failures, run.jobs[0].attempt), (0, 1));
    rig.world.runs.settle(1, Settled::Answered);
    end(&rig, "b", 0);
    pass(&rig).await;
    let run = rig.world.runs.run(HOME);
    assert_eq!((stages(&run)[0], stages(&run)[2]), ("working", "pending"), "answered work comes before new work");
    assert_eq!((run.jobs[0].failures, run.jobs[0].attempt), (0, 2));
    end(&rig, "a", 0);
    pass(&rig).await;
    end(&rig, "c", 0);
    pass(&rig).await;
    assert_eq!(stages(&rig.world.runs.run(HOME)), ["done", "done", "done"]);
    assert_eq!(count(&rig, |word| matches!(word, Word::Asking { ask: 1, .. } | Word::Answered { ask: 1, .. })), 2);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_while_a_job_asks_waits_again_when_it_continues() {
    let rig = Rig::start().await;
    begin(&rig, vec![job("a")]).await;
    end(&rig, "a", ASKS);
    pass(&rig).await;
    order(&rig, RunOrder::Stop { home: HOME.to_owned() }).await;
    pass(&rig).await;
    let run = rig.world.runs.run(HOME);
    assert_eq!((stages(&run), run.mode), (vec!["asking"], Mode::Over(Verdict::Interrupted)));
    begin(&rig, vec![job("a")]).await;
    assert_eq!(stages(&rig.world.runs.run(HOME)), ["asking"]);
    rig.world.runs.settle(1, Settled::Over { why: "nobody answered".to_owned() });
    pass(&rig).await;
    let run = rig.world.runs.run(HOME);
    assert_eq!((stages(&run), run.jobs[0].error.as_deref()), (vec!["failed"], Some("nobody answered")));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn an_item_of_another_repository_under_the_same_key_is_not_the_work_of_the_run() {
    let rig = Rig::start().await;
    begin(&rig, vec![job("a")]).await;
    end(&rig, "a", 0);
    pass(&rig).await;
    assert_eq!(rig.world.landings.base(), [0]);
    // A run of the same id begins in a copy: its attempt has the key of the item that has landed.
    rig.world.runs.disown("/copy/.arial", 0);
    let copy = Plan { home: "/copy/.arial".to_owned(), ..plan(vec![job("a")]) };
    order(&rig, RunOrder::Begin { plan: Box::new(copy), retry_failed: false }).await;
    rig.world.settle().await;
    end(&rig, "a", 0);
    pass(&rig).await;
    let run = rig.world.runs.run("/copy/.arial");
    assert_eq!((stages(&run), run.jobs[0].attempt), (vec!["done"], 1));
    assert_eq!(run.jobs[0].commit.as_deref(), Some("0+1"), "its own work landed");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn work_that_waited_without_a_commit_lands_once_its_cause_is_gone() {
    for is_added_by_hand in [false, true] {
        let rig = Rig::start().await;
        rig.world.landings.lose_base(true);
        let jobs = || vec![job("a"), Job { after: vec!["a".to_owned()], ..job("b") }];
        begin(&rig, jobs()).await;
        end(&rig, "a", 0);
        pass(&rig).await;
        let run = rig.world.runs.run(HOME);
        assert_eq!((stages(&run), run.mode), (vec!["waiting", "pending"], Mode::Over(Verdict::Failed)));
        rig.world.landings.lose_base(false);
        if is_added_by_hand {
            let order = MergeOrder::Add {
                names: vec!["p.a".to_owned()],
                base: None,
                priority: 0,
                settings: MergeSettings::default(),
                uncommitted: Vec::new(),
                generation: None,
            };
            rig.swarm().merge(MergeRequest { caller: caller(), order }).recv().await.expect("an answer");
            pass(&rig).await;
        }
        begin(&rig, jobs()).await;
        pass(&rig).await;
        let run = rig.world.runs.run(HOME);
        assert_eq!((stages(&run), run.jobs[0].attempt), (vec!["done", "working"], 1), "{is_added_by_hand}");
        assert_eq!((run.jobs[0].commit.as_deref(), rig.world.landings.base()), (Some("1"), vec![1]));
        end(&rig, "b", 0);
        pass(&rig).await;
        assert_eq!(rig.world.runs.run(HOME).mode, Mode::Over(Verdict::Completed));
        rig.check();
    }
}
