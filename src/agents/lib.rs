//! Agents: one launcher and one pure parser of the output for each agent program, in a file of its own.
//!
//! An adapter is data and a parser; it uses no file, clock or process. The attempt process (`swarm attempt`) passes
//! it the lines of the agent's standard output, and asks for the outcome at the end. Success needs evidence; an exit
//! code alone is not enough.

mod acp;
mod aider;
pub mod asking;
mod claude;
mod codex;
pub mod codex_hooks;
mod codex_server;
mod command;
pub mod confined;
pub mod consent;
pub mod conversation;
pub mod dialogue;
mod fault;
pub mod gating;
mod gemini;
pub mod hooks;
mod opencode;
mod reset;
pub mod resume;
mod shell;
pub mod traits;
pub mod transcript;
mod turn_end;

use std::collections::BTreeMap;

pub use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use swarm_config::sections::AgentConfig;
use swarm_config::trust;
use swarm_model::Ended;
use swarm_model::asks::judge::Consent;
use swarm_model::run::progress::Spent;
use swarm_model::run::{FaultKind, Outcome};

use dialogue::{Dialogue, Request};
use traits::Conversations;

pub use fault::{classify, is_logged_out};

pub use traits::{CAPABILITIES, Traits};
pub use turn_end::turn_end;

/// Agents that need no configuration.
pub const BUILT_IN: [&str; 9] =
    ["claude", "codex", "gemini", "opencode", "aider", "gemini-acp", "opencode-acp", "qwen", "shell"];

/// Agent that can be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    pub name: String,
    pub kind: Kind,
    pub config: AgentConfig,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Claude,
    Codex,
    Gemini,
    Opencode,
    Aider,
    /// Any agent that speaks the Agent Client Protocol, and three of them.
    Acp,
    GeminiAcp,
    OpencodeAcp,
    Qwen,
    /// Runs the shell blocks of the spec itself.
    Shell,
    /// Any command; its exit code is the only result.
    Command,
}

/// Conversation that can be continued, and its cost so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Session {
    pub id: String,
    /// Total of the conversation, as the results of its turns report it.
    #[serde(default)]
    pub spent: Spent,
    /// Usage of turns that were killed, counted from their single answers. The next total may or may not include it.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub unreported: Spent,
}

fn is_nothing(spent: &Spent) -> bool {
    *spent == Spent::default()
}

impl Session {
    /// Returns the usage of a turn after which the conversation has this total, and what remains unreported. The total may
    /// or may not include turns that were killed.
    fn turn(&self, total: Spent) -> (Spent, Spent) {
        let counted = self.spent.plus(self.unreported);
        let has_all = total.input_tokens >= counted.input_tokens && total.output_tokens >= counted.output_tokens;
        let (base, left) = if has_all { (counted, Spent::default()) } else { (self.spent, self.unreported) };
        let spent = Spent {
            input_tokens: total.input_tokens.saturating_sub(base.input_tokens),
            output_tokens: total.output_tokens.saturating_sub(base.output_tokens),
            usd: None,
            unpriced: true,
        };
        (spent, left)
    }

    /// Returns the usage since `before`, the same conversation at an earlier time. Whatever another conversation used
    /// counts for nothing.
    #[must_use]
    pub fn since(&self, before: Option<&Self>) -> Spent {
        let before = before.filter(|before| before.id == self.id).cloned().unwrap_or_default();
        let (now, then) = (self.spent.plus(self.unreported), before.spent.plus(before.unreported));
        let usd = now.usd.map(|usd| usd - then.usd.unwrap_or(0.0)).filter(|usd| *usd > 0.0);
        Spent {
            input_tokens: now.input_tokens.saturating_sub(then.input_tokens),
            output_tokens: now.output_tokens.saturating_sub(then.output_tokens),
            usd,
            unpriced: now.unpriced,
        }
    }
}

/// Input of one turn of an agent.
#[derive(Clone, Debug, Default)]
pub struct Turn<'a> {
    pub prompt: &'a str,
    /// Conversation to continue.
    pub session: Option<&'a Session>,
    /// Id for a new conversation, for agents that let the caller choose it.
    pub fresh_id: &'a str,
    /// Directory in which the agent works.
    pub cwd: &'a str,
    /// What the agent may do without asking. `None`: everything, because nobody can be asked.
    pub consent: Option<Consent>,
}

