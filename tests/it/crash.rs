//! Processes that are killed, stopped or started concurrently: nothing is lost, and what is due happens
//! without another command.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::proc::{self, Signal};
use crate::common::{Rig, SOON, holds_for, quick, run, timed, wait_until};

pub fn kill_keepers(rig: &Rig) {
    rig.kill_keepers();
}

#[track_caller]
pub fn both(rig: &Rig) -> (i32, i32) {
    let mut found = (0, 0);
    wait_until("supervisor and guard run", SOON, || {
        if let (Some(supervisor), Some(guard)) = rig.keepers() {
            found = (supervisor, guard);
        }
        found != (0, 0)
    });
    found
}

#[test]
fn a_killed_supervisor_is_restarted_and_keeps_its_workers() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sleep", "600"]);
    rig.spawn("b", &["--tmux"], &["sleep", "600"]);
    let pids = [rig.pid("a"), rig.pid("b")];
    for _ in 0..5 {
        let (supervisor, _) = both(&rig);
        proc::kill(supervisor);
        wait_until("another supervisor runs", SOON, || rig.keepers().0.is_some_and(|pid| pid != supervisor));
        assert_eq!([rig.pid("a"), rig.pid("b")], pids);
    }
    rig.swarm(&["kill", "--all"]).is(0, "killed a\nkilled b\n", "");
    assert_eq!(rig.exit("a"), "signal SIGTERM, stopped");
}

#[test]
fn a_killed_guard_is_replaced() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sleep", "600"]);
    for _ in 0..5 {
        let (supervisor, guard) = both(&rig);
        proc::kill(guard);
        wait_until("another guard runs", SOON, || rig.keepers().1.is_some_and(|pid| pid != guard));
        assert_eq!(rig.keepers().0, Some(supervisor), "the supervisor was replaced with its guard");
    }
}

#[test]
fn a_guard_goes_on_after_a_start_that_failed() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sleep", "600"]);
    let (supervisor, guard) = both(&rig);
    proc::signal(guard, Signal::STOP);
    proc::kill(supervisor);
    wait_until("the supervisor is gone", SOON, || !proc::alive(supervisor));
    // No supervisor can listen there.
    let socket = rig.root().join("supervisor.sock");
    std::fs::remove_file(&socket).expect("there");
    std::fs::create_dir_all(socket.join("in the way")).expect("made");
    proc::signal(guard, Signal::CONT);
    let log = || std::fs::read_to_string(rig.root().join("supervisor.log")).unwrap_or_default();
    wait_until("two starts fail", SOON, || log().matches("the supervisor cannot start").count() > 1);
    std::fs::remove_dir_all(&socket).expect("removed");
    assert_eq!(both(&rig).1, guard, "the same guard started it");
    wait_until("it listens", SOON, || socket.exists());
    assert_eq!(rig.fine("a"), "running");
}

/// Pids of the fork server and its spare fork.
fn fork_servers(rig: &Rig) -> Vec<i32> {
    let serves = |pid: &i32| proc::words(*pid).get(1).is_some_and(|word| word == "__forkserver");
    rig.processes().into_iter().filter(serves).collect()
}

#[test]
fn workers_start_even_if_the_fork_server_is_killed_or_stopped() {
    let rig = Rig::new();
    rig.spawn("first", &[], &["sleep", "600"]);
    let (supervisor, _) = both(&rig);
    let server = |pid: &i32| proc::stat(*pid, 4) == Some(supervisor.to_string());
    for (round, signal) in [Signal::KILL, Signal::STOP].into_iter().enumerate() {
        for (whose, only_server) in [("server", true), ("all", false)] {
            wait_until("a spare is ready", SOON, || fork_servers(&rig).len() == 2);
            let struck = fork_servers(&rig).into_iter().filter(|pid| !only_server || server(pid));
            struck.for_each(|pid| proc::signal(pid, signal));
            // Twice: the first start may still use the spare process.
            for number in 0..2 {
                rig.spawn(&format!("{whose}{round}{number}"), &[], &["sleep", "600"]);
            }
        }
    }
    assert_eq!(rig.names().len(), 9);
    assert!(rig.names().iter().all(|name| rig.fine(name) == "running"));
    assert_eq!(rig.keepers().0, Some(supervisor), "the supervisor was replaced with its fork server");
    kill_keepers(&rig);
    let left = fork_servers(&rig);
    let of_the_next = |pid: &i32| rig.keepers().0.is_some_and(|next| proc::stat(*pid, 4) == Some(next.to_string()));
    wait_until("the fork server has gone with its supervisor", SOON, || {
        left.iter().all(|pid| !proc::alive(*pid) || of_the_next(pid))
    });
}

