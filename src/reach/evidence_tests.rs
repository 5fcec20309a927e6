use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use swarm_agents::{Agent, Session};
use swarm_model::NeedKind;
use swarm_model::run::plan::{Job, Plan, SpecWork};
use swarm_model::run::progress::{Progress, Spent};
use swarm_store::runs::ends::errors_of;
use swarm_store::runs::order::Order;
use swarm_sys::paths::Paths;

use super::*;

/// Returns an attempt with an order, in a home at `root`.
fn attempt(root: &Path) -> (Now, PathBuf) {
    let home = Home::of(root);
    home.make().expect("made");
    let jobs = vec![Job { id: "a".to_owned(), work: Work::Spec(SpecWork::default()), ..Job::default() }];
    let plan = Plan { id: "0a1b2c3d".into(), home: home.path().display().to_string(), jobs, ..Plan::default() };
    let progress = Progress { attempt: 2, ..Progress::default() };
    let now = Now { plan: Arc::new(plan), at: 0, progress, landed: Vec::new() };
    let dir = home.attempt("a", 2);
    make_all(&dir).expect("made");
    let order = Order {
        run: "0a1b2c3d".to_owned(),
        job: "a".to_owned(),
        attempt: 2,
        spec: None,
        root: None,
        agent: Agent::find("shell", &BTreeMap::default()).expect("an agent"),
        events: home.events(),
        log: home.log("a"),
        context: home.context("a"),
        consent: None,
        rules: Vec::new(),
        session: None,
        deferred: None,
        fresh_id: "f".to_owned(),
        hold_ms: None,
    };
    order::write_order(&dir, &serde_json::to_vec(&order).expect("JSON")).expect("written");
    (now, dir)
}

fn result(outcome: Outcome) -> Option<AttemptResult> {
    Some(AttemptResult { order: "of the other order".to_owned(), ..AttemptResult::new(outcome, Spent::default()) })
}

#[test]
fn a_result_names_the_order_here() {
    let root = tempfile::tempdir().expect("a directory");
    let (now, dir) = attempt(root.path());
    let (_, digest) = order::read_with_digest(&dir).expect("an order");
    let left = FarResult {
        result: result(Outcome::Success { summary: Some("s".into()) }),
        session: Some(Session { id: "0198-ab".into(), ..Session::default() }),
        log: "one\ntwo\n".into(),
        stream: "{}\n".into(),
        stderr: "no space\n".into(),
        ..FarResult::default()
    };
    for _ in 0..2 {
        write(&now, "box", &left).expect("written");
        let read = order::read_result(&dir).expect("a result");
        assert_eq!((read.order.as_str(), &read.outcome), (&*digest, &left.result.clone().expect("one").outcome));
        assert_eq!(order::read_session(&dir), left.session);
        let home = Home::of(root.path());
        assert_eq!(fs::read_to_string(home.log("a")).expect("a log"), "one\ntwo\n");
        assert_eq!(fs::read_to_string(dir.join(STREAM)).expect("a stream"), "{}\n");
        // Where the evidence of an attempt on a host is looked for.
        let there = Progress { host: Some("box".into()), ..now.progress.clone() };
        let errors = errors_of(&Now { progress: there, ..now.clone() }, &Paths::new(root.path()));
        assert_eq!(fs::read_to_string(errors).expect("a file"), "no space\n");
    }
}

#[test]
fn what_a_host_asks_is_no_request_here() {
    let root = tempfile::tempdir().expect("a directory");
    let (now, dir) = attempt(root.path());
    let parked = Outcome::Parked { ask: 7, what: "May I?".into(), kind: NeedKind::Question };
    let session = Some(Session { id: "--dangerous".into(), ..Session::default() });
    write(&now, "box", &FarResult { result: result(parked), session, ..FarResult::default() }).expect("written");
    let read = order::read_result(&dir).expect("a result");
    assert!(
        matches!(&read.outcome, Outcome::Failure { cause, .. } if cause == "asks on box, where nobody answers: May I?"),
        "{read:?}"
    );
    assert_eq!(order::read_session(&dir), None, "its id looks like an option");
}

#[test]
fn nothing_is_written_through_a_link() {
    let root = tempfile::tempdir().expect("a directory");
    let (now, dir) = attempt(root.path());
    symlink(root.path().join("mine"), dir.join(STREAM)).expect("linked");
    let left = FarResult { stream: "x".into(), ..FarResult::default() };
    write(&now, "box", &left).expect_err("a link");
    assert!(!root.path().join("mine").exists());
}

#[test]
fn lines_of_a_log_are_brought_once() {
    for (known, text, expected) in [
        ("", "a\nb\n", "a\nb\n"),
        ("a\nb\n", "a\nb\n", ""),
        ("a\nb\n", "a\nb\nc\n", "c\n"),
        ("x\na\nb\n", "b\nc\n", "c\n"),
        ("a\n", "c\nd\n", "c\nd\n"),
        ("a\nb", "a\nb", ""),
    ] {
        assert_eq!(fresh(known.as_bytes(), text), expected, "{known:?} {text:?}");
    }
}

#[test]
fn commits_of_another_run_or_of_no_commit_do_not_count() {
    let root = tempfile::tempdir().expect("a directory");
    let dir = root.path().join("attempts/a.1");
    let chosen = |run: &str, tip: &str| Sent {
        run: run.into(),
        tip: tip.into(),
        base_commit: "b".repeat(40),
        repository: None,
        name: None,
        host: None,
        taken: None,
    };
    assert_eq!(sent(&dir, "r"), None);
    record_sent(&dir, &chosen("r", &"a".repeat(40))).expect("recorded");
    assert_eq!(sent(&dir, "r"), Some(chosen("r", &"a".repeat(40))));
    assert_eq!(sent(&dir, "other"), None);
    record_sent(&dir, &chosen("r", "--output=x")).expect("recorded");
    assert_eq!(sent(&dir, "r"), None);
}

#[test]
fn what_a_host_says_is_shortened() {
    let long = "ä".repeat(400_000);
    let outcome = Outcome::Failure { cause: long.clone(), evidence: Some(long.clone()), fault: FaultKind::Task };
    let left = FarResult {
        result: result(outcome),
        log: long.clone(),
        stream: format!("{long}end"),
        left_out: std::iter::once(long.clone()).chain((0..1000).map(|at| at.to_string())).collect(),
        waits: Some(long),
        ..FarResult::default()
    };
    let came = bounded(left);
    assert!(came.stream.len() <= STREAM_BYTES_MAX && came.stream.ends_with("äend"));
    assert!(came.log.len() <= LOG_BYTES_MAX && came.waits.is_some_and(|text| text.len() <= TEXT_BYTES_MAX));
    assert_eq!((came.left_out.len(), came.left_out[0].as_str()), (PATHS_MAX, "0"));
    let Some(Outcome::Failure { cause, evidence, .. }) = came.result.map(|result| result.outcome) else { panic!() };
    assert!(cause.len() <= TEXT_BYTES_MAX && evidence.is_some_and(|text| text.len() <= LOG_BYTES_MAX));
}
