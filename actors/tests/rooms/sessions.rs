//! Sessions: started before anything is executed, kept alive by heartbeats while their agents live,
//! and left alone once another program has taken them.

use std::time::Duration;

use swarm_actors::testing::Fault;
use swarm_model::{Ended, EventKind, FineState, RefusalKind, Session, SessionStatus};

use crate::fixture::{Rig, with_tree};

const TICK: Duration = Duration::from_secs(10);

async fn at_work() -> (Rig, String) {
    let rig = Rig::start().await;
    let spawned = rig.spawn(with_tree("a")).await.expect("starts");
    rig.world.settle().await;
    (rig, spawned.worktree.expect("a worktree"))
}

fn status(rig: &Rig, dir: &str) -> Option<SessionStatus> {
    rig.world.sessions.state(dir).and_then(|session| session.status())
}

#[tokio::test(start_paused = true)]
async fn a_session_starts_before_anything_is_executed_and_ends_with_its_agent() {
    let (rig, dir) = at_work().await;
    let calls = rig.world.script.calls();
    let at = |call: &str| calls.iter().position(|made| made == call).unwrap_or_else(|| panic!("no {call}: {calls:?}"));
    assert!(at("make a") < at("open_session a") && at("open_session a") < at("prepare a.1"));
    assert_eq!(status(&rig, &dir), Some(SessionStatus::Running));
    rig.world.end("a", Ended::Code(0));
    rig.world.settle().await;
    assert_eq!(status(&rig, &dir), Some(SessionStatus::Completed));
}

#[tokio::test(start_paused = true)]
async fn heartbeats_start_at_once_and_follow_every_tick() {
    let (rig, _) = at_work().await;
    assert_eq!(rig.world.sessions.beats("a"), 1);
    rig.world.pass(TICK * 3).await;
    assert_eq!(rig.world.sessions.beats("a"), 4);
    rig.world.end("a", Ended::Code(1));
    rig.world.pass(TICK * 3).await;
    assert_eq!(rig.world.sessions.beats("a"), 4);
}

#[tokio::test(start_paused = true)]
async fn a_new_supervisor_resumes_heartbeats_and_writes_unseen_exits() {
    let mut rig = Rig::start().await;
    let of = |name: &'static str| with_tree(name);
    let dirs = [
        rig.spawn(of("a")).await.expect("starts").worktree.expect("a worktree"),
        rig.spawn(of("b")).await.expect("starts").worktree.expect("a worktree"),
    ];
    rig.world.settle().await;
    rig.crash().await;
    rig.world.end("b", Ended::Code(3));
    rig.up().await;
    assert_eq!(status(&rig, &dirs[0]), Some(SessionStatus::Running));
    assert_eq!(status(&rig, &dirs[1]), Some(SessionStatus::Failed));
    let before = (rig.world.sessions.beats("a"), rig.world.sessions.beats("b"));
    rig.world.pass(TICK * 2).await;
    assert_eq!((rig.world.sessions.beats("a"), rig.world.sessions.beats("b")), (before.0 + 2, before.1));
}

#[tokio::test(start_paused = true)]
async fn a_session_of_another_issue_is_refused_and_leaves_nothing() {
    let rig = Rig::start().await;
    let dir = rig.world.worktrees.path("a");
    let theirs = Session::parse(r#"{"issueId": "u", "issueIdentifier": "OTHER-1"}"#).expect("parses");
    rig.world.sessions.put(&dir, theirs.clone());
    let refusal = rig.spawn(with_tree("a")).await.expect_err("is refused");
    assert_eq!(refusal.kind, RefusalKind::Worktree);
    assert!(refusal.cause.contains("'OTHER-1'") && refusal.cause.contains("'a'"), "{}", refusal.cause);
    assert!(refusal.remedy.is_some_and(|remedy| remedy.contains("swarm clean")));
    assert_eq!(rig.world.sessions.state(&dir), Some(theirs));
    assert!(rig.world.records.executions().is_empty() && rig.world.rows().is_empty());
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_lost_its_session_is_stopped_and_destroys_nothing() {
    let (rig, dir) = at_work().await;
    let theirs = Session::parse(r#"{"issueId": "u", "issueIdentifier": "a", "sessionId": "theirs", "startedAt": 5}"#)
        .expect("parses");
    rig.world.sessions.put(&dir, theirs.clone());
    rig.world.pass(TICK * 2).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Stopped));
    assert_eq!(rig.world.sessions.state(&dir), Some(theirs));
    assert!(rig.world.worktrees.paths().contains(&dir));
    assert!(rig.world.events.of("a").contains(&EventKind::SessionLost { found: "theirs".to_owned() }));
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_leaves_no_session_that_looks_started() {
    for step in ["prepare", "open"] {
        let rig = Rig::start().await;
        rig.world.script.at(step, Fault::Error("no"));
        rig.spawn(with_tree("a")).await.expect_err("fails");
        let dir = rig.world.worktrees.path("a");
        assert_eq!(status(&rig, &dir), Some(SessionStatus::Failed), "{step}");
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn an_unwritten_end_is_written_with_a_later_tick() {
    let (rig, dir) = at_work().await;
    rig.world.script.at("end_session", Fault::Error("no space"));
    rig.world.end("a", Ended::Code(0));
    rig.world.settle().await;
    assert_eq!(status(&rig, &dir), Some(SessionStatus::Running));
    rig.world.pass(TICK * 2).await;
    assert_eq!(status(&rig, &dir), Some(SessionStatus::Completed));
}

#[tokio::test(start_paused = true)]
async fn an_unwritten_state_is_written_with_a_later_tick() {
    let rig = Rig::start().await;
    rig.world.script.at("run_session", Fault::Error("no space"));
    let dir = rig.spawn(with_tree("a")).await.expect("starts").worktree.expect("a worktree");
    rig.world.settle().await;
    assert_eq!((status(&rig, &dir), rig.world.sessions.beats("a")), (Some(SessionStatus::Initializing), 0));
    rig.world.pass(TICK * 2).await;
    assert_eq!(status(&rig, &dir), Some(SessionStatus::Running));
    assert!(rig.world.sessions.beats("a") >= 1);
}
