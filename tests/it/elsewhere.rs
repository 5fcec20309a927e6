//! A state directory on a home that several machines share: workers of another machine are shown and left alone, and
//! only one machine supervises the directory. The other machine is made up by rewriting the records.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::{Rig, SOON, proc, skipped, wait_until};

const FAR: &str = "far";

/// Reports whether this machine has an id by which it can tell others from itself.
pub fn has_id() -> bool {
    let valid = fs::read_to_string("/etc/machine-id").is_ok_and(|id| id.trim().len() == 32);
    if !valid {
        skipped("this machine has no /etc/machine-id");
    }
    valid
}

/// Returns the records that name a machine: contracts, leases, and the fence of the supervisor.
fn records(rig: &Rig) -> Vec<PathBuf> {
    let mut found = vec![rig.root().join("supervisor.machine")];
    for dir in fs::read_dir(rig.root().join("w")).expect("listed").flatten() {
        found.extend(["spec.json", "lease"].map(|name| dir.path().join(name)));
    }
    found.retain(|path| path.exists());
    found
}

fn rewrite(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).expect("read")).expect("JSON");
    change(&mut value);
    // In place: the shim's lock is on the file.
    fs::write(path, value.to_string()).expect("written");
}

/// Kills every process of the rig and makes its records look as if another machine wrote them.
pub fn move_away(rig: &Rig) {
    wait_until("everything is killed", SOON, || {
        let left = rig.processes();
        left.iter().for_each(|pid| proc::signal(*pid, proc::Signal::STOP));
        // The end of a tmux server continues the shims of its windows, so those are killed before it.
        left.iter().rev().for_each(|pid| proc::kill(*pid));
        left.is_empty()
    });
    let far = json!({"id": "another", "boot": "another-boot", "host": FAR});
    for path in records(rig) {
        rewrite(&path, |value| match value.get("machine") {
            None => *value = far.clone(),
            Some(_) => {
                value["machine"] = far.clone();
                for process in ["worker", "shim"] {
                    if let Some(process) = value.get_mut(process) {
                        process["boot"] = json!("another-boot");
                    }
                }
            }
        });
    }
}

fn lines(rig: &Rig, name: &str) -> usize {
    fs::read_to_string(rig.cwd().join(name)).map_or(0, |text| text.lines().count())
}

#[test]
fn workers_of_another_machine_are_left_alone_until_it_is_declared_gone() {
    if !has_id() {
        return;
    }
    let rig = Rig::new();
    let script = |name: &str| format!("echo up >> {name}.ran; exec sleep 600");
    rig.spawn_sh("plain", &[], &script("plain"));
    rig.spawn_sh("window", &["--tmux"], &script("window"));
    rig.spawn_sh("policy", &["--restart", "always"], &script("policy"));
    rig.spawn_sh("ended", &[], "exit 3");
    rig.wait("ended");
    let all = ["plain", "window", "policy"];
    wait_until("all are up", SOON, || all.iter().all(|name| lines(&rig, &format!("{name}.ran")) == 1));
    move_away(&rig);

    for name in all {
        let view = rig.view(name);
        assert_eq!(
            (&view["state"], &view["status"], &view["pid"]),
            (&json!("elsewhere"), &json!("running"), &json!(null))
        );
    }
    assert_eq!(rig.exit("ended"), "code 3, exited");
    assert_eq!(rig.swarm(&["ls", "-l"]).ok().matches("elsewhere: far").count(), 3);
    let status = rig.swarm(&["status", "plain"]);
    assert!(status.code == Some(0) && status.out.starts_with("plain: running (elsewhere: far"), "{status:?}");
    let explained = rig.swarm(&["explain", "plain"]).ok();
    assert!(explained.contains("machine 'far'") && explained.contains("swarm recover --gone far"), "{explained}");
    let doctor = rig.swarm(&["doctor"]).out;
    assert!(
        doctor.contains("3 worker(s) are on another machine") && !doctor.contains("without a supervisor"),
        "{doctor}"
    );
    let waited = rig.swarm(&["wait", "plain", "--timeout", "1"]);
    assert_eq!((waited.out.as_str(), waited.code), ("plain: still running (timeout)\n", Some(1)));
    assert!(waited.err.contains("'plain' is on machine 'far'"), "{waited:?}");
    let listed = rig.swarm(&["recover"]).ok();
    assert_eq!(listed.matches("on another machine, which supervises it").count(), 3, "{listed}");

    for words in [&["kill", "plain"][..], &["respawn", "plain"], &["clean", "plain"]] {
        let said = rig.swarm(words).refused(1, "worker 'plain' is on machine 'far'");
        assert!(said.err.contains("run this on 'far'") && said.err.contains("--gone far"), "{said:?}");
    }
    for words in [&["send", "window", "text"][..], &["peek", "window"]] {
        let said = rig.swarm(words);
        assert!(said.code == Some(1) && said.err.contains("worker 'window' is on machine 'far'"), "{said:?}");
    }
    let serves = format!("the supervisor of machine 'far' serves {}", rig.root().display());
    let spawn = ["spawn", "--name", "new", "--", "true"];
    for words in [&["supervisor", "start"][..], &["recover", "--apply"], &["kill", "--all"], &spawn] {
        rig.swarm(words).refused(1, &serves);
    }
    wait_until("the refused supervisors are gone", SOON, || rig.keepers() == (None, None));
    assert_eq!(rig.names(), ["plain", "window", "policy", "ended"]);

    let said = rig.swarm(&["recover", "--gone", "near"]);
    assert!(said.code == Some(1) && said.err.contains("name one of these: 'far'"), "{said:?}");
    rig.swarm(&["recover", "--gone", FAR, "--apply", "--settle", "0"]).ok();
    for name in all {
        wait_until(name, SOON, || rig.fine(name) == "running" && lines(&rig, &format!("{name}.ran")) == 2);
    }
    assert_eq!(rig.exit("ended"), "code 3, exited");
    rig.swarm(&["kill", "--all"]).ok();
    assert!(all.iter().all(|name| lines(&rig, &format!("{name}.ran")) == 2), "one start each");
}

#[test]
fn another_name_of_this_machine_and_records_without_a_machine_are_ours() {
    let rig = Rig::new();
    for name in ["renamed", "old"] {
        rig.spawn(name, &[], &["sleep", "600"]);
    }
    rig.kill_keepers();
    for path in records(&rig) {
        let old = path.to_string_lossy().contains("/old.1/");
        rewrite(&path, |value| match value.get_mut("machine") {
            Some(_) if old => drop(value.as_object_mut().expect("an object").remove("machine")),
            Some(machine) => machine["host"] = json!("old-name"),
            None => value["host"] = json!("old-name"),
        });
    }
    for name in ["renamed", "old"] {
        assert_eq!(rig.fine(name), "running");
    }
    // Adopts both.
    rig.spawn("new", &[], &["sleep", "600"]);
    rig.swarm(&["kill", "--all"]).ok();
    for name in ["renamed", "old"] {
        assert_eq!(rig.fine(name), "stopped");
    }
}

#[test]
fn a_stopped_supervisor_gives_the_directory_up_only_if_nothing_runs() {
    let rig = Rig::new();
    let fence = rig.root().join("supervisor.machine");
    rig.spawn("a", &[], &["sleep", "600"]);
    assert!(fence.exists());
    rig.swarm(&["supervisor", "stop"]).ok();
    assert!(fence.exists(), "the worker is still here");
    rig.swarm(&["kill", "a"]).ok();
    rig.swarm(&["supervisor", "stop"]).ok();
    assert!(!fence.exists());
}
