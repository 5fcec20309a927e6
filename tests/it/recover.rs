//! Recovery after a reboot, a lost tmux server or a killed machine: running workers restart as they were started, and
//! those that had ended do not.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::proc::{self, Signal};
use crate::common::{Rig, SOON, run, wait_until};
use crate::run::Site;

/// Kills every process of the rig, and makes its files look as if an earlier boot wrote them.
pub fn reboot(rig: &Rig) {
    wait_until("everything is killed", SOON, || {
        let left = rig.processes();
        // All stop before the first is killed: a shim that runs on would record how its worker ended. The end of a tmux
        // server continues the shims of its windows, so those are killed before it.
        left.iter().for_each(|pid| proc::signal(*pid, Signal::STOP));
        left.iter().rev().for_each(|pid| proc::kill(*pid));
        left.is_empty()
    });
    rewrite_boot(&rig.root().join("w"), &["lease"]);
    for tree in fs::read_dir(rig.path("repo-worktrees")).into_iter().flatten().flatten() {
        rewrite_boot(&tree.path(), &["state.json"]);
    }
}

/// Ends every process of the rig as a machine does that shuts down: SIGTERM to all of them at once.
fn shut_down(rig: &Rig) {
    let all = rig.processes();
    for signal in [Signal::STOP, Signal::TERM, Signal::CONT] {
        all.iter().for_each(|pid| proc::signal(*pid, signal));
    }
    wait_until("everything has ended", SOON, || rig.processes().is_empty());
}

/// Makes files of these names look as if an earlier boot wrote them.
pub fn rewrite_boot(dir: &Path, names: &[&str]) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            rewrite_boot(&path, names);
        } else if names.iter().any(|name| path.ends_with(name)) {
            let text = fs::read_to_string(&path).expect("read");
            let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("read");
            fs::write(&path, text.replace(boot.trim(), "00000000-0000-0000-0000-000000000000")).expect("written");
        }
    }
}

/// Decision of `recover` for each worker.
#[track_caller]
fn cases(rig: &Rig, words: &[&str]) -> Vec<(String, String, String)> {
    let said = rig.swarm(&[&["recover", "--json"], words].concat());
    let value: Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let case = |case: &Value| (text(&case["name"]), text(&case["decision"]), text(&case["why"]));
    value["workers"].as_array().expect("a list").iter().map(case).collect()
}

#[test]
fn an_orderly_shutdown_stops_nothing_for_good() {
    for reboots in [false, true] {
        let site = Site::new();
        let rig = &site.rig;
        let (marks, go) = (rig.path("marks"), rig.path("go"));
        let (marks, go) = (marks.display(), go.display());
        let works = format!("echo run >> {marks}\nwhile ! test -e {go}; do sleep 0.1; done\necho a > a.txt");
        site.spec("a", "retries: 0\n", &works);
        site.write("PROMPT.md", "go on\n");
        let agent = rig.file("agent", &format!("printf '> '\nread line\necho loop >> {marks}\nexec sleep 600\n"));
        site.under_way(&[]);
        let begin = ["ralph", "spawn", "--name", "dev", "--prompt-file", "PROMPT.md", "--max-iterations", "1"];
        site.swarm(&[&begin[..], &["--", "sh", &agent]].concat()).ok();
        let marking = |name: &str| format!("echo {name} >> {marks}; exec sleep 600");
        rig.spawn_sh("policy", &["--restart", "always"], &marking("policy"));
        rig.spawn_sh("plain", &[], &marking("plain"));
        rig.spawn_sh("killed", &["--restart", "always"], &marking("killed"));
        // As claude ends.
        rig.spawn_sh("coded", &[], &format!("trap 'exit 143' TERM; echo coded >> {marks}; sleep 600 & wait"));
        let count = |name: &str| {
            let text = fs::read_to_string(rig.path("marks")).unwrap_or_default();
            text.lines().filter(|line| *line == name).count()
        };
        let names = ["run", "loop", "policy", "plain", "killed", "coded"];
        wait_until("all are at work", SOON, || names.iter().all(|name| count(name) == 1));
        rig.swarm(&["kill", "killed"]).ok();
        shut_down(rig);
        if reboots {
            rewrite_boot(&rig.root().join("w"), &["lease"]);
        }
        assert_eq!((rig.fine("plain"), rig.fine("killed")), ("interrupted".to_owned(), "stopped".to_owned()));
        assert_eq!(rig.fine("coded"), "interrupted");
        let said = rig.swarm(&["recover", "--apply", "--settle", "0"]);
        assert!(said.code == Some(0) && said.out.contains("recovered plain"), "{said:?}");
        let back = ["run", "loop", "policy", "plain", "coded"];
        wait_until("they are back", LONG, || back.iter().all(|name| count(name) == 2));
        rig.file("go", "");
        wait_until("the work lands", LONG, || site.row("a")["status"] == "done");
        assert_eq!((site.landed("a.txt").as_str(), count("killed")), ("a", 1), "reboots: {reboots}");
        assert_eq!(rig.fine("killed"), "stopped");
        let state = fs::read(rig.root().join("ralph/dev/state.json")).expect("read");
        let state: Value = serde_json::from_slice(&state).expect("JSON");
        assert_eq!((&state["status"], &state["current_iteration"]), (&json!("running"), &json!(1)));
    }
}

