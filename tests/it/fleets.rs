//! Many workers at once: selection by tag, pages, waiting for the first end, and the history of their lives.

use serde_json::Value;

use crate::common::{Rig, SOON, wait_until};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_tag_selects_workers_and_several_tags_those_that_have_all() {
    let rig = Rig::new();
    rig.spawn("one", &["--tag", "ci", "--tag", "slow"], &["sleep", "600"]);
    rig.spawn("two", &["--tag", "ci"], &["sleep", "600"]);
    rig.spawn("other", &[], &["sleep", "600"]);
    rig.swarm(&["kill", "--tag", "ci", "--tag", "slow"]).is(0, "killed one\n", "");
    assert_eq!(rig.swarm(&["ls", "-q", "--status", "running"]).ok(), "two\nother\n");
    // Running workers are skipped, as with --all.
    rig.swarm(&["clean", "--tag", "ci"]).is(0, "cleaned one\n", "");
    rig.swarm(&["clean", "--tag", "ci"]).is(0, "", "");
    let again = rig.swarm(&["respawn", "--tag", "ci"]).ok();
    assert!(again.starts_with("respawned two (pid: "), "{again}");
    rig.swarm(&["kill", "--all", "--tag", "ci"]).is(0, "killed two\n", "");
    rig.swarm(&["wait", "--tag", "ci"]).is(0, "two: exited\n", "");
    rig.swarm(&["recover", "--tag", "ci"]).ok();
    assert_eq!(rig.swarm(&["ls", "-q", "--status", "running"]).ok(), "other\n");
}

#[test]
fn an_unused_tag_is_refused_and_nothing_happens() {
    let rig = Rig::new();
    rig.spawn("one", &["--tag", "nightly"], &["sleep", "600"]);
    let before = std::fs::read(rig.state()).expect("there");
    for words in [
        &["kill", "--tag", "nigthly"][..],
        &["clean", "--tag", "nigthly"],
        &["wait", "--tag", "nigthly"],
        &["respawn", "--tag", "nigthly"],
        &["recover", "--tag", "nigthly", "--apply"],
        &["send", "--tag", "nigthly", "x"],
        &["interrupt", "--tag", "nigthly"],
        &["eof", "--tag", "nigthly"],
        &["peek", "--tag", "nigthly"],
        &["logs", "--tag", "nigthly"],
        &["merge", "add", "--tag", "nigthly"],
    ] {
        let said = rig.swarm(words);
        assert_eq!(said.code, if words[0] == "peek" { Some(2) } else { Some(1) }, "{words:?}: {said:?}");
        assert_eq!(said.out, "", "{words:?}");
        assert!(said.err.starts_with("swarm: error: no worker has the tag 'nigthly'\nswarm: hint: "), "{said:?}");
    }
    rig.swarm(&["send", "--tag", "nightly", "x"]).refused(1, "no running tmux worker has the tag 'nightly'");
    for words in [&["kill", "one", "--tag", "nightly"][..], &["send", "one", "x", "--tag", "nightly"]] {
        assert_eq!(rig.swarm(words).code, Some(2), "{words:?}");
    }
    assert_eq!(std::fs::read(rig.state()).expect("there"), before);
}

