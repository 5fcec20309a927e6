//! Workers with processes that their shims cannot end, such as those of another user.

use std::time::Duration;

use swarm_model::{Answer, Ended, EventKind, FineState, ProcessId, RefusalKind, RestartPolicy, WantedState};

use crate::fixture::{Rig, clean, request, restarting, with_tree};
use crate::landing::{add, landing, states};
use crate::run::{HOME, begin, job, stages};

/// Lets the worker have a process that nobody can end.
fn with_survivor(rig: &Rig) -> ProcessId {
    survivor_of(rig, "a")
}

fn survivor_of(rig: &Rig, name: &str) -> ProcessId {
    rig.world.processes.fork_survivor(&rig.world.records.newest(name).expect("it was started"))
}

/// Returns the processes that the events name with the work of a worker, once for each time that it was queued.
fn told(rig: &Rig, name: &str) -> Vec<Vec<i32>> {
    let survivors = |kind| match kind {
        EventKind::MergeQueued { survivors, .. } => Some(survivors),
        _ => None,
    };
    rig.world.events.of(name).into_iter().filter_map(survivors).collect()
}

#[tokio::test(start_paused = true)]
async fn a_kill_that_leaves_processes_fails_and_nothing_starts_or_is_removed_beside_them() {
    let rig = Rig::start().await;
    let tree = rig.spawn(with_tree("a")).await.expect("starts").worktree.expect("has a worktree");
    let survivor = with_survivor(&rig);
    let refusal = rig.kill("a").await.expect_err("a process lives");
    let cause = format!("processes of worker 'a' cannot be ended: {}", survivor.pid);
    assert_eq!((refusal.kind, &refusal.cause), (RefusalKind::Running, &cause));
    let remedy =
        format!("end them as their user or as root, such as with 'sudo kill {}', then try again", survivor.pid);
    assert_eq!(refusal.remedy, Some(remedy));
    // The end of the worker's own process is recorded as it was.
    let facts = rig.world.facts("a").expect("has records");
    assert_eq!(facts.exit.map(|exit| exit.ended), Some(Ended::Signal(15)));
    assert_eq!((rig.world.state("a"), facts.wanted.state), (Some(FineState::Stopping), WantedState::Stopped));

    assert_eq!(rig.kill("a").await.expect_err("it still lives").cause, cause);
    assert_eq!(rig.respawn("a").await.expect_err("it still lives").cause, cause);
    for forced in [false, true] {
        let refusal = rig.clean_by(swarm_model::CleanRequest { force_dirty: forced, ..clean("a") }).await;
        assert_eq!(refusal.expect_err("it still lives").cause, "cannot clean running worker 'a'");
    }
    let takes_over = rig.world.row("a").map(|row| row.started);
    let refusal =
        rig.spawn(swarm_model::SpawnRequest { takes_over, ..request("a") }).await.expect_err("it still lives");
    assert_eq!(refusal.kind, RefusalKind::Exists);
    assert_eq!((rig.world.records.executions().len(), rig.world.worktrees.paths()), (1, vec![tree]));
    rig.check();

    rig.world.kernel.end(&survivor);
    assert_eq!(rig.world.state("a"), Some(FineState::Stopped));
    rig.kill("a").await.expect("nothing is left");
    assert_eq!(rig.respawn("a").await.expect("starts again").generation, 2);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_restart_waits_for_the_processes_of_the_ended_generation_and_is_never_given_up() {
    for crashes in [false, true] {
        let mut rig = Rig::start().await;
        rig.spawn(restarting("a", RestartPolicy::OnFailure)).await.expect("starts");
        let survivor = with_survivor(&rig);
        rig.world.end("a", Ended::Code(1));
        rig.world.settle().await;
        if crashes {
            rig.crash().await;
            rig.up().await;
        }
        rig.world.pass(Duration::from_hours(1)).await;
        assert_eq!((rig.world.state("a"), rig.world.records.executions().len()), (Some(FineState::Stopping), 1));
        rig.world.kernel.end(&survivor);
        rig.world.pass(Duration::from_secs(11)).await;
        assert_eq!((rig.world.state("a"), rig.world.records.executions().len()), (Some(FineState::Running), 2));
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_with_processes_left_that_is_killed_is_not_restarted() {
    let rig = Rig::start().await;
    rig.spawn(restarting("a", RestartPolicy::Always)).await.expect("starts");
    let survivor = with_survivor(&rig);
    rig.world.end("a", Ended::Code(1));
    rig.world.settle().await;
    rig.kill("a").await.expect_err("a process lives");
    rig.world.kernel.end(&survivor);
    rig.world.pass(Duration::from_mins(1)).await;
    assert_eq!((rig.world.state("a"), rig.world.records.executions().len()), (Some(FineState::Stopped), 1));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_worktree_stays_while_processes_of_another_worker_are_left_in_it() {
    let rig = Rig::start().await;
    let tree = rig.spawn(with_tree("b")).await.expect("starts").worktree.expect("has a worktree");
    let mut inside = request("a");
    inside.contract.cwd = tree.clone();
    rig.spawn(inside).await.expect("starts");
    let survivor = with_survivor(&rig);
    for name in ["a", "b"] {
        rig.world.end(name, Ended::Code(0));
    }
    rig.world.settle().await;
    let cleaned = rig.clean("b").await.expect("is forgotten");
    assert_eq!(cleaned.notes[0].1, "preserving worktree for 'b': worktree is used by running worker 'a'");
    assert_eq!(rig.world.worktrees.paths(), [tree]);
    rig.world.kernel.end(&survivor);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn work_lands_once_the_command_has_succeeded_whatever_processes_are_left() {
    for crashes in [false, true] {
        let mut rig = Rig::start().await;
        let tree = rig.spawn(landing("a")).await.expect("starts").worktree.expect("has a worktree");
        let survivor = with_survivor(&rig);
        if crashes {
            rig.crash().await;
        }
        rig.world.end("a", Ended::Code(0));
        if crashes {
            rig.up().await;
        }
        rig.world.pass(Duration::from_secs(1)).await;
        assert_eq!(rig.world.state("a"), Some(FineState::Stopping));
        assert_eq!(states(&rig).await, [("a".to_owned(), "landed")]);
        assert_eq!(told(&rig, "a"), [[survivor.pid]]);
        // What they use stays.
        let refusal = rig.clean("a").await.expect_err("it still lives");
        assert_eq!(refusal.cause, "cannot clean running worker 'a'");
        assert_eq!(rig.world.worktrees.paths(), [tree]);
        rig.check();
        rig.world.kernel.end(&survivor);
        rig.clean("a").await.expect("nothing is left");
        assert!(rig.world.worktrees.paths().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn work_of_a_failed_command_with_processes_left_lands_only_if_a_person_adds_it() {
    let rig = Rig::start().await;
    rig.spawn(landing("a")).await.expect("starts");
    let survivor = with_survivor(&rig);
    rig.world.end("a", Ended::Code(1));
    rig.world.pass(Duration::from_secs(1)).await;
    assert_eq!(states(&rig).await, []);
    let answer = add(&rig, "a").await;
    assert!(matches!(answer, Answer::Merge(_)), "{answer:?}");
    rig.world.pass(Duration::from_secs(1)).await;
    assert_eq!((states(&rig).await, told(&rig, "a")), (vec![("a".to_owned(), "landed")], vec![vec![survivor.pid]]));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_job_is_done_although_processes_of_it_are_left_and_its_worktree_stays() {
    let rig = Rig::start().await;
    begin(&rig, vec![job("a")]).await;
    let survivor = survivor_of(&rig, "p.a");
    rig.world.end("p.a", Ended::Code(0));
    rig.world.pass(Duration::from_mins(2)).await;
    let run = rig.world.runs.run(HOME);
    assert_eq!((stages(&run), told(&rig, "p.a")), (vec!["done"], vec![vec![survivor.pid]]));
    assert_eq!((rig.world.worktrees.paths().len(), rig.world.state("p.a")), (1, Some(FineState::Stopping)));
    rig.check();
}
