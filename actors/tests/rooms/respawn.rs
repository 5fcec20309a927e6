//! Respawns: a user restarts a worker.

use swarm_actors::supervisor::Request;
use swarm_actors::testing::Fault;
use swarm_model::{
    Answer, CleanRequest, Ended, FineState, KillRequest, Refusal, RefusalKind, RespawnRequest, RestartPolicy, Scope,
    Session, WireStatus,
};

use crate::fixture::{Rig, caller, clean, foreign_row, kill, request, respawn, restarting, with_tree};

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
            // The number of the start that failed is not given again.
            let number = if step == "next_free" { 2 } else { 3 };
            assert_eq!(rig.respawn("a").await.map(|spawned| spawned.generation), Ok(number), "{context}");
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

/// A kill or clean that is about one life is decided and carried out in one step, also if a respawn is under way.
#[tokio::test(start_paused = true)]
async fn a_request_about_one_life_leaves_a_later_one_alone() {
    let rig = Rig::start().await;
    let first = with_tree("a");
    let of = |started_by: &str| Some(started_by.to_owned());
    let started_by = first.caller.request.clone();
    let kill_of = |life: &str| {
        let scope = Scope::Names(vec!["a".to_owned()]);
        let (rm_worktree, force_dirty, started_by) = (true, true, of(life));
        Request::Kill(Box::new(KillRequest {
            caller: caller(),
            scope,
            rm_worktree,
            force_dirty,
            started_by,
            generation: None,
        }))
    };
    let clean_of = |life: &str| CleanRequest { force_dirty: true, started_by: of(life), ..clean("a") };
    let tree = rig.spawn(first).await.expect("starts").worktree.expect("has a worktree");
    let again = respawn("a");
    let life = again.caller.request.clone();
    // The kill arrives while the worker is being started again.
    let respawning = rig.swarm().request(Request::Respawn(Box::new(again)));
    let refusal = rig.ask_one(kill_of(&started_by)).await.expect_err("that life is over");
    assert_eq!(
        (refusal.kind, refusal.cause.as_str()),
        (RefusalKind::Exists, "worker 'a' was started again, by another request")
    );
    drop(respawning);
    assert_eq!((rig.world.state("a"), rig.world.worktrees.paths()), (Some(FineState::Running), vec![tree.clone()]));
    rig.clean_by(clean_of(&started_by)).await.expect_err("that life is over");
    rig.world.end("a", Ended::Code(0));
    rig.world.settle().await;
    let refusal = rig.clean_by(clean_of(&started_by)).await.expect_err("also once the later life has ended");
    assert_eq!((refusal.kind, rig.world.worktrees.paths()), (RefusalKind::Exists, vec![tree]));
    let again = rig.respawn("a").await.expect("starts again");
    assert_eq!(again.generation, 3);
    rig.ask_one(kill_of(&life)).await.expect_err("the second life is over");
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
    rig.check();
}

/// A kill, a respawn or an addition to a queue that names a generation leaves the next one alone.
#[tokio::test(start_paused = true)]
async fn a_request_about_one_generation_leaves_a_later_one_alone() {
    let rig = Rig::start().await;
    let first = rig.spawn(with_tree("a")).await.expect("starts").generation;
    let kill_of = |generation| {
        let Request::Kill(kill) = kill("a") else { panic!("a kill") };
        Request::Kill(Box::new(KillRequest { generation, ..*kill }))
    };
    let respawn_of = |generation| RespawnRequest { generation, ..respawn("a") };
    // Both arrive while the worker is being started again.
    let respawning = rig.swarm().request(Request::Respawn(Box::new(respawn("a"))));
    let refusal = rig.ask_one(kill_of(Some(first))).await.expect_err("another generation");
    assert_eq!(refusal, Refusal::started_again("a"));
    drop(respawning);
    assert_eq!(
        rig.respawn_by(respawn_of(Some(first))).await.expect_err("another generation").kind,
        RefusalKind::Exists
    );
    let add = async |generation| {
        let (names, settings) = (vec!["a".to_owned()], swarm_model::MergeSettings::default());
        let uncommitted = Vec::new();
        let order = swarm_model::MergeOrder::Add { names, base: None, priority: 0, settings, uncommitted, generation };
        let mut answers = rig.swarm().merge(swarm_model::MergeRequest { caller: caller(), order });
        answers.recv().await.expect("an answer")
    };
    assert_eq!(add(Some(first)).await, Answer::Refused(Refusal::started_again("a")));
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
    assert!(!matches!(add(Some(first + 1)).await, Answer::Refused(_)));
    let third = rig.respawn_by(respawn_of(Some(first + 1))).await.expect("starts again");
    rig.ask_one(kill_of(Some(third.generation))).await.expect("ends");
    assert_eq!(rig.world.state("a"), Some(FineState::Stopped));
    // A supervisor without this field reads the request.
    let asked = serde_json::to_value(respawn_of(None)).expect("a value");
    assert_eq!(asked.get("generation"), None);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_request_about_the_present_life_is_carried_out() {
    let rig = Rig::start().await;
    let first = with_tree("a");
    let started_by = Some(first.caller.request.clone());
    rig.spawn(first).await.expect("starts");
    let Request::Kill(kill) = kill("a") else { panic!("a kill") };
    rig.ask_one(Request::Kill(Box::new(KillRequest { started_by: started_by.clone(), ..*kill }))).await.expect("ends");
    assert_eq!(rig.world.state("a"), Some(FineState::Stopped));
    rig.clean_by(CleanRequest { started_by, ..clean("a") }).await.expect("is removed");
    assert_eq!(rig.world.row("a"), None);
    let scope = Scope::Names(vec!["a".to_owned()]);
    let gone = KillRequest {
        caller: caller(),
        scope,
        rm_worktree: false,
        force_dirty: false,
        started_by: Some("r".into()),
        generation: None,
    };
    let refusal = rig.ask_one(Request::Kill(Box::new(gone))).await.expect_err("there is none");
    assert_eq!(refusal.kind, RefusalKind::NotFound);
    rig.check();
}
