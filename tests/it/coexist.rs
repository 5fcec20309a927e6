//! swarm and the original program on the same registry: each lists, kills, cleans and respawns the
//! workers of the other, and keeps unknown fields.

use std::process::Command;
use std::thread;

use crate::common::{Rig, SOON, Said, proc, run, wait_until};

/// Runs the stand-in for the original program and returns its output.
pub fn original(rig: &Rig, words: &[&str]) -> Said {
    run(original_command(rig, words))
}

pub fn original_command(rig: &Rig, words: &[&str]) -> Command {
    let mut command = rig.program("python3");
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/original.py")).args(words);
    command
}

fn pid_of_row(rig: &Rig, name: &str) -> i32 {
    let rows = rig.rows();
    let row = rows.iter().find(|row| row["name"] == name).expect("a row");
    i32::try_from(row["pid"].as_i64().expect("a pid")).expect("a pid")
}

#[test]
fn we_list_kill_and_clean_workers_of_the_original() {
    let rig = Rig::new();
    original(&rig, &["spawn", "p", "--", "sh", "-c", "sleep 600 & echo $! > below; wait"]).ok();
    original(&rig, &["spawn", "t", "--tmux", "theirs", "--", "sleep", "600"]).ok();
    let leader = pid_of_row(&rig, "p");
    wait_until("p has a child", SOON, || {
        std::fs::read_to_string(rig.cwd().join("below")).is_ok_and(|text| text.ends_with('\n'))
    });
    let below: i32 = std::fs::read_to_string(rig.cwd().join("below")).expect("there").trim().parse().expect("a pid");
    assert_eq!(rig.swarm(&["ls", "--format", "names", "--status", "running"]).ok(), "p\nt\n");
    assert_eq!(rig.swarm(&["status", "p"]).code, Some(0));
    rig.swarm(&["clean", "p"]).refused(1, "cannot clean running worker 'p'");
    rig.swarm(&["wait", "--all", "--timeout", "1"]).is(
        1,
        "p: still running (timeout)\nt: still running (timeout)\n",
        "",
    );
    rig.swarm(&["kill", "p"]).is(0, "killed p\n", "");
    assert!(!proc::alive(leader) && !proc::alive(below), "the whole tree ends");
    rig.swarm(&["kill", "t"]).is(0, "killed t\n", "");
    assert_eq!(original(&rig, &["ls"]).ok(), "p stopped\nt stopped\n");
    assert!(rig.rows().iter().all(|row| row["status"] == "stopped" && row["metadata"]["note"] == "é"));
    // The session has a window of the original's, which we must not close.
    assert_eq!(rig.tmux(&["list-sessions", "-F", "#{session_name}"]).ok(), "theirs\n");
    rig.swarm(&["clean", "--all"]).is(0, "cleaned p\ncleaned t\n", "");
    assert_eq!(original(&rig, &["ls"]).ok(), "");
}

#[test]
fn we_respawn_workers_of_the_original_with_their_row() {
    let rig = Rig::new();
    original(&rig, &["spawn", "p", "--", "sh", "-c", "echo $K > got; sleep 600"]).ok();
    original(&rig, &["spawn", "t", "--tmux", "theirs", "--", "sleep", "600"]).ok();
    let before = rig.rows();
    let first = pid_of_row(&rig, "p");
    assert_eq!(rig.swarm(&["respawn", "p"]).code, Some(0));
    assert!(!proc::alive(first));
    rig.swarm(&["respawn", "t"]).is(0, "respawned t (tmux: theirs:t)\n", "");
    let rows = rig.rows();
    for (row, before) in rows.iter().zip(&before) {
        for key in ["name", "cmd", "cwd", "env", "tags", "tmux"] {
            assert_eq!(row[key], before[key], "{key}");
        }
        assert_eq!(row["metadata"]["note"], "é");
    }
    assert_eq!(std::fs::read_to_string(rig.cwd().join("got")).expect("there"), "V\n");
    assert_eq!(original(&rig, &["ls"]).ok(), "p running\nt running\n");
    rig.swarm(&["kill", "--all"]).is(0, "killed p\nkilled t\n", "");
    assert_eq!(rig.exit("p"), "signal SIGTERM, stopped");
}

