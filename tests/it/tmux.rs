//! Windows of tmux: the right one is addressed, foreign ones are left alone, and text arrives as sent.

use std::thread;

use crate::common::proc::{self, Signal};
use crate::common::{Rig, SOON, run, wait_until};
use crate::words::session;

/// Answers each line, so that a test can tell arrived text from its echo.
const ANSWER: &str = "echo ready; while IFS= read -r line; do printf 'got<%s>\\n' \"$line\"; done; echo ended; exit 3";

fn windows(rig: &Rig) -> Vec<String> {
    let said = rig.tmux(&["list-windows", "-a", "-F", "#{session_name}:#{window_name}"]);
    said.out.lines().map(str::to_owned).collect()
}

fn servers(rig: &Rig) -> Vec<i32> {
    let is_server = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("tmux: server"))
    };
    rig.processes().into_iter().filter(is_server).collect()
}

fn talker(rig: &Rig, name: &str) {
    rig.spawn_sh(name, &["--tmux"], ANSWER);
    wait_until("the worker is ready", SOON, || rig.log(name, "tmux").contains("ready"));
}

#[test]
fn attaching_without_a_terminal_is_refused() {
    let rig = Rig::new();
    rig.spawn("w", &["--tmux"], &["sleep", "600"]);
    let said = rig.swarm(&["attach", "w"]).refused(1, "cannot attach to worker 'w': standard input is not a terminal");
    assert!(said.err.ends_with("\nswarm: hint: run 'swarm peek w' to show its screen\n"), "{said:?}");
}

#[test]
fn a_dead_worker_is_not_taken_for_one_with_a_longer_name() {
    // tmux matches prefixes and patterns, so in the original a dead worker looks running, and a kill may hit another
    // one.
    let rig = Rig::new();
    rig.spawn("job", &["--tmux", "--session", "s"], &["true"]);
    rig.spawn("job-two", &["--tmux", "--session", "s"], &["sleep", "600"]);
    rig.wait("job");
    assert_eq!(rig.swarm(&["status", "job"]).code, Some(1));
    assert_eq!(rig.swarm(&["ls", "--format", "names", "--status", "running"]).ok(), "job-two\n");
    rig.swarm(&["kill", "job"]).is(0, "killed job\n", "");
    rig.swarm(&["clean", "job"]).is(0, "cleaned job\n", "");
    assert_eq!(windows(&rig), ["s:job-two"]);
    // A session whose name is the prefix of another is a separate session.
    rig.spawn("x", &["--tmux", "--session", "s-two"], &["sleep", "600"]);
    rig.spawn("y", &["--tmux", "--session", "s-t"], &["sleep", "600"]);
    assert_eq!(windows(&rig), ["s:job-two", "s-t:y", "s-two:x"]);
    rig.swarm(&["kill", "y"]).is(0, "killed y\n", "");
    assert_eq!(windows(&rig), ["s:job-two", "s-two:x"]);
}

#[test]
fn rows_of_the_original_are_matched_exactly_too() {
    let rig = Rig::new();
    rig.tmux(&["new-session", "-d", "-s", "s-long", "-n", "job-two", "sleep 600"]).ok();
    let row = |name: &str, session: &str| {
        format!(
            r#"{{"name":"{name}","status":"running","cmd":["x"],"started":"2020-01-01T00:00:00.000001","cwd":"/","tmux":{{"session":"{session}","window":"{name}","socket":null}}}}"#
        )
    };
    rig.put_state(format!(
        "{{\"workers\":[{},{},{}]}}",
        row("job", "s-long"),
        row("job-two", "s"),
        row("job*", "s-long")
    ));
    assert_eq!(rig.swarm(&["ls", "--format", "names", "--status", "running"]).ok(), "");
    rig.swarm(&["kill", "--all"]).is(0, "killed job\nkilled job-two\nkilled job*\n", "");
    rig.swarm(&["clean", "--all"]).is(0, "cleaned job\ncleaned job-two\ncleaned job*\n", "");
    assert_eq!(windows(&rig), ["s-long:job-two"]);
}

