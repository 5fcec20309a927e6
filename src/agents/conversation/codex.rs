//! Conversation of `codex exec --json`; that of `codex app-server` begins otherwise.

use serde_json::Value;
use swarm_model::json::Members as _;

use super::codex_server::Server;
use super::{Said, Told, ended, input, message, plan, result};

#[derive(Debug)]
pub struct Codex {
    /// Reads the messages of `codex app-server`, which have no type.
    server: Server,
}

impl Codex {
    pub fn new(may_ask: bool) -> Self {
        Self { server: Server::new(may_ask) }
    }
}

impl Told for Codex {
    fn line(&mut self, line: &Value) -> Vec<Said> {
        let said = match line.text("type") {
            None => return self.server.line(line),
            Some("thread.started") => line.text("thread_id").map(|id| Said::Begin { session: id.to_owned() }),
            Some("item.started" | "item.updated") if line.member("item").text("type") == Some("todo_list") => {
                plan(line.member("item").list("items"))
            }
            Some("item.started") => started(line.member("item")),
            Some("item.completed") => return completed(line.member("item")),
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
            Some("turn.failed") => Some(ended(true, line.member("error").text("message").unwrap_or("turn failed"))),
            Some("error") => line.text("message").map(|text| Said::Notice { text: text.to_owned() }),
            _ => None,
        };
        said.into_iter().collect()
    }
}

fn completed(item: Option<&Value>) -> Vec<Said> {
    let tool = |tool: &str, text: String| Said::Tool { tool: tool.to_owned(), text };
    match item.text("type") {
        Some("agent_message") => item.text("text").and_then(message).into_iter().collect(),
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
        Some("error") => item.text("message").map(|text| Said::Notice { text: text.to_owned() }).into_iter().collect(),
        _ => Vec::new(),
    }
}

fn started(item: Option<&Value>) -> Option<Said> {
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
