//! A supervisor is killed on either side of every step of a start, and the next
//! one makes of it what the table in `worker/launch.rs` says.

use std::time::Duration;

use swarm_actors::supervisor::Request;
use swarm_actors::testing::Fault;
use swarm_model::{FineState, SpawnRequest};

use crate::fixture::{ADOPTION, Rig, clean, request, respawn, with_tree};

/// Before the commit nothing was promised.
const BEFORE: [&str; 7] = ["reserve", "reserve.after", "make", "make.after", "rotate_logs", "prepare", "prepare.after"];
/// After it the worker runs.
const AFTER: [&str; 2] = ["open", "open.after"];

/// The request is cut off at `step` by the supervisor's death.
async fn cut_off(rig: &mut Rig, step: &str, request: Request) {
    rig.world.script.at(step, Fault::Hang);
    let _answers = rig.swarm().request(request);
    // Also a stop before it is over by then.
    rig.world.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.world.script.unmet(), Vec::<String>::new(), "{step} was never reached");
    rig.crash().await;
}

fn spawn(asked: &SpawnRequest) -> Request {
    Request::Spawn(Box::new(asked.clone()))
}

#[tokio::test(start_paused = true)]
async fn killed_before_the_commit_nothing_is_left() {
    for step in BEFORE {
        let mut rig = Rig::start().await;
        cut_off(&mut rig, step, spawn(&with_tree("a"))).await;
        rig.up().await;
        assert_eq!(rig.world.rows(), Vec::new(), "{step}");
        assert_eq!(rig.world.records.keys(), Vec::new(), "{step}");
        assert_eq!(rig.world.records.executions(), Vec::<String>::new(), "{step}");
        assert_eq!(rig.world.worktrees.paths(), Vec::<String>::new(), "{step}");
        assert_eq!(rig.world.worktrees.branches(), Vec::<String>::new(), "{step}");
        assert_eq!(rig.world.kernel.living(), 0, "{step}");
    }
}

#[tokio::test(start_paused = true)]
async fn killed_after_the_commit_the_worker_runs() {
    for step in AFTER {
        let mut rig = Rig::start().await;
        let mut asked = with_tree("a");
        cut_off(&mut rig, step, spawn(&asked)).await;
        rig.up().await;
        assert_eq!(rig.world.state("a"), Some(FineState::Running), "{step}");
        assert_eq!(rig.swarm().live().await, 1, "{step}");
        rig.check();
        // The command was never answered, so it asks again.
        asked.caller.repeated = 1;
        assert_eq!(rig.spawn(asked).await.map(|spawned| spawned.generation), Ok(1), "{step}");
        assert_eq!(rig.world.records.executions().len(), 1, "{step}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_promise_is_kept_when_also_the_shim_was_killed() {
    let mut rig = Rig::start().await;
    rig.world.script.at("open", Fault::Hang);
    let _answers = rig.swarm().request(spawn(&with_tree("a")));
    rig.world.settle().await;
    rig.world.processes.kill_shim(&("a".to_owned(), 1));
    rig.crash().await;
    rig.up().await;
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
    assert_eq!(rig.world.records.keys(), [("a".to_owned(), 2)]);
    assert_eq!(rig.world.records.executions().len(), 1);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_respawn_that_is_cut_off_leaves_the_old_life_or_has_the_new_one() {
    let steps = [
        "reserve",
        "reserve.after",
        "rotate_logs",
        "prepare",
        "prepare.after",
        "open",
        "open.after",
        "remove_leftovers",
    ];
    for step in steps {
        let mut rig = Rig::start().await;
        rig.spawn(with_tree("a")).await.expect("starts");
        cut_off(&mut rig, step, Request::Respawn(Box::new(respawn("a")))).await;
        rig.up().await;
        rig.check();
        let committed = matches!(step, "open" | "open.after" | "remove_leftovers");
        let expected = if committed { (2, FineState::Running) } else { (1, FineState::Stopped) };
        let found = rig.world.facts("a").map(|facts| facts.generation).zip(rig.world.state("a"));
        assert_eq!(found, Some(expected), "{step}");
        assert_eq!(rig.world.worktrees.paths().len(), 1, "{step}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_is_cut_off_stays_wanted() {
    let mut rig = Rig::start().await;
    let mut asked = request("a");
    asked.contract.restart = swarm_model::RestartPolicy::Always;
    rig.spawn(asked).await.expect("starts");
    cut_off(&mut rig, "write_wanted.after", crate::fixture::kill("a")).await;
    rig.up().await;
    assert_eq!(rig.world.state("a"), Some(FineState::Running), "nobody has signalled it");
    rig.world.end("a", swarm_model::Ended::Code(1));
    rig.world.pass(ADOPTION).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Stopped), "it was to stay stopped");
}

#[tokio::test(start_paused = true)]
async fn a_clean_that_is_cut_off_is_ended_by_repeating_it() {
    for step in ["remove_tree", "remove_logs", "remove_leftovers"] {
        let mut rig = Rig::start().await;
        rig.spawn(with_tree("a")).await.expect("starts");
        rig.kill("a").await.expect("ends");
        let mut asked = clean("a");
        cut_off(&mut rig, step, Request::Clean(Box::new(asked.clone()))).await;
        rig.up().await;
        asked.caller.repeated = 1;
        rig.clean_by(asked).await.expect("goes");
        assert_eq!((rig.world.rows(), rig.world.records.keys()), (Vec::new(), Vec::new()), "{step}");
        assert_eq!(rig.world.worktrees.paths(), Vec::<String>::new(), "{step}");
        assert!(rig.world.records.logs_removed().contains(&"a".to_owned()), "{step}");
    }
}