#[test]
fn a_session_of_the_user_outlives_the_last_worker_and_our_own_does_not() {
    // The original kills the user's session with its last worker, and leaks its own session.
    let rig = Rig::new();
    rig.tmux(&["new-session", "-d", "-s", "mine", "-n", "editor", "sleep 600"]).ok();
    for session in [&["--session", "mine"][..], &[]] {
        for name in ["a", "b"] {
            rig.spawn(name, &[&["--tmux"], session].concat(), &["sleep", "600"]);
        }
        assert_eq!(windows(&rig).len(), 3);
        for name in ["a", "b"] {
            rig.swarm(&["kill", name]).ok();
        }
        rig.swarm(&["clean", "--all"]).ok();
        assert_eq!(windows(&rig), ["mine:editor"]);
    }
    // The user's current window stays the current one.
    rig.spawn("c", &["--tmux", "--session", "mine"], &["sleep", "600"]);
    assert_eq!(rig.tmux(&["display-message", "-p", "-t", "=mine:", "#{window_name}"]).ok(), "editor\n");
}

#[test]
fn eight_first_spawns_into_a_new_session_all_succeed() {
    // In the original, concurrent first spawns into a new session fail.
    let rig = Rig::new();
    thread::scope(|scope| {
        let rig = &rig;
        for i in 0..8 {
            scope.spawn(move || rig.spawn(&format!("w{i}"), &["--tmux"], &["sleep", "600"]));
        }
    });
    let mut found = windows(&rig);
    found.sort();
    let name = session(&rig);
    assert_eq!(found, (0..8).map(|i| format!("{name}:w{i}")).collect::<Vec<_>>());
    assert_eq!(servers(&rig).len(), 1);
    assert_eq!(rig.swarm(&["ls", "--format", "names", "--status", "running"]).ok().lines().count(), 8);
}

#[test]
fn reading_verbs_start_no_tmux_for_our_workers() {
    // The original starts a tmux process for each worker.
    let rig = Rig::new();
    for name in ["a", "b"] {
        rig.spawn(name, &["--tmux"], &["sleep", "600"]);
    }
    for words in [&["ls", "--format", "names", "--status", "running"][..], &["ls", "-l"], &["status", "a"]] {
        let mut command = rig.command(words);
        command.env("PATH", "/nonexistent");
        let said = run(command);
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
        assert!(!said.out.contains("stopped") && said.out.contains('a'), "{said:?}");
    }
}

#[test]
fn lines_of_a_log_wrap_as_they_did_in_the_window() {
    let rig = Rig::new();
    let script = "until [ -e go ]; do sleep 0.01; done; printf '%060d\\n' 0; exec sleep 600";
    rig.spawn_sh("w", &["--tmux", "--session", "s"], script);
    let sizes = || std::fs::read_to_string(rig.root().join("logs/w.tmux.sizes")).unwrap_or_default();
    wait_until("the first size is recorded", SOON, || sizes() == "0 200 50\n");
    rig.tmux(&["resize-window", "-t", "=s:=w", "-x", "40", "-y", "10"]).ok();
    wait_until("the size is recorded", SOON, || sizes().ends_with(" 40 10\n"));
    std::fs::write(rig.cwd().join("go"), "").expect("written");
    let expected = format!("{}\n{}\n", "0".repeat(40), "0".repeat(20));
    wait_until("the line is in the log", SOON, || rig.swarm(&["logs", "w"]).out == expected);
    let explained = rig.swarm(&["explain", "w"]).ok();
    assert!(explained.contains(&format!("  {}\n  {}\n", "0".repeat(40), "0".repeat(20))), "{explained}");
    rig.swarm(&["kill", "w"]).ok();
    rig.swarm(&["clean", "w"]).ok();
    assert_eq!(std::fs::read_dir(rig.root().join("logs")).expect("there").count(), 0);
}

#[test]
fn a_window_renamed_or_moved_by_hand_is_still_the_workers() {
    let rig = Rig::new();
    rig.spawn("a", &["--tmux", "--session", "s"], &["sleep", "600"]);
    rig.spawn("b", &["--tmux", "--session", "s"], &["sleep", "600"]);
    rig.tmux(&["rename-window", "-t", "=s:=a", "b"]).ok();
    rig.tmux(&["rename-session", "-t", "=s", "other"]).ok();
    assert_eq!(rig.swarm(&["ls", "--format", "names", "--status", "running"]).ok(), "a\nb\n");
    let (a, b) = (rig.pid("a"), rig.pid("b"));
    rig.swarm(&["kill", "a"]).is(0, "killed a\n", "");
    assert!(!proc::alive(a) && proc::alive(b));
    assert_eq!(windows(&rig), ["other:b"]);
}

