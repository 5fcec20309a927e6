//! Tests of the dialogues with recorded lines of the real programs (`tests/data/agents`).

use std::path::Path;

use serde_json::{Value, json};
use swarm_model::Ended;
use swarm_model::asks::{AskWish, Verdict};

use super::dialogue::{CANCEL_MS, Dialogue, Request, Step};
use super::*;

const ACP: [&str; 3] = ["gemini-acp", "opencode-acp", "qwen"];

/// A dialogue, with what it sent and asked.
pub struct Play {
    pub machine: Box<dyn Dialogue>,
    pub now_ms: u64,
    pub sent: Vec<Value>,
    pub asked: Vec<Request>,
    pub seen: Vec<Seen>,
    pub is_closed: bool,
    /// Answer to each request, at once.
    pub verdict: Option<Verdict>,
}

pub fn find(name: &str) -> Agent {
    Agent::find(name, &BTreeMap::new()).expect("it is built in")
}

pub fn known(id: &str) -> Session {
    Session { id: id.to_owned(), ..Session::default() }
}

impl Play {
    pub fn new(name: &str, session: Option<&Session>) -> Self {
        Self::with(&find(name.strip_suffix("-server").unwrap_or(name)), session, Consent::PartialAccess)
    }

    pub fn with(agent: &Agent, session: Option<&Session>, consent: Consent) -> Self {
        let turn = Turn { prompt: "do it", session, fresh_id: "F", cwd: "/w", consent: Some(consent) };
        let Talk::Dialogue(machine) = agent.talk(&turn) else { panic!("no dialogue") };
        let mut play = Self {
            machine,
            now_ms: 0,
            sent: Vec::new(),
            asked: Vec::new(),
            seen: Vec::new(),
            is_closed: false,
            verdict: Some(Verdict::Allow { input: None }),
        };
        let steps = play.machine.begin(0);
        play.take(steps);
        play
    }

    pub fn take(&mut self, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Seen(seen) => self.seen.push(seen),
                Step::Send(line) => {
                    assert!(!line.contains('\n'), "{line}");
                    self.sent.push(serde_json::from_str(&line).expect("JSON"));
                }
                Step::Ask(request) => {
                    self.asked.push(request.clone());
                    if let Some(verdict) = self.verdict.clone() {
                        let more = self.machine.answer(&request.call, &verdict);
                        self.take(more);
                    }
                }
                Step::Close => self.is_closed = true,
            }
        }
    }

    pub fn line(&mut self, line: &str) {
        let steps = self.machine.line(line, self.now_ms);
        self.take(steps);
    }

    pub fn say(&mut self, value: &Value) {
        self.line(&value.to_string());
    }

    /// Lets the time pass until something is due.
    pub fn wait(&mut self) {
        self.now_ms = self.machine.due_ms().expect("there is a limit");
        let steps = self.machine.tick(self.now_ms);
        self.take(steps);
    }

    /// Reads a recording up to the first line with this text.
    pub fn until(&mut self, agent: &str, case: &str, text: &str) -> Vec<String> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/data/agents/{agent}/{case}.jsonl"));
        let all = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut lines = all.lines().map(str::to_owned);
        for line in lines.by_ref() {
            self.line(&line);
            if !text.is_empty() && line.contains(text) {
                break;
            }
        }
        lines.collect()
    }

    pub fn end(self, ended: Ended) -> Report {
        let zone = TimeZone::UTC;
        self.machine.end(End { ended, stderr: "", output: "", now_ms: 1_790_000_000_000, zone: &zone })
    }

    pub fn methods(&self) -> Vec<&str> {
        self.sent.iter().filter_map(|message| message["method"].as_str()).collect()
    }

    /// Returns the answers to requests.
    pub fn answers(&self) -> Vec<&Value> {
        self.sent.iter().filter(|message| message.get("method").is_none()).map(|message| &message["result"]).collect()
    }
}

