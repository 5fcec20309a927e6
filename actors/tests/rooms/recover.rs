//! Recovery: lost workers are restarted on request, once each; workers that ended are not.

use std::time::Duration;

use swarm_actors::supervisor::Request;
use swarm_actors::testing::Fault;
use swarm_model::{
    Ended, EventKind, FineState, Reason, RecoverRequest, Refusal, RefusalKind, RestartPolicy, Spawned, TmuxPlace,
    WantedState, WireStatus,
};

use crate::fixture::{Rig, caller, request, restarting, with_tree};

async fn recover_by(rig: &Rig, request: RecoverRequest) -> Result<Spawned, Refusal> {
    rig.start_by(Request::Recover(Box::new(request))).await
}

async fn recover(rig: &Rig, name: &str) -> Result<Spawned, Refusal> {
    recover_by(rig, RecoverRequest { caller: caller(), name: name.to_owned() }).await
}

/// Returns a rig with workers of all kinds after a reboot.
async fn rebooted() -> Rig {
    let mut rig = Rig::start().await;
    for name in ["ended", "failed", "plain"] {
        rig.spawn(request(name)).await.expect("starts");
    }
    rig.spawn(with_tree("tree")).await.expect("starts");
    rig.spawn(restarting("policy", RestartPolicy::OnFailure)).await.expect("starts");
    rig.world.end("ended", Ended::Code(0));
    rig.world.end("failed", Ended::Code(3));
    rig.spawn(request("killed")).await.expect("starts");
    rig.kill("killed").await.expect("is killed");
    rig.crash().await;
    rig.world.kernel.reboot();
    rig.up().await;
    rig
}