#[test]
fn a_shim_has_its_own_name_and_session_and_no_socket_of_the_fork_server() {
    let rig = Rig::new();
    let name = "n".repeat(64);
    rig.spawn(&name, &[], &["sleep", "600"]);
    let shim = rig.shim(&name);
    let dir = rig.root().join("w").join(format!("{name}.1"));
    assert_eq!(proc::words(shim)[..3], ["swarm", "__shim", dir.to_str().expect("text")]);
    let session = |pid| proc::stat(pid, 6);
    assert_eq!(session(shim), Some(shim.to_string()));
    // The shim closes its own link after it has reported the start.
    wait_until("no socket is left", SOON, || {
        let open = std::fs::read_dir(format!("/proc/{shim}/fd")).expect("there").flatten();
        let mut targets = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        targets.all(|to| !to.to_string_lossy().starts_with("socket:"))
    });
}

#[test]
fn a_time_limit_holds_without_supervisor_and_guard() {
    let rig = Rig::new();
    rig.spawn("x", &["--timeout", "1"], &["sleep", "600"]);
    let pid = rig.pid("x");
    kill_keepers(&rig);
    wait_until("the time limit ends it", SOON, || !proc::alive(pid));
    wait_until("the timeout is recorded", SOON, || rig.exit("x") == "signal SIGTERM, timeout");
}

#[test]
fn exits_are_recorded_without_supervisor_and_guard() {
    let rig = Rig::new();
    for (name, flags) in [("p", &[][..]), ("t", &["--tmux"])] {
        rig.spawn_sh(name, flags, "until [ -e end ]; do sleep 0.02; done; exit 9");
    }
    kill_keepers(&rig);
    std::fs::write(rig.cwd().join("end"), "").expect("written");
    for name in ["p", "t"] {
        wait_until("the end is recorded", SOON, || rig.exit(name) == "code 9, exited");
    }
    rig.swarm(&["clean", "--all"]).is(0, "cleaned p\ncleaned t\n", "");
}

#[test]
fn a_worker_without_its_shim_is_unsupervised_and_its_exit_unknown() {
    let rig = Rig::new();
    for name in ["killed", "ended"] {
        rig.spawn_sh(name, &[], &format!("until [ -e {name} ]; do sleep 0.02; done; exit 0"));
        let pid = rig.pid(name);
        proc::kill(rig.shim(name));
        wait_until("the loss of the shim is noticed", SOON, || rig.fine(name) == "unsupervised");
        assert!(proc::alive(pid));
        assert_eq!(rig.swarm(&["status", name]).code, Some(0));
    }
    let pid = rig.pid("killed");
    rig.swarm(&["kill", "killed"]).is(0, "killed killed\n", "");
    assert!(!proc::alive(pid));
    std::fs::write(rig.cwd().join("ended"), "").expect("written");
    rig.wait("ended");
    for name in ["killed", "ended"] {
        assert_eq!(rig.exit(name), "unknown", "an unrecorded exit never counts as success");
        assert_eq!(rig.swarm(&["status", name]).code, Some(1));
        assert!(rig.swarm(&["ls", "-l"]).ok().lines().any(|line| line.starts_with(name) && line.contains("unknown")));
    }
    rig.swarm(&["clean", "--all"]).is(0, "cleaned killed\ncleaned ended\n", "");
}

