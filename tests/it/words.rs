//! Output on both streams and exit codes, as scripts expect them.

use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::common::{Rig, SOON, STOPPED_BESIDE_ONE, proc, quick, timed, wait_quiet, wait_until};

const VERBS: [&str; 16] = [
    "spawn",
    "ls",
    "status",
    "peek",
    "send",
    "interrupt",
    "eof",
    "attach",
    "logs",
    "kill",
    "wait",
    "clean",
    "respawn",
    "init",
    "events",
    "supervisor",
];

/// Returns the pid in an answer of the form `NAME (pid: N)`.
#[track_caller]
pub fn pid_in(line: &str, verb: &str, name: &str) -> i32 {
    let pid = line.strip_prefix(&format!("{verb} {name} (pid: ")).and_then(|rest| rest.strip_suffix(")\n"));
    pid.and_then(|pid| pid.parse().ok()).unwrap_or_else(|| panic!("{line:?}"))
}

pub fn session(rig: &Rig) -> String {
    let path = rig.root().canonicalize().expect("there");
    let hash = Sha256::digest(path.to_str().expect("text").as_bytes());
    format!("swarm-{:02x}{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2], hash[3])
}

#[test]
fn spawn_reports_pid_or_window() {
    let rig = Rig::new();
    let pid = pid_in(&rig.spawn("one", &[], &["sleep", "600"]), "spawned", "one");
    assert_eq!(rig.pid("one"), pid);
    assert_eq!(rig.rows()[0]["pid"], pid);
    let line = rig.spawn("two", &["--tmux"], &["sleep", "600"]);
    assert_eq!(line, format!("spawned two (tmux: {}:two)\n", session(&rig)));
    assert_eq!(
        rig.spawn("three", &["--tmux", "--session", "mine"], &["sleep", "600"]),
        "spawned three (tmux: mine:three)\n"
    );
    assert_eq!(rig.names(), ["one", "two", "three"]);
}

#[test]
fn spawn_refuses_with_the_known_messages_and_creates_nothing() {
    let rig = Rig::new();
    let spawn = |words: &[&str]| rig.swarm(&[&["spawn"], words].concat());
    spawn(&["--name", "x"]).is(1, "", "swarm: error: no command provided (use -- command...)\n");
    spawn(&["--name", "x", "--"]).is(1, "", "swarm: error: no command provided (use -- command...)\n");
    spawn(&["--name", "x", "--env", "BAD", "--", "true"]).is(
        1,
        "",
        "swarm: error: invalid env format 'BAD' (expected KEY=VAL)\n",
    );
    spawn(&["--name", "x", "--", "no-such-command-here"]).is(
        1,
        "",
        "swarm: error: command not found: no-such-command-here\n",
    );
    spawn(&["--name", "x", "--cwd", "nowhere", "--", "true"]).refused(1, "working directory does not exist: nowhere");
    assert!(!rig.root().join("state.json").exists());
    rig.spawn("x", &[], &["sleep", "600"]);
    let before = std::fs::read(rig.state()).expect("there");
    let exists = "swarm: error: worker 'x' already exists\nswarm: hint: run 'swarm respawn x' to start it again, \
                  run 'swarm clean x' to remove it, or use another name\n";
    spawn(&["--name", "x", "--", "true"]).is(1, "", exists);
    // A name that is already taken is reported before other mistakes.
    spawn(&["--name", "x", "--env", "BAD", "--", "true"]).is(1, "", exists);
    assert_eq!(std::fs::read(rig.state()).expect("there"), before);
}

#[test]
fn env_is_split_at_the_first_equals_sign() {
    let rig = Rig::new();
    rig.spawn_sh("x", &["--env", "A=b=c", "--env", "E=", "--env", "A=d=e"], "echo \"$A|$E|\"");
    rig.wait("x");
    assert_eq!(rig.log("x", "stdout"), "d=e||\n");
}

#[test]
fn an_empty_registry_lists_nothing() {
    let rig = Rig::new();
    rig.swarm(&["ls"]).is(0, "", "");
    rig.swarm(&["ls", "--format", "names"]).is(0, "", "");
    rig.swarm(&["ls", "--format", "json"]).is(0, "[]\n", "");
    rig.swarm(&["ls", "--json"]).is(0, "{\"schema\":\"swarm.workers/1\",\"total\":0,\"workers\":[]}\n", "");
    rig.swarm(&["kill", "--all"]).is(0, "", "");
    rig.swarm(&["clean", "--all"]).is(0, "", "");
    rig.swarm(&["wait", "--all"]).is(0, "", "");
    assert!(!rig.root().join("supervisor.sock").exists(), "a reading verb started a supervisor");
}

#[test]
fn the_table_is_padded_to_the_last_blank() {
    let rig = Rig::new();
    let long =
        pid_in(&rig.spawn("a-long-name", &["--tag", "ci", "--tag", "x"], &["sleep", "600"]), "spawned", "a-long-name");
    rig.spawn("b", &["--tmux", "--session", "s"], &["sleep", "600"]);
    rig.swarm(&["kill", "b"]).ok();
    let width = long.to_string().len().max("PID/WINDOW".len());
    let table = rig.swarm(&["ls"]).ok();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines[0], format!("NAME         STATUS   {:<width$}  STARTED  WORKTREE  TAG ", "PID/WINDOW"));
    let started = |line: &str| line.split_whitespace().nth(3).expect("a time").to_owned();
    assert_eq!(lines[1], format!("a-long-name  running  {long:<width$}  {:<7}  -         ci,x", started(lines[1])));
    assert_eq!(lines[2], format!("b            stopped  {:<width$}  {:<7}  -         -   ", "s:b", started(lines[2])));
    let time = started(lines[1]);
    assert!(time.ends_with('s') && time[..time.len() - 1].parse::<u32>().is_ok(), "{time}");
}

