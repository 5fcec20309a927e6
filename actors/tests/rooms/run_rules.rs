//! Work of a run that is in the queue, and rules that a person has corrected.

use std::time::Duration;

use swarm_actors::testing::Fault;
use swarm_model::run::plan::Job;
use swarm_model::run::progress::{Mode, Verdict};
use swarm_model::{Below, Caller, Ended, MergeOrder, MergeRequest, RunOrder, RunRequest, Target};

use crate::fixture::{Rig, caller};
use crate::landing::add;
use crate::run::{HOME, begin, job, plan, stages};

fn verified(command: &str) -> Vec<Job> {
    vec![Job { verify: Some(command.to_owned()), retries: 5, ..job("a") }]
}

async fn stop(rig: &Rig) {
    let order = RunOrder::Stop { home: HOME.to_owned() };
    rig.swarm().run(RunRequest { caller: caller(), order }).recv().await.expect("an answer");
    rig.world.pass(Duration::from_secs(30)).await;
}

#[tokio::test(start_paused = true)]
async fn work_that_waits_lands_by_a_verification_that_was_corrected() {
    let rig = Rig::start().await;
    rig.world.landings.commit(100);
    rig.world.landings.make_bad(100);
    begin(&rig, verified("mkae")).await;
    // The first attempt might have had to mend the base.
    for _ in 0..2 {
        rig.world.end("p.a", Ended::Code(0));
        rig.world.pass(Duration::from_secs(30)).await;
    }
    let run = rig.world.runs.run(HOME);
    assert_eq!((stages(&run), run.jobs[0].attempt), (vec!["waiting"], 2));
    stop(&rig).await;
    // The worktree has something else by now, so that nothing in it could be added again.
    rig.world.landings.switch_away(true);
    rig.world.landings.make_good(100);
    begin(&rig, verified("make")).await;
    rig.world.pass(Duration::from_secs(30)).await;
    let run = rig.world.runs.run(HOME);
    assert_eq!((stages(&run), run.jobs[0].attempt), (vec!["done"], 2), "{:?}", run.jobs);
    assert_eq!(run.mode, Mode::Over(Verdict::Completed));
    let queues = rig.swarm().queues().await.expect("complete");
    let items: Vec<_> = queues[0].queue.items.iter().map(|item| (item.id, item.verified_by.as_deref())).collect();
    assert_eq!(items, [(0, None), (1, Some("make"))]);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn work_that_is_queued_gets_the_verification_that_was_corrected() {
    let rig = Rig::start().await;
    let (repository, branch) = ("/repo/.git".to_owned(), "refs/heads/main".to_owned());
    let target = Target { repository, branch };
    let order = MergeOrder::Pause { target: target.clone() };
    rig.swarm().merge(MergeRequest { caller: caller(), order }).recv().await.expect("an answer");
    begin(&rig, verified("mkae")).await;
    rig.world.end("p.a", Ended::Code(0));
    rig.world.pass(Duration::from_secs(30)).await;
    assert_eq!(stages(&rig.world.runs.run(HOME)), ["merging"]);
    stop(&rig).await;
    begin(&rig, verified("make")).await;
    let order = MergeOrder::Resume { target };
    rig.swarm().merge(MergeRequest { caller: caller(), order }).recv().await.expect("an answer");
    rig.world.pass(Duration::from_secs(30)).await;
    let queues = rig.swarm().queues().await.expect("complete");
    let item = &queues[0].queue.items[0];
    assert_eq!((item.state.word(), item.verified_by.as_deref()), ("landed", Some("make")));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn work_that_is_being_verified_lands_by_the_verification_that_was_corrected() {
    let rig = Rig::start().await;
    let (sender, wait) = tokio::sync::oneshot::channel();
    rig.world.script.at("verify", Fault::Wait(wait));
    begin(&rig, verified("mkae")).await;
    rig.world.end("p.a", Ended::Code(0));
    rig.world.pass(Duration::from_secs(30)).await;
    stop(&rig).await;
    begin(&rig, verified("make")).await;
    let queues = rig.swarm().queues().await.expect("complete");
    assert_eq!(queues[0].queue.items[0].state.word(), "active");
    sender.send(()).expect("it waits");
    rig.world.pass(Duration::from_secs(30)).await;
    let queues = rig.swarm().queues().await.expect("complete");
    let item = &queues[0].queue.items[0];
    assert_eq!((item.state.word(), item.verified_by.as_deref()), ("landed", Some("make")));
    assert_eq!(stages(&rig.world.runs.run(HOME)), ["done"]);
    rig.check();
}

/// Returns a caller with this `PATH`.
fn caller_with(path: &str) -> Caller {
    Caller { environment: vec![("PATH".to_owned(), path.to_owned())].into(), ..caller() }
}

async fn callers(rig: &Rig) -> Vec<Option<String>> {
    let queues = rig.swarm().queues().await.expect("complete");
    queues[0].queue.items.iter().map(|item| item.caller.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn work_that_waits_lands_in_the_environment_of_the_run_that_continues() {
    let rig = Rig::start().await;
    let begin = async |path: &str| {
        let order = RunOrder::Begin { plan: Box::new(plan(verified("make"))), retry_failed: false };
        rig.swarm().run(RunRequest { caller: caller_with(path), order }).recv().await.expect("an answer");
        rig.world.pass(Duration::from_secs(30)).await;
    };
    rig.world.landings.edit(true);
    begin("/bin").await;
    rig.world.end("p.a", Ended::Code(0));
    rig.world.pass(Duration::from_secs(30)).await;
    assert_eq!((stages(&rig.world.runs.run(HOME)), callers(&rig).await), (vec!["waiting"], vec![Some("/bin".into())]));
    stop(&rig).await;
    rig.world.script.at("remember", Fault::Error("no space left"));
    begin("/venv/bin").await;
    assert_eq!(callers(&rig).await, [Some("/bin".to_owned())], "what cannot be written changes nothing");
    stop(&rig).await;
    begin("/venv/bin").await;
    assert_eq!(callers(&rig).await, [Some("/venv/bin".to_owned())]);
    rig.world.landings.edit(false);
    rig.world.pass(Duration::from_secs(60)).await;
    assert_eq!(stages(&rig.world.runs.run(HOME)), ["done"]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_by_a_person_takes_the_environment_of_the_person() {
    let rig = Rig::start().await;
    rig.world.landings.edit(true);
    add(&rig, "w").await;
    rig.world.pass(Duration::from_secs(1)).await;
    let target = rig.swarm().queues().await.expect("complete")[0].target.clone();
    let retry = async |caller| {
        let order = MergeOrder::Retry { target: target.clone(), item: 0 };
        rig.swarm().merge(MergeRequest { caller, order }).recv().await.expect("an answer");
        rig.world.pass(Duration::from_secs(1)).await;
    };
    retry(caller_with("/venv/bin")).await;
    assert_eq!(callers(&rig).await, [Some("/venv/bin".to_owned())]);
    let agent = Caller { below: Some(Below::Command), ..caller_with("/fake") };
    retry(agent).await;
    assert_eq!(callers(&rig).await, [Some("/venv/bin".to_owned())], "an agent changes nothing");
}
