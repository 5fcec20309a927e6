//! `swarm explain`: why a worker is in its state, which file says so, and what to do next.

use serde_json::Value;

use crate::common::{Rig, SOON, proc, wait_until};

fn explained(rig: &Rig, name: &str) -> Value {
    let said = rig.swarm(&["explain", name, "--json"]).ok();
    serde_json::from_str(&said).expect("JSON")
}

fn because(rig: &Rig, name: &str) -> String {
    explained(rig, name)["because"].as_str().expect("a sentence").to_owned()
}

fn fact(body: &Value, what: &str) -> (String, String) {
    let facts = body["facts"].as_array().expect("a list");
    let one = facts.iter().find(|fact| fact["fact"] == what).unwrap_or_else(|| panic!("{what}: {body:#}"));
    (one["value"].as_str().expect("text").to_owned(), one["source"].as_str().expect("text").to_owned())
}

#[test]
fn why_one_stopped_is_told_with_its_evidence() {
    let rig = Rig::new();
    rig.spawn_sh("e", &[], "echo all is lost >&2; exit 7");
    rig.wait("e");
    let body = explained(&rig, "e");
    assert!(body["because"].as_str().expect("text").starts_with("it ended by itself with code 7"), "{body:#}");
    let (value, source) = fact(&body, "exit");
    assert!(value.starts_with("7 (exited); ") && source.ends_with("/w/e.1/exit.json"), "{body:#}");
    assert!(fact(&body, "lease").0.starts_with("free: the shim"), "{body:#}");
    assert_eq!(fact(&body, "process").0, "none is alive");
    assert_eq!(body["output"][0], "all is lost");
    let text = rig.swarm(&["explain", "e"]).ok();
    assert!(
        text.starts_with("e: exited: it ended by itself with code 7") && text.contains("swarm respawn e"),
        "{text}"
    );
    rig.spawn("k", &[], &["sleep", "600"]);
    let body = explained(&rig, "k");
    assert!(fact(&body, "process").0.starts_with(&format!("pid {}, state S, ", rig.pid("k"))), "{body:#}");
    rig.swarm(&["kill", "k"]).ok();
    assert!(because(&rig, "k").starts_with("it was asked to end (swarm kill, respawn)"));
    rig.spawn("9", &[], &["sleep", "600"]);
    proc::kill(rig.pid("9"));
    rig.wait("9");
    assert!(because(&rig, "9").starts_with("SIGKILL ended it") && because(&rig, "9").contains("swarm did not send"));
    rig.spawn("t", &["--timeout", "0.2s"], &["sleep", "600"]);
    rig.wait("t");
    assert!(because(&rig, "t").starts_with("its time was up (--timeout)"));
    rig.spawn("f", &["--restart", "always"], &["false"]);
    wait_until("it is started again", SOON, || matches!(rig.fine("f").as_str(), "backoff" | "failed"));
    assert!(because(&rig, "f").contains("ended by itself with code 1"), "{}", because(&rig, "f"));
    rig.spawn("u", &[], &["sleep", "600"]);
    proc::kill(rig.shim("u"));
    wait_until("its shim is gone", SOON, || rig.fine("u") == "unsupervised");
    assert!(because(&rig, "u").contains("its shim was killed"), "{}", because(&rig, "u"));
}

#[test]
fn names_that_nobody_has_any_more_are_remembered() {
    let rig = Rig::new();
    let said = rig.swarm(&["explain", "nobody"]).refused(2, "worker 'nobody' not found");
    assert!(!said.err.contains("cleaned"));
    rig.spawn("c", &[], &["true"]);
    rig.wait("c");
    rig.swarm(&["clean", "c"]).ok();
    let said = rig.swarm(&["explain", "c"]).refused(2, "worker 'c' not found");
    assert!(said.err.contains("swarm: hint: there was one, and it was cleaned: swarm events c"), "{said:?}");
}
