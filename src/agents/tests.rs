//! Tests of the adapters with recorded output of the real programs (`tests/data/agents`).

use std::path::Path;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use swarm_model::Ended;
use swarm_model::run::{FaultKind, Outcome};

use super::*;

const NOW: u64 = 1_790_000_000_000;

pub fn lines(agent: &str, case: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/data/agents/{agent}/{case}.jsonl"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn agent(name: &str) -> Agent {
    Agent::find(name, &BTreeMap::new()).expect("it is built in")
}

#[test]
fn a_role_starts_no_server_of_the_repository() {
    let words = consent::claude("/bin/it's");
    assert!(words.contains(&"--strict-mcp-config".to_owned()), "{words:?}");
    assert!(
        words.last().is_some_and(|settings| settings.contains(r"'/bin/it'\\''s' flow consent-check || exit 2")),
        "{words:?}"
    );
}

pub fn read(name: &str, case: &str, ended: Ended, session: Option<&Session>) -> (Vec<Seen>, Report) {
    let text = lines(name, case);
    let mut parser = agent(name).parser(session);
    let seen = text.lines().flat_map(|line| parser.line(line)).collect();
    let end = End { ended, stderr: "", output: &text, now_ms: NOW, zone: &TimeZone::UTC };
    (seen, parser.end(end))
}

fn fault(name: &str, case: &str) -> Option<FaultKind> {
    match read(name, case, Ended::Code(1), None).1.outcome {
        Outcome::Failure { fault, .. } => Some(fault),
        Outcome::Success { .. } | Outcome::Stopped | Outcome::Parked { .. } => None,
    }
}

#[test]
fn a_successful_turn_reports_activity_and_a_summary() {
    let (seen, report) = read("claude", "normal", Ended::Code(0), None);
    assert!(matches!(&seen[0], Seen::Session(id) if id.len() == 36), "{seen:?}");
    assert!(seen.iter().any(|one| matches!(one, Seen::Tool(tool) if tool.starts_with("Bash: "))), "{seen:?}");
    assert_eq!(report.outcome, Outcome::Success { summary: Some("all done".to_owned()) });
    assert_eq!((report.spent.input_tokens, report.spent.output_tokens, report.spent.unpriced), (300, 60, false));
    let (seen, report) = read("codex", "normal", Ended::Code(0), None);
    assert!(seen.iter().any(|one| matches!(one, Seen::Tool(tool) if tool.starts_with("exec: "))), "{seen:?}");
    assert!(matches!(report.outcome, Outcome::Success { summary: Some(_) }));
    assert_eq!((report.spent.input_tokens, report.spent.usd, report.spent.unpriced), (300, None, true));
}

#[test]
fn skipped_lines_do_not_change_the_outcome() {
    for (name, case) in [("claude", "normal"), ("claude", "rate_limited"), ("codex", "normal"), ("codex", "bad_key")] {
        let text = lines(name, case);
        let end = End { ended: Ended::Code(0), stderr: "", output: &text, now_ms: NOW, zone: &TimeZone::UTC };
        let mut parser = agent(name).parser(None);
        for line in text.lines() {
            if !parser.skips(line.as_bytes(), false) {
                parser.line(line);
            }
        }
        assert_eq!(parser.end(end), read(name, case, Ended::Code(0), None).1, "{name} {case}");
    }
}

#[test]
fn success_needs_both_the_exit_code_and_the_result() {
    for ended in [Ended::Code(1), Ended::Signal(15)] {
        assert!(matches!(read("claude", "normal", ended, None).1.outcome, Outcome::Failure { .. }));
    }
    for (agent, case) in
        [("claude", "sigterm"), ("claude", "session_in_use"), ("codex", "sigterm"), ("codex", "resume_unknown")]
    {
        let report = read(agent, case, Ended::Code(0), None).1;
        assert!(matches!(report.outcome, Outcome::Failure { .. }), "{agent} {case}: {report:?}");
    }
    // The subtype is `success` although the request failed.
    assert!(matches!(read("claude", "rate_limited", Ended::Code(0), None).1.outcome, Outcome::Failure { .. }));
}

