//! Tests of what counts of an agent that did not come to its own end.

use serde_json::json;
use swarm_model::asks::AskWish;
use swarm_model::asks::judge::Consent;

use super::*;
use crate::tests::{lines, read};

fn tokens(spent: Spent) -> (u64, u64) {
    (spent.input_tokens, spent.output_tokens)
}

#[test]
fn an_end_at_a_deferred_tool_use_is_no_success() {
    let (seen, report) = read("claude", "deferred", Ended::Code(0), None);
    let Outcome::Failure { cause, fault: FaultKind::Lasting, .. } = &report.outcome else { panic!("{report:?}") };
    assert!(cause.starts_with("stopped at Bash: touch a.txt: a hook in claude's settings deferred it"), "{cause}");
    assert_eq!(seen.last(), Some(&Seen::Denied("Bash: touch a.txt".to_owned())));
    assert_eq!(tokens(report.spent), (100, 20));
}

/// Reads recorded lines of `claude` in a run whose agents ask.
fn read_asking(case: &str, before: Option<&Session>, stderr: &str) -> (Vec<Seen>, Report) {
    let turn = Turn { session: before, consent: Some(Consent::NoAccess), ..Turn::default() };
    let Talk::Lines(mut parser) = Agent::find("claude", &BTreeMap::new()).expect("known").talk(&turn) else {
        panic!("a dialogue")
    };
    let text = if case.is_empty() { String::new() } else { lines("claude", case) };
    let all = text.lines().filter(|line| !parser.skips(line.as_bytes(), true)).collect::<Vec<_>>();
    let seen = all.into_iter().flat_map(|line| parser.line(line)).collect();
    let ended = Ended::Code(i32::from(case.is_empty()));
    (seen, parser.end(End { ended, stderr, output: &text, now_ms: 1, zone: &TimeZone::UTC }))
}

#[test]
fn an_agent_that_may_ask_reports_where_it_has_stopped() {
    let (seen, report) = read_asking("asks_question", None, "");
    assert!(seen.contains(&Seen::Tool("Which one? (yes | no)".to_owned())), "{seen:?}");
    assert!(!seen.iter().any(|one| matches!(one, Seen::Asked(_) | Seen::Denied(_))), "a person is asked: {seen:?}");
    assert!(!matches!(report.outcome, Outcome::Success { .. }), "{report:?}");
    let Some(Deferred::At(request)) = &report.deferred else { panic!("{report:?}") };
    let AskWish::Question { questions } = &request.wish else { panic!("{request:?}") };
    assert_eq!((questions[0].text.as_str(), questions[0].options.len()), ("Which one?", 2));
    assert_eq!(tokens(report.spent), (1000, 200));
    // Continued without an answer: the same request, and nothing was used.
    let (_, again) = read_asking("asks_again", report.session.as_ref(), "");
    assert_eq!((again.deferred.as_ref(), tokens(again.spent)), (report.deferred.as_ref(), (0, 0)));
    assert_eq!(again.session.as_ref().map(|session| &session.id), report.session.as_ref().map(|session| &session.id));
    // Continued with it.
    let (seen, resumed) = read_asking("asks_resumed", again.session.as_ref(), "");
    assert_eq!(seen.first(), Some(&Seen::Done(request.call.clone())));
    assert_eq!(resumed.outcome, Outcome::Success { summary: Some("done it".to_owned()) });
    assert_eq!((resumed.deferred, tokens(resumed.spent)), (None, (2000, 400)));
    // What its hook denies is no news.
    let (seen, denied) = read_asking("asks_denied", resumed.session.as_ref(), "");
    assert!(!seen.iter().any(|one| matches!(one, Seen::Denied(_))), "{seen:?}");
    assert!(matches!(denied.outcome, Outcome::Success { .. }), "{denied:?}");
}