#[test]
fn a_window_ends_with_its_shim_and_a_command_that_outlives_it_is_not_started_again() {
    let rig = Rig::new();
    rig.spawn_sh("ends", &["--tmux"], "exec tail -f /dev/null");
    rig.spawn_sh("stays", &["--tmux"], "trap '' HUP; touch deaf; exec tail -f /dev/null");
    wait_until("it ignores the end of its terminal", SOON, || rig.cwd().join("deaf").exists());
    let pid = rig.pid("stays");
    for (name, state) in [("ends", "lost"), ("stays", "unsupervised")] {
        proc::kill(rig.shim(name));
        wait_until("the loss of the shim is noticed", SOON, || rig.fine(name) == state);
    }
    let shown = rig.swarm(&["recover"]).out;
    let action = |name: &str| {
        let line = shown.lines().find(|line| line.starts_with(name)).expect("a line");
        line.split_whitespace().nth(1).expect("an action").to_owned()
    };
    assert_eq!((action("ends"), action("stays")), ("start".to_owned(), "leave".to_owned()), "{shown}");
    assert!(proc::alive(pid));
    rig.swarm(&["kill", "stays"]).is(0, "killed stays\n", "");
    assert!(!proc::alive(pid));
}

#[test]
fn an_unrecorded_exit_counts_as_a_failure_for_restarts() {
    let rig = Rig::new();
    rig.spawn_sh("x", &["--restart", "on-failure"], "echo run >> runs; sleep 600");
    let runs = || std::fs::read_to_string(rig.cwd().join("runs")).unwrap_or_default().lines().count();
    wait_until("the first run", SOON, || runs() == 1);
    let pid = rig.pid("x");
    proc::kill(rig.shim("x"));
    proc::kill(pid);
    wait_until("the second run", SOON, || runs() == 2);
    assert_eq!(rig.fine("x"), "running");
}

#[test]
fn a_kill_during_the_death_of_all_keepers_holds() {
    let rig = Rig::new();
    rig.spawn_sh("x", &["--restart", "always"], "trap '' TERM; echo run >> runs; while :; do sleep 0.05; done");
    let runs = || std::fs::read_to_string(rig.cwd().join("runs")).unwrap_or_default().lines().count();
    wait_until("the first run", SOON, || runs() == 1);
    let killer = thread::spawn({
        let command = rig.command(&["kill", "x"]);
        move || run(command)
    });
    let wanted = rig.root().join("w/x.1/wanted.json");
    wait_until("the wish is on disk", SOON, || {
        std::fs::read_to_string(&wanted).is_ok_and(|text| text.contains("stopped"))
    });
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end && !killer.is_finished() {
        kill_keepers(&rig);
        thread::park_timeout(Duration::from_millis(300));
    }
    let said = killer.join().expect("joined");
    wait_until("x has stopped", SOON, || rig.swarm(&["status", "x"]).code == Some(1));
    holds_for("x stays stopped", Duration::from_millis(1500), || runs() == 1);
    assert!(said.code == Some(0) || said.err.starts_with("swarm: error: "), "{said:?}");
    assert_eq!(rig.fine("x"), "stopped");
}

#[test]
fn a_spawn_survives_the_death_of_its_supervisor() {
    let rig = Rig::new();
    rig.spawn("first", &[], &["sleep", "600"]);
    let (names, rest): (Vec<String>, Vec<String>) = ((0..12).map(|i| format!("w{i}")).collect(), Vec::new());
    let spawner = thread::spawn({
        let commands: Vec<_> = names
            .iter()
            .map(|name| rig.command(&["spawn", "--name", name, "--", "sh", "-c", "echo run; sleep 600"]))
            .collect();
        move || commands.into_iter().map(run).collect::<Vec<_>>()
    });
    while !spawner.is_finished() {
        if let Some(supervisor) = rig.keepers().0 {
            proc::kill(supervisor);
        }
        thread::park_timeout(Duration::from_millis(60));
    }
    drop(rest);
    let said = spawner.join().expect("joined");
    for (name, said) in names.iter().zip(&said) {
        let acknowledged = said.code == Some(0);
        let there = rig.names().contains(name);
        assert!(!acknowledged || there, "{name} was acknowledged but is lost: {said:?}");
        if there {
            wait_until("the worker ran", SOON, || !rig.log(name, "stdout").is_empty());
            assert_eq!(rig.log(name, "stdout"), "run\n", "{name} was started twice");
        }
    }
    let acknowledged = said.iter().filter(|said| said.code == Some(0)).count();
    assert!(acknowledged > 0, "{said:?}");
}

