//! Crash tests: a supervisor is killed on either side of every step of a start, and the next one
//! must recover as the table in `worker/launch.rs` says.

use std::time::Duration;

use swarm_actors::supervisor::Request;
use swarm_actors::testing::Fault;
use swarm_model::{FineState, SpawnRequest};

use crate::fixture::{ADOPTION, Rig, clean, request, respawn, with_tree};

/// Steps before the commit: nothing was promised.
const BEFORE: [&str; 7] = ["reserve", "reserve.after", "make", "make.after", "rotate_logs", "prepare", "prepare.after"];
/// Steps after the commit: the worker must run.
const AFTER: [&str; 2] = ["open", "open.after"];

/// Cuts a request off at `step` by killing the supervisor.
async fn cut_off(rig: &mut Rig, step: &str, request: Request) {
    rig.world.script.at(step, Fault::Hang);
    let _answers = rig.swarm().request(request);
    // Enough time for a preceding stop.
    rig.world.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.world.script.unmet(), Vec::<String>::new(), "{step} was never reached");
    rig.crash().await;
}

fn spawn(asked: &SpawnRequest) -> Request {
    Request::Spawn(Box::new(asked.clone()))
}

#[tokio::test(start_paused = true)]
async fn a_kill_before_the_commit_leaves_nothing() {
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
async fn after_a_kill_behind_the_commit_the_worker_runs() {
    for step in AFTER {
        let mut rig = Rig::start().await;
        let mut asked = with_tree("a");
        cut_off(&mut rig, step, spawn(&asked)).await;
        rig.up().await;
        assert_eq!(rig.world.state("a"), Some(FineState::Running), "{step}");
        assert_eq!(rig.swarm().live().await, 1, "{step}");
        rig.check();
        // The command never got an answer, so it repeats its request.
        asked.caller.repeated = 1;
        assert_eq!(rig.spawn(asked).await.map(|spawned| spawned.generation), Ok(1), "{step}");
        assert_eq!(rig.world.records.executions().len(), 1, "{step}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_committed_start_is_repeated_if_its_shim_was_killed_too() {
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
async fn an_interrupted_respawn_leaves_the_old_or_the_new_generation() {
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
async fn an_interrupted_stop_stays_wanted() {
    let mut rig = Rig::start().await;
    let mut asked = request("a");
    asked.contract.restart = swarm_model::RestartPolicy::Always;
    rig.spawn(asked).await.expect("starts");
    cut_off(&mut rig, "write_wanted.after", crate::fixture::kill("a")).await;
    rig.up().await;
    assert_eq!(rig.world.state("a"), Some(FineState::Running), "it was not signalled");
    rig.world.end("a", swarm_model::Ended::Code(1));
    rig.world.pass(ADOPTION).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Stopped), "it has to stay stopped");
}

#[tokio::test(start_paused = true)]
async fn repeating_an_interrupted_clean_completes_it() {
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