#[test]
fn a_broadcast_reports_the_delivery_to_each_worker() {
    let rig = Rig::new();
    let listen = "printf 'ready '; while read line; do echo \"got $line\"; done";
    rig.spawn_sh("ears", &["--tmux", "--tag", "all"], listen);
    rig.spawn_sh("deaf", &["--tmux", "--tag", "all"], "stty raw -echo; printf 'ready '; exec sleep 600");
    rig.spawn_sh("apart", &["--tmux"], listen);
    for name in ["ears", "deaf", "apart"] {
        wait_until("the worker is ready", SOON, || rig.log(name, "tmux").contains("ready"));
    }
    let said = rig.swarm(&["send", "--tag", "all", "hello"]);
    assert_eq!((said.code, said.out.as_str()), (Some(1), "sent to ears\n"));
    assert!(said.err.starts_with("swarm: error: deaf: pane %"), "{said:?}");
    wait_until("the text has arrived", SOON, || rig.log("ears", "tmux").contains("got hello"));
    assert!(!rig.log("apart", "tmux").contains("hello"));
    let said = rig.swarm(&["send", "--tag", "all", "--json", "again"]);
    let value = json(&said.out);
    assert_eq!((said.code, value["schema"].as_str()), (Some(1), Some("swarm.sent/1")));
    assert_eq!(value["workers"][0]["text"], "sent to ears\n");
    assert_eq!(
        (value["workers"][1]["name"].as_str(), value["workers"][1]["error"]["kind"].as_str()),
        (Some("deaf"), Some("tool"))
    );
    rig.swarm(&["send", "deaf", "--no-proof", "x"]).is(0, "sent to deaf\n", "");
    let peeked = rig.swarm(&["peek", "--tag", "all"]).ok();
    assert!(
        peeked.contains("=== ears ===") && peeked.contains("=== deaf ===") && !peeked.contains("apart"),
        "{peeked}"
    );
    rig.swarm(&["interrupt", "--tag", "all"]).is(0, "interrupted ears\ninterrupted deaf\n", "");
    rig.wait("ears");
    let logged = rig.swarm(&["logs", "--tag", "all", "--history"]).ok();
    assert!(logged.contains("ears | ") && logged.contains("deaf | ready"), "{logged}");
}

#[test]
fn several_logs_are_followed_together_until_all_workers_have_ended() {
    let rig = Rig::new();
    let script = "until [ -e ../go ]; do sleep 0.01; done; echo \"at work\"; printf last; echo oops >&2; exit 0";
    rig.spawn_sh("one", &["--tag", "x"], script);
    rig.spawn_sh("two", &["--tag", "x"], script);
    let said = std::thread::scope(|scope| {
        let follow = scope.spawn(|| rig.swarm(&["logs", "--tag", "x", "--follow"]));
        std::fs::write(rig.path("go"), "").expect("written");
        follow.join().expect("followed")
    });
    let text = said.ok();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["one | at work", "one | last", "one | oops", "two | at work", "two | last", "two | oops"]);
}

#[test]
fn waiting_for_any_ends_with_the_first() {
    let rig = Rig::new();
    rig.spawn("long", &["--tag", "x"], &["sleep", "600"]);
    rig.spawn_sh("short", &["--tag", "x"], "until [ -e ../go ]; do read -t 0.05 line < /dev/null; done; exit 7");
    let waiting = std::thread::scope(|scope| {
        let wait = scope.spawn(|| rig.swarm(&["wait", "--any", "--tag", "x", "--json"]));
        std::fs::write(rig.path("go"), "").expect("written");
        wait.join().expect("waited")
    });
    let value = json(&waiting.ok());
    let workers = value["workers"].as_array().expect("a list");
    assert_eq!(
        (workers.len(), workers[0]["name"].as_str(), workers[0]["exit"]["code"].as_i64()),
        (1, Some("short"), Some(7))
    );
    rig.swarm(&["wait", "--any", "long", "short"]).is(0, "short: exited\n", "");
    rig.swarm(&["wait", "--any", "long", "--timeout", "0.1"]).is(1, "long: still running (timeout)\n", "");
    assert_eq!(rig.swarm(&["ls", "-q", "--status", "running"]).ok(), "long\n");
}