#[test]
fn each_failure_says_whether_and_when_another_attempt_may_help() {
    let limit = |until_ms| Some(FaultKind::Limit { until_ms });
    let cases = [
        ("claude", "rate_limited", limit(None)),
        ("claude", "ext_limit_apikey", limit(None)),
        ("claude", "ext_limit_with_date", limit(Some(1_800_000_000_000))),
        ("claude", "overloaded", Some(FaultKind::Passing)),
        ("claude", "server_error", Some(FaultKind::Passing)),
        ("claude", "no_server", Some(FaultKind::Passing)),
        ("claude", "bad_key_exhausted", Some(FaultKind::Lasting)),
        ("claude", "no_key", Some(FaultKind::Lasting)),
        ("claude", "forbidden", Some(FaultKind::Lasting)),
        ("claude", "bad_request", Some(FaultKind::Lasting)),
        ("claude", "ext_billing", Some(FaultKind::Lasting)),
        ("claude", "ext_model_not_found", Some(FaultKind::Lasting)),
        ("claude", "ext_refusal", Some(FaultKind::Lasting)),
        ("claude", "ext_prompt_too_long", Some(FaultKind::Lasting)),
        ("claude", "max_budget", Some(FaultKind::Lasting)),
        ("claude", "max_turns", Some(FaultKind::Task)),
        ("codex", "rate_limited", limit(None)),
        ("codex", "ext_rate_limit_failed", limit(Some(NOW + 1_500))),
        ("codex", "server_error", Some(FaultKind::Passing)),
        ("codex", "overloaded", Some(FaultKind::Passing)),
        ("codex", "ext_overloaded", Some(FaultKind::Passing)),
        ("codex", "bad_key", Some(FaultKind::Lasting)),
        ("codex", "no_key", Some(FaultKind::Lasting)),
        ("codex", "forbidden", Some(FaultKind::Lasting)),
        ("codex", "ext_quota", Some(FaultKind::Lasting)),
        ("codex", "ext_model_not_found", Some(FaultKind::Lasting)),
        ("codex", "ext_policy", Some(FaultKind::Lasting)),
        ("codex", "ext_context", Some(FaultKind::Lasting)),
        ("codex", "ext_refusal_empty", Some(FaultKind::Task)),
    ];
    for (agent, case, expected) in cases {
        let ended = if case == "ext_refusal_empty" { Ended::Code(0) } else { Ended::Code(1) };
        let outcome = read(agent, case, ended, None).1.outcome;
        let told = if let Outcome::Failure { fault, .. } = &outcome { Some(*fault) } else { None };
        assert_eq!(told, expected, "{agent} {case}: {outcome:?}");
    }
    let Some(FaultKind::Limit { until_ms: Some(_) }) = fault("codex", "ext_usage_limit_with_date") else {
        panic!("the date of the reset was not read");
    };
}

/// Returns the report of an agent that printed no event, and whether it was to continue a conversation.
fn silent(name: &str, ended: Ended, stderr: &str, session: Option<&Session>) -> Report {
    agent(name).parser(session).end(End { ended, stderr, output: "", now_ms: NOW, zone: &TimeZone::UTC })
}

