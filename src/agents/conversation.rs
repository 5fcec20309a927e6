//! Reads the conversation of an agent from the lines that the agent printed. Skips lines of unknown kinds.

mod acp;
mod claude;
mod codex;
mod codex_server;
mod gemini;
pub mod kept;
mod opencode;

use std::fmt::Debug;

use serde::Serialize;
use serde_json::Value;
use swarm_model::json::Members as _;

use super::Kind;

/// Maximum number of lines of a tool's result that are kept.
const RESULT_LINES: usize = 20;
/// Maximum number of bytes of them.
const RESULT_BYTES: usize = 2000;
/// Maximum number of bytes of a tool's input.
const INPUT_BYTES: usize = 2000;
/// Tools with which agents write their task list.
const PLANS: [&str; 4] = ["TodoWrite", "todowrite", "write_todos", "update_plan"];

/// Part of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Said {
    /// The conversation begins or continues.
    Begin { session: String },
    /// Message of the agent.
    Message { text: String },
    /// Task list of the agent, one task per line.
    Plan { text: String },
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

/// Reads the lines of one kind of agent.
trait Told: Debug {
    fn line(&mut self, line: &Value) -> Vec<Said>;
    /// Returns the message that is being written in parts, if there is one.
    fn part(&mut self) -> Option<Said> {
        None
    }
}

/// Reads the lines of one attempt.
#[derive(Debug)]
pub struct Reader {
    /// `None` for an agent that prints plain text.
    told: Option<Box<dyn Told>>,
}

impl Reader {
    /// `may_ask` says whether what the agent asks is passed on to a person, and so belongs to the conversation.
    pub fn new(kind: Kind, may_ask: bool) -> Self {
        let told: Option<Box<dyn Told>> = match kind {
            Kind::Claude => Some(Box::<claude::Claude>::default()),
            Kind::Codex => Some(Box::new(codex::Codex::new(may_ask))),
            Kind::Gemini => Some(Box::<gemini::Gemini>::default()),
            Kind::Opencode => Some(Box::<opencode::Opencode>::default()),
            Kind::Acp | Kind::GeminiAcp | Kind::OpencodeAcp | Kind::Qwen => Some(Box::new(acp::Acp::new(may_ask))),
            Kind::Aider | Kind::Shell | Kind::Command => None,
        };
        Self { told }
    }

    pub fn line(&mut self, line: &str) -> Vec<Said> {
        let text = || Said::Text { text: line.to_owned() };
        let Some(told) = &mut self.told else { return vec![text()] };
        match serde_json::from_str::<Value>(line) {
            Ok(value) if value.is_object() => told.line(&value),
            // Not a part of the conversation, but a warning of the program or of something below it.
            _ if !line.trim().is_empty() && !line.starts_with('{') => told.part().into_iter().chain([text()]).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns what is left when there are no more lines.
    pub fn end(&mut self) -> Option<Said> {
        self.told.as_mut()?.part()
    }
}

/// Returns a message. `None` for an empty one.
fn message(text: &str) -> Option<Said> {
    Some(text.trim()).filter(|text| !text.is_empty()).map(|text| Said::Message { text: text.to_owned() })
}

/// Returns the end of a turn that has no numbers.
fn ended(failed: bool, text: &str) -> Said {
    Said::End { failed, text: text.trim().to_owned(), usd: None, input_tokens: None, output_tokens: None }
}

/// Returns the use of a tool. The tools with which agents write their task list are shown as this list.
fn tool(name: &str, with: Option<&Value>) -> Said {
    let list = ["todos", "plan"].iter().map(|key| with.list(key)).find(|list| !list.is_empty());
    match list.and_then(plan) {
        Some(plan) if PLANS.contains(&name) => plan,
        _ => Said::Tool { tool: name.to_owned(), text: input(with) },
    }
}

/// Returns a task list. `None` if it has no tasks that can be read.
fn plan(tasks: &[Value]) -> Option<Said> {
    let task = |task: &Value| {
        let text = ["content", "description", "step", "text"].iter().find_map(|key| task.text(key))?;
        let is_done = task.member("completed").and_then(Value::as_bool) == Some(true);
        let mark = match task.text("status") {
            Some("completed") => 'x',
            Some("in_progress" | "inProgress") => '>',
            Some("cancelled") => '-',
            None if is_done => 'x',
            _ => ' ',
        };
        Some(format!("[{mark}] {}", text.lines().next().unwrap_or_default()))
    };
    let tasks: Vec<String> = tasks.iter().filter_map(task).collect();
    (!tasks.is_empty()).then(|| Said::Plan { text: tasks.join("\n") })
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
mod tests;
