//! Sessions: `.agent/state.json` and `heartbeat.json` of workers with a worktree.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::{Rig, SOON, Said, holds_for, remove_worktree, run, wait_until};

/// Heartbeat interval in milliseconds, short enough for a test.
const OFTEN: &str = "100";

fn swarm(rig: &Rig, cwd: &Path, words: &[&str]) -> Said {
    let mut command = rig.command(words);
    command.current_dir(cwd).env("AGENT_HEARTBEAT_INTERVAL_MS", OFTEN);
    run(command)
}

/// Starts a waiting worker with a worktree and returns its session folder.
#[track_caller]
fn at_work(rig: &Rig, repo: &Path, flags: &[&str]) -> PathBuf {
    let words = [&["spawn", "--name", "a", "--worktree"], flags, &["--", "sleep", "600"]].concat();
    swarm(rig, repo, &words).ok();
    rig.path("repo-worktrees/a/.agent")
}

fn read(path: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[track_caller]
fn state(folder: &Path) -> Value {
    read(&folder.join("state.json")).expect("a state")
}

#[track_caller]
fn wait_status(folder: &Path, status: &str) {
    wait_until(status, SOON, || read(&folder.join("state.json")).is_some_and(|state| state["status"] == status));
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o777
}

#[test]
fn a_worker_with_a_worktree_has_a_session_that_both_programs_can_read() {
    let rig = Rig::new();
    let repo = rig.repo();
    let folder = at_work(&rig, &repo, &[]);
    wait_status(&folder, "running");
    wait_until("a heartbeat", SOON, || read(&folder.join("heartbeat.json")).is_some());
    let (now, beat) = (state(&folder), read(&folder.join("heartbeat.json")).expect("a heartbeat"));
    let id = now["sessionId"].as_str().expect("an id");
    assert_eq!((id.len(), &now["linearSessionId"], &now["issueId"]), (36, &json!(id), &json!(id)));
    for (key, value) in [
        ("issueIdentifier", json!("a")),
        ("workType", json!("development")),
        ("prompt", json!("sleep 600")),
        ("attemptCount", json!(1)),
        ("recoveryAttempts", json!(0)),
        ("currentStep", json!("streaming")),
        ("pid", json!(rig.pid("a"))),
        ("taskListId", json!("a-DEV")),
        ("providerSessionId", Value::Null),
    ] {
        assert_eq!(now[key], value, "{key} in {now}");
    }
    assert!(now["startedAt"].is_i64() && now["lastUpdatedAt"].is_i64());
    assert_eq!((&beat["pid"], &beat["toolCallsCount"]), (&now["pid"], &json!(0)));
    assert_eq!(beat.as_object().map(serde_json::Map::len), Some(8));
    for file in ["state.json", "heartbeat.json", "state.lock", "progress.log"] {
        assert_eq!(mode(&folder.join(file)), 0o600, "{file}");
    }
    assert_eq!(mode(&folder) & 0o027, 0);
    assert_eq!(rig.git(&rig.path("repo-worktrees/a"), &["status", "--porcelain"]), "");
    rig.swarm(&["kill", "a"]).ok();
    wait_status(&folder, "stopped");
    assert_eq!(state(&folder)["swarm"]["end"], "operator-cancelled");
    wait_until("no heartbeat of the dead", SOON, || !folder.join("heartbeat.json").exists());
    rig.swarm(&["clean", "a"]).is(0, "cleaned a\n", "");
    assert!(!folder.exists());
    // The same name, with generations that start from one again.
    swarm(&rig, &repo, &["spawn", "--name", "a", "--worktree", "--branch", "b", "--", "sleep", "600"]).ok();
    wait_until("a heartbeat of the next one", SOON, || read(&folder.join("heartbeat.json")).is_some());
}

#[test]
fn heartbeats_continue_only_while_the_agent_lives() {
    let rig = Rig::new();
    let folder = at_work(&rig, &rig.repo(), &[]);
    let beat = || read(&folder.join("heartbeat.json")).and_then(|beat| beat["timestamp"].as_i64());
    wait_until("a heartbeat", SOON, || beat().is_some());
    let first = beat();
    wait_until("the next one", SOON, || beat() > first);
    // For a moment no process can record the exit, but the heartbeats stop.
    let agent = rig.pid("a");
    rig.kill_keepers();
    crate::common::proc::kill(agent);
    rig.wait("a");
    let last = beat();
    holds_for("no beat for the dead", std::time::Duration::from_millis(500), || beat() == last);
    swarm(&rig, &rig.cwd(), &["supervisor", "restart"]);
    wait_status(&folder, "failed");
    assert!(!folder.join("heartbeat.json").exists());
}

#[test]
fn the_session_of_another_issue_or_agent_is_refused() {
    let rig = Rig::new();
    fs::create_dir(rig.cwd().join("d")).expect("made");
    let spawn = |name: &str, flags: &[&str]| {
        let words = [&["spawn", "--name", name, "--session-dir", "d"], flags, &["--", "true"]].concat();
        swarm(&rig, &rig.cwd(), &words)
    };
    spawn("x", &["--issue", "SUP-1", "--work-type", "qa", "--prompt", "try it"]).ok();
    let folder = rig.cwd().join("d/.agent");
    wait_status(&folder, "completed");
    let was = state(&folder);
    assert_eq!(
        (&was["issueIdentifier"], &was["workType"], &was["prompt"]),
        (&json!("SUP-1"), &json!("qa"), &json!("try it"))
    );
    let cause = format!("the session in {} belongs to 'SUP-1', not to 'y'", folder.display());
    let said = spawn("y", &[]).refused(1, &cause);
    assert!(said.err.contains("swarm clean x"), "{said:?}");
    assert_eq!(state(&folder), was);
    // A session of the same issue in which an agent works.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis();
    fs::write(folder.join("heartbeat.json"), format!("{{\"timestamp\": {now}, \"pid\": 1}}")).expect("written");
    let said = spawn("z", &["--issue", "SUP-1"]);
    let held = format!("the session in {} is in use by a running agent: ", folder.display());
    assert!(said.code == Some(1) && said.err.contains(&held), "{said:?}");
    assert_eq!(rig.names(), ["x"]);
    fs::remove_file(folder.join("heartbeat.json")).expect("removed");
    spawn("z", &["--issue", "SUP-1"]).ok();
    wait_status(&folder, "completed");
    assert_eq!(state(&folder)["issueId"], was["issueId"], "the issue is unchanged");
}

#[test]
fn a_worker_that_lost_its_session_stops_and_leaves_it_alone() {
    let rig = Rig::new();
    let folder = at_work(&rig, &rig.repo(), &[]);
    wait_status(&folder, "running");
    // As every program must: read and written under the lock.
    let lock = fs::File::open(folder.join("state.lock")).expect("there");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("taken");
    let mut theirs = state(&folder);
    theirs["sessionId"] = json!("theirs");
    theirs["startedAt"] = json!(5);
    let text = theirs.to_string();
    fs::write(rig.path("other"), &text).expect("written");
    fs::rename(rig.path("other"), folder.join("state.json")).expect("replaced");
    drop(lock);
    wait_until("the worker is stopped", SOON, || rig.fine("a") == "stopped");
    assert_eq!(fs::read_to_string(folder.join("state.json")).expect("read"), text);
    assert!(rig.path("repo-worktrees/a/file").exists());
    let events = rig.swarm(&["events", "a"]).ok();
    assert!(events.contains("stopped, because launch theirs took over its session"), "{events}");
}

#[test]
fn deleted_or_forged_session_files_are_written_again() {
    let rig = Rig::new();
    let folder = at_work(&rig, &rig.repo(), &[]);
    wait_status(&folder, "running");
    fs::write(folder.join("heartbeat.json"), "{\"timestamp\": 1, \"pid\": 1}").expect("written");
    let pid = rig.pid("a");
    wait_until("a beat of ours", SOON, || read(&folder.join("heartbeat.json")).is_some_and(|beat| beat["pid"] == pid));
    for broken in ["{}", "half"] {
        fs::write(folder.join("state.json"), broken).expect("written");
        wait_until("the state is repaired", SOON, || {
            read(&folder.join("state.json")).is_some_and(|now| now["status"] == "running")
        });
    }
    assert_eq!(fs::read_to_string(folder.join("state.json.malformed")).expect("read"), "half");
    assert_eq!(rig.fine("a"), "running");
    // A heartbeat may be written there at the same moment.
    wait_until("the folder is removed", SOON, || fs::remove_dir_all(&folder).is_ok());
    wait_until("a beat again", SOON, || folder.join("heartbeat.json").exists());
    wait_status(&folder, "running");
    assert_eq!(state(&folder)["issueIdentifier"], "a");
    remove_worktree(rig.path("repo-worktrees/a"));
    holds_for("no worktree is made", std::time::Duration::from_millis(400), || !rig.path("repo-worktrees/a").exists());
    assert_eq!(rig.fine("a"), "running");
}

#[test]
fn a_session_is_shown_checked_and_changed() {
    let rig = Rig::new();
    let folder = at_work(&rig, &rig.repo(), &[]);
    wait_status(&folder, "running");
    let tree = rig.path("repo-worktrees/a");
    let said = swarm(&rig, &tree, &["session", "update", "currentPhase=writing tests", "mine:={\"b\": [1]}"]).ok();
    assert!(said.contains("Phase:        writing tests\n"), "{said}");
    assert_eq!(state(&folder)["mine"], json!({"b": [1]}));
    rig.swarm(&["session", "check", "a"]).is(1, "agent_alive: an agent is running\n", "");
    let shown: Value = serde_json::from_str(&rig.swarm(&["session", "show", "a", "--json"]).ok()).expect("JSON");
    assert_eq!(
        (&shown["schema"], &shown["state"]["currentPhase"]),
        (&json!("swarm.session/1"), &json!("writing tests"))
    );
    rig.swarm(&["kill", "a"]).ok();
    wait_status(&folder, "stopped");
    rig.swarm(&["session", "check", "a"]).is(0, "recoverable: resumed 0 times (limit 3)\n", "");
    let other = rig.swarm(&["session", "check", "a", "--expect", "B-2"]);
    other.is(1, "identifier_mismatch: the session belongs to 'a'\n", "");
    rig.swarm(&["session", "show", "a", "--expect", "B-2"])
        .refused(1, &format!("the session in {} belongs to 'a', not to 'B-2'", folder.join("state.json").display()));
    let before = fs::read(folder.join("state.json")).expect("read");
    rig.swarm(&["session", "update", "--worker", "a", "pid=x"]).refused(1, "'pid' must be a whole number, at least 0");
    assert_eq!(fs::read(folder.join("state.json")).expect("read"), before);
    // A supervisor moves a malformed file aside when it has something to write.
    rig.swarm(&["supervisor", "stop"]).ok();
    fs::write(folder.join("state.json"), "half").expect("written");
    let said = rig.swarm(&["session", "show", "a"]);
    assert!(said.code == Some(1) && said.err.contains("is malformed"), "{said:?}");
    assert!(rig.swarm(&["session", "check", "a"]).out.starts_with("no_state: "));
    rig.swarm(&["session", "show"]).refused(1, &format!("no session in {}", rig.cwd().display()));
}

#[test]
fn a_stuck_worker_is_nudged_and_restarted() {
    let rig = Rig::new();
    let script = "echo up; while read line; do echo \"heard $line\"; done";
    let words = ["spawn", "--name", "a", "--tmux", "--stuck-after", "1s", "--stuck-message", "go on", "--"];
    swarm(&rig, &rig.cwd(), &[&words[..], &["sh", "-c", script]].concat()).ok();
    wait_until("a nudge", SOON, || rig.log("a", "tmux").contains("heard go on"));
    wait_until("the worker is restarted", SOON * 3, || {
        let events = rig.swarm(&["events", "a", "--json"]).ok();
        events.matches("\"worker.started\"").count() >= 2
    });
    let events = rig.swarm(&["events", "a"]).ok();
    let step = |line: &str, word: &str| line.contains("no output for ") && line.ends_with(&format!(" s): {word}"));
    for word in ["nudged", "interrupted"] {
        assert!(events.lines().any(|line| step(line, word)), "{events}");
    }
    assert!(events.contains("the interrupt has ended it): restarted"), "{events}");
    assert_eq!(rig.fine("a"), "running");
    rig.swarm(&["kill", "a"]).ok();
}
