//! Where the supervisor lives: never below a worker, and with no worker's environment, whoever starts or replaces it.
//! Whose attributes a worker has: its caller's. What commands do that wait while the supervisor ends.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Rig, SOON, STOPPED_BESIDE_ONE, proc, quick, run, skipped, timed, wait_until};
use crate::crash::{both, kill_keepers};

const BINARY: &str = env!("CARGO_BIN_EXE_swarm");

/// Makes a copy of the program, which counts as a newer build because its file is younger.
pub fn newer(rig: &Rig, name: &str) -> PathBuf {
    let dir = rig.path(name);
    std::fs::create_dir(&dir).expect("made");
    let program = dir.join("swarm");
    std::fs::copy(BINARY, &program).expect("copied");
    program
}

/// Returns the program that a process executes.
pub fn executable(pid: i32) -> PathBuf {
    std::fs::read_link(format!("/proc/{pid}/exe")).expect("alive")
}

fn ancestors(pid: i32) -> Vec<i32> {
    let parent = |pid: &i32| proc::stat(*pid, 4)?.parse().ok().filter(|parent| *parent > 0);
    std::iter::successors(Some(pid), parent).skip(1).collect()
}

/// Asserts that neither supervisor and guard nor a shim belong to a worker, by their ancestors and their environment.
#[track_caller]
pub fn assert_outside(rig: &Rig, workers: &[&str]) {
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

/// Executes the file `todo` each time the test makes it, and writes its exit code to `todo.code`.
pub const HANDS: &str = "while :; do if [ -e todo ]; then sh ./todo > todo.out 2> todo.err; echo $? > todo.tmp; rm todo; \
                         mv todo.tmp todo.code; fi; sleep 0.02; done";

pub fn spawn_hands(rig: &Rig, name: &str, flags: &[&str]) {
    rig.spawn_sh(name, flags, HANDS);
}

/// Has the worker of [`spawn_hands`] run a script. Returns its exit code and its standard error.
#[track_caller]
pub fn by_hand(rig: &Rig, script: &str) -> (String, String) {
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
pub fn spawn_inside(rig: &Rig, program: &Path, name: &str) {
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

/// Returns the signals that a process blocks and ignores, as bits. Signals of the C library's own are left out.
fn signals_of(pid: i32) -> Vec<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("alive");
    let fields = ["SigBlk:", "SigIgn:"].map(|name| status.lines().find_map(|line| line.strip_prefix(name)));
    let bits = |field: Option<&str>| u64::from_str_radix(field.expect("a field").trim(), 16).expect("a number");
    fields.map(|field| bits(field) & 0x7fff_ffff).to_vec()
}

#[test]
fn a_supervisor_that_a_worker_starts_does_not_belong_to_it() {
    for flags in [&[][..], &["--tmux"]] {
        let rig = Rig::new();
        rig.spawn("other", &[], &["sleep", "600"]);
        let (supervisor, guard) = both(&rig);
        let usual = (signals_of(supervisor), signals_of(guard));
        spawn_hands(&rig, "outer", flags);
        for name in ["i1", "i2"] {
            both(&rig);
            kill_keepers(&rig);
            wait_until("supervisor and guard are gone", SOON, || rig.keepers() == (None, None));
            spawn_inside(&rig, Path::new(BINARY), name);
        }
        assert_outside(&rig, &["other", "outer", "i1", "i2"]);
        let (supervisor, guard) = both(&rig);
        assert_eq!((signals_of(supervisor), signals_of(guard)), usual, "{flags:?}");
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

#[test]
fn a_worker_has_the_attributes_of_its_caller_and_not_those_of_the_first_one() {
    let rig = Rig::new();
    let look = "grep Cpus_allowed_list /proc/self/status; cat /proc/self/oom_score_adj";
    let caller = |name: &str, before: &str| {
        let mut command = rig.program("sh");
        command.args(["-c", &format!("{before} exec \"$@\""), "sh", BINARY, "spawn", "--name", name, "--"]);
        command.args(["sh", "-c", look]);
        run(command).ok();
        rig.wait(name);
        rig.log(name, "stdout")
    };
    // A process may always raise its own score.
    let raise = "echo 900 > /proc/self/oom_score_adj; taskset -p -c 0 $$ > taskset.out || exit 9;";
    let first = caller("first", raise);
    assert_eq!(first, "Cpus_allowed_list:\t0\n900\n");
    let own = |file: &str| std::fs::read_to_string(format!("/proc/self/{file}")).expect("readable");
    let cpus = own("status").lines().find(|line| line.starts_with("Cpus_allowed_list")).expect("a line").to_owned();
    assert_eq!(caller("second", ""), format!("{cpus}\n{}", own("oom_score_adj")));
    assert_eq!(caller("third", raise), first);
}

#[test]
fn a_worker_has_the_scheduling_policy_and_the_io_priority_of_its_caller() {
    let rig = Rig::new();
    let look = "ionice -p $$; exec cut -d' ' -f41 /proc/self/stat";
    let caller = |name: &str, before: &str, flags: &[&str]| {
        let mut command = rig.program("sh");
        command.args(["-c", &format!("{before} exec \"$@\""), "sh", BINARY, "spawn", "--name", name]).args(flags);
        command.args(["--", "sh", "-c", &format!("({look}) > {name}.seen")]);
        run(command).ok();
        rig.wait(name);
        std::fs::read_to_string(rig.cwd().join(format!("{name}.seen"))).expect("written")
    };
    // Each of them is less important than the default, so that everybody may set it.
    let batch = "chrt -b -p 0 $$ && ionice -c 2 -n 7 -p $$ || exit 9;";
    // The first caller starts the supervisor.
    assert_eq!(caller("first", batch, &[]), "best-effort: prio 7\n3\n");
    let mut own = rig.program("sh");
    own.args(["-c", look]);
    assert_eq!(caller("second", "", &[]), run(own).ok());
    assert_eq!(caller("window", batch, &["--tmux"]), "best-effort: prio 7\n3\n");
    assert_eq!(caller("third", "chrt -i -p 0 $$ && ionice -c 3 -p $$ || exit 9;", &[]), "idle\n5\n");
}

#[test]
fn the_log_of_a_long_lived_guard_stays_within_its_limit() {
    const LIMIT_BYTES: u64 = 8 << 20;
    let rig = Rig::new();
    let (log, aside) = (rig.root().join("supervisor.log"), rig.root().join("supervisor.log.1"));
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len());
    let inode = |path: &Path| std::fs::metadata(path).map(|meta| std::os::unix::fs::MetadataExt::ino(&meta)).ok();
    let stderr = |pid: i32| inode(Path::new(&format!("/proc/{pid}/fd/2")));
    let mut command = rig.command(&["spawn", "--name", "a", "--", "sleep", "600"]);
    command.env("SWARM_LOG", "trace");
    run(command).ok();
    let guard = both(&rig).1;
    // Twice: what was moved aside once must not grow either.
    for round in 0..2 {
        let file = std::fs::OpenOptions::new().append(true).open(&log).expect("opened");
        file.set_len(LIMIT_BYTES + 1).expect("written");
        // The supervisor logs its own start; it and its guard have one log.
        let killed = both(&rig).0;
        proc::kill(killed);
        wait_until("another supervisor has a new log", SOON, || {
            let has_log = |pid: i32| proc::alive(pid) && stderr(pid).is_some() && stderr(pid) == inode(&log);
            rig.keepers().0.is_some_and(|pid| pid != killed && has_log(pid))
        });
        assert_eq!(both(&rig).1, guard, "the guard lives long");
        assert_eq!(stderr(guard), inode(&log), "round {round}");
        assert!(size(&log) < LIMIT_BYTES && size(&aside) <= LIMIT_BYTES + 65536, "{} {}", size(&log), size(&aside));
    }
}

#[test]
fn a_tmux_server_has_the_umask_of_the_caller() {
    let rig = Rig::new();
    let mut command = rig.program("sh");
    let words = ["-c", "umask 027; exec \"$@\"", "sh", BINARY, "spawn", "--name", "t", "--tmux", "--", "sleep", "600"];
    command.args(words);
    run(command).ok();
    let out = rig.path("mask");
    let script = format!("umask > {0}.new; mv {0}.new {0}", out.display());
    assert_eq!(rig.tmux(&["new-session", "-d", "-s", "mine", &script]).code, Some(0));
    wait_until("the window has told its umask", SOON, || out.exists());
    assert_eq!(std::fs::read_to_string(out).expect("there"), "0027\n");
}

#[test]
fn a_caller_in_another_namespace_may_look_and_stop_but_start_nothing() {
    let rig = Rig::new();
    rig.spawn("x", &[], &["sleep", "600"]);
    let elsewhere = |words: &[&str]| {
        let mut command = rig.program("unshare");
        command.args(["--mount", "--"]).args(words);
        run(command)
    };
    if elsewhere(&["true"]).code != Some(0) {
        return skipped("callers in other namespaces: no namespace can be made here");
    }
    let cause = "this command runs in another mount namespace than the supervisor, where its work would start";
    rig.spawn("over", &[], &["true"]);
    rig.wait("over");
    for words in [&["spawn", "--name", "y", "--", "true"][..], &["respawn", "x"], &["clean", "over"]] {
        elsewhere(&[&[BINARY], words].concat()).refused(1, cause);
    }
    // What a caller says about its namespaces is no proof.
    let script = r#"
import json, os, socket
caller = {"request": "r", "cwd": "/", "environment": [], "umask": 18, "rlimits": [], "nice": 0}
def post(path, **members):
    body = json.dumps({"caller": caller, **members})
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(os.environ["SWARM_DIR"] + "/supervisor.sock")
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        print(b"".join(iter(lambda: s.recv(4096), b"")).decode())
post("/v1/clean", scope={"names": ["over"]}, rm_worktree=True, force_dirty=False)
post("/v1/nudges", worker="x", order="resume")
"#;
    let said = elsewhere(&["python3", "-c", script]).ok();
    assert!(said.matches(cause).count() == 2 && rig.names().contains(&"over".to_owned()), "{said}");
    rig.swarm(&["clean", "over"]).ok();
    assert_eq!(elsewhere(&[BINARY, "ls", "--format", "names"]).ok(), "x\n");
    elsewhere(&[BINARY, "kill", "x"]).is(0, "killed x\n", "");
}

#[test]
fn no_supervisor_starts_beside_a_worker_that_it_cannot_see() {
    let rig = Rig::new();
    rig.spawn("x", &["--restart", "always"], &["sleep", "600"]);
    let pid = rig.pid("x");
    rig.swarm(&["supervisor", "stop"]).ok();
    let inside = |words: &[&str]| {
        let mut command = rig.program("unshare");
        command.args(["-pf", "--kill-child", "--mount-proc", BINARY]).args(words);
        run(command)
    };
    if inside(&["--version"]).code != Some(0) {
        return skipped("workers in other process namespaces: no namespace can be made here");
    }
    for words in [&["supervisor", "start"][..], &["kill", "x"]] {
        let said = inside(words);
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.err.contains("worker 'x' runs in another process namespace"), "{said:?}");
    }
    assert_eq!((rig.pid("x"), proc::alive(pid)), (pid, true));
    rig.swarm(&["kill", "x"]).is(0, "killed x\n", "");
}

#[test]
fn a_newer_program_in_another_namespace_does_not_move_the_supervisor_there() {
    use std::os::unix::fs::PermissionsExt as _;
    let rig = Rig::new();
    let place = newer(&rig, "place");
    let mut command = rig.program(&place);
    command.args(["spawn", "--name", "x", "--", "sleep", "600"]);
    run(command).ok();
    let new = newer(&rig, "new");
    let mode = |mode| std::fs::set_permissions(&new, std::fs::Permissions::from_mode(mode)).expect("set");
    let with = |program: &Path, words: &[&str]| {
        let mut command = rig.program("unshare");
        command.args(["--mount", "--"]).arg(program).args(words);
        run(command)
    };
    let elsewhere = |words: &[&str]| with(&new, words);
    if elsewhere(&["--version"]).code != Some(0) {
        return skipped("upgrades from other namespaces: no namespace can be made here");
    }
    let namespace = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).expect("alive");
    let (supervisor, guard) = both(&rig);
    let home = namespace(supervisor);
    // The guard refuses to execute it: others may write it, or the caller chose its place.
    for (bits, why, words, what) in [
        (0o777, "is writable by other users", &["kill", "x"][..], "is an older build and cannot be replaced"),
        (0o777, "is writable by other users", &["supervisor", "restart"], "cannot be restarted"),
        (0o755, "is not where its own program is", &["kill", "x"], "is an older build and cannot be replaced"),
        (0o755, "is not where its own program is", &["supervisor", "restart"], "cannot be restarted"),
    ] {
        mode(bits);
        let cause = format!("the supervisor {what} from another mount namespace: {} {why}", new.display());
        let said = elsewhere(words).refused(1, &cause);
        assert!(said.err.contains("hint: run 'swarm supervisor restart' where the supervisor runs\n"), "{said:?}");
        assert_eq!((both(&rig), rig.fine("x")), ((supervisor, guard), "running".to_owned()));
    }
    // It is installed where the supervisor's program was. The guard executes it, and stays where it is.
    std::fs::rename(&new, &place).expect("renamed");
    with(&place, &["kill", "x"]).is(0, "killed x\n", "");
    let (next, same) = both(&rig);
    assert_ne!(next, supervisor);
    assert_eq!((same, executable(next), namespace(next)), (guard, place.clone(), home));
    assert_eq!(with(&place, &["supervisor", "restart"]).code, Some(0));
    assert_eq!(both(&rig).1, guard);
}

#[test]
fn a_wait_beside_a_stopped_supervisor_ends_at_its_own_limit() {
    let rig = Rig::new();
    rig.spawn("x", &["--restart", "always"], &["false"]);
    wait_until("the worker waits for its restart", SOON, || rig.fine("x") == "backoff");
    let supervisor = both(&rig).0;
    proc::signal(supervisor, proc::Signal::STOP);
    wait_until("the supervisor stands still", SOON, || proc::is_stopped(supervisor));
    quick("wait", Duration::from_secs(3), || {
        timed(|| rig.swarm(&["wait", "x", "--timeout", "1s"]).is(1, "x: still running (timeout)\n", ""))
    });
    proc::signal(supervisor, proc::Signal::CONT);
}

/// Reports whether a process has a descriptor of the other one.
fn watches(pid: i32, other: i32) -> bool {
    let infos = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let text = |info: std::fs::DirEntry| std::fs::read_to_string(info.path()).unwrap_or_default();
    infos.map(text).any(|info| info.lines().any(|line| line == format!("Pid:\t{other}")))
}

/// Starts a command that waits. Its standard error goes to the file `err`.
fn begin(rig: &Rig, words: &[&str]) -> Child {
    let err = std::fs::File::create(rig.path("err")).expect("made");
    rig.command(words).stdout(Stdio::null()).stderr(err).spawn().expect("started")
}

/// Asserts that a command of [`begin`] ends because the supervisor was stopped.
#[track_caller]
fn assert_told_of_the_stop(rig: &Rig, mut child: Child) {
    let pid = i32::try_from(child.id()).expect("a pid");
    let ended = proc::wait_end(pid, SOON);
    let _ = child.kill();
    let code = child.wait().expect("waited").code();
    assert!(ended, "the command still waits");
    let err = std::fs::read_to_string(rig.path("err")).expect("there");
    let words = "swarm: error: the supervisor was stopped, and nothing goes on without it\n\
                 swarm: hint: run 'swarm supervisor start', then this command again\n";
    assert_eq!((code, err.as_str()), (Some(1), words));
}

#[test]
fn waiting_for_a_restart_ends_when_the_supervisor_is_stopped() {
    let rig = Rig::new();
    let script = "until [ -e end ]; do sleep 0.02; done; exit 1";
    rig.spawn_sh("x", &["--restart", "on-failure"], script);
    rig.swarm(&["supervisor", "stop"]).is(0, STOPPED_BESIDE_ONE, "");
    let child = begin(&rig, &["wait", "x"]);
    std::fs::write(rig.cwd().join("end"), "").expect("written");
    assert_told_of_the_stop(&rig, child);
}

#[test]
fn waiting_for_a_landing_starts_a_lost_supervisor_and_ends_when_it_is_stopped() {
    let rig = Rig::new();
    let repo = rig.repo();
    let words = ["spawn", "--name", "x", "--worktree", "--merge", "--", "sleep", "600"];
    assert_eq!(rig.swarm_in(&repo, &words).code, Some(0));
    let err = std::fs::File::create(rig.path("err")).expect("made");
    let mut command = rig.command(&["merge", "wait"]);
    let child = command.current_dir(&repo).stdout(Stdio::null()).stderr(err).spawn().expect("started");
    let pid = i32::try_from(child.id()).expect("a pid");
    let (supervisor, _) = both(&rig);
    // A descriptor of the supervisor: the command watches it.
    wait_until("the command watches the supervisor", SOON, || watches(pid, supervisor));
    kill_keepers(&rig);
    wait_until("another supervisor runs", SOON, || rig.keepers().0.is_some_and(|pid| pid != supervisor));
    let next = both(&rig).0;
    wait_until("the command watches the next one", SOON, || watches(pid, next));
    rig.swarm(&["supervisor", "stop"]).is(0, STOPPED_BESIDE_ONE, "");
    assert_told_of_the_stop(&rig, child);
}

#[test]
fn wait_answers_when_the_end_is_in_the_events() {
    let rig = Rig::new();
    rig.spawn_sh("x", &[], "until [ -e end ]; do sleep 0.02; done");
    let (supervisor, _) = both(&rig);
    let mut child = begin(&rig, &["wait", "x"]);
    let pid = i32::try_from(child.id()).expect("a pid");
    let worker = rig.pid("x");
    let shim = rig.shim("x");
    wait_until("the command watches the worker", SOON, || watches(pid, worker) || watches(pid, shim));
    proc::signal(supervisor, proc::Signal::STOP);
    wait_until("the supervisor stands still", SOON, || proc::is_stopped(supervisor));
    let began = Instant::now();
    std::fs::write(rig.cwd().join("end"), "").expect("written");
    // Two seconds are the limit: a supervisor that does nothing delays the answer no longer.
    let early = proc::wait_end(pid, Duration::from_millis(1500)) && began.elapsed() < Duration::from_secs(2);
    proc::signal(supervisor, proc::Signal::CONT);
    assert!(!early, "wait answered before the end was in the events");
    assert!(proc::wait_end(pid, SOON), "wait did not answer");
    assert_eq!(child.wait().expect("waited").code(), Some(0));
}
