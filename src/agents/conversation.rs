//! Reads the conversation of an agent from the lines that the agent printed. Skips lines of unknown kinds.

use serde::Serialize;
use serde_json::Value;
use swarm_model::json::Members as _;

use super::Kind;
use super::claude::question;

/// Maximum number of lines of a tool's result that are kept.
const RESULT_LINES: usize = 20;
/// Maximum number of bytes of them.
const RESULT_BYTES: usize = 2000;
/// Maximum number of bytes of a tool's input.
const INPUT_BYTES: usize = 2000;
/// Tool with which claude asks a person.
const QUESTION: &str = "AskUserQuestion";

/// Part of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Said {
    /// The conversation begins or continues.
    Begin { session: String },
    /// Message of the agent.
    Message { text: String },
    /// Use of a tool, and its input.
    Tool { tool: String, text: String },
    /// Result of a tool. `cut` counts the lines that are left out.
    Result { text: String, failed: bool, cut: usize },
    /// The agent asks a person.
    Question { text: String },
    /// The agent was denied the use of a tool.
    Denied { text: String },
    /// The agent has to wait, or reports an error.
    Notice { text: String },
    /// End of a turn. Numbers that the agent does not tell are absent.
    End {
        failed: bool,
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        usd: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        input_tokens: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        output_tokens: Option<u64>,
    },
    /// Line of an agent that prints plain text.
    Text { text: String },
}

/// Reads the lines of one attempt.
#[derive(Debug)]
pub struct Reader {
    kind: Kind,
    /// Last message, which the end of the turn repeats.
    last: String,
}

impl Reader {
    pub fn new(kind: Kind) -> Self {
        Self { kind, last: String::new() }
    }

    pub fn line(&mut self, line: &str) -> Vec<Said> {
        let structured = matches!(self.kind, Kind::Claude | Kind::Codex);
        if !structured {
            return vec![Said::Text { text: line.to_owned() }];
        }
        let value = match serde_json::from_str::<Value>(line) {
            Ok(value) if value.is_object() => value,
            // Not a part of the conversation, but a warning of the program or of something below it.
            _ if !line.trim().is_empty() && !line.starts_with('{') => {
                return vec![Said::Text { text: line.to_owned() }];
            }
            _ => return Vec::new(),
        };
        if self.kind == Kind::Claude { self.claude(&value) } else { self.codex(&value) }
    }

