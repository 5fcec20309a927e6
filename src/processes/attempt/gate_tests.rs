use std::fs;
use std::time::Duration;

use serde_json::json;
use swarm_model::asks::rules::Effect;
use swarm_model::asks::{Answerer, AskAnswer, AskState, Verdict, Via};
use swarm_store::asks::Asks;

use super::super::held::Held;
use super::super::judging::SPENT;
use super::*;

struct Site {
    /// Keeps the directory.
    _dir: tempfile::TempDir,
    gate: Gate,
    asks: Asks,
}

impl Site {
    fn new(consent: Consent) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (root, tree, attempt) = (dir.path().join("state"), dir.path().join("tree"), dir.path().join("attempt"));
        for made in [&root, &tree, &attempt] {
            fs::create_dir(made).expect("made");
        }
        let who = Asker { run: Some("r".to_owned()), job: Some("j".to_owned()), attempt: Some(1), ..Asker::default() };
        let cwd = tree.to_string_lossy().into_owned();
        let asks = Asks::new(&Paths::new(&root));
        let (record, rules) = (Some(attempt.clone()), Vec::new());
        Self {
            gate: Gate { root, cwd, consent: Some(consent), who, dir: Some(attempt), record, rules },
            _dir: dir,
            asks,
        }
    }

    fn decide(&self, call: &str, command: &str) -> Answer {
        self.gate.decide(&bash(call, command)).expect("decided")
    }

    /// Records the request of an agent that has stopped, as the attempt does.
    fn park(&self, call: &str, command: &str) -> u64 {
        self.park_at(&bash(call, command))
    }

    fn park_at(&self, call: &Call) -> u64 {
        let mut held = Held::new(
            Paths::new(&self.gate.root),
            self.gate.who.clone(),
            self.gate.cwd.clone(),
            self.gate.consent,
            Duration::ZERO,
        );
        held.park(&call.request).expect("recorded").number
    }

    fn answer(&self, number: u64, verdict: Verdict) {
        let by = Answerer { uid: 0, user: None, pid: 1, tty: None, from: None, via: Via::Person };
        let digest = self.asks.find(number).expect("read").expect("there").ask.digest;
        self.asks.answer(number, &AskAnswer { verdict, digest, by, at_ms: 1 }).expect("answered");
    }

    fn state(&self, number: u64) -> AskState {
        self.asks.find(number).expect("read").expect("there").state()
    }

    fn stops_at(&self) -> Option<String> {
        order::deferred(self.gate.dir.as_deref().expect("a directory"))
    }

    /// The next attempt of the workstream, which continues at this use of a tool.
    fn next(&mut self, call: &str) {
        self.gate.who.attempt = self.gate.who.attempt.map(|number| number + 1);
        let dir = self.gate.dir.as_deref().expect("a directory");
        if let Some(before) = order::deferred(dir) {
            order::clear_deferred(dir, &before).expect("cleared");
        }
        assert!(order::defer(dir, call).expect("recorded"));
    }
}

fn use_of(tool: &str, call: &str, input: &serde_json::Value) -> Call {
    Call::of(&json!({ "tool_name": tool, "tool_input": input, "tool_use_id": call }).to_string()).expect("a use")
}

fn bash(call: &str, command: &str) -> Call {
    use_of("Bash", call, &json!({ "command": command }))
}

fn yes() -> Answer {
    Answer::Allow { input: None }
}

fn no(reason: &str) -> Answer {
    Answer::Deny { reason: reason.to_owned() }
}

#[test]
fn the_agent_stops_only_where_a_person_must_be_asked() {
    let site = Site::new(Consent::PartialAccess);
    let decide = |call: &Call| site.gate.decide(call).expect("decided");
    assert_eq!(decide(&use_of("Read", "a", &json!({ "file_path": "/etc/passwd" }))), yes());
    assert_eq!(decide(&use_of("Write", "b", &json!({ "file_path": "a.txt" }))), yes());
    assert_eq!(site.stops_at(), None);
    assert_eq!(decide(&use_of("Write", "c", &json!({ "file_path": "/etc/passwd" }))), Answer::Defer);
    assert_eq!(site.stops_at().as_deref(), Some("c"));
    assert_eq!(decide(&use_of("Write", "c", &json!({ "file_path": "/etc/passwd" }))), Answer::Defer, "once more");
    // Another one of the same answer, which would be forgotten.
    assert_eq!(site.decide("d", "make"), no(SIBLING));
    assert_eq!(decide(&use_of("Read", "e", &json!({ "file_path": "a.txt" }))), yes());
    // The use of the tool has a result after all.
    order::clear_deferred(site.gate.dir.as_deref().expect("a directory"), "c").expect("cleared");
    assert_eq!(site.decide("f", "make"), Answer::Defer);
    assert!(site.asks.all().expect("read").is_empty(), "the attempt records the request");
}

