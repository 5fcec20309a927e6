//! Conversations in the files that `claude` and `codex` keep of their own. Lines of unknown kinds are skipped.

use serde_json::Value;
use swarm_model::json::Members as _;

use super::claude::Claude;
use super::{Said, Told as _, message, result, tool};

/// Beginnings of what claude records as said by its user and shows in another way.
const NOT_SAID: [&str; 2] = ["<command-", "<local-command-"];
/// Beginning of the result of codex's shell, and what its output follows.
const SHELL: (&str, &str) = ("Chunk ID: ", "\nOutput:\n");

/// Part of a conversation with its user.
#[derive(Clone, Debug, PartialEq)]
pub enum Spoken {
    /// What the user said.
    Prompt(String),
    /// What the agent said or did.
    Said(Said),
}

/// Reads the file of either agent.
#[derive(Debug, Default)]
pub struct Kept {
    claude: Claude,
    /// Last prompt of codex, of which some versions record the same line twice.
    prompt: String,
}

impl Kept {
    pub fn line(&mut self, line: &[u8]) -> Vec<Spoken> {
        match serde_json::from_slice::<Value>(line) {
            Ok(line) if line.member("payload").is_some() => self.of_codex(&line).into_iter().collect(),
            Ok(line) => self.of_claude(&line),
            Err(_) => Vec::new(),
        }
    }

    fn of_claude(&mut self, line: &Value) -> Vec<Spoken> {
        let is = |key: &str| line.member(key).and_then(Value::as_bool) == Some(true);
        // Of a subagent, or not said by the user.
        if is("isSidechain") || is("isMeta") || is("isCompactSummary") {
            return Vec::new();
        }
        let content = line.member("message").member("content");
        let prompt = match line.text("type") {
            Some("user") => content.and_then(Value::as_str).map_or_else(|| texts(content), str::to_owned),
            Some("assistant") => String::new(),
            _ => return Vec::new(),
        };
        let said = self.claude.line(line).into_iter().map(Spoken::Said);
        prompted(&prompt)
            .filter(|_| !NOT_SAID.iter().any(|start| prompt.starts_with(start)))
            .into_iter()
            .chain(said)
            .collect()
    }

    fn of_codex(&mut self, line: &Value) -> Option<Spoken> {
        let payload = line.member("payload");
        let item = payload.member("item");
        let said = match (line.text("type")?, payload.text("type")?) {
            ("event_msg", "item_completed") if item.text("type") == Some("UserMessage") => {
                return self.prompted(&texts(item.member("content")));
            }
            ("event_msg", "user_message") => return self.prompted(payload.text("message")?),
            ("event_msg", "turn_aborted") => Said::Notice { text: "the turn was interrupted".to_owned() },
            ("response_item", "message") if payload.text("role") == Some("assistant") => {
                message(&texts(payload.member("content")))?
            }
            ("response_item", "function_call") => {
                let told = payload.text("arguments")?;
                let with = serde_json::from_str(told).unwrap_or_else(|_| Value::from(told));
                tool(payload.text("name")?, Some(&with))
            }
            ("response_item", "custom_tool_call") => tool(payload.text("name")?, payload.member("input")),
            ("response_item", "function_call_output" | "custom_tool_call_output") => {
                let told = payload.member("output");
                let text = told.and_then(Value::as_str).map_or_else(|| texts(told), str::to_owned);
                let output = text.strip_prefix(SHELL.0).and_then(|rest| rest.split_once(SHELL.1));
                result(output.map_or(text.as_str(), |(_, output)| output), false)
            }
            _ => return None,
        };
        Some(Spoken::Said(said))
    }

    fn prompted(&mut self, text: &str) -> Option<Spoken> {
        let is_new = std::mem::replace(&mut self.prompt, text.to_owned()) != text;
        prompted(text).filter(|_| is_new)
    }
}

fn prompted(text: &str) -> Option<Spoken> {
    Some(text.trim()).filter(|text| !text.is_empty()).map(|text| Spoken::Prompt(text.to_owned()))
}

