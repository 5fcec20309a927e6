//! Unusual situations: large output, closed streams, interrupted commands, several commands on one worker at once,
//! foreign entries in the state directory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::common::{Rig, SOON, proc, run, skipped, wait_until};
use crate::words::pid_in;

const BINARY: &str = env!("CARGO_BIN_EXE_swarm");

#[test]
fn logs_stay_within_their_limit() {
    let rig = Rig::new();
    let script = "i=0; while [ $i -lt 40 ]; do head -c 100000 /dev/zero | tr '\\0' x | fold -w 10000; echo; i=$((i+1)); done; echo last; exec sleep 600";
    let mut command = rig.command(&["spawn", "--name", "x", "--", "sh", "-c", script]);
    command.env("SWARM_LOG_MAX_BYTES", "100000");
    run(command).ok();
    let size = || {
        let logs = std::fs::read_dir(rig.root().join("logs")).expect("there").flatten();
        logs.filter_map(|log| log.metadata().ok()).map(|meta| meta.len()).sum::<u64>()
    };
    wait_until("the log is rotated", SOON, || {
        let parts = std::fs::read_dir(rig.root().join("logs")).expect("there").count();
        parts > 2 && size() < 300_000
    });
    wait_until("the last line is kept", SOON, || rig.swarm(&["logs", "x"]).out.ends_with("x\nlast\n"));
    wait_until("all logs are within the limit again", SOON, || size() < 300_000);
    assert_eq!(rig.swarm(&["spawn", "--name", "y", "--", "true"]).code, Some(0));
    let mut command = rig.command(&["spawn", "--name", "z", "--", "true"]);
    command.env("SWARM_LOG_MAX_BYTES", "lots");
    run(command).refused(1, "invalid SWARM_LOG_MAX_BYTES 'lots': expected a number of bytes above 0");
}

#[test]
fn logs_can_be_cut_from_the_end() {
    let rig = Rig::new();
    rig.spawn_sh("p", &[], "seq 1 2000");
    rig.spawn_sh("t", &["--tmux"], "seq 1 2000");
    rig.wait("p");
    rig.wait("t");
    assert_eq!(rig.swarm(&["logs", "p", "--lines", "2"]).ok(), "1999\n2000\n");
    assert_eq!(rig.swarm(&["logs", "p"]).ok().lines().count(), 2000);
    wait_until("all of it is in the log", SOON, || rig.swarm(&["logs", "t"]).out.ends_with("2000\n"));
    let history = rig.swarm(&["logs", "t", "--history"]).ok();
    assert_eq!((history.lines().count(), history.lines().last()), (1000, Some("2000")));
    assert!(rig.swarm(&["logs", "t"]).ok().lines().count() < 100, "a screenful");
}

#[test]
fn closed_streams_harm_nothing() {
    let rig = Rig::new();
    let mut command = rig.program("sh");
    let script = "\"$0\" spawn --name x -- sh -c 'echo out; echo err >&2' <&- >&- 2>&-; \"$0\" wait x <&- 2>&-";
    command.args(["-c", script]).arg(env!("CARGO_BIN_EXE_swarm"));
    run(command).is(0, "x: exited\n", "");
    assert_eq!((rig.log("x", "stdout").as_str(), rig.log("x", "stderr").as_str()), ("out\n", "err\n"));
    assert_eq!(rig.rows().len(), 1);
}

#[test]
fn a_full_device_behind_standard_output_is_an_error() {
    let rig = Rig::new();
    rig.spawn("x", &[], &["true"]);
    let mut command = rig.program("sh");
    command.args(["-c", "\"$0\" ls > /dev/full"]).arg(env!("CARGO_BIN_EXE_swarm"));
    let said = run(command);
    assert!(
        said.code == Some(1) && said.err.starts_with("swarm: error: cannot write to standard output: No space left"),
        "{said:?}"
    );
}