/// A restart that backs off, on a loaded machine.
const LONG: Duration = Duration::from_secs(60);

const WAITS: &str = "echo up >> marks; exec sleep 600";

#[test]
fn running_workers_are_recovered_after_a_reboot() {
    let rig = Rig::new();
    let repo = rig.repo();
    rig.spawn_sh(
        "plain",
        &["--env", "KEPT=yes", "--tag", "t"],
        "echo $KEPT >> marks; cp \"$SWARM_RECOVERY\" told; exec sleep 600",
    );
    rig.spawn_sh("window", &["--tmux"], WAITS);
    let spawn = |name: &str, flags: &[&str], script: &str| {
        let words = [&["spawn", "--name", name, "--worktree"], flags, &["--", "sh", "-c", script]].concat();
        rig.swarm_in(&repo, &words).ok();
    };
    spawn("tree", &["--prompt", "write a poem"], "echo half >> poem; exec sleep 600");
    spawn("policy", &["--restart", "on-failure"], WAITS);
    rig.spawn("ended", &[], &["true"]);
    rig.spawn_sh("failed", &[], "exit 3");
    rig.wait("ended");
    rig.wait("failed");
    rig.spawn("stopped", &[], &["sleep", "600"]);
    rig.swarm(&["kill", "stopped"]).ok();
    let marks = rig.path("repo-worktrees/policy/marks");
    wait_until("all are up", SOON, || {
        rig.cwd().join("marks").exists() && marks.exists() && rig.path("repo-worktrees/tree/poem").exists()
    });
    reboot(&rig);

    let machine = "the machine went down while the worker was running";
    let expected = [
        ("plain", "start", machine),
        ("window", "start", machine),
        ("tree", "start", machine),
        ("policy", "leave", "its restart policy starts it again"),
        ("ended", "leave", "finished successfully"),
        ("failed", "leave", "exited with code 3"),
        ("stopped", "leave", "stopped on request"),
    ];
    let expected = expected.map(|(name, decision, why)| (name.to_owned(), decision.to_owned(), why.to_owned()));
    assert_eq!(cases(&rig, &[]), expected);
    let shown = rig.swarm(&["recover"]);
    assert!(
        shown.out.contains("NAME") && shown.err.ends_with("run 'swarm recover --apply' to start 3 of them\n"),
        "{shown:?}"
    );
    assert_eq!(rig.keepers(), (None, None), "a dry run started something");
    assert_eq!(rig.fine("plain"), "interrupted");

    let before = fs::read_to_string(rig.cwd().join("marks")).expect("read").lines().count();
    let said = rig.swarm(&["recover", "--apply", "--settle", "0"]).ok();
    assert_eq!(said.lines().filter(|line| line.starts_with("recovered ")).count(), 3, "{said}");
    for name in ["plain", "window", "tree", "policy"] {
        wait_until(name, SOON, || rig.fine(name) == "running");
    }
    assert_eq!(rig.view("plain")["tags"], json!(["t"]));
    wait_until("all were executed again", SOON, || {
        let marks = fs::read_to_string(rig.cwd().join("marks")).expect("read");
        marks.lines().count() == before + 2 && marks.matches("yes\n").count() == 2
    });
    let told = || fs::read_to_string(rig.cwd().join("told")).unwrap_or_default();
    wait_until("it finds what was done", SOON, || told().starts_with("You are resuming interrupted work"));
    let folder = rig.path("repo-worktrees/tree/.agent");
    let prompt = fs::read_to_string(folder.join("recovery.md")).expect("read");
    for part in ["The branch is tree.", "?? poem", "The original task:\n\nwrite a poem", "Attempt: 2"] {
        assert!(prompt.contains(part), "no {part:?} in {prompt}");
    }
    let state: Value = serde_json::from_slice(&fs::read(folder.join("state.json")).expect("read")).expect("JSON");
    assert_eq!((&state["recoveryAttempts"], &state["attemptCount"]), (&json!(1), &json!(2)));
    assert_eq!(cases(&rig, &[]).iter().filter(|(_, decision, _)| decision == "start").count(), 0);
    rig.swarm(&["recover", "--apply"]).is(0, "nothing to recover\n", "");
}