#[test]
fn an_answer_is_used_for_one_execution_of_the_same_use() {
    let mut site = Site::new(Consent::NoAccess);
    assert_eq!(site.decide("c", "make"), Answer::Defer);
    let number = site.park("c", "make");
    site.next("c");
    assert_eq!(site.decide("c", "make"), Answer::Defer, "nobody has answered");
    assert_eq!(site.park("c", "make"), number, "it is asked under the same number");
    site.answer(number, Verdict::Allow { input: None });
    site.next("c");
    assert_eq!(site.decide("c", "make"), yes());
    assert_eq!((site.state(number), site.stops_at()), (AskState::Taken, None));
    // The attempt is killed while the tool is used. The next one continues there, or gets its task again.
    for is_over in [false, true] {
        site.next("c");
        assert_eq!(site.decide("c", "make"), no(SPENT), "over: {is_over}");
        site.asks.end(number, "heard").expect("ended");
    }
    assert_eq!(site.decide("d", "make"), Answer::Defer, "another use is another request");
}

#[test]
fn a_no_stays_a_no_and_words_reach_the_agent() {
    let mut site = Site::new(Consent::NoAccess);
    let (refusal, question) = (
        Verdict::Deny { reason: "not now".to_owned() },
        use_of("AskUserQuestion", "q", &json!({ "questions": [{ "question": "Which?", "options": [] }] })),
    );
    site.decide("c", "make");
    let number = site.park("c", "make");
    site.answer(number, refusal);
    for _ in 0..2 {
        site.next("c");
        assert_eq!(site.decide("c", "make"), no("not now"));
    }
    assert_eq!(site.gate.decide(&question).expect("decided"), Answer::Defer);
}

#[test]
fn an_agent_that_forgot_where_it_stopped_uses_the_answer_once() {
    let mut site = Site::new(Consent::NoAccess);
    site.decide("c", "make");
    let number = site.park("c", "make");
    site.answer(number, Verdict::Allow { input: None });
    site.next("gone");
    order::clear_deferred(site.gate.dir.as_deref().expect("a directory"), "gone").expect("cleared");
    assert_eq!(site.decide("x", "make all"), Answer::Defer, "another command");
    order::clear_deferred(site.gate.dir.as_deref().expect("a directory"), "x").expect("cleared");
    assert_eq!(site.decide("y", "make"), yes());
    assert_eq!(site.decide("z", "make"), Answer::Defer);
}

#[test]
fn rules_come_before_answers_and_nobody_is_asked_for_subagents_or_conflicts() {
    let mut site = Site::new(Consent::NoAccess);
    site.decide("c", "git push");
    let number = site.park("c", "git push");
    site.answer(number, Verdict::Allow { input: None });
    site.next("c");
    let tree = PathBuf::from(&site.gate.cwd);
    let rules = "[[approvals.rule]]\ndeny = 'git push'\nreason = 'branches are landed'\n";
    fs::write(tree.join("swarm.toml"), rules).expect("written");
    let Answer::Deny { reason } = site.decide("c", "git push") else { panic!("not denied") };
    assert!(reason.contains("branches are landed"), "{reason}");
    assert_eq!(site.state(number), AskState::Answered, "its answer was not used");
    let denied =
        fs::read_to_string(site.gate.record.as_ref().expect("a directory").join("denied.jsonl")).expect("there");
    assert!(denied.lines().count() == 1 && denied.contains("git push") && denied.contains(&reason), "{denied}");
    fs::remove_file(tree.join("swarm.toml")).expect("removed");
    let site = Site::new(Consent::NoAccess);
    let mut helper = bash("h", "make");
    helper.is_subagent = true;
    assert_eq!(site.gate.decide(&helper).expect("decided"), no(SUBAGENT));
    let gate = Gate { dir: None, ..site.gate };
    assert_eq!(gate.decide(&bash("k", "make")).expect("decided"), no(NOBODY));
}

