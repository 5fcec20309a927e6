//! Loops through the supervisor: each iteration runs once, whatever is interrupted.

use std::time::Duration;

use swarm_actors::supervisor::Exit;
use swarm_actors::testing::Fault;
use swarm_model::loops::progress::{ExitReason, Plan, Stage, Status, Wire};
use swarm_model::{Answer, Caller, Contract, Ended, EventKind, LoopOrder, LoopRequest, TmuxPlace, WorktreeRequest};

use crate::fixture::{Rig, caller};

pub const PROMPT: &str = "/p/PROMPT.md";

pub fn plan(max: u32) -> Plan {
    let tmux = Some(TmuxPlace { session: "s".to_owned(), ..TmuxPlace::default() });
    Plan {
        id: "l1".to_owned(),
        name: "w".to_owned(),
        prompt_file: PROMPT.to_owned(),
        max_iterations: max,
        inactivity_timeout_s: 180,
        contract: Contract { argv: vec!["agent".to_owned()], cwd: "/repo".to_owned(), tmux, ..Contract::default() },
        worktree: Some(WorktreeRequest { cwd: "/repo".to_owned(), ..WorktreeRequest::default() }),
        caller: Caller { cwd: "/repo".to_owned(), ..Caller::default() },
        ..Plan::default()
    }
}

/// Starts a machine with a prompt file, on which windows show shell prompts.
pub async fn rig() -> Rig {
    let rig = Rig::start().await;
    rig.world.loops.put_prompt(PROMPT, Some("do it"));
    rig.world.terminals.show("w", "$ ");
    rig
}

pub async fn order(rig: &Rig, order: LoopOrder) -> Vec<Answer> {
    ask(rig, caller(), order).await
}

pub async fn ask(rig: &Rig, caller: Caller, order: LoopOrder) -> Vec<Answer> {
    let mut receiver = rig.swarm().ralph(LoopRequest { caller, order });
    let mut answers = Vec::new();
    while let Some(answer) = receiver.recv().await {
        if answer == Answer::Done {
            break;
        }
        answers.push(answer);
    }
    answers
}

pub fn beginning(plan: Plan) -> LoopOrder {
    LoopOrder::Begin { plan: Box::new(plan), replace: false, clean_state: false }
}

pub async fn begin(rig: &Rig, plan: Plan) -> Vec<Answer> {
    let answers = order(rig, beginning(plan)).await;
    seconds(rig, 1).await;
    answers
}

pub async fn seconds(rig: &Rig, seconds: u64) {
    rig.world.pass(Duration::from_secs(seconds)).await;
}

/// Ends the agent, and lets the immediate consequences happen.
pub async fn end(rig: &Rig, code: i32) {
    rig.world.end("w", Ended::Code(code));
    seconds(rig, 1).await;
}

pub fn lines(rig: &Rig) -> Vec<String> {
    rig.world.loops.lines("w")
}

pub fn status(rig: &Rig) -> (Status, Option<ExitReason>) {
    let it = rig.world.loops.loaded("w").expect("there is a loop");
    (it.status, it.exit_reason)
}

pub fn starts(rig: &Rig) -> usize {
    rig.world.script.calls().iter().filter(|call| call.starts_with("open w.")).count()
}

#[tokio::test(start_paused = true)]
async fn an_agent_runs_in_its_worktree_until_the_last_iteration() {
    let rig = rig().await;
    let answers = begin(&rig, plan(3)).await;
    assert!(matches!(&answers[..], [Answer::Spawned(spawned)] if spawned.window.as_deref() == Some("s:w")));
    let first = rig.world.row("w").expect("it runs");
    assert_eq!(first.metadata.members()["ralph"], true);
    for iteration in 1..=3 {
        assert_eq!(rig.world.row("w").expect("it runs").metadata.members()["ralph_iteration"], iteration);
        end(&rig, 0).await;
    }
    let last = rig.world.row("w").expect("it stays for inspection");
    assert_eq!((&last.worktree, last.swarm().map(|meta| meta.generation)), (&first.worktree, Some(3)));
    assert_eq!(
        lines(&rig),
        [
            "START iteration 1/3",
            "END iteration 1 exit=0 duration=1s",
            "START iteration 2/3",
            "END iteration 2 exit=0 duration=1s",
            "START iteration 3/3",
            "END iteration 3 exit=0 duration=1s",
            "DONE loop complete after 3 iterations reason=max_iterations",
        ]
    );
    assert_eq!(status(&rig), (Status::Stopped, Some(ExitReason::MaxIterations)));
    assert_eq!(rig.world.terminals.typed("w"), ["do it", ""].repeat(3));
    let ended = EventKind::LoopEnded { reason: "max_iterations".to_owned(), iterations: 3 };
    assert!(rig.world.events.of("w").contains(&ended));
    rig.check();
    assert_eq!(rig.swarm().ended().await, Exit::Idle);
}

