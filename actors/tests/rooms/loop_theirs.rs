//! Loops that the original `swarm` started: adopted once the original has left them, and never before.

use std::time::Duration;

use swarm_actors::testing::Fault;
use swarm_model::loops::progress::{ExitReason, Loop, Plan, Stage, Status, Wire};
use swarm_model::{Answer, LoopOrder, LoopRequest, Row, RowTmux, RowWorktree};
use swarm_ports::Found;

use crate::fixture::{Rig, caller, foreign_row};
use crate::loops::{PROMPT, end, lines, order, rig, seconds, starts, status};

/// Returns the row of a worker of the original, which has a window. `pid` decides whether the worker is alive.
fn row(pid: Option<i64>) -> Row {
    let tmux = RowTmux { session: "theirs".to_owned(), window: "w".to_owned(), socket: None };
    let tree = RowWorktree { path: "/repo-w".to_owned(), branch: "w".to_owned(), base_repo: "/repo".to_owned() };
    Row { tmux: Some(tmux), worktree: Some(tree), ..foreign_row("w", pid) }
}

/// Returns a loop in its second iteration of `max`, as the file of the original has it.
fn left(status: Status, exit_reason: Option<ExitReason>, max: u32) -> Loop {
    let plan = Plan {
        name: "w".to_owned(),
        prompt_file: PROMPT.to_owned(),
        max_iterations: max,
        inactivity_timeout_s: 180,
        done_pattern: Some("ALL DONE".to_owned()),
        check_done_continuous: true,
        ..Plan::default()
    };
    Loop {
        status,
        exit_reason,
        iteration: 2,
        stage: Stage::Between { again: false },
        detached: true,
        has_run: true,
        entered: true,
        preflown: true,
        durations: vec![7],
        total_failures: 1,
        baseline: "$ do it".to_owned(),
        iteration_started_ms: 1,
        ..Loop::new(plan, 0)
    }
}

fn put(rig: &Rig, it: Loop, keeper: Option<i32>) {
    rig.world.loops.put_found(Found { it, keeper });
}

fn resume() -> LoopOrder {
    LoopOrder::Resume { name: "w".to_owned() }
}

fn did(answers: &[Answer], what: &str) -> bool {
    matches!(answers, [Answer::Loop(line)] if line.done == what)
}

const UNSEEN: &str = "WARN iteration 2: loop adopted from another program; the exit code of its worker is unknown";

