use swarm_model::NeedKind;

use super::*;

fn event(worker: &str, kind: EventKind) -> Event {
    Event { at_ms: 7, worker: Some(worker.to_owned()), generation: None, request: None, kind }
}

fn exited(ended: Option<Ended>, reason: Option<Reason>) -> EventKind {
    EventKind::WorkerExited { ended, reason, duration_ms: None, hits: Default::default() }
}

fn finished(worker: &str) -> Event {
    event(worker, exited(Some(Ended::Code(0)), Some(Reason::Exited)))
}

fn settled(state: &str) -> EventKind {
    let (base, files) = ("main".to_owned(), vec!["f".to_owned()]);
    EventKind::MergeSettled { item: 1, base, state: state.to_owned(), commit: None, cause: None, files }
}

fn stuck(signal: &str, step: &str) -> EventKind {
    let evidence = "evidence".to_owned();
    EventKind::WorkerStuck { signal: signal.to_owned(), evidence, step: step.to_owned() }
}

fn over(reason: &str) -> EventKind {
    EventKind::LoopEnded { reason: reason.to_owned(), iterations: 3 }
}

#[test]
fn the_end_of_a_loop_is_reported_and_not_each_iteration() {
    let mut pace = Pace::default();
    for iteration in 1..=3 {
        pace.take(&event("w", EventKind::LoopIteration { iteration, max: 3 }), 0);
        pace.take(&finished("w"), 0);
    }
    assert_eq!(pace.next_ms(), None);
    pace.take(&event("w", over("max_iterations")), 0);
    pace.take(&finished("other"), 0);
    let told: Vec<String> = pace.due(60_000).into_iter().map(|notice| notice.message).collect();
    assert_eq!(told, ["2 workers finished: other, w"]);
}

#[test]
fn an_agent_of_a_loop_waits_for_no_next_task() {
    let rests = || EventKind::WorkerIdle { text: "its turn is over".to_owned() };
    let turn = || EventKind::LoopIteration { iteration: 1, max: 3 };
    let (next, ended) = ("w waits for its next task: its turn is over", "w ended its loop: done_pattern");
    let told = |kinds: Vec<EventKind>| {
        let mut pace = Pace::default();
        kinds.into_iter().for_each(|kind| pace.take(&event("w", kind), 0));
        pace.due(60_000).into_iter().map(|notice| notice.message).collect::<Vec<_>>()
    };
    assert_eq!(told(vec![turn(), rests(), turn(), rests()]), [""; 0], "the next iteration is its next task");
    assert_eq!(told(vec![turn(), rests(), over("done_pattern")]), [ended]);
    assert_eq!(told(vec![turn(), over("done_pattern"), rests()]), [ended], "the screen was seen before the hook");
    for mut given_a_task in [vec![turn(), rests(), over("done_pattern")], vec![turn(), over("done_pattern"), rests()]] {
        given_a_task.push(rests());
        assert_eq!(told(given_a_task), [ended, next], "a person has given it one since");
    }
    let again = EventKind::WorkerStarted { pid: 7 };
    assert_eq!(told(vec![turn(), over("done_pattern"), again, rests()]), [ended, next]);
}

#[test]
fn the_end_of_an_attempt_that_asks_is_no_failure() {
    let asked = |ask| EventKind::ApprovalRequested { ask, kind: NeedKind::Permission, tool: "Bash".to_owned() };
    let answered = |ask| EventKind::ApprovalAnswered { ask, verdict: "allow".to_owned(), by: None };
    let ended = || exited(Some(Ended::Code(1)), Some(Reason::Exited));
    let started = || EventKind::WorkerStarted { pid: 1 };
    let killed = || exited(Some(Ended::Signal(9)), Some(Reason::Exited));
    let told = |kinds: Vec<EventKind>, generation| {
        let mut pace = Pace::default();
        let events = kinds.into_iter().map(|kind| Event { generation, ..event("w", kind) });
        events.for_each(|event| pace.take(&event, 0));
        pace.due(60_000).into_iter().map(|notice| notice.group).collect::<Vec<_>>()
    };
    let (asks, both) = (vec![Group::Waiting], vec![Group::Failed, Group::Waiting]);
    assert_eq!(told(vec![asked(1), ended()], None), asks);
    assert_eq!(told(vec![ended(), asked(1)], None), asks, "the request is noticed after the end");
    assert_eq!(told(vec![asked(1), asked(2), answered(1), ended()], None), asks, "one is still open");
    assert_eq!(told(vec![asked(1), answered(1), ended()], None), both, "it was answered");
    assert_eq!(told(vec![asked(1), started(), ended()], None), both, "the next attempt does not ask");
    assert_eq!(told(vec![asked(1), killed()], None), both, "it did not end by itself");
    assert_eq!(told(vec![asked(1), ended()], Some(1)), both, "the request ended with its worker");
}