#[test]
fn output_that_nobody_gets_is_an_error_for_every_verb() {
    let rig = Rig::new();
    rig.spawn("x", &[], &["true"]);
    for verb in ["ls", "--help", "--version", "ls --help", "events"] {
        for stdout in ["> /dev/full", ">&-"] {
            let mut command = rig.program("sh");
            command.args(["-c", &format!("\"$0\" {verb} {stdout}")]).arg(env!("CARGO_BIN_EXE_swarm"));
            let said = run(command);
            assert_eq!(said.code, Some(1), "{verb} {stdout}: {said:?}");
        }
    }
    assert_eq!(rig.swarm(&["--version"]).code, Some(0));
}

#[test]
fn events_of_an_unknown_worker_are_an_error() {
    let rig = Rig::new();
    rig.spawn("x", &[], &["true"]);
    rig.wait("x");
    rig.swarm(&["events", "y"]).refused(1, "worker 'y' not found");
    rig.swarm(&["clean", "x"]).ok();
    assert!(rig.swarm(&["events", "x"]).ok().contains("cleaned"), "a cleaned worker still has events");
    rig.swarm(&["events", "x", "--until", "1d"]).is(0, "", "");
}

#[test]
fn a_request_of_a_killed_command_is_carried_out() {
    let rig = Rig::new();
    // The stop is recorded, which shows when the supervisor has it.
    rig.spawn_sh("x", &["--restart", "on-failure"], "trap '' TERM; echo ready; while :; do sleep 0.1; done");
    wait_until("x is ready", SOON, || rig.log("x", "stdout") == "ready\n");
    let mut killer = rig.command(&["kill", "x"]).stdout(Stdio::null()).spawn().expect("started");
    let wanted = rig.root().join("w/x.1/wanted.json");
    wait_until("the supervisor has it", SOON, || {
        std::fs::read_to_string(&wanted).is_ok_and(|text| text.contains("stopped"))
    });
    killer.kill().expect("killed");
    killer.wait().expect("waited");
    wait_until("x is stopped", SOON, || rig.fine("x") == "stopped");
    wait_until("the row says stopped", SOON, || rig.rows()[0]["status"] == "stopped");
}

#[test]
fn concurrent_respawns_leave_one_generation() {
    let rig = Rig::new();
    rig.spawn_sh("x", &[], "echo $$ >> pids; exec sleep 600");
    let mut lives: Vec<i32> = thread::scope(|scope| {
        let rig = &rig;
        let respawn = || scope.spawn(move || pid_in(&rig.swarm(&["respawn", "x"]).ok(), "respawned", "x"));
        let all: Vec<_> = (0..6).map(|_| respawn()).collect();
        all.into_iter().map(|one| one.join().expect("joined")).collect()
    });
    let pid = rig.pid("x");
    let said = || std::fs::read_to_string(rig.cwd().join("pids")).unwrap_or_default();
    wait_until("the last one has said its pid", SOON, || said().lines().any(|line| line == pid.to_string()));
    // A worker that was ended at once may not have written its pid, but no unknown one runs.
    let alive: Vec<i32> = said().lines().filter_map(|pid| pid.parse().ok()).filter(|pid| proc::alive(*pid)).collect();
    assert_eq!(alive, [pid]);
    lives.sort_unstable();
    lives.dedup();
    assert!(lives.len() == 6 && lives.contains(&pid), "{lives:?} {pid}");
    assert_eq!((rig.rows().len(), std::fs::read_dir(rig.root().join("w")).expect("there").count()), (1, 1));
}

#[test]
fn concurrent_kill_clean_and_spawn_of_one_name_end_in_a_consistent_state() {
    let rig = Rig::new();
    thread::scope(|scope| {
        let rig = &rig;
        for verb in
            [&["spawn", "--name", "x", "--", "sleep", "600"][..], &["kill", "x"], &["clean", "x"], &["respawn", "x"]]
        {
            scope.spawn(move || {
                for _ in 0..12 {
                    let said = rig.swarm(verb);
                    assert!(said.code == Some(0) || said.err.starts_with("swarm: error: "), "{verb:?}: {said:?}");
                    assert!(!said.err.contains("panic") && !said.err.contains("internal"), "{verb:?}: {said:?}");
                }
            });
        }
    });
    rig.swarm(&["kill", "x"]);
    rig.swarm(&["clean", "x"]);
    assert_eq!(rig.names().len(), 0);
    wait_until("no worker is left", SOON, || {
        !rig.processes().into_iter().any(|pid| proc::words(pid).iter().any(|word| word == "600" || word == "__shim"))
    });
    assert_eq!(std::fs::read_dir(rig.root().join("w")).expect("there").count(), 0);
}

