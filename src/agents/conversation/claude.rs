//! Conversation of `claude -p --output-format stream-json`.

use serde_json::Value;
use swarm_model::json::Members as _;

use super::{Said, Told, message, result, tool};
use crate::claude::question;

/// Tool with which claude asks a person.
const QUESTION: &str = "AskUserQuestion";

#[derive(Debug, Default)]
pub struct Claude {
    /// Last message, which the end of the turn repeats.
    last: String,
}

impl Told for Claude {
    fn line(&mut self, line: &Value) -> Vec<Said> {
        match (line.text("type"), line.text("subtype")) {
            (Some("system"), Some("init")) => {
                line.text("session_id").map(|id| Said::Begin { session: id.to_owned() }).into_iter().collect()
            }
            (Some("system"), Some("api_retry")) => {
                let text = format!("retrying after {}", line.text("error").unwrap_or("an error"));
                vec![Said::Notice { text }]
            }
            (Some("system"), Some("permission_denied")) => {
                vec![Said::Denied { text: line.text("tool_name").unwrap_or("a tool").to_owned() }]
            }
            (Some("assistant"), _) => {
                let parts = line.member("message").list("content");
                parts.iter().filter_map(|part| self.part_of(part)).collect()
            }
            (Some("user"), _) => line.member("message").list("content").iter().filter_map(of_result).collect(),
            (Some("result"), subtype) => vec![self.end(line, subtype)],
            _ => Vec::new(),
        }
    }
}

impl Claude {
    fn part_of(&mut self, part: &Value) -> Option<Said> {
        match part.text("type")? {
            "text" => {
                let text = part.text("text")?;
                text.trim().clone_into(&mut self.last);
                message(text)
            }
            "tool_use" if part.text("name") == Some(QUESTION) => {
                Some(Said::Question { text: question(part.member("input")) })
            }
            "tool_use" => Some(tool(part.text("name")?, part.member("input"))),
            _ => None,
        }
    }

    fn end(&self, line: &Value, subtype: Option<&str>) -> Said {
        let errors: Vec<&str> = line.list("errors").iter().filter_map(Value::as_str).collect();
        let said = line.text("result").map_or_else(|| errors.join("; "), str::to_owned);
        let failed = line.member("is_error").and_then(Value::as_bool) != Some(false);
        let said = if said.is_empty() && failed { subtype.unwrap_or_default().to_owned() } else { said };
        let usage = line.member("usage");
        Said::End {
            failed,
            // The last message is there already.
            text: if said.trim() == self.last { String::new() } else { said },
            usd: line.member("total_cost_usd").and_then(Value::as_f64),
            input_tokens: usage.whole("input_tokens"),
            output_tokens: usage.whole("output_tokens"),
        }
    }
}

fn of_result(part: &Value) -> Option<Said> {
    if part.text("type") != Some("tool_result") {
        return None;
    }
    let failed = part.member("is_error").and_then(Value::as_bool).unwrap_or(false);
    let text = match part.member("content")? {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part.text("text")).collect::<Vec<_>>().join("\n"),
        _ => return None,
    };
    Some(result(&text, failed))
}
