//! Tests of the conversations, with recorded lines of the real programs (`tests/data/agents`).

use std::path::Path;

use super::*;

fn read(kind: Kind, lines: &[&str]) -> Vec<String> {
    let mut reader = Reader::new(kind, true);
    let mut said: Vec<Said> = lines.iter().flat_map(|line| reader.line(line)).collect();
    said.extend(reader.end());
    said.into_iter().map(|said| serde_json::to_string(&said).expect("json")).collect()
}

#[test]
fn a_conversation_of_claude_is_read() {
    let said = read(
        Kind::Claude,
        &[
            r#"{"type":"system","subtype":"init","cwd":"/w","session_id":"6f","tools":["Bash"]}"#,
            r#"{"type":"assistant","message":{"content":[{"type":"thinking","thinking":"…"},{"type":"text","text":"I look."},{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls","description":"list"}}]}}"#,
            r#"{"type":"user","message":{"role":"user","content":[{"tool_use_id":"t1","type":"tool_result","content":"a\nb\n","is_error":false}]}}"#,
            r#"{"type":"assistant","message":{"content":[{"type":"tool_use","id":"t2","name":"Write","input":{"file_path":"/x","content":"y"}}]}}"#,
            r#"{"type":"user","message":{"content":[{"type":"tool_result","content":[{"type":"text","text":"not allowed"}],"is_error":true}]}}"#,
            r#"{"type":"system","subtype":"permission_denied","tool_name":"Write","tool_use_id":"t2"}"#,
            r#"{"type":"assistant","message":{"content":[{"type":"tool_use","id":"t3","name":"AskUserQuestion","input":{"questions":[{"question":"Which?","options":[{"label":"A"},{"label":"B"}]}]}}]}}"#,
            r#"{"type":"something","new":1}"#,
            r#"{"type":"assi"#,
            r#"{"type":"assistant","message":{"content":[{"type":"text","text":"Done."}]}}"#,
            r#"{"type":"result","subtype":"success","is_error":false,"result":"Done.","total_cost_usd":0.5,"usage":{"input_tokens":7,"output_tokens":3}}"#,
            r#"{"type":"result","subtype":"error_max_turns","is_error":true}"#,
        ],
    );
    assert_eq!(
        said,
        [
            r#"{"kind":"begin","session":"6f"}"#,
            r#"{"kind":"message","text":"I look."}"#,
            r#"{"kind":"tool","tool":"Bash","text":"ls"}"#,
            r#"{"kind":"result","text":"a\nb","failed":false,"cut":0}"#,
            r#"{"kind":"tool","tool":"Write","text":"content: y\nfile_path: /x"}"#,
            r#"{"kind":"result","text":"not allowed","failed":true,"cut":0}"#,
            r#"{"kind":"denied","text":"Write"}"#,
            r#"{"kind":"question","text":"Which? (A | B)"}"#,
            r#"{"kind":"message","text":"Done."}"#,
            r#"{"kind":"end","failed":false,"text":"","usd":0.5,"input_tokens":7,"output_tokens":3}"#,
            r#"{"kind":"end","failed":true,"text":"error_max_turns"}"#,
        ]
    );
}

#[test]
fn a_conversation_of_codex_is_read() {
    let said = read(
        Kind::Codex,
        &[
            r#"{"type":"thread.started","thread_id":"01"}"#,
            r#"{"type":"turn.started"}"#,
            r#"{"type":"item.started","item":{"id":"item_0","type":"command_execution","command":"bash -lc ls","aggregated_output":"","status":"in_progress"}}"#,
            r#"{"type":"item.completed","item":{"id":"item_0","type":"command_execution","command":"bash -lc ls","aggregated_output":"no\n","exit_code":2,"status":"failed"}}"#,
            r#"{"type":"item.completed","item":{"id":"item_1","type":"file_change","changes":[{"path":"a.rs","kind":"add"}],"status":"completed"}}"#,
            r#"{"type":"item.completed","item":{"id":"item_2","type":"reasoning","text":"hm"}}"#,
            r#"{"type":"item.completed","item":{"id":"item_3","type":"agent_message","text":"Done."}}"#,
            r#"{"type":"turn.completed","usage":{"input_tokens":9,"cached_input_tokens":0,"output_tokens":2}}"#,
            r#"{"type":"turn.failed","error":{"message":"too much"}}"#,
            "warning: something below",
        ],
    );
    assert_eq!(
        said,
        [
            r#"{"kind":"begin","session":"01"}"#,
            r#"{"kind":"tool","tool":"exec","text":"bash -lc ls"}"#,
            r#"{"kind":"result","text":"no","failed":true,"cut":0}"#,
            r#"{"kind":"tool","tool":"edit","text":"a.rs"}"#,
            r#"{"kind":"message","text":"Done."}"#,
            r#"{"kind":"end","failed":false,"text":"","input_tokens":9,"output_tokens":2}"#,
            r#"{"kind":"end","failed":true,"text":"too much"}"#,
            r#"{"kind":"text","text":"warning: something below"}"#,
        ]
    );
}