#[test]
fn the_original_lists_kills_and_cleans_our_workers() {
    let rig = Rig::new();
    let repo = rig.repo();
    rig.spawn("p", &["--env", "A=é", "--tag", "x"], &["sleep", "600"]);
    rig.spawn("t", &["--tmux"], &["sleep", "600"]);
    rig.swarm_in(&repo, &["spawn", "--name", "w", "--worktree", "--", "sleep", "600"]).ok();
    assert_eq!(original(&rig, &["ls"]).ok(), "p running\nt running\nw running\n");
    let pid = rig.pid("p");
    for name in ["p", "t", "w"] {
        original(&rig, &["kill", name]).ok();
        wait_until("the worker has ended", SOON, || rig.swarm(&["status", name]).code == Some(1));
    }
    assert!(!proc::alive(pid));
    assert_eq!(rig.exit("p"), "signal SIGTERM, exited");
    original(&rig, &["clean", "p"]).ok();
    assert_eq!(rig.names(), ["t", "w"]);
    rig.swarm(&["supervisor", "restart"]).ok();
    assert_eq!(rig.names(), ["t", "w"], "a worker that the original cleaned came back");
    assert!(!rig.root().join("w/p.1").exists(), "records without a row were not removed");
    // The name is free again, and the history of the old worker is closed.
    rig.spawn("p", &[], &["true"]);
    rig.wait("p");
    assert_eq!(rig.exit("p"), "code 0, exited");
    rig.swarm(&["clean", "--all"]).is(0, "cleaned t\ncleaned w\ncleaned p\n", "");
}

#[test]
fn a_worker_respawned_by_the_original_belongs_to_it() {
    let rig = Rig::new();
    rig.spawn("p", &["--restart", "always"], &["sleep", "600"]);
    let first = rig.pid("p");
    original(&rig, &["respawn", "p"]).ok();
    // The row still carries our metadata, which no longer counts.
    let second = pid_of_row(&rig, "p");
    assert!(first != second && rig.rows()[0]["metadata"]["swarm"].is_object());
    wait_until("the first process has ended", SOON, || !proc::alive(first));
    assert_eq!(rig.pid("p"), second);
    assert_eq!(rig.swarm(&["status", "p"]).code, Some(0));
    rig.swarm(&["kill", "p"]).is(0, "killed p\n", "");
    assert!(!proc::alive(second));
    assert_eq!(rig.names(), ["p"]);
    rig.swarm(&["clean", "p"]).is(0, "cleaned p\n", "");
}

#[test]
fn foreign_text_is_kept_byte_for_byte() {
    // The original drops unknown fields, and crashes on nested ones.
    let rig = Rig::new();
    let row = "{ \"zebra\" :[1,2,  {\"a\":1e400}], \"name\":\"theirs\",\"status\":\"stopped\",\"cmd\":[\"\\u00e9\", \"é\"],\n\n\
               \"started\":\"2020-01-01T00:00:00.000001\",\"cwd\":\"/\",\"pid\":null , \"tmux\":null,\
               \"worktree\":{\"path\":\"/nowhere\",\"branch\":\"b\",\"base_repo\":\"/nowhere\",\"extra\":{\"deep\":true}},\"metadata\":{\"z\":1.50,\"a\":[]}}";
    let state =
        format!("{{\"before\": [1,   2],\n  \"schema_version\": 1, \"workers\": [{row}],\"after\":{{\"x\" :null}}}}");
    rig.put_state(&state);
    rig.spawn("ours", &[], &["true"]);
    let text = std::fs::read_to_string(rig.state()).expect("there");
    for kept in [row, "[1,   2]", "{\"x\" :null}"] {
        assert!(text.contains(kept), "{kept} is missing: {text}");
    }
    let order =
        ["before", "schema_version", "workers", "after"].map(|key| text.find(&format!("\"{key}\"")).expect("there"));
    assert!(order.is_sorted(), "{text}");
    rig.wait("ours");
    rig.swarm(&["kill", "ours"]).ok();
    rig.swarm(&["clean", "ours"]).ok();
    assert!(std::fs::read_to_string(rig.state()).expect("there").contains(row));
    assert_eq!(rig.names(), ["theirs"]);
}

#[test]
fn the_file_is_written_in_the_format_of_the_original() {
    let rig = Rig::new();
    original(&rig, &["burst", "é", "3"]).ok();
    let before = std::fs::read_to_string(rig.state()).expect("there");
    rig.spawn("x", &[], &["true"]);
    rig.wait("x");
    rig.swarm(&["clean", "x"]).ok();
    assert_eq!(std::fs::read_to_string(rig.state()).expect("there"), before);
}

#[test]
fn both_programs_may_write_concurrently() {
    let rig = Rig::new();
    thread::scope(|scope| {
        let rig = &rig;
        for who in ["a", "b"] {
            scope.spawn(move || original(rig, &["burst", who, "20"]).ok());
        }
        scope.spawn(move || (0..20).for_each(|i| drop(rig.spawn(&format!("ours{i}"), &[], &["true"]))));
    });
    let names = rig.names();
    let count = |prefix: &str| names.iter().filter(|name| name.starts_with(prefix)).count();
    assert_eq!((count("a"), count("b"), count("ours"), names.len()), (20, 20, 20, 60));
}