#[test]
fn only_the_agent_s_own_error_decides_about_a_retry_and_no_word_of_its_tools() {
    let (code, killed) = (Ended::Code(1), Ended::Signal(9));
    let limit = |until_ms| FaultKind::Limit { until_ms };
    let index = "src/authentication.rs: index does not exist yet";
    let tracing = "2026-01-02T03:04:05.1Z ERROR codex_core::tools: error=Exit code 1: quota exceeded, rate limit";
    let cases = [
        // Words of tools.
        (code, index, FaultKind::Task),
        (code, "warning: 429 Too Many Requests from the registry\nconnection refused", FaultKind::Task),
        (code, tracing, FaultKind::Task),
        (code, "Error: the build failed\nrate limit of the test server: unauthorized", FaultKind::Task),
        // A signal comes from outside.
        (killed, index, FaultKind::Task),
        (killed, "Error: rate limit reached", FaultKind::Task),
        (Ended::Signal(15), "Error: Invalid API key", FaultKind::Task),
        // The agent's own words.
        (code, "Error: Not logged in. Please run login", FaultKind::Lasting),
        (code, "loading\nError: rate limit reached, try again in 1.5s", limit(Some(NOW + 1_500))),
        (code, "Error: request failed\n\nCaused by:\n    0: connection refused", FaultKind::Passing),
        (code, "Error: overloaded\nError: unknown flag", FaultKind::Task),
        (code, "", FaultKind::Task),
    ];
    for name in ["claude", "codex"] {
        for (ended, stderr, expected) in cases {
            let outcome = silent(name, ended, stderr, None).outcome;
            let Outcome::Failure { fault, .. } = outcome else { panic!("{name} {ended:?} {stderr:?}: {outcome:?}") };
            assert_eq!(fault, expected, "{name} {ended:?} {stderr:?}");
        }
    }
}

#[test]
fn a_conversation_that_is_gone_is_recognized_only_if_it_was_to_be_continued() {
    let session = Session { id: "0c2e7dc1-756e-4669-8d3e-e5611b9d86f4".to_owned(), ..Session::default() };
    assert!(read("claude", "resume_unknown", Ended::Code(1), Some(&session)).1.is_gone);
    assert!(!read("claude", "resume_unknown", Ended::Code(1), None).1.is_gone);
    for case in ["rate_limited", "bad_key", "max_turns", "sigterm", "normal"] {
        assert!(!read("claude", case, Ended::Code(1), Some(&session)).1.is_gone, "{case}");
    }
    let claude = format!("No conversation found with session ID: {}", session.id);
    let codex = "Error: thread/resume: thread/resume failed: no rollout found for thread id 01a1 (code -32600)";
    for (name, said) in [("claude", claude.as_str()), ("codex", codex)] {
        assert!(silent(name, Ended::Code(1), said, Some(&session)).is_gone, "{name}");
        assert!(!silent(name, Ended::Code(1), said, None).is_gone, "{name}");
        let of_a_tool = format!("grep: {said}");
        assert!(!silent(name, Ended::Code(1), &of_a_tool, Some(&session)).is_gone, "{name}");
    }
}

#[test]
fn a_recovered_error_is_reported_and_is_no_failure() {
    for (agent, case) in
        [("claude", "retry_recovered"), ("claude", "overloaded_recovered"), ("codex", "rate_limited_recovered")]
    {
        let (seen, report) = read(agent, case, Ended::Code(0), None);
        assert!(matches!(report.outcome, Outcome::Success { .. }), "{agent} {case}");
        assert!(seen.iter().any(|one| matches!(one, Seen::Delay(_))), "{agent} {case}: {seen:?}");
    }
}

#[test]
fn a_wrong_key_is_not_tried_for_minutes() {
    let (seen, report) = read("claude", "bad_key", Ended::Code(143), None);
    assert!(seen.contains(&Seen::Doomed), "{seen:?}");
    assert!(matches!(report.outcome, Outcome::Failure { fault: FaultKind::Lasting, .. }), "{report:?}");
}

#[test]
fn denied_permissions_are_reported_once() {
    let (seen, _) = read("claude", "denied", Ended::Code(0), None);
    let denied: Vec<&Seen> = seen.iter().filter(|one| matches!(one, Seen::Denied(_))).collect();
    assert_eq!(denied, [&Seen::Denied("Bash: touch b.txt".to_owned())], "reported once, with the tool use");
}