impl Turn<'_> {
    /// Reports whether there is something for which the agent has to ask.
    pub fn may_ask(&self) -> bool {
        self.consent.is_some_and(|consent| consent != Consent::FullAccess)
    }
}

/// Command line, environment and input of one turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Standard input; empty if `None`.
    pub input: Option<String>,
}

/// Event in the output of an agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// Id of the conversation.
    Session(String),
    /// Message text.
    Text(String),
    /// Use of a tool.
    Tool(String),
    /// Usage of this turn so far.
    Spent(Spent),
    /// Task list of the agent: a list of `{content, status, activeForm}`.
    Todos(serde_json::Value),
    /// The agent has to wait before it can continue.
    Delay(String),
    /// The agent was denied a permission that nobody could be asked to grant.
    Denied(String),
    /// The agent asks a person, and waits for the answer or continues without it.
    Asked(String),
    /// The use of a tool with this id has a result, or will never have one.
    Done(String),
    /// The agent does something that cannot succeed and must be ended.
    Doomed,
}

/// Use of a tool at which an agent has stopped.
#[derive(Clone, Debug, PartialEq)]
pub enum Deferred {
    /// The agent has ended there, and can continue there later.
    At(Request),
    /// The conversation has none to continue at, so the agent did nothing.
    Nowhere,
}

/// Result of a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub outcome: Outcome,
    /// Cost of this turn alone.
    pub spent: Spent,
    /// Conversation after this turn.
    pub session: Option<Session>,
    /// Full last message, for agents that print events.
    pub said: Option<String>,
    /// The conversation to be continued no longer exists, so the agent did nothing.
    pub is_gone: bool,
    pub deferred: Option<Deferred>,
}

/// Facts about the end of an agent's process.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    pub ended: Ended,
    /// End of its standard error.
    pub stderr: &'a str,
    /// End of its standard output, for agents that print no events.
    pub output: &'a str,
    /// Current time in Unix milliseconds, for limits that are reported relative to now.
    pub now_ms: u64,
    /// Time zone of dates without one.
    pub zone: &'a TimeZone,
}

/// How an agent is listened to, and talked to.
pub enum Talk {
    /// It gets its task at the start, and reports.
    Lines(Box<dyn Parser>),
    /// It is talked to while it works.
    Dialogue(Box<dyn Dialogue>),
}

/// Parser of an agent's output.
pub trait Parser: Send {
    /// Parses one line.
    fn line(&mut self, line: &str) -> Vec<Seen>;
    /// Reports whether a line can be skipped. `told` is false if activity is no longer reported; only lines that affect
    /// the outcome matter then.
    fn skips(&self, _line: &[u8], _told: bool) -> bool {
        false
    }
    /// Returns the result of the turn after the process has ended.
    fn end(self: Box<Self>, end: End<'_>) -> Report;
}

impl Kind {
    /// Returns the section of the files that this agent loads from a repository, if it loads any.
    pub fn loads(self) -> Option<&'static str> {
        match self {
            Self::Claude => Some(trust::CLAUDE),
            Self::Codex => Some(trust::CODEX),
            Self::Gemini | Self::GeminiAcp => Some(trust::GEMINI),
            Self::Qwen => Some(trust::QWEN),
            Self::Aider => Some(trust::AIDER),
            Self::Opencode | Self::OpencodeAcp => Some(trust::OPENCODE),
            Self::Acp | Self::Shell | Self::Command => None,
        }
    }