#[tokio::test(start_paused = true)]
async fn an_adopted_loop_continues_in_its_worktree_from_any_status() {
    let disconnected = Some(ExitReason::MonitorDisconnected);
    for (before, reason) in [(Status::Running, None), (Status::Paused, None), (Status::Stopped, disconnected)] {
        let rig = rig().await;
        rig.world.write_rows(&[row(None)]);
        put(&rig, left(before, reason, 3), None);
        assert!(did(&order(&rig, resume()).await, "resumed"));
        seconds(&rig, 1).await;
        assert_eq!(lines(&rig), [UNSEEN, "START iteration 3/3"]);
        let now = rig.world.row("w").expect("it runs");
        assert_eq!((now.worktree, now.cmd), (row(None).worktree, row(None).cmd));
        assert_eq!(now.metadata.members()["ralph_iteration"], 3);
        assert_eq!(rig.world.terminals.typed("w"), ["do it", ""]);
        end(&rig, 0).await;
        assert_eq!(status(&rig), (Status::Stopped, Some(ExitReason::MaxIterations)));
        let it = rig.world.loops.loaded("w").expect("there");
        assert_eq!((it.durations.len(), it.total_failures, starts(&rig)), (2, 1, 1));
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_running_worker_is_followed_to_its_end() {
    for closes in [true, false] {
        let rig = rig().await;
        let theirs = rig.world.kernel.fork();
        rig.world.write_rows(&[row(Some(theirs.pid.into()))]);
        put(&rig, left(Status::Running, None, 3), None);
        assert!(did(&order(&rig, resume()).await, "resumed"));
        seconds(&rig, 100).await;
        assert_eq!((starts(&rig), rig.world.terminals.typed("w").len()), (0, 0), "it already has its prompt");
        if closes {
            rig.world.kernel.end(&theirs);
            seconds(&rig, 1).await;
            assert!(lines(&rig)[1].starts_with("END iteration 2 exit=unknown"), "{:?}", lines(&rig));
            assert_eq!((lines(&rig)[2].as_str(), starts(&rig)), ("START iteration 3/3", 1));
            assert_eq!(rig.world.loops.loaded("w").expect("there").total_failures, 1, "it is no failure");
        } else {
            rig.world.terminals.show("w", "$ do it\nALL DONE");
            rig.world.logs.write("w");
            seconds(&rig, 5).await;
            assert_eq!(status(&rig), (Status::Stopped, Some(ExitReason::DonePattern)));
            assert!(!rig.world.kernel.is_alive(&theirs), "the worker is ended");
            assert_eq!(starts(&rig), 0);
        }
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_followed_worker_survives_silence_and_crashes() {
    let mut rig = rig().await;
    let theirs = rig.world.kernel.fork();
    rig.world.write_rows(&[row(Some(theirs.pid.into()))]);
    put(&rig, left(Status::Paused, None, 3), None);
    order(&rig, resume()).await;
    rig.crash().await;
    rig.up().await;
    seconds(&rig, 100).await;
    assert!(rig.world.kernel.is_alive(&theirs) && starts(&rig) == 0);
    seconds(&rig, 200).await;
    assert!(!rig.world.kernel.is_alive(&theirs));
    assert!(lines(&rig).contains(&"TIMEOUT iteration 2 inactivity_timeout=180s".to_owned()), "{:?}", lines(&rig));
    assert_eq!((starts(&rig), lines(&rig).last().map(String::as_str)), (1, Some("START iteration 3/3")));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_another_program_supervises_is_refused() {
    let rig = rig().await;
    rig.world.write_rows(&[row(None)]);
    put(&rig, left(Status::Running, None, 3), Some(4711));
    let name = || "w".to_owned();
    for asked in [
        LoopOrder::Pause { name: name(), reason: "user".to_owned() },
        resume(),
        LoopOrder::Attend { name: name() },
        LoopOrder::Stop { name: name() },
        LoopOrder::Clean { name: name() },
        crate::loops::beginning(crate::loops::plan(3)),
    ] {
        let answers = order(&rig, asked).await;
        let [Answer::Refused(refusal)] = &answers[..] else { panic!("{answers:?}") };
        assert!(refusal.cause.contains("another program (pid 4711)"), "{refusal:?}");
        assert!(refusal.remedy.as_ref().is_some_and(|remedy| remedy.contains("swarm ralph resume w")));
    }
    assert_eq!((rig.world.loops.loaded("w"), starts(&rig), lines(&rig).len()), (None, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_missing_part_is_reported_and_nothing_changes() {
    for (what, cause) in
        [("row", "is gone, and only its row says"), ("prompt", "prompt file not found"), ("pattern", "done pattern")]
    {
        let rig = rig().await;
        let mut it = left(Status::Paused, None, 3);
        match what {
            "row" => {}
            "prompt" => rig.world.loops.put_prompt(PROMPT, None),
            _ => it.plan = Plan { done_pattern: Some("(?=x)".to_owned()), ..it.plan.as_ref().clone() }.into(),
        }
        if what != "row" {
            rig.world.write_rows(&[row(None)]);
        }
        put(&rig, it, None);
        let answers = order(&rig, resume()).await;
        assert!(matches!(&answers[..], [Answer::Refused(refusal)] if refusal.cause.contains(cause)), "{answers:?}");
        assert_eq!(rig.world.loops.loaded("w"), None);
        // It can still be stopped and cleaned.
        assert!(did(&order(&rig, LoopOrder::Stop { name: "w".to_owned() }).await, "stopped"));
        assert_eq!(status(&rig), (Status::Stopped, Some(ExitReason::Killed)));
        assert!(did(&order(&rig, LoopOrder::Clean { name: "w".to_owned() }).await, "cleaned"));
        assert_eq!(rig.world.loops.loaded("w"), None);
    }
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_loop_can_be_paused_and_killed() {
    let rig = rig().await;
    let theirs = rig.world.kernel.fork();
    rig.world.write_rows(&[row(Some(theirs.pid.into()))]);
    put(&rig, left(Status::Running, None, 3), None);
    let pause = LoopOrder::Pause { name: "w".to_owned(), reason: "user".to_owned() };
    assert!(did(&order(&rig, pause).await, "paused"));
    assert_eq!(status(&rig), (Status::Paused, None));
    assert!(rig.world.kernel.is_alive(&theirs));
    rig.kill("w").await.expect("killed");
    assert_eq!(status(&rig), (Status::Stopped, Some(ExitReason::Killed)));
    assert!(!rig.world.kernel.is_alive(&theirs));
    seconds(&rig, 600).await;
    assert_eq!(starts(&rig), 0);
    let answers = order(&rig, resume()).await;
    assert!(matches!(&answers[..], [Answer::Warning(text), _] if text == "worker 'w' is not paused"), "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn files_that_cannot_be_written_leave_the_loop_unchanged() {
    for step in ["loop.save", "loop.log", "loop.wire"] {
        let rig = rig().await;
        rig.world.write_rows(&[row(None)]);
        put(&rig, left(Status::Paused, None, 3), None);
        rig.world.script.at(step, Fault::Error("no space left on device"));
        let answers = order(&rig, resume()).await;
        assert!(matches!(&answers[..], [Answer::Refused(refusal)] if refusal.cause.contains("no space")), "{step}");
        assert_eq!((rig.world.loops.loaded("w"), lines(&rig).len(), starts(&rig)), (None, 0, 0), "{step}");
        assert!(did(&order(&rig, resume()).await, "resumed"), "{step}");
        seconds(&rig, 1).await;
        assert_eq!(starts(&rig), 1, "{step}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_loop_is_adopted_once_whatever_is_interrupted() {
    let steps = [
        "loop.found",
        "loop.prompt",
        "loop.save",
        "loop.log",
        "loop.wire",
        "loop.save.after",
        "reserve",
        "prepare",
        "open",
        "open.after",
        "type_text",
    ];
    for step in steps {
        for nth in 0.. {
            let mut rig = rig().await;
            rig.world.write_rows(&[row(None)]);
            put(&rig, left(Status::Paused, None, 3), None);
            (0..nth).for_each(|_| rig.world.script.at(step, Fault::Run(Box::new(|| {}))));
            rig.world.script.at(step, Fault::Hang);
            let request = caller();
            let mut answers = rig.swarm().ralph(LoopRequest { caller: request.clone(), order: resume() });
            let _ = tokio::time::timeout(Duration::from_secs(1), answers.recv()).await;
            seconds(&rig, 5).await;
            rig.crash().await;
            let reached = rig.world.script.forget_faults();
            rig.up().await;
            order(&rig, resume()).await;
            seconds(&rig, 30).await;
            assert_eq!(status(&rig), (Status::Running, None), "{step} {nth}");
            let count = |word: &str| lines(&rig).iter().filter(|line| line.starts_with(word)).count();
            assert_eq!([count("WARN"), count("START iteration 3/3")], [1, 1], "{step} {nth}: {:?}", lines(&rig));
            let calls = rig.world.script.calls();
            let commits: std::collections::BTreeSet<_> =
                calls.iter().filter(|call| call.starts_with("commit w.")).collect();
            assert_eq!(commits.len(), 1, "{step} {nth}: {commits:?}");
            end(&rig, 0).await;
            assert_eq!(status(&rig), (Status::Stopped, Some(ExitReason::MaxIterations)), "{step} {nth}");
            rig.check();
            if !reached {
                assert!(nth > 0, "{step} was never reached");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn adoption_applies_a_change_of_the_file_in_between() {
    let rig = rig().await;
    rig.world.write_rows(&[row(None)]);
    put(&rig, left(Status::Running, None, 9), None);
    rig.world.loops.write_wire("w", Wire { status: Status::Paused, max_iterations: 4 });
    let pause = LoopOrder::Pause { name: "w".to_owned(), reason: "user".to_owned() };
    assert!(did(&order(&rig, pause).await, "paused"));
    let it = rig.world.loops.loaded("w").expect("there");
    assert_eq!((it.status, it.max_iterations, starts(&rig)), (Status::Paused, 4, 0));
}