#[test]
fn json_of_ls_has_exactly_the_known_keys() {
    let rig = Rig::new();
    rig.spawn("p", &["--env", "K=secret", "--tag", "t"], &["sleep", "600"]);
    let text = rig.swarm(&["ls", "--format", "json"]).ok();
    let value: Value = serde_json::from_str(&text).expect("JSON");
    let keys: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("    \"")?.split('"').next()).collect();
    assert_eq!(keys, ["name", "status", "cmd", "started", "cwd", "env", "tags", "tmux", "worktree", "pid", "metadata"]);
    assert!(
        text.starts_with(
            "[\n  {\n    \"name\": \"p\",\n    \"status\": \"running\",\n    \"cmd\": [\n      \"sleep\",\n"
        )
    );
    assert_eq!(value[0]["env"]["K"], "secret");
    assert_eq!(value[0]["tags"][0], "t");
    assert_eq!(value[0]["cwd"], rig.cwd().to_str().expect("text"));
    let started = value[0]["started"].as_str().expect("text");
    assert_eq!((started.len(), &started[10..11], &started[19..20]), (26, "T", "."), "{started}");
    // Our own formats hide the values of variables.
    assert!(!rig.swarm(&["ls", "--json"]).ok().contains("secret"));
}

#[test]
fn ls_filters_by_status_now_and_by_exact_tag() {
    let rig = Rig::new();
    rig.spawn("up", &["--tag", "ci"], &["sleep", "600"]);
    rig.spawn("down", &["--tag", "ci2"], &["true"]);
    rig.wait("down");
    let names = |flags: &[&str]| rig.swarm(&[&["ls", "--format", "names"], flags].concat()).ok();
    assert_eq!(names(&["--status", "running"]), "up\n");
    assert_eq!(names(&["--status", "stopped"]), "down\n");
    assert_eq!(names(&["--status", "all"]), "up\ndown\n");
    assert_eq!(names(&["--tag", "ci"]), "up\n");
    assert_eq!(names(&["--tag", "c"]), "");
}

