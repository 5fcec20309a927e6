//! Lines that `claude` 2.1.328 and `codex` 0.169.0 recorded when a turn was interrupted or failed.

use super::*;

const CLAUDE_RESULT: &str = r#"{"parentUuid":"bc5fbdd5-c138-440d-8e21-f41257688493","isSidechain":false,"promptId":"03f60e21-5e8b-4f04-8445-108c5ba9e4a6","type":"user","message":{"role":"user","content":[{"tool_use_id":"toolu_c9242b1f4e3e4d25","type":"tool_result","content":"one","is_error":false}]},"uuid":"3c832463-44de-4f48-b9e7-6bac39ed2035","timestamp":"2026-11-27T17:13:29.623Z","sandboxed":false,"sourceToolAssistantUUID":"bc5fbdd5-c138-440d-8e21-f41257688493","permissionDecision":{"decision":"accept","source":"config","reasonType":"subcommandResults"},"session_id":"4514db70-fcbf-4b9d-9e38-31cb355a1381","userType":"external","entrypoint":"cli","cwd":"/r","sessionId":"4514db70-fcbf-4b9d-9e38-31cb355a1381","version":"2.1.328","gitBranch":"main"}"#;
const CLAUDE_INTERRUPTED: &str = r#"{"parentUuid":"1679e8a7-84c8-4293-ae0e-f3a60696ba89","isSidechain":false,"promptId":"03f60e21-5e8b-4f04-8445-108c5ba9e4a6","type":"user","message":{"role":"user","content":[{"type":"text","text":"[Request interrupted by user]"}]},"uuid":"ade57a77-57a3-46f0-b340-01d7c11fbbdf","timestamp":"2026-11-27T17:13:32.255Z","interruptedMessageId":"msg_e51392db88704b8e","session_id":"4514db70-fcbf-4b9d-9e38-31cb355a1381","userType":"external","entrypoint":"cli","cwd":"/r","sessionId":"4514db70-fcbf-4b9d-9e38-31cb355a1381","version":"2.1.328","gitBranch":"main"}"#;
const CLAUDE_MODE: &str = r#"{"type":"mode","mode":"normal","sessionId":"4514db70-fcbf-4b9d-9e38-31cb355a1381"}"#;
const CLAUDE_FAILED: &str = r#"{"parentUuid":"56fa13c0-3195-4f52-95bf-62b87cfe741e","isSidechain":false,"type":"assistant","uuid":"b2dc8064-4358-4b8c-ab6e-4904143ad837","timestamp":"2026-11-27T17:13:54.154Z","message":{"id":"e4009d40-6d4e-4192-b747-42443e612646","model":"<synthetic>","role":"assistant","stop_reason":"stop_sequence","type":"message","content":[{"type":"text","text":"API Error: Request rejected (429) · refused with 429"}]},"apiErrorIsTransient":false,"error":"rate_limit","isApiErrorMessage":true,"apiErrorStatus":429,"apiErrorType":"rate_limit_error","perTurnEffort":"medium","failedResponseHadNoToolCall":true,"madeBy":"model","session_id":"4aa6c530-91df-4276-8221-0268da151c84","userType":"external","entrypoint":"cli","cwd":"/r","sessionId":"4aa6c530-91df-4276-8221-0268da151c84","version":"2.1.328","gitBranch":"main"}"#;
const CODEX_STARTED: &str = r#"{"timestamp":"2026-11-27T17:13:27.572Z","ordinal":1,"type":"event_msg","payload":{"type":"task_started","turn_attribution":{"turn_id":"01a21dff-68ce-7a40-99bc-ed6488073a5e","turn_trigger":"user","parent_turn_id":null,"initiating_agent_path":null,"root_turn_id":"01a21dff-68ce-7a40-99bc-ed6488073a5e"},"turn_id":"01a21dff-68ce-7a40-99bc-ed6488073a5e","root_turn_id":"01a21dff-68ce-7a40-99bc-ed6488073a5e","started_at":1795799607,"model_context_window":258400,"collaboration_mode_kind":"default"}}"#;
const CODEX_RESULT: &str = r#"{"timestamp":"2026-11-27T17:13:28.397Z","ordinal":12,"type":"response_item","payload":{"type":"function_call_output","id":"fco_01a21dff-6c4d-7f53-b0c8-8e09df442736","call_id":"call_a361ced3cb98","output":"Chunk ID: 26fc2f\nWall time: 0.1055 seconds\nProcess exited with code 0\nOriginal token count: 1\nOutput:\none\n","internal_chat_message_metadata_passthrough":{"turn_id":"01a21dff-68ce-7a40-99bc-ed6488073a5e","create_time":1795799608.3977153}},"metadata":{"history_sequence":5,"sampled_through_sequence":3,"client_authored":false,"fallback_token_limit_override":3000}}"#;
const CODEX_TOKENS: &str = r#"{"timestamp":"2026-11-27T17:13:28.402Z","ordinal":13,"type":"event_msg","payload":{"type":"token_count","info":{"total_token_usage":{"input_tokens":100,"cached_input_tokens":0,"cache_write_input_tokens":0,"output_tokens":20,"reasoning_output_tokens":0,"total_tokens":120},"last_token_usage":{"input_tokens":100,"cached_input_tokens":0,"cache_write_input_tokens":0,"output_tokens":20,"reasoning_output_tokens":0,"total_tokens":120},"last_usage_includes_reasoning":false,"model_context_window":258400},"rate_limits":{"limit_id":"codex","limit_name":null,"primary":null,"secondary":null,"credits":null,"individual_limit":null,"spend_control_reached":null,"plan_type":null,"rate_limit_reached_type":null}}}"#;
const CODEX_SAYS_ABORTED: &str = r#"{"timestamp":"2026-11-27T17:13:30.224Z","ordinal":14,"type":"response_item","payload":{"type":"message","id":"msg_01a21dff-7370-7bd0-a3dd-37d5053731dd","role":"user","content":[{"type":"input_text","text":"<turn_aborted>\nThe user interrupted the previous turn on purpose. Any running unified exec processes may still be running in the background. If any tools/commands were aborted, they may have partially executed.\n</turn_aborted>"}],"internal_chat_message_metadata_passthrough":{"turn_id":"01a21dff-68ce-7a40-99bc-ed6488073a5e","create_time":1795799610.2242863,"content_item_kinds":["generic.turn_aborted"],"content_item_metadata":[{"provenance":{"type":"harness","hook":false}}]}},"metadata":{"history_sequence":6,"sampled_through_sequence":3,"client_authored":false}}"#;
const CODEX_ABORTED: &str = r#"{"timestamp":"2026-11-27T17:13:30.228Z","ordinal":15,"type":"event_msg","payload":{"type":"turn_aborted","root_turn_id":"01a21dff-68ce-7a40-99bc-ed6488073a5e","turn_id":"01a21dff-68ce-7a40-99bc-ed6488073a5e","reason":"interrupted","started_at":1795799607,"completed_at":1795799610,"duration_ms":2717}}"#;
const CODEX_FAILED: &str = r#"{"timestamp":"2026-11-27T17:13:51.404Z","ordinal":14,"type":"event_msg","payload":{"type":"task_complete","root_turn_id":"01a21dff-c2bc-7172-ade4-a9c3c9636679","turn_id":"01a21dff-c2bc-7172-ade4-a9c3c9636679","last_agent_message":null,"error":{"message":"{\"type\": \"error\", \"error\": {\"type\": \"api_error\", \"code\": \"api_error\", \"message\": \"refused with 400\"}}","codex_error_info":"other"},"started_at":1795799630,"completed_at":1795799631,"duration_ms":873,"time_to_first_token_ms":279}}"#;
const CODEX_LIMIT: &str = r#"{"timestamp":"2026-11-27T17:14:22.857Z","ordinal":14,"type":"event_msg","payload":{"type":"task_complete","root_turn_id":"01a21e00-2a00-7b32-b41b-f44deaf686c0","turn_id":"01a21e00-2a00-7b32-b41b-f44deaf686c0","last_agent_message":null,"error":{"message":"exceeded retry limit, last status: 429 Too Many Requests","codex_error_info":{"response_too_many_failed_attempts":{"http_status_code":429}}},"started_at":1795799656,"completed_at":1795799662,"duration_ms":5888,"time_to_first_token_ms":283}}"#;

