//! Restarts by policy, in virtual time.

use std::time::Duration;

use swarm_actors::testing::Fault;
use swarm_model::{Ended, FineState, RestartPolicy, WantedState};

use crate::fixture::{Rig, restarting};

async fn running(policy: RestartPolicy) -> Rig {
    let rig = Rig::start().await;
    rig.spawn(restarting("a", policy)).await.expect("starts");
    rig
}

async fn end(rig: &Rig, ended: Ended) {
    rig.world.end("a", ended);
    rig.world.settle().await;
}

#[tokio::test(start_paused = true)]
async fn each_policy_restarts_the_right_exits() {
    use FineState::{Exited, Running};
    for (policy, after_success, after_failure) in [
        (RestartPolicy::Never, Exited, Exited),
        (RestartPolicy::OnFailure, Exited, Running),
        (RestartPolicy::Always, Running, Running),
    ] {
        for (ended, expected) in
            [(Ended::Code(0), after_success), (Ended::Code(1), after_failure), (Ended::Signal(9), after_failure)]
        {
            let rig = running(policy).await;
            end(&rig, ended).await;
            rig.world.pass(Duration::from_secs(1)).await;
            assert_eq!(rig.world.state("a"), Some(expected), "{policy:?} after {ended:?}");
            rig.check();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_backs_off_and_ends() {
    let rig = running(RestartPolicy::OnFailure).await;
    let delays_s = [1, 2, 4, 8, 16, 32, 60, 60, 60, 60];
    for delay_s in delays_s {
        end(&rig, Ended::Code(1)).await;
        assert_eq!(rig.world.state("a"), Some(FineState::Backoff));
        rig.world.pass(Duration::from_secs(delay_s) - Duration::from_millis(2)).await;
        assert_eq!(rig.world.state("a"), Some(FineState::Backoff), "started before its {delay_s} s were over");
        rig.world.pass(Duration::from_millis(2)).await;
        assert_eq!(rig.world.state("a"), Some(FineState::Running), "not started after {delay_s} s");
    }
    end(&rig, Ended::Code(1)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Failed));
    assert_eq!(rig.world.events.restart_delays_ms("a"), delays_s.map(|delay_s| delay_s * 1000));
    assert_eq!(rig.world.facts("a").map(|facts| facts.wanted.state), Some(WantedState::Failed));
    rig.world.pass(Duration::from_secs(3600)).await;
    assert_eq!(rig.world.records.executions().len(), 11);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn ten_healthy_minutes_reset_the_failures() {
    let rig = running(RestartPolicy::Always).await;
    for delay_s in [1, 2] {
        end(&rig, Ended::Code(0)).await;
        rig.world.pass(Duration::from_secs(delay_s)).await;
    }
    rig.world.pass(Duration::from_secs(600)).await;
    end(&rig, Ended::Code(0)).await;
    assert_eq!(rig.world.events.restart_delays_ms("a"), [1_000, 2_000, 1_000]);
}

#[tokio::test(start_paused = true)]
async fn an_unrecorded_exit_is_a_failure() {
    for (policy, expected) in [(RestartPolicy::OnFailure, FineState::Running), (RestartPolicy::Never, FineState::Lost)]
    {
        let rig = running(policy).await;
        rig.world.kill_shim("a");
        rig.world.settle().await;
        assert_eq!(rig.world.state("a"), Some(FineState::Unsupervised), "a living worker is not restarted");
        end(&rig, Ended::Code(0)).await;
        rig.world.pass(Duration::from_secs(1)).await;
        assert_eq!(rig.world.state("a"), Some(expected), "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kill_cancels_a_pending_restart() {
    let rig = running(RestartPolicy::Always).await;
    end(&rig, Ended::Code(1)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Backoff));
    rig.kill("a").await.expect("ends");
    rig.world.pass(Duration::from_secs(3600)).await;
    assert_eq!(rig.world.records.executions().len(), 1);
    assert_eq!(rig.world.facts("a").map(|facts| facts.wanted.state), Some(WantedState::Stopped));
}

#[tokio::test(start_paused = true)]
async fn a_killed_worker_is_not_restarted() {
    let rig = running(RestartPolicy::Always).await;
    rig.kill("a").await.expect("ends");
    rig.world.pass(Duration::from_secs(3600)).await;
    assert_eq!(rig.world.records.executions().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_restart_that_the_system_refuses_is_tried_again_and_does_not_count() {
    let rig = running(RestartPolicy::OnFailure).await;
    end(&rig, Ended::Code(1)).await;
    for _ in 0..20 {
        rig.world.script.at("prepare", Fault::Error("no memory"));
        rig.world.pass(Duration::from_secs(10)).await;
        assert_eq!(rig.world.state("a"), Some(FineState::Backoff));
        assert_eq!(rig.world.script.unmet(), Vec::<String>::new());
    }
    rig.check();
    rig.world.pass(Duration::from_secs(10)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
    assert_eq!(rig.world.events.restart_delays_ms("a"), [1_000]);
    assert_eq!(rig.world.facts("a").map(|facts| facts.wanted.restarts), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_delays_the_record_that_a_worker_is_given_up() {
    let rig = running(RestartPolicy::Always).await;
    for delay_s in [1, 2, 4, 8, 16, 32, 60, 60, 60, 60] {
        end(&rig, Ended::Code(1)).await;
        rig.world.pass(Duration::from_secs(delay_s)).await;
    }
    rig.world.script.at("write_wanted", Fault::Error("no space left"));
    end(&rig, Ended::Code(1)).await;
    assert_eq!(rig.world.script.unmet(), Vec::<String>::new());
    rig.world.pass(Duration::from_secs(10)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Failed));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_delays_a_restart() {
    let rig = running(RestartPolicy::OnFailure).await;
    rig.world.script.at("write_wanted", Fault::Error("no space left"));
    end(&rig, Ended::Code(1)).await;
    assert_eq!(rig.world.script.unmet(), Vec::<String>::new());
    rig.world.pass(Duration::from_secs(60)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_does_not_keep_a_worker_alive() {
    let rig = running(RestartPolicy::Always).await;
    rig.world.script.at("write_wanted", Fault::Error("no space left"));
    rig.kill("a").await.expect("stopped");
    assert_eq!(rig.world.state("a"), Some(FineState::Stopped));
    rig.world.pass(Duration::from_secs(3600)).await;
    assert_eq!(rig.world.records.executions().len(), 1);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_is_recorded_nowhere_is_an_error() {
    let rig = running(RestartPolicy::Never).await;
    // The shim is killed while it is asked to stop, so no exit record can prove the stop, and the disk is full.
    let (kernel, shim) = (rig.world.kernel.clone(), rig.world.facts("a").and_then(|facts| facts.lease.content));
    let shim = shim.expect("it runs").shim;
    rig.world.script.at("stop_by_shim", Fault::Run(Box::new(move || kernel.end(&shim))));
    rig.world.script.at("write_wanted", Fault::Error("no space left"));
    let refused = rig.kill("a").await.expect_err("a recovery would start it again");
    assert!(refused.cause.contains("no space left"), "{refused:?}");
    assert_eq!(rig.world.script.unmet(), Vec::<String>::new());
    rig.kill("a").await.expect("now it is recorded");
    assert_eq!(rig.world.facts("a").map(|facts| facts.wanted.state), Some(WantedState::Stopped));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_a_row_is_not_restarted() {
    let rig = running(RestartPolicy::Always).await;
    rig.world.write_rows(&[]);
    end(&rig, Ended::Code(1)).await;
    rig.world.pass(Duration::from_secs(3600)).await;
    assert_eq!(rig.world.records.executions().len(), 1);
    assert_eq!(rig.swarm().live().await, 0);
}

/// Returns a rig whose worker is in back-off after its second generation ended, and the rows of its first one.
async fn second_back_off() -> (Rig, Vec<swarm_model::Row>) {
    let rig = running(RestartPolicy::Always).await;
    let earlier = rig.world.rows();
    end(&rig, Ended::Code(1)).await;
    rig.world.pass(Duration::from_secs(1)).await;
    end(&rig, Ended::Code(7)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Backoff));
    (rig, earlier)
}

fn exit_of(rig: &Rig) -> Option<Ended> {
    rig.world.facts("a").and_then(|facts| facts.exit).map(|exit| exit.ended)
}

#[tokio::test(start_paused = true)]
async fn a_pending_restart_survives_the_row_of_an_earlier_generation() {
    let (rig, earlier) = second_back_off().await;
    rig.world.write_rows(&earlier);
    rig.world.pass(Duration::from_secs(2)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
    assert_eq!(rig.world.records.executions().len(), 3);
    // A request notices such a row before the restart is due.
    end(&rig, Ended::Code(8)).await;
    rig.world.write_rows(&earlier);
    rig.spawn(restarting("b", RestartPolicy::Never)).await.expect("starts");
    rig.world.settle().await;
    assert_eq!((rig.world.state("a"), exit_of(&rig)), (Some(FineState::Backoff), Some(Ended::Code(8))));
    // A kill cancels the restart of the present generation.
    rig.world.write_rows(&earlier);
    rig.kill("a").await.expect("is stopped");
    rig.world.pass(Duration::from_secs(3600)).await;
    assert_eq!((rig.world.state("a"), exit_of(&rig)), (Some(FineState::Stopped), Some(Ended::Code(8))));
    assert_eq!(rig.world.records.executions().len(), 4);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_new_supervisor_replaces_the_row_of_an_earlier_generation() {
    let (mut rig, earlier) = second_back_off().await;
    rig.crash().await;
    rig.world.write_rows(&earlier);
    rig.up().await;
    assert_eq!(rig.world.state("a"), Some(FineState::Running), "its restart was due");
    assert_eq!(rig.world.records.executions().len(), 3);
    rig.kill("a").await.expect("is stopped");
    let ended = exit_of(&rig);
    rig.crash().await;
    rig.world.write_rows(&earlier);
    rig.up().await;
    assert!(ended.is_some());
    assert_eq!((rig.world.state("a"), exit_of(&rig)), (Some(FineState::Stopped), ended));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_new_worker_inherits_nothing_from_an_old_one_of_its_name() {
    let rig = running(RestartPolicy::Always).await;
    rig.kill("a").await.expect("ends");
    rig.world.write_rows(&[]);
    rig.spawn(restarting("a", RestartPolicy::Always)).await.expect("the name is free");
    end(&rig, Ended::Code(1)).await;
    rig.world.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Running), "the stop was the other one's");
}

#[tokio::test(start_paused = true)]
async fn the_signal_of_a_shutdown_is_not_a_stop() {
    use FineState::{Interrupted, Running};
    let signals = [Ended::Code(0), Ended::Signal(15)];
    let policies =
        [(RestartPolicy::Never, Interrupted), (RestartPolicy::OnFailure, Running), (RestartPolicy::Always, Running)];
    for ((policy, expected), reboots) in policies.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        for ended in signals {
            let mut rig = running(policy).await;
            rig.spawn(restarting("killed", policy)).await.expect("starts");
            rig.kill("killed").await.expect("is stopped");
            rig.crash().await;
            rig.world.interrupt("a", ended);
            if reboots {
                rig.world.kernel.reboot();
            }
            rig.up().await;
            rig.world.pass(Duration::from_secs(3600)).await;
            let context = format!("{policy:?}, {ended:?}, reboot: {reboots}");
            assert_eq!(rig.world.state("a"), Some(expected), "{context}");
            assert_eq!(rig.world.state("killed"), Some(FineState::Stopped), "{context}");
            rig.kill("a").await.expect("is stopped");
            rig.crash().await;
            rig.up().await;
            assert_eq!(rig.world.state("a"), Some(FineState::Stopped), "{context}: a kill is remembered");
            rig.check();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_sees_the_signal_of_a_shutdown_restarts_the_worker() {
    let rig = running(RestartPolicy::OnFailure).await;
    rig.world.interrupt("a", Ended::Code(0));
    rig.world.settle().await;
    rig.world.pass(Duration::from_secs(1)).await;
    assert_eq!((rig.world.state("a"), rig.world.records.executions().len()), (Some(FineState::Running), 2));
    rig.check();
}
