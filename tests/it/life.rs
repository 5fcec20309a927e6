//! Life of a worker from its start to the exit record: what it inherits, what is recorded, and when it restarts.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use crate::common::{Rig, SOON, holds_for, proc, run, skipped, wait_until};

/// Flags for a detached worker and for one in a window.
const PLACES: [&[&str]; 2] = [&[], &["--tmux"]];

#[test]
fn exit_codes_and_signals_are_recorded_for_processes_and_windows() {
    let rig = Rig::new();
    for (place, flags) in ["p", "t"].iter().zip(PLACES) {
        for (case, script, exit) in [
            ("zero", "exit 0", "code 0, exited"),
            ("seven", "exit 7", "code 7, exited"),
            ("most", "exit 255", "code 255, exited"),
            ("shot", "kill -KILL $$", "signal SIGKILL, exited"),
            ("told", "kill -TERM $$", "signal SIGTERM, exited"),
            // Real-time signals have no names.
            ("real-time", "kill -40 $$", "signal SIG40, exited"),
        ] {
            let name = format!("{place}-{case}");
            rig.spawn_sh(&name, flags, script);
            rig.wait(&name);
            assert_eq!(rig.exit(&name), exit, "{name}");
            assert_eq!(rig.fine(&name), "exited", "{name}");
        }
        let name = format!("{place}-killed");
        rig.spawn(&name, flags, &["sleep", "600"]);
        rig.swarm(&["kill", &name]).ok();
        let exit = rig.exit(&name);
        assert!(["signal SIGTERM, stopped", "signal SIGHUP, stopped"].contains(&exit.as_str()), "{exit}");
        assert_eq!(rig.fine(&name), "stopped");
    }
}

#[test]
fn a_tree_is_ended_completely_if_one_of_it_dies_of_a_real_time_signal() {
    let rig = Rig::new();
    // One descendant dies of signal 40 when it is told to end; the other ignores that and must be killed.
    let script = "(trap 'kill -40 $(sh -c \"echo \\$PPID\")' TERM; while :; do sleep 0.1; done) & \
                  (trap '' TERM; echo $(sh -c 'echo $PPID') > stubborn; while :; do sleep 1; done) & \
                  while test ! -s stubborn; do sleep 0.05; done; exit 0";
    rig.spawn_sh("w", &[], script);
    rig.wait("w");
    assert_eq!(rig.exit("w"), "code 0, exited");
    let stubborn = std::fs::read_to_string(rig.cwd().join("stubborn")).expect("written");
    assert!(!proc::alive(stubborn.trim().parse().expect("a pid")), "a process of the tree is left");
}

#[test]
fn output_is_on_disk_and_outlives_the_window() {
    let rig = Rig::new();
    rig.spawn_sh("p", &[], "echo to-out; echo to-err >&2; printf '\\000\\033[31m\\377'");
    rig.spawn_sh("t", &["--tmux"], "echo from-the-window; echo error-of-window >&2");
    rig.wait("p");
    rig.wait("t");
    let bytes = std::fs::read(rig.root().join("logs/p.stdout.log")).expect("there");
    assert_eq!(bytes, b"to-out\n\0\x1b[31m\xff");
    assert_eq!(rig.log("p", "stderr"), "to-err\n");
    wait_until("the window's output is in its log", SOON, || rig.log("t", "tmux").contains("error-of-window"));
    assert!(rig.log("t", "tmux").contains("from-the-window"));
    assert_eq!(rig.tmux(&["list-windows", "-a"]).code, Some(1), "the window is gone and the server with it");
    let said = rig.swarm(&["logs", "t"]);
    assert!(said.code == Some(0) && said.out.contains("from-the-window\n"), "{said:?}");
    rig.swarm(&["logs", "p", "--stderr"]).is(0, "to-err\n", "");
    assert_eq!(rig.swarm(&["logs", "p"]).err, "to-err\n");
    for log in ["p.stdout", "p.stderr", "t.tmux"] {
        let mode = std::fs::metadata(rig.root().join(format!("logs/{log}.log"))).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{log}");
    }
}