#[test]
fn a_respawn_survives_the_death_of_its_supervisor() {
    let rig = Rig::new();
    rig.spawn("x", &["--env", "K=V"], &["sleep", "600"]);
    let killer = thread::spawn({
        let commands: Vec<_> = (0..10).map(|_| rig.command(&["respawn", "x"])).collect();
        move || commands.into_iter().map(run).collect::<Vec<_>>()
    });
    while !killer.is_finished() {
        rig.keepers().0.into_iter().for_each(proc::kill);
        thread::park_timeout(Duration::from_millis(45));
    }
    let said = killer.join().expect("joined");
    assert!(said.iter().all(|said| said.code == Some(0) || said.err.starts_with("swarm: error: ")), "{said:?}");
    assert_eq!(rig.rows().len(), 1);
    assert_eq!(rig.rows()[0]["env"]["K"], "V");
    let sleepers = || {
        rig.processes()
            .into_iter()
            .filter(|pid| proc::alive(*pid) && proc::words(*pid).first().is_some_and(|word| word == "sleep"))
            .collect::<Vec<_>>()
    };
    wait_until("one life at most", SOON, || sleepers().len() <= 1);
    assert_eq!(rig.swarm(&["respawn", "x"]).code, Some(0));
    assert_eq!(sleepers(), [rig.pid("x")]);
}

#[test]
fn cleaning_survives_the_death_of_its_supervisor() {
    let rig = Rig::new();
    let names: Vec<String> = (0..10).map(|i| format!("w{i}")).collect();
    for name in &names {
        rig.spawn(name, &[], &["true"]);
        rig.wait(name);
    }
    let cleaner = thread::spawn({
        let commands: Vec<_> = names.iter().map(|name| rig.command(&["clean", name])).collect();
        move || commands.into_iter().map(run).collect::<Vec<_>>()
    });
    // A busy machine needs longer for a start than a kill leaves it at first.
    let mut pause = Duration::from_millis(45);
    while !cleaner.is_finished() {
        rig.keepers().0.into_iter().for_each(proc::kill);
        thread::park_timeout(pause);
        pause = pause.mul_f64(1.1);
    }
    for (name, said) in names.iter().zip(cleaner.join().expect("joined")) {
        assert_eq!((said.code, said.out), (Some(0), format!("cleaned {name}\n")), "{}", said.err);
    }
    assert_eq!(rig.names().len(), 0);
    rig.spawn("next", &[], &["true"]);
    rig.wait("next");
    rig.swarm(&["clean", "next"]).is(0, "cleaned next\n", "");
    // What a supervisor that died has left is removed in the actor of its worker, beside the verbs.
    for dir in ["w", "logs"] {
        let left = || std::fs::read_dir(rig.root().join(dir)).expect("there").count();
        wait_until("nothing is left of cleaned workers", SOON, || left() == 0);
    }
}

#[test]
fn a_time_limit_holds_for_a_worker_that_lost_its_shim() {
    let rig = Rig::new();
    rig.spawn("x", &["--timeout", "4"], &["sleep", "600"]);
    let pid = rig.pid("x");
    proc::kill(rig.shim("x"));
    wait_until("the limit ends it", SOON, || !proc::alive(pid));
    wait_until("x has ended", SOON, || rig.swarm(&["status", "x"]).code == Some(1));
    assert_eq!(rig.exit("x"), "unknown");
}

#[test]
fn a_time_limit_holds_for_each_start() {
    let rig = Rig::new();
    rig.spawn_sh("x", &["--timeout", "1", "--restart", "on-failure"], "echo run >> runs; exec sleep 600");
    let runs = || std::fs::read_to_string(rig.cwd().join("runs")).unwrap_or_default().lines().count();
    wait_until("a worker that was too long starts again", SOON, || runs() >= 2);
    rig.swarm(&["kill", "x"]).is(0, "killed x\n", "");
}