#[test]
fn a_reused_pid_is_neither_running_nor_killed() {
    // The original reports a recycled pid as running, and kills it.
    let rig = Rig::new();
    let mut bystander = rig.program("sleep").arg("601").spawn().expect("started");
    let pid = i32::try_from(bystander.id()).expect("a pid");
    let row = format!(
        r#"{{"workers":[{{"name":"old","status":"running","cmd":["sleep","600"],"started":"2020-01-01T00:00:00.000001","cwd":"/","pid":{pid}}}]}}"#
    );
    rig.put_state(row);
    assert_eq!(rig.swarm(&["status", "old"]).code, Some(1));
    assert_eq!(rig.swarm(&["ls", "--format", "names", "--status", "running"]).ok(), "");
    rig.swarm(&["kill", "old"]).is(0, "killed old\n", "");
    assert!(proc::alive(pid), "an unrelated process was killed");
    rig.swarm(&["clean", "old"]).is(0, "cleaned old\n", "");
    assert!(proc::alive(pid), "an unrelated process was killed");
    bystander.kill().expect("killed");
    bystander.wait().expect("waited");
}

#[test]
fn a_worker_that_the_original_started_in_another_time_zone_is_alive() {
    let rig = Rig::new();
    original(&rig, &["spawn", "p", "--", "sleep", "600"]).ok();
    let in_zone = |words: &[&str]| {
        let mut command = rig.command(words);
        command.env("TZ", "JST-9");
        run(command)
    };
    let pid = pid_of_row(&rig, "p");
    assert_eq!(in_zone(&["ls", "--format", "names", "--status", "running"]).ok(), "p\n");
    in_zone(&["clean", "p"]).refused(1, "cannot clean running worker 'p'");
    in_zone(&["kill", "p"]).is(0, "killed p\n", "");
    assert!(!proc::alive(pid));
}

#[test]
fn a_relative_directory_of_the_original_is_that_of_the_caller() {
    let rig = Rig::new();
    std::fs::create_dir(rig.cwd().join("sub")).expect("made");
    rig.put_state(
        r#"{"workers":[{"name":"old","status":"stopped","cmd":["pwd"],"started":"2020-01-01T00:00:00.000001","cwd":"sub","pid":1}]}"#,
    );
    rig.swarm(&["respawn", "old"]).ok();
    rig.wait("old");
    let sub = rig.cwd().join("sub").canonicalize().expect("there");
    assert_eq!(rig.log("old", "stdout"), format!("{}\n", sub.display()));
}

#[test]
fn a_stale_save_of_the_original_costs_no_worker() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sleep", "600"]);
    let loaded = std::fs::read(rig.state()).expect("there");
    rig.spawn("b", &[], &["sleep", "600"]);
    let pid = rig.pid("b");
    std::fs::write(rig.state(), &loaded).expect("written");
    rig.swarm(&["spawn", "--name", "b", "--", "sleep", "600"]).refused(1, "worker 'b' already exists");
    assert_eq!((rig.names(), rig.pid("b")), (vec!["a".to_owned(), "b".to_owned()], pid));
    std::fs::write(rig.state(), &loaded).expect("written");
    rig.swarm(&["kill", "--all"]).is(0, "killed a\nkilled b\n", "");
    assert!(!proc::alive(pid));
}

#[test]
fn a_stale_save_of_a_cleaned_worker_costs_no_worker_of_its_name() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sh", "-c", "exit 3"]);
    rig.wait("a");
    let stale = std::fs::read(rig.state()).expect("there");
    rig.swarm(&["clean", "a"]).ok();
    rig.spawn("a", &[], &["sleep", "600"]);
    let pid = rig.pid("a");
    std::fs::write(rig.state(), &stale).expect("written");
    let view = rig.view("a");
    assert_eq!((view["state"].as_str(), rig.pid("a")), (Some("running"), pid));
    rig.swarm(&["kill", "a"]).is(0, "killed a\n", "");
    assert!(!proc::alive(pid));
    rig.swarm(&["clean", "a"]).ok();
    assert_eq!(rig.names(), Vec::<String>::new());
}

#[test]
fn a_worker_whose_row_another_program_dropped_is_listed_and_killed() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sleep", "600"]);
    let loaded = std::fs::read_to_string(rig.state()).expect("there");
    rig.spawn("w", &[], &["sleep", "600"]);
    let first = rig.pid("w");
    std::fs::write(rig.state(), &loaded).expect("written");
    assert_eq!(rig.names(), ["a", "w"]);
    assert_eq!(rig.swarm(&["status", "w"]).code, Some(0));
    rig.swarm(&["kill", "w"]).is(0, "killed w\n", "");
    assert!(!proc::alive(first));
    // The next supervisor finds it, too.
    rig.spawn("v", &[], &["sleep", "600"]);
    let all = [rig.pid("a"), rig.pid("v")];
    rig.swarm(&["supervisor", "stop"]).ok();
    std::fs::write(rig.state(), "{\"workers\": []}").expect("written");
    let said = rig.swarm(&["kill", "--all"]).ok();
    assert!(said.contains("killed a\n") && said.contains("killed v\n"), "{said}");
    assert!(!all.into_iter().any(proc::alive));
}
