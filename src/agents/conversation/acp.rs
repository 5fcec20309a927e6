//! Conversation of agents that speak the Agent Client Protocol. The lines that were sent to the agent are among its own, each
//! as the member `sent` of an object.

use serde_json::Value;
use swarm_model::json::Members as _;

use super::{Said, Told, ended, message, plan, result, tool};
use crate::acp::usage::Usage;
use crate::acp::wish::Permission;
use crate::dialogue::{Message, message as of_value};

/// Number of uses of tools that are remembered, so that each is shown once.
const CALLS_MAX: usize = 1_000;

#[derive(Debug)]
pub struct Acp {
    /// A person is asked.
    may_ask: bool,
    /// Conversation that is continued.
    known: Option<String>,
    /// The agent repeats what was said earlier.
    is_loading: bool,
    writing: String,
    /// Uses of tools that were shown.
    shown: Vec<String>,
    open: Vec<Permission>,
    usage: Usage,
}

impl Acp {
    pub fn new(may_ask: bool) -> Self {
        Self {
            may_ask,
            known: None,
            is_loading: false,
            writing: String::new(),
            shown: Vec::new(),
            open: Vec::new(),
            usage: Usage::new(None),
        }
    }

    fn sent(&mut self, sent: &Value) -> Option<Said> {
        match (sent.text("method"), sent.member("id")) {
            (Some("initialize"), _) => *self = Self::new(self.may_ask),
            (Some("session/load" | "session/resume"), _) => {
                self.known = sent.member("params").text("sessionId").map(str::to_owned);
                self.is_loading = sent.text("method") == Some("session/load");
            }
            (Some("session/prompt"), _) => self.is_loading = false,
            (None, Some(id)) => {
                let at = self.open.iter().position(|open| open.is(id))?;
                let asked = self.open.remove(at);
                let option = sent.member("result").member("outcome").text("optionId")?;
                return (!asked.is_allowed_by(option)).then(|| Said::Denied { text: asked.what() });
            }
            _ => {}
        }
        None
    }

    fn answered(&mut self, result: &Value) -> Vec<Said> {
        if let Some(reason) = result.text("stopReason") {
            self.usage.result(result);
            let (spent, usd) = self.usage.spent();
            let is_told = spent.input_tokens > 0 || spent.output_tokens > 0;
            let is_well = reason == "end_turn";
            let end = Said::End {
                failed: !is_well,
                text: if is_well { String::new() } else { reason.to_owned() },
                usd,
                input_tokens: is_told.then_some(spent.input_tokens),
                output_tokens: is_told.then_some(spent.output_tokens),
            };
            return self.part().into_iter().chain([end]).collect();
        }
        let is_opened = result.member("sessionId").is_some();
        let id = result.text("sessionId").map(str::to_owned).or_else(|| self.known.clone().filter(|_| is_opened));
        id.map(|session| Said::Begin { session }).into_iter().collect()
    }

    fn requested(&mut self, id: &Value, params: Option<&Value>) -> Vec<Said> {
        let asked = Permission::new(id, params, &self.open);
        let mut said: Vec<Said> = self.part().into_iter().collect();
        said.extend(self.tool(params.member("toolCall")));
        if self.may_ask {
            said.push(Said::Question { text: asked.what() });
        }
        self.open.push(asked);
        said
    }

    fn update(&mut self, update: Option<&Value>) -> Vec<Said> {
        self.usage.update(update);
        let kind = update.text("sessionUpdate");
        if kind == Some("agent_message_chunk") {
            self.writing.push_str(update.member("content").text("text").unwrap_or_default());
            return Vec::new();
        }
        let mut said = Vec::new();
        match kind {
            Some("tool_call" | "tool_call_update") => {
                said.extend(self.part());
                let status = update.text("status");
                // The input of a use that is pending may not be complete.
                if kind == Some("tool_call_update") || status.is_some_and(|status| status != "pending") {
                    said.extend(self.tool(update));
                }
                if let Some("completed" | "failed") = status {
                    said.push(result(&output(update), status == Some("failed")));
                }
            }
            Some("user_message_chunk") => said.extend(self.part()),
            Some("plan") => {
                said.extend(self.part());
                said.extend(plan(update.list("entries")));
            }
            _ => {}
        }
        said
    }

    /// Returns the use of a tool, once, when its input is known.
    fn tool(&mut self, call: Option<&Value>) -> Option<Said> {
        let id = call.text("toolCallId")?;
        if self.shown.iter().any(|shown| shown == id) {
            return None;
        }
        if self.shown.len() == CALLS_MAX {
            self.shown.remove(0);
        }
        self.shown.push(id.to_owned());
        let name = call.text("kind").or(call.member("_meta").text("toolName")).unwrap_or("tool");
        let with = call.member("rawInput").filter(|with| with.as_object().is_some_and(|with| !with.is_empty()));
        let title = || call.text("title").map(Value::from);
        Some(match with {
            Some(with) => tool(name, Some(with)),
            None => tool(name, title().as_ref()),
        })
    }
}

/// Returns what a tool printed.
fn output(update: Option<&Value>) -> String {
    let parts = update.list("content").iter().filter_map(|part| part.member("content").text("text"));
    let parts: Vec<&str> = parts.collect();
    let raw = update.member("rawOutput");
    let raw = || raw.text("output").or(raw.text("error")).or(raw.and_then(Value::as_str)).unwrap_or_default();
    if parts.is_empty() { raw().to_owned() } else { parts.join("\n") }
}

impl Told for Acp {
    fn line(&mut self, line: &Value) -> Vec<Said> {
        if let Some(sent) = line.member("sent") {
            return self.sent(sent).into_iter().collect();
        }
        match of_value(line) {
            Some(Message::Result { result, .. }) => self.answered(result),
            Some(Message::Failed { message, .. }) => self.part().into_iter().chain([ended(true, &message)]).collect(),
            Some(Message::Request { id, method: "session/request_permission", params }) => self.requested(id, params),
            Some(Message::Notice { method: "session/update", params }) if !self.is_loading => {
                self.update(params.member("update"))
            }
            _ => Vec::new(),
        }
    }

    fn part(&mut self) -> Option<Said> {
        message(&std::mem::take(&mut self.writing))
    }
}
