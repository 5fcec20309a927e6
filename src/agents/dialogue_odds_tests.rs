//! Tests of the dialogues with agents that say nothing, too much, or the wrong thing.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use swarm_model::Ended;

use super::dialogue::ANSWER_MS;
use super::dialogue_tests::{Play, known};
use super::*;

#[test]
fn silence_is_a_passing_fault_and_another_version_a_lasting_one() {
    for agent in ["gemini-acp", "codex-server"] {
        let mut play = Play::new(agent, None);
        assert_eq!(play.machine.due_ms(), Some(ANSWER_MS));
        play.now_ms = 100;
        play.line("garbage");
        play.line(r#"{"id":7,"result":{"protocolVersion":1}}"#);
        assert_eq!(play.machine.due_ms(), Some(ANSWER_MS), "{agent}: nothing else counts as an answer");
        play.wait();
        assert!(play.is_closed);
        let Outcome::Failure { cause, fault, .. } = play.end(Ended::Code(0)).outcome else { panic!("{agent}") };
        assert!(cause.ends_with("did not answer 'initialize' within 60 s"), "{cause}");
        assert_eq!(fault, FaultKind::Passing);
    }
    let mut play = Play::new("qwen", None);
    play.say(&json!({"id": 1, "result": {"protocolVersion": 2}}));
    assert_eq!((play.is_closed, play.methods().len()), (true, 1));
    let Outcome::Failure { cause, fault, .. } = play.end(Ended::Code(0)).outcome else { panic!("no failure") };
    assert_eq!(cause, "qwen speaks version 2 of the Agent Client Protocol, not version 1");
    assert_eq!(fault, FaultKind::Lasting);
}

#[test]
fn an_agent_that_is_not_understood_or_ends_early_has_not_succeeded() {
    for agent in ["gemini-acp", "codex-server"] {
        let play = Play::new(agent, None);
        let Outcome::Failure { cause, .. } = play.end(Ended::Code(0)).outcome else { panic!("{agent}") };
        assert!(cause.ends_with("exited with code 0 and printed nothing"), "{cause}");
        let mut play = Play::new(agent, None);
        play.until(agent, "normal", "\"id\":2");
        let Outcome::Failure { cause, .. } = play.end(Ended::Code(0)).outcome else { panic!("{agent}") };
        assert_eq!(cause, "exited with code 0 without completing its turn");
    }
}

#[test]
fn answers_that_come_twice_and_other_conversations_are_ignored() {
    let mut play = Play::new("gemini-acp", None);
    play.until("gemini-acp", "normal", "\"id\":2");
    let (sent, seen) = (play.sent.len(), play.seen.len());
    for line in [
        r#"{"id":1,"result":{"protocolVersion":1}}"#,
        r#"{"id":2,"result":{"sessionId":"other"}}"#,
        r#"{"id":2,"error":{"code":1,"message":"m"}}"#,
        r#"{"method":"session/update","params":{"sessionId":"other","update":{"sessionUpdate":"agent_message_chunk","content":{"text":"not mine"}}}}"#,
    ] {
        play.line(line);
    }
    play.say(&json!({"id": 5, "method": "session/request_permission", "params": {"sessionId": "other"}}));
    assert_eq!(play.answers().last(), Some(&&json!({"outcome": {"outcome": "cancelled"}})));
    assert_eq!((play.sent.len(), play.seen.len(), play.asked.len()), (sent + 1, seen, 0));
    play.say(&json!({"id": 3, "result": {"stopReason": "end_turn"}}));
    let report = play.end(Ended::Code(0));
    assert_eq!((report.said, report.outcome), (None, Outcome::Success { summary: None }));
}

/// Lines that a mad agent may print, with the ids and methods of real ones.
fn any_line() -> impl Strategy<Value = String> {
    let id = prop_oneof![
        Just(json!(0)),
        Just(json!(1)),
        Just(json!(2)),
        Just(json!(3)),
        Just(json!("x")),
        Just(Value::Null)
    ];
    let method = select(vec![
        "session/update",
        "session/request_permission",
        "item/commandExecution/requestApproval",
        "item/fileChange/requestApproval",
        "item/permissions/requestApproval",
        "item/tool/requestUserInput",
        "item/started",
        "item/completed",
        "thread/tokenUsage/updated",
        "turn/completed",
        "error",
        "fs/read_text_file",
    ]);
    let part = prop_oneof![
        Just(json!({})),
        Just(json!([])),
        Just(json!("text")),
        Just(
            json!({"protocolVersion": 1, "sessionId": "s", "thread": {"id": "s"}, "turn": {"id": "t", "status": "completed"}})
        ),
        Just(json!({"sessionId": "s", "threadId": "s", "update": {"sessionUpdate": "tool_call", "toolCallId": "c"}})),
        Just(json!({"sessionId": "s", "threadId": "s", "itemId": "i", "toolCall": {"kind": "edit"}, "options": [{}]})),
        Just(json!({"sessionId": "s", "update": {"cost": {"amount": -1e300, "currency": "USD"},
            "_meta": {"usage": {"inputTokens": u64::MAX, "outputTokens": u64::MAX, "totalTokens": u64::MAX}}}})),
    ];
    prop_oneof![
        (id.clone(), method, part.clone())
            .prop_map(|(id, method, params)| { json!({"id": id, "method": method, "params": params}).to_string() }),
        (id, part).prop_map(|(id, result)| json!({"id": id, "result": result}).to_string()),
        ".{0,40}",
    ]
}

proptest! {
    #[test]
    fn no_lines_and_no_order_of_them_cause_a_panic_or_a_wait_without_an_end(
        agent in select(vec!["gemini-acp", "opencode-acp", "qwen", "codex-server"]),
        resumes in any::<bool>(),
        answers in any::<bool>(),
        steps in prop::collection::vec((any_line(), 0_u8..6), 0..40),
    ) {
        let session = known("s");
        let mut play = Play::new(agent, resumes.then_some(&session));
        if !answers {
            play.verdict = None;
        }
        for (line, what) in steps {
            match what {
                0 if play.machine.due_ms().is_some() => play.wait(),
                1 => {
                    let more = play.machine.cancel(play.now_ms);
                    play.take(more);
                }
                _ => play.line(&line),
            }
            if play.is_closed {
                prop_assert_eq!(play.machine.due_ms(), None);
                let sent = play.sent.len();
                play.line(r#"{"id":9,"method":"m"}"#);
                prop_assert_eq!(play.sent.len(), sent, "nothing is sent after the end");
            }
        }
        let more = play.machine.cancel(play.now_ms);
        play.take(more);
        while !play.is_closed {
            play.wait();
        }
        play.end(Ended::Signal(9));
    }
}
