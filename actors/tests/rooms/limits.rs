//! Resource limits of workers, and the ends that they cause.

use std::time::Duration;

use swarm_model::{By, Ended, FineState, Limits, Reason, RestartPolicy, SpawnRequest};

use crate::fixture::{Rig, request, restarting};

fn limited(asked: SpawnRequest) -> SpawnRequest {
    let limits = Limits { max_output_bytes: Some(1000), pids: Some(5), ..Limits::default() };
    let mut asked = asked;
    asked.contract.limits = limits;
    asked
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_not_in_force_is_reported() {
    let rig = Rig::start().await;
    let spawned = rig.spawn(limited(request("a"))).await.expect("starts");
    // The fake machine supports only output limits.
    assert_eq!(spawned.warnings.len(), 1, "{:?}", spawned.warnings);
    assert!(spawned.warnings[0].starts_with("--pids is not in force"));
    let lease = rig.world.facts("a").and_then(|facts| facts.lease.content).expect("it runs");
    let held = lease.limits.expect("it has limits");
    assert_eq!((held.output, held.pids, held.asked.pids), (Some(By::Swarm), None, Some(5)));
    let free = rig.spawn(request("b")).await.expect("starts");
    assert!(free.warnings.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_worker_over_its_output_limit_is_ended_by_its_shim() {
    let rig = Rig::start().await;
    rig.spawn(limited(request("a"))).await.expect("starts");
    rig.world.logs.spend("a");
    rig.world.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.world.facts("a").and_then(|facts| facts.exit).map(|exit| exit.reason), Some(Reason::Output));
    assert_eq!(rig.world.state("a"), Some(FineState::Exited));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn the_output_limit_holds_after_adoption_and_without_a_shim() {
    let mut rig = Rig::start().await;
    rig.spawn(limited(request("a"))).await.expect("starts");
    rig.spawn(limited(request("b"))).await.expect("starts");
    rig.crash().await;
    rig.up().await;
    rig.world.kill_shim("b");
    rig.world.settle().await;
    for name in ["a", "b"] {
        rig.world.logs.spend(name);
    }
    rig.world.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.world.facts("a").and_then(|facts| facts.exit).map(|exit| exit.reason), Some(Reason::Output));
    assert_eq!(rig.world.state("b"), Some(FineState::Lost), "no shim was left to record the reason");
}

#[tokio::test(start_paused = true)]
async fn limits_apply_to_every_generation() {
    let rig = Rig::start().await;
    rig.spawn(limited(restarting("a", RestartPolicy::OnFailure))).await.expect("starts");
    rig.world.end_because("a", Ended::Signal(9), Reason::OutOfMemory);
    rig.world.settle().await;
    assert_eq!(rig.world.state("a"), Some(FineState::Backoff), "like after any failure");
    rig.world.pass(Duration::from_secs(2)).await;
    let facts = rig.world.facts("a").expect("it was started again");
    assert_eq!((facts.generation, rig.world.state("a")), (2, Some(FineState::Running)));
    assert_eq!(facts.lease.content.and_then(|lease| lease.limits).and_then(|held| held.asked.pids), Some(5));
    rig.kill("a").await.expect("ends");
    let again = rig.respawn("a").await.expect("starts");
    assert_eq!(again.warnings.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_out_of_memory_exit_has_its_own_state() {
    let rig = Rig::start().await;
    rig.spawn(limited(request("a"))).await.expect("starts");
    rig.world.end_because("a", Ended::Signal(9), Reason::OutOfMemory);
    rig.world.settle().await;
    assert_eq!(rig.world.state("a"), Some(FineState::OutOfMemory));
    assert_eq!(rig.swarm().live().await, 0, "nothing is due");
}
