//! Runs on other hosts: an attempt may be executed where nobody hears of it, and its work lands once.

use std::time::Duration;

use swarm_actors::testing::{Fault, exit_record};
use swarm_model::run::plan::{Job, Plan, Rules, Seats, SpecWork, Work};
use swarm_model::run::progress::{ClosedKind, Mode, Run, Verdict};
use swarm_model::run::words::Word;
use swarm_model::{Answer, Ended, Reason, RunOrder, RunRequest};
use swarm_ports::{FarEnd, HostFault};

use crate::fixture::{Rig, caller, with_tree};
use crate::run::{HOME, job, plan, stages};

pub const HOSTS: [&str; 2] = ["a", "b"];

pub fn spec(id: &str) -> Job {
    Job { work: Work::Spec(SpecWork::default()), ..job(id) }
}

pub async fn order(rig: &Rig, order: RunOrder) {
    let answer = rig.swarm().run(RunRequest { caller: caller(), order }).recv().await.expect("an answer");
    assert!(matches!(answer, Answer::Run(_)), "{answer:?}");
    rig.world.settle().await;
}

pub async fn begin(rig: &Rig, jobs: Vec<Job>, cap: usize) {
    let on = HOSTS.map(|host| Seats { host: host.to_owned(), cap, tags: Vec::new() }).to_vec();
    let plan = Plan { rules: Rules { limit: 20, on, ..Rules::default() }, ..plan(jobs) };
    order(rig, RunOrder::Begin { plan: Box::new(plan), retry_failed: false }).await;
}

/// End of an attempt whose worker exited with this code, and left work.
pub fn end(code: i32) -> FarEnd {
    let exit = exit_record(Ended::Code(code), Reason::Exited);
    FarEnd { exit: Some(exit), tip: Some("c0".to_owned()), ..FarEnd::default() }
}

pub fn away() -> Option<HostFault> {
    Some(HostFault::Away { cause: "no route".to_owned() })
}

pub async fn pass(rig: &Rig, seconds: u64) {
    rig.world.pass(Duration::from_secs(seconds)).await;
}

pub fn run(rig: &Rig) -> Run {
    rig.world.runs.run(HOME)
}

pub fn at_work(rig: &Rig) -> Vec<(&'static str, String)> {
    let of = |host: &'static str| rig.world.hosts.at_work(host).into_iter().map(move |attempt| (host, attempt));
    HOSTS.into_iter().flat_map(of).collect()
}

/// Ends each attempt that is at work.
pub fn finish_all(rig: &Rig) {
    at_work(rig).iter().for_each(|(host, attempt)| rig.world.hosts.finish(host, attempt, end(0)));
}

pub fn told(rig: &Rig, is: impl Fn(&Word) -> bool) -> usize {
    rig.world.runs.told(HOME).iter().filter(|telling| is(&telling.word)).count()
}