#[test]
fn long_results_are_cut_and_other_agents_print_text() {
    let Said::Result { text, cut, .. } = result(&"é\n".repeat(100), false) else { panic!("not a result") };
    assert_eq!((text.lines().count(), cut), (RESULT_LINES, 80));
    let Said::Result { text, .. } = result(&"é".repeat(9000), false) else { panic!("not a result") };
    assert!(text.ends_with("é…") && text.len() < RESULT_BYTES + 10);
    assert_eq!(read(Kind::Shell, &["{\"a\":1}"]), [r#"{"kind":"text","text":"{\"a\":1}"}"#]);
}

/// Reads a recording, with what was sent before some of its lines.
fn recorded(kind: Kind, agent: &str, case: &str, sent: &[(usize, &str)]) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/data/agents/{agent}/{case}.jsonl"));
    let all = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut lines: Vec<String> = all.lines().map(str::to_owned).collect();
    for (before, message) in sent.iter().rev() {
        lines.insert(*before, format!("{{\"sent\":{message}}}"));
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let short = |said: Value| {
        let mut parts = vec![said["kind"].as_str().unwrap_or_default().to_owned()];
        if said["failed"] == true {
            parts.push("failed".to_owned());
        }
        for key in ["tool", "text", "usd", "input_tokens", "output_tokens"] {
            parts.extend(said.get(key).map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
        }
        parts.join("|")
    };
    read(kind, &lines).iter().map(|line| short(serde_json::from_str(line).expect("JSON"))).collect()
}

const ALLOWED: &str = r#"{"id":0,"result":{"outcome":{"outcome":"selected","optionId":"once"}}}"#;

#[test]
fn conversations_of_other_agents_without_a_terminal_are_read() {
    assert_eq!(
        recorded(Kind::Gemini, "gemini", "normal", &[]),
        [
            "begin",
            "tool|write_file|content: hi\nfile_path: f.txt",
            "result|",
            "tool|run_shell_command|echo x",
            "result|x",
            "message|all done",
            "end||300|60",
        ]
    );
    assert_eq!(
        recorded(Kind::Gemini, "gemini", "denied", &[])[2],
        r#"result|failed|Tool "Bash" not found. Did you mean one of: "glob", "replace", "read_file"?"#
    );
    assert_eq!(
        recorded(Kind::Gemini, "gemini", "rate_limited", &[])[1].lines().next(),
        Some("end|failed|[API Error: mock 429]")
    );
    assert_eq!(
        recorded(Kind::Opencode, "opencode", "tool_fails", &[]),
        [
            "begin",
            "tool|bash|exit 3",
            "result|failed|(no output)",
            "tool|read|/work/repo/none.txt",
            "result|failed|File not found: /work/repo/none.txt",
            "message|x",
            "end||0.0018|300|60",
        ]
    );
    assert_eq!(recorded(Kind::Opencode, "opencode", "denied", &[]), ["begin", "tool|bash|touch q", "denied|bash"]);
    assert_eq!(recorded(Kind::Opencode, "opencode", "bad_key", &[]), ["begin", "end|failed|mock 401"]);
}

#[test]
fn dialogues_of_the_agent_client_protocol_are_read() {
    let gemini = ["tool|execute|echo hi > a.txt", "result|", "tool|edit|Writing to b.txt", "result|"];
    assert_eq!(recorded(Kind::GeminiAcp, "gemini-acp", "normal", &[])[1..5], gemini);
    assert_eq!(
        recorded(Kind::OpencodeAcp, "opencode-acp", "asks", &[(5, ALLOWED)])[..5],
        [
            "begin",
            "tool|execute|echo hi > a.txt",
            "question|execute: echo hi > a.txt",
            "result|(no output)",
            "tool|edit|content: b\n\nfilePath: /w/b.txt",
        ]
    );
    let refused = r#"{"id":0,"result":{"outcome":{"outcome":"selected","optionId":"cancel"}}}"#;
    assert_eq!(
        recorded(Kind::GeminiAcp, "gemini-acp", "rejected", &[(3, refused)])[..4],
        [
            "begin",
            "tool|execute|echo hi > a.txt",
            "question|execute: echo hi > a.txt",
            "denied|execute: echo hi > a.txt",
        ]
    );
    assert_eq!(
        recorded(Kind::Qwen, "qwen", "normal", &[])[3..],
        ["tool|write_file|", "result|failed|File path must be absolute: b.txt", "message|all done", "end||3000|600"]
    );
    for (kind, agent, case, end) in [
        (Kind::GeminiAcp, "gemini-acp", "cancelled", "end|failed|cancelled"),
        (Kind::GeminiAcp, "gemini-acp", "bad_key", "end|failed|refused with 401"),
        (Kind::OpencodeAcp, "opencode-acp", "gone", "end|failed|Internal error: OpenCode service failure"),
    ] {
        assert_eq!(recorded(kind, agent, case, &[]).last().map(String::as_str), Some(end), "{agent} {case}");
    }
}

#[test]
fn what_an_agent_repeats_of_an_earlier_turn_is_left_out() {
    let load = r#"{"id":2,"method":"session/load","params":{"sessionId":"ses"}}"#;
    let prompt = r#"{"id":3,"method":"session/prompt","params":{}}"#;
    let said = recorded(Kind::OpencodeAcp, "opencode-acp", "loaded", &[(1, load), (10, prompt)]);
    assert_eq!(said, ["begin", "message|third", "end||0.03|1000|200"]);
}

#[test]
fn requests_that_nobody_is_asked_about_are_left_out() {
    let mut reader = Reader::new(Kind::GeminiAcp, false);
    let asks = r#"{"id":0,"method":"session/request_permission","params":{"toolCall":{"toolCallId":"1","kind":"execute","title":"ls"}}}"#;
    let tool = Said::Tool { tool: "execute".to_owned(), text: "ls".to_owned() };
    assert_eq!(reader.line(asks), [tool]);
}

#[test]
fn dialogues_of_codex_are_read() {
    let said = recorded(Kind::Codex, "codex-server", "declined", &[]);
    assert!(said[1].starts_with("notice|Model metadata for `stand-in` not found."), "{said:?}");
    assert_eq!(
        said[2..],
        [
            "tool|exec|echo hi > a.txt",
            "question|exec: echo hi > a.txt",
            "denied|exec: echo hi > a.txt",
            "message|all done",
            "end||2000|400",
        ]
    );
    assert_eq!(
        recorded(Kind::Codex, "codex-server", "normal", &[])[2..],
        ["tool|exec|echo hi > a.txt", "result|", "message|all done", "end||2000|400"]
    );
    let refused = "unexpected status 401 Unauthorized: refused with 401, url: http://127.0.0.1:1/v1/responses";
    assert_eq!(
        recorded(Kind::Codex, "codex-server", "bad_key", &[])[2..],
        [format!("notice|{refused}"), format!("end|failed|{refused}")],
        "an error that is repeated is told once"
    );
}

#[test]
fn task_lists_are_read() {
    let plan = r#"{"kind":"plan","text":"[x] look\n[>] build\n[ ] test"}"#;
    for (kind, line) in [
        (
            Kind::Claude,
            r#"{"type":"assistant","message":{"content":[{"type":"tool_use","id":"1","name":"TodoWrite","input":{"todos":[{"content":"look","status":"completed"},{"content":"build","status":"in_progress"},{"content":"test","status":"pending"}]}}]}}"#,
        ),
        (
            Kind::Gemini,
            r#"{"type":"tool_use","tool_name":"write_todos","parameters":{"todos":[{"description":"look","status":"completed"},{"description":"build","status":"in_progress"},{"description":"test","status":"pending"}]}}"#,
        ),
        (
            Kind::OpencodeAcp,
            r#"{"method":"session/update","params":{"update":{"sessionUpdate":"plan","entries":[{"content":"look","status":"completed"},{"content":"build","status":"in_progress"},{"content":"test","status":"pending"}]}}}"#,
        ),
        (
            Kind::Codex,
            r#"{"method":"turn/plan/updated","params":{"threadId":"t","plan":[{"step":"look","status":"completed"},{"step":"build","status":"inProgress"},{"step":"test","status":"pending"}]}}"#,
        ),
    ] {
        assert_eq!(read(kind, &[line]), [plan], "{kind:?}");
    }
    let line = r#"{"type":"item.updated","item":{"id":"i","type":"todo_list","items":[{"text":"look","completed":true},{"text":"test","completed":false}]}}"#;
    assert_eq!(read(Kind::Codex, &[line]), [r#"{"kind":"plan","text":"[x] look\n[ ] test"}"#]);
}

#[test]
fn a_message_that_was_broken_off_is_read() {
    let part = r#"{"type":"message","role":"assistant","content":"I beg","delta":true}"#;
    assert_eq!(read(Kind::Gemini, &[part]), [r#"{"kind":"message","text":"I beg"}"#]);
    let warning = [r#"{"kind":"message","text":"I beg"}"#, r#"{"kind":"text","text":"killed"}"#];
    assert_eq!(read(Kind::Gemini, &[part, "killed"]), warning);
}
