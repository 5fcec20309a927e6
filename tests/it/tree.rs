//! Process tree of a worker: all of it ends with the worker, and nothing else does.

use std::time::Duration;

use crate::common::{Rig, SOON, proc, quick, timed, wait_until};

/// Script that leaves its session and parent, as daemons do, writes its pid to a file, and stays. With a second
/// argument the first process exits by itself.
const DAEMON: &str = "import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        os.chdir('/')
        with open(sys.argv[1] + '.tmp', 'w') as f: f.write(str(os.getpid()))
        os.rename(sys.argv[1] + '.tmp', sys.argv[1])
        signal.pause()
    os._exit(0)
os.wait()
if len(sys.argv) > 2:
    while not os.path.exists(sys.argv[1]): pass
    sys.exit(4)
signal.pause()
";

fn pid_of_file(rig: &Rig, name: &str) -> i32 {
    let path = rig.path(name);
    wait_until("a pid is written", SOON, || path.exists());
    std::fs::read_to_string(path).expect("there").parse().expect("a pid")
}

#[test]
fn a_daemonised_grandchild_ends_with_a_kill() {
    // The original signals only the leader, so grandchildren survive.
    let rig = Rig::new();
    let script = rig.file("daemon.py", DAEMON);
    for (name, flags) in [("p", &[][..]), ("t", &["--tmux"])] {
        let path = rig.path(name);
        rig.spawn(name, flags, &["python3", &script, path.to_str().expect("text")]);
        let daemon = pid_of_file(&rig, name);
        assert!(proc::alive(daemon));
        rig.swarm(&["kill", name]).is(0, &format!("killed {name}\n"), "");
        assert!(!proc::alive(daemon), "{name}: the grandchild outlived the kill");
    }
}

#[test]
fn processes_left_by_a_worker_end_with_it() {
    let rig = Rig::new();
    let script = rig.file("daemon.py", DAEMON);
    let path = rig.path("left");
    rig.spawn("x", &[], &["python3", &script, path.to_str().expect("text"), "leave"]);
    let daemon = pid_of_file(&rig, "left");
    rig.wait("x");
    assert_eq!(rig.exit("x"), "code 4, exited");
    assert!(!proc::alive(daemon), "the daemon outlives its worker");
}

#[test]
fn stubborn_workers_end_within_the_grace_period_and_in_parallel() {
    // The original takes 5 s for each, one after the other.
    quick("the end of two deaf ones", Duration::from_secs(9), kill_stubborn);
}

/// Kills workers that resist in different ways, and returns how long that took.
fn kill_stubborn() -> Duration {
    let rig = Rig::new();
    rig.spawn_sh("deaf", &[], "trap '' TERM HUP; echo ready; while :; do sleep 600; done");
    rig.spawn_sh("deaf-window", &["--tmux"], "trap '' TERM HUP; echo ready; while :; do sleep 600; done");
    rig.spawn_sh("stopped", &[], "sleep 600 & echo ready; kill -STOP $$; wait");
    let closed = "import os, signal\nprint('ready', flush=True)\nos.closerange(0, 64)\nsignal.pause()\n";
    rig.spawn("closed", &[], &["python3", "-c", closed]);
    let ready = |name: &str| rig.log(name, if name == "deaf-window" { "tmux" } else { "stdout" }).contains("ready");
    for name in ["deaf", "deaf-window", "stopped", "closed"] {
        wait_until("the worker is ready", SOON, || ready(name));
    }
    wait_until("the worker has suspended itself", SOON, || rig.fine("stopped") == "suspended");
    let pids = ["deaf", "deaf-window", "stopped", "closed"].map(|name| rig.pid(name));
    let words = "killed deaf\nkilled deaf-window\nkilled stopped\nkilled closed\n";
    let took = timed(|| rig.swarm(&["kill", "--all"]).is(0, words, ""));
    assert!(pids.iter().all(|pid| !proc::alive(*pid)), "{pids:?}");
    assert_eq!(rig.exit("deaf"), "signal SIGKILL, stopped");
    assert_eq!(rig.exit("deaf-window"), "signal SIGKILL, stopped");
    assert_eq!(rig.exit("stopped"), "signal SIGTERM, stopped");
    assert_eq!(rig.exit("closed"), "signal SIGTERM, stopped");
    took
}

#[test]
fn a_kill_neither_restores_cleaned_workers_nor_loses_spawned_ones() {
    // The original saves the list that it read before it waited for the worker.
    let rig = Rig::new();
    // The stop is recorded, which shows when the kill is in progress.
    let policy = ["--restart", "on-failure"];
    rig.spawn_sh("deaf", &policy, "trap '' TERM; echo ready; while :; do sleep 600; done");
    rig.spawn("done", &[], &["true"]);
    rig.wait("done");
    wait_until("deaf is ready", SOON, || rig.log("deaf", "stdout") == "ready\n");
    let killer = std::thread::spawn({
        let command = rig.command(&["kill", "deaf"]);
        move || crate::common::run(command)
    });
    wait_until("the kill is under way", SOON, || {
        rig.fine("deaf") != "running" || wanted(&rig, "deaf.1").contains("stopped")
    });
    rig.spawn("new", &[], &["sleep", "600"]);
    rig.swarm(&["clean", "done"]).is(0, "cleaned done\n", "");
    assert!(!killer.is_finished(), "the kill was too quick to prove anything");
    killer.join().expect("joined").is(0, "killed deaf\n", "");
    assert_eq!(rig.names(), ["deaf", "new"]);
    assert_eq!(rig.swarm(&["status", "new"]).code, Some(0));
}

fn wanted(rig: &Rig, dir: &str) -> String {
    std::fs::read_to_string(rig.root().join("w").join(dir).join("wanted.json")).unwrap_or_default()
}

#[test]
fn a_closed_window_ends_the_whole_process_tree() {
    let rig = Rig::new();
    let script = rig.file("daemon.py", DAEMON);
    let path = rig.path("left");
    rig.spawn("x", &["--tmux", "--session", "s"], &["python3", &script, path.to_str().expect("text")]);
    let daemon = pid_of_file(&rig, "left");
    rig.tmux(&["kill-window", "-t", "=s:=x"]).ok();
    rig.wait("x");
    assert!(!proc::alive(daemon));
    assert_eq!(rig.exit("x"), "signal SIGHUP, closed");
}