#[test]
fn a_question_is_reported_once_with_its_options() {
    let asked = r#"{"type":"assistant","message":{"content":[{"type":"tool_use","id":"t1","name":"AskUserQuestion","input":{"questions":[{"question":"Which database?","options":[{"label":"sqlite"},{"label":"postgres"}]}]}}]}}"#;
    let denied = r#"{"type":"system","subtype":"permission_denied","tool_name":"AskUserQuestion","tool_use_id":"t1"}"#;
    let result = r#"{"type":"result","subtype":"success","is_error":false,"result":"x","permission_denials":[{"tool_name":"AskUserQuestion","tool_use_id":"t1","tool_input":{}}]}"#;
    let mut parser = Agent::find("claude", &BTreeMap::new()).expect("known").parser(None);
    let seen: Vec<Seen> = [asked, denied, result].iter().flat_map(|line| parser.line(line)).collect();
    assert_eq!(seen, [Seen::Asked("Which database? (sqlite | postgres)".to_owned())]);
}

#[test]
fn costs_that_count_over_a_conversation_are_not_counted_twice() {
    let mut session = None;
    let mut sum = Spent::default();
    for case in ["resume_1", "resume_2", "resume_3"] {
        let report = read("claude", case, Ended::Code(0), session.as_ref()).1;
        sum = sum.plus(report.spent);
        session = report.session;
    }
    let told = sum.usd.expect("the price was reported");
    assert!((told - 0.0256).abs() < 1e-9, "{told}");
    assert_eq!((sum.input_tokens, sum.output_tokens), (3200, 640));
    let (mut session, mut sum) = (None, Spent::default());
    for case in ["resume_1", "resume_2", "resume_3"] {
        let report = read("codex", case, Ended::Code(0), session.as_ref()).1;
        sum = sum.plus(report.spent);
        session = report.session;
    }
    assert_eq!((sum.input_tokens, sum.output_tokens), (500, 100));
}

#[test]
fn a_conversation_is_continued_by_its_name() {
    let session = Session { id: "S".to_owned(), ..Session::default() };
    let argv = |name: &str, session| {
        let turn = Turn { prompt: "do it", session, fresh_id: "F", ..Turn::default() };
        let launch = agent(name).launch(&turn);
        assert_eq!(launch.input.as_deref(), Some("do it"));
        launch.argv.join(" ")
    };
    assert!(argv("claude", None).contains("--session-id F"));
    assert!(argv("claude", Some(&session)).ends_with("--resume S"));
    assert!(argv("codex", None).starts_with("codex exec --json"));
    assert!(argv("codex", Some(&session)).starts_with("codex exec resume --json"));
    assert!(argv("codex", Some(&session)).ends_with("S -"));
}

#[test]
fn shell_blocks_are_the_program_and_other_blocks_are_not() {
    let spec = "# T\n\n```sh\none\n```\n\n```rust\nno\n```\n~~~~bash\ntwo\n~~~\nthree\n~~~~\n```\nno\n```\n";
    assert_eq!(shell_script(spec), Ok("one\ntwo\n~~~\nthree\n".to_owned()));
    assert_eq!(shell_script("# T\n"), Err("no ```sh block, which the shell agent runs".to_owned()));
    assert_eq!(shell_script("```sh\nx\n"), Err("a shell block is not closed with ```".to_owned()));
}

