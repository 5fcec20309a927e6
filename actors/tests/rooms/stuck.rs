//! Stuck workers: nudged, interrupted, restarted, given up; and left alone if no watch was
//! requested.

use std::time::Duration;

use swarm_actors::supervisor::Request;
use swarm_actors::testing::Fault;
use swarm_model::{EventKind, FineState, NeedKind, RecoverRequest, TmuxPlace, WatchRules, WorktreeRequest};
use swarm_ports::{Mark, Sight};

use crate::fixture::{Rig, caller, request};

const MINUTE: Duration = Duration::from_secs(60);

async fn watched(rig: &Rig, name: &str) {
    let mut asked = request(name);
    asked.contract.tmux = Some(TmuxPlace { session: "s".to_owned(), ..TmuxPlace::default() });
    asked.contract.watch = Some(WatchRules { after_ms: 600_000, message: "go on".to_owned() });
    asked.worktree = Some(WorktreeRequest { cwd: "/repo".to_owned(), ..WorktreeRequest::default() });
    rig.world.terminals.show(name, "> ");
    rig.spawn(asked).await.expect("starts");
}

fn steps(rig: &Rig, name: &str) -> Vec<String> {
    let step = |kind| match kind {
        EventKind::WorkerStuck { step, .. } => Some(step),
        EventKind::WorkerUnstuck => Some("unstuck".to_owned()),
        EventKind::WorkerWaiting { .. } => Some("waiting".to_owned()),
        _ => None,
    };
    rig.world.events.of(name).into_iter().filter_map(step).collect()
}

fn is_given_up(rig: &Rig, name: &str) -> bool {
    matches!(rig.world.records.mark_of(name), Some(Mark::Stuck(evidence)) if evidence.starts_with("no output for "))
}

