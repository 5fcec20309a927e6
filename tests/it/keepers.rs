//! Where the supervisor lives: never below a worker, and with no worker's environment, whoever starts or replaces it.

use std::path::{Path, PathBuf};

use crate::common::{Rig, SOON, proc, run, wait_until};
use crate::crash::{both, kill_keepers};

const BINARY: &str = env!("CARGO_BIN_EXE_swarm");

/// Makes a copy of the program, which counts as a newer build because its file is younger.
fn newer(rig: &Rig, name: &str) -> PathBuf {
    let dir = rig.path(name);
    std::fs::create_dir(&dir).expect("made");
    let program = dir.join("swarm");
    std::fs::copy(BINARY, &program).expect("copied");
    program
}

fn executable(pid: i32) -> PathBuf {
    std::fs::read_link(format!("/proc/{pid}/exe")).expect("alive")
}

fn ancestors(pid: i32) -> Vec<i32> {
    let parent = |pid: &i32| proc::stat(*pid, 4)?.parse().ok().filter(|parent| *parent > 0);
    std::iter::successors(Some(pid), parent).skip(1).collect()
}

/// Asserts that neither supervisor and guard nor a shim belong to a worker, by their ancestors and their environment.
#[track_caller]
fn assert_outside(rig: &Rig, workers: &[&str]) {
    let (supervisor, guard) = both(rig);
    let shims: Vec<i32> = workers.iter().map(|name| rig.shim(name)).collect();
    for pid in [supervisor, guard].into_iter().chain(shims.iter().copied()) {
        let above = ancestors(pid);
        assert!(!above.iter().any(|above| shims.contains(above)), "{:?} is below a shim: {above:?}", proc::words(pid));
        let environ = std::fs::read(format!("/proc/{pid}/environ")).expect("readable");
        let foreign = environ.split(|byte| *byte == 0).any(|entry| entry.starts_with(b"SWARM_TOKEN="));
        assert!(!foreign, "{:?} has a worker's token", proc::words(pid));
    }
}

/// Starts a worker that executes `file` each time the test makes it, and writes its exit code to `FILE.code`.
fn spawn_hands(rig: &Rig, name: &str, flags: &[&str]) {
    let script = "while :; do if [ -e todo ]; then sh ./todo > todo.out 2> todo.err; echo $? > todo.tmp; rm todo; \
                  mv todo.tmp todo.code; fi; sleep 0.02; done";
    rig.spawn_sh(name, flags, script);
}

/// Has the worker of [`spawn_hands`] run a script. Returns its exit code and its standard error.
#[track_caller]
fn by_hand(rig: &Rig, script: &str) -> (String, String) {
    let file = |name: &str| rig.cwd().join(name);
    std::fs::write(file("todo.new"), script).expect("written");
    std::fs::rename(file("todo.new"), file("todo")).expect("renamed");
    wait_until("the worker has run the script", SOON, || file("todo.code").exists());
    let code = std::fs::read_to_string(file("todo.code")).expect("there");
    std::fs::remove_file(file("todo.code")).expect("removed");
    (code.trim().to_owned(), std::fs::read_to_string(file("todo.err")).expect("there"))
}

/// Spawns a worker from inside the worker of [`spawn_hands`].
#[track_caller]
fn spawn_inside(rig: &Rig, program: &Path, name: &str) {
    let script = format!("{} spawn --name {name} -- sleep 600", program.display());
    assert_eq!(by_hand(rig, &script), ("0".to_owned(), String::new()));
}

/// Ends the worker of [`spawn_hands`], and asserts that the other workers run on.
#[track_caller]
fn assert_survive_end_of(rig: &Rig, outer: &str, others: &[&str]) {
    let pids: Vec<i32> = others.iter().map(|name| rig.pid(name)).collect();
    let keepers = both(rig);
    rig.swarm(&["kill", outer]).is(0, &format!("killed {outer}\n"), "");
    assert_eq!(both(rig), keepers, "supervisor or guard ended with the worker");
    for (name, pid) in others.iter().zip(pids) {
        assert_eq!((rig.fine(name), rig.pid(name)), ("running".to_owned(), pid), "{name}");
    }
}

#[test]
fn a_newer_program_is_executed_by_the_old_guard() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sleep", "600"]);
    rig.spawn("t", &["--tmux"], &["sleep", "600"]);
    let pids = ["a", "t"].map(|name| rig.pid(name));
    let (supervisor, guard) = both(&rig);
    let (above, new) = (ancestors(guard), newer(&rig, "new"));
    let mut command = rig.program(&new);
    command.args(["spawn", "--name", "b", "--", "sleep", "600"]).env("OF_THE_CLIENT", "1");
    run(command).ok();
    let (next, same) = both(&rig);
    assert_eq!((same, ancestors(same)), (guard, above), "another guard");
    assert_ne!(next, supervisor);
    assert_eq!((executable(guard), executable(next)), (new.clone(), new));
    assert!(!proc::has_variable(next, "OF_THE_CLIENT=1"), "the guard's environment was replaced");
    assert_eq!(["a", "t"].map(|name| rig.pid(name)), pids);
    assert_outside(&rig, &["a", "t", "b"]);
    // The guard has its new form in every respect.
    proc::kill(next);
    wait_until("another supervisor runs", SOON, || rig.keepers().0.is_some_and(|pid| pid != next));
    assert_eq!(both(&rig).1, guard);
    assert_eq!(rig.swarm(&["kill", "--all"]).code, Some(0));
}

