//! Requests of an agent for a permission, and the answers to them.

use serde_json::{Value, json};
use swarm_model::asks::{AskWish, Verdict};
use swarm_model::json::Members as _;

use super::WIRE;
use crate::dialogue::{Request, Step};
use crate::short;

/// Members of a tool's input that name the file that it writes.
const PATHS: [&str; 5] = ["file_path", "filePath", "filepath", "path", "absolute_path"];

/// Members of a command's input that name the directory in which it is executed.
const DIRECTORIES: [&str; 6] = ["directory", "dir_path", "dir", "cwd", "workdir", "working_directory"];

/// Open request for a permission.
#[derive(Debug)]
pub struct Permission {
    /// Id of the message.
    id: Value,
    pub request: Request,
    /// Option that allows this use alone. Options that allow more are never chosen: they change the agent's rules.
    allow: Option<String>,
    reject: Option<String>,
    title: String,
}

impl Permission {
    /// Reads a request. `open` are those that have no answer yet.
    pub fn new(id: &Value, params: Option<&Value>, open: &[Self]) -> Self {
        let tool = params.member("toolCall");
        let named = tool.text("toolCallId").map_or_else(|| format!("request-{id}"), str::to_owned);
        let is_open = |call: &str| open.iter().any(|open| open.request.call == call);
        let call = (2_usize..).map(|number| format!("{named}#{number}"));
        let call = std::iter::once(named.clone()).chain(call).find(|call| !is_open(call)).unwrap_or(named);
        let option = |kind: &str| {
            let found = params.list("options").iter().find(|option| option.text("kind") == Some(kind));
            found.and_then(|option| option.text("optionId")).map(str::to_owned)
        };
        let kind = tool.text("kind").unwrap_or("tool").to_owned();
        let title = tool.text("title").unwrap_or(&kind).to_owned();
        let request = Request { call, wish: wish(&kind, &title, tool), tool: kind };
        Self { id: id.clone(), request, allow: option("allow_once"), reject: option("reject_once"), title }
    }

    /// Returns what is asked, in one line.
    pub fn what(&self) -> String {
        short(&format!("{}: {}", self.request.tool, self.title))
    }

    /// Reports whether this is the request with this id.
    pub fn is(&self, id: &Value) -> bool {
        self.id == *id
    }

    /// Reports whether an answer that chooses this option allows the use.
    pub fn is_allowed_by(&self, option: &str) -> bool {
        self.allow.as_deref() == Some(option)
    }

    /// Returns the answer, and whether it allows the use.
    pub fn answer(&self, verdict: &Verdict) -> (Step, bool) {
        // The protocol cannot change the input of a tool, so another input is no permission for this one.
        let is_allowed = matches!(verdict, Verdict::Allow { input: None }) && self.allow.is_some();
        let option = if is_allowed { &self.allow } else { &self.reject };
        match option {
            Some(option) => {
                let outcome = json!({ "outcome": "selected", "optionId": option });
                (WIRE.result(&self.id, json!({ "outcome": outcome })), is_allowed)
            }
            None => (self.cancelled(), false),
        }
    }

    pub fn cancelled(&self) -> Step {
        WIRE.result(&self.id, json!({ "outcome": { "outcome": "cancelled" } }))
    }
}

/// Reports whether a part of the content names a directory, as gemini does: `make [in other]`.
fn names_directory(part: &Value) -> bool {
    part.member("content").text("text").or(part.text("text")).is_some_and(|text| text.contains("[in "))
}

/// Returns what the agent wants to do, as far as it says so.
fn wish(kind: &str, title: &str, tool: Option<&Value>) -> AskWish {
    let input = tool.member("rawInput").filter(|input| input.as_object().is_some_and(|it| !it.is_empty()));
    match kind {
        "execute" => {
            let has =
                |key: &&str| input.member(key).is_some_and(|value| !value.is_null() && value.as_str() != Some(""));
            let is_elsewhere = DIRECTORIES.iter().any(has) || tool.list("content").iter().any(names_directory);
            let command = input.text("command").unwrap_or(title).to_owned();
            if !is_elsewhere {
                return AskWish::Command { command };
            }
            // Another directory is part of what is asked, and no rule about the command is meant for it.
            let more = tool.member("content").cloned().unwrap_or_default();
            return AskWish::Tool { input: json!({ "command": command, "input": input, "content": more }) };
        }
        "edit" => {
            let mut paths: Vec<&str> = tool.list("locations").iter().filter_map(|place| place.text("path")).collect();
            paths.extend(PATHS.iter().filter_map(|key| input.text(key)));
            paths.extend(tool.list("content").iter().filter_map(|part| part.text("path")));
            paths.dedup();
            if let [path] = paths[..] {
                let change = json!({ "input": input, "content": tool.member("content") });
                let change = serde_json::to_string_pretty(&change).unwrap_or_default();
                return AskWish::Write { path: path.to_owned(), change };
            }
        }
        _ => {}
    }
    AskWish::Tool { input: input.cloned().unwrap_or_else(|| json!({ "title": title })) }
}