    /// Returns the names of the files and directories that this agent writes for itself at the root of its worktree; `*`
    /// stands for any text.
    pub fn own_files(self) -> &'static [&'static str] {
        match self {
            Self::Aider => &aider::OWN_FILES,
            _ => &[],
        }
    }

    /// Reports whether a flow can restrict what this agent does.
    pub fn can_be_held_back(self) -> bool {
        matches!(self, Self::Claude | Self::Codex)
    }

    /// Returns the adapter that understands the events of this agent.
    fn of_events(name: &str) -> Option<Self> {
        match name {
            "claude" => Some(Self::Claude),
            "codex" => Some(Self::Codex),
            "gemini" => Some(Self::Gemini),
            "opencode" => Some(Self::Opencode),
            "aider" => Some(Self::Aider),
            "acp" => Some(Self::Acp),
            _ => None,
        }
    }

    /// Returns the adapter of a name that needs no configuration; `events` is what the configuration says about it.
    fn named(name: &str, events: Option<&str>) -> Option<Self> {
        match (name, events) {
            ("gemini-acp", _) | ("gemini", Some("acp")) => Some(Self::GeminiAcp),
            ("opencode-acp", _) | ("opencode", Some("acp")) => Some(Self::OpencodeAcp),
            ("qwen", _) => Some(Self::Qwen),
            ("acp", _) => None,
            _ => Self::of_events(name),
        }
    }

    /// Reports whether the agent speaks the Agent Client Protocol.
    fn is_acp(self) -> bool {
        matches!(self, Self::Acp | Self::GeminiAcp | Self::OpencodeAcp | Self::Qwen)
    }
}

impl Agent {
    /// Returns the agent of this name: a built-in one, or one from the configuration.
    ///
    /// # Errors
    /// Fails if the agent is unknown, naming those that exist, or if its configuration is invalid.
    pub fn find(name: &str, configured: &BTreeMap<String, AgentConfig>) -> Result<Self, String> {
        let config = configured.get(name).cloned().unwrap_or_default();
        let kind = match (name, &config.command, config.events.as_deref()) {
            (_, Some(command), _) if command.is_empty() => {
                return Err(format!("agents.{name}.command is empty"));
            }
            // Another program for an agent that is known, with its variables.
            (_, Some(_), Some("acp")) => Kind::named(name, Some("acp")).filter(|it| it.is_acp()).unwrap_or(Kind::Acp),
            (_, Some(_), None) => Kind::Command,
            (_, Some(_), Some(events)) if Kind::of_events(events).is_some() => {
                Kind::of_events(events).unwrap_or(Kind::Command)
            }
            (_, _, Some(events)) if Kind::of_events(events).is_none() => {
                let known = swarm_config::sections::EVENTS.join(", ");
                return Err(format!("invalid agents.{name}.events '{events}': expected one of {known}"));
            }
            ("shell", None, _) => Kind::Shell,
            (_, None, events) if Kind::named(name, events).is_some() => {
                Kind::named(name, events).unwrap_or(Kind::Command)
            }
            (_, None, _) if configured.contains_key(name) => {
                return Err(format!("agents.{name} has no command"));
            }
            _ => {
                let known: Vec<&str> = BUILT_IN.into_iter().chain(configured.keys().map(String::as_str)).collect();
                return Err(format!("agent '{name}' not found (known: {})", known.join(", ")));
            }
        };
        Ok(Self { name: name.to_owned(), kind, config })
    }

    /// Returns the required capabilities that this agent does not have.
    pub fn missing(&self, required: &[String]) -> Vec<String> {
        let has = |capability: &str| match &self.config.capabilities {
            Some(configured) => configured.iter().any(|one| one == capability),
            None => self.kind.traits().capabilities.contains(&capability),
        };
        required.iter().filter(|one| !has(one)).cloned().collect()
    }

    /// Reports whether the agent takes instructions: to repair its work, or to resolve a conflict.
    pub fn converses(&self) -> bool {
        self.kind != Kind::Shell
    }

    /// Reports whether a conversation with the agent can be continued.
    pub fn resumes(&self) -> bool {
        self.kind.traits().session != Conversations::None
    }

    /// Returns the command line, environment and input for a turn.
    pub fn launch(&self, turn: &Turn<'_>) -> Launch {
        let mut launch = match self.kind {
            Kind::Claude => claude::launch(&self.config, turn),
            Kind::Codex if turn.may_ask() => codex_server::launch(&self.config),
            Kind::Codex => codex::launch(&self.config, turn),
            Kind::Gemini => gemini::launch(&self.config, turn),
            Kind::Opencode => opencode::launch(&self.config, turn),
            Kind::Aider => aider::launch(&self.config, turn),
            kind @ (Kind::Acp | Kind::GeminiAcp | Kind::OpencodeAcp | Kind::Qwen) => acp::launch(kind, &self.config),
            Kind::Command => command::launch(&self.config, turn),
            Kind::Shell => shell::launch(turn),
        };
        launch.env.extend(self.config.env.clone());
        launch
    }

