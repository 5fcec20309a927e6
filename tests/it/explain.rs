//! `swarm explain`: the state of a worker, its cause, the evidence, and what to do next.

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
fn the_cause_of_an_end_is_explained_with_evidence() {
    let rig = Rig::new();
    rig.spawn_sh("e", &[], "echo all is lost >&2; exit 7");
    rig.wait("e");
    let body = explained(&rig, "e");
    assert!(body["because"].as_str().expect("text").starts_with("exited with code 7 after "), "{body:#}");
    let (value, source) = fact(&body, "exit");
    assert!(value.starts_with("7 (exited); ") && source.ends_with("/w/e.1/exit.json"), "{body:#}");
    assert!(fact(&body, "lease").0.starts_with("free; the shim"), "{body:#}");
    assert_eq!(fact(&body, "process").0, "not running");
    assert_eq!(body["output"][0], "all is lost");
    let text = rig.swarm(&["explain", "e"]).ok();
    assert!(text.starts_with("e: exited: exited with code 7") && text.contains("swarm respawn e"), "{text}");
    rig.spawn("k", &[], &["sleep", "600"]);
    let body = explained(&rig, "k");
    assert!(fact(&body, "process").0.starts_with(&format!("pid {}, state S, ", rig.pid("k"))), "{body:#}");
    rig.swarm(&["kill", "k"]).ok();
    assert!(because(&rig, "k").starts_with("stopped on request (swarm kill, respawn)"));
    rig.spawn("9", &[], &["sleep", "600"]);
    proc::kill(rig.pid("9"));
    rig.wait("9");
    assert!(because(&rig, "9").starts_with("killed by SIGKILL") && because(&rig, "9").contains("not sent by swarm"));
    rig.spawn("t", &["--timeout", "0.2s"], &["sleep", "600"]);
    rig.wait("t");
    assert!(because(&rig, "t").starts_with("reached its time limit (--timeout)"));
    rig.spawn("f", &["--restart", "always"], &["false"]);
    wait_until("f is restarted", SOON, || matches!(rig.fine("f").as_str(), "backoff" | "failed"));
    assert!(because(&rig, "f").contains("exited with code 1 "), "{}", because(&rig, "f"));
    rig.spawn("u", &[], &["sleep", "600"]);
    proc::kill(rig.shim("u"));
    wait_until("the shim is gone", SOON, || rig.fine("u") == "unsupervised");
    assert!(because(&rig, "u").contains("its shim was killed"), "{}", because(&rig, "u"));
}

#[test]
fn the_name_of_a_cleaned_worker_is_remembered() {
    let rig = Rig::new();
    let said = rig.swarm(&["explain", "nobody"]).refused(2, "worker 'nobody' not found");
    assert!(!said.err.contains("cleaned"));
    rig.spawn("c", &[], &["true"]);
    rig.wait("c");
    rig.swarm(&["clean", "c"]).ok();
    let said = rig.swarm(&["explain", "c"]).refused(2, "worker 'c' not found");
    assert!(
        said.err.contains("swarm: hint: a worker of this name was cleaned; run 'swarm events c' for its events"),
        "{said:?}"
    );
}
