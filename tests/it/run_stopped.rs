//! Work that is in the merge queue when its run ends, and runs whose queue is paused.

use std::fs;

use serde_json::Value;

use crate::common::{SOON, wait_until};
use crate::run::{Site, text};

const PAUSED: &str = "swarm: warning: the queue of main is paused\n";

impl Site {
    /// Returns stage and last text of workstream `a`, as the status of the run shows them.
    fn line_of_a(&self) -> String {
        let shown = self.swarm(&["run", "status"]).ok();
        shown.lines().find(|line| line.starts_with("a ")).expect("a line").to_owned()
    }
}

#[test]
fn a_person_who_stops_a_run_is_told_what_still_lands_and_can_stop_that() {
    let site = Site::new();
    let (on, go) = (site.rig.path("on"), site.rig.path("go"));
    site.spec("a", "", "echo a > a.txt");
    site.spec("b", "", "exec tail -f /dev/null");
    let verify = format!("touch {}; until [ -e {} ]; do sleep 0.05; done", on.display(), go.display());
    site.begin(&["--verify", &verify]);
    wait_until("the work is verified", SOON, || on.exists());
    let said = site.swarm(&["run", "stop"]);
    let lands = "lands although the run has ended, unless you run 'swarm merge pause --base main'";
    assert_eq!((said.code, said.err), (Some(0), format!("swarm: note: a: {lands}\n")));
    assert!(site.line_of_a().contains("merging") && site.line_of_a().ends_with(lands), "{}", site.line_of_a());
    let events = fs::read_to_string(site.repo.join(".arial/events.jsonl")).expect("events");
    assert_eq!(events.matches("\"merge.continues\"").count(), 1, "{events}");
    // What is being verified does not land from a paused queue.
    site.swarm(&["merge", "pause", "--base", "main"]).ok();
    fs::write(&go, "").expect("written");
    let state =
        || -> Value { serde_json::from_str(&site.swarm(&["merge", "status", "a", "--json"]).out).expect("JSON") };
    wait_until("it is queued again", SOON, || state()["state"] == "queued");
    let said = site.swarm(&["run", "status"]);
    assert!(said.err == PAUSED && said.out.contains("in the merge queue, from which nothing lands now"), "{said:?}");
    site.swarm(&["merge", "resume", "--base", "main"]).ok();
    site.swarm(&["merge", "wait", "repo.a", "--timeout", "25"]).is(0, "repo.a: landed (main)\n", "");
    assert!(site.line_of_a().contains(" done "), "{}", site.line_of_a());
    let status: Value = serde_json::from_str(&site.swarm(&["run", "status", "--json"]).ok()).expect("JSON");
    assert_eq!(text(&status["workstreams"][0]["commit"]), site.git(&["rev-parse", "main"]));
}

#[test]
fn a_run_says_that_the_queue_of_its_base_is_paused() {
    let site = Site::new();
    site.spec("a", "", "echo a > a.txt");
    site.commit();
    site.plan();
    site.swarm(&["merge", "pause", "--base", "main"]).ok();
    let said = site.swarm(&["run", "--detach"]);
    assert!(said.code == Some(0) && said.err.contains(PAUSED), "{said:?}");
    let said = site.swarm(&["run", "status"]);
    assert!(said.code == Some(0) && said.err.contains(PAUSED), "{said:?}");
    site.swarm(&["merge", "resume", "--base", "main"]).ok();
    let said = site.swarm(&["run", "attach"]);
    assert!(said.code == Some(0) && site.repo.join("a.txt").exists(), "{said:?}");
}

#[test]
fn a_new_plan_names_queued_work_of_specs_that_were_changed_or_removed() {
    let site = Site::new();
    for id in ["a", "b", "c"] {
        site.spec(id, "", &format!("echo {id} > {id}.txt"));
    }
    site.commit();
    site.plan();
    site.swarm(&["merge", "pause", "--base", "main"]).ok();
    assert_eq!(site.swarm(&["run", "--detach"]).code, Some(0));
    let queued = || site.swarm(&["run", "status"]).out.matches(" merging ").count();
    wait_until("all are queued", SOON, || queued() == 3);
    assert_eq!(site.swarm(&["run", "stop"]).code, Some(0));
    site.spec("a", "", "echo new > new.txt");
    fs::remove_file(site.repo.join("specs/b.md")).expect("removed");
    let plan = || site.swarm(&["plan", "--specs", "specs", "-y"]);
    let said = plan();
    assert_eq!(said.code, Some(0), "{said:?}");
    let is_named = |err: &str| ["a", "b", "c"].map(|id| err.contains(&format!("'swarm merge drop repo.{id}'")));
    assert_eq!(is_named(&said.err), [true, true, false], "{said:?}");
    site.swarm(&["merge", "drop", "repo.a"]).ok();
    site.swarm(&["merge", "drop", "repo.b"]).ok();
    assert_eq!(is_named(&plan().err), [false; 3]);
}