#[test]
fn agents_are_found_by_name_and_errors_name_the_problem() {
    let command = |words: &[&str]| AgentConfig {
        command: Some(words.iter().map(ToString::to_string).collect()),
        ..AgentConfig::default()
    };
    let configured =
        BTreeMap::from([("mine".to_owned(), command(&["my-agent", "--go"])), ("empty".to_owned(), command(&[]))]);
    assert_eq!(Agent::find("mine", &configured).map(|agent| agent.kind), Ok(Kind::Command));
    assert_eq!(Agent::find("empty", &configured), Err("agents.empty.command is empty".to_owned()));
    let unknown = Agent::find("none", &configured).expect_err("unknown");
    assert_eq!(
        unknown,
        "agent 'none' not found (known: claude, codex, gemini, opencode, aider, gemini-acp, opencode-acp, \
         qwen, shell, empty, mine)"
    );
    let required = ["file_write".to_owned(), "web_search".to_owned(), "telepathy".to_owned()];
    assert_eq!(agent("shell").missing(&required), ["web_search", "telepathy"]);
    assert_eq!(agent("claude").missing(&required), ["telepathy"]);
}

#[test]
fn lines_that_are_no_events_are_ignored() {
    for name in BUILT_IN {
        let mut parser = agent(name).parser(None);
        for line in [
            "",
            "not json",
            "{\"type\":7}",
            "[]",
            "null",
            "\u{1b}[31m",
            "{\"type\":\"assistant\",\"message\":3}",
            "{\"type\":\"result\",\"usage\":[]}",
        ] {
            parser.line(line);
        }
        let _ = parser.end(End { ended: Ended::Code(0), stderr: "", output: "", now_ms: 0, zone: &TimeZone::UTC });
    }
}

/// Lines of `name` with these values, and what they report.
fn seen(name: &str, lines: &[Value]) -> (Vec<Seen>, Report) {
    let mut parser = agent(name).parser(None);
    let seen = lines.iter().flat_map(|line| parser.line(&line.to_string())).collect();
    (seen, parser.end(End { ended: Ended::Code(0), stderr: "", output: "", now_ms: 0, zone: &TimeZone::UTC }))
}

#[test]
fn members_of_the_wrong_type_are_absent_and_the_rest_of_the_line_counts() {
    let part = |part: Value| json!({"type": "assistant", "error": 7, "message": {"content": [7, null, part]}});
    let denied =
        |id: Value| json!({"type": "system", "subtype": "permission_denied", "tool_use_id": id, "tool_name": 7});
    let said = str::to_owned;
    for (line, reported) in [
        (part(json!({"type": "text", "text": "hi"})), vec![Seen::Text(said("hi"))]),
        (part(json!({"type": "text", "text": ["hi"]})), vec![]),
        (part(json!({"type": ["text"], "text": "hi"})), vec![]),
        (part(json!({"type": "tool_use", "id": 7, "name": "Bash", "input": "x"})), vec![Seen::Tool(said("Bash"))]),
        (part(json!({"type": "tool_use", "name": {"a": 1}, "input": {"command": "x"}})), vec![]),
        (
            part(json!({"type": "tool_use", "name": "TodoWrite", "input": {"todos": "x"}})),
            vec![Seen::Tool(said("TodoWrite"))],
        ),
        (
            part(
                json!({"type": "tool_use", "name": "AskUserQuestion", "input": {"questions": [7, {"question": "Which?", "options": [7, {"label": 7}]}]}}),
            ),
            vec![Seen::Asked(said("Which?"))],
        ),
        (denied(json!([1])), vec![Seen::Denied(said("a tool"))]),
        (json!({"type": "system", "subtype": "init", "session_id": 7}), vec![]),
        (
            json!({"type": "system", "subtype": "api_retry", "error": [], "retry_delay_ms": "x"}),
            vec![Seen::Delay(said("error, retrying in 0.0 s"))],
        ),
        (json!({"type": "rate_limit_event", "rate_limit_info": "rejected"}), vec![]),
        (
            json!({"type": "result", "is_error": true, "permission_denials": [7, {"tool_name": 7, "tool_input": 7}]}),
            vec![Seen::Denied(said("a tool")), Seen::Denied(said("a tool"))],
        ),
    ] {
        assert_eq!(seen("claude", std::slice::from_ref(&line)).0, reported, "{line}");
    }
    let item = |item: Value| json!({"type": "item.completed", "item": item});
    for (line, reported) in [
        (item(json!("x")), vec![]),
        (item(json!({"type": "agent_message", "text": 7})), vec![]),
        (
            item(json!({"type": "file_change", "changes": [7, {"path": "a"}, {"path": 7}]})),
            vec![Seen::Tool(said("edit: a"))],
        ),
        (json!({"type": "item.started", "item": {"type": "command_execution", "command": ["x"]}}), vec![]),
        (json!({"type": "thread.started", "thread_id": {}}), vec![]),
        (json!({"type": "error", "message": ["Reconnecting"]}), vec![]),
    ] {
        assert_eq!(seen("codex", std::slice::from_ref(&line)).0, reported, "{line}");
    }
    let done = json!({"type": "turn.completed", "usage": {"input_tokens": "x", "output_tokens": 5}});
    let (_, report) = seen("codex", &[item(json!({"type": "agent_message", "text": "ok"})), done]);
    assert_eq!((report.spent.input_tokens, report.spent.output_tokens), (0, 5));
    assert_eq!(report.outcome, Outcome::Success { summary: Some(said("ok")) });
}