#[test]
fn the_history_shows_a_worker_from_its_first_start_to_its_end() {
    let rig = Rig::new();
    rig.swarm(&["history", "x"]).refused(1, "worker 'x' not found");
    rig.spawn_sh("x", &["--restart", "on-failure"], "[ -e ../twice ] || { : > ../twice; exit 3; }; exec sleep 600");
    wait_until("x runs again", SOON, || {
        rig.swarm(&["events", "x"]).out.matches(": started").count()
            + rig.swarm(&["events", "x"]).out.matches("  started").count()
            == 2
    });
    rig.swarm(&["kill", "x"]).ok();
    rig.swarm(&["respawn", "x"]).ok();
    let value = json(&rig.swarm(&["history", "x", "--json"]).ok());
    let starts = value["starts"].as_array().expect("a list");
    let told: Vec<_> =
        starts.iter().map(|life| (life["how"].as_str().expect("text"), life["exit"]["outcome"].as_str())).collect();
    assert_eq!(told, [("spawn", Some("code")), ("restart", Some("signal")), ("respawn", None)]);
    assert_eq!((starts[0]["exit"]["code"].as_i64(), starts[0]["restart_in_ms"].as_i64()), (Some(3), Some(1000)));
    assert_eq!((starts[1]["killed"].as_bool(), starts[1]["exit"]["signal"].as_str()), (Some(true), Some("SIGTERM")));
    rig.swarm(&["kill", "x"]).ok();
    rig.swarm(&["clean", "x"]).ok();
    // The history includes cleaned workers.
    let text = rig.swarm(&["history", "x"]).ok();
    assert_eq!(text.lines().count(), 4, "{text}");
    assert_eq!(rig.swarm(&["events", "x", "--until", "1d"]).ok(), "");
    assert_eq!(rig.swarm(&["events", "x", "--since", "1h"]).ok(), rig.swarm(&["events", "x"]).ok());
}

#[test]
fn output_is_truncated_for_a_narrow_terminal_but_not_for_a_pipe() {
    let rig = Rig::new();
    let repo = rig.repo_named("a-repository-with-a-name-that-is-much-too-long-for-a-terminal");
    rig.swarm_in(&repo, &["spawn", "--name", "fix", "--worktree", "--", "sleep", "600"]).ok();
    // Without another session, the server would end with the first view while the second one is started.
    rig.tmux(&["new-session", "-d", "-s", "holder", "sleep 600"]).ok();
    let shown = |words: &str| {
        let line = format!("'{}' {words}; printf done; exec sleep 600", env!("CARGO_BIN_EXE_swarm"));
        rig.tmux(&["new-session", "-d", "-s", "narrow", "-x", "72", "-y", "20", &line]).ok();
        wait_until("output shown", SOON, || rig.tmux(&["capture-pane", "-p", "-t", "=narrow:"]).out.contains("done"));
        let text = rig.tmux(&["capture-pane", "-p", "-e", "-t", "=narrow:"]).ok();
        rig.tmux(&["kill-session", "-t", "=narrow"]).ok();
        text
    };
    let plain = shown("ls");
    let rows: Vec<&str> = plain.lines().collect();
    assert!(rows[1].contains("…") && rows[1].ends_with("/fix") && !rows[0].contains("TAG"), "{plain}");
    assert_eq!(rows[2..4], ["1 worker: 1 running", "done"], "{plain}");
    let long = shown("ls -l");
    assert!(
        long.contains("\u{1b}[32mrunning") && long.lines().nth(3).is_some_and(|line| line.contains("done")),
        "{long}"
    );
    assert!(!shown("ls -l --color never").contains('\u{1b}'));
    let piped = rig.swarm(&["ls"]).ok();
    assert!(piped.contains(&format!("{}-worktrees/fix", repo.display())), "{piped}");
    assert!(rig.swarm(&["ls", "-l", "--color", "always"]).ok().contains("\u{1b}[32mrunning"));
    assert!(!rig.swarm(&["ls", "-l"]).ok().contains('\u{1b}'));
}