fn recorded(agent: &str, case: &str, session: Option<&Session>) -> (Play, Report) {
    let mut play = Play::new(agent, session);
    play.until(agent, case, "");
    let mut again = Play::new(agent, session);
    again.until(agent, case, "");
    (play, again.end(Ended::Code(0)))
}

fn tools(play: &Play) -> Vec<&str> {
    let tools =
        play.seen.iter().filter_map(|seen| if let Seen::Tool(tool) = seen { Some(tool.as_str()) } else { None });
    tools.collect()
}

#[test]
fn a_turn_is_opened_carried_out_and_accounted_for() {
    for (agent, tokens, usd, used) in [
        ("gemini-acp", (3000, 600), None, vec!["execute: echo hi > a.txt", "edit: Writing to b.txt"]),
        (
            "opencode-acp",
            (1000, 200),
            Some(0.018_000_000_000_000_002),
            vec!["execute: echo hi > a.txt", "edit: /w/b.txt"],
        ),
        ("qwen", (3000, 600), None, vec!["execute: echo hi > a.txt"]),
    ] {
        let (play, report) = recorded(agent, "normal", None);
        assert_eq!(play.methods(), ["initialize", "session/new", "session/prompt"], "{agent}");
        assert!(play.is_closed, "{agent}");
        let new = &play.sent[1]["params"];
        assert_eq!((&new["cwd"], &new["mcpServers"]), (&json!("/w"), &json!([])));
        let offered = &play.sent[0]["params"]["clientCapabilities"];
        assert_eq!(offered, &json!({"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false}));
        assert_eq!(play.sent[2]["params"]["prompt"], json!([{"type": "text", "text": "do it"}]));
        assert_eq!(tools(&play), used, "{agent}");
        assert_eq!(report.outcome, Outcome::Success { summary: Some("all done".to_owned()) }, "{agent}");
        let spent = report.spent;
        assert_eq!(
            ((spent.input_tokens, spent.output_tokens), spent.usd, spent.unpriced),
            (tokens, usd, usd.is_none())
        );
        assert!(
            matches!(play.seen.first(), Some(Seen::Session(id)) if Some(id) == report.session.map(|it| it.id).as_ref())
        );
    }
    let (play, report) = recorded("codex-server", "normal", None);
    assert_eq!(play.methods(), ["initialize", "initialized", "thread/start", "turn/start"]);
    assert_eq!(tools(&play), ["exec: echo hi > a.txt"]);
    assert_eq!(report.outcome, Outcome::Success { summary: Some("all done".to_owned()) });
    assert_eq!((report.spent.input_tokens, report.spent.output_tokens, report.spent.unpriced), (2000, 400, true));
}

#[test]
fn a_request_says_what_is_wanted_and_is_allowed_once() {
    let command = AskWish::Command { command: "echo hi > a.txt".to_owned() };
    for (agent, option, wishes) in [
        ("gemini-acp", json!("proceed_once"), vec![Some(&command), None]),
        ("opencode-acp", json!("once"), vec![Some(&command), None]),
        // The stand-in names no absolute path, so the tool fails before it asks.
        ("qwen", json!("proceed_once"), vec![Some(&command)]),
    ] {
        let (play, report) = recorded(agent, "asks", None);
        assert_eq!(play.asked.len(), wishes.len(), "{agent}");
        for (asked, wish) in play.asked.iter().zip(wishes) {
            match (&asked.wish, wish) {
                (AskWish::Write { path, change }, None) => {
                    assert!(path == "/w/b.txt" && change.contains("b\\n"), "{agent}: {change}");
                }
                (other, wish) => assert_eq!(Some(other), wish, "{agent}"),
            }
        }
        let once = json!({"outcome": {"outcome": "selected", "optionId": option}});
        assert_eq!(play.answers().first(), Some(&&once), "{agent}");
        assert!(matches!(report.outcome, Outcome::Success { .. }), "{agent}");
    }
    let (play, report) = recorded("codex-server", "asks", None);
    assert_eq!(play.asked.iter().map(|asked| &asked.wish).collect::<Vec<_>>(), [&command]);
    assert_eq!(play.asked[0].call, "call_2af7035110a9");
    assert_eq!(play.answers(), [&json!({"decision": "accept"})]);
    assert!(matches!(report.outcome, Outcome::Success { .. }));
}

#[test]
fn an_unknown_method_is_refused_with_the_code_for_it() {
    let (play, _) = recorded("opencode-acp", "asks", None);
    let errors: Vec<&Value> = play.sent.iter().filter_map(|message| message.get("error")).collect();
    assert_eq!(errors, [&json!({"code": -32601, "message": "method not found: fs/write_text_file"})]);
}

#[test]
fn what_is_refused_is_rejected_or_declined_and_nothing_is_allowed_for_longer() {
    let no = || Verdict::Deny { reason: "no".to_owned() };
    for (agent, option) in [("gemini-acp", "cancel"), ("opencode-acp", "reject"), ("qwen", "cancel")] {
        // Another input than the one that was asked for cannot be passed on.
        for verdict in [no(), Verdict::Allow { input: Some(json!({"command": "ls"})) }] {
            let mut play = Play::new(agent, None);
            play.verdict = Some(verdict);
            play.until(agent, "rejected", "");
            let outcome = &play.answers()[0]["outcome"];
            assert_eq!(outcome, &json!({"outcome": "selected", "optionId": option}), "{agent}");
            let stops = agent == "opencode-acp";
            match play.end(Ended::Code(0)).outcome {
                // It ends the turn there, as if it were done.
                Outcome::Failure { cause, fault, .. } if stops => {
                    assert_eq!(cause, "stopped because it was not allowed execute: echo hi > a.txt");
                    assert_eq!(fault, FaultKind::Lasting);
                }
                outcome => assert!(matches!(outcome, Outcome::Success { .. }) && !stops, "{agent}: {outcome:?}"),
            }
        }
    }
    let mut play = Play::new("codex-server", None);
    play.verdict = Some(no());
    play.until("codex-server", "declined", "");
    assert_eq!(play.answers(), [&json!({"decision": "decline"})]);
    assert!(matches!(play.end(Ended::Code(0)).outcome, Outcome::Success { .. }), "it goes on");
    // An agent that offers only what is for ever is not allowed anything.
    let mut play = Play::with(&find("qwen"), None, Consent::PartialAccess);
    play.until("qwen", "asks", "\"id\":2");
    let options = json!([{"optionId": "a", "kind": "allow_always"}]);
    let session = play.seen.iter().find_map(|seen| if let Seen::Session(id) = seen { Some(id.clone()) } else { None });
    play.say(&json!({"id": 9, "method": "session/request_permission", "params": {"sessionId": session,
        "toolCall": {"toolCallId": "c", "kind": "execute", "title": "ls"}, "options": options}}));
    assert_eq!(play.answers().last(), Some(&&json!({"outcome": {"outcome": "cancelled"}})));
}

#[test]
fn a_turn_that_is_cancelled_while_it_asks_executes_nothing() {
    for agent in ACP {
        let mut play = Play::new(agent, None);
        play.verdict = None;
        let rest = play.until(agent, "cancelled", "request_permission");
        assert_eq!((play.asked.len(), play.machine.due_ms()), (1, None), "{agent}: a person has no limit here");
        let steps = play.machine.cancel(play.now_ms);
        play.take(steps);
        let last: Vec<&Value> = play.sent.iter().rev().take(2).collect();
        assert_eq!(last[1]["method"], "session/cancel", "{agent}");
        assert_eq!(last[0]["result"], json!({"outcome": {"outcome": "cancelled"}}), "{agent}");
        // An answer that comes now, or another request, changes nothing.
        let call = play.asked[0].call.clone();
        assert_eq!(play.machine.answer(&call, &Verdict::Allow { input: None }), []);
        let session = play.sent.iter().rev().find_map(|sent| sent["params"]["sessionId"].as_str()).map(str::to_owned);
        play.say(&json!({"id": 77, "method": "session/request_permission", "params": {"sessionId": session}}));
        assert_eq!(play.answers().last(), Some(&&json!({"outcome": {"outcome": "cancelled"}})), "{agent}");
        assert_eq!(play.asked.len(), 1, "{agent}");
        for line in rest {
            play.line(&line);
        }
        assert!(play.is_closed, "{agent}");
        let Outcome::Failure { fault, .. } = play.end(Ended::Code(0)).outcome else { panic!("{agent}") };
        assert_eq!(fault, FaultKind::Passing);
    }
    let mut play = Play::new("codex-server", None);
    play.verdict = None;
    let rest = play.until("codex-server", "cancelled", "requestApproval");
    let steps = play.machine.cancel(play.now_ms);
    play.take(steps);
    assert_eq!(play.answers(), [&json!({"decision": "cancel"})]);
    assert_eq!(play.methods().last(), Some(&"turn/interrupt"));
    for line in rest {
        play.line(&line);
    }
    let Outcome::Failure { cause, .. } = play.end(Ended::Code(0)).outcome else { panic!("no failure") };
    assert_eq!(cause, "the turn was cancelled");
    // An agent that does not end its turn has a limit.
    let mut play = Play::new("qwen", None);
    play.until("qwen", "asks", "\"id\":2");
    let steps = play.machine.cancel(7);
    play.take(steps);
    assert_eq!(play.machine.due_ms(), Some(7 + CANCEL_MS));
    play.wait();
    assert!(play.is_closed);
}

#[test]
fn a_history_that_is_sent_again_is_not_taken_for_the_turn() {
    let agent = find("qwen");
    let session = known("ab862aea-c33f-4b9b-99a2-26e7ac2ad5fb");
    let mut play = Play::with(&agent, Some(&session), Consent::FullAccess);
    let rest = play.until("qwen", "loaded", "\"id\":2");
    assert_eq!(play.methods(), ["initialize", "session/load"], "the prompt is not sent yet");
    // As long as something arrives, but not for ever.
    for at in [200, 450, 700] {
        play.now_ms = at;
        play.line(r#"{"method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk"}}}"#);
        assert_eq!(play.machine.due_ms(), Some(at + 300));
        assert_eq!(play.machine.tick(at + 299), []);
    }
    play.now_ms = 1900;
    play.line(r#"{"method":"session/update","params":{}}"#);
    assert_eq!(play.machine.due_ms(), Some(2000), "two seconds at most");
    play.wait();
    assert_eq!(play.methods().last(), Some(&"session/prompt"));
    assert_eq!((tools(&play), play.seen.len()), (vec![], 1), "only the conversation: {:?}", play.seen);
    for line in rest {
        play.line(&line);
    }
    let report = play.end(Ended::Code(0));
    assert_eq!(report.outcome, Outcome::Success { summary: Some("third".to_owned()) });
    assert_eq!((report.spent.input_tokens, report.said.as_deref()), (1000, Some("third")));
}

#[test]
fn a_conversation_is_resumed_where_that_is_offered_and_its_price_is_that_of_all_turns() {
    let before = Spent { usd: Some(0.02), input_tokens: 7, ..Spent::default() };
    let session = Session { spent: before, ..known("ses_df50dc9dcffequRpA5yXH3G0G9") };
    let (play, report) = recorded("opencode-acp", "loaded", Some(&session));
    assert_eq!(play.methods(), ["initialize", "session/resume", "session/prompt"]);
    let after = report.session.expect("a conversation");
    assert_eq!((after.spent.usd, after.spent.input_tokens), (Some(0.03), 1007));
    assert!((report.spent.usd.expect("a price") - 0.01).abs() < 1e-9, "{:?}", report.spent);
    // Half of it was used by a turn that was killed.
    let half = Spent { input_tokens: 1000, output_tokens: 200, unpriced: true, usd: None };
    let session = Session { spent: half, unreported: half, ..known("01a20af1-b020-78c0-8a86-62ceb6542d49") };
    let (play, report) = recorded("codex-server", "resumed", Some(&session));
    let after = report.session.clone().expect("a conversation").since(Some(&session));
    assert_eq!((after.input_tokens, after.output_tokens), (1000, 200));
    assert_eq!(play.methods(), ["initialize", "initialized", "thread/resume", "turn/start"]);
    assert_eq!(play.sent[2]["params"]["threadId"], "01a20af1-b020-78c0-8a86-62ceb6542d49");
    assert_eq!((report.spent.input_tokens, report.spent.output_tokens), (1000, 200));
}

#[test]
fn a_conversation_that_is_gone_is_told_as_gone() {
    for agent in ["gemini-acp", "opencode-acp", "codex-server"] {
        let (play, report) = recorded(agent, "gone", Some(&known("x")));
        assert!(report.is_gone && play.is_closed, "{agent}");
    }
    // qwen opens an empty one under the same id.
    let mut play = Play::new("qwen", Some(&known("x")));
    play.until("qwen", "gone", "");
    play.say(&json!({"id": 2, "result": {}}));
    play.wait();
    assert!(!play.methods().contains(&"session/prompt"));
    assert!(play.end(Ended::Code(0)).is_gone);
}

#[test]
fn each_failure_says_whether_another_attempt_may_help() {
    let limit = FaultKind::Limit { until_ms: None };
    for (agent, case, expected) in [
        ("gemini-acp", "bad_key", FaultKind::Lasting),
        ("qwen", "bad_key", FaultKind::Lasting),
        ("codex-server", "bad_key", FaultKind::Lasting),
        ("codex-server", "limited", limit),
        // It does not tell the status.
        ("opencode-acp", "bad_key", FaultKind::Task),
    ] {
        let Outcome::Failure { fault, .. } = recorded(agent, case, None).1.outcome else { panic!("{agent} {case}") };
        assert_eq!(fault, expected, "{agent} {case}");
    }
    let of = |error: Value| {
        let mut play = Play::new("qwen", None);
        play.until("qwen", "normal", "\"id\":2");
        play.say(&json!({"id": 3, "error": error}));
        match play.end(Ended::Code(0)).outcome {
            Outcome::Failure { fault, .. } => fault,
            outcome => panic!("{outcome:?}"),
        }
    };
    assert_eq!(of(json!({"code": 429, "message": "slow down"})), limit);
    assert_eq!(of(json!({"code": -32000, "message": "log in"})), FaultKind::Lasting);
    assert_eq!(
        of(json!({"code": -32603, "message": "Internal error", "data": {"details": "Connection error."}})),
        FaultKind::Passing
    );
    for (reason, fault) in [
        ("max_tokens", FaultKind::Task),
        ("max_turn_requests", FaultKind::Task),
        ("refusal", FaultKind::Lasting),
        ("something new", FaultKind::Task),
    ] {
        let mut play = Play::new("gemini-acp", None);
        play.until("gemini-acp", "normal", "\"id\":2");
        play.say(&json!({"id": 3, "result": {"stopReason": reason}}));
        let Outcome::Failure { fault: found, .. } = play.end(Ended::Code(0)).outcome else { panic!("{reason}") };
        assert_eq!(found, fault, "{reason}");
    }
}

#[test]
fn codex_asks_for_each_file_of_an_edit_and_for_answers() {
    let mut play = Play::new("codex-server", None);
    play.until("codex-server", "normal", "\"id\":3");
    let thread = play.sent[3]["params"]["threadId"].clone();
    let kind = json!({"type": "update", "move_path": null});
    let changes = json!([{"path": "a.rs", "kind": kind, "diff": "+a"}, {"path": "b.rs", "kind": kind, "diff": "+b"}]);
    play.say(&json!({"method": "item/started", "params": {"threadId": thread,
        "item": {"type": "fileChange", "id": "e", "changes": changes}}}));
    play.verdict = None;
    play.say(
        &json!({"id": 0, "method": "item/fileChange/requestApproval", "params": {"threadId": thread, "itemId": "e"}}),
    );
    assert_eq!(play.asked[0].wish, AskWish::Write { path: "a.rs".to_owned(), change: "+a".to_owned() });
    let allow = Verdict::Allow { input: None };
    let steps = play.machine.answer(&play.asked[0].call, &allow);
    play.take(steps);
    assert_eq!(play.asked[1].wish, AskWish::Write { path: "b.rs".to_owned(), change: "+b".to_owned() });
    assert!(play.answers().is_empty());
    let steps = play.machine.answer(&play.asked[1].call, &allow);
    play.take(steps);
    assert_eq!(play.answers(), [&json!({"decision": "accept"})]);
    let questions = json!([{"id": "q", "question": "Which?", "options": [{"label": "A", "description": ""}]}]);
    play.say(&json!({"id": 1, "method": "item/tool/requestUserInput", "params": {"threadId": thread, "itemId": "u",
        "isBlocking": true, "questions": questions}}));
    assert!(matches!(&play.asked[2].wish, AskWish::Question { questions } if questions[0].options == ["A"]));
    let steps = play.machine.answer("u", &Verdict::Answer { answers: vec![("q".to_owned(), "A".to_owned())] });
    play.take(steps);
    assert_eq!(play.answers()[1], &json!({"answers": {"q": {"answers": ["A"]}}}));
    play.say(&json!({"id": 2, "method": "mcpServer/elicitation/request", "params": {"threadId": thread}}));
    assert_eq!(play.answers()[2]["action"], "decline");
}

#[test]
fn codex_gets_its_sandbox_by_the_consent_and_exec_stays_where_it_need_not_ask() {
    for (consent, approval, sandbox) in
        [(Consent::NoAccess, "untrusted", "read-only"), (Consent::PartialAccess, "untrusted", "workspace-write")]
    {
        let mut play = Play::with(&find("codex"), None, consent);
        play.say(&json!({"id": 1, "result": {}}));
        let params = &play.sent[2]["params"];
        assert_eq!((&params["approvalPolicy"], &params["sandbox"]), (&json!(approval), &json!(sandbox)));
    }
    for consent in [None, Some(Consent::FullAccess)] {
        let turn = Turn { prompt: "x", consent, ..Turn::default() };
        assert!(matches!(find("codex").talk(&turn), Talk::Lines(_)));
        assert_eq!(find("codex").launch(&turn).argv[1], "exec");
    }
    let turn = Turn { consent: Some(Consent::NoAccess), ..Turn::default() };
    assert_eq!(find("codex").launch(&turn).argv, ["codex", "app-server"]);
}

#[test]
fn presets_need_no_configuration_and_a_command_replaces_their_program() {
    let turn = Turn::default();
    for (name, argv) in [
        ("gemini-acp", vec!["gemini", "--acp"]),
        ("opencode-acp", vec!["opencode", "acp"]),
        ("qwen", vec!["qwen", "--acp"]),
    ] {
        assert_eq!(find(name).launch(&turn).argv, argv);
    }
    let config = |command: Option<&str>| AgentConfig {
        command: command.map(|program| vec![program.to_owned(), "--acp".to_owned()]),
        events: Some("acp".to_owned()),
        ..AgentConfig::default()
    };
    let find = |name: &str, command| Agent::find(name, &BTreeMap::from([(name.to_owned(), config(command))]));
    assert_eq!(find("gemini", None).expect("found").kind, Kind::GeminiAcp);
    let other = find("opencode", Some("mine")).expect("found");
    assert_eq!(
        (other.kind, other.launch(&turn).argv),
        (Kind::OpencodeAcp, vec!["mine".to_owned(), "--acp".to_owned()])
    );
    assert_eq!(find("mine", Some("mine")).expect("found").kind, Kind::Acp);
    assert_eq!(find("mine", None).expect_err("no command"), "agents.mine has no command");
    assert!(Agent::find("acp", &BTreeMap::new()).is_err());
}
