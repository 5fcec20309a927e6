//! The root: how long it stays, and how it handles failing children.

use std::time::Duration;

use swarm_actors::supervisor::{Exit, Request};
use swarm_actors::testing::Fault;
use swarm_model::{Answer, Ended, FineState, KillRequest, RefusalKind, RestartPolicy, Scope};
use tokio::time::Instant;

use crate::fixture::{ADOPTION, Rig, clean, kill, request, restarting, with_tree};

const IDLE: Duration = Duration::from_secs(30);

/// Returns the time until the supervisor wants to end, and the reason.
async fn ended_after(rig: &Rig) -> (Duration, Exit) {
    let began = Instant::now();
    let exit = rig.swarm().ended().await;
    (began.elapsed(), exit)
}

/// Reports whether the supervisor is still running after `time`.
async fn stays(rig: &Rig, time: Duration) -> bool {
    tokio::time::timeout(time, rig.swarm().ended()).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn the_supervisor_leaves_when_there_is_nothing_to_do() {
    let rig = Rig::start().await;
    let (after, exit) = ended_after(&rig).await;
    assert_eq!(exit, Exit::Idle);
    assert!((after + ADOPTION).abs_diff(IDLE) < Duration::from_millis(10), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn the_supervisor_stays_while_a_worker_needs_it() {
    let rig = Rig::start().await;
    rig.spawn(restarting("a", RestartPolicy::OnFailure)).await.expect("starts");
    assert!(stays(&rig, Duration::from_secs(3600)).await, "a worker runs");
    rig.world.kill_shim("a");
    assert!(stays(&rig, Duration::from_secs(3600)).await, "a worker runs without a shim");
    for _ in 0..7 {
        rig.world.end("a", Ended::Code(1));
        assert!(stays(&rig, Duration::from_secs(61)).await, "a restart is due");
    }
    rig.world.end("a", Ended::Code(0));
    let (after, exit) = ended_after(&rig).await;
    assert_eq!(exit, Exit::Idle);
    assert!(after.abs_diff(IDLE) < Duration::from_millis(10), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn the_supervisor_stays_while_a_request_is_carried_out() {
    let rig = Rig::start().await;
    rig.world.script.at("make", Fault::Hang);
    let _answers = rig.swarm().request(Request::Spawn(Box::new(with_tree("slow"))));
    assert!(stays(&rig, Duration::from_secs(600)).await);
}

#[tokio::test(start_paused = true)]
async fn a_worker_actor_that_panics_is_restarted_with_its_state() {
    let rig = Rig::start().await;
    rig.spawn(restarting("a", RestartPolicy::OnFailure)).await.expect("starts");
    rig.spawn(request("b")).await.expect("starts");
    rig.world.script.at("write_wanted", Fault::Panic);
    let refusal = rig.kill("a").await.expect_err("its actor is gone");
    assert_eq!(refusal.kind, RefusalKind::Stopping);
    rig.world.settle().await;
    assert_eq!((rig.world.state("a"), rig.swarm().live().await), (Some(FineState::Running), 2));
    rig.world.end("a", Ended::Code(1));
    rig.world.pass(Duration::from_secs(2)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Running), "its end was seen");
    rig.kill("a").await.expect("ends");
    assert_eq!(rig.world.state("b"), Some(FineState::Running));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_worker_actor_that_keeps_panicking_ends_the_supervisor() {
    let mut rig = Rig::start().await;
    rig.spawn(request("a")).await.expect("starts");
    for _ in 0..5 {
        rig.world.script.at("observe", Fault::Panic);
    }
    rig.crash().await;
    rig.up().await;
    assert!(stays(&rig, Duration::from_secs(60)).await, "five failures are borne");
    assert_eq!(rig.swarm().live().await, 1);
    for _ in 0..6 {
        rig.world.script.at("observe", Fault::Panic);
    }
    assert_eq!(rig.kill("a").await.map_err(|refusal| refusal.kind), Err(RefusalKind::Stopping));
    assert_eq!(rig.swarm().ended().await, Exit::GaveUp);
    assert_eq!(rig.world.state("a"), Some(FineState::Running), "the worker does not mind");
}

#[tokio::test(start_paused = true)]
async fn a_panic_over_an_ended_worker_does_not_keep_the_supervisor() {
    let rig = Rig::start().await;
    rig.spawn(request("a")).await.expect("starts");
    // Its exit causes a panic, and the new actor finds nothing to do.
    rig.world.script.at("observe", Fault::Panic);
    rig.world.end("a", Ended::Code(0));
    rig.world.settle().await;
    assert_eq!(rig.world.script.unmet(), Vec::<String>::new());
    assert_eq!(rig.swarm().live().await, 0);
    let ended = tokio::time::timeout(Duration::from_secs(60), rig.swarm().ended()).await;
    assert_eq!(ended.ok(), Some(Exit::Idle));
}

#[tokio::test(start_paused = true)]
async fn a_start_that_panics_is_rolled_back_at_once() {
    for step in ["reserve.after", "make", "make.after", "prepare", "prepare.after"] {
        let rig = Rig::start().await;
        rig.world.script.at(step, Fault::Panic);
        rig.spawn(with_tree("a")).await.expect_err("its actor is gone");
        rig.world.pass(ADOPTION).await;
        assert_eq!((rig.world.records.keys(), rig.world.kernel.living()), (Vec::new(), 0), "{step}");
        assert_eq!(rig.world.worktrees.paths(), Vec::<String>::new(), "{step}");
        rig.spawn(with_tree("a")).await.expect("the name is free");
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_in_progress_does_not_outlive_its_registry() {
    let rig = Rig::start().await;
    rig.world.script.at("make.after", Fault::Hang);
    let mut slow = rig.swarm().request(Request::Spawn(Box::new(with_tree("slow"))));
    rig.world.settle().await;
    let (path, script) = (rig.world.root.join("state.json"), rig.world.script.clone());
    rig.world.script.at(
        "prepare.after",
        Fault::Run(Box::new(move || {
            script.at("scan_now", Fault::Panic);
            std::fs::write(path, "damage").expect("writes");
        })),
    );
    rig.spawn(request("a")).await.expect_err("the registry is gone");
    let refused = std::iter::from_fn(|| slow.try_recv().ok()).count();
    rig.world.pass(ADOPTION).await;
    let refused = refused + std::iter::from_fn(|| slow.try_recv().ok()).count();
    assert_eq!(refused, 2, "it was refused and told so");
    assert_eq!((rig.world.records.keys(), rig.world.worktrees.paths()), (Vec::new(), Vec::new()));
    rig.spawn(with_tree("slow")).await.expect("the name is free");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_panics_is_restarted_with_all_workers() {
    let rig = Rig::start().await;
    rig.spawn(restarting("a", RestartPolicy::OnFailure)).await.expect("starts");
    rig.spawn(request("b")).await.expect("starts");
    rig.kill("b").await.expect("ends");
    // The file is damaged after it was read, and the rebuild within the commit panics.
    let (path, script) = (rig.world.root.join("state.json"), rig.world.script.clone());
    rig.world.script.at(
        "prepare.after",
        Fault::Run(Box::new(move || {
            script.at("scan_now", Fault::Panic);
            std::fs::write(path, "damage").expect("writes");
        })),
    );
    let began = Instant::now();
    rig.spawn(request("c")).await.expect_err("the registry is gone");
    assert!(began.elapsed() < Duration::from_secs(5), "unnoticed for {:?}", began.elapsed());
    rig.world.pass(ADOPTION).await;
    rig.spawn(request("c")).await.expect("starts");
    rig.world.end("a", Ended::Code(1));
    rig.world.pass(Duration::from_secs(2)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Running), "its end was seen");
    let names: Vec<String> = rig.world.rows().into_iter().map(|row| row.name).collect();
    assert_eq!((names.len(), rig.swarm().live().await), (3, 2));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn all_selects_the_existing_workers() {
    let rig = Rig::start().await;
    for name in ["a", "b", "c"] {
        rig.spawn(request(name)).await.expect("starts");
    }
    rig.kill("b").await.expect("ends");
    let all = clean("");
    let answers = rig.ask(Request::Clean(Box::new(swarm_model::CleanRequest { scope: Scope::All, ..all }))).await;
    assert_eq!(answers.len(), 1, "running ones are passed over: {answers:?}");
    let left: Vec<String> = rig.world.rows().into_iter().map(|row| row.name).collect();
    assert_eq!(left, ["a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_kill_of_all_includes_workers_that_are_being_started() {
    let rig = Rig::start().await;
    rig.spawn(request("a")).await.expect("starts");
    rig.spawn(with_tree("failed")).await.expect("starts");
    rig.kill("failed").await.expect("ends");
    rig.clean("failed").await.expect("cleaned");
    let (go, until) = tokio::sync::oneshot::channel();
    rig.world.script.at("make", Fault::Wait(until));
    let spawning = rig.swarm().request(Request::Spawn(Box::new(with_tree("slow"))));
    rig.world.settle().await;
    let Request::Kill(one) = kill("") else { panic!("not a kill") };
    let mut killing = rig.swarm().request(Request::Kill(Box::new(KillRequest { scope: Scope::All, ..*one })));
    rig.world.settle().await;
    go.send(()).expect("the start waits");
    let mut killed = Vec::new();
    while let Some(Answer::Worker(line)) = killing.recv().await {
        killed.push(line.name);
    }
    assert_eq!(killed, ["a", "slow"]);
    assert_eq!(rig.world.state("slow"), Some(FineState::Stopped));
    drop(spawning);
    rig.check();
}
