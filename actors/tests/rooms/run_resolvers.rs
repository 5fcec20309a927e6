//! Resolvers of the work of a run, which its limit includes.

use std::time::Duration;

use swarm_actors::testing::Fault;
use swarm_model::merge::queue::Item;
use swarm_model::run::plan::Job;
use swarm_model::run::progress::{Mode, Stage, Verdict};
use swarm_model::{
    Answer, EventKind, FineState, MergeOrder, MergeRequest, MergeSettings, RunOrder, RunRequest, Target,
};
use tokio::sync::oneshot;

use crate::fixture::{Rig, caller};
use crate::run::{HOME, end, job, pass, plan, stages};

/// Starts a run whose first item in the queue conflicts. The sender ends the first resolver.
async fn begin(limit: usize, jobs: Vec<Job>) -> (Rig, oneshot::Sender<()>) {
    let rig = Rig::start().await;
    rig.world.landings.make_conflicting(0);
    let (done, ends) = oneshot::channel();
    rig.world.script.at("resolve", Fault::Wait(ends));
    start(&rig, limit, jobs).await;
    (rig, done)
}

async fn start(rig: &Rig, limit: usize, jobs: Vec<Job>) {
    let mut plan = plan(jobs);
    plan.rules.limit = limit;
    plan.rules.merge = MergeSettings { resolver: Some("resolve".to_owned()), ..MergeSettings::default() };
    order(rig, RunOrder::Begin { plan: Box::new(plan), retry_failed: false }).await;
    rig.world.settle().await;
}

async fn order(rig: &Rig, order: RunOrder) -> Answer {
    rig.swarm().run(RunRequest { caller: caller(), order }).recv().await.expect("an answer")
}

async fn ask(rig: &Rig, order: impl FnOnce(Target) -> MergeOrder) -> Answer {
    let target = rig.swarm().queues().await.expect("complete")[0].target.clone();
    rig.swarm().merge(MergeRequest { caller: caller(), order: order(target) }).recv().await.expect("an answer")
}

async fn item(rig: &Rig) -> Item {
    rig.swarm().queues().await.expect("complete")[0].queue.items[0].clone()
}

fn resolvers(rig: &Rig) -> usize {
    rig.world.script.count("resolve p.a")
}

fn now(rig: &Rig) -> Vec<&'static str> {
    stages(&rig.world.runs.run(HOME))
}

/// Reports whether the resolver of the first item waits for a place.
async fn waits(rig: &Rig) -> bool {
    let item = item(rig).await;
    let told = |kind: &EventKind| matches!(kind, EventKind::MergeResolving { .. });
    let is_told = rig.world.events.all().iter().any(|event| told(&event.kind));
    assert_eq!(is_told, resolvers(rig) > 0, "it is not reported before it is started");
    item.state.word() == "queued" && item.reason().is_some_and(|why| why.contains("'-j'"))
}