#[test]
fn one_of_eight_concurrent_spawns_gets_the_name() {
    // The original checks the name and adds the row in two steps, so concurrent spawns of one name may both succeed.
    let rig = Rig::new();
    let mut winners = 0;
    let children: Vec<_> = (0..8)
        .map(|i| {
            let mut command =
                rig.command(&["spawn", "--name", "x", "--", "sh", "-c", &format!("echo {i} >> ran; sleep 600")]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started")
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().expect("waited");
        if output.status.success() {
            winners += 1;
        } else {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.starts_with("swarm: error: worker 'x' already exists\nswarm: hint: "), "{said}");
            assert_eq!(said.lines().count(), 2, "{said}");
            assert_eq!(output.status.code(), Some(1));
        }
    }
    assert_eq!((winners, rig.rows().len()), (1, 1));
    wait_until("the winner runs", SOON, || rig.cwd().join("ran").exists());
    assert_eq!(std::fs::read_to_string(rig.cwd().join("ran")).expect("there").lines().count(), 1);
}

#[test]
fn eighty_concurrent_spawns_are_all_registered() {
    let rig = Rig::new();
    thread::scope(|scope| {
        let rig = &rig;
        for process in 0..8 {
            scope.spawn(move || {
                for number in 0..10 {
                    rig.spawn(&format!("w{process}-{number}"), &[], &["sleep", "600"]);
                }
            });
        }
        scope.spawn(|| (0..30).for_each(|_| assert_eq!(rig.swarm(&["ls", "--format", "json"]).code, Some(0))));
    });
    let mut names = rig.names();
    names.sort();
    let mut expected: Vec<String> = (0..80).map(|i| format!("w{}-{}", i / 10, i % 10)).collect();
    expected.sort();
    assert_eq!(names, expected);
    assert_eq!(rig.swarm(&["ls", "--format", "names", "--status", "running"]).ok().lines().count(), 80);
    let said = rig.swarm(&["kill", "--all"]);
    assert_eq!((said.code, said.out.lines().count(), said.err.as_str()), (Some(0), 80, ""));
    assert_eq!(rig.swarm(&["clean", "--all"]).ok().lines().count(), 80);
    assert_eq!(rig.rows().len(), 0);
}

#[test]
fn a_suspended_supervisor_is_named_and_reading_verbs_still_work() {
    let rig = Rig::new();
    rig.spawn("x", &[], &["sleep", "600"]);
    let (supervisor, _) = both(&rig);
    proc::signal(supervisor, Signal::STOP);
    let read = || {
        assert_eq!(rig.swarm(&["ls", "--format", "names"]).ok(), "x\n");
        assert_eq!(rig.swarm(&["status", "x"]).code, Some(0));
    };
    quick("reading", Duration::from_secs(1), || timed(read));
    quick("the refusal", Duration::from_secs(7), || {
        timed(|| {
            let cause = format!("the supervisor (pid {supervisor}, stopped) did not answer within 5 s");
            rig.swarm(&["spawn", "--name", "y", "--", "true"]).refused(1, &cause);
        })
    });
    proc::signal(supervisor, Signal::CONT);
    assert_eq!(rig.swarm(&["kill", "x"]).ok(), "killed x\n");
}

#[test]
fn a_held_registry_lock_is_named_and_reading_verbs_still_work() {
    let rig = Rig::new();
    rig.spawn("x", &[], &["true"]);
    let script = "import fcntl, os, signal\nfile = open(os.environ['SWARM_DIR'] + '/state.lock', 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\nprint('held', flush=True)\nsignal.pause()\n";
    let mut holder = rig.program("python3");
    let mut holder = holder.args(["-c", script]).stdout(Stdio::piped()).spawn().expect("started");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(holder.stdout.take().expect("piped")), &mut line)
        .expect("read");
    assert_eq!(line, "held\n");
    let pid = i32::try_from(holder.id()).expect("a pid");
    proc::signal(pid, Signal::STOP);
    quick("reading", Duration::from_secs(1), || {
        timed(|| assert_eq!(rig.swarm(&["ls", "--format", "names"]).ok(), "x\n"))
    });
    let lock = rig.root().canonicalize().expect("there").join("state.lock");
    let cause = format!("{} is locked by process {pid} (", lock.display());
    quick("the refusal", Duration::from_secs(14), || {
        let took = timed(|| {
            let said = rig.swarm(&["spawn", "--name", "y", "--", "sh", "-c", "touch ran"]);
            assert!(said.err.starts_with(&format!("swarm: error: {cause}")) && said.code == Some(1), "{said:?}");
            assert!(said.err.contains("(waited 10 s)\n"), "{said:?}");
        });
        assert!(took > Duration::from_secs(9), "{took:?}");
        took
    });
    proc::kill(pid);
    holder.wait().expect("waited");
    assert!(!rig.cwd().join("ran").exists(), "a refused spawn executed its command");
    rig.spawn("y", &[], &["true"]);
    assert_eq!(rig.names(), ["x", "y"]);
}