#[tokio::test(start_paused = true)]
async fn work_is_done_on_hosts_within_their_caps_and_lands_here() {
    let rig = Rig::start().await;
    let jobs = (0..12).map(|number| spec(&format!("j{number}"))).collect();
    begin(&rig, jobs, 3).await;
    let mut rounds = 0;
    while run(&rig).mode == Mode::Running {
        for host in HOSTS {
            assert!(rig.world.hosts.at_work(host).len() <= 3);
        }
        finish_all(&rig);
        pass(&rig, 30).await;
        rounds += 1;
        assert!(rounds < 20, "{:?}", stages(&run(&rig)));
    }
    assert_eq!(run(&rig).mode, Mode::Over(Verdict::Completed));
    assert_eq!(rounds, 2, "six at a time");
    assert_eq!(rig.world.landings.base().len(), 12);
    assert_eq!(HOSTS.map(|host| rig.world.hosts.starts(host)), [6, 6]);
    assert!(rig.world.script.position("hosts.forget a j0.1").is_some());
    assert_eq!(rig.world.rows(), [], "there are no workers here");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_host_is_out_of_reach_is_waited_for_and_lands_once() {
    let rig = Rig::start().await;
    begin(&rig, vec![spec("j")], 3).await;
    rig.world.hosts.fail("a", away());
    pass(&rig, 8 * 60 * 60).await;
    assert_eq!((stages(&run(&rig)), run(&rig).jobs[0].attempt), (vec!["working"], 1));
    assert_eq!(rig.world.hosts.starts("b"), 0, "lost contact is not an end");
    rig.world.hosts.finish("a", "j.1", end(0));
    rig.world.hosts.fail("a", None);
    pass(&rig, 90).await;
    assert_eq!(run(&rig).mode, Mode::Over(Verdict::Completed));
    assert_eq!((rig.world.hosts.starts("a"), rig.world.landings.base().len()), (1, 1));
    assert_eq!(told(&rig, |word| matches!(word, Word::HostAway { .. })), 1);
    assert_eq!(told(&rig, |word| matches!(word, Word::HostBack { .. })), 1);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_was_not_sent_goes_to_another_host_under_the_same_number() {
    for fault in [
        HostFault::Away { cause: "no route".to_owned() },
        HostFault::Busy { cause: "the disk is full".to_owned() },
        HostFault::Refused { cause: "unknown host key".to_owned() },
    ] {
        let rig = Rig::start().await;
        rig.world.hosts.fail("a", Some(fault));
        begin(&rig, vec![spec("j")], 3).await;
        pass(&rig, 1).await;
        assert_eq!(at_work(&rig), [("b", "j.1".to_owned())]);
        let progress = run(&rig).jobs[0].clone();
        assert_eq!((progress.attempt, progress.failures, progress.host.as_deref()), (1, 0, Some("b")));
        finish_all(&rig);
        pass(&rig, 30).await;
        assert_eq!(run(&rig).mode, Mode::Over(Verdict::Completed));
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_waits_for_a_host_with_the_reason_and_does_not_work_here() {
    let rig = Rig::start().await;
    HOSTS.into_iter().for_each(|host| rig.world.hosts.fail(host, away()));
    begin(&rig, vec![spec("j")], 3).await;
    pass(&rig, 3600).await;
    let waiting = run(&rig);
    assert_eq!((stages(&waiting), waiting.mode), (vec!["pending"], Mode::Running));
    assert_eq!(waiting.closed.values().map(|closed| closed.kind).collect::<Vec<_>>(), [ClosedKind::Away; 2]);
    let since = waiting.closed.values().map(|closed| closed.since_ms).max().expect("closed hosts");
    let begun_ms = rig.world.runs.told(HOME)[0].at_ms;
    assert!(since < begun_ms + 60_000, "each try does not begin anew");
    assert!(rig.world.script.calls().iter().filter(|call| call.starts_with("hosts.bring")).count() < 200);
    rig.world.hosts.fail("b", None);
    pass(&rig, 130).await;
    assert_eq!(at_work(&rig), [("b", "j.1".to_owned())]);
    assert!(run(&rig).closed.contains_key("a") && !run(&rig).closed.contains_key("b"));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_is_repeated_at_its_host() {
    let rig = Rig::start().await;
    begin(&rig, vec![spec("i"), spec("j")], 3).await;
    assert_eq!(at_work(&rig), [("a", "i.1".to_owned()), ("b", "j.1".to_owned())]);
    rig.world.hosts.finish("b", "j.1", end(1));
    pass(&rig, 1).await;
    assert_eq!(at_work(&rig), [("a", "i.1".to_owned()), ("b", "j.2".to_owned())]);
    let cause = "an unfinished merge".to_owned();
    rig.world.hosts.finish("b", "j.2", FarEnd { waits: Some(cause.clone()), ..end(0) });
    pass(&rig, 1).await;
    let progress = run(&rig).jobs[1].clone();
    assert_eq!((progress.stage.word(), progress.error), ("failed", Some(cause)), "its work is not complete");
    assert!(rig.world.script.position("hosts.forget b j.2").is_some(), "its work is here");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_of_an_attempt_is_named() {
    let rig = Rig::start().await;
    begin(&rig, vec![Job { retries: 0, ..spec("i") }, Job { retries: 0, ..spec("j") }], 3).await;
    let kept = vec!["refs/swarm/from/x".to_owned()];
    let waits = Some("an unfinished merge".to_owned());
    let ignored = vec!["a.data".to_owned()];
    rig.world.hosts.finish("a", "i.1", FarEnd { waits: waits.clone(), kept: kept.clone(), ignored, ..end(0) });
    rig.world.hosts.finish("b", "j.1", FarEnd { waits, kept, ..end(3) });
    pass(&rig, 1).await;
    assert_eq!(
        told(&rig, |word| matches!(word, Word::Kept { references, .. } if references == &["refs/swarm/from/x"])),
        2
    );
    let ignored = |word: &Word| matches!(word, Word::Ignored { files, host: Some(_) } if files == &["a.data"]);
    assert_eq!(told(&rig, ignored), 1, "it goes with the worktree");
    let errors: Vec<String> = run(&rig).jobs.iter().filter_map(|job| job.error.clone()).collect();
    assert_eq!(errors[0], "an unfinished merge (what is there is kept as refs/swarm/from/x)");
    // It has failed for another reason.
    assert!(errors[1].ends_with(" (what is there is kept as refs/swarm/from/x)"), "{errors:?}");
    assert!(!errors[1].starts_with("an unfinished"), "{errors:?}");
    rig.check();
}

/// Each step of an attempt fails before or after its effect, or the supervisor is killed there.
#[tokio::test(start_paused = true)]
async fn an_attempt_is_executed_once_wherever_the_line_is_cut_or_the_supervisor_killed() {
    let steps = ["hosts.bring", "hosts.start", "hosts.end", "run.append", "hosts.take"];
    let steps = steps.iter().flat_map(|step| [(*step).to_owned(), format!("{step}.after")]);
    let mut struck = 0;
    for (step, kills) in steps.flat_map(|step| [(step.clone(), false), (step, true)]) {
        if step == "hosts.take.after" {
            continue;
        }
        let mut rig = Rig::start().await;
        let fault = || if kills { Fault::Hang } else { Fault::Error("cut") };
        let is_early = step != "hosts.end.after" && !step.starts_with("hosts.take");
        if is_early && !step.starts_with("run.append") {
            rig.world.script.at(&step, fault());
        }
        begin(&rig, vec![spec("j")], 3).await;
        if step.starts_with("run.append") || !is_early {
            rig.world.script.at(&step, fault());
        }
        pass(&rig, 5).await;
        finish_all(&rig);
        pass(&rig, 5).await;
        struck += usize::from(rig.world.script.forget_faults());
        if kills {
            rig.crash().await;
            rig.up().await;
        }
        pass(&rig, 130).await;
        finish_all(&rig);
        pass(&rig, 130).await;
        assert_eq!(run(&rig).mode, Mode::Over(Verdict::Completed), "{step}, killed: {kills}");
        assert_eq!(rig.world.landings.base().len(), 1, "{step}, killed: {kills}");
        let starts: usize = HOSTS.iter().map(|host| rig.world.hosts.starts(host)).sum();
        assert_eq!(starts, 1, "{step}, killed: {kills}");
        rig.check();
    }
    assert_eq!(struck, 18, "each fault struck");
}

#[tokio::test(start_paused = true)]
async fn a_stop_reaches_the_hosts() {
    let rig = Rig::start().await;
    begin(&rig, vec![spec("j")], 3).await;
    order(&rig, RunOrder::Stop { home: HOME.to_owned() }).await;
    pass(&rig, 1).await;
    assert_eq!((stages(&run(&rig)), run(&rig).mode), (vec!["paused"], Mode::Over(Verdict::Interrupted)));
    assert_eq!(at_work(&rig), []);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_while_a_host_is_away_ends_and_the_next_one_takes_the_same_attempt() {
    for finishes in [false, true] {
        let rig = Rig::start().await;
        begin(&rig, vec![spec("j")], 3).await;
        rig.world.hosts.fail("a", away());
        order(&rig, RunOrder::Stop { home: HOME.to_owned() }).await;
        pass(&rig, 15).await;
        assert_eq!((stages(&run(&rig)), run(&rig).mode), (vec!["paused"], Mode::Over(Verdict::Interrupted)));
        rig.world.hosts.fail("a", None);
        if finishes {
            rig.world.hosts.finish("a", "j.1", end(0));
        }
        begin(&rig, vec![spec("j")], 3).await;
        pass(&rig, 5).await;
        finish_all(&rig);
        pass(&rig, 30).await;
        assert_eq!((run(&rig).mode, run(&rig).jobs[0].attempt), (Mode::Over(Verdict::Completed), 1));
        assert_eq!((rig.world.hosts.starts("a"), rig.world.landings.base().len()), (1, 1));
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_was_sent_stays_at_a_host_that_cannot_be_used_for_a_while() {
    let mut rig = Rig::start().await;
    begin(&rig, vec![spec("j")], 3).await;
    rig.crash().await;
    for fault in [
        HostFault::Refused { cause: "the program is missing".to_owned() },
        HostFault::Busy { cause: "the disk is full".to_owned() },
    ] {
        rig.world.hosts.fail("a", Some(fault));
        rig.up().await;
        pass(&rig, 1000).await;
        assert_eq!((run(&rig).jobs[0].attempt, rig.world.hosts.starts("b")), (1, 0), "it may be at work");
        rig.crash().await;
    }
    rig.world.hosts.fail("a", None);
    rig.up().await;
    assert_eq!(rig.world.hosts.starts("a"), 1);
    finish_all(&rig);
    pass(&rig, 400).await;
    assert_eq!((run(&rig).mode, run(&rig).jobs[0].attempt), (Mode::Over(Verdict::Completed), 1));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_host_that_answers_again_is_known_before_its_attempt_ends() {
    let rig = Rig::start().await;
    begin(&rig, vec![spec("j")], 3).await;
    for round in 1..=8 {
        rig.world.hosts.fail("a", away());
        pass(&rig, 2).await;
        assert!(run(&rig).closed.contains_key("a"));
        rig.world.hosts.fail("a", None);
        pass(&rig, 10).await;
        assert!(run(&rig).closed.is_empty(), "round {round}");
    }
    assert_eq!(told(&rig, |word| matches!(word, Word::HostBack { .. })), 8);
    finish_all(&rig);
    pass(&rig, 30).await;
    assert_eq!(run(&rig).mode, Mode::Over(Verdict::Completed));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_stop_starts_nothing_that_is_being_sent_and_waits_for_no_work() {
    let rig = Rig::start().await;
    let (send, wait) = tokio::sync::oneshot::channel();
    rig.world.script.at("hosts.bring", Fault::Wait(wait));
    begin(&rig, vec![spec("j")], 3).await;
    order(&rig, RunOrder::Stop { home: HOME.to_owned() }).await;
    pass(&rig, 1).await;
    assert_eq!((stages(&run(&rig)), run(&rig).mode), (vec!["paused"], Mode::Over(Verdict::Interrupted)));
    let _ = send.send(());
    pass(&rig, 30).await;
    assert_eq!(HOSTS.map(|host| rig.world.hosts.starts(host)), [0, 0]);
    // The host stops the agent, but the run cannot fetch its work.
    begin(&rig, vec![spec("j")], 3).await;
    rig.world.script.at("hosts.end.after", Fault::Hang);
    order(&rig, RunOrder::Stop { home: HOME.to_owned() }).await;
    pass(&rig, 15).await;
    assert_eq!(run(&rig).mode, Mode::Over(Verdict::Interrupted));
    assert!(rig.world.script.forget_faults() && run(&rig).jobs[0].sent);
    begin(&rig, vec![spec("j")], 3).await;
    pass(&rig, 5).await;
    let progress = run(&rig).jobs[0].clone();
    assert_eq!((progress.stage.word(), progress.attempt, progress.failures), ("working", 2, 0), "its end is known now");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn each_host_of_a_job_is_told_to_forget_it_and_a_worker_of_its_name_here_stays() {
    let rig = Rig::start().await;
    rig.spawn(with_tree("p.j")).await.expect("somebody's own");
    begin(&rig, vec![spec("j")], 3).await;
    rig.world.script.at("hosts.bring", Fault::Error("cut"));
    rig.world.hosts.finish("a", "j.1", end(1));
    pass(&rig, 5).await;
    assert_eq!(at_work(&rig), [("b", "j.2".to_owned())]);
    finish_all(&rig);
    pass(&rig, 60).await;
    assert_eq!(run(&rig).mode, Mode::Over(Verdict::Completed));
    for host in HOSTS {
        assert!(rig.world.script.position(&format!("hosts.forget {host} j.2")).is_some(), "{host}");
    }
    let queue = rig.swarm().queues().await.expect("queues").remove(0).queue;
    assert_eq!(queue.items[0].name, "arial/j");
    assert_eq!(rig.world.rows().len(), 1, "the worker of that name is somebody else's");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn what_was_done_on_a_host_goes_on_here_if_this_machine_is_named() {
    let rig = Rig::start().await;
    let on = ["a", Seats::LOCAL].map(|host| Seats { host: host.to_owned(), cap: 2, tags: Vec::new() }).to_vec();
    let plan = Plan { rules: Rules { limit: 20, on, ..Rules::default() }, ..plan(vec![spec("j")]) };
    order(&rig, RunOrder::Begin { plan: Box::new(plan), retry_failed: false }).await;
    rig.world.script.at("hosts.bring", Fault::Error("cut"));
    rig.world.hosts.finish("a", "j.1", end(1));
    pass(&rig, 5).await;
    let progress = run(&rig).jobs[0].clone();
    assert_eq!((progress.stage.word(), progress.attempt, progress.host), ("working", 2, None));
    assert_eq!(progress.tip, None, "it was taken");
    assert!(rig.world.script.position("hosts.take j").is_some());
    rig.world.end("p.j", Ended::Code(0));
    pass(&rig, 60).await;
    assert_eq!(run(&rig).mode, Mode::Over(Verdict::Completed));
    assert_eq!(rig.world.landings.base().len(), 1);
    assert!(rig.world.script.position("hosts.forget a j.2").is_some(), "nothing is left there");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn commands_are_executed_on_hosts_and_their_exit_codes_count() {
    let rig = Rig::start().await;
    let bare = |id: &str| Job { branch: None, merge: false, ..job(id) };
    begin(&rig, vec![bare("i"), Job { retries: 0, ..bare("k") }, job("l")], 3).await;
    let host = |id: &str| at_work(&rig).into_iter().find(|(_, attempt)| attempt.starts_with(id)).expect("at work").0;
    let bare_end = |code: i32| FarEnd { tip: None, ..end(code) };
    rig.world.hosts.finish(host("i"), "i.1", bare_end(1));
    rig.world.hosts.finish(host("k"), "k.1", bare_end(7));
    rig.world.hosts.finish(host("l"), "l.1", end(0));
    pass(&rig, 5).await;
    assert_eq!(at_work(&rig).len(), 1, "only the retry");
    rig.world.hosts.finish(host("i"), "i.2", bare_end(0));
    pass(&rig, 30).await;
    assert_eq!(stages(&run(&rig)), ["done", "failed", "done"]);
    assert_eq!(rig.world.landings.base().len(), 1);
    assert!(
        rig.world.script.position("hosts.forget a i.2").or(rig.world.script.position("hosts.forget b i.2")).is_some()
    );
    assert_eq!(rig.world.rows(), [], "there are no workers here");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn finished_work_waits_while_somebody_looks_at_its_branch() {
    let rig = Rig::start().await;
    begin(&rig, vec![spec("j"), Job { after: vec!["j".to_owned()], ..spec("k") }], 3).await;
    rig.world.hosts.blocks_take(Some("branch 'arial/j' is checked out".to_owned()));
    rig.world.hosts.finish("a", "j.1", end(0));
    pass(&rig, 600).await;
    let progress = run(&rig).jobs[0].clone();
    assert_eq!((progress.stage.word(), progress.attempt), ("waiting", 1));
    assert_eq!(progress.error.as_deref(), Some("branch 'arial/j' is checked out"));
    assert_eq!(run(&rig).mode, Mode::Running);
    rig.world.hosts.blocks_take(None);
    pass(&rig, 90).await;
    assert_eq!(stages(&run(&rig)), ["done", "working"]);
    assert_eq!(rig.world.hosts.starts("a") + rig.world.hosts.starts("b"), 2, "no attempt was repeated");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_a_restart_of_its_host_has_ended_is_repeated_there() {
    let rig = Rig::start().await;
    begin(&rig, vec![spec("i"), spec("j")], 3).await;
    let mut ended = exit_record(Ended::Signal(15), Reason::Stopped);
    // As the exit of a worker whose end is unknown counts.
    ended.interrupted = true;
    let restarted = FarEnd { exit: Some(ended), is_restarted: true, ..end(0) };
    rig.world.hosts.finish("b", "j.1", restarted);
    pass(&rig, 5).await;
    assert_eq!(at_work(&rig), [("a", "i.1".to_owned()), ("b", "j.2".to_owned())]);
    let progress = run(&rig).jobs[1].clone();
    assert_eq!((progress.failures, progress.lost), (0, 1));
    assert_eq!(progress.error.as_deref(), Some("b was restarted during the attempt"));
    rig.check();
}

/// The supervisor is killed while the end of the run waits for the host.
#[tokio::test(start_paused = true)]
async fn what_a_failed_job_has_left_is_removed_if_the_supervisor_dies_at_the_end_of_the_run() {
    let mut rig = Rig::start().await;
    begin(&rig, vec![spec("j")], 3).await;
    rig.world.script.at("hosts.forget", Fault::Hang);
    for attempt in ["j.1", "j.2"] {
        rig.world.hosts.finish("a", attempt, end(1));
        pass(&rig, 1).await;
    }
    assert_eq!(run(&rig).mode, Mode::Over(Verdict::Failed));
    assert!(rig.world.script.forget_faults());
    rig.crash().await;
    rig.world.script.forget_calls();
    rig.up().await;
    pass(&rig, 5).await;
    assert_eq!(rig.world.script.count("hosts.forget a j.2"), 1);
    let at = |call: &str| rig.world.script.position(call).expect("was called");
    let (released, closed) = (at("hosts.release r1"), at(&format!("run.close {HOME}")));
    assert!(at("hosts.admit r1") < at("hosts.forget a j.2") && released < closed, "the next run may begin after that");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn of_hosts_that_are_used_alike_the_one_with_less_load_is_chosen_also_after_a_crash() {
    let mut rig = Rig::start().await;
    rig.world.hosts.set_load("a", 4);
    let after = |id: &str, before: &str| Job { after: vec![before.to_owned()], ..spec(id) };
    begin(&rig, vec![spec("i"), after("j", "i"), after("k", "j")], 3).await;
    assert_eq!(at_work(&rig), [("a", "i.1".to_owned())]);
    rig.crash().await;
    rig.up().await;
    rig.world.hosts.set_load("b", 9);
    finish_all(&rig);
    pass(&rig, 30).await;
    assert_eq!(at_work(&rig), [("b", "j.1".to_owned())]);
    finish_all(&rig);
    pass(&rig, 30).await;
    assert_eq!((at_work(&rig), run(&rig).loads.len()), (vec![("a", "k.1".to_owned())], 2));
    rig.check();
}