/// Returns the texts of a list of parts.
fn texts(parts: Option<&Value>) -> String {
    let parts = parts.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let texts: Vec<&str> = parts.iter().filter_map(|part| part.text("text")).collect();
    texts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Vec<String> {
        let mut kept = Kept::default();
        let spoken = lines.iter().flat_map(|line| kept.line(line.as_bytes()));
        let shown = |spoken| match spoken {
            Spoken::Prompt(text) => format!("prompt {text}"),
            Spoken::Said(said) => serde_json::to_string(&said).expect("json"),
        };
        spoken.map(shown).collect()
    }

    #[test]
    fn the_file_of_claude_is_read() {
        let said = read(&[
            r#"{"type":"mode","mode":"normal","sessionId":"ec"}"#,
            r#"{"isSidechain":false,"type":"user","message":{"role":"user","content":"do it"},"uuid":"0a"}"#,
            r#"{"isSidechain":false,"isMeta":true,"type":"user","message":{"role":"user","content":"caveat"}}"#,
            r#"{"isSidechain":false,"type":"user","message":{"role":"user","content":"<command-name>/cost</command-name>"}}"#,
            r#"{"isSidechain":true,"type":"assistant","message":{"content":[{"type":"text","text":"of a subagent"}]}}"#,
            r#"{"isSidechain":false,"message":{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"Bash","input":{"command":"echo one","description":"a step"}}]},"type":"assistant"}"#,
            r#"{"isSidechain":false,"type":"user","message":{"role":"user","content":[{"tool_use_id":"t","type":"tool_result","content":"one","is_error":false}]}}"#,
            r#"{"isSidechain":false,"message":{"role":"assistant","content":[{"type":"text","text":"Done."}]},"type":"assistant"}"#,
            r#"{"isSidechain":false,"type":"system","subtype":"turn_duration","durationMs":795}"#,
            r#"{"isSidechain":false,"message":{"role":"assis"#,
        ]);
        assert_eq!(
            said,
            [
                "prompt do it",
                r#"{"kind":"tool","tool":"Bash","text":"echo one"}"#,
                r#"{"kind":"result","text":"one","failed":false,"cut":0}"#,
                r#"{"kind":"message","text":"Done."}"#,
            ]
        );
    }

    #[test]
    fn the_file_of_codex_is_read() {
        let said = read(&[
            r#"{"timestamp":"t","type":"session_meta","payload":{"id":"01"}}"#,
            r#"{"timestamp":"t","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"<environment_context>"}]}}"#,
            r#"{"timestamp":"t","type":"event_msg","payload":{"type":"item_completed","item":{"type":"UserMessage","content":[{"type":"text","text":"do it","text_elements":[]}]}}}"#,
            r#"{"timestamp":"t","type":"event_msg","payload":{"type":"user_message","message":"do it"}}"#,
            r#"{"timestamp":"t","type":"response_item","payload":{"type":"function_call","name":"exec_command","arguments":"{\"cmd\": \"echo one\"}","call_id":"c"}}"#,
            r#"{"timestamp":"t","type":"response_item","payload":{"type":"function_call_output","call_id":"c","output":"Chunk ID: 30\nWall time: 0 seconds\nOutput:\none\n"}}"#,
            r#"{"timestamp":"t","type":"event_msg","payload":{"type":"item_completed","item":{"type":"AgentMessage","content":[{"type":"Text","text":"Done."}]}}}"#,
            r#"{"timestamp":"t","type":"response_item","payload":{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Done."}]}}"#,
            r#"{"timestamp":"t","type":"event_msg","payload":{"type":"turn_aborted","reason":"interrupted"}}"#,
        ]);
        assert_eq!(
            said,
            [
                "prompt do it",
                r#"{"kind":"tool","tool":"exec_command","text":"echo one"}"#,
                r#"{"kind":"result","text":"one","failed":false,"cut":0}"#,
                r#"{"kind":"message","text":"Done."}"#,
                r#"{"kind":"notice","text":"the turn was interrupted"}"#,
            ]
        );
    }
}