#[test]
fn a_killed_server_costs_no_exit_record() {
    let rig = Rig::new();
    rig.spawn("x", &["--tmux"], &["sleep", "600"]);
    let (pid, found) = (rig.pid("x"), servers(&rig));
    assert_eq!(found.len(), 1);
    proc::kill(found[0]);
    rig.wait("x");
    assert!(!proc::alive(pid));
    assert_eq!(rig.exit("x"), "signal SIGHUP, closed");
    assert!(rig.swarm(&["respawn", "x"]).ok().starts_with("respawned x (tmux: "));
    assert_eq!(rig.fine("x"), "running");
    rig.swarm(&["kill", "x"]).is(0, "killed x\n", "");
}

#[test]
fn a_server_that_is_lost_at_once_closes_its_workers() {
    let rig = Rig::new();
    for round in 0..6 {
        let name = format!("x{round}");
        rig.spawn(&name, &["--tmux"], &["sleep", "600"]);
        let server = servers(&rig)[0];
        proc::kill(server);
        rig.wait(&name);
        assert_eq!(rig.exit(&name), "signal SIGHUP, closed");
        // Its terminals are closed before it is gone, and until then it is a server that cannot be reached.
        assert!(proc::wait_end(server, SOON));
    }
}

#[test]
fn a_server_that_a_worker_started_is_not_used_for_others() {
    let rig = Rig::new();
    rig.spawn_sh("agent", &[], "tmux new-session -d -s testing 'exec sleep 600'; echo up; exec sleep 600");
    wait_until("its server is up", SOON, || rig.log("agent", "stdout").contains("up"));
    let said = rig.swarm(&["spawn", "--name", "other", "--tmux", "--", "sleep", "600"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    for part in ["was started by worker 'agent' and ends with it", "--tmux-socket"] {
        assert!(said.err.contains(part), "{said:?}");
    }
    assert!(windows(&rig).iter().all(|window| window.starts_with("testing:")), "{:?}", windows(&rig));
    assert_eq!(rig.names(), ["agent"]);
    rig.spawn("other", &["--tmux", "--tmux-socket", "own"], &["sleep", "600"]);
    rig.swarm(&["kill", "agent"]).ok();
    assert_eq!(rig.fine("other"), "running");
    // A server of ours, once that one is gone.
    rig.spawn("third", &["--tmux"], &["sleep", "600"]);
    assert_eq!(windows(&rig).len(), 1);
    rig.swarm(&["kill", "other"]).ok();
}

#[test]
fn a_closed_window_shows_at_once() {
    let rig = Rig::new();
    // Its end takes longer than a view; on a busy machine it may take longer than a view waits.
    let script = "trap 'sleep 0.3; exit 0' HUP; echo ready; while :; do sleep 600 & wait; done";
    let mut round = 0;
    let mut closed = |shows: &dyn Fn(&str) -> bool| {
        round += 1;
        let name = format!("x{round}");
        rig.spawn_sh(&name, &["--tmux", "--session", "s"], script);
        wait_until("the worker is ready", SOON, || rig.log(&name, "tmux").contains("ready"));
        rig.tmux(&["kill-window", "-t", &format!("s:{name}")]).ok();
        shows(&name)
    };
    let running = || rig.swarm(&["ls", "--format", "names", "--status", "running"]).ok();
    wait_until("'ls' shows the end", SOON, || closed(&|name| !running().contains(name)));
    let clean = || rig.swarm(&["clean", "--all"]).out;
    wait_until("'clean' finds it ended", SOON, || closed(&|name| clean().contains(&format!("cleaned {name}\n"))));
}

#[test]
fn a_server_without_its_socket_recreates_it_and_is_not_duplicated() {
    let rig = Rig::new();
    rig.spawn("a", &["--tmux"], &["sleep", "600"]);
    let dirs = std::fs::read_dir(rig.path("tmux")).expect("there").flatten();
    let socket = dirs.map(|dir| dir.path().join("default")).find(|path| path.exists()).expect("a socket");
    std::fs::remove_file(&socket).expect("removed");
    assert_eq!(rig.swarm(&["status", "a"]).code, Some(0));
    rig.spawn("b", &["--tmux"], &["sleep", "600"]);
    assert_eq!(servers(&rig).len(), 1, "a second server was started");
    assert_eq!(windows(&rig).len(), 2);
    std::fs::remove_file(&socket).expect("removed");
    rig.swarm(&["kill", "--all"]).is(0, "killed a\nkilled b\n", "");
}

#[test]
fn a_named_server_is_a_server_of_its_own() {
    let rig = Rig::new();
    rig.spawn("a", &["--tmux", "--tmux-socket", "other", "--session", "s"], &["sleep", "600"]);
    assert_eq!(rig.rows()[0]["tmux"], serde_json::json!({"session": "s", "window": "a", "socket": "other"}));
    assert_eq!(rig.tmux(&["list-windows", "-a"]).code, Some(1));
    assert_eq!(rig.tmux(&["-L", "other", "list-windows", "-a", "-F", "#{window_name}"]).ok(), "a\n");
    let mut command = rig.command(&["kill", "a"]);
    command.env_remove("TMUX_TMPDIR");
    run(command).is(0, "killed a\n", "");
}

#[test]
fn a_missing_or_hanging_tmux_is_reported() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let rig = Rig::new();
    std::fs::create_dir(rig.path("bin")).expect("made");
    symlink("/bin/sleep", rig.path("bin/sleep")).expect("linked");
    let spawn = || {
        let mut command = rig.command(&["spawn", "--name", "x", "--tmux", "--", "sleep", "600"]);
        command.env("PATH", rig.path("bin"));
        run(command)
    };
    let said = spawn();
    assert!(said.code == Some(1) && said.err.contains("tmux is not installed or not in PATH"), "{said:?}");
    std::fs::write(rig.path("bin/tmux"), "#!/bin/sh\nexec /bin/sleep 600\n").expect("written");
    std::fs::set_permissions(rig.path("bin/tmux"), std::fs::Permissions::from_mode(0o755)).expect("set");
    let said = spawn();
    assert!(said.code == Some(1) && said.err.contains("tmux does not answer within 5 s"), "{said:?}");
    assert_eq!(rig.names().len(), 0);
    assert_eq!(std::fs::read_dir(rig.root().join("w")).map_or(0, Iterator::count), 0);
}

#[test]
fn sent_text_arrives_unchanged() {
    let rig = Rig::new();
    talker(&rig, "x");
    let long = "l".repeat(3000);
    for text in [
        "hello",
        "- fix the bug",
        "-1",
        "Enter",
        "C-c",
        "a;",
        ";",
        "#(touch pwned) #{pid}",
        "$HOME `id` \\n 'q' \"",
        "é 漢 🎉",
        &long,
    ] {
        rig.swarm(&["send", "x", text]).is(0, "sent to x\n", "");
        wait_until(text, SOON, || rig.log("x", "tmux").replace("\r\n", "").contains(&format!("got<{text}>")));
    }
    rig.swarm(&["send", "x", "one\ntwo"]).is(0, "sent to x\n", "");
    wait_until("both lines have arrived", SOON, || {
        rig.log("x", "tmux").contains("got<one>") && rig.log("x", "tmux").contains("got<two>")
    });
    // Text that is already in the line is cleared, unless the flag says otherwise.
    rig.swarm(&["send", "x", "left", "--no-enter"]).is(0, "sent to x\n", "");
    rig.swarm(&["send", "x", "fresh"]).is(0, "sent to x\n", "");
    wait_until("the line was cleared", SOON, || rig.log("x", "tmux").contains("got<fresh>"));
    rig.swarm(&["send", "x", "one ", "--no-enter"]).is(0, "sent to x\n", "");
    rig.swarm(&["send", "x", "line", "--raw"]).is(0, "sent to x\n", "");
    wait_until("the line was kept", SOON, || rig.log("x", "tmux").contains("line>"));
    assert!(!rig.log("x", "tmux").contains("got<left"));
    let shown = rig.swarm(&["peek", "x"]).ok();
    assert!(shown.contains("got<two>"), "{shown}");
    rig.swarm(&["eof", "x"]).is(0, "sent eof to x\n", "");
    rig.wait("x");
    assert_eq!(rig.exit("x"), "code 3, exited");
}

#[test]
fn text_to_send_may_come_from_standard_input() {
    let rig = Rig::new();
    talker(&rig, "x");
    let send = |text: &str| {
        let file = std::fs::File::open(rig.file("text", text)).expect("there");
        let mut command = rig.command(&["send", "x", "-"]);
        command.stdin(file);
        crate::common::run(command)
    };
    send("from a $FILE\n").is(0, "sent to x\n", "");
    wait_until("the text has arrived", SOON, || rig.log("x", "tmux").contains("got<from a $FILE>"));
    for nothing in ["", "\n"] {
        send(nothing).refused(1, "standard input is empty; nothing was sent");
    }
    send(&"l".repeat((128 << 10) + 1)).refused(1, "standard input is longer than 131072 bytes");
}

#[test]
fn all_selects_every_running_window() {
    let rig = Rig::new();
    talker(&rig, "a");
    talker(&rig, "b");
    rig.spawn("process", &[], &["sleep", "600"]);
    rig.spawn("done", &["--tmux"], &["true"]);
    rig.wait("done");
    rig.swarm(&["send", "--all", "to everybody"]).is(0, "sent to a\nsent to b\n", "");
    for name in ["a", "b"] {
        wait_until("the text has arrived", SOON, || rig.log(name, "tmux").contains("got<to everybody>"));
    }
    let shown = rig.swarm(&["peek", "--all"]).ok();
    assert!(
        shown.starts_with("=== a ===\n") && shown.contains("\n=== b ===\n") && !shown.contains("process"),
        "{shown}"
    );
    rig.swarm(&["interrupt", "--all"]).is(0, "interrupted a\ninterrupted b\n", "");
    for name in ["a", "b"] {
        rig.wait(name);
        assert_eq!(rig.exit(name), "signal SIGINT, exited");
    }
}

#[test]
fn workers_without_a_running_window_are_refused_with_the_known_messages() {
    let rig = Rig::new();
    rig.spawn("process", &[], &["sleep", "600"]);
    rig.spawn("done", &["--tmux"], &["true"]);
    rig.wait("done");
    let error = |cause: &str| format!("swarm: error: {cause}\n");
    for (verb, more) in [("send", &["text"][..]), ("interrupt", &[]), ("eof", &[]), ("peek", &[])] {
        let say = |name: &str| rig.swarm(&[&[verb, name], more].concat());
        say("process").is(1, "", &error("worker 'process' is not a tmux worker"));
        say("done").is(1, "", &error("worker 'done' is not running"));
        say("zebra").is(if verb == "peek" { 2 } else { 1 }, "", &error("worker 'zebra' not found"));
    }
    let hint = "swarm: hint: run 'swarm send NAME TEXT'; a single argument is the text\n";
    rig.swarm(&["send", "text"]).is(1, "", &(error("--name required when not using --all") + hint));
    rig.swarm(&["interrupt"]).is(1, "", &error("worker name required when not using --all"));
    rig.swarm(&["peek"]).is(1, "", &error("worker name required (or use --all)"));
    assert_eq!(rig.swarm(&["attach", "zebra"]).code, Some(1));
    assert_eq!(rig.swarm(&["attach", "done"]).code, Some(1));
}

#[test]
fn spawn_may_wait_for_a_prompt() {
    let rig = Rig::new();
    // The name of the agent shows before its prompt.
    let agent = "echo 'Claude Code v1.2'; until [ -e go ]; do sleep 0.02; done; printf '❯ '; exec sleep 600";
    let spawner = thread::spawn({
        let command = rig.command(&["spawn", "--name", "x", "--tmux", "--ready-wait", "--", "sh", "-c", agent]);
        move || run(command)
    });
    wait_until("x runs", SOON, || rig.swarm(&["status", "x"]).code == Some(0));
    assert!(!spawner.is_finished(), "it returned before the prompt was there");
    std::fs::write(rig.cwd().join("go"), "").expect("written");
    assert!(spawner.join().expect("joined").ok().starts_with("spawned x (tmux: "));
    let said =
        rig.swarm(&["spawn", "--name", "y", "--tmux", "--ready-wait", "--ready-timeout", "1", "--", "sleep", "600"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), "swarm: warning: agent 'y' did not become ready within 1s\n"));
    assert!(said.out.starts_with("spawned y (tmux: "));
}

#[test]
fn an_agent_that_ends_before_it_is_ready_is_named_with_its_end() {
    let rig = Rig::new();
    let script = "sleep 0.3; exit 3";
    let said = rig.swarm(&["spawn", "--name", "x", "--tmux", "--ready-wait", "--", "sh", "-c", script]);
    let warning = "swarm: warning: agent 'x' ended (exit 3) before it was ready; run 'swarm explain x'\n";
    assert_eq!((said.code, said.err.as_str()), (Some(0), warning));
}

#[test]
fn a_suspended_worker_in_a_window_is_shown_and_killed() {
    let rig = Rig::new();
    rig.spawn("x", &["--tmux"], &["sleep", "600"]);
    let pid = rig.pid("x");
    proc::signal(pid, Signal::STOP);
    wait_until("x is suspended", SOON, || proc::is_stopped(pid) && rig.fine("x") == "suspended");
    rig.swarm(&["kill", "x"]).is(0, "killed x\n", "");
    assert!(!proc::alive(pid), "the process outlived its kill");
}