#[test]
fn an_upgrade_from_inside_a_worker_leaves_the_others_outside() {
    let rig = Rig::new();
    spawn_hands(&rig, "outer", &[]);
    rig.spawn("other", &["--restart", "always"], &["sleep", "600"]);
    let guard = both(&rig).1;
    let new = newer(&rig, "new");
    spawn_inside(&rig, &new, "inner");
    assert_eq!((both(&rig).1, executable(guard)), (guard, new));
    assert_outside(&rig, &["outer", "other", "inner"]);
    assert_survive_end_of(&rig, "outer", &["other", "inner"]);
}

#[test]
fn a_program_that_others_may_write_is_not_executed_by_the_guard() {
    use std::os::unix::fs::PermissionsExt as _;
    let rig = Rig::new();
    spawn_hands(&rig, "outer", &[]);
    let (supervisor, guard) = both(&rig);
    let new = newer(&rig, "new");
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o777)).expect("set");
    let script = format!("{} spawn --name inner -- sleep 600", new.display());
    let (code, err) = by_hand(&rig, &script);
    let cause = format!(
        "swarm: error: the supervisor is an older build and cannot be replaced from inside worker 'outer': {} is \
         writable by other users\nswarm: hint: run 'swarm supervisor restart' outside of worker 'outer'\n",
        new.display()
    );
    assert_eq!((code.as_str(), err), ("1", cause));
    assert_eq!((both(&rig), rig.names()), ((supervisor, guard), vec!["outer".to_owned()]));
    // Outside of workers, the caller starts its own program.
    let mut command = rig.program(&new);
    command.args(["spawn", "--name", "b", "--", "sleep", "600"]);
    run(command).ok();
    assert_eq!(executable(both(&rig).1), new);
    assert_outside(&rig, &["outer", "b"]);
}

#[test]
fn a_supervisor_that_a_worker_starts_does_not_belong_to_it() {
    for flags in [&[][..], &["--tmux"]] {
        let rig = Rig::new();
        rig.spawn("other", &[], &["sleep", "600"]);
        spawn_hands(&rig, "outer", flags);
        for name in ["i1", "i2"] {
            both(&rig);
            kill_keepers(&rig);
            wait_until("supervisor and guard are gone", SOON, || rig.keepers() == (None, None));
            spawn_inside(&rig, Path::new(BINARY), name);
        }
        assert_outside(&rig, &["other", "outer", "i1", "i2"]);
        assert!(!rig.root().join("w/outer.1/ready.pipe").exists());
        assert_survive_end_of(&rig, "outer", &["other", "i1", "i2"]);
    }
}

#[test]
fn a_restart_from_inside_a_worker_keeps_the_supervisor_outside() {
    let rig = Rig::new();
    spawn_hands(&rig, "outer", &[]);
    let (supervisor, guard) = both(&rig);
    assert_eq!(by_hand(&rig, &format!("{BINARY} supervisor restart")), ("0".to_owned(), String::new()));
    assert_eq!(both(&rig).1, guard);
    assert_ne!(both(&rig).0, supervisor);
    assert_eq!(by_hand(&rig, &format!("{BINARY} supervisor stop")), ("0".to_owned(), String::new()));
    wait_until("supervisor and guard are gone", SOON, || rig.keepers() == (None, None));
    assert_eq!(by_hand(&rig, &format!("{BINARY} supervisor start")), ("0".to_owned(), String::new()));
    assert_outside(&rig, &["outer"]);
}

#[test]
fn a_stopped_shim_is_named_when_it_would_have_to_start_the_supervisor() {
    let rig = Rig::new();
    spawn_hands(&rig, "outer", &[]);
    both(&rig);
    kill_keepers(&rig);
    wait_until("supervisor and guard are gone", SOON, || rig.keepers() == (None, None));
    let shim = rig.shim("outer");
    proc::signal(shim, proc::Signal::STOP);
    wait_until("the shim stands still", SOON, || proc::is_stopped(shim));
    let (code, err) = by_hand(&rig, &format!("{BINARY} spawn --name inner -- sleep 600"));
    let cause = format!(
        "swarm: error: no supervisor can be started from inside worker 'outer': its shim (pid {shim}) is stopped\n\
         swarm: hint: run 'swarm supervisor start' outside of worker 'outer'\n"
    );
    assert_eq!((code.as_str(), err), ("1", cause));
    proc::signal(shim, proc::Signal::CONT);
    wait_until("the shim goes on", SOON, || !proc::is_stopped(shim));
    spawn_inside(&rig, Path::new(BINARY), "inner");
}