    /// Returns how the agent is talked to in a turn.
    pub fn talk(&self, turn: &Turn<'_>) -> Talk {
        match self.kind {
            Kind::Codex if turn.may_ask() => Talk::Dialogue(Box::new(codex_server::Reader::new(&self.config, turn))),
            kind if kind.is_acp() => Talk::Dialogue(Box::new(acp::Reader::new(kind, &self.name, turn))),
            Kind::Claude if turn.may_ask() => {
                let before = turn.session.cloned().unwrap_or_default();
                Talk::Lines(Box::new(claude::Reader::new(before).asking(turn.consent)))
            }
            _ => Talk::Lines(self.parser(turn.session)),
        }
    }

    /// Reports whether the agent may ask a person in a turn, and has to be told the answers.
    pub fn asks(&self, turn: &Turn<'_>) -> bool {
        self.kind.is_acp() || matches!(self.kind, Kind::Codex | Kind::Claude) && turn.may_ask()
    }

    /// Returns a parser of the agent's output, for agents without a dialogue; `session` is the conversation that is continued.
    pub fn parser(&self, session: Option<&Session>) -> Box<dyn Parser> {
        let before = session.cloned().unwrap_or_default();
        match self.kind {
            Kind::Claude => Box::new(claude::Reader::new(before)),
            Kind::Codex => Box::new(codex::Reader::new(before)),
            Kind::Gemini => Box::new(gemini::Reader::new(before)),
            Kind::Opencode => Box::new(opencode::Reader::new(before)),
            Kind::Aider => Box::new(aider::Reader::default()),
            Kind::Command | Kind::Shell | Kind::Acp | Kind::GeminiAcp | Kind::OpencodeAcp | Kind::Qwen => {
                Box::new(command::Reader::default())
            }
        }
    }
}

/// Returns the shell script in a spec for the `shell` agent.
///
/// # Errors
/// Fails if the spec has no shell block, or if one is not closed.
pub fn shell_script(spec: &str) -> Result<String, String> {
    shell::script(spec)
}

/// Returns a failure with its evidence for the next attempt.
fn failure(cause: impl Into<String>, evidence: Option<String>, fault: FaultKind) -> Outcome {
    Outcome::Failure { cause: cause.into(), evidence, fault }
}

/// Returns the failure of an agent that ended well and printed nothing that its adapter knows.
fn not_understood(agent: &str, end: &End<'_>) -> Outcome {
    let last = end.output.lines().rev().map(short).find(|line| !line.is_empty());
    let cause = match last {
        Some(line) => format!("its output is not that of a known version of {agent} (see 'swarm agents'): {line}"),
        None => format!("{} and printed nothing", end_words(end.ended)),
    };
    failure(cause, None, FaultKind::Lasting)
}

/// Returns `exited with code 3` or `killed by signal 9`.
pub fn end_words(ended: Ended) -> String {
    match ended {
        Ended::Code(code) => format!("exited with code {code}"),
        Ended::Signal(signal) => format!("killed by signal {signal}"),
    }
}

/// Returns the first line without control characters, shortened for a list.
pub fn short(text: &str) -> String {
    const LENGTH_MAX: usize = 200;
    let line: String = text.trim().lines().next().unwrap_or_default().chars().filter(|c| !c.is_control()).collect();
    let line = line.trim();
    match line.char_indices().nth(LENGTH_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

/// Returns the first and the last line of a message, shortened for a list: what it asks is often at its end.
pub fn gist(text: &str) -> String {
    const LENGTH_MAX: usize = 90;
    let first = short(text);
    let last = text.trim().lines().skip(1).map(short).filter(|line| !line.is_empty()).last();
    let cut = |line: &str| match line.char_indices().nth(LENGTH_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    };
    last.map_or_else(|| first.clone(), |last| format!("{} … {}", cut(&first), cut(&last)))
}

/// Returns the last `count` lines, as evidence for the next attempt.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod dialogue_odds_tests;
#[cfg(test)]
mod dialogue_tests;
#[cfg(test)]
mod killed_tests;
#[cfg(test)]
mod others_tests;
#[cfg(test)]
mod tests;