#[test]
fn each_event_has_its_group_and_message() {
    let code = |code| Some(Ended::Code(code));
    for (kind, told) in [
        (exited(code(0), Some(Reason::Exited)), Some((Group::Finished, "w finished"))),
        (exited(code(3), Some(Reason::Exited)), Some((Group::Failed, "w exited with code 3"))),
        (exited(Some(Ended::Signal(9)), Some(Reason::Exited)), Some((Group::Failed, "w was killed by signal 9"))),
        (exited(code(1), Some(Reason::Timeout)), Some((Group::Failed, "w timed out"))),
        (exited(code(1), Some(Reason::OutOfMemory)), Some((Group::Failed, "w ran out of memory"))),
        (exited(code(1), Some(Reason::Output)), Some((Group::Failed, "w exceeded its output limit"))),
        (exited(None, None), Some((Group::Failed, "w ended with an unknown result"))),
        (exited(code(1), Some(Reason::Stopped)), None),
        (exited(code(0), Some(Reason::Stopped)), None),
        (exited(code(1), Some(Reason::Closed)), None),
        (
            EventKind::WorkerFailed { cause: "too often".to_owned() },
            Some((Group::Failed, "w failed and will not be restarted: too often")),
        ),
        (settled("landed"), Some((Group::Landed, "w landed on main"))),
        (settled("conflict"), Some((Group::Waiting, "w has conflicts with main: f"))),
        (settled("waiting"), Some((Group::Waiting, "w waits to land on main: f"))),
        (settled("rejected"), Some((Group::Waiting, "w was rejected by main: f"))),
        (settled("noop"), None),
        (stuck("silent", "given-up"), Some((Group::Stuck, "w is stuck and did not recover: evidence"))),
        (stuck("silent", "nudged"), None),
        (
            EventKind::WorkerWaiting { kind: NeedKind::Login, text: "asks how to log in".to_owned() },
            Some((Group::Waiting, "w waits for you: asks how to log in")),
        ),
        (
            EventKind::WorkerIdle { text: "its turn is over".to_owned() },
            Some((Group::Waiting, "w waits for its next task: its turn is over")),
        ),
        (EventKind::WorkerWorking, None),
        (stuck("context-full", "told"), Some((Group::Budget, "w is near its context limit: evidence"))),
        (stuck("compacting", "told"), None),
        (over("max_iterations"), Some((Group::Finished, "w ended its loop: max_iterations"))),
        (over("failed"), Some((Group::Failed, "w ended its loop: failed"))),
        (over("killed"), None),
        (EventKind::WorkerKilled, None),
        (EventKind::NudgeSent { beat: 1 }, None),
    ] {
        let sorted = sort(&event("w", kind.clone()));
        assert_eq!(sorted, told.map(|(group, text)| (group, text.to_owned())), "{kind:?}");
    }
}

#[test]
fn a_burst_becomes_one_notice_and_a_single_event_keeps_its_own() {
    let mut pace = Pace::default();
    for name in ["a", "b", "c"] {
        pace.take(&finished(name), 1000);
    }
    pace.take(&event("d", settled("landed")), 1100);
    assert_eq!((pace.next_ms(), pace.due(1299)), (Some(1300), Vec::new()));
    let told = pace.due(1400);
    assert_eq!(
        told.iter().map(|notice| notice.message.as_str()).collect::<Vec<_>>(),
        ["3 workers finished: a, b, c", "d landed on main"]
    );
    assert_eq!((told[0].worker.as_str(), &told[0].event["workers"]), ("a,b,c", &json!(["a", "b", "c"])));
    assert_eq!((told[1].kind.as_str(), &told[1].event["group"]), ("merge.settled", &json!("landed")));
    assert_eq!((told[1].event["at_ms"].as_u64(), pace.next_ms()), (Some(7), None));
}

#[test]
fn a_steady_stream_of_events_is_gathered() {
    let mut pace = Pace::default();
    let mut told = Vec::new();
    for now in (0..6_000).step_by(100) {
        if now < 3_000 {
            pace.take(&finished(&format!("w{now}")), now);
        }
        told.extend(pace.due(now).into_iter().map(|notice| notice.message));
    }
    let counts: Vec<&str> = told.iter().filter_map(|message| message.split(':').next()).collect();
    assert_eq!(counts, ["4 workers finished", "20 workers finished", "6 workers finished"]);
    assert_eq!(told[0], "4 workers finished: w0, w100, w200, w300");
    assert!(told[1].ends_with(" and 15 more"), "{told:?}");
}

