//! Adoption: what a new supervisor does with the workers, rows and records that it finds.

use std::time::Duration;

use swarm_actors::supervisor::Request;
use swarm_actors::testing::Fault;
use swarm_model::{
    Ended, EventKind, FineState, KillRequest, RefusalKind, RestartPolicy, Scope, TmuxPlace, WantedState,
};

use crate::fixture::{Rig, caller, request, restarting, with_tree};

/// Returns a rig with a worker `a`, whose supervisor has just died.
async fn orphan(policy: RestartPolicy) -> Rig {
    let mut rig = Rig::start().await;
    rig.spawn(restarting("a", policy)).await.expect("starts");
    rig.crash().await;
    rig
}

fn adopted(rig: &Rig) -> bool {
    rig.world.events.of("a").iter().any(|kind| matches!(kind, EventKind::WorkerAdopted { .. }))
}

#[tokio::test(start_paused = true)]
async fn a_running_worker_is_watched_again() {
    let mut rig = orphan(RestartPolicy::OnFailure).await;
    rig.up().await;
    assert!(adopted(&rig));
    assert_eq!((rig.world.state("a"), rig.swarm().live().await), (Some(FineState::Running), 1));
    rig.world.end("a", Ended::Code(1));
    rig.world.pass(Duration::from_secs(2)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
    assert_eq!(rig.world.records.executions().len(), 2, "its exit was seen and it was restarted");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn unreadable_records_are_read_again_and_do_not_count_as_an_end() {
    let mut rig = Rig::start().await;
    rig.spawn(restarting("a", RestartPolicy::Always)).await.expect("starts");
    rig.world.script.at("observe", Fault::Error("too many open files"));
    rig.world.kill_shim("a");
    rig.world.pass(Duration::from_secs(2)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Unsupervised));
    rig.crash().await;
    rig.world.script.at("observe", Fault::Error("too many open files"));
    rig.up().await;
    rig.world.pass(Duration::from_secs(6)).await;
    assert!(adopted(&rig));
    assert_eq!(rig.world.records.executions().len(), 1, "a living worker was started again");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_worker_in_another_process_namespace_is_not_taken_for_dead() {
    for policy in [RestartPolicy::Never, RestartPolicy::Always] {
        let mut rig = orphan(policy).await;
        let lease = rig.world.facts("a").and_then(|facts| facts.lease.content).expect("it runs");
        for process in [&lease.shim, &lease.worker] {
            rig.world.kernel.hide(process);
        }
        rig.up().await;
        rig.world.pass(Duration::from_secs(600)).await;
        assert_eq!(rig.world.records.executions().len(), 1, "{policy:?}: a living worker was started again");
        let refused = rig.kill("a").await.expect_err("it cannot be ended from here");
        assert!(refused.cause.contains("process namespace"), "{refused:?}");
        assert_eq!(rig.world.facts("a").map(|facts| facts.wanted.state), Some(WantedState::Running));
        rig.world.end("a", Ended::Code(1));
        rig.world.pass(Duration::from_secs(5)).await;
        let starts = if policy == RestartPolicy::Always { 2 } else { 1 };
        assert_eq!(rig.world.records.executions().len(), starts, "{policy:?}: its end is seen");
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn rows_that_cannot_be_read_keep_their_workers_records() {
    let newer = |sound: &str| sound.replacen('{', "{\"schema_version\":2,", 1).replace("\"tags\": []", "\"tags\": {}");
    let damaged = |sound: &str| sound.replace("\"tags\": []", "\"tags\": {}");
    for (damage, crashes) in
        [(&damaged as &dyn Fn(&str) -> String, true), (&newer, true), (&damaged, false), (&newer, false)]
    {
        let mut rig = Rig::start().await;
        for name in ["ended", "runs"] {
            rig.spawn(request(name)).await.expect("starts");
        }
        rig.world.end("ended", Ended::Code(7));
        rig.world.settle().await;
        let sound = rig.world.state_text();
        let text = damage(&sound);
        assert_ne!(text, sound);
        if crashes {
            rig.crash().await;
        }
        rig.world.write_state(&text);
        if crashes {
            rig.up().await;
        }
        // A request that notices that another program has written the file.
        let _ = rig.spawn(request("other")).await;
        rig.world.settle().await;
        let refused = rig.kill("runs").await.expect_err("its row cannot be read");
        assert!(refused.cause.contains("state.json"), "{refused:?}");
        rig.spawn(request("runs")).await.expect_err("it runs already");
        assert_eq!(rig.world.state_text().matches("\"name\": \"runs\"").count(), 1, "crashes: {crashes}");
        rig.crash().await;
        rig.world.write_state(&sound);
        rig.up().await;
        assert_eq!(rig.world.facts("ended").and_then(|facts| facts.exit).map(|exit| exit.ended), Some(Ended::Code(7)));
        rig.kill("runs").await.expect("is stopped");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unseen_exit_is_handled_like_a_seen_one() {
    for (policy, ended, expected) in [
        (RestartPolicy::OnFailure, Ended::Code(1), FineState::Running),
        (RestartPolicy::OnFailure, Ended::Code(0), FineState::Exited),
        (RestartPolicy::Never, Ended::Code(1), FineState::Exited),
        (RestartPolicy::Always, Ended::Code(0), FineState::Running),
    ] {
        let mut rig = orphan(policy).await;
        rig.world.end("a", ended);
        rig.up().await;
        assert_eq!(rig.world.state("a"), Some(expected), "{policy:?} after {ended:?}");
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn an_overdue_restart_happens_at_once() {
    let mut rig = Rig::start().await;
    rig.spawn(restarting("a", RestartPolicy::Always)).await.expect("starts");
    rig.world.end("a", Ended::Code(1));
    rig.world.settle().await;
    rig.crash().await;
    rig.world.pass(Duration::from_secs(3600)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Backoff), "no supervisor was there to restart it");
    rig.up().await;
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
    assert_eq!(rig.world.facts("a").map(|facts| facts.wanted.restarts), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_pending_restart_waits_for_its_time() {
    let mut rig = Rig::start().await;
    rig.spawn(restarting("a", RestartPolicy::Always)).await.expect("starts");
    for _ in 0..4 {
        rig.world.end("a", Ended::Code(1));
        rig.world.pass(Duration::from_secs(9)).await;
    }
    rig.world.end("a", Ended::Code(1));
    rig.world.settle().await;
    rig.crash().await;
    // A wall clock that was set back must not delay it for years.
    rig.world.clock.jump_wall_ms(-1_000_000_000);
    rig.up().await;
    assert_eq!(rig.world.state("a"), Some(FineState::Backoff));
    rig.world.pass(Duration::from_secs(60)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_its_shim_is_watched_by_itself() {
    let mut rig = orphan(RestartPolicy::OnFailure).await;
    rig.world.kill_shim("a");
    rig.up().await;
    assert_eq!((rig.world.state("a"), rig.swarm().live().await), (Some(FineState::Unsupervised), 1));
    rig.world.end("a", Ended::Code(0));
    rig.world.pass(Duration::from_secs(2)).await;
    assert_eq!(rig.world.records.executions().len(), 2, "an unknown end is a failure");
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
}

#[tokio::test(start_paused = true)]
async fn a_worker_lost_in_a_reboot_is_interrupted() {
    let mut rig = orphan(RestartPolicy::Never).await;
    rig.world.kernel.reboot();
    rig.up().await;
    assert_eq!((rig.world.state("a"), rig.swarm().live().await), (Some(FineState::Interrupted), 0));
    rig.respawn("a").await.expect("a person starts it again");
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_worker_with_a_restart_policy_is_restarted_after_a_reboot() {
    for (policy, executions) in [(RestartPolicy::OnFailure, 2), (RestartPolicy::Always, 2)] {
        let mut rig = orphan(policy).await;
        rig.world.kernel.reboot();
        rig.up().await;
        assert_eq!((rig.world.state("a"), rig.swarm().live().await), (Some(FineState::Running), 1));
        assert_eq!(rig.world.records.executions().len(), executions, "{policy:?}");
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_row_is_restored_while_its_worker_runs() {
    let mut rig = orphan(RestartPolicy::Never).await;
    let before = rig.world.row("a");
    rig.world.write_rows(&[]);
    rig.up().await;
    assert_eq!(rig.world.row("a"), before);
    assert!(adopted(&rig));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_worker_cleaned_by_another_program_is_forgotten() {
    let mut rig = orphan(RestartPolicy::Always).await;
    rig.world.end("a", Ended::Code(0));
    rig.world.write_rows(&[]);
    rig.up().await;
    assert_eq!((rig.world.rows(), rig.world.records.keys()), (Vec::new(), Vec::new()));
    assert_eq!(rig.world.records.logs_removed(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_registry_is_rebuilt_from_the_records() {
    let mut rig = Rig::start().await;
    for name in ["a", "b", "c"] {
        rig.spawn(request(name)).await.expect("starts");
    }
    rig.kill("b").await.expect("ends");
    rig.world.script.at("prepare.after", Fault::Hang);
    let _answers = rig.swarm().request(Request::Spawn(Box::new(request("d"))));
    rig.world.settle().await;
    rig.crash().await;
    let before = rig.world.rows();
    rig.world.write_state("{\"workers\": [");
    rig.up().await;
    rig.spawn(request("e")).await.expect("starts");
    let mut after = rig.world.rows();
    assert_eq!(after.pop().map(|row| row.name), Some("e".to_owned()));
    assert_eq!(after, before);
    assert!(rig.world.root.join("state.json.corrupted").exists());
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_missing_registry_is_rebuilt_and_no_record_is_deleted() {
    let mut rig = Rig::start().await;
    for name in ["a", "b"] {
        rig.spawn(request(name)).await.expect("starts");
    }
    rig.world.end("b", Ended::Code(7));
    rig.world.settle().await;
    rig.crash().await;
    let before = rig.world.rows();
    std::fs::remove_file(rig.world.root.join("state.json")).expect("removed");
    rig.world.script.at("scan_now", Fault::Error("too many open files"));
    let started = swarm_actors::supervisor::SupervisorHandle::start(rig.world.root.clone(), rig.world.ports()).await;
    assert!(started.err().is_some_and(|cause| cause.to_string().contains("cannot rebuild")), "no records, no rows");
    rig.up().await;
    let after = rig.world.rows();
    let names = |rows: &[swarm_model::Row]| rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&after), names(&before));
    assert_eq!(rig.world.facts("b").and_then(|facts| facts.exit).map(|exit| exit.ended), Some(Ended::Code(7)));
    assert_eq!(rig.world.records.logs_removed(), Vec::<String>::new());
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_cannot_be_read_stops_the_start() {
    let rig = Rig::down();
    std::fs::create_dir(rig.world.root.join("state.json")).expect("makes a directory");
    let started = swarm_actors::supervisor::SupervisorHandle::start(rig.world.root.clone(), rig.world.ports()).await;
    let cause = started.err().expect("it cannot start").to_string();
    assert!(cause.contains("is a directory"), "{cause}");
}

#[tokio::test(start_paused = true)]
async fn an_unseen_exit_is_reported_once() {
    let mut rig = Rig::start().await;
    for name in ["a", "b"] {
        rig.spawn(request(name)).await.expect("starts");
    }
    rig.crash().await;
    rig.world.end("a", Ended::Code(5));
    rig.up().await;
    rig.world.end("b", Ended::Code(6));
    rig.world.settle().await;
    for _ in 0..2 {
        rig.crash().await;
        rig.up().await;
    }
    for (name, code) in [("a", 5), ("b", 6)] {
        let is_end = |kind: &EventKind| matches!(kind, EventKind::WorkerExited { .. });
        let ends: Vec<EventKind> = rig.world.events.of(name).into_iter().filter(is_end).collect();
        assert!(
            matches!(&ends[..], [EventKind::WorkerExited { ended: Some(Ended::Code(told)), .. }] if *told == code),
            "{name}: {ends:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_running_worker_whose_row_another_program_dropped_gets_it_back() {
    let rig = Rig::start().await;
    rig.spawn(request("a")).await.expect("starts");
    // Another program reads the list, and saves it after the start of b.
    let loaded = rig.world.state_text();
    rig.spawn(request("b")).await.expect("starts");
    let names = || rig.world.rows().iter().map(|row| row.name.clone()).collect::<Vec<_>>();
    rig.world.write_state(&loaded);
    assert_eq!(names(), ["a"]);
    let refused = rig.spawn(request("b")).await.expect_err("it runs");
    assert_eq!(refused.kind, RefusalKind::Exists);
    assert_eq!((names(), rig.world.records.executions().len()), (vec!["a".to_owned(), "b".to_owned()], 2));
    // A request about another worker notices it as well.
    rig.world.write_state(&loaded);
    rig.respawn("a").await.expect("starts again");
    rig.world.settle().await;
    let mut after = names();
    after.sort();
    assert_eq!(after, ["a", "b"]);
    assert_eq!(rig.world.state("b"), Some(FineState::Running));
    rig.world.write_state(&loaded);
    rig.kill("b").await.expect("it is known");
    assert_eq!(rig.world.state("b"), Some(FineState::Stopped));
    // That list also had the row of the generation of a before its respawn.
    rig.world.settle().await;
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn an_unsupervised_worker_whose_row_another_program_dropped_gets_it_back() {
    for crashes in [false, true] {
        let mut rig = Rig::start().await;
        rig.spawn(request("a")).await.expect("starts");
        let loaded = rig.world.state_text();
        rig.spawn(request("b")).await.expect("starts");
        rig.world.kill_shim("b");
        rig.world.settle().await;
        rig.world.write_state(&loaded);
        if crashes {
            rig.crash().await;
            rig.up().await;
        }
        rig.kill("a").await.expect("it is known");
        rig.world.settle().await;
        assert_eq!(rig.world.state("b"), Some(FineState::Unsupervised), "crashes: {crashes}");
        rig.kill("b").await.expect("it is known");
        assert_eq!(rig.world.state("b"), Some(FineState::Stopped));
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_window_and_row_another_program_removed_does_not_come_back() {
    for crashes in [false, true] {
        let mut rig = Rig::start().await;
        rig.spawn(request("a")).await.expect("starts");
        let loaded = rig.world.state_text();
        let mut asked = request("b");
        asked.contract.tmux = Some(TmuxPlace { session: "s".to_owned(), ..TmuxPlace::default() });
        rig.spawn(asked).await.expect("starts");
        // The original closes the window, and cleans at once; the shim still ends what runs in it.
        rig.world.processes.close_window(&("b".to_owned(), 1));
        rig.world.write_state(&loaded);
        if crashes {
            rig.crash().await;
            rig.up().await;
        }
        rig.kill("a").await.expect("it is known");
        rig.world.settle().await;
        assert_eq!(rig.world.row("b"), None, "crashes: {crashes}");
        rig.world.end("b", Ended::Signal(1));
        rig.world.settle().await;
        // Its records go with the next change by another program, or the next start.
        rig.world.write_state(&rig.world.state_text());
        rig.kill("a").await.expect("it is known");
        rig.world.settle().await;
        assert_eq!(rig.world.row("b"), None, "crashes: {crashes}");
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn all_workers_include_one_whose_row_another_program_dropped() {
    let rig = Rig::start().await;
    rig.spawn(request("a")).await.expect("starts");
    let loaded = rig.world.state_text();
    rig.spawn(request("b")).await.expect("starts");
    rig.world.write_state(&loaded);
    let all = KillRequest {
        caller: caller(),
        scope: Scope::All,
        rm_worktree: false,
        force_dirty: false,
        started_by: None,
        generation: None,
    };
    assert_eq!(rig.ask(Request::Kill(Box::new(all))).await.len(), 2);
    assert_eq!(rig.world.state("b"), Some(FineState::Stopped));
    // The row of a worker that has ended may have been removed on purpose.
    rig.world.write_state(&loaded);
    rig.kill("a").await.expect("it is known");
    rig.world.settle().await;
    assert_eq!(rig.world.row("b"), None);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_directory_cannot_be_read_is_adopted_once_it_can() {
    let mut rig = orphan(RestartPolicy::Always).await;
    rig.world.records.damage("a", 1, true);
    rig.up().await;
    rig.world.pass(Duration::from_secs(30)).await;
    assert!(!adopted(&rig));
    assert_eq!(rig.world.records.logs_removed(), Vec::<String>::new());
    rig.world.records.damage("a", 1, false);
    rig.world.pass(Duration::from_secs(6)).await;
    assert!(adopted(&rig));
    assert_eq!((rig.world.state("a"), rig.world.records.executions().len()), (Some(FineState::Running), 1));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_registry_is_not_rebuilt_without_a_worker_that_cannot_be_read() {
    let mut rig = Rig::start().await;
    for name in ["a", "b"] {
        rig.spawn(request(name)).await.expect("starts");
    }
    rig.crash().await;
    rig.world.write_state("{ torn");
    rig.world.records.damage("b", 1, true);
    let started = swarm_actors::supervisor::SupervisorHandle::start(rig.world.root.clone(), rig.world.ports()).await;
    let cause = started.err().expect("a row would be missing").to_string();
    assert!(cause.contains("w/b.1"), "{cause}");
    rig.world.records.damage("b", 1, false);
    rig.up().await;
    rig.spawn(request("c")).await.expect("starts");
    assert_eq!(rig.world.rows().len(), 3);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_rollback_that_hangs_delays_only_its_own_name() {
    let mut rig = Rig::start().await;
    rig.world.script.at("prepare", Fault::Hang);
    let _answers = rig.swarm().request(Request::Spawn(Box::new(with_tree("a"))));
    rig.world.pass(Duration::from_secs(1)).await;
    rig.crash().await;
    rig.world.script.at("undo", Fault::Hang);
    rig.up().await;
    assert_eq!(rig.world.script.unmet(), Vec::<String>::new());
    rig.spawn(with_tree("b")).await.expect("starts");
    assert_eq!(rig.world.state("b"), Some(FineState::Running));
    rig.crash().await;
    rig.up().await;
    assert_eq!(rig.world.records.keys(), [("b".to_owned(), 1)], "the next supervisor rolls it back");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_rollback_that_cannot_read_the_records_is_tried_again() {
    let mut rig = Rig::start().await;
    rig.world.script.at("prepare", Fault::Hang);
    let _answers = rig.swarm().request(Request::Spawn(Box::new(with_tree("a"))));
    rig.world.pass(Duration::from_secs(1)).await;
    rig.crash().await;
    rig.world.script.at("observe", Fault::Error("an I/O error"));
    rig.up().await;
    assert_eq!((rig.world.script.unmet(), rig.world.records.keys().len()), (Vec::new(), 1));
    rig.world.pass(Duration::from_secs(10)).await;
    assert_eq!((rig.world.records.keys(), rig.world.worktrees.paths()), (Vec::new(), Vec::new()));
    rig.check();
}