#[test]
fn a_file_of_workers_is_started_concurrently() {
    let rig = Rig::new();
    let file = rig.file(
        "fleet.toml",
        "[defaults]\ntags = ['all']\nenv = { A = 'default' }\n\
         [[worker]]\nname = 'line'\ncommand = 'echo \"$A\"; pwd; exec sleep 600'\n\
         [[worker]]\nname = 'words'\ncommand = ['sh', '-c', 'echo \"$A\"; exec sleep 600']\nenv = { A = 'own' }\ntags = ['own']\n\
         [[worker]]\nname = 'window'\ntmux = true\ncommand = ['sleep', '600']\n",
    );
    let said = rig.swarm(&["spawn", "--file", &file]).ok();
    let mut lines: Vec<&str> = said.lines().map(|line| line.split(" (").next().expect("a part")).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["spawned line", "spawned window", "spawned words"]);
    wait_until("all workers have written", SOON, || {
        rig.log("line", "stdout").lines().count() == 2 && !rig.log("words", "stdout").is_empty()
    });
    let home = rig.path("").canonicalize().expect("there");
    assert_eq!(rig.log("line", "stdout"), format!("default\n{}\n", home.display()));
    assert_eq!(rig.log("words", "stdout"), "own\n");
    assert_eq!(rig.view("words")["tags"].as_array().map(Vec::len), Some(2));
    assert_eq!(rig.swarm(&["ls", "-q", "--tag", "all"]).ok().lines().count(), 3);
    // All mistakes are reported, and nothing is started.
    let before = std::fs::read(rig.state()).expect("there");
    let again = rig.swarm(&["spawn", "-f", &file, "--json"]);
    assert_eq!((again.code, again.out.as_str()), (Some(1), ""));
    assert_eq!(again.err.matches("': already exists\n").count(), 3, "{}", again.err);
    let wrong = rig.file(
        "wrong.toml",
        "[[worker]]\nname = 'fresh'\ncommand = 'true'\n[[worker]]\nname = 'fresh'\ncommand = ['no-such-command-here']\n\
         [[worker]]\nname = 'a b'\ncommand = 'true'\n[[worker]]\nname = 'far'\ncwd = 'nowhere'\ncommand = 'true'\n",
    );
    let refused = rig.swarm(&["spawn", "-f", &wrong]);
    for cause in [
        "wrong.toml:4: worker 'fresh': duplicate name, first used in line 1",
        "wrong.toml:7: worker 'a b': invalid worker name",
        "wrong.toml:10: worker 'far': working directory does not exist: nowhere",
        "hint: fix the file; nothing was started",
    ] {
        assert!(refused.err.contains(cause), "{cause}: {}", refused.err);
    }
    assert_eq!(std::fs::read(rig.state()).expect("there"), before);
    let beside = rig.swarm(&["spawn", "-f", &file, "--tmux"]);
    assert!(beside.code == Some(2) && beside.err.contains("'--tmux' cannot be used with --file"), "{beside:?}");
}

#[test]
fn a_worker_of_a_file_that_cannot_start_does_not_block_the_others() {
    let rig = Rig::new();
    let repo = rig.repo();
    rig.git(&repo, &["branch", "taken"]);
    let tree = rig.path("elsewhere");
    rig.git(&repo, &["worktree", "add", "-q", tree.to_str().expect("text"), "taken"]);
    let file = repo.join("fleet.toml");
    let text = "[defaults]\ncommand = ['sleep', '600']\n[[worker]]\nname = 'a'\nworktree = true\nbranch = 'taken'\n[[worker]]\nname = 'b'\nworktree = true\n";
    std::fs::write(&file, text).expect("written");
    let said = rig.swarm(&["spawn", "-f", file.to_str().expect("text"), "--json"]);
    let value = json(&said.out);
    assert_eq!((said.code, value["schema"].as_str()), (Some(1), Some("swarm.fleet/1")));
    assert_eq!(value["workers"][0]["error"]["kind"], "worktree");
    assert_eq!(value["workers"][1]["name"], "b");
    assert!(said.err.starts_with("swarm: error: a: "), "{}", said.err);
    assert_eq!(rig.names(), ["b"]);
}