#[tokio::test(start_paused = true)]
async fn the_ladder_runs_to_its_end_and_no_further() {
    let rig = Rig::start().await;
    watched(&rig, "a").await;
    rig.world.pass(MINUTE * 17).await;
    assert_eq!(rig.world.terminals.typed("a"), ["go on", "go on", "^C"]);
    rig.world.pass(MINUTE * 120).await;
    let all = ["nudged", "nudged", "interrupted", "restarted", "restarted", "restarted", "given-up"];
    assert_eq!(steps(&rig, "a"), all);
    assert_eq!(rig.world.records.executions().len(), 4);
    assert_eq!(rig.world.state("a"), Some(FineState::Running), "it is given up, not ended");
    assert!(is_given_up(&rig, "a"));
    let spec = rig.world.facts("a").and_then(|facts| facts.spec.spec().cloned()).expect("a contract");
    assert_eq!(spec.argv(), ["work", "again"], "it resumes its session");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn the_ladder_ends_across_restarts_of_the_supervisor() {
    let mut rig = Rig::start().await;
    watched(&rig, "a").await;
    rig.world.pass(MINUTE * 10).await;
    for _ in 0..30 {
        rig.world.pass(MINUTE * 4).await;
        rig.crash().await;
        rig.up().await;
    }
    let all = ["nudged", "nudged", "interrupted", "restarted", "restarted", "restarted", "given-up"];
    assert_eq!(steps(&rig, "a"), all);
    assert!(is_given_up(&rig, "a"));
    // After a respawn by a person, the ladder starts again.
    rig.kill("a").await.expect("is killed");
    rig.respawn("a").await.expect("starts again");
    rig.world.pass(MINUTE * 11).await;
    assert_eq!(steps(&rig, "a").len(), all.len() + 1);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_continues_is_reported_and_unmarked() {
    let rig = Rig::start().await;
    watched(&rig, "a").await;
    rig.world.pass(MINUTE * 11).await;
    assert_eq!(steps(&rig, "a"), ["nudged"]);
    rig.world.sessions.show("a", Sight { output: 7, ..Sight::default() });
    rig.world.pass(MINUTE).await;
    assert_eq!(steps(&rig, "a"), ["nudged", "unstuck"]);
    assert_eq!(rig.world.records.mark_of("a"), None);
}

#[tokio::test(start_paused = true)]
async fn a_question_on_the_screen_is_left_to_a_person() {
    let rig = Rig::start().await;
    watched(&rig, "a").await;
    rig.world.terminals.show("a", include_str!("../../../tests/data/screens/gemini/trust.txt"));
    rig.world.sessions.show("a", Sight { output: 3, ..Sight::default() });
    rig.world.pass(MINUTE * 60).await;
    assert_eq!(steps(&rig, "a"), ["waiting"]);
    assert_eq!(rig.world.terminals.typed("a"), Vec::<String>::new());
    let waits = Mark::Waits("asks whether to trust this directory".to_owned());
    assert_eq!(rig.world.records.mark_of("a"), Some(waits));
}

#[tokio::test(start_paused = true)]
async fn agents_that_report_nothing_are_watched_without_a_session() {
    let idle = include_str!("../../../tests/data/screens/gemini/idle.txt");
    let asks = include_str!("../../../tests/data/screens/gemini/trust.txt");
    for program in ["gemini", "/opt/bin/qwen", "opencode", "aider"] {
        let rig = Rig::start().await;
        let mut asked = request("a");
        asked.contract.argv = vec![program.to_owned()];
        asked.contract.tmux = Some(TmuxPlace { session: "s".to_owned(), ..TmuxPlace::default() });
        for (output, screen, mark) in [
            (1, asks, Mark::Waits("asks whether to trust this directory".to_owned())),
            (2, idle, Mark::Idle("its turn is over".to_owned())),
        ] {
            rig.world.terminals.show("a", screen);
            rig.world.sessions.show("a", Sight { output, quiet_ms: 5_000, ..Sight::default() });
            if output == 1 {
                rig.spawn(asked.clone()).await.expect("starts");
            }
            rig.world.pass(MINUTE).await;
            assert_eq!(rig.world.records.mark_of("a"), Some(mark), "{program}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_restart_is_completed_by_the_next_supervisor() {
    for step in ["stop_by_shim", "reserve", "open_session", "prepare", "open", "open.after"] {
        let mut rig = Rig::start().await;
        watched(&rig, "a").await;
        rig.world.pass(MINUTE * 17).await;
        let fault = if step == "stop_by_shim" { Fault::Error("no") } else { Fault::Hang };
        rig.world.script.at(step, fault);
        rig.world.pass(MINUTE * 3).await;
        assert!(rig.world.script.unmet().is_empty(), "{step} was not met");
        rig.crash().await;
        rig.up().await;
        rig.world.pass(MINUTE).await;
        assert_eq!(rig.world.state("a"), Some(FineState::Running), "{step}");
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_restart_is_reported_and_a_kill_after_it_holds() {
    let mut rig = Rig::start().await;
    watched(&rig, "a").await;
    rig.world.pass(MINUTE * 17).await;
    rig.world.script.at("reserve", Fault::Error("full"));
    rig.world.pass(MINUTE * 3).await;
    assert!(rig.world.script.unmet().is_empty());
    let failed = |kind: &EventKind| matches!(kind, EventKind::WorkerFailed { .. });
    assert!(rig.world.events.of("a").iter().any(failed));
    rig.kill("a").await.expect("is killed");
    rig.crash().await;
    rig.up().await;
    rig.world.pass(MINUTE * 60).await;
    assert_ne!(rig.world.state("a"), Some(FineState::Running));
    assert_eq!(rig.world.records.executions().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_kill_during_a_restart_holds() {
    let mut rig = Rig::start().await;
    watched(&rig, "a").await;
    rig.world.pass(MINUTE * 17).await;
    rig.world.script.at("reserve", Fault::Hang);
    rig.world.pass(MINUTE * 3).await;
    rig.crash().await;
    rig.world.script.at("reserve", Fault::Error("full"));
    rig.up().await;
    rig.kill("a").await.expect("is killed");
    rig.world.pass(MINUTE * 60).await;
    rig.crash().await;
    rig.up().await;
    rig.world.pass(MINUTE * 60).await;
    assert_ne!(rig.world.state("a"), Some(FineState::Running));
}

#[tokio::test(start_paused = true)]
async fn the_ladder_keeps_the_count_of_recoveries() {
    let mut rig = Rig::start().await;
    watched(&rig, "a").await;
    rig.crash().await;
    rig.world.kernel.reboot();
    rig.up().await;
    let request = RecoverRequest { caller: caller(), name: "a".to_owned() };
    rig.start_by(Request::Recover(Box::new(request))).await.expect("is recovered");
    rig.world.pass(MINUTE * 11).await;
    assert_eq!(steps(&rig, "a"), ["nudged"]);
    let wanted = rig.world.facts("a").expect("records").wanted;
    assert_eq!((wanted.recoveries, wanted.rungs.nudges), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_reports_is_told_at_once_and_is_not_called_stuck() {
    let rig = Rig::start().await;
    let mut asked = request("a");
    asked.contract.argv = vec!["claude".to_owned()];
    asked.contract.tmux = Some(TmuxPlace { session: "s".to_owned(), ..TmuxPlace::default() });
    rig.world.terminals.show("a", "> ");
    rig.spawn(asked).await.expect("starts");
    rig.world.settle().await;
    let text = |text: &str| text.to_owned();
    let asks = Sight { waiting: Some(text("which branch?")), kind: NeedKind::Question, ..Sight::default() };
    let rests = Sight { waiting: Some(text("its turn is over")), idle: true, ..Sight::default() };
    for (sight, event, mark) in [
        (
            asks,
            EventKind::WorkerWaiting { kind: NeedKind::Question, text: text("which branch?") },
            Some(Mark::Waits(text("which branch?"))),
        ),
        (rests, EventKind::WorkerIdle { text: text("its turn is over") }, Some(Mark::Idle(text("its turn is over")))),
        (Sight::default(), EventKind::WorkerWorking, None),
    ] {
        rig.world.sessions.report("a", sight);
        rig.world.settle().await;
        assert_eq!(rig.world.events.of("a").last(), Some(&event), "without a tick");
        assert_eq!(rig.world.records.mark_of("a"), mark);
    }
    assert_eq!(steps(&rig, "a"), ["waiting"]);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_dialog_that_was_answered_is_not_told_again() {
    let rig = Rig::start().await;
    let mut asked = request("a");
    asked.contract.argv = vec!["claude".to_owned()];
    asked.contract.tmux = Some(TmuxPlace { session: "s".to_owned(), ..TmuxPlace::default() });
    rig.world.terminals.show("a", include_str!("../../../tests/data/screens/claude/trust.txt"));
    rig.spawn(asked).await.expect("starts");
    rig.world.pass(Duration::from_secs(15)).await;
    assert_eq!(steps(&rig, "a"), ["waiting"]);
    rig.world.terminals.show("a", include_str!("../../../tests/data/screens/claude/start.txt"));
    let idle = Sight { waiting: Some("its turn is over".to_owned()), idle: true, ..Sight::default() };
    for (output, sight, last) in [
        (2, idle, EventKind::WorkerIdle { text: "its turn is over".to_owned() }),
        (3, Sight::default(), EventKind::WorkerWorking),
    ] {
        rig.world.sessions.report("a", Sight { output, reports: true, ..sight });
        rig.world.settle().await;
        assert_eq!(rig.world.events.of("a").last(), Some(&last), "without a tick");
    }
    assert_eq!(steps(&rig, "a"), ["waiting"]);
    assert_eq!(rig.world.records.mark_of("a"), None);
    rig.check();
}
