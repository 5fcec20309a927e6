//! Tests of what counts of an agent that did not come to its own end.

use serde_json::json;

use super::*;
use crate::tests::read;

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