#[test]
fn status_is_one_line_and_three_codes() {
    let rig = Rig::new();
    let pid = pid_in(&rig.spawn("up", &[], &["sleep", "600"]), "spawned", "up");
    rig.spawn("window", &["--tmux", "--session", "s"], &["sleep", "600"]);
    let said = rig.swarm(&["status", "up"]);
    assert!(
        said.out.starts_with(&format!("up: running (pid {pid}, uptime ")) && said.out.ends_with("s)\n"),
        "{said:?}"
    );
    assert_eq!(said.code, Some(0));
    assert!(rig.swarm(&["status", "window"]).ok().starts_with("window: running (tmux window s:window, uptime "));
    rig.swarm(&["kill", "up"]).is(0, "killed up\n", "");
    let said = rig.swarm(&["status", "up"]);
    assert!(said.out.starts_with(&format!("up: stopped (pid {pid}, uptime ")), "{said:?}");
    assert_eq!(said.code, Some(1));
    rig.swarm(&["status", "upp"]).is(2, "", "swarm: error: worker 'upp' not found\nswarm: hint: did you mean 'up'?\n");
    rig.swarm(&["status", "zebra"]).is(2, "", "swarm: error: worker 'zebra' not found\n");
}

#[test]
fn several_names_are_handled_all_or_nothing_and_in_the_given_order() {
    let rig = Rig::new();
    ["a", "b", "c"].iter().for_each(|name| drop(rig.spawn(name, &[], &["sleep", "600"])));
    rig.swarm(&["kill", "a", "b", "nobody"]).is(1, "", "swarm: error: worker 'nobody' not found\n");
    assert!(rig.rows().iter().all(|row| row["status"] == "running"), "an unknown name refuses the whole request");
    rig.swarm(&["kill", "b", "a"]).is(0, "killed b\nkilled a\n", "");
    rig.swarm(&["wait", "b", "a", "b"]).is(0, "b: exited\na: exited\n", "");
    let busy = "swarm: error: cannot clean running worker 'c'\nswarm: hint: run 'swarm kill c' first\n";
    rig.swarm(&["clean", "a", "c"]).is(1, "", busy);
    rig.swarm(&["clean", "a", "b"]).is(0, "cleaned a\ncleaned b\n", "");
    assert_eq!(rig.names(), ["c"]);
}

#[test]
fn kill_keeps_the_row_and_says_killed_each_time() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sleep", "600"]);
    rig.spawn("b", &["--tmux"], &["sleep", "600"]);
    rig.swarm(&["kill"]).is(1, "", "swarm: error: must specify worker name or --all\n");
    rig.swarm(&["kill", "nobody"]).is(1, "", "swarm: error: worker 'nobody' not found\n");
    rig.swarm(&["kill", "a"]).is(0, "killed a\n", "");
    rig.swarm(&["kill", "a"]).is(0, "killed a\n", "");
    assert_eq!(rig.rows()[0]["status"], "stopped");
    rig.swarm(&["kill", "--all"]).is(0, "killed a\nkilled b\n", "");
    assert_eq!(rig.names(), ["a", "b"]);
}

#[test]
fn wait_reports_an_exit_or_the_timeout() {
    let rig = Rig::new();
    rig.spawn("long", &[], &["sleep", "600"]);
    rig.spawn("short", &[], &["sleep", "0.2"]);
    rig.swarm(&["wait"]).is(1, "", "swarm: error: name required (or use --all)\n");
    rig.swarm(&["wait", "nobody"]).is(1, "", "swarm: error: worker 'nobody' not found\n");
    rig.swarm(&["wait", "short"]).is(0, "short: exited\n", "");
    rig.swarm(&["wait", "short"]).is(0, "short: exited\n", "");
    rig.swarm(&["wait", "long", "--timeout", "1"]).is(1, "long: still running (timeout)\n", "");
    rig.spawn("again", &["--tmux"], &["sleep", "0.2"]);
    // Only workers that run at the start are waited for.
    rig.swarm(&["wait", "--all", "--timeout", "4"]).is(1, "again: exited\nlong: still running (timeout)\n", "");
    rig.spawn("third", &[], &["sleep", "0.2"]);
    rig.swarm(&["wait", "third", "--timeout", "0"]).is(0, "third: exited\n", "");
}

#[test]
fn wait_returns_at_once_when_the_worker_ends() {
    // The original polls once a second.
    quick("the return after the end", Duration::from_millis(500), returns_late);
}