    fn claude(&mut self, line: &Value) -> Vec<Said> {
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
                parts.iter().filter_map(|part| self.claude_part(part)).collect()
            }
            (Some("user"), _) => line.member("message").list("content").iter().filter_map(claude_result).collect(),
            (Some("result"), subtype) => vec![self.claude_end(line, subtype)],
            _ => Vec::new(),
        }
    }

    fn claude_part(&mut self, part: &Value) -> Option<Said> {
        match part.text("type")? {
            "text" => self.message(part.text("text")?),
            "tool_use" if part.text("name") == Some(QUESTION) => {
                Some(Said::Question { text: question(part.member("input")) })
            }
            "tool_use" => {
                let tool = part.text("name")?.to_owned();
                Some(Said::Tool { tool, text: input(part.member("input")) })
            }
            _ => None,
        }
    }

    fn claude_end(&self, line: &Value, subtype: Option<&str>) -> Said {
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

    fn codex(&mut self, line: &Value) -> Vec<Said> {
        let said = match line.text("type") {
            Some("thread.started") => line.text("thread_id").map(|id| Said::Begin { session: id.to_owned() }),
            Some("item.started") => codex_started(line.member("item")),
            Some("item.completed") => return self.codex_completed(line.member("item")),
            Some("turn.completed") => {
                let usage = line.member("usage");
                Some(Said::End {
                    failed: false,
                    text: String::new(),
                    usd: None,
                    input_tokens: usage.whole("input_tokens"),
                    output_tokens: usage.whole("output_tokens"),
                })
            }
            Some("turn.failed") => Some(Said::End {
                failed: true,
                text: line.member("error").text("message").unwrap_or("turn failed").to_owned(),
                usd: None,
                input_tokens: None,
                output_tokens: None,
            }),
            Some("error") => line.text("message").map(|text| Said::Notice { text: text.to_owned() }),
            _ => None,
        };
        said.into_iter().collect()
    }

    fn codex_completed(&mut self, item: Option<&Value>) -> Vec<Said> {
        let tool = |tool: &str, text: String| Said::Tool { tool: tool.to_owned(), text };
        match item.text("type") {
            Some("agent_message") => item.text("text").and_then(|text| self.message(text)).into_iter().collect(),
            Some("command_execution") => {
                let code = item.member("exit_code").and_then(Value::as_i64);
                let failed = code.map_or(item.text("status") == Some("failed"), |code| code != 0);
                vec![result(item.text("aggregated_output").unwrap_or_default(), failed)]
            }
            Some("file_change") => {
                let paths: Vec<&str> = item.list("changes").iter().filter_map(|change| change.text("path")).collect();
                vec![tool("edit", paths.join("\n"))]
            }
            Some("mcp_tool_call") => {
                let failed = item.text("status") == Some("failed");
                let error = item.member("error").text("message").map(str::to_owned);
                let parts = item.member("result").list("content").iter().filter_map(|part| part.text("text"));
                vec![result(&error.unwrap_or_else(|| parts.collect::<Vec<_>>().join("\n")), failed)]
            }
            Some("error") => {
                item.text("message").map(|text| Said::Notice { text: text.to_owned() }).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn message(&mut self, text: &str) -> Option<Said> {
        let text = text.trim();
        text.clone_into(&mut self.last);
        (!text.is_empty()).then(|| Said::Message { text: text.to_owned() })
    }
}

fn codex_started(item: Option<&Value>) -> Option<Said> {
    match item.text("type")? {
        "command_execution" => Some(Said::Tool { tool: "exec".to_owned(), text: item.text("command")?.to_owned() }),
        "mcp_tool_call" => {
            let tool = format!("{}.{}", item.text("server")?, item.text("tool")?);
            Some(Said::Tool { tool, text: input(item.member("arguments")) })
        }
        "web_search" => Some(Said::Tool { tool: "search".to_owned(), text: item.text("query")?.to_owned() }),
        _ => None,
    }
}

fn claude_result(part: &Value) -> Option<Said> {
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

/// Returns the beginning of a result.
fn result(text: &str, failed: bool) -> Said {
    let text = text.trim_end();
    let lines = text.lines().count();
    let kept: Vec<&str> = text.lines().take(RESULT_LINES).collect();
    let kept = cut(&kept.join("\n"), RESULT_BYTES);
    Said::Result { cut: lines.saturating_sub(kept.lines().count()), text: kept, failed }
}

/// Returns the input of a tool: the one text that it has, or all of it.
fn input(input: Option<&Value>) -> String {
    let text = match input {
        Some(Value::Object(fields)) => match fields.get("command").or_else(|| fields.values().next()) {
            Some(Value::String(only)) if fields.len() == 1 || fields.contains_key("command") => only.clone(),
            Some(_) => {
                let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                fields.iter().map(|(key, value)| format!("{key}: {}", shown(value))).collect::<Vec<_>>().join("\n")
            }
            None => String::new(),
        },
        Some(Value::String(text)) => text.clone(),
        Some(value) if !value.is_null() => value.to_string(),
        _ => String::new(),
    };
    cut(&text, INPUT_BYTES)
}

fn cut(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(bytes)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: Kind, lines: &[&str]) -> Vec<String> {
        let mut reader = Reader::new(kind);
        let said = lines.iter().flat_map(|line| reader.line(line));
        said.map(|said| serde_json::to_string(&said).expect("json")).collect()
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
}