#[tokio::test(start_paused = true)]
async fn interrupted_workers_are_recovered_in_the_same_boot_too() {
    let rig = Rig::start().await;
    for name in ["a", "killed"] {
        rig.spawn(request(name)).await.expect("starts");
    }
    rig.world.interrupt("a", Ended::Code(0));
    rig.kill("killed").await.expect("is killed");
    rig.world.settle().await;
    assert_eq!(rig.world.state("a"), Some(FineState::Interrupted));
    recover(&rig, "a").await.expect("comes back");
    let refusal = recover(&rig, "killed").await.expect_err("is left");
    assert_eq!(refusal.cause, "worker 'killed' not recovered: stopped on request");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn running_workers_are_recovered_and_ended_ones_are_not() {
    let rig = rebooted().await;
    assert_eq!(rig.world.state("policy"), Some(FineState::Running), "it comes back by its policy");
    assert_eq!(rig.world.state("plain"), Some(FineState::Interrupted), "it comes back when asked");
    for name in ["plain", "tree"] {
        recover(&rig, name).await.unwrap_or_else(|refusal| panic!("{name}: {}", refusal.cause));
        assert_eq!(rig.world.state(name), Some(FineState::Running), "{name}");
    }
    for (name, why) in [
        ("ended", "finished successfully"),
        ("failed", "exited with code 3"),
        ("killed", "stopped on request"),
        ("policy", "already running"),
        ("plain", "already running"),
    ] {
        let refusal = recover(&rig, name).await.expect_err("is left");
        assert_eq!(refusal.cause, format!("worker '{name}' not recovered: {why}"));
    }
    assert_eq!(recover(&rig, "nobody").await.expect_err("is unknown").kind, RefusalKind::NotFound);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_worker_resumes_its_session_up_to_the_limit_of_attempts() {
    let mut rig = Rig::start().await;
    let dir = rig.spawn(with_tree("a")).await.expect("starts").worktree.expect("a worktree");
    rig.world.settle().await;
    for attempt in 1..=3 {
        rig.crash().await;
        rig.world.kernel.reboot();
        rig.up().await;
        recover(&rig, "a").await.expect("comes back");
        let facts = rig.world.facts("a").expect("records");
        let spec = facts.spec.spec().expect("a contract");
        assert_eq!(spec.argv(), ["work", "again"]);
        assert_eq!(spec.contract.argv, ["work"], "the contract stays what it was");
        assert_eq!(facts.wanted.recoveries, attempt);
        assert_eq!(rig.world.sessions.state(&dir).map(|session| session.recoveries()), Some(i64::from(attempt)));
    }
    rig.crash().await;
    rig.world.kernel.reboot();
    rig.up().await;
    let refusal = recover(&rig, "a").await.expect_err("is left");
    assert!(refusal.cause.contains("recovered 3 times already"), "{}", refusal.cause);
    rig.respawn("a").await.expect("a person starts it afresh");
    assert_eq!(rig.world.sessions.state(&dir).map(|session| session.recoveries()), Some(0));
    assert_eq!(rig.world.facts("a").map(|facts| facts.wanted.recoveries), Some(0));
}

#[tokio::test(start_paused = true)]
async fn hooks_are_executed_but_not_stored() {
    let mut rig = Rig::start().await;
    let mut asked = with_tree("a");
    asked.contract.argv = vec!["claude".to_owned()];
    rig.spawn(asked).await.expect("starts");
    for (round, executed) in [(1, vec!["claude", "--hooked"]), (2, vec!["claude", "again", "--hooked"])] {
        let spec = rig.world.facts("a").and_then(|facts| facts.spec.spec().cloned()).expect("a contract");
        assert_eq!(spec.argv(), executed, "life {round}");
        assert_eq!(spec.contract.argv, ["claude"]);
        assert_eq!(rig.world.row("a").map(|row| row.cmd.clone()), Some(vec!["claude".to_owned()]));
        if round == 1 {
            rig.crash().await;
            rig.world.kernel.reboot();
            rig.up().await;
            recover(&rig, "a").await.expect("comes back");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_or_interrupted_recovery_starts_the_worker_once() {
    for step in ["reserve", "open_session", "prepare", "prepare.after", "open", "open.after"] {
        let mut rig = rebooted().await;
        let before = rig.world.records.executions().len();
        rig.world.script.at(step, Fault::Hang);
        let asked = RecoverRequest { caller: caller(), name: "tree".to_owned() };
        let first = rig.swarm().request(Request::Recover(Box::new(asked.clone())));
        rig.world.pass(Duration::from_secs(1)).await;
        assert!(rig.world.script.unmet().is_empty(), "{step} was not met");
        drop(first);
        rig.crash().await;
        rig.up().await;
        let mut again = asked;
        again.caller.repeated = 1;
        let answer = recover_by(&rig, again).await;
        let running = rig.world.state("tree") == Some(FineState::Running);
        assert!(running && answer.is_ok(), "{step}: {answer:?}");
        assert_eq!(rig.world.records.executions().len(), before + 1, "{step}");
        rig.check();
    }
}

async fn windowed(rig: &Rig, name: &str) {
    let mut asked = request(name);
    asked.contract.tmux = Some(TmuxPlace { session: "s".to_owned(), ..TmuxPlace::default() });
    rig.spawn(asked).await.expect("starts");
}

/// Returns how often the history says that the worker was lost with its tmux server.
fn told_lost(rig: &Rig, name: &str) -> usize {
    let is_told = |kind: &EventKind| matches!(kind, EventKind::WorkerFailed { cause } if cause.contains("tmux server"));
    let events = rig.world.events.all();
    events.iter().filter(|event| event.worker.as_deref() == Some(name) && is_told(&event.kind)).count()
}

#[tokio::test(start_paused = true)]
async fn a_lost_tmux_server_differs_from_a_closed_window() {
    for later in ["", "supervisor", "reboot"] {
        let mut rig = Rig::start().await;
        for name in ["closed", "lost"] {
            windowed(&rig, name).await;
        }
        rig.world.hang_up("closed", false);
        rig.world.hang_up("lost", true);
        rig.world.settle().await;
        // The server is gone in the end, whatever has ended it.
        rig.world.terminals.lose_server();
        if !later.is_empty() {
            rig.crash().await;
        }
        if later == "reboot" {
            rig.world.kernel.reboot();
        }
        if !later.is_empty() {
            rig.up().await;
        }
        assert_eq!((told_lost(&rig, "closed"), told_lost(&rig, "lost")), (0, 1), "{later}");
        let refusal = recover(&rig, "closed").await.expect_err("is left");
        assert!(refusal.cause.ends_with("its window was closed"), "{later}: {}", refusal.cause);
        recover(&rig, "lost").await.unwrap_or_else(|refusal| panic!("{later}: {}", refusal.cause));
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_does_not_say_it_is_judged_by_its_tmux_server() {
    let rig = Rig::start().await;
    windowed(&rig, "a").await;
    rig.world.end_because("a", Ended::Signal(1), Reason::Closed);
    rig.world.settle().await;
    let refusal = recover(&rig, "a").await.expect_err("is left");
    assert!(refusal.cause.ends_with("its window was closed"), "{}", refusal.cause);
    rig.world.terminals.lose_server();
    recover(&rig, "a").await.expect("comes back");
}

#[tokio::test(start_paused = true)]
async fn what_is_killed_after_it_was_lost_stays_stopped() {
    for how in ["server", "window", "interrupted", "shim", "reboot"] {
        let mut rig = Rig::start().await;
        windowed(&rig, "a").await;
        match how {
            "server" => rig.world.hang_up("a", true),
            "window" => rig.world.end_because("a", Ended::Signal(1), Reason::Closed),
            "interrupted" => rig.world.interrupt("a", Ended::Signal(15)),
            "shim" => rig.world.kill_shim("a"),
            _ => {
                rig.crash().await;
                rig.world.kernel.reboot();
                rig.up().await;
            }
        }
        rig.world.settle().await;
        rig.world.terminals.lose_server();
        rig.kill("a").await.expect("is killed");
        assert_eq!(rig.world.state("a"), Some(FineState::Stopped), "{how}");
        rig.crash().await;
        rig.world.kernel.reboot();
        rig.up().await;
        assert_eq!(rig.world.state("a"), Some(FineState::Stopped), "{how}");
        let refusal = recover(&rig, "a").await.expect_err("is left");
        assert_eq!(refusal.cause, "worker 'a' not recovered: stopped on request", "{how}");
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_worker_stays_stopped_after_a_reboot_though_its_row_says_that_it_runs() {
    for is_disk_full in [false, true] {
        let mut rig = Rig::start().await;
        rig.spawn(request("a")).await.expect("starts");
        let earlier = rig.world.rows();
        if is_disk_full {
            rig.world.script.at("write_wanted", Fault::Error("no space left"));
        }
        rig.kill("a").await.expect("is killed");
        assert_eq!(rig.world.script.unmet(), Vec::<String>::new());
        rig.world.write_rows(&earlier);
        if is_disk_full {
            // The next supervisor finds space again, and the exit record.
            rig.crash().await;
            rig.up().await;
        }
        rig.crash().await;
        rig.world.kernel.reboot();
        rig.up().await;
        let refusal = recover(&rig, "a").await.expect_err("is left");
        assert_eq!(refusal.cause, "worker 'a' not recovered: stopped on request", "disk full: {is_disk_full}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kill_on_a_full_disk_is_recorded_once_there_is_space() {
    let mut rig = Rig::start().await;
    rig.spawn(request("a")).await.expect("starts");
    let earlier = rig.world.state_text();
    // One failure for the kill and ten for the tries after it. The registry cannot be written either.
    (0..11).for_each(|_| rig.world.script.at("write_wanted", Fault::Error("no space left")));
    let state = rig.world.root.join("state.json");
    let unwritable = earlier.replacen('{', "{\"schema_version\":2,", 1);
    let refuse = move || std::fs::write(state, unwritable).expect("writes");
    rig.world.script.at("stop_by_shim", Fault::Run(Box::new(refuse)));
    rig.kill("a").await.expect_err("is not recorded");
    assert_eq!(rig.world.kernel.living(), 0);
    // Longer than an idle supervisor stays.
    rig.world.pass(Duration::from_secs(48)).await;
    assert_eq!(rig.swarm().live().await, 1, "the stop must still be recorded");
    rig.world.write_state(&earlier);
    rig.world.pass(Duration::from_secs(12)).await;
    assert_eq!(rig.world.script.unmet(), Vec::<String>::new());
    assert_eq!(rig.world.row("a").map(|row| row.status), Some(WireStatus::Stopped));
    assert_eq!(rig.world.facts("a").map(|facts| facts.wanted.state), Some(WantedState::Stopped));
    assert_eq!(rig.swarm().live().await, 0);
    rig.crash().await;
    rig.world.kernel.reboot();
    rig.up().await;
    let refusal = recover(&rig, "a").await.expect_err("is left");
    assert_eq!(refusal.cause, "worker 'a' not recovered: stopped on request");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_row_that_cannot_be_set_to_stopped_is_set_later_and_keeps_no_supervisor() {
    let rig = Rig::start().await;
    rig.spawn(request("a")).await.expect("starts");
    let (earlier, state) = (rig.world.state_text(), rig.world.root.join("state.json"));
    let unwritable = earlier.replacen('{', "{\"schema_version\":2,", 1);
    let refuse = move || std::fs::write(state, unwritable).expect("writes");
    rig.world.script.at("stop_by_shim", Fault::Run(Box::new(refuse)));
    rig.kill("a").await.expect_err("is not recorded in the registry");
    rig.world.settle().await;
    assert_eq!(rig.swarm().live().await, 0);
    rig.world.write_state(&earlier);
    rig.world.pass(Duration::from_secs(6)).await;
    assert_eq!(rig.world.script.unmet(), Vec::<String>::new());
    assert_eq!(rig.world.row("a").map(|row| row.status), Some(WireStatus::Stopped));
}