#[tokio::test(start_paused = true)]
async fn a_resolver_takes_a_place_of_its_run_and_holds_it_to_its_end() {
    let after = |id: &str| Job { after: vec!["b".to_owned()], ..job(id) };
    let (rig, done) = begin(2, vec![job("a"), job("b"), after("c"), after("d")]).await;
    end(&rig, "a", 0);
    pass(&rig).await;
    assert_eq!((resolvers(&rig), item(&rig).await.state.word()), (1, "resolving"), "there is a place");
    end(&rig, "b", 0);
    pass(&rig).await;
    assert_eq!(now(&rig), ["merging", "done", "working", "pending"], "one job beside the resolver");
    let _ = done.send(());
    pass(&rig).await;
    assert_eq!(now(&rig), ["done", "done", "working", "working"]);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_resolver_waits_for_a_place_and_goes_before_pending_jobs() {
    let (rig, done) = begin(1, vec![job("a"), job("b"), job("c")]).await;
    end(&rig, "a", 0);
    pass(&rig).await;
    assert_eq!((resolvers(&rig), waits(&rig).await, now(&rig)), (0, true, vec!["merging", "working", "pending"]));
    // However long that takes: the time limit of the resolver is not that of the wait.
    rig.world.pass(Duration::from_secs(5 * 3600)).await;
    assert_eq!((resolvers(&rig), waits(&rig).await), (0, true));
    assert!(rig.world.script.count("build p.a") <= 2, "it does not poll");
    end(&rig, "b", 0);
    pass(&rig).await;
    assert_eq!((resolvers(&rig), now(&rig)), (1, vec!["merging", "done", "pending"]));
    let _ = done.send(());
    pass(&rig).await;
    assert_eq!(now(&rig), ["done", "done", "working"]);
    end(&rig, "c", 0);
    pass(&rig).await;
    assert_eq!(rig.world.runs.run(HOME).mode, Mode::Over(Verdict::Completed));
    // What has landed meanwhile is below the result of the resolver.
    assert_eq!(rig.world.landings.base(), [1, 0, 2]);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn an_item_that_is_dropped_while_its_resolver_waits_leaves_the_line() {
    let (rig, _done) = begin(1, vec![Job { retries: 0, ..job("a") }, job("b"), job("c")]).await;
    end(&rig, "a", 0);
    pass(&rig).await;
    assert!(waits(&rig).await);
    let answer = ask(&rig, |target| MergeOrder::Drop { target, item: 0 }).await;
    assert!(matches!(&answer, Answer::Merge(line) if line.done == "dropped"), "{answer:?}");
    pass(&rig).await;
    end(&rig, "b", 0);
    pass(&rig).await;
    assert_eq!((now(&rig)[2], resolvers(&rig)), ("working", 0));
    assert_eq!(rig.world.runs.run(HOME).resolvers, 0);
    assert!(!rig.world.script.forget_faults(), "no resolver was started");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_paused_queue_takes_no_place_from_the_run() {
    let (rig, done) = begin(1, vec![job("a"), job("b"), job("c")]).await;
    end(&rig, "a", 0);
    pass(&rig).await;
    ask(&rig, |target| MergeOrder::Pause { target }).await;
    end(&rig, "b", 0);
    pass(&rig).await;
    assert_eq!((now(&rig), resolvers(&rig)), (vec!["merging", "merging", "working"], 0));
    ask(&rig, |target| MergeOrder::Resume { target }).await;
    pass(&rig).await;
    assert!(waits(&rig).await);
    end(&rig, "c", 0);
    pass(&rig).await;
    assert_eq!(resolvers(&rig), 1);
    let _ = done.send(());
    pass(&rig).await;
    assert_eq!(rig.world.runs.run(HOME).mode, Mode::Over(Verdict::Completed));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_resolver_goes_on_without_a_place_once_its_run_is_stopped() {
    let (rig, done) = begin(1, vec![job("a"), job("b"), job("c")]).await;
    end(&rig, "a", 0);
    pass(&rig).await;
    assert!(waits(&rig).await);
    order(&rig, RunOrder::Stop { home: HOME.to_owned() }).await;
    pass(&rig).await;
    let run = rig.world.runs.run(HOME);
    assert_eq!((run.mode, stages(&run)), (Mode::Over(Verdict::Interrupted), vec!["merging", "paused", "pending"]));
    assert_eq!(resolvers(&rig), 1);
    let _ = done.send(());
    pass(&rig).await;
    assert_eq!(rig.world.landings.base(), [0]);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn the_limit_holds_after_a_restart_of_the_supervisor() {
    for is_running in [false, true] {
        let (mut rig, _done) = begin(1, vec![job("a"), job("b"), job("c"), job("d")]).await;
        end(&rig, "a", 0);
        pass(&rig).await;
        if is_running {
            end(&rig, "b", 0);
            pass(&rig).await;
        }
        assert_eq!(resolvers(&rig), usize::from(is_running));
        rig.crash().await;
        let _ = rig.world.script.forget_faults();
        let (done, ends) = oneshot::channel();
        rig.world.script.at("resolve", Fault::Wait(ends));
        rig.world.script.forget_calls();
        rig.up().await;
        pass(&rig).await;
        // The resolver ended with its supervisor, so that its place was free for a moment.
        let (working, next) = if is_running { ("c", 3) } else { ("b", 2) };
        let run = rig.world.runs.run(HOME);
        assert_eq!((run.count(|stage| *stage == Stage::Working), resolvers(&rig)), (1, 0), "{is_running}: {run:?}");
        end(&rig, working, 0);
        pass(&rig).await;
        assert_eq!((now(&rig)[next], resolvers(&rig)), ("pending", 1), "{is_running}");
        let _ = done.send(());
        for id in ["c", "d"].iter().skip(usize::from(is_running)) {
            pass(&rig).await;
            end(&rig, id, 0);
        }
        pass(&rig).await;
        let run = rig.world.runs.run(HOME);
        assert_eq!((run.mode, run.resolvers), (Mode::Over(Verdict::Completed), 0), "{is_running}: {run:?}");
        assert!(run.jobs.iter().all(|job| job.attempt == 1), "{run:?}");
        rig.check();
    }
}

/// Ends what the supervisor does at each of these steps, with a resolver that waits or works.
#[tokio::test(start_paused = true)]
async fn everything_lands_whatever_is_interrupted() {
    for step in ["run.append", "run.append.after", "save", "save.after", "build", "resolve", "land"] {
        for nth in 0.. {
            let mut rig = Rig::start().await;
            rig.world.landings.make_conflicting(0);
            (0..nth).for_each(|_| rig.world.script.at(step, Fault::Run(Box::new(|| {}))));
            rig.world.script.at(step, Fault::Hang);
            start(&rig, 1, vec![job("a"), job("b"), job("c")]).await;
            for _ in 0..6 {
                finish(&rig).await;
            }
            rig.crash().await;
            let reached = rig.world.script.forget_faults();
            rig.up().await;
            for _ in 0..6 {
                finish(&rig).await;
            }
            let run = rig.world.runs.run(HOME);
            assert_eq!((run.mode, run.resolvers), (Mode::Over(Verdict::Completed), 0), "{step} {nth}: {run:?}");
            assert!(run.jobs.iter().all(|job| job.attempt == 1), "{step} {nth}: {run:?}");
            assert_eq!(rig.world.landings.base().len(), 3, "{step} {nth}");
            let numbers: Vec<u64> = rig.world.runs.told(HOME).iter().filter_map(|telling| telling.number).collect();
            assert_eq!(numbers, (0..run.told).collect::<Vec<_>>(), "{step} {nth}: everything is reported exactly once");
            if !reached {
                assert!(nth > 0, "{step} was never reached");
                break;
            }
        }
    }
}

/// Ends the agents at work, of which there is one at most.
async fn finish(rig: &Rig) {
    let working: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .filter(|id| rig.world.state(&format!("p.{id}")) == Some(FineState::Running))
        .collect();
    assert!(working.len() <= 1, "{working:?}");
    working.iter().for_each(|id| end(rig, id, 0));
    pass(rig).await;
}

#[tokio::test(start_paused = true)]
async fn work_of_others_needs_no_place() {
    let (rig, _done) = begin(1, vec![job("a"), job("b")]).await;
    // The first item is of another worker.
    rig.spawn(crate::fixture::with_tree("x")).await.expect("it starts");
    rig.world.end("x", swarm_model::Ended::Code(0));
    pass(&rig).await;
    let settings = MergeSettings { resolver: Some("resolve".to_owned()), ..MergeSettings::default() };
    let (names, uncommitted) = (vec!["x".to_owned()], Vec::new());
    let add = MergeOrder::Add { names, base: None, priority: 0, settings, uncommitted, generation: None };
    rig.swarm().merge(MergeRequest { caller: caller(), order: add }).recv().await.expect("an answer");
    pass(&rig).await;
    assert_eq!((rig.world.script.count("resolve x"), now(&rig)), (1, vec!["working", "pending"]));
}
