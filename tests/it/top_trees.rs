//! Runs and flows in `swarm top`: what it says is what `run status` and `flow status` say.

use std::fs;

use serde_json::{Map, Value};

use crate::common::{SOON, wait_until};
use crate::top::Top;
use crate::top_screen::Pane;
use crate::{flow_run, run};

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().expect("an object").clone()
}

/// Reports whether a row has these members, but for those that are left out.
fn has(row: &Value, members: &Value, left_out: &[&str]) -> bool {
    object(members).iter().all(|(key, value)| left_out.contains(&key.as_str()) || row.get(key) == Some(value))
}

/// Waits until the board says what `run status` says.
fn agrees_on_run(top: &mut Top, site: &run::Site, what: &str) {
    top.is(what, |top| {
        let status: Value = serde_json::from_str(&site.swarm(&["run", "status", "--json"]).ok()).expect("JSON");
        let home = status["home"].as_str().expect("a path");
        let rows = status["workstreams"].as_array().expect("a list");
        let row = |one: &Value| top.workstreams.get(&format!("{home}/{}", one["id"].as_str().expect("an id")));
        let is_run = top.runs.get(home).is_some_and(|run| has(run, &status, &["schema", "given_up", "workstreams"]));
        is_run
            && rows.len() == top.workstreams.len()
            && rows.iter().all(|one| row(one).is_some_and(|row| has(row, one, &["to_land"])))
    });
}

#[test]
fn a_run_is_on_the_board_as_its_status_says() {
    let site = run::Site::new();
    let go = site.rig.path("go");
    site.spec(
        "a",
        "",
        &format!("until [ -e '{}' ]; do read -t 0.02 x <> /dev/fd/1 || :; done; echo a > a", go.display()),
    );
    site.spec("b", "after: [a]\nretries: 0\n", "exit 3");
    site.commit();
    let mut near = Top::start_in(&site.rig, &site.repo);
    let mut far = Top::start_in(&site.rig, &site.rig.cwd());
    assert!(near.runs.is_empty());
    site.swarm(&["plan", "--specs", "specs", "-y"]).ok();
    site.swarm(&["run", "--detach"]).ok();
    for top in [&mut near, &mut far] {
        top.is("it works", |top| top.workstreams.values().any(|row| row["id"] == "a" && row["stage"] == "working"));
        agrees_on_run(top, &site, "a run that works");
    }
    let b = near.workstreams.values().find(|row| row["id"] == "b").expect("a row").clone();
    assert_eq!((b["stage"].as_str(), b["after"][0].as_str()), (Some("pending"), Some("a")));
    site.swarm(&["run", "pause"]).ok();
    near.is("it is paused", |top| top.runs.values().all(|run| run["status"] == "paused"));
    agrees_on_run(&mut near, &site, "a paused run");
    site.swarm(&["run", "resume"]).ok();
    fs::write(&go, "").expect("written");
    near.is("it is over", |top| top.runs.values().all(|run| run["status"] == "failed"));
    agrees_on_run(&mut near, &site, "a run that is over");
    let stage = |id: &str| near.workstreams.values().find(|row| row["id"] == id).expect("a row")["stage"].clone();
    assert_eq!((stage("a"), stage("b")), ("done".into(), "failed".into()));
    // A reader that comes later gets the same, and looking needs no supervisor.
    site.rig.swarm(&["supervisor", "stop"]);
    agrees_on_run(&mut Top::start_in(&site.rig, &site.repo), &site, "a late reader");
    assert_eq!(site.rig.keepers(), (None, None));
}

/// Waits until the board says what `flow status` and `flow requests` say.
fn agrees_on_flow(top: &mut Top, site: &flow_run::Site, what: &str) {
    top.is(what, |top| {
        let (status, requests) = (site.json("status", &[]), site.json("requests", &[]));
        let Some(row) = top.flows.values().next() else { return false };
        let (asked, shown) =
            (requests["requests"].as_array().expect("a list"), row["requests"].as_array().expect("a list"));
        let roles = status["roles"].as_array().expect("a list").iter().zip(row["roles"].as_array().expect("a list"));
        has(row, &status, &["schema", "roles", "warnings"])
            && roles.clone().count() > 0
            && roles.clone().all(|(role, shown)| has(shown, role, &["agent", "held_back"]))
            && asked.len() == shown.len()
            && asked.iter().zip(shown).all(|(asked, shown)| has(shown, asked, &[]))
    });
}

#[test]
fn a_flow_is_on_the_board_as_its_status_says_and_its_gate_is_first_on_the_screen() {
    let hand = "echo x > $SWARM_RECORD/x.md; swarm flow emit --to owner-close --artifact $SWARM_RECORD/x.md";
    let site = flow_run::Site::new(&flow_run::line(hand, "      human-colab: true\n"));
    let mut near = Top::start_in(&site.rig, &site.repo);
    near.is("it is there before it is run", |top| top.flows.values().any(|flow| flow["run"] == false));
    agrees_on_flow(&mut near, &site, "a flow that is not run");
    let mut far = Top::start_in(&site.rig, &site.rig.cwd());
    assert!(far.flows.is_empty());
    assert_eq!(site.run(), "waiting");
    for top in [&mut near, &mut far] {
        agrees_on_flow(top, &site, "a flow that waits");
        let flow = top.flows.values().next().expect("a flow");
        assert_eq!((&flow["run"], &flow["requests"][0]["node"]), (&true.into(), &"build".into()));
    }
    let answers = &far.flows.values().next().expect("a flow")["requests"][0]["answers"];
    let root = format!("--root={}", site.repo.display());
    let words = ["flow", "approve", &root, "--", &format!("demo/{}", site.id), "build"];
    assert_eq!((&answers["yes"], &answers["text"]), (&serde_json::json!(words), &Value::Null));
    site.rig.spawn("calm", &[], &["sleep", "600"]);
    let pane = Pane::start(&site.rig, "");
    pane.shows("the gate is first", |lines| lines.get(2).is_some_and(|line| line.starts_with(">! demo/build")));
    pane.keys(&["a"]);
    pane.has("y approve");
    pane.has("hands over");
    pane.keys(&["y"]);
    wait_until("it is approved", SOON, || site.reason("build").is_empty());
    pane.has("swarm approve");
    pane.keys(&["]", "]"]);
    pane.has("flows");
    far.is("the flow asks how to go on", |top| {
        top.flows.values().all(|flow| flow["status"] == "awaiting_improvement_choice")
    });
    pane.has("awaiting_improvement_choice");
    pane.keys(&["q"]);
    pane.has("ended 0");
}

/// No worker runs and no flow is run, so that nothing else makes the board look.
#[test]
fn a_flow_that_is_made_in_the_repository_is_on_the_board_at_once() {
    let site = flow_run::Site::new(&flow_run::line("true", ""));
    let flows = site.repo.join(".a-society");
    fs::remove_dir_all(&flows).expect("removed");
    let mut top = Top::start_in(&site.rig, &site.repo);
    assert!(top.flows.is_empty());
    let file = site.rig.file("w.yaml", &flow_run::line("true", ""));
    for (count, project) in [(1, "demo"), (2, "demo"), (3, "other")] {
        site.rig.swarm_in(&site.repo, &["flow", "new", project, "--workflow", &file]).ok();
        top.is("the flow is there", |top| top.flows.len() == count);
    }
    fs::remove_dir_all(flows.join("state/other")).expect("removed");
    top.is("it is gone", |top| top.flows.len() == 2);
    assert_eq!(site.rig.keepers(), (None, None), "looking starts no supervisor");
}