#[test]
fn logs_follow_until_the_worker_has_ended() {
    let rig = Rig::new();
    rig.spawn_sh("x", &[], "echo one; until [ -e go ]; do sleep 0.01; done; echo two; echo three >&2");
    let follower = std::thread::spawn({
        let command = rig.command(&["logs", "x", "--follow"]);
        move || run(command)
    });
    wait_until("the first line is written", SOON, || rig.log("x", "stdout") == "one\n");
    std::fs::write(rig.cwd().join("go"), "").expect("written");
    follower.join().expect("joined").is(0, "one\ntwo\n", "three\n");
    rig.swarm(&["logs", "nobody"]).is(1, "", "swarm: no worker named 'nobody'\n");
}

#[test]
fn logs_follow_a_worker_that_waits_for_its_restart_only_as_long_as_a_supervisor_may_start_it() {
    let rig = Rig::new();
    rig.spawn_sh(
        "x",
        &["--restart", "always"],
        ": >> runs; echo $(($(wc -l < runs) + 1)) >> runs; cat runs | tail -n 1; [ -e go ] && exec sleep 600; exit 1",
    );
    wait_until("the worker waits for its restart", SOON, || rig.fine("x") == "backoff");
    rig.swarm(&["supervisor", "stop"]).ok();
    let said = rig.swarm(&["logs", "x", "--follow"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(
        said.err.starts_with("swarm: error: the supervisor was stopped") && said.out.starts_with("1\n"),
        "{said:?}"
    );
    // A killed one is started again, and the output goes on. The restart may be due at once, before the kill.
    std::fs::write(rig.cwd().join("go"), "").expect("written");
    rig.swarm(&["supervisor", "start"]).ok();
    rig.kill_keepers();
    let follower = std::thread::spawn({
        let command = rig.command(&["logs", "x", "--follow"]);
        move || run(command)
    });
    wait_until("the worker runs again", SOON, || rig.fine("x") == "running");
    rig.swarm(&["kill", "x"]).ok();
    let said = follower.join().expect("joined");
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
}

#[test]
fn a_time_limit_ends_the_worker() {
    let rig = Rig::new();
    rig.spawn("p", &["--timeout", "1"], &["sleep", "600"]);
    rig.spawn("t", &["--timeout", "1s", "--tmux"], &["sleep", "600"]);
    rig.spawn("quick", &["--timeout", "1h"], &["true"]);
    rig.swarm(&["wait", "p", "--timeout", "10"]).is(0, "p: exited\n", "");
    rig.swarm(&["wait", "t", "--timeout", "10"]).is(0, "t: exited\n", "");
    assert_eq!(rig.exit("p"), "signal SIGTERM, timeout");
    assert!(rig.exit("t").ends_with(", timeout"), "{}", rig.exit("t"));
    rig.wait("quick");
    assert_eq!(rig.exit("quick"), "code 0, exited");
    for wrong in ["0", "-1", "soon"] {
        assert_eq!(
            rig.swarm(&["spawn", "--name", "w", &format!("--timeout={wrong}"), "--", "true"]).code,
            Some(2),
            "{wrong}"
        );
    }
}

#[test]
fn failures_are_restarted_until_success() {
    let rig = Rig::new();
    let script = "echo run >> runs.$0; [ $(wc -l < runs.$0) -ge 2 ]";
    rig.spawn("on-failure", &["--restart", "on-failure"], &["sh", "-c", script, "a"]);
    rig.spawn("never", &["--restart", "never"], &["sh", "-c", script, "b"]);
    rig.spawn("fine", &["--restart", "on-failure"], &["true"]);
    // One wait covers all restarts.
    rig.wait("on-failure");
    let runs = |file: &str| std::fs::read_to_string(rig.cwd().join(file)).unwrap_or_default().lines().count();
    assert_eq!(runs("runs.a"), 2);
    assert_eq!(
        (rig.exit("on-failure").as_str(), rig.view("on-failure")["restarts"].as_u64()),
        ("code 0, exited", Some(1))
    );
    assert_eq!((runs("runs.b"), rig.exit("never").as_str()), (1, "code 1, exited"));
    assert_eq!((rig.fine("fine").as_str(), rig.view("fine")["restarts"].as_u64()), ("exited", Some(0)));
    assert_eq!(rig.names().len(), 3);
}

#[test]
fn a_worker_killed_before_a_restart_stays_stopped() {
    let rig = Rig::new();
    rig.spawn_sh("x", &["--restart", "always"], "echo run >> runs");
    wait_until("x waits for its next start", SOON, || rig.fine("x") == "backoff");
    rig.swarm(&["kill", "x"]).is(0, "killed x\n", "");
    let runs = std::fs::read(rig.cwd().join("runs")).expect("there");
    holds_for("x stays stopped", Duration::from_millis(1500), || {
        std::fs::read(rig.cwd().join("runs")).is_ok_and(|now| now == runs)
    });
    assert_eq!(rig.swarm(&["status", "x"]).code, Some(1));
    rig.swarm(&["clean", "x"]).is(0, "cleaned x\n", "");
}

#[test]
fn the_environment_is_the_callers_without_misleading_variables() {
    let rig = Rig::new();
    let script = "env | sort > env.$0";
    for (name, flags) in ["p", "t"].iter().zip(PLACES) {
        let mut words = vec!["spawn", "--name", name, "--env", "GIVEN=1=2", "--env", "OVER=new"];
        words.extend(flags);
        words.extend(["--", "sh", "-c", script, name]);
        let mut command = rig.command(&words);
        command.env("MINE", "a b\n$c").env("OVER", "old").env("TERM", "outer").env("SWARM_LOG", "info");
        for (key, value) in [("GIT_DIR", "/x"), ("GIT_INDEX_FILE", "/y"), ("GIT_WORK_TREE", "/z")] {
            command.env(key, value);
        }
        // A worker that starts another one has variables of its own task.
        for key in ["SWARM_RECOVERY", "SWARM_RUN", "SWARM_WORKSTREAM", "SWARM_PROMPT", "SWARM_FLOW"] {
            command.env(key, "of the caller");
        }
        if flags.is_empty() {
            command.env("TMUX", "/nowhere/socket,1,0").env("TMUX_PANE", "%9");
        }
        run(command).ok();
        rig.wait(name);
        let text = std::fs::read_to_string(rig.cwd().join(format!("env.{name}"))).expect("there");
        let has = |line: &str| text.lines().any(|at| at == line);
        assert!(has("MINE=a b") && has("$c") && has("GIVEN=1=2") && has("OVER=new"), "{text}");
        assert!(
            has(&format!("HOME={}", rig.path("home").display())) && has(&format!("PWD={}", rig.cwd().display())),
            "{text}"
        );
        let set = |key: &str| text.lines().any(|at| at.starts_with(&format!("{key}=")));
        assert!(set("TMUX_TMPDIR"), "{text}");
        assert!(!set("GIT_DIR") && !set("GIT_INDEX_FILE") && !set("GIT_WORK_TREE"), "{text}");
        assert!(!text.contains("of the caller"), "{text}");
        if flags.is_empty() {
            assert!(!set("TMUX") && !set("TMUX_PANE") && has("TERM=outer"), "{text}");
        } else {
            assert!(set("TMUX") && set("TMUX_PANE") && !has("TERM=outer"), "{text}");
        }
    }
}

#[test]
fn a_worker_gets_no_variable_of_another_caller() {
    let rig = Rig::new();
    let mut first = rig.command(&["spawn", "--name", "first", "--", "sleep", "600"]);
    first.env("LEAK", "1");
    run(first).ok();
    rig.spawn_sh("second", &[], "env");
    rig.wait("second");
    assert!(!rig.log("second", "stdout").contains("LEAK"));
}

/// Niceness of a command that `nice -n more` starts from here: the kernel has none above 19.
fn nicer_by(more: i32) -> i32 {
    (rustix::process::getpriority_process(None).expect("readable") + more).min(19)
}

#[test]
fn umask_limits_and_niceness_are_the_callers() {
    let rig = Rig::new();
    // Another caller, with other limits, has started the supervisor.
    rig.spawn("other", &[], &["sleep", "600"]);
    let niceness = nicer_by(5);
    let worker = "umask; ulimit -Sn; ulimit -Hn; ulimit -c; nice; awk '/^Sig(Blk|Ign)/ {print $1 substr($2, 9)}' /proc/self/status; touch made";
    for (name, flag) in [("p", ""), ("t", "--tmux")] {
        let caller = "umask 027; ulimit -Sn 77; ulimit -Hn 99; ulimit -c 0; exec nice -n 5 \"$@\"";
        let binary = env!("CARGO_BIN_EXE_swarm");
        let mut command = rig.program("sh");
        command
            .args(["-c", caller, "sh", binary, "spawn", "--name", name])
            .args(Some(flag).filter(|flag| !flag.is_empty()));
        command.args(["--", "sh", "-c", &format!("{{ {worker}; }} > out.{name}")]);
        run(command).ok();
        rig.wait(name);
        let out = std::fs::read_to_string(rig.cwd().join(format!("out.{name}"))).expect("there");
        // The C library ignores its own signal 32 in processes that it spawns.
        let out = out.replace("SigIgn:80000000", "SigIgn:00000000");
        assert_eq!(out, format!("0027\n77\n99\n0\n{niceness}\nSigBlk:00000000\nSigIgn:00000000\n"), "{name}");
        let mode = std::fs::metadata(rig.cwd().join("made")).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o640, "{name}");
        std::fs::remove_file(rig.cwd().join("made")).expect("removed");
    }
}

#[test]
fn a_caller_that_may_write_no_file_can_start_a_worker() {
    let rig = Rig::new();
    rig.spawn("other", &[], &["sleep", "600"]);
    let mut command = rig.program("sh");
    let binary = env!("CARGO_BIN_EXE_swarm");
    command.args([
        "-c",
        "ulimit -f 0; exec \"$@\"",
        "sh",
        binary,
        "spawn",
        "--name",
        "x",
        "--",
        "sh",
        "-c",
        "ulimit -f; exit 5",
    ]);
    run(command).ok();
    rig.wait("x");
    // The worker's output could not be written, but its exit is recorded.
    assert_eq!(rig.exit("x"), "signal SIGXFSZ, exited");
    rig.spawn("y", &[], &["sh", "-c", "ulimit -f"]);
    rig.wait("y");
    assert_eq!(rig.log("y", "stdout"), "unlimited\n");
}

#[test]
fn a_caller_that_may_write_no_file_can_start_the_first_worker() {
    let rig = Rig::new();
    let mut command = rig.program("sh");
    let binary = env!("CARGO_BIN_EXE_swarm");
    command.args(["-c", "ulimit -f 0; exec \"$@\"", "sh", binary, "spawn", "--name", "x", "--", "sleep", "600"]);
    let said = run(command);
    // A caller that may not raise its hard limit gets an error.
    if said.code == Some(1) {
        assert!(said.err.contains("file size limit"), "{said:?}");
        return skipped("the first worker of a caller that may write no file: a hard limit cannot be raised here");
    }
    said.ok();
    assert_eq!(rig.names(), ["x"]);
}

#[test]
fn a_process_has_no_input() {
    let rig = Rig::new();
    let mut command =
        rig.command(&["spawn", "--name", "p", "--", "sh", "-c", "readlink /proc/$$/fd/0; cat; tty; true"]);
    command.stdin(std::process::Stdio::piped());
    run(command).ok();
    rig.wait("p");
    assert_eq!(rig.log("p", "stdout"), "/dev/null\nnot a tty\n");
}

#[test]
fn a_worker_runs_in_the_requested_directory() {
    let rig = Rig::new();
    let inner = rig.cwd().join("a b/é");
    std::fs::create_dir_all(&inner).expect("made");
    rig.spawn("relative", &["--cwd", "a b/é"], &["pwd"]);
    let said = rig.swarm_in(&inner, &["spawn", "--name", "here", "--", "pwd"]);
    assert_eq!(said.code, Some(0));
    rig.spawn_sh("window", &["--tmux", "--cwd", "a b/é"], "pwd > where");
    for name in ["relative", "here", "window"] {
        rig.wait(name);
        assert_eq!(
            rig.view(name)["cwd"],
            inner.to_str().expect("text"),
            "{name}: the row's path means the same to everybody"
        );
    }
    let line = format!("{}\n", inner.display());
    assert_eq!((rig.log("relative", "stdout"), rig.log("here", "stdout")), (line.clone(), line.clone()));
    assert_eq!(std::fs::read_to_string(inner.join("where")).expect("there"), line);
    // A relative command is looked up in the worker's directory.
    let script = inner.join("run");
    std::fs::write(&script, "#!/bin/sh\necho ran\n").expect("written");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("set");
    rig.spawn("script", &["--cwd", "a b/é"], &["./run"]);
    rig.wait("script");
    assert_eq!(rig.log("script", "stdout"), "ran\n");
}

#[test]
fn respawn_replays_the_whole_contract() {
    let rig = Rig::new();
    let niceness = nicer_by(3);
    let script = "{ pwd; echo \"$MINE $GIVEN $#\" \"$@\"; umask; nice; ulimit -Sn; } > out";
    let caller = "umask 077; ulimit -Sn 88; exec nice -n 3 \"$@\"";
    let binary = env!("CARGO_BIN_EXE_swarm");
    let mut command = rig.program("sh");
    command.args(["-c", caller, "sh", binary, "spawn", "--name", "x", "--timeout", "2h", "--env", "GIVEN=é\n'\"$"]);
    command.args(["--", "sh", "-c", script, "sh", "", "two words", "#{pid};", "*"]).env("MINE", "kept");
    run(command).ok();
    rig.wait("x");
    let out = rig.cwd().join("out");
    let first = std::fs::read_to_string(&out).expect("there");
    let expected = format!("kept é\n'\"$ 4  two words #{{pid}}; *\n0077\n{niceness}\n88\n");
    assert!(first.contains(&expected), "{first}");
    std::fs::remove_file(&out).expect("removed");
    // From another directory, with another environment, after another supervisor.
    rig.swarm(&["supervisor", "stop"]).ok();
    let mut command = rig.command(&["respawn", "x"]);
    command.current_dir(rig.path("home")).env("MINE", "other");
    assert_eq!(run(command).code, Some(0));
    rig.wait("x");
    assert_eq!(std::fs::read_to_string(&out).expect("there"), first);
    assert_eq!(rig.rows()[0]["cmd"][3], "sh");
}

#[test]
fn a_respawn_that_cannot_start_keeps_the_row() {
    // The original removes the row first, so any failure loses the worker's configuration.
    let rig = Rig::new();
    let script = rig.file("tool", "#!/bin/sh\n");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("set");
    rig.spawn("x", &["--tag", "t"], &[&script]);
    rig.wait("x");
    let before = rig.rows();
    std::fs::remove_file(&script).expect("removed");
    let said = rig.swarm(&["respawn", "x"]).refused(1, &format!("command not found: {script}"));
    assert_eq!(rig.rows(), before, "{said:?}");
    assert_eq!(rig.exit("x"), "code 0, exited");
    rig.file("tool", "#!/bin/sh\nexit 3\n");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("set");
    assert_eq!(rig.swarm(&["respawn", "x"]).code, Some(0));
    rig.wait("x");
    assert_eq!(rig.exit("x"), "code 3, exited");
}

#[test]
fn events_record_each_start_and_end_of_a_worker() {
    let rig = Rig::new();
    rig.spawn("x", &[], &["true"]);
    rig.wait("x");
    wait_until("the events contain the exit", SOON, || {
        rig.swarm(&["events", "x", "--json"]).out.contains("worker.exited")
    });
    rig.swarm(&["clean", "x"]).ok();
    let text = rig.swarm(&["events", "x", "--json"]).ok();
    let types: Vec<String> = text
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).expect("JSON")["type"].as_str().expect("a type").to_owned()
        })
        .collect();
    assert_eq!(types, ["worker.started", "worker.exited", "worker.cleaning", "worker.cleaned"]);
}