#[tokio::test(start_paused = true)]
async fn the_prompt_is_read_for_each_iteration_and_must_exist() {
    let rig = rig().await;
    begin(&rig, plan(5)).await;
    rig.world.loops.put_prompt(PROMPT, Some("do more"));
    end(&rig, 0).await;
    assert_eq!(rig.world.terminals.typed("w"), ["do it", "", "do more", ""]);
    rig.world.loops.put_prompt(PROMPT, None);
    end(&rig, 0).await;
    assert_eq!(status(&rig), (Status::Failed, Some(ExitReason::Failed)));
    assert!(lines(&rig).contains(&format!("ERROR prompt file not found: {PROMPT}")));
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_and_the_fifth_in_a_row_ends_the_loop() {
    let rig = rig().await;
    begin(&rig, plan(50)).await;
    for backoff in [1, 2, 4, 8] {
        end(&rig, 7).await;
        seconds(&rig, backoff - 1).await;
        rig.world.settle().await;
        seconds(&rig, 1).await;
    }
    end(&rig, 7).await;
    assert_eq!(status(&rig), (Status::Failed, Some(ExitReason::Failed)));
    let fails: Vec<String> = lines(&rig).into_iter().filter(|line| line.starts_with("FAIL")).collect();
    assert_eq!(fails[3], "FAIL iteration 4 exit=7 attempt=4/5 backoff=8s");
    assert_eq!((fails.len(), starts(&rig)), (4, 5));
    // A signal is a failure too, with the code that a shell shows.
    assert!(lines(&rig).last().expect("a line").ends_with("reason=failed"));
}

#[tokio::test(start_paused = true)]
async fn the_content_of_the_window_ends_the_loop_or_the_iteration() {
    let rig = rig().await;
    let pattern = Some("ALL DONE".to_owned());
    begin(&rig, Plan { done_pattern: pattern, check_done_continuous: true, ..plan(9) }).await;
    rig.world.terminals.show("w", "$ do it\n* Compacting conversation…");
    rig.world.logs.write("w");
    seconds(&rig, 3).await;
    assert!(lines(&rig).contains(&"FATAL iteration 1 -- compaction detected, killing".to_owned()), "{:?}", lines(&rig));
    assert_eq!(lines(&rig).last().expect("a line"), "START iteration 2/9");
    rig.world.terminals.show("w", "$ ");
    rig.world.logs.write("w");
    seconds(&rig, 1).await;
    rig.world.terminals.show("w", "$ do it\nworking\nALL DONE");
    rig.world.logs.write("w");
    seconds(&rig, 3).await;
    assert_eq!(status(&rig), (Status::Stopped, Some(ExitReason::DonePattern)));
    assert_eq!(lines(&rig).last().expect("a line"), "DONE loop complete after 2 iterations reason=done_pattern");
    assert!(!rig.world.state("w").expect("there").is_running(), "its agent is ended");
    assert_eq!(starts(&rig), 2);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn silence_ends_an_iteration_after_the_timeout() {
    let rig = rig().await;
    begin(&rig, plan(2)).await;
    seconds(&rig, 100).await;
    rig.world.terminals.show("w", "$ do it\nstill here");
    rig.world.logs.write("w");
    seconds(&rig, 170).await;
    assert_eq!(starts(&rig), 1);
    // Output that does not change the screen.
    rig.world.logs.write("w");
    seconds(&rig, 20).await;
    assert_eq!(starts(&rig), 2, "{:?}", lines(&rig));
    assert!(lines(&rig).contains(&"TIMEOUT iteration 1 inactivity_timeout=180s".to_owned()));
    seconds(&rig, 200).await;
    assert_eq!(status(&rig), (Status::Stopped, Some(ExitReason::MaxIterations)));
}

#[tokio::test(start_paused = true)]
async fn a_window_without_output_is_not_polled() {
    let rig = rig().await;
    begin(&rig, Plan { inactivity_timeout_s: 3600, ..plan(2) }).await;
    seconds(&rig, 20).await;
    rig.world.script.forget_calls();
    seconds(&rig, 3000).await;
    let looks = |rig: &Rig| rig.world.script.calls().iter().filter(|call| call.starts_with("screen")).count();
    assert_eq!(looks(&rig), 0);
    for _ in 0..100 {
        rig.world.logs.write("w");
        rig.world.pass(Duration::from_millis(100)).await;
    }
    assert!((4..=6).contains(&looks(&rig)), "{}", looks(&rig));
}

#[tokio::test(start_paused = true)]
async fn a_full_context_is_nudged_once_and_then_ended() {
    let rig = rig().await;
    begin(&rig, Plan { max_context: Some(70), ..plan(3) }).await;
    for (screen, seconds_on) in [("ctx 72%", 3), ("ctx 75%", 3), ("ctx 85%", 3)] {
        rig.world.terminals.show("w", screen);
        rig.world.logs.write("w");
        seconds(&rig, seconds_on).await;
    }
    let nudge = "You're at 70% context. Commit WIP and /exit NOW.";
    assert_eq!(rig.world.terminals.typed("w").iter().filter(|text| *text == nudge).count(), 1);
    assert!(lines(&rig).contains(&"FATAL iteration 1 -- context threshold exceeded, killing".to_owned()));
    assert_eq!(starts(&rig), 2);
}

#[tokio::test(start_paused = true)]
async fn a_login_screen_fails_the_preflight_check() {
    let rig = rig().await;
    rig.world.terminals.show("w", "Select login method:");
    begin(&rig, plan(3)).await;
    seconds(&rig, 60).await;
    assert_eq!(status(&rig), (Status::Failed, Some(ExitReason::PreflightFailed)));
    assert!(lines(&rig).iter().any(|line| line.starts_with("ERROR iteration 1: pre-flight check failed — ")));
    assert_eq!(rig.world.row("w"), None, "the worker is dropped");
}

#[tokio::test(start_paused = true)]
async fn the_last_output_matches_the_done_pattern_at_the_end() {
    let rig = rig().await;
    begin(&rig, Plan { done_pattern: Some("ALL DONE".to_owned()), ..plan(9) }).await;
    rig.world.terminals.show("w", "$ do it\nALL DONE");
    rig.world.logs.write("w");
    seconds(&rig, 5).await;
    assert_eq!(status(&rig), (Status::Running, None));
    rig.world.loops.put_output("w", "ALL DONE\n");
    end(&rig, 0).await;
    assert_eq!(status(&rig), (Status::Stopped, Some(ExitReason::DonePattern)));
}

#[tokio::test(start_paused = true)]
async fn the_done_pattern_counts_even_if_the_loop_ends_the_iteration() {
    for (screen, word) in [("* Compacting conversation…", "FATAL"), ("ctx 99%", "FATAL"), ("still here", "TIMEOUT")] {
        let rig = rig().await;
        let pattern = Some("^ALL TASKS DONE".to_owned());
        begin(&rig, Plan { done_pattern: pattern, max_context: Some(50), ..plan(9) }).await;
        rig.world.loops.put_output("w", "\nworking\nALL TASKS DONE\n");
        rig.world.terminals.show("w", &format!("$ do it\nALL TASKS DONE\n{screen}"));
        rig.world.logs.write("w");
        seconds(&rig, 200).await;
        assert!(lines(&rig).iter().any(|line| line.starts_with(word)), "{:?}", lines(&rig));
        assert_eq!(status(&rig), (Status::Stopped, Some(ExitReason::DonePattern)), "{screen}");
        assert_eq!(starts(&rig), 1, "{screen}");
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_until_a_resume() {
    let mut rig = rig().await;
    begin(&rig, plan(5)).await;
    let pause = || LoopOrder::Pause { name: "w".to_owned(), reason: "user".to_owned() };
    let resume = || LoopOrder::Resume { name: "w".to_owned() };
    assert!(matches!(&order(&rig, pause()).await[..], [Answer::Loop(line)] if line.done == "paused"));
    rig.world.terminals.show("w", "$ do it\nbusy");
    rig.world.logs.write("w");
    seconds(&rig, 1000).await;
    assert_eq!((status(&rig).0, starts(&rig)), (Status::Paused, 1));
    let again = order(&rig, pause()).await;
    assert!(matches!(&again[..], [Answer::Warning(text), _] if text == "worker 'w' is already paused"), "{again:?}");
    rig.crash().await;
    rig.up().await;
    end(&rig, 0).await;
    assert_eq!((status(&rig).0, starts(&rig)), (Status::Paused, 1));
    assert_eq!(rig.swarm().ended().await, Exit::Idle, "it needs no supervision");
    rig.crash().await;
    rig.up().await;
    assert!(matches!(&order(&rig, resume()).await[..], [Answer::Loop(line)] if line.done == "resumed"));
    seconds(&rig, 1).await;
    assert_eq!((status(&rig).0, starts(&rig)), (Status::Running, 2));
    let again = order(&rig, resume()).await;
    assert!(matches!(&again[..], [Answer::Warning(text), _] if text == "worker 'w' is not paused"), "{again:?}");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_kill_ends_worker_and_loop_even_between_iterations() {
    for at_work in [true, false] {
        let rig = rig().await;
        begin(&rig, plan(5)).await;
        if !at_work {
            end(&rig, 1).await;
            end(&rig, 1).await;
        }
        rig.kill("w").await.expect("killed");
        seconds(&rig, 60).await;
        let count = starts(&rig);
        assert_eq!(status(&rig), (Status::Stopped, Some(ExitReason::Killed)));
        assert!(lines(&rig).last().expect("a line").ends_with("reason=killed"), "{:?}", lines(&rig));
        seconds(&rig, 600).await;
        assert_eq!(starts(&rig), count);
        rig.clean("w").await.expect("cleaned");
        assert!(rig.world.loops.loaded("w").is_some(), "its history can still be read");
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_kill_is_not_acknowledged_if_the_loop_cannot_be_ended() {
    let rig = rig().await;
    begin(&rig, plan(5)).await;
    end(&rig, 1).await;
    end(&rig, 1).await;
    rig.world.script.at("loop.save", Fault::Error("no space left"));
    let refusal = rig.kill("w").await.expect_err("the loop goes on");
    assert!(refusal.cause.starts_with("killed, but the loop of 'w' could not be ended: "), "{refusal:?}");
    rig.kill("w").await.expect("killed");
    assert_eq!(status(&rig), (Status::Stopped, Some(ExitReason::Killed)));
}

#[tokio::test(start_paused = true)]
async fn a_loop_whose_first_worker_cannot_be_started_leaves_nothing() {
    let rig = rig().await;
    rig.world.script.at("prepare", Fault::Error("no tmux here"));
    let answers = begin(&rig, plan(5)).await;
    assert!(
        matches!(&answers[..], [Answer::Refused(refusal)] if refusal.cause.contains("no tmux here")),
        "{answers:?}"
    );
    assert_eq!((rig.world.loops.loaded("w"), rig.world.rows()), (None, vec![]));
    for step in ["loop.save", "loop.log", "loop.wire"] {
        rig.world.script.at(step, Fault::Error("no space left on device"));
        let answers = begin(&rig, plan(5)).await;
        assert!(
            matches!(&answers[..], [Answer::Refused(refusal)] if refusal.cause.ends_with("no space left on device"))
        );
        assert_eq!((rig.world.loops.loaded("w"), rig.world.rows()), (None, vec![]), "{step}");
    }
    // A later start is retried.
    begin(&rig, plan(5)).await;
    for _ in 0..7 {
        rig.world.script.at("prepare", Fault::Error("no tmux here"));
    }
    end(&rig, 0).await;
    seconds(&rig, 120).await;
    assert_eq!((status(&rig).0, starts(&rig)), (Status::Running, 2), "{:?}", lines(&rig));
    assert!(lines(&rig).iter().any(|line| line.starts_with("FAIL iteration 2 exit=1 attempt=1/5")));
    assert_eq!(lines(&rig).iter().filter(|line| line.starts_with("START iteration 2")).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_name_has_one_loop_unless_it_is_replaced() {
    let rig = rig().await;
    begin(&rig, plan(5)).await;
    let answers = begin(&rig, Plan { id: "l2".to_owned(), ..plan(5) }).await;
    assert!(matches!(&answers[..], [Answer::Refused(refusal)] if refusal.cause == "worker 'w' already exists"));
    let anew = Plan { id: "l3".to_owned(), ..plan(7) };
    let replace = LoopOrder::Begin { plan: Box::new(anew), replace: true, clean_state: false };
    let answers = order(&rig, replace).await;
    assert!(matches!(&answers[..], [Answer::Loop(line), Answer::Spawned(_)] if line.done == "replaced"), "{answers:?}");
    seconds(&rig, 1).await;
    assert_eq!(lines(&rig), ["START iteration 1/7"]);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn with_no_run_the_agent_has_its_prompt_and_supervision_can_start_later() {
    let rig = rig().await;
    begin(&rig, Plan { no_run: true, ..plan(2) }).await;
    assert_eq!(rig.world.terminals.typed("w"), ["do it", ""]);
    end(&rig, 0).await;
    seconds(&rig, 600).await;
    assert_eq!(lines(&rig), ["START iteration 1/2"], "it is unsupervised");
    assert_eq!(rig.swarm().ended().await, Exit::Idle);
    let answers = order(&rig, LoopOrder::Attend { name: "w".to_owned() }).await;
    assert!(matches!(&answers[..], [Answer::Loop(line)] if line.done == "attended"), "{answers:?}");
    seconds(&rig, 1).await;
    assert_eq!(lines(&rig).last().expect("a line"), "START iteration 2/2");
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_file_by_another_program_applies() {
    let rig = rig().await;
    begin(&rig, plan(5)).await;
    rig.world.loops.write_wire("w", Wire { status: Status::Paused, max_iterations: 2 });
    end(&rig, 0).await;
    assert_eq!((status(&rig).0, starts(&rig)), (Status::Paused, 1));
    order(&rig, LoopOrder::Resume { name: "w".to_owned() }).await;
    seconds(&rig, 1).await;
    assert_eq!(lines(&rig).last().expect("a line"), "START iteration 2/2");
}

#[tokio::test(start_paused = true)]
async fn files_that_cannot_be_written_hold_back_all_effects() {
    let rig = rig().await;
    begin(&rig, plan(5)).await;
    for _ in 0..3 {
        rig.world.script.at("loop.save", Fault::Error("no space left on device"));
    }
    rig.world.end("w", Ended::Code(0));
    rig.world.pass(Duration::from_millis(1500)).await;
    assert_eq!(starts(&rig), 1, "effects wait until the decision is durable");
    seconds(&rig, 5).await;
    assert_eq!(starts(&rig), 2);
    assert_eq!(lines(&rig).iter().filter(|line| line.starts_with("END iteration 1")).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_room_that_panics_is_restarted_and_continues() {
    let rig = rig().await;
    begin(&rig, plan(3)).await;
    rig.world.script.at("loop.save", Fault::Panic);
    end(&rig, 0).await;
    seconds(&rig, 5).await;
    assert_eq!(starts(&rig), 2, "{:?}", lines(&rig));
    assert_eq!(lines(&rig).iter().filter(|line| line.starts_with("END iteration 1")).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn each_iteration_runs_once_whatever_is_interrupted() {
    let steps = [
        "loop.save",
        "loop.log",
        "loop.wire",
        "loop.save.after",
        "loop.prompt",
        "reserve",
        "prepare",
        "open",
        "open.after",
        "screen",
        "type_text",
    ];
    for step in steps {
        for nth in 0.. {
            let mut rig = rig().await;
            (0..nth).for_each(|_| rig.world.script.at(step, Fault::Run(Box::new(|| {}))));
            rig.world.script.at(step, Fault::Hang);
            let request = caller();
            let asked = LoopRequest { caller: request.clone(), order: beginning(plan(3)) };
            let mut answers = rig.swarm().ralph(asked);
            let _ = tokio::time::timeout(Duration::from_secs(1), answers.recv()).await;
            finish(&rig).await;
            rig.crash().await;
            let reached = rig.world.script.forget_faults();
            rig.up().await;
            // Like a command that lost its answer together with its supervisor.
            ask(&rig, Caller { repeated: 1, ..request }, beginning(plan(3))).await;
            for _ in 0..6 {
                finish(&rig).await;
            }
            assert_eq!(status(&rig), (Status::Stopped, Some(ExitReason::MaxIterations)), "{step} {nth}");
            let it = rig.world.loops.loaded("w").expect("there");
            assert_eq!((it.iteration, &it.stage), (3, &Stage::Over), "{step} {nth}");
            let marks = |event: &str| lines(&rig).iter().filter(|line| line.starts_with(event)).count();
            let told = [marks("START"), marks("END"), marks("DONE")];
            assert_eq!(told, [3, 3, 1], "{step} {nth}: {:?}", lines(&rig));
            assert_eq!(it.told, lines(&rig).len() as u64, "{step} {nth}");
            let calls = rig.world.script.calls();
            let commits: std::collections::BTreeSet<_> =
                calls.iter().filter(|call| call.starts_with("commit w.")).collect();
            assert_eq!(commits.len(), 3, "{step} {nth}: {commits:?}");
            assert_eq!(rig.world.rows().len(), 1);
            rig.check();
            if !reached {
                assert!(nth > 0, "{step} was never reached");
                break;
            }
        }
    }
}

/// Ends the running agent successfully, if there is one and it has its prompt.
async fn finish(rig: &Rig) {
    seconds(rig, 2).await;
    let at_work = rig.world.state("w").is_some_and(|state| state.is_running());
    if at_work && rig.world.records.newest("w").is_some() {
        rig.world.end("w", Ended::Code(0));
    }
    seconds(rig, 2).await;
}
