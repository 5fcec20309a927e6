//! Conversation of `gemini -o stream-json`.

use serde_json::Value;
use swarm_model::json::Members as _;

use super::{Said, Told, message, result, tool};

#[derive(Debug, Default)]
pub struct Gemini {
    writing: String,
}

impl Told for Gemini {
    fn line(&mut self, line: &Value) -> Vec<Said> {
        let kind = line.text("type").unwrap_or_default();
        if kind == "message" && line.text("role") == Some("assistant") {
            self.writing.push_str(line.text("content").unwrap_or_default());
            let is_part = line.member("delta").and_then(Value::as_bool) == Some(true);
            return if is_part { Vec::new() } else { self.part().into_iter().collect() };
        }
        let said = match kind {
            "init" => line.text("session_id").map(|id| Said::Begin { session: id.to_owned() }),
            "tool_use" => Some(tool(line.text("tool_name").unwrap_or("a tool"), line.member("parameters"))),
            "tool_result" => {
                let text = line.text("output").or(line.member("error").text("message")).unwrap_or_default();
                Some(result(text, line.text("status") == Some("error")))
            }
            "error" => line.text("message").map(|text| Said::Notice { text: text.to_owned() }),
            "result" => Some(end(line)),
            _ => None,
        };
        self.part().into_iter().chain(said).collect()
    }

    fn part(&mut self) -> Option<Said> {
        message(&std::mem::take(&mut self.writing))
    }
}

fn end(line: &Value) -> Said {
    let status = line.text("status").unwrap_or("error");
    let failed = status != "success";
    let error = line.member("error").text("message").unwrap_or(status);
    Said::End {
        failed,
        text: if failed { error.trim().to_owned() } else { String::new() },
        usd: None,
        input_tokens: line.member("stats").whole("input_tokens"),
        output_tokens: line.member("stats").whole("output_tokens"),
    }
}