#[test]
fn whoever_follows_the_run_is_told_what_an_agent_is_denied() {
    let site = Site::new(Consent::NoAccess);
    fs::write(PathBuf::from(&site.gate.cwd).join("swarm.toml"), "[[approvals.rule]]\ndeny = 'git push'\n")
        .expect("written");
    let attempt = site.gate.record.clone().expect("a directory");
    let order = order::Order {
        run: "r".to_owned(),
        job: "j".to_owned(),
        attempt: 1,
        spec: None,
        root: None,
        agent: swarm_agents::Agent::find("claude", &std::collections::BTreeMap::default()).expect("an agent"),
        events: attempt.join("events.jsonl"),
        log: attempt.join("log"),
        context: attempt.join("context"),
        consent: None,
        rules: Vec::new(),
        session: None,
        deferred: None,
        fresh_id: "f".to_owned(),
        hold_ms: None,
    };
    order::write_order(&attempt, &serde_json::to_vec(&order).expect("JSON")).expect("written");
    fs::write(&order.events, "").expect("written");
    site.decide("c", "git push --force");
    let told = fs::read_to_string(&order.events).expect("there");
    let line: serde_json::Value = serde_json::from_str(told.trim_end()).expect("one line");
    assert_eq!((&line["event"], &line["workstream"]), (&json!("workstream.activity"), &json!("j")));
    assert!(line["text"].as_str().is_some_and(|text| text.starts_with("denied: git push --force: ")), "{told}");
}

#[test]
fn rules_with_which_the_run_began_restrict_beside_those_of_now() {
    let mut site = Site::new(Consent::NoAccess);
    let rule = |effect, pattern| AskRule { effect, pattern: String::from(pattern), reason: None };
    let now = "[[approvals.rule]]\ndeny = 'git fetch'\n";
    fs::write(PathBuf::from(&site.gate.cwd).join("swarm.toml"), now).expect("written");
    site.gate.rules = vec![rule(Effect::Deny, "git push"), rule(Effect::Allow, "make")];
    let is_denied = |command| matches!(site.decide(command, command), Answer::Deny { reason } if reason != SIBLING);
    assert!(is_denied("git push") && is_denied("git fetch"));
    assert_eq!(site.decide("m", "make"), Answer::Defer, "what is recorded allows nothing");
    let earlier = r#"{"root":"/s","cwd":"/w","consent":null,"who":{},"dir":null}"#;
    let gate: Gate = serde_json::from_str(earlier).expect("the hook of an attempt that an earlier version began");
    assert!(gate.rules.is_empty() && gate.record.is_none());
}

#[test]
fn an_answer_about_a_file_counts_only_for_the_content_that_was_shown() {
    let mut site = Site::new(Consent::PartialAccess);
    let write = |id: &str, text: &str| use_of("Write", id, &json!({ "file_path": "/etc/motd", "content": text }));
    let asked = write("a", "harmless");
    assert_eq!(site.gate.decide(&asked).expect("decided"), Answer::Defer);
    let number = site.park_at(&asked);
    site.answer(number, Verdict::Allow { input: None });
    site.next("a");
    order::clear_deferred(site.gate.dir.as_deref().expect("a directory"), "a").expect("cleared");
    assert_eq!(site.gate.decide(&write("b", "never shown")).expect("decided"), Answer::Defer);
    assert_eq!(site.state(number), AskState::Answered, "its answer was not used");
}

#[test]
fn whatever_goes_wrong_is_a_no() {
    let site = Site::new(Consent::NoAccess);
    let long = "x".repeat(64 << 10);
    assert!(matches!(site.decide("l", &long), Answer::Deny { .. }));
    fs::write(site.gate.root.join("asks"), "").expect("a file in the way");
    assert!(site.gate.decide(&bash("c", "make")).is_err());
    let mut site = Site::new(Consent::NoAccess);
    site.gate.dir = Some(PathBuf::from("/nonexistent/attempt"));
    assert!(site.gate.decide(&bash("c", "make")).is_err(), "the use cannot be recorded");
    site.gate.cwd = "/nonexistent/tree".to_owned();
    assert!(matches!(site.decide("c", "make"), Answer::Deny { .. }), "rules that cannot be read may deny it");
    assert!(answer(None).is_err() && answer(Some(OsString::from("{"))).is_err());
}

#[test]
fn the_command_of_the_hook_carries_what_it_has_to_know() {
    let mut site = Site::new(Consent::NoAccess);
    site.gate.cwd = "/it's here".to_owned();
    let command = site.gate.command().expect("a command");
    let words = std::process::Command::new("sh")
        .args(["-c", &format!("set -- {command}; printf '%s\\n' \"$2\" \"$3\"")])
        .output()
        .expect("a shell");
    let printed = String::from_utf8(words.stdout).expect("text");
    let (verb, gate) = printed.trim_end().split_once('\n').expect("two words");
    let gate: Gate = serde_json::from_str(gate).expect("JSON");
    assert_eq!((verb, gate.cwd, gate.consent), (VERB, site.gate.cwd, Some(Consent::NoAccess)));
}
