//! Tests of the adapters of gemini, opencode and aider with recorded output of the real programs (`tests/data/agents`).

use super::*;
use crate::tests::read;

const NOW: u64 = 1_790_000_000_000;

/// Returns what aider's recorded output reports, and its report.
fn aider(case: &str, ended: Ended) -> (Vec<Seen>, Report) {
    let path = format!("{}/../../tests/data/agents/aider/{case}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect("recorded");
    let mut parser = Kind::Aider.parser();
    let seen = text.lines().flat_map(|line| parser.line(line)).collect();
    (seen, parser.end(End { ended, stderr: "", output: &text, now_ms: NOW, zone: &TimeZone::UTC }))
}

impl Kind {
    fn agent(self) -> Agent {
        Agent::find(self.traits().name, &BTreeMap::new()).expect("built in")
    }

    fn parser(self) -> Box<dyn Parser> {
        self.agent().parser(None)
    }
}

fn tokens(spent: Spent) -> (u64, u64) {
    (spent.input_tokens, spent.output_tokens)
}

#[test]
fn a_successful_turn_needs_the_agents_own_word_and_the_exit_code() {
    let (seen, report) = read("gemini", "normal", Ended::Code(0), None);
    assert_eq!(seen[0], Seen::Session("11c089c6-54bf-49d7-9640-0f4bd1eaeb20".to_owned()));
    let tools: Vec<&Seen> = seen.iter().filter(|one| matches!(one, Seen::Tool(_))).collect();
    let expected = [Seen::Tool("write_file: f.txt".to_owned()), Seen::Tool("run_shell_command: echo x".to_owned())];
    assert_eq!(tools, expected.iter().collect::<Vec<_>>());
    assert_eq!(seen.last(), Some(&Seen::Text("all done".to_owned())));
    assert_eq!(report.outcome, Outcome::Success { summary: Some("all done".to_owned()) });
    assert_eq!((tokens(report.spent), report.spent.unpriced), ((300, 60), true));

    let (seen, report) = read("opencode", "normal", Ended::Code(0), None);
    assert!(matches!(&seen[0], Seen::Session(id) if id.starts_with("ses_")), "{seen:?}");
    assert_eq!(seen.iter().filter(|one| matches!(one, Seen::Session(_))).count(), 1);
    assert!(seen.contains(&Seen::Tool("bash: echo x".to_owned())), "{seen:?}");
    assert!(seen.iter().any(|one| matches!(one, Seen::Tool(what) if what.ends_with("f.txt"))), "{seen:?}");
    assert_eq!(report.outcome, Outcome::Success { summary: Some("all done".to_owned()) });
    assert_eq!((tokens(report.spent), report.spent.unpriced), ((300, 60), false));
    assert!((report.spent.usd.expect("a price") - 0.0018).abs() < 1e-9);

    let (seen, report) = aider("edit", Ended::Code(0));
    assert!(seen.contains(&Seen::Tool("edit: a.txt".to_owned())), "{seen:?}");
    assert_eq!(tokens(report.spent), (100, 20));
    assert!(matches!(report.outcome, Outcome::Success { .. }), "{report:?}");
    let report = aider("normal", Ended::Code(0)).1;
    assert_eq!(report.outcome, Outcome::Success { summary: Some("all done".to_owned()) });

    for ended in [Ended::Code(1), Ended::Signal(15)] {
        for agent in ["gemini", "opencode"] {
            assert!(matches!(read(agent, "normal", ended, None).1.outcome, Outcome::Failure { .. }), "{agent}");
        }
        assert!(matches!(aider("normal", ended).1.outcome, Outcome::Failure { .. }));
    }
}

#[test]
fn each_failure_says_whether_and_when_another_attempt_may_help() {
    let limit = |until_ms| FaultKind::Limit { until_ms };
    for (agent, case, code, expected) in [
        ("gemini", "bad_key", 145, FaultKind::Lasting),
        ("gemini", "bad_request", 144, FaultKind::Lasting),
        ("gemini", "forbidden", 147, FaultKind::Lasting),
        ("gemini", "rate_limited", 173, limit(None)),
        ("gemini", "server_error", 244, FaultKind::Passing),
        ("opencode", "bad_key", 1, FaultKind::Lasting),
        ("opencode", "bad_request", 1, FaultKind::Lasting),
        ("opencode", "forbidden", 1, FaultKind::Lasting),
        ("opencode", "rate_limited", 1, limit(Some(NOW + 1000))),
        ("opencode", "overloaded", 1, FaultKind::Passing),
        ("opencode", "server_error", 1, FaultKind::Passing),
        // The exit code is 0, also where a permission was refused.
        ("opencode", "denied", 0, FaultKind::Lasting),
    ] {
        let outcome = read(agent, case, Ended::Code(code), None).1.outcome;
        let Outcome::Failure { fault, .. } = &outcome else { panic!("{agent} {case}: {outcome:?}") };
        assert_eq!(*fault, expected, "{agent} {case}: {outcome:?}");
    }
    for (case, expected) in [("bad_key", FaultKind::Lasting), ("bad_request", FaultKind::Lasting)] {
        let outcome = aider(case, Ended::Code(0)).1.outcome;
        let Outcome::Failure { fault, .. } = &outcome else { panic!("{case}: {outcome:?}") };
        assert_eq!(*fault, expected, "{case}: {outcome:?}");
    }
}

#[test]
fn a_refused_permission_is_named() {
    let (seen, report) = read("opencode", "denied", Ended::Code(0), None);
    assert!(seen.contains(&Seen::Denied("bash: touch q".to_owned())), "{seen:?}");
    let Outcome::Failure { cause, .. } = report.outcome else { panic!("{report:?}") };
    assert_eq!(cause, "stopped because it was not allowed bash: touch q");
    // A tool that fails for another reason was allowed.
    let (seen, report) = read("opencode", "tool_fails", Ended::Code(0), None);
    assert!(!seen.iter().any(|one| matches!(one, Seen::Denied(_))), "{seen:?}");
    assert!(matches!(report.outcome, Outcome::Success { .. }), "{report:?}");
}

#[test]
fn usage_of_one_start_or_step_adds_up_over_a_conversation() {
    for agent in ["gemini", "opencode"] {
        let (mut session, mut sum) = (None, Spent::default());
        for case in ["resume_1", "resume_2"] {
            let report = read(agent, case, Ended::Code(0), session.as_ref()).1;
            assert_eq!(tokens(report.spent), (2000, 400), "{agent} {case}");
            sum = sum.plus(report.spent);
            session = report.session;
        }
        assert_eq!(tokens(sum), (4000, 800), "{agent}");
        assert_eq!(tokens(session.expect("one").spent), (4000, 800), "{agent}");
    }
}

#[test]
fn steps_before_a_kill_count() {
    let text: String = {
        let path = format!("{}/../../tests/data/agents/opencode/normal.jsonl", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).expect("recorded")
    };
    let mut parser = Kind::Opencode.parser();
    let seen: Vec<Seen> = text.lines().take(4).flat_map(|line| parser.line(line)).collect();
    let told = seen.iter().rev().find_map(|one| if let Seen::Spent(spent) = one { Some(*spent) } else { None });
    assert_eq!(told.map(tokens), Some((100, 20)));
    let end = End { ended: Ended::Signal(9), stderr: "", output: "", now_ms: NOW, zone: &TimeZone::UTC };
    let report = parser.end(end);
    assert_eq!((tokens(report.spent), report.spent.unpriced), ((100, 20), true), "a step in progress has no price yet");
    assert!(matches!(report.outcome, Outcome::Failure { fault: FaultKind::Task, .. }));
}

#[test]
fn a_conversation_that_is_gone_is_recognized_only_if_it_was_to_be_continued() {
    let session = Session { id: "99999999-2222-4333-8444-555555555555".to_owned(), ..Session::default() };
    let gemini =
        "YOLO mode is enabled.\nError resuming session: Invalid session identifier \"9\".\n  Searched for it.\n";
    let opencode = "\u{1b}[91m\u{1b}[1mError: \u{1b}[0mSession not found\n";
    for (kind, stderr, code) in [(Kind::Gemini, gemini, 42), (Kind::Opencode, opencode, 1)] {
        let end = End { ended: Ended::Code(code), stderr, output: "", now_ms: NOW, zone: &TimeZone::UTC };
        assert!(kind.agent().parser(Some(&session)).end(end).is_gone, "{kind:?}");
        assert!(!kind.agent().parser(None).end(end).is_gone, "{kind:?}");
        let of_a_tool = format!("grep: {stderr}");
        let end = End { stderr: &of_a_tool, ..end };
        assert_eq!(kind.agent().parser(Some(&session)).end(end).is_gone, kind == Kind::Gemini, "{kind:?}");
    }
}

#[test]
fn a_directory_that_gemini_does_not_trust_is_a_lasting_failure() {
    let stderr = "YOLO mode is enabled.\nGemini CLI is not running in a trusted directory. To proceed, either use x.\n";
    let end = End { ended: Ended::Code(55), stderr, output: "", now_ms: NOW, zone: &TimeZone::UTC };
    let outcome = Kind::Gemini.parser().end(end).outcome;
    let Outcome::Failure { cause, fault: FaultKind::Lasting, .. } = &outcome else { panic!("{outcome:?}") };
    assert!(cause.starts_with("Gemini CLI is not running in a trusted directory"), "{cause}");
}

#[test]
fn output_that_no_adapter_understands_is_named_and_is_no_success() {
    let output = "{\"kind\":\"turn/started\"}\n{\"kind\":\"turn/ended\"}\n";
    for kind in [Kind::Claude, Kind::Codex, Kind::Gemini, Kind::Opencode, Kind::Aider] {
        let end = End { ended: Ended::Code(0), stderr: "", output, now_ms: NOW, zone: &TimeZone::UTC };
        let mut parser = kind.parser();
        output.lines().for_each(|line| drop(parser.line(line)));
        let outcome = parser.end(end).outcome;
        let Outcome::Failure { cause, fault: FaultKind::Lasting, .. } = &outcome else {
            panic!("{kind:?}: {outcome:?}")
        };
        let name = kind.traits().name;
        let expected = format!(
            "its output is not that of a known version of {name} (see 'swarm agents'): {{\"kind\":\"turn/ended\"}}"
        );
        assert_eq!(*cause, expected);
        let outcome = kind.parser().end(End { output: "", ..end }).outcome;
        assert!(matches!(outcome, Outcome::Failure { .. }), "{kind:?}: an exit code alone is no success");
    }
}

#[test]
fn each_agent_is_started_without_questions_and_configured_permissions_take_precedence() {
    let session = Session { id: "S".to_owned(), ..Session::default() };
    let launch = |kind: Kind, session: Option<&Session>, arguments: &[&str]| {
        let mut agent = kind.agent();
        agent.config.arguments = arguments.iter().map(ToString::to_string).collect();
        agent.config.model = Some("M".to_owned());
        let launch = agent.launch(&Turn { prompt: "do it", session, fresh_id: "F", ..Turn::default() });
        assert_eq!(launch.input.as_deref(), Some("do it"), "the prompt is no argument");
        launch
    };
    let words = |launch: &Launch| launch.argv.join(" ");
    let gemini = launch(Kind::Gemini, None, &["--sandbox"]);
    assert_eq!(words(&gemini), "gemini -o stream-json --approval-mode yolo --model=M --session-id F --sandbox");
    let gemini = launch(Kind::Gemini, Some(&session), &["--approval-mode", "auto_edit"]);
    assert_eq!(words(&gemini), "gemini -o stream-json --model=M --resume S --approval-mode auto_edit");
    assert!(gemini.env.contains(&("GEMINI_CLI_TRUST_WORKSPACE".to_owned(), "true".to_owned())));
    let opencode = launch(Kind::Opencode, Some(&session), &[]);
    assert_eq!(words(&opencode), "opencode run --format json --model=M -s S");
    let has = |name: &str| opencode.env.iter().any(|(key, _)| key == name);
    assert!(has("OPENCODE_PERMISSION") && has("OPENCODE_DISABLE_PROJECT_CONFIG"), "{:?}", opencode.env);
    let aider = words(&launch(Kind::Aider, None, &["--no-git"]));
    assert!(aider.starts_with("aider --message-file /dev/stdin --yes-always"), "{aider}");
    assert!(aider.ends_with("--model=M --no-git"), "{aider}");
}

#[test]
fn a_retried_request_of_aider_is_a_delay_and_its_last_word_counts() {
    let mut parser = Kind::Aider.parser();
    let error = "litellm.RateLimitError: RateLimitError: OpenAIException - mock 429";
    let mut read = |line: &str| parser.line(line);
    assert_eq!(read(error), [Seen::Delay(error.to_owned())]);
    assert_eq!(read("Retrying in 0.2 seconds..."), [Seen::Delay("Retrying in 0.2 seconds...".to_owned())]);
    read("all done");
    read("Tokens: 1.2k sent, 20 received. Cost: $0.01 message, $0.01 session.");
    let end = End { ended: Ended::Code(0), stderr: "", output: "", now_ms: NOW, zone: &TimeZone::UTC };
    let report = parser.end(end);
    assert_eq!(report.outcome, Outcome::Success { summary: Some("all done".to_owned()) });
    assert_eq!((tokens(report.spent), report.spent.usd), ((1200, 20), Some(0.01)));
    let mut parser = Kind::Aider.parser();
    parser.line("Tokens: 100 sent, 20 received.");
    parser.line(error);
    let outcome = parser.end(end).outcome;
    assert!(matches!(outcome, Outcome::Failure { fault: FaultKind::Limit { .. }, .. }), "{outcome:?}");
}

#[test]
fn the_gist_of_a_message_is_its_first_and_its_last_line() {
    for (text, gist) in
        [("done\n", "done"), ("Two ways.\n\n- a\n- b\n\nWhich one?\n \n", "Two ways. … Which one?"), ("", "")]
    {
        assert_eq!(crate::gist(text), gist);
    }
    let long = crate::gist(&format!("{}\n{} which?", "é".repeat(300), "x".repeat(50)));
    assert!(long.ends_with(" which?") && long.chars().count() < 200, "{long}");
    assert!(crate::short(&long) == long, "it stays whole in a list");
}