/// Time between the end of a worker and the return of a `wait` that slept until then.
fn returns_late() -> Duration {
    let rig = Rig::new();
    rig.spawn_sh("x", &[], "until [ -e go ]; do sleep 0.01; done; date +%s%N > ended");
    let waiter = std::thread::spawn({
        let command = rig.command(&["wait", "x"]);
        move || (crate::common::run(command), std::time::SystemTime::now())
    });
    let find = || rig.processes().into_iter().find(|pid| proc::words(*pid).get(1).is_some_and(|word| word == "wait"));
    wait_until("wait sleeps", SOON, || find().is_some());
    wait_quiet(&[find().expect("it waits")]);
    std::fs::write(rig.cwd().join("go"), "").expect("written");
    let (said, returned) = waiter.join().expect("waited");
    said.is(0, "x: exited\n", "");
    let ended: u128 =
        std::fs::read_to_string(rig.cwd().join("ended")).expect("there").trim().parse().expect("nanoseconds");
    let returned = returned.duration_since(std::time::UNIX_EPOCH).expect("later").as_nanos();
    Duration::from_nanos(u64::try_from(returned.saturating_sub(ended)).expect("short"))
}

#[test]
fn clean_accepts_only_stopped_workers() {
    let rig = Rig::new();
    rig.spawn("up", &[], &["sleep", "600"]);
    rig.spawn("down", &[], &["true"]);
    rig.spawn("gone", &["--tmux"], &["true"]);
    rig.wait("down");
    rig.wait("gone");
    rig.swarm(&["clean"]).is(1, "", "swarm: error: must specify worker name or use --all\n");
    rig.swarm(&["clean", "nobody"]).is(1, "", "swarm: error: worker 'nobody' not found\n");
    rig.swarm(&["clean", "up"]).refused(1, "cannot clean running worker 'up'");
    assert!(rig.root().join("logs/down.stdout.log").exists());
    rig.swarm(&["clean", "down"]).is(0, "cleaned down\n", "");
    rig.swarm(&["clean", "--all"]).is(0, "cleaned gone\n", "");
    assert_eq!(rig.names(), ["up"]);
    let left = |dir: &str| {
        std::fs::read_dir(rig.root().join(dir))
            .expect("there")
            .flatten()
            .map(|entry| entry.file_name().into_string().expect("text"))
            .collect::<Vec<_>>()
    };
    assert!(left("logs").iter().all(|log| log.starts_with("up.")), "{:?}", left("logs"));
    assert_eq!(left("w"), ["up.1"]);
}

#[test]
fn respawn_keeps_everything_but_pid_and_time_and_moves_to_the_end() {
    let rig = Rig::new();
    rig.spawn("a", &["--env", "K=V", "--tag", "t"], &["sleep", "600"]);
    rig.spawn("b", &[], &["true"]);
    let before = rig.rows()[0].clone();
    let pid = pid_in(&rig.swarm(&["respawn", "a"]).ok(), "respawned", "a");
    let rows = rig.rows();
    assert_eq!(rig.names(), ["b", "a"]);
    for key in ["name", "cmd", "cwd", "env", "tags", "tmux", "worktree"] {
        assert_eq!(rows[1][key], before[key], "{key}");
    }
    assert_ne!(rows[1]["started"], before["started"]);
    assert_eq!(rows[1]["pid"], pid);
    assert!(!crate::common::proc::alive(i32::try_from(before["pid"].as_i64().expect("a pid")).expect("a pid")));
    assert!(pid_in(&rig.swarm(&["respawn", "b"]).ok(), "respawned", "b") > 1);
    rig.swarm(&["respawn", "nobody"]).is(1, "", "swarm: error: worker 'nobody' not found\n");
    rig.spawn("c", &["--tmux", "--session", "s"], &["sleep", "600"]);
    rig.swarm(&["respawn", "c"]).is(0, "respawned c (tmux: s:c)\n", "");
}

#[test]
fn usage_errors_exit_with_two_and_help_with_zero() {
    let rig = Rig::new();
    for words in [
        &[][..],
        &["frobnicate"],
        &["spawn", "--", "true"],
        &["spawn", "--name"],
        &["ls", "--format", "yaml"],
        &["ls", "--status", "dead"],
        &["status"],
        &["respawn"],
        &["respawn", "a", "b"],
        &["spawn", "--name", "x", "--no-such-flag", "--", "true"],
        &["spawn", "--name", "x", "--ready-timeout", "soon", "--", "true"],
    ] {
        let said = rig.swarm(words);
        assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{words:?}: {said:?}");
        assert!(words.is_empty() || said.err.starts_with("swarm: error: "), "{words:?}: {said:?}");
    }
    for verb in VERBS {
        for flag in ["--help", "-h"] {
            let said = rig.swarm(&[verb, flag]);
            assert!(
                said.code == Some(0) && said.err.is_empty() && said.out.contains(&format!("Usage: swarm {verb}")),
                "{said:?}"
            );
        }
    }
    assert!(rig.swarm(&["--version"]).ok().starts_with("swarm "));
    let help = rig.swarm(&["--help"]).ok();
    assert!(VERBS.iter().all(|verb| help.contains(&format!("  {verb}"))), "{help}");
    assert!(!rig.root().exists(), "help made a state directory");
}

