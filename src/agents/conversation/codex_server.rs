//! Conversation of `codex app-server`.

use serde_json::Value;
use swarm_model::json::Members as _;

use super::{Said, Told, ended, input, message, plan, result};
use crate::codex_server::wish::unwrapped;
use crate::dialogue::{Message, message as of_value};

#[derive(Debug)]
pub struct Server {
    /// A person is asked.
    may_ask: bool,
    thread: Option<String>,
    /// Tokens of the conversation, of input and of output.
    total: Option<(u64, u64)>,
    /// What a running command has printed, if its end does not repeat it.
    printed: String,
    /// Last notice; it is not repeated.
    notice: String,
}

impl Server {
    pub fn new(may_ask: bool) -> Self {
        Self { may_ask, thread: None, total: None, printed: String::new(), notice: String::new() }
    }

    fn opened(&mut self, result: &Value) -> Vec<Said> {
        let Some(id) = result.member("thread").text("id") else { return Vec::new() };
        *self = Self { thread: Some(id.to_owned()), ..Self::new(self.may_ask) };
        vec![Said::Begin { session: id.to_owned() }]
    }

    fn requested(&self, method: &str, params: Option<&Value>) -> Option<Said> {
        let text = match method {
            "item/commandExecution/requestApproval" => {
                let what = params.text("command").map(unwrapped).or(params.text("reason").map(str::to_owned));
                format!("exec: {}", what.unwrap_or_default())
            }
            "item/fileChange/requestApproval" => format!("edit: {}", params.text("reason").unwrap_or("these files")),
            "item/permissions/requestApproval" => {
                format!("permissions: {}", params.member("permissions").unwrap_or(&Value::Null))
            }
            "item/tool/requestUserInput" => crate::claude::question(params),
            _ => return None,
        };
        self.may_ask.then_some(Said::Question { text })
    }

    fn noticed(&mut self, method: &str, params: Option<&Value>) -> Vec<Said> {
        let is_other = params.text("threadId").is_some_and(|id| self.thread.as_deref().is_some_and(|own| own != id));
        if is_other {
            return Vec::new();
        }
        let said = match method {
            "item/started" => started(params.member("item")),
            "item/completed" => self.completed(params.member("item")),
            "item/commandExecution/outputDelta" => {
                self.printed.push_str(params.text("delta").unwrap_or_default());
                None
            }
            "turn/plan/updated" => plan(params.list("plan")),
            "thread/tokenUsage/updated" => {
                let total = params.member("tokenUsage").member("total");
                self.total = total.whole("inputTokens").zip(total.whole("outputTokens")).or(self.total);
                None
            }
            "warning" => self.notice(params.text("message")),
            "error" if params.member("willRetry").and_then(Value::as_bool) == Some(true) => {
                let error = params.member("error");
                self.notice(error.text("additionalDetails").or(error.text("message")))
            }
            "turn/completed" => Some(self.ended(params.member("turn"))),
            _ => None,
        };
        said.into_iter().collect()
    }

    fn notice(&mut self, text: Option<&str>) -> Option<Said> {
        let text = text.filter(|text| *text != self.notice)?.to_owned();
        self.notice.clone_from(&text);
        Some(Said::Notice { text })
    }

    fn completed(&mut self, item: Option<&Value>) -> Option<Said> {
        let status = item.text("status").unwrap_or_default();
        match item.text("type")? {
            "agentMessage" => message(item.text("text")?),
            "commandExecution" | "fileChange" if status == "declined" => {
                let Some(Said::Tool { tool, text }) = started(item) else { return None };
                Some(Said::Denied { text: format!("{tool}: {text}") })
            }
            "commandExecution" => {
                let printed = std::mem::take(&mut self.printed);
                let code = item.member("exitCode").and_then(Value::as_i64);
                let failed = code.map_or(status == "failed", |code| code != 0);
                Some(result(item.text("aggregatedOutput").unwrap_or(&printed), failed))
            }
            "fileChange" if status == "failed" => Some(result("", true)),
            "mcpToolCall" => {
                let parts = item.member("result").list("content").iter().filter_map(|part| part.text("text"));
                let text = item.member("error").text("message").map(str::to_owned);
                Some(result(&text.unwrap_or_else(|| parts.collect::<Vec<_>>().join("\n")), status == "failed"))
            }
            "plan" => Some(Said::Plan { text: item.text("text")?.trim().to_owned() }),
            _ => None,
        }
    }

    fn ended(&self, turn: Option<&Value>) -> Said {
        let status = turn.text("status").unwrap_or("failed");
        let is_well = status == "completed";
        let text = turn.member("error").text("message").unwrap_or(status);
        match ended(!is_well, if is_well { "" } else { text }) {
            Said::End { failed, text, usd, .. } => {
                let (input_tokens, output_tokens) = self.total.unzip();
                Said::End { failed, text, usd, input_tokens, output_tokens }
            }
            other => other,
        }
    }
}

fn started(item: Option<&Value>) -> Option<Said> {
    let (tool, text) = match item.text("type")? {
        "commandExecution" => ("exec".to_owned(), unwrapped(item.text("command")?)),
        "fileChange" => {
            let paths: Vec<&str> = item.list("changes").iter().filter_map(|change| change.text("path")).collect();
            ("edit".to_owned(), paths.join("\n"))
        }
        "mcpToolCall" => (format!("{}.{}", item.text("server")?, item.text("tool")?), input(item.member("arguments"))),
        "webSearch" => ("search".to_owned(), item.text("query")?.to_owned()),
        _ => return None,
    };
    Some(Said::Tool { tool, text })
}

impl Told for Server {
    fn line(&mut self, line: &Value) -> Vec<Said> {
        match of_value(line) {
            Some(Message::Result { result, .. }) => self.opened(result),
            Some(Message::Failed { message, .. }) => vec![ended(true, &message)],
            Some(Message::Request { method, params, .. }) => self.requested(method, params).into_iter().collect(),
            Some(Message::Notice { method, params }) => self.noticed(method, params),
            None => Vec::new(),
        }
    }
}