#[test]
fn workers_of_a_lost_tmux_server_are_recovered() {
    let rig = Rig::new();
    rig.spawn("a", &["--tmux"], &["sleep", "600"]);
    rig.spawn("b", &["--tmux"], &["sleep", "600"]);
    let window = rig.view("b")["tmux"]["pane"].as_str().expect("a pane").to_owned();
    rig.tmux(&["kill-pane", "-t", &window]).ok();
    wait_until("b has exited", SOON, || rig.fine("b") == "exited");
    assert_eq!(cases(&rig, &["b"])[0].2, "its window was closed");
    let server: i32 = rig.tmux(&["display-message", "-p", "#{pid}"]).ok().trim().parse().expect("a pid");
    proc::kill(server);
    wait_until("the end of all", SOON, || rig.fine("a") != "running");
    assert_eq!(cases(&rig, &["a"])[0].1, "start");
    assert_eq!(cases(&rig, &["b"])[0].2, "its window was closed", "it had been closed before");
    rig.swarm(&["recover", "--apply", "--settle", "0"]).ok();
    assert_eq!((rig.fine("a"), rig.fine("b")), ("running".to_owned(), "exited".to_owned()));
    // A server that is told to end takes all of its windows along.
    rig.spawn("c", &["--tmux"], &["sleep", "600"]);
    rig.tmux(&["kill-server"]).ok();
    for name in ["a", "c"] {
        rig.wait(name);
        assert_eq!(cases(&rig, &[name])[0].2, "its tmux server is gone");
    }
}

#[test]
fn a_window_that_a_person_closed_stays_closed_although_its_server_ends_with_it() {
    let rig = Rig::new();
    for close in ["kill-pane", "kill-window", "kill-session"] {
        rig.spawn(close, &["--tmux"], &["sleep", "600"]);
        let server: i32 = rig.tmux(&["display-message", "-p", "#{pid}"]).ok().trim().parse().expect("a pid");
        let pane = rig.view(close)["tmux"]["pane"].as_str().expect("a pane").to_owned();
        rig.tmux(&[close, "-t", &pane]).ok();
        rig.wait(close);
        assert!(proc::wait_end(server, SOON), "it was the last window");
        assert_eq!(cases(&rig, &[close])[0].2, "its window was closed", "{close}");
    }
    assert!(!fs::read_to_string(rig.root().join("events.jsonl")).expect("read").contains("tmux server"));
    reboot(&rig);
    rig.swarm(&["recover", "--apply"]).is(0, "nothing to recover\n", "");
}

