//! Attempts on hosts that are given up: they are repeated elsewhere, and only the repetition lands.

use swarm_actors::testing::Fault;
use swarm_model::run::plan::{Plan, Rules, Seats};
use swarm_model::run::progress::{Mode, Verdict};
use swarm_model::run::words::Word;
use swarm_model::{Answer, Refusal, RunOrder, RunRequest};

use crate::fixture::{Rig, caller};
use crate::run::{HOME, plan, stages};
use crate::run_hosts::{at_work, away, begin, end, finish_all, order, pass, run, spec, told};

pub async fn give_up(rig: &Rig, jobs: &[&str]) -> Result<(), Refusal> {
    let order = RunOrder::GiveUp { home: HOME.to_owned(), jobs: jobs.iter().map(|job| (*job).to_owned()).collect() };
    let answer = rig.swarm().run(RunRequest { caller: caller(), order }).recv().await.expect("an answer");
    rig.world.settle().await;
    match answer {
        Answer::Run(line) => {
            assert_eq!(line.done, "given up");
            Ok(())
        }
        Answer::Refused(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

async fn lose(rig: &Rig) {
    rig.world.hosts.fail("a", away());
    pass(rig, 3600).await;
}

/// Ends the attempt on the other host, and then the run.
async fn complete(rig: &Rig) {
    pass(rig, 5).await;
    assert_eq!(at_work(rig).last(), Some(&("b", "j.2".to_owned())));
    rig.world.hosts.finish("b", "j.2", end(0));
    pass(rig, 60).await;
    assert_eq!((run(rig).mode, run(rig).jobs[0].failures), (Mode::Over(Verdict::Completed), 0));
    assert_eq!(rig.world.landings.base().len(), 1);
    assert_eq!(["a", "b"].map(|host| rig.world.hosts.starts(host)), [1, 1]);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_given_up_is_repeated_on_another_host() {
    let rig = Rig::start().await;
    begin(&rig, vec![spec("j")], 3).await;
    let refusal = give_up(&rig, &["j"]).await.expect_err("it answers");
    assert_eq!(refusal.cause, "workstream 'j' works on a, which answers");
    lose(&rig).await;
    give_up(&rig, &["j", "k"]).await.expect_err("all or none");
    assert_eq!((run(&rig).jobs[0].attempt, run(&rig).abandoned.len()), (1, 0));
    give_up(&rig, &["j", "j"]).await.expect("given up");
    assert_eq!(told(&rig, |word| matches!(word, Word::Abandoned { attempt: 1, .. })), 1);
    give_up(&rig, &["j"]).await.expect_err("the next attempt is at work");
    complete(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn the_late_end_of_an_attempt_that_was_given_up_does_not_count() {
    for code in [0, 1] {
        let rig = Rig::start().await;
        begin(&rig, vec![spec("j")], 3).await;
        lose(&rig).await;
        give_up(&rig, &["j"]).await.expect("given up");
        rig.world.hosts.finish("a", "j.1", end(code));
        rig.world.hosts.fail("a", None);
        pass(&rig, 200).await;
        assert_eq!((stages(&run(&rig)), run(&rig).jobs[0].attempt), (vec!["working"], 2));
        complete(&rig).await;
    }
}

/// The supervisor is killed right before and right after the event is durable.
#[tokio::test(start_paused = true)]
async fn what_is_given_up_stays_so_if_the_supervisor_is_killed() {
    for step in ["run.append", "run.append.after"] {
        let mut rig = Rig::start().await;
        begin(&rig, vec![spec("j")], 3).await;
        lose(&rig).await;
        rig.world.script.at(step, Fault::Hang);
        let jobs = vec!["j".to_owned()];
        let order = RunOrder::GiveUp { home: HOME.to_owned(), jobs };
        let _answers = rig.swarm().run(RunRequest { caller: caller(), order });
        pass(&rig, 5).await;
        assert!(rig.world.script.forget_faults());
        rig.crash().await;
        rig.up().await;
        pass(&rig, 5).await;
        if step == "run.append" {
            assert_eq!(run(&rig).jobs[0].attempt, 1, "it was never asked for");
            give_up(&rig, &["j"]).await.expect("given up");
        }
        assert_eq!(run(&rig).abandoned.len(), 1, "{step}");
        complete(&rig).await;
    }
}

/// A start is under way when the attempt is given up: it is not left alone on its way, and counts as given up.
#[tokio::test(start_paused = true)]
async fn an_attempt_whose_host_comes_back_at_that_moment_is_still_given_up() {
    for fault in [None, away()] {
        let mut rig = Rig::start().await;
        begin(&rig, vec![spec("j")], 3).await;
        rig.crash().await;
        rig.world.hosts.fail("a", away());
        rig.up().await;
        let (send, wait) = tokio::sync::oneshot::channel();
        pass(&rig, 1).await;
        rig.world.script.at("hosts.start", Fault::Wait(wait));
        rig.world.hosts.fail("a", fault);
        pass(&rig, 5).await;
        give_up(&rig, &["j"]).await.expect("its host has not answered yet");
        let _ = send.send(());
        complete(&rig).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_a_stopped_run_has_sent_is_given_up_by_the_next_run() {
    let rig = Rig::start().await;
    begin(&rig, vec![spec("j")], 3).await;
    rig.world.hosts.fail("a", away());
    order(&rig, RunOrder::Stop { home: HOME.to_owned() }).await;
    pass(&rig, 15).await;
    let refusal = give_up(&rig, &["j"]).await.expect_err("no run is in progress");
    assert_eq!(refusal.remedy.as_deref(), Some("run 'swarm run' to start or continue one"));
    begin(&rig, vec![spec("j")], 3).await;
    pass(&rig, 5).await;
    give_up(&rig, &["j"]).await.expect("given up");
    complete(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_without_another_host_waits_for_the_one_that_it_has() {
    let rig = Rig::start().await;
    rig.world.hosts.fail("b", away());
    begin(&rig, vec![spec("j")], 3).await;
    lose(&rig).await;
    give_up(&rig, &["j"]).await.expect("given up");
    pass(&rig, 3600).await;
    assert_eq!((stages(&run(&rig)), run(&rig).mode), (vec!["pending"], Mode::Running));
    rig.world.hosts.fail("b", None);
    pass(&rig, 130).await;
    complete(&rig).await;
    finish_all(&rig);
}

fn returned(rig: &Rig) -> usize {
    told(rig, |word| matches!(word, Word::Returned { attempt: 1, reference: Some(_), .. }))
}

#[tokio::test(start_paused = true)]
async fn the_work_of_an_attempt_that_was_given_up_comes_back_and_does_not_land() {
    let rig = Rig::start().await;
    begin(&rig, vec![spec("j")], 3).await;
    lose(&rig).await;
    give_up(&rig, &["j"]).await.expect("given up");
    pass(&rig, 600).await;
    assert_eq!((returned(&rig), at_work(&rig).len()), (0, 2));
    rig.world.hosts.fail("a", None);
    pass(&rig, 130).await;
    assert_eq!((returned(&rig), at_work(&rig)), (1, vec![("b", "j.2".to_owned())]), "it is ended there");
    let abandoned = run(&rig).abandoned.remove(0);
    assert_eq!((abandoned.is_back, abandoned.found_at.as_deref()), (true, Some("refs/swarm/from/a/j.1")));
    assert!(run(&rig).closed.is_empty());
    complete(&rig).await;
    assert_eq!(rig.world.hosts.returned("a"), ["j.1"]);
}

#[tokio::test(start_paused = true)]
async fn the_work_comes_back_with_another_run_if_its_own_is_over() {
    let rig = Rig::start().await;
    begin(&rig, vec![spec("j")], 3).await;
    lose(&rig).await;
    give_up(&rig, &["j"]).await.expect("given up");
    complete(&rig).await;
    assert_eq!(at_work(&rig), [("a", "j.1".to_owned())]);
    rig.world.hosts.fail("a", None);
    begin(&rig, vec![spec("k")], 3).await;
    assert_eq!((at_work(&rig), rig.world.hosts.returned("a")), (vec![("a", "k.1".to_owned())], vec!["j.1".to_owned()]));
    pass(&rig, 5).await;
    assert_eq!(returned(&rig), 1, "the run of the same home tells it");
}

/// What is owed is on record wherever the supervisor is killed, and is told once.
#[tokio::test(start_paused = true)]
async fn the_work_comes_back_if_the_supervisor_is_killed_meanwhile() {
    for step in ["hosts.owe", "hosts.owe.after", "hosts.reclaim", "hosts.reclaim.after"] {
        let mut rig = Rig::start().await;
        begin(&rig, vec![spec("j")], 3).await;
        lose(&rig).await;
        rig.world.script.at(step, Fault::Hang);
        give_up(&rig, &["j"]).await.expect("given up");
        rig.world.hosts.fail("a", None);
        pass(&rig, 130).await;
        assert!(rig.world.script.forget_faults(), "{step}");
        rig.crash().await;
        rig.up().await;
        pass(&rig, 130).await;
        assert_eq!((returned(&rig), run(&rig).abandoned[0].is_back), (1, true), "{step}");
        complete(&rig).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_with_the_request_still_records_what_it_owes() {
    let rig = Rig::start().await;
    begin(&rig, vec![spec("j")], 3).await;
    lose(&rig).await;
    order(&rig, RunOrder::Stop { home: HOME.to_owned() }).await;
    give_up(&rig, &["j"]).await.expect("given up");
    pass(&rig, 5).await;
    assert_eq!(run(&rig).mode, Mode::Over(Verdict::Interrupted));
    rig.world.hosts.fail("a", None);
    begin(&rig, vec![spec("j")], 3).await;
    pass(&rig, 5).await;
    assert_eq!(rig.world.hosts.returned("a"), ["j.1"]);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_given_up_by_itself_after_the_time_that_is_set_and_time_in_suspend_counts() {
    for suspends in [false, true] {
        let mut rig = Rig::start().await;
        let on = ["a", "b"].map(|host| Seats { host: host.to_owned(), cap: 3, tags: Vec::new() }).to_vec();
        let rules = Rules { limit: 20, on, lost_ms: Some(2 * 3_600_000), ..Rules::default() };
        let plan = Plan { rules, ..plan(vec![spec("j")]) };
        order(&rig, RunOrder::Begin { plan: Box::new(plan), retry_failed: false }).await;
        lose(&rig).await;
        if suspends {
            rig.world.clock.jump_wall_ms(3_600_000);
            pass(&rig, 1).await;
        } else {
            rig.crash().await;
            rig.up().await;
            pass(&rig, 3500).await;
            assert_eq!(run(&rig).abandoned, [], "it is not time yet");
            pass(&rig, 200).await;
        }
        assert_eq!((run(&rig).abandoned.len(), run(&rig).jobs[0].attempt), (1, 2), "{suspends}");
        complete(&rig).await;
    }
}