fn end(lines: &[&str], since: &str) -> Option<(TurnEnd, String)> {
    let since: Timestamp = since.parse().expect("a time");
    turn_end(lines.join("\n").as_bytes(), u64::try_from(since.as_millisecond()).expect("after 1970"))
}

fn told(end: TurnEnd, cause: &str) -> Option<(TurnEnd, String)> {
    Some((end, cause.to_owned()))
}

const BEGAN: &str = "2026-11-27T17:13:00Z";

#[test]
fn a_turn_of_claude_that_was_interrupted_or_failed_is_recognised() {
    let interrupted = told(TurnEnd::Interrupted, "");
    assert_eq!(end(&[CLAUDE_RESULT, CLAUDE_MODE, CLAUDE_INTERRUPTED], BEGAN), interrupted);
    assert_eq!(end(&[CLAUDE_INTERRUPTED, CLAUDE_MODE, ""], BEGAN), interrupted, "what follows is no turn");
    let failed = told(TurnEnd::Failed, "API Error: Request rejected (429) · refused with 429");
    assert_eq!(end(&[CLAUDE_RESULT, CLAUDE_FAILED], BEGAN), failed);
    assert_eq!(end(&[CLAUDE_INTERRUPTED, CLAUDE_RESULT], BEGAN), None, "another turn began");
    assert_eq!(end(&[CLAUDE_RESULT, &CLAUDE_INTERRUPTED[..200]], BEGAN), None, "a line that is being written");
    let by_subagent = CLAUDE_INTERRUPTED.replace("\"isSidechain\":false", "\"isSidechain\":true");
    assert_eq!(end(&[CLAUDE_RESULT, &by_subagent], BEGAN), None);
}