#[test]
fn no_process_runs_without_a_row() {
    // The original starts a process before it records it.
    let rig = Rig::new();
    for i in 0..12_u64 {
        let (name, flags) = (format!("w{i}"), if i % 3 == 0 { &["--tmux"][..] } else { &[] });
        let words = [&["spawn", "--name", &name], flags, &["--", "sleep", "600"]].concat();
        let mut child = rig.command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started");
        thread::park_timeout(Duration::from_millis(4 * i));
        proc::kill(i32::try_from(child.id()).expect("a pid"));
        kill_keepers(&rig);
        child.wait().expect("waited");
    }
    let sleepers = || {
        let is_worker = |pid: &i32| proc::alive(*pid) && proc::words(*pid).first().is_some_and(|word| word == "sleep");
        let mut pids: Vec<i32> = rig.processes().into_iter().filter(is_worker).collect();
        pids.sort_unstable();
        pids
    };
    let known = || {
        let names = rig.swarm(&["ls", "--format", "names", "--status", "running"]).out;
        let mut pids: Vec<i32> = names.lines().map(|name| rig.pid(name)).collect();
        pids.sort_unstable();
        pids
    };
    wait_until("exactly the listed workers run", SOON, || sleepers() == known());
    // Repeating the requests converges, and interrupted starts leave nothing.
    for i in 0..12 {
        let said = rig.swarm(&["spawn", "--name", &format!("w{i}"), "--", "sleep", "600"]);
        let exists = format!("swarm: error: worker 'w{i}' already exists\n");
        assert!(said.code == Some(0) || said.err.starts_with(&exists), "{said:?}");
    }
    assert_eq!(rig.names().len(), 12);
    wait_until("all twelve run", SOON, || sleepers().len() == 12 && sleepers() == known());
    assert_eq!(std::fs::read_dir(rig.root().join("w")).expect("there").count(), 12);
    assert_eq!(rig.swarm(&["kill", "--all"]).code, Some(0));
    assert!(sleepers().is_empty(), "{:?}", sleepers());
}

#[test]
fn a_window_that_ends_without_its_keepers_starts_them_and_again() {
    let rig = Rig::new();
    rig.spawn_sh("r", &["--tmux", "--restart", "always"], "echo up >> ran; exec sleep 600");
    let starts = || std::fs::read_to_string(rig.cwd().join("ran")).map_or(0, |text| text.lines().count());
    wait_until("the worker is up", SOON, || starts() == 1);
    let worker = rig.pid("r");
    let (supervisor, guard) = both(&rig);
    proc::signal(guard, Signal::STOP);
    proc::kill(supervisor);
    proc::kill(guard);
    wait_until("supervisor and guard are gone", SOON, || rig.keepers() == (None, None));
    proc::kill(worker);
    wait_until("the worker is started again", SOON, || starts() == 2);
    both(&rig);
}
