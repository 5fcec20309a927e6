//! Agents: for each a launch and a pure parser of what it prints, one file each.
//!
//! An adapter is data and a parser; it touches no file, clock or process. The attempt
//! ([`crate::attempt`]) feeds it the lines of the agent's standard output and asks at
//! the end what became of the work. Success needs evidence: an exit code alone is none.

mod claude;
mod codex;
mod command;
pub mod consent;
mod fault;
pub mod hooks;
pub mod resume;
mod shell;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use swarm_model::Ended;
use swarm_model::run::progress::Spent;
use swarm_model::run::{FaultKind, Outcome};

pub use fault::{classify, is_logged_out};

/// What agents may be asked to be able to do (the words of the specs' front matter).
pub const CAPABILITIES: [&str; 8] = [
    "file_read",
    "file_write",
    "file_search",
    "bash_execute",
    "web_search",
    "web_fetch",
    "code_analysis",
    "git_operations",
];

/// The agents that need no configuration.
pub const BUILT_IN: [&str; 3] = ["claude", "codex", "shell"];

/// `[agents.NAME]` of `swarm.toml`: another command, or more words for a known one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// What is executed. It gets the prompt on standard input and as `$SWARM_PROMPT`.
    pub command: Option<Vec<String>>,
    /// What it can do; everything where nothing is said.
    pub capabilities: Option<Vec<String>>,
    /// Which built-in agent's events it prints (`claude` or `codex`).
    pub events: Option<String>,
    /// Words for the command line of a built-in agent, after ours.
    pub arguments: Vec<String>,
    /// Variables for it alone.
    pub env: BTreeMap<String, String>,
    pub model: Option<String>,
}

/// An agent that can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    pub name: String,
    pub kind: Kind,
    pub config: AgentConfig,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Claude,
    Codex,
    /// Runs the shell blocks of the spec itself.
    Shell,
    /// Any command; its exit code is all that it says.
    Command,
}

/// A conversation that can be continued, and what it had cost when it was left.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Session {
    pub id: String,
    /// Agents count over the whole conversation: what was counted before.
    #[serde(default)]
    pub spent: Spent,
}

/// What is to be said to an agent.
#[derive(Clone, Debug)]
pub struct Turn<'a> {
    pub prompt: &'a str,
    /// Continue this conversation.
    pub session: Option<&'a Session>,
    /// For agents whose conversations are named by who starts them.
    pub fresh_id: &'a str,
}

/// How an agent is started for one turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Its standard input; nothing where there is none.
    pub input: Option<String>,
}

/// What a line of an agent's output tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// The conversation has this name.
    Session(String),
    /// What it says.
    Text(String),
    /// What it does.
    Tool(String),
    /// What it means to do: a list of `{content, status, activeForm}`.
    Todos(serde_json::Value),
    /// It is kept from going on for now.
    Delay(String),
    /// It asked for something that nobody is there to allow.
    Denied(String),
    /// It asks a person, and waits for the answer or does without.
    Asked(String),
    /// It goes on and on at something that cannot succeed: to be ended.
    Doomed,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub outcome: Outcome,
    /// Of this turn alone.
    pub spent: Spent,
    /// The conversation as it is now.
    pub session: Option<Session>,
    /// Its last message as it said it, for agents that print events.
    pub said: Option<String>,
}

/// What is known when an agent's process has ended.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    pub ended: Ended,
    /// The last of what it wrote to standard error.
    pub stderr: &'a str,
    /// The last of what it printed, for agents that print no events.
    pub output: &'a str,
    /// Unix milliseconds, for limits that are told as a time of day.
    pub now_ms: u64,
}

