//! Numbers of starts, and saves of the registry that are older than the last start of a name.

use swarm_actors::testing::Fault;
use swarm_model::{Ended, FineState, Row};

use crate::fixture::{Rig, request};

#[tokio::test(start_paused = true)]
async fn no_two_starts_of_a_name_have_the_same_number() {
    let mut rig = Rig::start().await;
    let mut numbers = Vec::new();
    for is_killed in [false, true, false] {
        numbers.push(rig.spawn(request("a")).await.expect("starts").generation);
        numbers.push(rig.respawn("a").await.expect("starts").generation);
        rig.kill("a").await.expect("ends");
        rig.clean("a").await.expect("goes");
        if is_killed {
            rig.crash().await;
            rig.up().await;
        }
    }
    // A start that fails has a number, too.
    rig.world.script.at("open", Fault::Error("no"));
    rig.spawn(request("a")).await.expect_err("is refused");
    numbers.push(rig.spawn(request("a")).await.expect("starts").generation);
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    rig.check();
}

/// Returns a rig in which worker `a` runs, and the rows of an earlier `a` that has failed and was cleaned. If `forgets`, both
/// have the same number, as after a power cut, or of an earlier version.
async fn cleaned_and_started_again(forgets: bool) -> (Rig, Vec<Row>) {
    let rig = Rig::start().await;
    let first = rig.spawn(request("a")).await.expect("starts").generation;
    rig.world.end("a", Ended::Code(3));
    rig.world.settle().await;
    let stale = rig.world.rows();
    rig.clean("a").await.expect("goes");
    if forgets {
        rig.world.records.forget_removed();
    }
    let second = rig.spawn(request("a")).await.expect("starts").generation;
    assert_eq!(first == second, forgets);
    (rig, stale)
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_stopped_although_an_old_save_has_an_earlier_one_of_its_name() {
    for forgets in [false, true] {
        for is_killed in [false, true] {
            let (mut rig, stale) = cleaned_and_started_again(forgets).await;
            if is_killed {
                rig.crash().await;
            }
            rig.world.write_rows(&stale);
            if is_killed {
                rig.up().await;
            }
            rig.kill("a").await.expect("is stopped");
            assert_eq!(rig.world.state("a"), Some(FineState::Stopped), "{forgets}, {is_killed}");
            assert!(rig.world.records.all().iter().all(|facts| !facts.lease.worker_alive), "{forgets}, {is_killed}");
            rig.check();
            rig.clean("a").await.expect("goes");
            assert!(rig.world.rows().is_empty() && rig.world.records.all().is_empty(), "{forgets}, {is_killed}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_old_save_does_not_bring_a_second_worker_of_a_name() {
    for forgets in [false, true] {
        let (mut rig, stale) = cleaned_and_started_again(forgets).await;
        rig.crash().await;
        rig.world.write_rows(&stale);
        rig.up().await;
        assert_eq!(rig.world.state("a"), Some(FineState::Running), "{forgets}");
        rig.respawn("a").await.expect("starts");
        let running = rig.world.records.all().into_iter().filter(|facts| facts.lease.worker_alive).count();
        assert_eq!(running, 1, "{forgets}");
        rig.check();
    }
}