#[test]
fn the_same_worker_and_group_is_reported_at_most_every_five_seconds() {
    let mut pace = Pace::default();
    let (mut told, mut last) = (Vec::new(), 0);
    for now in (0..20_000).step_by(100) {
        pace.take(&finished("flaps"), now);
        for notice in pace.due(now) {
            assert_eq!(notice.message, "flaps finished");
            told.push(now - last);
            last = now;
        }
    }
    assert_eq!(told, [300, 5000, 5000, 5000]);
    // Another group is counted separately.
    pace.take(&event("flaps", settled("landed")), 20_000);
    assert_eq!(pace.due(20_300).len(), 2);
    pace.take(&finished("other"), 60_000);
    assert_eq!(pace.due(60_300).len(), 1);
    assert_eq!(pace.told.len(), 1, "old times are dropped");
}

#[test]
fn waits_of_a_flow_are_reported_and_not_each_turn() {
    let mut pace = Pace::default();
    let (flow, node, role) = ("shop/1".to_owned(), "build".to_owned(), "dev".to_owned());
    for number in 1..=3 {
        let (flow, node, role) = (flow.clone(), Some(node.clone()), role.clone());
        pace.take(&event("1-dev", EventKind::FlowTurn { flow, node, role, number }), 0);
        pace.take(&finished("1-dev"), 0);
    }
    assert_eq!(pace.next_ms(), None);
    let (reason, text) = ("prompt-human".to_owned(), "Which limit?\nThis one?".to_owned());
    pace.take(&event("1-dev", EventKind::FlowWaiting { flow, node, role, reason, text }), 0);
    let told: Vec<(Group, String)> =
        pace.due(60_000).into_iter().map(|notice| (notice.group, notice.message)).collect();
    assert_eq!(told, [(Group::Waiting, "flow shop/1: build waits for you: Which limit?".to_owned())]);
}

fn run_ended(status: &str, counts: (usize, usize, usize), failures: &[&str], waits: &[&str]) -> Event {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let (done, failed, pending) = counts;
    let kind = EventKind::RunEnded {
        run: "1a2b3c4d".to_owned(),
        name: "shop".to_owned(),
        home: "/shop/.arial".to_owned(),
        status: status.to_owned(),
        done,
        failed,
        pending,
        failures: owned(failures),
        waits: owned(waits),
    };
    Event { worker: None, ..event("", kind) }
}

#[test]
fn the_end_of_a_run_names_its_counts_and_what_failed() {
    let six = ["a", "b", "c", "d", "e", "f"];
    for (event, group, text) in [
        (run_ended("completed", (3, 0, 0), &[], &[]), Group::Finished, "completed: 3 done"),
        (run_ended("failed", (2, 1, 1), &["auth"], &[]), Group::Failed, "failed: 2 done, 1 failed (auth), 1 pending"),
        (
            run_ended("failed", (0, 7, 0), &six, &[]),
            Group::Failed,
            "failed: 0 done, 7 failed (a, b, c, d, e and 2 more)",
        ),
        (
            run_ended("failed", (1, 0, 2), &[], &["docs"]),
            Group::Waiting,
            "ended before all was done: 1 done, 1 waits for you (docs), 1 pending",
        ),
        (run_ended("interrupted", (1, 0, 2), &[], &[]), Group::Finished, "was stopped: 1 done, 2 pending"),
    ] {
        let told = format!("run 1a2b3c4d of shop {text}");
        assert_eq!(sort(&event), Some((group, told)));
    }
}

#[test]
fn the_end_of_a_run_is_not_hidden_among_its_workers() {
    let mut pace = Pace::default();
    pace.take(&finished("shop.a"), 0);
    assert_eq!(pace.due(300).len(), 1);
    pace.take(&finished("shop.b"), 1000);
    pace.take(&finished("shop.c"), 1000);
    pace.take(&run_ended("completed", (3, 0, 0), &[], &[]), 1000);
    let told = pace.due(1300);
    let messages: Vec<&str> = told.iter().map(|notice| notice.message.as_str()).collect();
    assert_eq!(messages, ["2 workers finished: shop.b, shop.c", "run 1a2b3c4d of shop completed: 3 done"]);
    assert_eq!((told[1].kind.as_str(), told[1].worker.as_str(), &told[1].event["done"]), ("run.ended", "", &json!(3)));
    assert_eq!(pace.next_ms(), None);
}