/// Reads an agent's output, a line at a time.
pub trait Parser: Send {
    fn line(&mut self, line: &str) -> Vec<Seen>;
    /// Whether a line need not be looked at. `told` says whether anybody still hears
    /// what the agent does; where nobody does, only what bears on its end matters.
    fn skips(&self, _line: &[u8], _told: bool) -> bool {
        false
    }
    fn end(self: Box<Self>, end: End<'_>) -> Report;
}

impl Agent {
    /// The agent of this name: a built-in one, or one that `configured` describes.
    ///
    /// # Errors
    /// A sentence that names those there are.
    pub fn find(name: &str, configured: &BTreeMap<String, AgentConfig>) -> Result<Self, String> {
        let config = configured.get(name).cloned().unwrap_or_default();
        let kind = match (name, &config.command, config.events.as_deref()) {
            (_, Some(command), _) if command.is_empty() => {
                return Err(format!("agents.{name}.command is empty"));
            }
            (_, Some(_), Some("claude")) => Kind::Claude,
            (_, Some(_), Some("codex")) => Kind::Codex,
            (_, Some(_), None) => Kind::Command,
            (_, _, Some(events)) if !matches!(events, "claude" | "codex") => {
                return Err(format!("agents.{name}.events is {events:?}, it can be \"claude\" or \"codex\""));
            }
            ("claude", None, _) => Kind::Claude,
            ("codex", None, _) => Kind::Codex,
            ("shell", None, _) => Kind::Shell,
            (_, None, _) if configured.contains_key(name) => {
                return Err(format!("agents.{name} has no command"));
            }
            _ => {
                let known: Vec<&str> = BUILT_IN.into_iter().chain(configured.keys().map(String::as_str)).collect();
                return Err(format!("there is no agent '{name}'; there are {}", known.join(", ")));
            }
        };
        Ok(Self { name: name.to_owned(), kind, config })
    }

    /// Those of `required` that it does not have.
    pub fn missing(&self, required: &[String]) -> Vec<String> {
        let has = |capability: &str| match &self.config.capabilities {
            Some(configured) => configured.iter().any(|one| one == capability),
            None => match self.kind {
                Kind::Claude | Kind::Command => CAPABILITIES.contains(&capability),
                Kind::Codex => CAPABILITIES.contains(&capability) && capability != "web_fetch",
                Kind::Shell => {
                    matches!(capability, "file_read" | "file_write" | "file_search" | "bash_execute" | "git_operations")
                }
            },
        };
        required.iter().filter(|one| !has(one)).cloned().collect()
    }

    /// Whether it can be talked to: asked to mend what it did, or to resolve a conflict.
    pub fn converses(&self) -> bool {
        self.kind != Kind::Shell
    }

    /// Whether a conversation with it can be continued.
    pub fn resumes(&self) -> bool {
        matches!(self.kind, Kind::Claude | Kind::Codex)
    }

    pub fn launch(&self, turn: &Turn<'_>) -> Launch {
        let mut launch = match self.kind {
            Kind::Claude => claude::launch(&self.config, turn),
            Kind::Codex => codex::launch(&self.config, turn),
            Kind::Command => command::launch(&self.config, turn),
            Kind::Shell => shell::launch(turn),
        };
        launch.env.extend(self.config.env.clone());
        launch
    }

    /// A reader of its output; `session` is the conversation that is continued.
    pub fn parser(&self, session: Option<&Session>) -> Box<dyn Parser> {
        let before = session.cloned().unwrap_or_default();
        match self.kind {
            Kind::Claude => Box::new(claude::Reader::new(before)),
            Kind::Codex => Box::new(codex::Reader::new(before)),
            Kind::Command | Kind::Shell => Box::new(command::Reader::default()),
        }
    }
}

/// The shell script that a spec for the `shell` agent is.
///
/// # Errors
/// When there is no block of it.
pub fn shell_script(spec: &str) -> Result<String, String> {
    shell::script(spec)
}

/// A failure of the task: tried again with what is known of it.
fn failure(cause: impl Into<String>, evidence: Option<String>, fault: FaultKind) -> Outcome {
    Outcome::Failure { cause: cause.into(), evidence, fault }
}

/// `ended with code 3` or `was ended by signal 9`.
pub fn end_words(ended: Ended) -> String {
    match ended {
        Ended::Code(code) => format!("ended with code {code}"),
        Ended::Signal(signal) => format!("was ended by signal {signal}"),
    }
}

/// The first line, short enough for a list.
pub fn short(text: &str) -> String {
    const LENGTH_MAX: usize = 200;
    let line: String = text.trim().lines().next().unwrap_or_default().chars().filter(|c| !c.is_control()).collect();
    let line = line.trim();
    match line.char_indices().nth(LENGTH_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

/// The last lines, as evidence for the next attempt.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests;