/// Keys and words that the parsers know.
const KNOWN: [&str; 38] = [
    "type",
    "subtype",
    "system",
    "init",
    "session_id",
    "api_retry",
    "error",
    "retry_delay_ms",
    "permission_denied",
    "tool_use_id",
    "tool_name",
    "assistant",
    "message",
    "content",
    "text",
    "tool_use",
    "name",
    "id",
    "input",
    "todos",
    "TodoWrite",
    "AskUserQuestion",
    "questions",
    "question",
    "options",
    "label",
    "rate_limit_event",
    "rate_limit_info",
    "status",
    "rejected",
    "resetsAt",
    "result",
    "permission_denials",
    "item",
    "usage",
    "changes",
    "path",
    "command",
];
const TYPES: [&str; 13] = [
    "system",
    "assistant",
    "rate_limit_event",
    "result",
    "thread.started",
    "item.started",
    "item.completed",
    "turn.completed",
    "turn.failed",
    "error",
    "user",
    "agent_message",
    "file_change",
];

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        select(&KNOWN[..]).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 8, |inner| {
        let members = prop::collection::btree_map(select(&KNOWN[..]).prop_map(str::to_owned), inner.clone(), 0..8);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            members.prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Replaces the value at one place of a document: the `at`th in the order of a walk.
fn replaced(value: &mut Value, at: &mut usize, new: &Value) {
    if *at == 0 {
        *value = new.clone();
        *at = usize::MAX;
        return;
    }
    *at -= 1;
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| replaced(item, at, new)),
        Value::Object(members) => members.values_mut().for_each(|member| replaced(member, at, new)),
        _ => {}
    }
}

proptest! {
    #[test]
    fn any_json_is_read_without_a_panic(kind in select(&TYPES[..]), values in prop::collection::vec(any_json(), 1..6)) {
        for name in ["claude", "codex", "gemini", "opencode"] {
            let lines: Vec<Value> = values.iter().cloned().map(|mut value| {
                if let Some(members) = value.as_object_mut() {
                    members.insert("type".to_owned(), kind.into());
                }
                value
            }).collect();
            seen(name, &lines);
        }
        values.iter().for_each(|value| drop(hooks::hear(value)));
    }

    #[test]
    fn a_recorded_line_with_one_wrong_value_is_read_without_a_panic(
        agent in select(&["claude", "codex", "gemini", "opencode"][..]), at in 0..40_usize, new in any_json(), huge in any::<bool>()
    ) {
        let new = if huge { json!(u64::MAX) } else { new };
        let text = ["normal", "bad_key", "rate_limited"].map(|case| lines(agent, case)).concat();
        let mut all: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        all.iter_mut().for_each(|line| replaced(line, &mut at.clone(), &new));
        seen(agent, &all);
    }
}