#[test]
fn options_may_stand_anywhere_and_be_abbreviated() {
    let rig = Rig::new();
    rig.swarm(&["spawn", "--nam", "x", "--ta", "t", "--", "sh", "-c", "echo \"$@\"", "sh", "--", "--name", "-x"]).ok();
    rig.swarm(&["wait", "--time", "20", "x"]).is(0, "x: exited\n", "");
    assert_eq!(rig.log("x", "stdout"), "-- --name -x\n");
    assert_eq!(rig.swarm(&["ls", "--form", "names", "--ta", "t"]).ok(), "x\n");
    rig.swarm(&["clean", "--no-rm", "x"]).is(0, "cleaned x\n", "");
}

#[test]
fn json_answers_name_their_schema() {
    let rig = Rig::new();
    let answer = |words: &[&str], schema: &str| {
        let said = rig.swarm(words);
        let value: Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
        assert_eq!((value["schema"].as_str(), said.code), (Some(schema), Some(0)), "{said:?}");
        value
    };
    assert_eq!(answer(&["spawn", "--name", "x", "--json", "--", "sleep", "600"], "swarm.spawned/1")["name"], "x");
    assert_eq!(answer(&["status", "x", "--json"], "swarm.worker/1")["state"], "running");
    assert_eq!(answer(&["ls", "--json"], "swarm.workers/1")["workers"][0]["name"], "x");
    assert_eq!(answer(&["respawn", "x", "--json"], "swarm.respawned/1")["workers"][0]["name"], "x");
    assert_eq!(answer(&["kill", "x", "--json"], "swarm.killed/1")["workers"][0]["done"], "killed");
    assert_eq!(answer(&["wait", "x", "--json"], "swarm.waited/1")["workers"][0]["result"], "exited");
    assert_eq!(answer(&["clean", "x", "--json"], "swarm.cleaned/1")["workers"][0]["done"], "cleaned");
}

#[test]
fn a_closed_output_pipe_is_no_reported_error() {
    let rig = Rig::new();
    rig.spawn("x", &[], &["true"]);
    let mut command = rig.program("sh");
    command.args(["-c", "\"$0\" ls --format json | true"]).arg(env!("CARGO_BIN_EXE_swarm"));
    assert_eq!(crate::common::run(command).err, "");
}

#[test]
fn the_supervisor_can_be_queried_stopped_and_restarted() {
    let rig = Rig::new();
    assert_eq!(rig.swarm(&["supervisor", "status"]).code, Some(1));
    rig.swarm(&["supervisor", "stop"]).is(0, "no supervisor is running\n", "");
    quick("a kill without a supervisor", Duration::from_secs(5), || {
        rig.spawn("x", &[], &["sleep", "600"]);
        let said = rig.swarm(&["supervisor", "status"]);
        assert!(said.code == Some(0) && said.out.starts_with("supervisor: running (pid "), "{said:?}");
        rig.swarm(&["supervisor", "restart"]).is(0, "supervisor restarted\n", "");
        rig.swarm(&["supervisor", "stop"]).is(0, STOPPED_BESIDE_ONE, "");
        wait_until("supervisor and guard leave", SOON, || rig.keepers() == (None, None));
        assert_eq!(rig.fine("x"), "running");
        let took = timed(|| rig.swarm(&["kill", "x"]).is(0, "killed x\n", ""));
        rig.swarm(&["clean", "x"]).is(0, "cleaned x\n", "");
        took
    });
}