#[test]
fn a_conversation_without_a_deferred_use_is_told_as_such() {
    let before = Session { id: "s".to_owned(), ..Session::default() };
    let stderr = "Error: No deferred tool marker found in the resumed session. Either the session was not deferred, \
                  the marker is stale (tool already ran), or it exceeds the tail-scan window.\n";
    let (_, report) = read_asking("", Some(&before), stderr);
    assert_eq!((report.deferred, report.spent), (Some(Deferred::Nowhere), Spent::default()), "it has used nothing");
    assert!(!report.is_gone && report.session == Some(before.clone()));
    let (_, other) = read_asking("", Some(&before), "Error: something else\n");
    assert_eq!((other.deferred, other.spent.unpriced), (None, true));
    assert_eq!(read_asking("", None, stderr).1.deferred, None, "there was none to continue");
}

#[test]
fn an_agent_that_goes_on_has_given_up_where_it_had_stopped() {
    let turn = Turn { consent: Some(Consent::NoAccess), ..Turn::default() };
    let Talk::Lines(mut parser) = Agent::find("claude", &BTreeMap::new()).expect("known").talk(&turn) else {
        panic!("a dialogue")
    };
    let deferred = json!({"id": "t", "name": "Bash", "input": {"command": "make"}});
    parser.line(&json!({"type": "result", "is_error": false, "deferred_tool_use": deferred}).to_string());
    let seen = parser.line(&json!({"type": "assistant", "message": {"content": []}}).to_string());
    assert_eq!(seen, [Seen::Done("t".to_owned())]);
}

#[test]
fn a_version_that_cannot_stop_to_ask_is_ended() {
    let turn = Turn { consent: Some(Consent::PartialAccess), ..Turn::default() };
    let ended = |version: &str, turn: &Turn<'_>| {
        let Talk::Lines(mut parser) = Agent::find("claude", &BTreeMap::new()).expect("known").talk(turn) else {
            panic!("a dialogue")
        };
        let init = json!({"type": "system", "subtype": "init", "session_id": "s", "claude_code_version": version});
        let is_doomed = parser.line(&init.to_string()).contains(&Seen::Doomed);
        let end = End { ended: Ended::Signal(15), stderr: "", output: "", now_ms: 1, zone: &TimeZone::UTC };
        (is_doomed, parser.end(end).outcome)
    };
    let (is_doomed, outcome) = ended("2.1.88", &turn);
    let Outcome::Failure { cause, fault: FaultKind::Lasting, .. } = outcome else { panic!("{outcome:?}") };
    assert!(is_doomed && cause.starts_with("claude 2.1.88 cannot stop to ask"), "{cause}");
    assert!(!ended("2.1.89", &turn).0 && !ended("2.1.88", &Turn::default()).0);
}

#[test]
fn a_limit_of_an_account_has_its_kind_and_date_in_the_result() {
    let now: jiff::Timestamp = "2026-11-23T14:00:00Z".parse().expect("a time");
    let now_ms = u64::try_from(now.as_millisecond()).expect("after 1970");
    let until = |said: &str, more: &[(&str, &str)]| {
        let mut line = json!({"type": "result", "subtype": "success", "is_error": true, "result": said});
        for (key, value) in more {
            line[*key] = json!(value);
        }
        let mut parser = Agent::find("claude", &BTreeMap::new()).expect("known").parser(None);
        parser.line(&line.to_string());
        let zone = TimeZone::UTC;
        let end = End { ended: Ended::Code(1), stderr: "", output: "", now_ms, zone: &zone };
        match parser.end(end).outcome {
            Outcome::Failure { fault: FaultKind::Limit { until_ms }, .. } => until_ms.map(|until| until - now_ms),
            other => panic!("{said}: {other:?}"),
        }
    };
    let hours = |count: f64| Some(std::time::Duration::from_secs_f64(count * 3600.0).as_millis() as u64);
    assert_eq!(until("You've hit your limit \u{b7} resets 4:30pm (UTC)", &[]), hours(2.5));
    assert_eq!(until("You\u{2019}ve hit your limit", &[]), None);
    assert_eq!(until("Weekly limit reached \u{b7} resets Nov 25, 2:30pm (UTC)", &[]), hours(48.5));
    assert_eq!(until("Something else", &[("api_error", "usage_limit_reached")]), None);
}

