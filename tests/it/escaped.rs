//! Regression tests for bugs that earlier tests missed.

use std::os::unix::fs::symlink;
use std::time::Duration;

use crate::common::{Rig, SOON, STOPPED_BESIDE_ONE, holds_for, proc, quick, run, timed, wait_until};
use crate::crash::{both, kill_keepers};

#[test]
fn a_worker_starts_with_three_descriptors_and_no_input() {
    let rig = Rig::new();
    let binary = env!("CARGO_BIN_EXE_swarm");
    for (name, flag) in [("p", ""), ("t", "--tmux")] {
        // Files that the caller has open must not be inherited either.
        let mut command = rig.program("sh");
        command.args(["-c", "exec 7</etc/passwd; exec \"$@\"", "sh", binary, "spawn", "--name", name]);
        command.args(Some(flag).filter(|flag| !flag.is_empty()));
        command.args([
            "--",
            "sh",
            "-c",
            "ls /proc/self/fd > fds; readlink /proc/$$/fd/0 > in; cat > got; tty >> in; true",
        ]);
        if flag.is_empty() {
            run(command).ok();
            rig.wait(name);
            assert_eq!(std::fs::read_to_string(rig.cwd().join("in")).expect("there"), "/dev/null\nnot a tty\n");
        } else {
            run(command).ok();
            wait_until("the worker has started", SOON, || rig.cwd().join("got").exists());
            assert!(std::fs::read_to_string(rig.cwd().join("in")).expect("there").starts_with("/dev/pts/"));
        }
        // The fourth descriptor is the directory that `ls` reads.
        assert_eq!(std::fs::read_to_string(rig.cwd().join("fds")).expect("there"), "0\n1\n2\n3\n", "{name}");
        std::fs::remove_file(rig.cwd().join("got")).expect("there");
    }
    for pid in rig.processes() {
        let links = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let leaked = links.filter_map(|link| std::fs::read_link(link.path()).ok()).any(|file| file.ends_with("passwd"));
        assert!(!leaked, "{:?} holds a file of the caller", proc::words(pid));
    }
}

/// Script of a worker that fails once the file `end` exists, and is restarted.
const FAILING: &str = "echo run >> runs; until [ -e end ]; do sleep 0.02; done; rm end; exit 1";

fn runs(rig: &Rig) -> usize {
    std::fs::read_to_string(rig.cwd().join("runs")).unwrap_or_default().lines().count()
}

#[test]
fn a_restart_happens_after_supervisor_and_guard_were_killed() {
    let rig = Rig::new();
    rig.spawn_sh("x", &["--restart", "on-failure"], FAILING);
    wait_until("the first run", SOON, || runs(&rig) == 1);
    both(&rig);
    wait_until("supervisor and guard are gone and their lock is free", SOON, || {
        kill_keepers(&rig);
        let lock = std::fs::File::open(rig.root().join("supervisor.lock")).expect("there");
        rig.keepers() == (None, None) && lock.try_lock().is_ok()
    });
    std::fs::write(rig.cwd().join("end"), "").expect("written");
    // No command runs from here on.
    wait_until("the second run", SOON, || runs(&rig) == 2);
    assert_eq!(rig.names(), ["x"]);
    rig.swarm(&["kill", "x"]).is(0, "killed x\n", "");
}

#[test]
fn a_restart_waits_while_the_supervisor_is_stopped_on_request() {
    let rig = Rig::new();
    rig.spawn_sh("x", &["--restart", "on-failure"], FAILING);
    wait_until("the first run", SOON, || runs(&rig) == 1);
    both(&rig);
    // 'supervisor restart' is no such stop.
    rig.swarm(&["supervisor", "restart"]).is(0, "supervisor restarted\n", "");
    kill_keepers(&rig);
    std::fs::write(rig.cwd().join("end"), "").expect("written");
    wait_until("the second run", SOON, || runs(&rig) == 2);
    rig.swarm(&["supervisor", "stop"]).is(0, STOPPED_BESIDE_ONE, "");
    std::fs::write(rig.cwd().join("end"), "").expect("written");
    wait_until("x has failed", SOON, || !rig.cwd().join("end").exists());
    holds_for("no supervisor restarts x", Duration::from_millis(1500), || rig.keepers().0.is_none() && runs(&rig) == 2);
    rig.spawn("y", &[], &["true"]);
    wait_until("the third run", SOON, || runs(&rig) == 3);
    rig.swarm(&["kill", "x"]).is(0, "killed x\n", "");
}

#[test]
fn a_restart_happens_while_supervisor_and_guard_are_being_killed() {
    for round in 0..6 {
        let rig = Rig::new();
        rig.spawn_sh("x", &["--restart", "on-failure"], FAILING);
        wait_until("the first run", SOON, || runs(&rig) == 1);
        both(&rig);
        kill_keepers(&rig);
        std::fs::write(rig.cwd().join("end"), "").expect("written");
        wait_until(&format!("the second run, in round {round}"), SOON, || runs(&rig) == 2);
    }
}

#[test]
fn every_verb_refuses_a_registry_that_is_not_a_regular_file_alike() {
    let rig = Rig::new();
    std::fs::create_dir_all(rig.root()).expect("made");
    let state = rig.root().canonicalize().expect("there").join("state.json");
    let refuses = |what: &str| {
        for words in [
            &["ls"][..],
            &["status", "x"],
            &["kill", "--all"],
            &["clean", "--all"],
            &["spawn", "--name", "x", "--", "touch", "ran"],
        ] {
            let cause =
                format!("swarm: error: {} is {what}, not a regular file\nswarm: hint: move it away", state.display());
            quick(&format!("{what} {words:?}"), Duration::from_secs(5), || {
                timed(|| {
                    let said = rig.swarm(words);
                    assert!(said.err.starts_with(&cause) && said.code == Some(1), "{words:?}: {said:?}");
                })
            });
        }
        assert!(!rig.cwd().join("ran").exists());
        assert!(
            std::fs::read_dir(rig.root().join("w")).map_or(0, Iterator::count) == 0,
            "records of a refused start stay"
        );
    };
    std::fs::create_dir(&state).expect("made");
    refuses("a directory");
    std::fs::remove_dir(&state).expect("removed");
    symlink("nowhere", &state).expect("linked");
    refuses("a symbolic link");
    std::fs::remove_file(&state).expect("removed");
    nix::unistd::mkfifo(&state, nix::sys::stat::Mode::S_IRWXU).expect("made");
    refuses("a special file");
    std::fs::remove_file(&state).expect("removed");
    rig.spawn("x", &[], &["true"]);
}

#[test]
fn a_recreated_worktree_keeps_its_recorded_base() {
    let rig = Rig::new();
    let repo = rig.repo();
    assert_eq!(rig.swarm_in(&repo, &["spawn", "--name", "x", "--worktree", "--", "true"]).code, Some(0));
    let base = rig.rows()[0]["metadata"]["swarm"]["base"].clone();
    rig.swarm(&["kill", "x", "--rm-worktree"]).is(0, "killed x\n", "");
    rig.git(&repo, &["commit", "-q", "--allow-empty", "-m", "meanwhile"]);
    assert_eq!(rig.swarm(&["respawn", "x"]).code, Some(0));
    assert_eq!(rig.rows()[0]["metadata"]["swarm"]["base"], base);
}
