//! Another version of the program takes over: what earlier versions left on disk, and work that is going on.

use std::path::Path;
use std::time::Duration;

use crate::common::{Rig, SOON, run, run_within, wait_until};
use crate::crash::both;
use crate::keepers::{assert_outside, executable, newer};
use crate::run::Site;

const BINARY: &str = env!("CARGO_BIN_EXE_swarm");

#[test]
fn twenty_workers_survive_an_upgrade_and_a_downgrade() {
    let rig = Rig::new();
    let names: Vec<String> = (0..20).map(|number| format!("w{number}")).collect();
    // The last one is started by the newer program.
    for name in &names[..19] {
        rig.spawn(name, &["--restart", "always"], &["sleep", "600"]);
    }
    let words: Vec<&str> = names.iter().map(String::as_str).collect();
    let pids = || words[..19].iter().map(|name| rig.pid(name)).collect::<Vec<_>>();
    let before = pids();
    let new = newer(&rig, "new");
    for program in [new.as_path(), Path::new(BINARY)] {
        let mut command = rig.program(program);
        // A newer program replaces the supervisor by itself, an older one on request.
        let spawn = &["spawn", "--name", "w19", "--restart", "always", "--", "sleep", "600"][..];
        command.args(if program == new { spawn } else { &["supervisor", "restart"] });
        run(command).ok();
        assert_eq!((executable(both(&rig).0), pids()), (program.to_owned(), before.clone()));
        assert!(words.iter().all(|name| rig.fine(name) == "running"));
        assert_outside(&rig, &words);
    }
    let events = std::fs::read_to_string(rig.root().join("events.jsonl")).expect("there");
    assert_eq!(events.matches("\"worker.started\"").count(), 20, "{events}");
    assert_eq!(events.matches("\"worker.exited\"").count(), 0, "{events}");
    let mut command = rig.program(&new);
    command.args(["kill", "--all"]);
    assert_eq!(run(command).out.lines().count(), 20);
}

#[test]
fn a_run_a_queue_and_a_loop_survive_an_upgrade_and_a_downgrade() {
    let site = Site::new();
    let rig = &site.rig;
    let until_told = "until [ -e ../../../go ]; do sleep 0.05; done";
    for id in ["a", "b"] {
        site.spec(id, "", &format!("echo {id} >> ../../../ran; {until_told}; echo {id} > {id}.txt"));
    }
    site.write("PROMPT.md", "go on\n");
    let agent = rig.file("loop", "printf '> '; read line; echo dev >> ran; until [ -e go ]; do sleep 0.05; done\n");
    site.under_way(&[]);
    for name in ["first", "w", "x"] {
        let work = format!("echo {name} > {name}.txt; git add {name}.txt; git commit -qm {name}");
        site.swarm(&["spawn", "--name", name, "--worktree", "--", "sh", "-c", &work]).ok();
        rig.wait(name);
    }
    // A queue exists from its first item on.
    site.swarm(&["merge", "add", "first"]).ok();
    site.swarm(&["merge", "wait"]).ok();
    site.swarm(&["merge", "pause"]).ok();
    for name in ["w", "x"] {
        site.swarm(&["merge", "add", name]).ok();
    }
    let ralph = ["ralph", "spawn", "--name", "dev", "--prompt-file", "PROMPT.md", "--no-worktree"];
    site.swarm(&[&ralph[..], &["--max-iterations", "1", "--", "sh", &agent]].concat()).ok();
    let ran = || {
        let text = std::fs::read_to_string(site.repo.join("ran")).unwrap_or_default();
        let mut ran: Vec<String> = text.lines().map(str::to_owned).collect();
        ran.sort();
        ran
    };
    wait_until("both specs and the loop are at work", SOON, || ran() == ["a", "b", "dev"]);
    let items = || site.swarm(&["merge", "ls", "--json"]).ok().matches("\"state\":\"queued\"").count();
    let seen = || {
        let pids = ["a", "b"].map(|id| site.row(id)["pid"].clone());
        let shims: Vec<i32> =
            rig.names().iter().filter(|name| rig.fine(name) == "running").map(|name| rig.pid(name)).collect();
        (pids, shims, rig.names(), site.statuses(), items())
    };
    let before = seen();
    assert_eq!((before.1.len(), before.4), (3, 2), "{before:?}");
    let new = newer(rig, "new");
    for program in [new.as_path(), Path::new(BINARY)] {
        let mut command = rig.program(program);
        command.args(["supervisor", "restart"]);
        run(command).ok();
        assert_eq!((executable(both(rig).0), seen()), (program.to_owned(), before.clone()));
    }
    std::fs::write(site.repo.join("go"), "").expect("written");
    site.swarm(&["merge", "resume"]).ok();
    wait_until("the run is over", SOON, || site.statuses() == ["a done", "b done"]);
    let log = |name: &str| site.git(&["log", "--format=%s", "main", "--", &format!("{name}.txt")]).lines().count();
    wait_until("the items have landed", SOON, || ["w", "x"].iter().all(|name| log(name) > 0));
    wait_until("the loop is over", SOON, || {
        let lines = std::fs::read_to_string(rig.root().join("ralph/dev/iterations.log")).unwrap_or_default();
        lines.contains("[DONE]")
    });
    assert_eq!(ran(), ["a", "b", "dev"], "something ran twice");
    assert_eq!(
        ["a", "b", "w", "x"].map(|name| (site.landed(&format!("{name}.txt")), log(name))),
        ["a", "b", "w", "x"].map(|name| (name.to_owned(), 1))
    );
    let events = std::fs::read_to_string(rig.root().join("events.jsonl")).expect("there");
    assert_eq!(events.matches("\"worker.started\"").count(), 6, "{events}");
}

#[test]
fn states_of_earlier_versions_read_as_they_did() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/upgrade");
    let rig = Rig::new();
    let mut command = rig.program("python3");
    command.arg(data.join("check")).env("SWARM_BIN", BINARY).env("PYTHONDONTWRITEBYTECODE", "1");
    // A few seconds on an idle machine.
    let said = run_within(command, Duration::from_secs(120)).expect("in time");
    let index = std::fs::read_to_string(data.join("v1/index.json")).expect("there");
    let index: serde_json::Value = serde_json::from_str(&index).expect("JSON");
    let states: Vec<String> =
        index["states"].as_object().expect("states").keys().map(|name| format!("v1/{name}: ok")).collect();
    let mut read: Vec<&str> = said.out.lines().collect();
    read.sort_unstable();
    assert_eq!((said.code, read), (Some(0), states.iter().map(String::as_str).collect()), "{}", said.err);
}