#[test]
fn tokens_of_a_killed_turn_count_once_whether_or_not_the_next_total_has_them() {
    // The next total leaves out a turn that was killed, and has one that was ended by a signal.
    for (killed, resumed, signal) in [("killed", "killed_resumed", 9), ("ended", "ended_resumed", 15)] {
        let first = read("claude", killed, Ended::Signal(signal), None).1;
        assert_eq!((first.spent.input_tokens, first.spent.usd, first.spent.unpriced), (2000, None, true), "{killed}");
        let second = read("claude", resumed, Ended::Code(0), first.session.as_ref()).1;
        assert_eq!(first.spent.plus(second.spent).input_tokens, 4000, "{killed}");
        let session = second.session.expect("a conversation");
        assert_eq!(
            (session.id.as_str(), session.unreported),
            (first.session.expect("one").id.as_str(), Spent::default())
        );
    }
}

#[test]
fn an_answer_with_several_blocks_counts_once() {
    let line = |id: &str, input: u64, output: u64| {
        json!({"type": "assistant", "message": {"id": id, "content": [], "usage":
            {"input_tokens": input, "cache_read_input_tokens": 5, "output_tokens": output}}})
        .to_string()
    };
    let mut parser = Agent::find("claude", &BTreeMap::new()).expect("known").parser(None);
    let mut told = Vec::new();
    for one in [line("a", 10, 1), line("a", 10, 1), line("b", 20, 1), line("b", 20, 7), line("a", 10, 1)] {
        told.extend(parser.line(&one));
    }
    let told: Vec<(u64, u64)> =
        told.iter().map(|one| if let Seen::Spent(spent) = one { tokens(*spent) } else { (0, 0) }).collect();
    assert_eq!(told, [(15, 1), (40, 2), (40, 8)]);
    let end = End { ended: Ended::Signal(9), stderr: "", output: "", now_ms: 0, zone: &TimeZone::UTC };
    assert_eq!(tokens(parser.end(end).spent), (40, 8));
}

#[test]
fn usage_since_an_earlier_time_counts_only_the_same_conversation() {
    let spent = |input_tokens| Spent { input_tokens, ..Spent::default() };
    let at = |id: &str, told, more| Session { id: id.to_owned(), spent: spent(told), unreported: spent(more) };
    assert_eq!(at("a", 30, 5).since(Some(&at("a", 20, 1))).input_tokens, 14);
    assert_eq!(at("a", 30, 5).since(Some(&at("b", 20, 1))).input_tokens, 35);
    assert_eq!(at("a", 30, 0).since(None).input_tokens, 30);
    assert_eq!(at("a", 3, 0).since(Some(&at("a", 20, 0))).input_tokens, 0);
}

#[test]
fn a_total_of_codex_may_include_a_turn_that_was_killed() {
    let spent = |input_tokens, output_tokens| Spent { input_tokens, output_tokens, usd: None, unpriced: true };
    let before = Session { id: "t".to_owned(), spent: spent(700, 70), unreported: spent(200, 20) };
    for (total, turn, unreported) in [((1300, 130), 400, 0), ((800, 80), 100, 200)] {
        let mut parser = Agent::find("codex", &BTreeMap::new()).expect("known").parser(Some(&before));
        let usage = json!({"input_tokens": total.0, "output_tokens": total.1});
        parser.line(&json!({"type": "turn.completed", "usage": usage}).to_string());
        let end = End { ended: Ended::Code(0), stderr: "", output: "", now_ms: 0, zone: &TimeZone::UTC };
        let report = parser.end(end);
        let session = report.session.expect("a conversation");
        assert_eq!((report.spent.input_tokens, session.unreported.input_tokens), (turn, unreported));
        assert_eq!(session.since(Some(&before)).input_tokens, turn);
    }
}