#[test]
fn foreign_entries_in_the_state_directory_are_tolerated() {
    let rig = Rig::new();
    std::fs::create_dir_all(rig.root().join("w/no-number")).expect("made");
    std::fs::create_dir_all(rig.root().join("w/empty.3")).expect("made");
    std::fs::write(rig.root().join("w/file.1"), "x").expect("written");
    std::fs::write(rig.root().join("supervisor.sock"), "x").expect("written");
    std::fs::write(rig.root().join("state.json.tmp.1.1"), "torn").expect("written");
    std::fs::write(rig.root().join("events.jsonl"), "torn\n{\"at_ms\":").expect("written");
    for name in ["x", "empty", "file"] {
        rig.spawn(name, &[], &["true"]);
        rig.wait(name);
        assert_eq!(rig.exit(name), "code 0, exited", "{name}");
    }
    assert_eq!(rig.swarm(&["events", "--json"]).code, Some(0));
    assert_eq!(rig.swarm(&["clean", "--all"]).ok(), "cleaned x\ncleaned empty\ncleaned file\n");
}

#[test]
fn an_unusable_state_directory_is_reported() {
    let rig = Rig::new();
    std::fs::write(rig.path("file"), "").expect("written");
    for place in [rig.path("file"), rig.path("file/below"), "/proc/nowhere".into()] {
        let mut command = rig.command(&["spawn", "--name", "x", "--", "touch", "ran"]);
        command.env("SWARM_DIR", &place);
        let said = run(command);
        assert!(
            said.code == Some(1) && said.err.starts_with("swarm: error: ") && said.out.is_empty(),
            "{place:?}: {said:?}"
        );
    }
    let mut command = rig.command(&["ls"]);
    command.env_remove("SWARM_DIR").env_remove("HOME");
    run(command).refused(1, "neither SWARM_DIR nor HOME is set");
    assert!(!rig.cwd().join("ran").exists());
    // A relative path is resolved in the caller's directory.
    let mut command = rig.command(&["spawn", "--name", "x", "--", "true"]);
    command.env("SWARM_DIR", "relative");
    run(command).ok();
    assert!(rig.cwd().join("relative/state.json").exists());
}

#[test]
fn events_can_be_followed() {
    let rig = Rig::new();
    rig.spawn("first", &[], &["true"]);
    rig.wait("first");
    let mut follower = rig
        .command(&["events", "--follow", "--json"])
        .stdout(Stdio::from(std::fs::File::create(rig.path("seen")).expect("made")))
        .spawn()
        .expect("started");
    let seen = || std::fs::read_to_string(rig.path("seen")).unwrap_or_default();
    wait_until("earlier events are shown", SOON, || seen().contains("\"first\""));
    rig.spawn_sh("second", &[], "exit 6");
    wait_until("later events are shown", SOON, || seen().contains("\"second\"") && seen().contains("\"code\":6"));
    follower.kill().expect("killed");
    follower.wait().expect("waited");
}

#[test]
fn init_adds_instructions_for_the_agents_of_a_project() {
    let rig = Rig::new();
    rig.swarm(&["init", "--dry-run"]).is(0, "Would create AGENTS.md with swarm agent instructions\n", "");
    assert!(!rig.cwd().join("AGENTS.md").exists());
    rig.swarm(&["init"]).is(0, "Created AGENTS.md\n", "");
    let text = std::fs::read_to_string(rig.cwd().join("AGENTS.md")).expect("there");
    assert!(text.contains("Process Management (swarm)"));
    let again = rig.swarm(&["init"]);
    assert!(
        again.code == Some(0)
            && format!("{}{}", again.out, again.err).contains("swarm: AGENTS.md already contains swarm instructions"),
        "{again:?}"
    );
    let rig = Rig::new();
    std::fs::write(rig.cwd().join("CLAUDE.md"), "# Mine\n\nkept\n").expect("written");
    rig.swarm(&["init"]).is(0, "Added swarm instructions to CLAUDE.md\n", "");
    let text = std::fs::read_to_string(rig.cwd().join("CLAUDE.md")).expect("there");
    assert!(text.starts_with("# Mine\n\nkept\n") && text.contains("Process Management (swarm)"));
    rig.swarm(&["init", "--force"]).is(0, "Updated swarm instructions in CLAUDE.md\n", "");
    assert_eq!(std::fs::read_to_string(rig.cwd().join("CLAUDE.md")).expect("there"), text);
}

