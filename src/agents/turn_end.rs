//! How a turn ended, from the file in which an agent keeps its conversation. No hook of `claude` or `codex` reports an
//! interruption, and none of `codex` an error.

use jiff::Timestamp;
use serde_json::Value;
use swarm_model::TurnEnd;
use swarm_model::json::Members as _;

use super::short;

/// Beginning of what `claude` records in the place of its user.
const INTERRUPTED: &str = "[Request interrupted by user";
/// Reason of a turn of `codex` that another prompt replaced.
const REPLACED: &str = "replaced";

/// Statement of one line about the end of a turn.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// The turn ended so, with this cause.
    Broken(TurnEnd, String),
    /// The turn ended. Older versions of `codex` record an error only before this.
    Over,
    /// An agent is at work, or its turn ended by itself.
    Other,
}

/// Returns how the turn that began at `since_ms` ended, and the cause, from the last lines of a conversation's file. `None`
/// if it goes on or ended by itself. Skips lines of unknown kinds, and a first and a last line that are incomplete.
pub fn turn_end(tail: &[u8], since_ms: u64) -> Option<(TurnEnd, String)> {
    let lines = tail.split(|byte| *byte == b'\n').rev();
    let mut is_over = false;
    for line in lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok()) {
        let told = if line.member("payload").is_some() { of_codex(&line) } else { of_claude(&line) };
        match told {
            None => {}
            Some(Told::Over) if !is_over => is_over = true,
            Some(Told::Broken(end, cause)) if is_since(&line, since_ms) => return Some((end, cause)),
            Some(_) => return None,
        }
    }
    None
}

fn is_since(line: &Value, since_ms: u64) -> bool {
    let at: Option<Timestamp> = line.text("timestamp").and_then(|at| at.parse().ok());
    at.and_then(|at| u64::try_from(at.as_millisecond()).ok()).is_some_and(|at_ms| at_ms >= since_ms)
}

fn of_claude(line: &Value) -> Option<Told> {
    let is = |key: &str| line.member(key).and_then(Value::as_bool) == Some(true);
    if is("isSidechain") || is("isMeta") {
        return None;
    }
    let content = line.member("message").member("content");
    let text = || match content {
        Some(Value::String(text)) => text.as_str(),
        parts => {
            parts.and_then(|parts| parts.as_array()?.iter().find_map(|part| part.text("text"))).unwrap_or_default()
        }
    };
    Some(match line.text("type")? {
        "user" if text().starts_with(INTERRUPTED) => Told::Broken(TurnEnd::Interrupted, String::new()),
        "assistant" if is("isApiErrorMessage") => Told::Broken(TurnEnd::Failed, short(text())),
        "user" | "assistant" => Told::Other,
        _ => return None,
    })
}

fn of_codex(line: &Value) -> Option<Told> {
    let payload = line.member("payload");
    let error = payload.member("error").filter(|error| !error.is_null());
    Some(match (line.text("type")?, payload.text("type")?) {
        ("event_msg", "turn_aborted") if payload.text("reason") == Some(REPLACED) => Told::Other,
        ("event_msg", "turn_aborted") => Told::Broken(TurnEnd::Interrupted, String::new()),
        ("event_msg", "task_complete" | "turn_complete") => match error {
            Some(error) => Told::Broken(TurnEnd::Failed, cause(error.text("message").unwrap_or_default())),
            None => Told::Over,
        },
        ("event_msg", "error") => Told::Broken(TurnEnd::Failed, cause(payload.text("message").unwrap_or_default())),
        ("event_msg", "task_started" | "turn_started" | "user_message" | "agent_message") => Told::Other,
        (
            "response_item",
            "function_call" | "custom_tool_call" | "function_call_output" | "custom_tool_call_output",
        ) => Told::Other,
        ("response_item", "message") if payload.text("role") == Some("assistant") => Told::Other,
        _ => return None,
    })
}

/// Returns the message in an error, which may be an answer of the provider as JSON.
fn cause(message: &str) -> String {
    let told: Option<Value> = serde_json::from_str(message).ok();
    let inner = told.as_ref().and_then(|told| told.member("error").text("message").or_else(|| told.text("message")));
    short(inner.unwrap_or(message))
}

#[cfg(test)]
#[path = "turn_end_tests.rs"]
mod tests;