#[test]
fn what_was_killed_after_its_end_stays_stopped() {
    let rig = Rig::new();
    for name in ["window", "other"] {
        rig.spawn(name, &["--tmux"], &["sleep", "600"]);
    }
    rig.tmux(&["kill-server"]).ok();
    rig.wait("window");
    assert_eq!(cases(&rig, &["window"])[0].1, "start");
    rig.spawn("alone", &[], &["sleep", "600"]);
    proc::kill(rig.shim("alone"));
    wait_until("its shim is gone", SOON, || rig.fine("alone") == "unsupervised");
    rig.swarm(&["kill", "window"]).is(0, "killed window\n", "");
    rig.swarm(&["kill", "alone"]).is(0, "killed alone\n", "");
    rig.spawn("running", &[], &["sleep", "600"]);
    reboot(&rig);
    rig.swarm(&["kill", "running"]).is(0, "killed running\n", "");
    for name in ["window", "alone", "running"] {
        assert_eq!(rig.fine(name), "stopped", "{name}");
        assert_eq!(cases(&rig, &[name])[0].2, "stopped on request", "{name}");
    }
    assert!(!rig.swarm(&["doctor"]).out.contains("recover --apply"));
}

#[test]
fn a_worker_that_a_signal_ended_stays_ended_after_a_reboot() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sleep", "600"]);
    proc::signal(rig.pid("a"), Signal::TERM);
    rig.wait("a");
    assert_eq!(cases(&rig, &[])[0].2, "killed by signal 15");
    reboot(&rig);
    let left = ("a".to_owned(), "leave".to_owned(), "killed by signal 15".to_owned());
    assert_eq!(cases(&rig, &[]), [left]);
}

#[test]
fn a_killed_and_repeated_recovery_starts_each_worker_once() {
    let rig = Rig::new();
    for name in ["a", "b", "c", "d"] {
        rig.spawn_sh(name, &[], &format!("echo x >> {name}; exec sleep 600"));
    }
    wait_until("all are up", SOON, || ["a", "b", "c", "d"].iter().all(|name| rig.cwd().join(name).exists()));
    reboot(&rig);
    for _ in 0..3 {
        let mut command = rig.command(&["recover", "--apply", "--at-once", "1", "--settle", "1"]);
        let mut child = command.stdout(std::process::Stdio::null()).spawn().expect("started");
        let running = || ["a", "b", "c", "d"].iter().filter(|name| rig.fine(name) == "running").count();
        let before = running();
        wait_until("one more", SOON, || running() > before || before == 4);
        child.kill().expect("killed");
        child.wait().expect("waited");
        if let (Some(supervisor), _) = rig.keepers() {
            proc::kill(supervisor);
        }
    }
    run(rig.command(&["recover", "--apply", "--settle", "0"]));
    for name in ["a", "b", "c", "d"] {
        wait_until(name, SOON, || rig.fine(name) == "running");
        wait_until("the worker was executed", SOON, || {
            fs::read_to_string(rig.cwd().join(name)).expect("read").lines().count() == 2
        });
    }
    rig.swarm(&["recover", "nobody"]).refused(1, "worker 'nobody' not found");
}

#[test]
fn agents_that_are_not_logged_in_stop_the_recovery() {
    let rig = Rig::new();
    let agent = rig.file("agent", "#!/bin/sh\n[ -e logged-in ] && exec sleep 600\necho 'Not logged in' >&2\nexit 1\n");
    rig.program("chmod").args(["+x", &agent]).status().expect("run");
    fs::write(rig.cwd().join("logged-in"), "").expect("written");
    for name in ["a", "b", "c", "d"] {
        rig.spawn(name, &[], &[&agent]);
    }
    reboot(&rig);
    fs::remove_file(rig.cwd().join("logged-in")).expect("removed");
    let said = rig.swarm(&["recover", "--apply", "--at-once", "1", "--settle", "5"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("agents are not logged in; not recovered: c, d\n"), "{said:?}");
    assert_eq!(rig.fine("c"), "interrupted");
    fs::write(rig.cwd().join("logged-in"), "").expect("written");
    rig.swarm(&["recover", "--apply", "--settle", "0"]);
    assert_eq!((rig.fine("c"), rig.fine("d")), ("running".to_owned(), "running".to_owned()));
}