#[test]
fn a_turn_of_codex_that_was_interrupted_or_failed_is_recognised() {
    let interrupted = told(TurnEnd::Interrupted, "");
    assert_eq!(
        end(&[CODEX_STARTED, CODEX_RESULT, CODEX_TOKENS, CODEX_SAYS_ABORTED, CODEX_ABORTED], BEGAN),
        interrupted
    );
    let failed = told(TurnEnd::Failed, "refused with 400");
    assert_eq!(end(&[CODEX_RESULT, CODEX_TOKENS, CODEX_FAILED], BEGAN), failed);
    let limit = told(TurnEnd::Failed, "exceeded retry limit, last status: 429 Too Many Requests");
    assert_eq!(end(&[CODEX_RESULT, CODEX_TOKENS, CODEX_LIMIT], BEGAN), limit);
    assert_eq!(end(&[CODEX_ABORTED, CODEX_STARTED, CODEX_TOKENS], BEGAN), None, "another turn began");
    let replaced = CODEX_ABORTED.replace("\"reason\":\"interrupted\"", "\"reason\":\"replaced\"");
    assert_eq!(end(&[CODEX_RESULT, &replaced], BEGAN), None);
}

#[test]
fn an_older_codex_records_the_error_before_the_end() {
    let at = r#""timestamp":"2026-11-27T17:14:00Z","type":"event_msg""#;
    let error = format!(r#"{{{at},"payload":{{"type":"error","message":"stream disconnected"}}}}"#);
    let over = format!(r#"{{{at},"payload":{{"type":"task_complete","last_agent_message":null}}}}"#);
    assert_eq!(end(&[CODEX_RESULT, &error, &over], BEGAN), told(TurnEnd::Failed, "stream disconnected"));
    let said = format!(r#"{{{at},"payload":{{"type":"agent_message","message":"done"}}}}"#);
    assert_eq!(end(&[&error, CODEX_STARTED, &said, &over], BEGAN), None, "that error was in an earlier turn");
}

#[test]
fn what_ended_before_the_turn_began_is_not_its_end() {
    assert_eq!(end(&[CLAUDE_RESULT, CLAUDE_INTERRUPTED], "2026-11-27T17:13:33Z"), None);
    assert_eq!(end(&[CODEX_ABORTED], "2026-11-27T17:13:31Z"), None);
    for odd in [&b""[..], b"\xff\xfe", b"{", b"[]\n1\n\"x\"", b"{\"payload\":{}}"] {
        assert_eq!(turn_end(odd, 0), None);
    }
}
