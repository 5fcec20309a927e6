//! Starting, stopping and removing one worker.

use std::time::Duration;

use swarm_actors::testing::{Fault, World};
use swarm_model::{Ended, FineState, Reason, RefusalKind, RestartPolicy, TmuxPlace, WantedState, WireStatus};

use crate::fixture::{Rig, clean, foreign_row, request, restarting, with_tree};

#[tokio::test(start_paused = true)]
async fn nothing_is_executed_before_its_row_is_committed() {
    let rig = Rig::start().await;
    let spawned = rig.spawn(with_tree("a")).await.expect("starts");
    let steps = ["reserve", "make", "prepare", "commit", "open"];
    let calls: Vec<String> = (rig.world.script.calls().into_iter())
        .filter(|call| steps.contains(&call.split(' ').next().unwrap_or_default()))
        .collect();
    assert_eq!(calls, ["reserve a.1", "make a", "prepare a.1", "commit a.1", "open a.1"]);
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
    let row = rig.world.row("a").expect("has a row");
    assert_eq!((row.status, row.pid), (WireStatus::Running, Some(i64::from(spawned.pid))));
    assert_eq!(spawned.worktree, Some(rig.world.worktrees.paths()[0].clone()));
    assert!(rig.world.logs.kept("a").is_some());
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_worker_in_tmux_shows_its_window_and_no_pid() {
    let rig = Rig::start().await;
    let mut asked = request("a");
    asked.contract.tmux = Some(TmuxPlace { session: "swarm".to_owned(), ..TmuxPlace::default() });
    let spawned = rig.spawn(asked).await.expect("starts");
    assert_eq!((spawned.window.as_deref(), spawned.pane.as_deref()), (Some("swarm:a"), Some("%1")));
    assert_eq!(rig.world.row("a").expect("has a row").pid, None);
    assert_eq!(rig.world.state("a"), Some(FineState::Running));
}

type Misfortune = (&'static str, fn(&World) -> Fault);

/// Faults of a start, in the order of its steps.
const MISFORTUNES: [Misfortune; 12] = [
    ("next_free", |_| Fault::Error("w cannot be read")),
    ("reserve", |_| Fault::Error("no space left")),
    ("reserve.after", |_| Fault::Error("could not be synced")),
    ("plan", |_| Fault::Error("not a git repository")),
    ("make", |_| Fault::Error("branch is checked out")),
    ("make.after", |_| Fault::Error("a hook failed")),
    ("rotate_logs", |_| Fault::Error("no permission")),
    ("prepare", |_| Fault::Error("no server running")),
    ("prepare.after", |_| Fault::Error("the shim was killed")),
    // The commit: the name was taken in between, or the file is from a newer program.
    ("prepare.after", |world| {
        replace_state(world, r#"{"workers":[{"name":"a","status":"running","cmd":["x"],"started":"1","cwd":"/"}]}"#)
    }),
    ("prepare.after", |world| replace_state(world, r#"{"schema_version":2,"workers":[]}"#)),
    ("open", |_| Fault::Error("exec format error")),
];

fn replace_state(world: &World, text: &'static str) -> Fault {
    let path = world.root.join("state.json");
    Fault::Run(Box::new(move || std::fs::write(path, text).expect("writes")))
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_leaves_nothing() {
    for (step, fault) in MISFORTUNES {
        for asked in [request("a"), with_tree("a")] {
            let has_tree = asked.worktree.is_some();
            if !has_tree && matches!(step, "plan" | "make" | "make.after") {
                continue;
            }
            let rig = Rig::start().await;
            rig.world.script.at(step, fault(&rig.world));
            let refusal = rig.spawn(asked).await.expect_err("a step failed");
            assert_eq!(refusal.name.as_deref().unwrap_or("a"), "a");
            let context = format!("{step}, worktree: {has_tree}");
            assert_eq!(rig.world.script.unmet(), Vec::<String>::new(), "{context}");
            assert_nothing_left(&rig, &context);
        }
    }
}

fn assert_nothing_left(rig: &Rig, context: &str) {
    let ours: Vec<_> = rig.world.rows().into_iter().filter(|row| row.swarm().is_some()).collect();
    assert_eq!(ours, Vec::new(), "{context}");
    assert_eq!(rig.world.records.keys(), Vec::new(), "{context}");
    assert_eq!(rig.world.records.executions(), Vec::<String>::new(), "{context}");
    assert_eq!(rig.world.worktrees.paths(), Vec::<String>::new(), "{context}");
    assert_eq!(rig.world.worktrees.branches(), Vec::<String>::new(), "{context}");
    assert_eq!(rig.world.kernel.living(), 0, "{context}");
}

#[tokio::test(start_paused = true)]
async fn a_kill_that_cannot_be_recorded_says_that_the_worker_is_gone() {
    let rig = Rig::start().await;
    rig.spawn(request("a")).await.expect("starts");
    rig.world.script.at("write_wanted", replace_state(&rig.world, r#"{"schema_version":2,"workers":[]}"#));
    let refusal = rig.kill("a").await.expect_err("the registry cannot be written");
    assert_eq!(rig.world.script.unmet(), Vec::<String>::new());
    assert_eq!(rig.world.kernel.living(), 0);
    assert!(refusal.cause.starts_with("killed, but the registry does not say so: "), "{}", refusal.cause);
}

#[tokio::test(start_paused = true)]
async fn a_shim_that_dies_at_its_gate_leaves_nothing() {
    let rig = Rig::start().await;
    let (processes, key) = (rig.world.processes.clone(), ("a".to_owned(), 1));
    rig.world.script.at("open", Fault::Run(Box::new(move || processes.kill_shim(&key))));
    let refusal = rig.spawn(with_tree("a")).await.expect_err("its shim is dead");
    assert_eq!(refusal.kind, RefusalKind::Start);
    assert_nothing_left(&rig, "shim killed at its gate");
    // The name is free again.
    assert_eq!(rig.spawn(with_tree("a")).await.map(|spawned| spawned.name), Ok("a".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_shim_that_dies_after_the_exec_leaves_a_worker() {
    let rig = Rig::start().await;
    let (processes, key) = (rig.world.processes.clone(), ("a".to_owned(), 1));
    rig.world.script.at("open.after", Fault::Run(Box::new(move || processes.kill_shim(&key))));
    rig.spawn(request("a")).await.expect("it runs");
    rig.world.settle().await;
    assert_eq!(rig.world.state("a"), Some(FineState::Unsupervised));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_worktree_that_cannot_be_removed_keeps_its_records() {
    let mut rig = Rig::start().await;
    rig.world.script.at("prepare", Fault::Error("no memory"));
    rig.world.script.at("undo", Fault::Error("git is not there"));
    rig.spawn(with_tree("a")).await.expect_err("a step failed");
    assert_eq!(rig.world.records.keys(), [("a".to_owned(), 1)]);
    rig.crash().await;
    rig.up().await;
    assert_nothing_left(&rig, "the next supervisor tried again");
}

#[tokio::test(start_paused = true)]
async fn a_name_has_one_worker() {
    let rig = Rig::start().await;
    rig.spawn(request("a")).await.expect("starts");
    let refusal = rig.spawn(request("a")).await.expect_err("the name is taken");
    assert_eq!(refusal.kind, RefusalKind::Exists);
    rig.kill("a").await.expect("ends");
    let refusal = rig.spawn(request("a")).await.expect_err("the name is still taken");
    assert_eq!(refusal.kind, RefusalKind::Exists);
    let refusal = rig.spawn(request("../a")).await.expect_err("no name");
    assert_eq!(refusal.kind, RefusalKind::Invalid);
    assert_eq!(rig.world.records.executions().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_on_disk_before_the_first_signal() {
    let rig = Rig::start().await;
    rig.spawn(restarting("a", RestartPolicy::Always)).await.expect("starts");
    rig.kill("a").await.expect("ends");
    let position = |call| rig.world.script.position(call).expect("was called");
    assert!(position("write_wanted a.1") < position("stop_by_shim a.1"));
    let facts = rig.world.facts("a").expect("its records stay");
    assert_eq!(facts.wanted.state, WantedState::Stopped);
    assert_eq!(rig.world.state("a"), Some(FineState::Stopped));
    assert_eq!(rig.world.row("a").expect("the row stays").status, WireStatus::Stopped);
    assert_eq!(rig.world.logs.kept("a"), None);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_stop_is_bounded() {
    let rig = Rig::start().await;
    rig.spawn(request("a")).await.expect("starts");
    rig.world.processes.stop_takes_ms(30_000);
    let refusal = rig.kill("a").await.expect_err("it takes too long");
    assert!(refusal.cause.contains("did not end within 20 s"), "{}", refusal.cause);
    rig.world.pass(Duration::from_secs(11)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Stopped), "it still obeys");
    rig.kill("a").await.expect("killing what has ended is no error");
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_its_shim_ends_without_a_code() {
    let rig = Rig::start().await;
    rig.spawn(request("a")).await.expect("starts");
    rig.world.kill_shim("a");
    rig.world.settle().await;
    assert_eq!(rig.world.state("a"), Some(FineState::Unsupervised));
    assert_eq!(rig.swarm().live().await, 1, "it is still watched");
    rig.world.end("a", Ended::Code(0));
    rig.world.settle().await;
    assert_eq!(rig.world.state("a"), Some(FineState::Lost));
    assert_eq!(rig.swarm().live().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_its_shim_can_be_killed() {
    let rig = Rig::start().await;
    rig.spawn(request("a")).await.expect("starts");
    rig.world.kill_shim("a");
    rig.world.settle().await;
    rig.kill("a").await.expect("ends");
    assert_eq!(rig.world.kernel.living(), 0);
    assert_eq!(rig.world.script.position("stop_by_shim a.1"), None, "there is no shim to ask");
    assert_eq!(rig.world.state("a"), Some(FineState::Stopped), "as the kill said");
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_outlives_the_shim() {
    let rig = Rig::start().await;
    let mut asked = request("a");
    asked.contract.timeout_ms = Some(60_000);
    rig.spawn(asked).await.expect("starts");
    rig.world.pass(Duration::from_secs(20)).await;
    rig.world.kill_shim("a");
    rig.world.pass(Duration::from_secs(39)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Unsupervised));
    rig.world.pass(Duration::from_secs(2)).await;
    assert_eq!(rig.world.state("a"), Some(FineState::Lost));
}

#[tokio::test(start_paused = true)]
async fn a_running_worker_is_not_cleaned() {
    let rig = Rig::start().await;
    rig.spawn(request("a")).await.expect("starts");
    let refusal = rig.clean("a").await.expect_err("it runs");
    assert_eq!((refusal.kind, refusal.remedy.as_deref()), (RefusalKind::Running, Some("run 'swarm kill a' first")));
    rig.kill("a").await.expect("ends");
    rig.clean("a").await.expect("goes");
    assert_eq!((rig.world.rows(), rig.world.records.keys()), (Vec::new(), Vec::new()));
    assert_eq!(rig.world.records.logs_removed(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn cleaning_keeps_a_worktree_that_holds_work() {
    let rig = Rig::start().await;
    let path = rig.spawn(with_tree("a")).await.expect("starts").worktree.expect("has a worktree");
    rig.kill("a").await.expect("ends");
    rig.world.worktrees.dirty(&path, 2);
    let line = rig.clean("a").await.expect("goes");
    let note = |severity: &str, text: String| (severity.to_owned(), text);
    let (above, _) = path.rsplit_once('/').expect("a directory");
    assert_eq!(
        line.notes,
        [
            note("warning", "preserving worktree for 'a': worktree has 2 uncommitted change(s)".to_owned()),
            note("plain", format!("worktree at: {path}")),
            note("plain", "use --force-dirty to remove anyway".to_owned()),
            note(
                "hint",
                format!(
                    "in /repo, 'swarm spawn --name a --worktree --worktree-dir {above}' continues in it; 'swarm clean a \
                     --force-dirty' saves its work and removes it"
                )
            ),
        ]
    );
    assert_eq!(rig.world.rows(), Vec::new());
    assert_eq!(rig.world.worktrees.paths(), std::slice::from_ref(&path));
    // By force it is found although its worker is forgotten.
    assert_eq!(rig.clean("a").await.expect_err("it is forgotten").kind, RefusalKind::NotFound);
    let line = rig.clean_by(swarm_model::CleanRequest { force_dirty: true, ..clean("a") }).await.expect("goes");
    assert!(line.notes[0].1.contains("refs/swarm/trash"), "{:?}", line.notes);
    assert_eq!((rig.world.worktrees.paths(), rig.world.worktrees.saved()), (Vec::new(), vec![path]));
    assert_eq!(rig.clean("a").await.expect_err("nothing is left").kind, RefusalKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_branch_that_was_made_for_a_worker_goes_with_its_worktree_on_request() {
    let rig = Rig::start().await;
    for (name, drop_branch, left) in [("kept", false, vec!["kept"]), ("gone", true, vec!["kept"])] {
        rig.spawn(with_tree(name)).await.expect("starts");
        rig.kill(name).await.expect("ends");
        rig.clean_by(swarm_model::CleanRequest { drop_branch, ..clean(name) }).await.expect("goes");
        assert_eq!(rig.world.worktrees.branches(), left);
    }
}

#[tokio::test(start_paused = true)]
async fn a_branch_that_was_made_for_a_worker_goes_after_another_one_went_on_in_its_worktree() {
    let rig = Rig::start().await;
    rig.spawn(with_tree("a")).await.expect("starts");
    rig.kill("a").await.expect("ends");
    rig.respawn("a").await.expect("starts again");
    rig.kill("a").await.expect("ends");
    let path = rig.world.worktrees.path("a");
    rig.world.worktrees.dirty(&path, 1);
    rig.clean("a").await.expect("the worker goes");
    rig.spawn(with_tree("a")).await.expect("goes on");
    rig.kill("a").await.expect("ends");
    rig.respawn("a").await.expect("starts again");
    rig.kill("a").await.expect("ends");
    rig.world.worktrees.dirty(&path, 0);
    assert_eq!(rig.world.worktrees.branches(), ["a"]);
    rig.clean("a").await.expect("goes");
    assert!(rig.world.worktrees.branches().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_clean_names_the_save_of_commits_that_only_the_reflog_of_the_branch_had() {
    let rig = Rig::start().await;
    rig.spawn(with_tree("a")).await.expect("starts");
    rig.kill("a").await.expect("ends");
    rig.world.worktrees.take_back("a");
    let line = rig.clean("a").await.expect("goes");
    let notes: Vec<_> = line.notes.iter().filter(|(_, text)| text.contains("refs/swarm/trash/a")).collect();
    assert!(notes.len() == 1 && notes[0].1.contains("'swarm restore a'"), "{:?}", line.notes);
}

#[tokio::test(start_paused = true)]
async fn a_forced_clean_saves_first() {
    let rig = Rig::start().await;
    let path = rig.spawn(with_tree("a")).await.expect("starts").worktree.expect("has a worktree");
    rig.kill("a").await.expect("ends");
    rig.world.worktrees.dirty(&path, 2);
    let mut asked = clean("a");
    asked.force_dirty = true;
    let line = rig.clean_by(asked).await.expect("goes");
    assert!(line.notes[0].1.contains("refs/swarm/trash"), "{:?}", line.notes);
    assert_eq!((rig.world.worktrees.paths(), rig.world.worktrees.saved()), (Vec::new(), vec![path]));
    assert_eq!(rig.world.worktrees.branches(), ["a"], "what was saved is restored onto its branch");
}

#[tokio::test(start_paused = true)]
async fn workers_of_the_original_are_killed_and_cleaned() {
    let rig = Rig::start().await;
    let process = rig.world.kernel.fork();
    let theirs = foreign_row("theirs", Some(i64::from(process.pid)));
    rig.world.write_rows(&[theirs.clone(), foreign_row("other one", None)]);
    let refusal = rig.clean("theirs").await.expect_err("it runs");
    assert_eq!(refusal.kind, RefusalKind::Running);
    rig.kill("theirs").await.expect("ends");
    assert!(!rig.world.kernel.is_alive(&process));
    assert_eq!(rig.world.row("theirs").expect("the row stays").status, WireStatus::Stopped);
    rig.clean("theirs").await.expect("goes");
    rig.clean("other one").await.expect("a name that we would not give can be cleaned");
    assert_eq!(rig.world.rows(), Vec::new());
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_gets_its_first_answer() {
    let rig = Rig::start().await;
    let asked = request("a");
    let first = rig.spawn(asked.clone()).await.expect("starts");
    assert_eq!(rig.spawn(asked).await, Ok(first));
    rig.kill("a").await.expect("ends");
    let mut asked = clean("a");
    let first = rig.clean_by(asked.clone()).await.expect("goes");
    asked.caller.repeated = 1;
    assert_eq!(rig.clean_by(asked).await, Ok(first));
    let refusal = rig.clean("a").await.expect_err("a different request is not repeated");
    assert_eq!(refusal.kind, RefusalKind::NotFound);
    assert_eq!(rig.world.records.executions().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_worker_is_not_found() {
    let rig = Rig::start().await;
    assert_eq!(rig.kill("ghost").await.map_err(|refusal| refusal.kind), Err(RefusalKind::NotFound));
    assert_eq!(rig.respawn("ghost").await.map_err(|refusal| refusal.kind), Err(RefusalKind::NotFound));
}

#[tokio::test(start_paused = true)]
async fn a_name_is_free_after_a_concurrent_clean() {
    for is_made_again in [true, false] {
        let rig = Rig::start().await;
        rig.spawn(request("a")).await.expect("starts");
        rig.world.end("a", Ended::Code(0));
        rig.world.settle().await;
        // Requested during the clean: a waiting request is not lost with the actor.
        if is_made_again {
            let (cleaned, spawned) = tokio::join!(rig.clean("a"), rig.spawn(request("a")));
            assert_eq!(cleaned.map(|line| line.done).as_deref(), Ok("cleaned"));
            assert_eq!(spawned.map(|spawned| spawned.name).as_deref(), Ok("a"));
            assert_eq!(rig.world.state("a"), Some(FineState::Running));
        } else {
            let (cleaned, killed) = tokio::join!(rig.clean("a"), rig.kill("a"));
            assert_eq!(cleaned.map(|line| line.done).as_deref(), Ok("cleaned"));
            assert_eq!(killed.expect_err("it is gone").kind, RefusalKind::NotFound);
        }
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn names_that_nobody_has_cost_nothing() {
    let rig = Rig::start().await;
    rig.spawn(request("a")).await.expect("starts");
    let before = rig.swarm().cell().get_children().len();
    for name in ["x", "y", "z"] {
        assert_eq!(rig.kill(name).await.expect_err("is unknown").kind, RefusalKind::NotFound);
        assert_eq!(rig.clean(name).await.expect_err("is unknown").kind, RefusalKind::NotFound);
        assert_eq!(rig.respawn(name).await.expect_err("is unknown").kind, RefusalKind::NotFound);
    }
    rig.world.settle().await;
    assert_eq!(rig.swarm().cell().get_children().len(), before);
    rig.spawn(request("x")).await.expect("starts");
    rig.kill("x").await.expect("is known");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_clean_waits_for_a_worker_whose_window_was_closed() {
    let rig = Rig::start().await;
    let mut asked = request("a");
    asked.contract.tmux = Some(TmuxPlace { session: "s".to_owned(), ..TmuxPlace::default() });
    rig.spawn(asked).await.expect("starts");
    let key = ("a".to_owned(), 1);
    rig.world.processes.close_window(&key);
    let refused = rig.clean("a").await.expect_err("it did not end in time");
    assert_eq!(refused.kind, RefusalKind::Running);
    let end = async {
        rig.world.pass(Duration::from_millis(300)).await;
        rig.world.processes.end_because(&key, Ended::Signal(1), Reason::Closed);
    };
    let (cleaned, ()) = tokio::join!(rig.clean("a"), end);
    cleaned.expect("it has ended");
    rig.check();
}
