//! Limits that a worker runs into, and what becomes of it.

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
async fn what_is_not_in_force_is_warned_of_and_shown() {
    let rig = Rig::start().await;
    let spawned = rig.spawn(limited(request("a"))).await.expect("starts");
    // The machine of these tests holds nothing but output.
    assert_eq!(spawned.warnings.len(), 1, "{:?}", spawned.warnings);
    assert!(spawned.warnings[0].starts_with("--pids is not in force"));
    let lease = rig.world.facts("a").and_then(|facts| facts.lease.content).expect("it runs");
    let held = lease.limits.expect("it has limits");
    assert_eq!((held.output, held.pids, held.asked.pids), (Some(By::Swarm), None, Some(5)));
    let free = rig.spawn(request("b")).await.expect("starts");
    assert!(free.warnings.is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_has_written_too_much_is_ended_for_that_by_its_shim() {
    let rig = Rig::start().await;
    rig.spawn(limited(request("a"))).await.expect("starts");
    rig.world.logs.spend("a");
    rig.world.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.world.facts("a").and_then(|facts| facts.exit).map(|exit| exit.reason), Some(Reason::Output));
    assert_eq!(rig.world.state("a"), Some(FineState::Exited));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn also_when_another_supervisor_looks_after_it_or_no_shim_does() {
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
    assert_eq!(rig.world.state("b"), Some(FineState::Lost), "nobody was left to record why");
}

#[tokio::test(start_paused = true)]
async fn limits_are_those_of_every_life() {
    let rig = Rig::start().await;
    rig.spawn(limited(restarting("a", RestartPolicy::OnFailure))).await.expect("starts");
    rig.world.end_because("a", Ended::Signal(9), Reason::OutOfMemory);
    rig.world.settle().await;
    assert_eq!(rig.world.state("a"), Some(FineState::Backoff), "as after any failure");
    rig.world.pass(Duration::from_secs(2)).await;
    let facts = rig.world.facts("a").expect("it was started again");
    assert_eq!((facts.generation, rig.world.state("a")), (2, Some(FineState::Running)));
    assert_eq!(facts.lease.content.and_then(|lease| lease.limits).and_then(|held| held.asked.pids), Some(5));
    rig.kill("a").await.expect("ends");
    let again = rig.respawn("a").await.expect("starts");
    assert_eq!(again.warnings.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_end_for_want_of_memory_has_a_state_of_its_own() {
    let rig = Rig::start().await;
    rig.spawn(limited(request("a"))).await.expect("starts");
    rig.world.end_because("a", Ended::Signal(9), Reason::OutOfMemory);
    rig.world.settle().await;
    assert_eq!(rig.world.state("a"), Some(FineState::OutOfMemory));
    assert_eq!(rig.swarm().live().await, 0, "nothing is due");
}
