//! What a person says to agents on other hosts, and about hosts.

use std::fs;

use crate::common::{SOON, wait_until};
use crate::run_on::Fleet;

#[test]
fn an_agent_on_a_host_is_told_at_its_next_turn() {
    let fleet = Fleet::new(&["a"]);
    let [begun, go] = ["begun", "go"].map(|name| fleet.site.rig.path(name));
    let script = format!(
        "cat > prompt.txt; echo . >> {begun}; until [ -e {go} ]; do sleep 0.05; done; [ $SWARM_ATTEMPT = 2 ]\n",
        begun = begun.display(),
        go = go.display()
    );
    fleet.site.agent(&script, "");
    fleet.site.write("specs/w.md", "---\nretries: 1\n---\n# W\n");
    fleet.plan();
    let context = fleet.site.repo.join(".arial/context/w");
    let waits = || {
        fs::read_dir(&context)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|file| file.path().extension().is_some_and(|end| end == "md"))
            .count()
    };
    fleet.run(&["--on", "a", "--agent", "mine", "--detach"]).ok();
    wait_until("it works there", SOON, || begun.exists() && !fleet.host("a").names().is_empty());
    let said = fleet.run(&["context", "w", "mind the gap"]).ok();
    assert_eq!((said.as_str(), waits()), ("w gets this at its next turn: mind the gap\n", 1));
    fleet.lose("a");
    let said = fleet.run(&["context", "w", "and the step"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("the agent on a does not get this: "), "{said:?}");
    assert!(said.err.contains("the message is kept; if there is another attempt, it begins with it"), "{said:?}");
    let long = "x".repeat(65_537);
    fleet
        .run(&["context", "w", &long])
        .refused(1, "the message is longer than 65536 bytes, the most for an agent on another host");
    fleet.find("a");
    fs::write(&go, "").expect("written");
    wait_until("the run is over", SOON, || fleet.is_over());
    assert_eq!((fleet.stage("w"), waits()), ("done".to_owned(), 0));
    let prompt = fs::read_to_string(fleet.site.repo.join("prompt.txt")).expect("read");
    assert!(prompt.contains("mind the gap") && prompt.contains("and the step"), "{prompt}");
    let told = fs::read_to_string(fleet.site.repo.join(".arial/events.jsonl")).expect("read");
    for text in ["mind the gap", "and the step"] {
        let line = format!(r#""event":"workstream.context","delivered":true,"text":"{text}""#);
        assert_eq!(told.matches(&line).count(), 1, "{told}");
    }
    fleet.nothing_left();
}

#[test]
fn nothing_new_is_started_on_a_drained_host() {
    let fleet = Fleet::new(&["a", "b"]);
    let go = fleet.site.rig.path("go");
    fleet.site.spec("v", "", &format!("until [ -e {} ]; do sleep 0.05; done; echo v > v.txt", go.display()));
    fleet.site.spec("w", "after: [v]\n", "echo w > w.txt");
    fleet.plan();
    fleet.run(&["--on", "a,b", "--detach"]).ok();
    wait_until("it works there", SOON, || !fleet.host("a").names().is_empty());
    let drained = "a is drained: runs start nothing new there; 'swarm hosts resume a' ends that\n";
    assert_eq!(fleet.site.swarm(&["hosts", "drain", "a"]).ok(), drained);
    let hosts: serde_json::Value = serde_json::from_str(&fleet.site.swarm(&["hosts", "--json"]).out).expect("JSON");
    assert_eq!((&hosts["hosts"][0]["drained"], &hosts["hosts"][1]["drained"]), (&true.into(), &false.into()));
    assert!(fleet.site.swarm(&["hosts"]).out.contains("up, drained"));
    fs::write(&go, "").expect("written");
    wait_until("the run is over", SOON, || fleet.is_over());
    let told = fs::read_to_string(fleet.site.repo.join(".arial/events.jsonl")).expect("read");
    let at = |id: &str, host: &str| {
        let is_start = |line: &&str| {
            line.contains(r#""event":"workstream.started""#) && line.contains(&format!(r#""workstream":"{id}""#))
        };
        told.lines().filter(is_start).any(|line| line.contains(&format!(r#""host":"{host}""#)))
    };
    assert!(at("v", "a") && at("w", "b") && !at("w", "a"), "{told}");
    fleet.nothing_left();
    assert_eq!(fleet.site.swarm(&["hosts", "resume", "a"]).ok(), "runs may use a\n");
    assert!(!fleet.site.swarm(&["hosts"]).out.contains("drained"));
}