#[test]
fn failures_stand_out_and_wait_reports_them_if_asked() {
    let rig = Rig::new();
    for (name, script) in [("fine", "exit 0"), ("bad", "exit 3"), ("shot", "kill -9 $$")] {
        rig.spawn_sh(name, &[], script);
    }
    rig.spawn_sh("late", &["--timeout", "1"], "exec tail -f /dev/null");
    rig.spawn("mine", &[], &["tail", "-f", "/dev/null"]);
    rig.swarm(&["wait", "fine", "bad", "shot", "late"]).ok();
    rig.swarm(&["kill", "mine"]).ok();
    let named = |words: &[&str]| rig.swarm(&[&["ls", "-q"], words].concat()).ok().replace('\n', " ");
    assert_eq!(named(&["--status", "failed"]), "bad shot late ");
    assert_eq!(named(&["--sort", "state"]), "fine mine bad shot late ");
    let long = rig.swarm(&["ls", "-l"]).ok();
    let row = |name: &str| long.lines().find(|line| line.starts_with(name)).expect("a row").to_owned();
    assert!(row("bad").contains(" failed ") && row("late").contains("failed: time limit"), "{long}");
    assert!(row("mine").contains(" stopped ") && row("fine").contains(" exited "), "{long}");
    let list: Value = serde_json::from_str(&rig.swarm(&["ls", "-l", "--json"]).ok()).expect("JSON");
    let failed = |name: &str| {
        list["workers"].as_array().expect("workers").iter().any(|one| one["name"] == name && one["failed"] == true)
    };
    assert!(failed("bad") && failed("late") && !failed("mine") && !failed("fine"), "{list:#}");
    // The table and the exit code of the original stay for scripts.
    assert!(rig.swarm(&["ls"]).ok().lines().skip(1).all(|line| line.contains("  stopped  ")));
    rig.swarm(&["wait", "bad"]).is(0, "bad: exited\n", "");
    rig.swarm(&["wait", "bad", "--exit-code"]).is(3, "bad: failed (exit code 3)\n", "");
    rig.swarm(&["wait", "shot", "--exit-code"]).is(137, "shot: failed (SIGKILL)\n", "");
    rig.swarm(&["wait", "fine", "bad", "--exit-code"]).is(1, "fine: exited\nbad: failed (exit code 3)\n", "");
    rig.swarm(&["wait", "fine", "--status"]).is(0, "fine: exited\n", "");
    rig.spawn("long", &[], &["tail", "-f", "/dev/null"]);
    let late = rig.swarm(&["wait", "long", "--exit-code", "--timeout", "0.1"]);
    late.is(124, "long: still running (timeout)\n", "");
}

#[test]
fn here_selects_the_workers_of_this_repository() {
    let rig = Rig::new();
    let (one, two) = (rig.repo(), rig.path("two"));
    std::fs::create_dir(&two).expect("made");
    rig.git(&two, &["init", "-q"]);
    rig.git(&two, &["commit", "-q", "--allow-empty", "-m", "first"]);
    let spawn = |dir: &std::path::Path, name: &str, flags: &[&str]| {
        let words = [&["spawn", "--name", name], flags, &["--", "tail", "-f", "/dev/null"]].concat();
        rig.swarm_in(dir, &words).ok()
    };
    spawn(&one, "tree", &["--worktree"]);
    spawn(&one, "plain", &[]);
    spawn(&two, "other", &[]);
    spawn(&rig.cwd(), "nowhere", &[]);
    let inside = one.join("sub");
    std::fs::create_dir(&inside).expect("made");
    assert_eq!(rig.swarm_in(&inside, &["ls", "-q", "--here"]).ok(), "tree\nplain\n");
    assert_eq!(rig.swarm_in(&rig.path("repo-worktrees/tree"), &["ls", "-q", "--here"]).ok(), "tree\nplain\n");
    let outside = rig.swarm(&["ls", "--here"]);
    assert!(outside.code == Some(1) && outside.err.contains("is not in a git repository"), "{outside:?}");
    assert_eq!(rig.swarm_in(&two, &["kill", "--here"]).ok(), "killed other\n");
    assert_eq!(rig.swarm_in(&two, &["clean", "--here"]).ok(), "cleaned other\n");
    // Scripts are not asked: every worker is meant, as in the original.
    assert_eq!(rig.swarm_in(&two, &["kill", "--all"]).ok().lines().count(), 3);
}
