//! Respawns: a user restarts a worker.

use swarm_actors::testing::Fault;
use swarm_model::{Ended, FineState, RefusalKind, RestartPolicy, Session, WireStatus};

use crate::fixture::{Rig, foreign_row, request, respawn, restarting, with_tree};

#[tokio::test(start_paused = true)]
async fn a_new_generation_follows_the_old_one() {
    let rig = Rig::start().await;
    let first = rig.spawn(with_tree("a")).await.expect("starts");
    let second = rig.respawn("a").await.expect("starts again");
    assert_eq!((first.generation, second.generation), (1, 2));
    assert_eq!(first.worktree, second.worktree);
    assert_eq!(rig.world.records.keys(), [("a".to_owned(), 2)]);
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
    assert_eq!(rig.world.kernel.living(), 2, "one shim, one worker");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_respawn_that_fails_keeps_the_row() {
    for step in ["next_free", "reserve", "rotate_logs", "prepare", "prepare.after", "open"] {
        for runs in [true, false] {
            let rig = Rig::start().await;
            rig.spawn(with_tree("a")).await.expect("starts");
            if !runs {
                rig.kill("a").await.expect("ends");
            }
            let mut before = rig.world.row("a").expect("has a row");
            before.status = WireStatus::Stopped;
            rig.world.script.at(step, Fault::Error("not today"));
            rig.respawn("a").await.expect_err("a step failed");
            let context = format!("{step}, ran before: {runs}");
            assert_eq!(rig.world.script.unmet(), Vec::<String>::new(), "{context}");
            assert_eq!(rig.world.row("a"), Some(before), "{context}");
            assert_eq!(rig.world.state("a"), Some(FineState::Stopped), "{context}");
            assert_eq!(rig.world.records.keys(), [("a".to_owned(), 1)], "{context}");
            assert_eq!(rig.world.worktrees.paths().len(), 1, "{context}");
            rig.check();
            assert_eq!(rig.respawn("a").await.map(|spawned| spawned.generation), Ok(2), "{context}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_clean_first_leaves_the_worker_running() {
    let rig = Rig::start().await;
    let first = rig.spawn(with_tree("a")).await.expect("starts");
    let path = first.worktree.expect("has a worktree");
    rig.world.worktrees.dirty(&path, 1);
    let mut asked = respawn("a");
    asked.clean_first = true;
    let refusal = rig.respawn_by(asked.clone()).await.expect_err("there is work in it");
    assert_eq!(refusal.kind, RefusalKind::Worktree);
    assert_eq!(refusal.cause, "cannot remove worktree: worktree has 1 uncommitted change(s)");
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
    assert_eq!(rig.world.facts("a").map(|facts| facts.generation), Some(1));
    assert_eq!(rig.world.script.position("stop_by_shim a.1"), None);
    asked.force_dirty = true;
    let second = rig.respawn_by(asked).await.expect("starts again");
    assert_eq!(second.worktree.as_ref(), Some(&path));
    assert_eq!(rig.world.worktrees.saved(), [path]);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_respawn_gets_its_first_answer() {
    let rig = Rig::start().await;
    rig.spawn(request("a")).await.expect("starts");
    let mut asked = respawn("a");
    let first = rig.respawn_by(asked.clone()).await.expect("starts again");
    asked.caller.repeated = 1;
    assert_eq!(rig.respawn_by(asked).await, Ok(first));
    assert_eq!(rig.world.records.executions().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_respawn_resets_the_failures() {
    let rig = Rig::start().await;
    rig.spawn(restarting("a", RestartPolicy::OnFailure)).await.expect("starts");
    rig.world.end("a", Ended::Code(1));
    rig.world.settle().await;
    assert_eq!(rig.world.state("a"), Some(FineState::Backoff));
    rig.respawn("a").await.expect("starts at once");
    rig.world.end("a", Ended::Code(1));
    rig.world.settle().await;
    assert_eq!(rig.world.events.restart_delays_ms("a"), [1_000, 1_000]);
    rig.world.pass(std::time::Duration::from_secs(2)).await;
    assert_eq!(rig.world.facts("a").map(|facts| facts.generation), Some(3), "only one restart came of it");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_respawn_adopts_a_worker_of_the_original() {
    let rig = Rig::start().await;
    let process = rig.world.kernel.fork();
    let mut theirs = foreign_row("a", Some(i64::from(process.pid)));
    let kept = serde_json::json!({"kept": true});
    theirs.metadata = serde_json::Map::from_iter([("theirs".to_owned(), kept.clone())]).into();
    rig.world.write_rows(&[theirs]);
    rig.respawn("a").await.expect("starts again");
    assert!(!rig.world.kernel.is_alive(&process));
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
    let row = rig.world.row("a").expect("has a row");
    assert_eq!(row.cmd, ["theirs"]);
    assert_eq!(row.metadata.members().get("theirs"), Some(&kept));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_running_worker_is_not_ended_for_a_start_that_would_be_refused() {
    let rig = Rig::start().await;
    let dir = rig.spawn(with_tree("a")).await.expect("starts").worktree.expect("a worktree");
    rig.world.script.at("check", Fault::Error("command not found: work"));
    let refusal = rig.respawn("a").await.expect_err("is refused");
    assert_eq!(refusal.cause, "command not found: work");
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
    let other = Session::parse(r#"{"issueId": "u", "issueIdentifier": "OTHER-1"}"#).expect("parses");
    rig.world.sessions.put(&dir, other);
    let refusal = rig.respawn("a").await.expect_err("is refused");
    assert!(refusal.cause.contains("'OTHER-1'"), "{}", refusal.cause);
    assert_eq!((rig.world.state("a"), rig.world.records.executions().len()), (Some(FineState::Running), 1));
    rig.check();
}
