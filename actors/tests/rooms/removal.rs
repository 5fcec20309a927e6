//! Worktrees that are removed while another worker uses them, or is being started in them.

use std::time::Duration;

use swarm_actors::supervisor::Request;
use swarm_actors::testing::Fault;
use swarm_model::{
    Answer, Caller, CleanRequest, Ended, FineState, KillRequest, RefusalKind, RespawnRequest, RestartPolicy, Scope,
    SpawnRequest,
};
use tokio::sync::oneshot;

use crate::fixture::{Rig, caller, clean, request, respawn, restarting, with_tree};

/// Starts a worker with a worktree, lets it end, and returns the path of the worktree.
async fn ended_with_tree(rig: &Rig, name: &str) -> String {
    let tree = rig.spawn(with_tree(name)).await.expect("starts").worktree.expect("has a worktree");
    rig.world.end(name, Ended::Code(0));
    rig.world.settle().await;
    tree
}

fn at(request: SpawnRequest, dir: &str) -> SpawnRequest {
    let mut request = request;
    dir.clone_into(&mut request.contract.cwd);
    request
}

fn forced(name: &str) -> CleanRequest {
    CleanRequest { force_dirty: true, ..clean(name) }
}

#[tokio::test(start_paused = true)]
async fn a_worktree_stays_while_another_worker_runs_in_it() {
    for inside in ["", "/sub"] {
        let rig = Rig::start().await;
        let tree = ended_with_tree(&rig, "a").await;
        rig.spawn(at(request("b"), &format!("{tree}{inside}"))).await.expect("starts");
        let cleaned = rig.clean("a").await.expect("is forgotten");
        let notes: Vec<&str> = cleaned.notes.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(
            notes[..3],
            [
                "preserving worktree for 'a': worktree is used by running worker 'b'",
                &format!("worktree at: {tree}"),
                "run 'swarm kill b' first, or wait until it has ended",
            ]
        );
        let refusal = rig.clean_by(forced("a")).await.expect_err("is used");
        assert_eq!(refusal.cause, "cannot remove worktree for 'a': worktree is used by running worker 'b'");
        assert_eq!(refusal.remedy.as_deref(), Some("run 'swarm kill b' first, or wait until it has ended"));
        assert_eq!((rig.world.worktrees.paths(), rig.world.state("b")), (vec![tree], Some(FineState::Running)));
        assert_eq!(rig.world.worktrees.branches(), ["a"]);
        rig.kill("b").await.expect("is stopped");
        rig.clean_by(forced("a")).await.expect("nobody uses it any more");
        assert!(rig.world.worktrees.paths().is_empty());
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_will_be_restarted_uses_its_directory() {
    let rig = Rig::start().await;
    let tree = ended_with_tree(&rig, "a").await;
    rig.spawn(at(restarting("b", RestartPolicy::OnFailure), &tree)).await.expect("starts");
    rig.world.end("b", Ended::Code(1));
    rig.world.settle().await;
    assert_eq!(rig.world.state("b"), Some(FineState::Backoff));
    rig.clean("a").await.expect("is forgotten");
    assert_eq!(rig.world.worktrees.paths(), [tree]);
}

#[tokio::test(start_paused = true)]
async fn neither_a_kill_nor_a_respawn_removes_a_worktree_that_is_used() {
    let rig = Rig::start().await;
    let tree = rig.spawn(with_tree("a")).await.expect("starts").worktree.expect("has a worktree");
    rig.spawn(at(request("b"), &tree)).await.expect("starts");
    let mut asked = respawn("a");
    (asked.clean_first, asked.force_dirty) = (true, true);
    let refusal = rig.respawn_by(asked).await.expect_err("is used");
    assert_eq!(refusal.cause, "cannot remove worktree: worktree is used by running worker 'b'");
    assert_eq!(rig.world.script.position("stop_by_shim a.1"), None);
    let scope = Scope::Names(vec!["a".to_owned()]);
    let kill = KillRequest {
        caller: caller(),
        scope,
        rm_worktree: true,
        force_dirty: true,
        started_by: None,
        generation: None,
    };
    match rig.ask_one(Request::Kill(Box::new(kill))).await.expect("is killed") {
        Answer::Worker(line) => {
            assert_eq!(line.notes[0].1, "cannot remove worktree for 'a': worktree is used by running worker 'b'")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((rig.world.state("a"), rig.world.worktrees.paths()), (Some(FineState::Stopped), vec![tree]));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_worktree_stays_while_a_worker_is_being_started_in_it() {
    for step in ["reserve", "prepare", "prepare.after", "open"] {
        let rig = Rig::start().await;
        let tree = ended_with_tree(&rig, "a").await;
        let (go, wait) = oneshot::channel();
        rig.world.script.at(step, Fault::Wait(wait));
        let (started, ()) = tokio::join!(rig.spawn(at(request("b"), &tree)), async {
            rig.world.settle().await;
            rig.clean("a").await.expect("is forgotten");
            assert_eq!(rig.world.worktrees.paths(), [tree.as_str()], "{step}");
            go.send(()).expect("the start waits");
        });
        started.expect("starts");
        assert_eq!(rig.world.state("b"), Some(FineState::Running), "{step}");
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn no_worker_is_started_in_a_worktree_that_is_being_removed() {
    let rig = Rig::start().await;
    let tree = ended_with_tree(&rig, "a").await;
    let (go, wait) = oneshot::channel();
    rig.world.script.at("remove_tree", Fault::Wait(wait));
    let (cleaned, ()) = tokio::join!(rig.clean("a"), async {
        rig.world.settle().await;
        let refusal = rig.spawn(at(request("b"), &tree)).await.expect_err("is being removed");
        assert_eq!(refusal.kind, RefusalKind::Running);
        assert_eq!(refusal.cause, format!("the worktree {tree} is being removed"));
        go.send(()).expect("the removal waits");
    });
    cleaned.expect("is cleaned");
    assert_eq!((rig.world.worktrees.paths(), rig.world.row("b")), (Vec::new(), None));
    assert!(rig.world.records.keys().is_empty());
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_start_that_fails_leaves_the_worktree_to_a_worker_that_its_command_has_started() {
    let rig = Rig::start().await;
    let tree = rig.world.worktrees.path("a");
    let (go, wait) = oneshot::channel();
    rig.world.script.at("rotate_logs", Fault::Wait(wait));
    let (started, ()) = tokio::join!(rig.spawn(with_tree("a")), async {
        rig.world.settle().await;
        rig.spawn(at(request("b"), &tree)).await.expect("starts");
        rig.world.script.at("prepare", Fault::Error("no server running"));
        go.send(()).expect("the start waits");
    });
    started.expect_err("fails");
    assert_eq!((rig.world.worktrees.paths(), rig.world.row("a")), (vec![tree], None));
    assert_eq!(rig.world.state("b"), Some(FineState::Running));
}

/// A request of a run for the worker of one of its workstreams.
fn of_run(name: &str, series: &str, attempt: u32) -> SpawnRequest {
    let asked = request(name);
    let caller = Caller { request: format!("{series}{attempt}"), ..asked.caller };
    SpawnRequest { caller, replaces: Some(series.to_owned()), ..asked }
}

#[tokio::test(start_paused = true)]
async fn a_respawned_worker_of_a_run_makes_way_for_the_next_attempt() {
    let rig = Rig::start().await;
    rig.spawn(of_run("r.a", "run/1/a/", 1)).await.expect("starts");
    rig.respawn("r.a").await.expect("starts again");
    let refusal = rig.spawn(of_run("r.a", "run/1/a/", 2)).await.expect_err("it runs");
    assert_eq!((refusal.kind, refusal.cause.as_str()), (RefusalKind::Exists, "worker 'r.a' is still running"));
    rig.world.end("r.a", Ended::Code(1));
    rig.world.settle().await;
    // The worker has ended and stays until somebody removes it, so the start is not tried again.
    let refusal = rig.spawn(of_run("r.a", "run/2/a/", 1)).await.expect_err("it is of another run");
    assert_eq!(refusal.kind, RefusalKind::Invalid);
    assert_eq!(refusal.cause, "worker 'r.a' already exists, and was started by something else");
    assert_eq!(refusal.remedy.as_deref(), Some("run 'swarm clean r.a' to remove it"));
    let refusal = rig.spawn(request("r.a")).await.expect_err("a person means another one");
    assert_eq!(refusal.kind, RefusalKind::Exists);
    let spawned = rig.spawn(of_run("r.a", "run/1/a/", 2)).await.expect("replaces it");
    assert_eq!(spawned.generation, 3);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn the_branch_of_a_worker_goes_with_its_worktree_whatever_generation_it_is_of() {
    let rig = Rig::start().await;
    rig.spawn(with_tree("respawned")).await.expect("starts");
    rig.kill("respawned").await.expect("ends");
    rig.respawn("respawned").await.expect("starts again");

    rig.spawn(with_tree("renewed")).await.expect("starts");
    let anew = RespawnRequest { clean_first: true, ..respawn("renewed") };
    rig.respawn_by(anew).await.expect("starts again, in a fresh worktree");
    rig.respawn("renewed").await.expect("starts again");

    let restarted = restarting("restarted", RestartPolicy::OnFailure);
    rig.spawn(SpawnRequest { worktree: with_tree("x").worktree, ..restarted }).await.expect("starts");
    rig.world.end("restarted", Ended::Code(1));
    rig.world.pass(Duration::from_secs(2)).await;
    assert_eq!(rig.world.facts("restarted").map(|facts| facts.generation), Some(2));

    // Its branch existed before.
    rig.spawn(with_tree("theirs")).await.expect("starts");
    rig.kill("theirs").await.expect("ends");
    rig.clean_by(CleanRequest { drop_branch: false, ..clean("theirs") }).await.expect("goes");
    rig.spawn(with_tree("theirs")).await.expect("starts");
    rig.respawn("theirs").await.expect("starts again");

    for name in ["respawned", "renewed", "restarted", "theirs"] {
        rig.kill(name).await.expect("ends");
        rig.clean(name).await.expect("goes");
    }
    assert_eq!((rig.world.worktrees.paths(), rig.world.worktrees.branches()), (Vec::new(), vec!["theirs".to_owned()]));
    rig.check();
}