#[test]
fn supervisors_start_and_waits_end_although_nothing_can_be_watched() {
    let rig = Rig::new();
    // In a user namespace of its own, so that nothing else lacks what is used up.
    let script = format!(
        "echo 0 > /proc/sys/user/max_inotify_instances || exit 77
         {BINARY} spawn --name x -- sleep 600 && {BINARY} ls --format names && {BINARY} kill x && {BINARY} supervisor restart \
         && {BINARY} clean x \
         && {BINARY} spawn --name w --restart on-failure -- sh -c '[ -e again ] || {{ touch again; exit 1; }}' \
         && {BINARY} wait w --exit-code && {BINARY} supervisor stop"
    );
    let mut command = rig.program("unshare");
    command.args(["--user", "--map-root-user", "--", "sh", "-c", &script]);
    let said = run(command);
    if said.err.starts_with("unshare: ") || said.code == Some(77) {
        return skipped("limits of inotify: no namespace can be made here");
    }
    assert!(said.code == Some(0) && said.out.contains("killed x\n") && said.out.contains("cleaned x\n"), "{said:?}");
    let log = std::fs::read_to_string(rig.root().join("supervisor.log")).expect("there");
    assert!(log.contains("fs.inotify.max_user_instances"), "{log}");
}

#[test]
fn a_deleted_socket_comes_back_and_so_does_the_directory_of_the_logs() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sleep", "600"]);
    let (supervisor, _) = rig.keepers();
    let root = rig.root();
    let sockets = || {
        let files = std::fs::read_dir(&root).expect("readable").map(|file| file.expect("readable").path());
        files.filter(|file| file.extension().is_some_and(|end| end == "sock")).collect::<Vec<_>>()
    };
    let socket = sockets().pop().expect("a socket");
    std::fs::remove_file(&socket).expect("removed");
    wait_until("there is a socket again", SOON, || socket.exists());
    std::fs::remove_dir_all(root.join("logs")).expect("removed");
    rig.spawn("b", &[], &["echo", "hello"]);
    rig.wait("b");
    assert_eq!((rig.log("b", "stdout"), rig.keepers().0), ("hello\n".to_owned(), supervisor));
    rig.swarm(&["kill", "a"]).is(0, "killed a\n", "");
}

#[test]
fn no_supervisor_starts_where_others_can_write() {
    let rig = Rig::new();
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    fs::create_dir(rig.root()).expect("made");
    set(&rig.root(), 0o777);
    let root = rig.root().display().to_string();
    let cause = format!("no supervisor is started: {root} is writable by other users (mode 0777)");
    let refused = rig.swarm(&["spawn", "--name", "x", "--", "true"]);
    assert!(refused.err.contains(&format!("run 'chmod go-w {root}'")), "{refused:?}");
    refused.refused(1, &cause);
    rig.swarm(&["supervisor", "start"]).refused(1, &cause);
    rig.swarm(&["ls"]).ok();
    assert_eq!(fs::read_dir(rig.root()).expect("there").count(), 0, "nothing is written");
    // As with umask 002.
    set(&rig.root(), 0o775);
    rig.spawn("x", &[], &["true"]);
    rig.wait("x");
    rig.swarm(&["supervisor", "stop"]).ok();
    let rows = rig.root().join("state.json");
    set(&rows, 0o666);
    let cause = format!("no supervisor is started: {} is writable by other users (mode 0666)", rows.display());
    rig.swarm(&["respawn", "x"]).refused(1, &cause);
    assert_eq!(rig.names(), ["x"], "who looks sees it");
}
