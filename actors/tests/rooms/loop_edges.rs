//! Loops and events at inconvenient times: other requests, crashes, lost machines.

use std::time::Duration;

use swarm_actors::supervisor::Exit;
use swarm_actors::testing::Fault;
use swarm_model::loops::progress::{Plan, Status, Wire};
use swarm_model::{Answer, Caller, Ended, LoopOrder, LoopRequest, Reason, RefusalKind};
use swarm_ports::Typing;

use crate::fixture::caller;
use crate::loops::{ask, begin, beginning, end, lines, order, plan, rig, seconds, starts, status};

#[tokio::test(start_paused = true)]
async fn the_worker_of_a_loop_cannot_be_respawned() {
    let rig = rig().await;
    begin(&rig, plan(5)).await;
    for paused in [false, true] {
        if paused {
            order(&rig, LoopOrder::Pause { name: "w".to_owned(), reason: "user".to_owned() }).await;
        }
        let refusal = rig.respawn("w").await.expect_err("the loop does that");
        assert_eq!(refusal.kind, RefusalKind::Running);
        assert!(refusal.remedy.expect("there is one").contains("swarm ralph stop w"));
        assert_eq!(starts(&rig), 1);
        assert!(rig.world.state("w").expect("there").is_running());
    }
    end(&rig, 0).await;
    assert!(rig.respawn("w").await.is_err(), "paused between two iterations");
    order(&rig, LoopOrder::Stop { name: "w".to_owned() }).await;
    rig.respawn("w").await.expect("nobody else starts it");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_repeated_prompt_is_typed_into_an_empty_line() {
    let mut rig = rig().await;
    rig.world.script.at("type_text", Fault::Hang);
    begin(&rig, plan(5)).await;
    assert_eq!(rig.world.terminals.typed("w"), Vec::<String>::new());
    rig.crash().await;
    assert!(rig.world.script.forget_faults());
    rig.up().await;
    seconds(&rig, 5).await;
    let typing = |clear, enter| Typing { clear, enter };
    let typed = [("do it".to_owned(), typing(true, false)), (String::new(), typing(false, true))];
    assert_eq!(rig.world.terminals.typed_how("w"), typed);
}

#[tokio::test(start_paused = true)]
async fn the_prompt_is_typed_by_one_task_only() {
    for no_run in [false, true] {
        let rig = rig().await;
        rig.world.script.at("type_text", Fault::Hang);
        let plan = Plan { no_run, ..plan(5) };
        drop(rig.swarm().ralph(LoopRequest { caller: caller(), order: beginning(plan) }));
        seconds(&rig, 1).await;
        if no_run {
            order(&rig, LoopOrder::Attend { name: "w".to_owned() }).await;
        } else {
            order(&rig, LoopOrder::Pause { name: "w".to_owned(), reason: "user".to_owned() }).await;
            order(&rig, LoopOrder::Resume { name: "w".to_owned() }).await;
        }
        rig.world.pass(Duration::from_secs(5)).await;
        assert_eq!(status(&rig).0, Status::Running);
        let tried = rig.world.script.calls().iter().filter(|call| call.starts_with("type_text")).count();
        assert_eq!(tried, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_cannot_start_keeps_the_files_of_an_earlier_one() {
    let rig = rig().await;
    begin(&rig, plan(1)).await;
    end(&rig, 0).await;
    rig.clean("w").await.expect("cleaned");
    let files = || (lines(&rig), rig.world.loops.loaded("w"));
    let before = files();
    assert_eq!(before.0.len(), 3);
    for (step, cause) in [("prepare", "no tmux here"), ("loop.log", "no space"), ("loop.wire", "no space")] {
        rig.world.script.at(step, Fault::Error(cause));
        let answers = begin(&rig, Plan { id: "l2".to_owned(), ..plan(5) }).await;
        assert!(matches!(&answers[..], [Answer::Refused(refusal)] if refusal.cause.contains(cause)), "{answers:?}");
        assert_eq!(files(), before, "{step}");
    }
    begin(&rig, Plan { id: "l2".to_owned(), ..plan(5) }).await;
    assert_eq!(lines(&rig).last().expect("a line"), "START iteration 1/5");
    assert_eq!(rig.world.loops.loaded("w").expect("there").earlier, None, "a worker has run");
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_refusal_is_repeated_and_leaves_nothing() {
    for step in ["loop.forget", "loop.save.after"] {
        let mut rig = rig().await;
        rig.world.script.at("prepare", Fault::Error("no tmux here"));
        if step == "loop.save.after" {
            // Both saves at the start, before its first worker.
            (0..2).for_each(|_| rig.world.script.at(step, Fault::Run(Box::new(|| {}))));
        }
        rig.world.script.at(step, Fault::Hang);
        let request = caller();
        let mut answers = rig.swarm().ralph(LoopRequest { caller: request.clone(), order: beginning(plan(5)) });
        assert!(tokio::time::timeout(Duration::from_secs(5), answers.recv()).await.is_err(), "{step}");
        rig.crash().await;
        assert!(rig.world.script.forget_faults(), "{step} was never reached");
        rig.up().await;
        let answers = ask(&rig, Caller { repeated: 1, ..request }, beginning(plan(5)));
        let answers = tokio::time::timeout(Duration::from_secs(60), answers).await.expect("answered in time");
        let [Answer::Refused(refusal)] = &answers[..] else { panic!("{step}: {answers:?}") };
        assert!(refusal.cause.contains("no tmux here"), "{step}: {refusal:?}");
        assert_eq!((rig.world.loops.loaded("w"), rig.world.rows()), (None, vec![]), "{step}");
        assert_eq!(rig.swarm().ended().await, Exit::Idle, "{step}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_iteration_is_restarted_up_to_the_limit() {
    for how in ["killed", "server", "interrupted"] {
        let rig = rig().await;
        begin(&rig, plan(2)).await;
        for lost in 1..=4 {
            match how {
                "server" => {
                    rig.world.terminals.lose_server();
                    rig.world.end_because("w", Ended::Signal(1), Reason::Closed);
                }
                "interrupted" => rig.world.interrupt("w", Ended::Signal(15)),
                _ => {
                    rig.world.kill_shim("w");
                    rig.world.end("w", Ended::Code(0));
                }
            }
            rig.world.terminals.show("w", "$ ");
            seconds(&rig, 10).await;
            assert_eq!(starts(&rig), lost + 1, "{how}: {:?}", lines(&rig));
            let it = rig.world.loops.loaded("w").expect("there");
            let failures = u32::from(lost == 4);
            assert_eq!((it.iteration, it.total_failures), (1 + failures, failures), "{:?}", lines(&rig));
        }
        let count = |word: &str| lines(&rig).iter().filter(|line| line.starts_with(word)).count();
        assert_eq!([count("START iteration 1"), count("WARN iteration 1"), count("FAIL")], [1, 3, 1]);
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_window_is_a_failure() {
    let rig = rig().await;
    begin(&rig, plan(2)).await;
    rig.world.end_because("w", Ended::Signal(1), Reason::Closed);
    seconds(&rig, 5).await;
    assert!(lines(&rig).iter().any(|line| line.starts_with("FAIL iteration 1 exit=129")), "{:?}", lines(&rig));
}

#[tokio::test(start_paused = true)]
async fn a_pause_written_during_a_save_holds() {
    let rig = rig().await;
    begin(&rig, plan(5)).await;
    let loops = std::sync::Arc::clone(&rig.world.loops);
    // Between the loop's own read of the file and its write.
    let paused = Wire { status: Status::Paused, max_iterations: 3 };
    rig.world.script.at("loop.wire", Fault::Run(Box::new(move || loops.write_wire("w", paused))));
    end(&rig, 0).await;
    assert_eq!(status(&rig).0, Status::Paused, "{:?}", lines(&rig));
    let it = rig.world.loops.loaded("w").expect("there");
    assert_eq!((it.max_iterations, it.wires_before), (3, vec![paused]));
    let count = starts(&rig);
    seconds(&rig, 600).await;
    end(&rig, 0).await;
    assert_eq!((status(&rig).0, starts(&rig)), (Status::Paused, count));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_file_that_could_not_be_updated_is_no_change_by_another_program() {
    let mut rig = rig().await;
    begin(&rig, plan(5)).await;
    rig.world.loops.refuse_wires(true);
    order(&rig, LoopOrder::Pause { name: "w".to_owned(), reason: "user".to_owned() }).await;
    end(&rig, 0).await;
    rig.crash().await;
    rig.up().await;
    order(&rig, LoopOrder::Pause { name: "w".to_owned(), reason: "user".to_owned() }).await;
    assert_eq!((status(&rig).0, starts(&rig)), (Status::Paused, 1), "{:?}", lines(&rig));
}

#[tokio::test(start_paused = true)]
async fn a_resting_loop_applies_a_reverted_file_when_it_is_opened() {
    let mut rig = rig().await;
    begin(&rig, plan(5)).await;
    order(&rig, LoopOrder::Pause { name: "w".to_owned(), reason: "user".to_owned() }).await;
    end(&rig, 0).await;
    rig.crash().await;
    // The content from before the pause: not to be taken for a file that was not updated.
    rig.world.loops.write_wire("w", Wire { status: Status::Running, max_iterations: 5 });
    rig.up().await;
    seconds(&rig, 1).await;
    assert_eq!((status(&rig).0, starts(&rig)), (Status::Running, 2), "{:?}", lines(&rig));
}

#[tokio::test(start_paused = true)]
async fn a_loop_waits_for_the_disk_of_its_worktree_and_goes_on_with_the_same_iteration() {
    let mut rig = rig().await;
    begin(&rig, plan(3)).await;
    rig.crash().await;
    rig.world.kernel.reboot();
    rig.world.worktrees.unmount(true);
    rig.up().await;
    rig.world.pass(Duration::from_hours(1)).await;
    let it = rig.world.loops.loaded("w").expect("there is a loop");
    assert_eq!((it.status, it.iteration, it.total_failures, starts(&rig)), (Status::Running, 1, 0, 1));
    let told = lines(&rig);
    let told: Vec<_> = told.iter().filter(|line| line.contains("worker not started yet: ")).collect();
    assert!(told.len() == 1 && told[0].contains("the worktree of w is missing"), "{told:?}");
    rig.world.worktrees.unmount(false);
    seconds(&rig, 11).await;
    let it = rig.world.loops.loaded("w").expect("there is a loop");
    assert_eq!((it.status, it.iteration, it.held_back, starts(&rig)), (Status::Running, 1, None, 2));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_loop_is_not_ended_for_one_whose_worktree_cannot_be_made() {
    let rig = rig().await;
    begin(&rig, plan(5)).await;
    let before = rig.world.loops.loaded("w");
    // In the place of the worktree that goes, and in a free one.
    (0..2).for_each(|_| rig.world.script.at("plan", Fault::Error("'nosuch' is not a commit")));
    let replace = || {
        let plan = Box::new(Plan { id: "l2".to_owned(), ..plan(7) });
        LoopOrder::Begin { plan, replace: true, clean_state: false }
    };
    let answers = order(&rig, replace()).await;
    let [Answer::Refused(refusal)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((refusal.name.as_deref(), refusal.cause.contains("'nosuch' is not a commit")), (Some("w"), true));
    assert_eq!((rig.world.loops.loaded("w"), starts(&rig)), (before, 1));
    assert!(rig.world.state("w").expect("there").is_running());

    // If the start fails later, the message says that the replaced worker was ended.
    rig.world.script.at("prepare", Fault::Error("no tmux here"));
    let answers = order(&rig, replace()).await;
    let [Answer::Loop(_), Answer::Refused(refusal)] = &answers[..] else { panic!("{answers:?}") };
    assert!(refusal.cause.starts_with("the replaced worker was ended; "), "{refusal:?}");
    rig.check();
}
