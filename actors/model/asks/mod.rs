//! Requests of agents to people: what is asked, the answer, and what became of it.
//!
//! ```text
//!   open ──▶ answered ──▶ taken ──▶ over
//!     └──────────┴────────────────────▲    nobody waits any more
//! ```
//!
//! A request is a number and at most four files, each of which is written once. The first answer counts. An answer is
//! used at most once: it is taken before the agent hears it.

pub mod judge;
pub mod parking;
mod programs;
pub mod rules;
mod shell;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{NeedKind, Needs};

/// Schema of a request's file.
pub const SCHEMA: &str = "swarm.ask/1";

/// What an agent wants to do, or wants to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "type")]
pub enum AskWish {
    /// Execute a command of a shell.
    Command { command: String },
    /// Write this file. `change` is what is written, as far as the agent says so, in a form that a person can read.
    Write {
        path: String,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        change: String,
    },
    /// Use a tool of an MCP server.
    Mcp { server: String, name: String, arguments: Value },
    /// Use another tool with this input.
    Tool { input: Value },
    /// Ask a person.
    Question { questions: Vec<Question> },
}

/// Question of an agent to a person.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Question {
    /// Name by which the agent expects the answer: an id, or the text of the question.
    pub id: String,
    pub text: String,
    /// Labels of the answers that the agent suggests. Empty if it expects a text.
    pub options: Vec<String>,
    /// Whether several options may be chosen.
    pub several: bool,
}

/// How the agent waits for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Waits {
    /// No process waits. The agent continues in a new process after the answer.
    Parked,
    /// The agent's process waits.
    Held,
    /// The agent's process waits, and also shows its own dialog in a window.
    Shown,
}

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Asker {
    /// Name of the worker.
    pub worker: String,
    pub generation: Option<u64>,
    /// Id of the run, for a workstream.
    pub run: Option<String>,
    /// Id of the workstream.
    pub job: Option<String>,
    pub attempt: Option<u32>,
    /// Name of the agent, for example `claude`.
    pub agent: Option<String>,
    /// Id of the agent's conversation.
    pub conversation: Option<String>,
    /// Id of the tool use within the conversation.
    pub call: Option<String>,
}

/// A request that has no number yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// Identifies the request across repetitions: the same tool use of the same attempt has the same key.
    pub key: String,
    pub who: Asker,
    /// Name of the tool, as the agent calls it.
    pub tool: String,
    pub wish: AskWish,
    /// Directory in which the agent works.
    pub cwd: String,
    pub waits: Waits,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    pub schema: String,
    pub number: u64,
    pub key: String,
    pub who: Asker,
    pub tool: String,
    pub wish: AskWish,
    pub cwd: String,
    pub waits: Waits,
    /// Identifies what is asked: SHA-256 of tool, wish and directory.
    pub digest: String,
    pub asked_at_ms: u64,
    /// Time at which the answer is no, in Unix milliseconds. `None` if the request stays open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
}

impl Ask {
    /// Returns the kind of what the agent needs.
    pub fn kind(&self) -> NeedKind {
        match self.wish {
            AskWish::Question { .. } => NeedKind::Question,
            AskWish::Command { .. } | AskWish::Write { .. } | AskWish::Mcp { .. } | AskWish::Tool { .. } => {
                NeedKind::Permission
            }
        }
    }

    /// Returns what the worker needs from a person, in one line.
    pub fn needs(&self) -> Needs {
        Needs {
            kind: self.kind(),
            text: first_line(&self.what()),
            since_ms: self.asked_at_ms,
            answer: Some(self.command()),
        }
    }

    /// Returns the command that answers the request, with a `TEXT` for each answer.
    pub fn command(&self) -> String {
        match &self.wish {
            AskWish::Question { questions } => {
                let texts = " TEXT".repeat(questions.len().max(1));
                format!("swarm answer {}{texts}", self.number)
            }
            _ => format!("swarm approve {}", self.number),
        }
    }

    /// Returns what the agent wants, in words, in one line that is short enough for a list. It says so if there is more.
    pub fn summary(&self) -> String {
        self.wish.summary(&self.tool)
    }

    /// Returns what the agent wants as [`Self::text`] does, with the tool in front of a command.
    pub fn what(&self) -> String {
        match &self.wish {
            AskWish::Command { command } => format!("{}: {command}", self.tool),
            _ => self.text(),
        }
    }

    /// Returns what the agent wants as [`Self::what`] does, and the options of a question beside it.
    pub fn choices(&self) -> String {
        match &self.wish {
            AskWish::Question { questions } => questions.iter().map(with_options).collect::<Vec<_>>().join("\n"),
            _ => self.what(),
        }
    }

    /// Returns what the agent wants, in words, complete and possibly of several lines.
    pub fn text(&self) -> String {
        self.wish.text(&self.tool)
    }
}

impl AskWish {
    /// Returns what the agent wants to do with this tool, as [`Ask::summary`] does.
    pub fn summary(&self, tool: &str) -> String {
        const CHARS_MAX: usize = 200;
        let text = match self {
            Self::Question { questions } => questions.iter().map(with_options).collect::<Vec<_>>().join("\n"),
            _ => self.text(tool),
        };
        // Nothing is left out without a mark: it is shown next to the command that approves it.
        let line: String = first_line(&text).chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        match line.char_indices().nth(CHARS_MAX) {
            Some((at, _)) => format!("{}… ({} characters)", &line[..at], text.chars().count()),
            None => line,
        }
    }

    /// Returns what the agent wants to do with this tool, as [`Ask::text`] does.
    pub fn text(&self, tool: &str) -> String {
        match self {
            Self::Command { command } => command.clone(),
            Self::Write { path, change } if change.is_empty() => format!("write {path}"),
            Self::Write { path, change } => format!("write {path}\n{change}"),
            Self::Mcp { server, name, arguments } => format!("{server}: {name} {arguments}"),
            Self::Tool { input } => match input.get("command").and_then(serde_json::Value::as_str) {
                Some(command) => format!("{tool}: {command}{}", with(input)),
                None => format!("{tool} {input}"),
            },
            Self::Question { questions } => {
                let texts: Vec<&str> = questions.iter().map(|question| question.text.as_str()).collect();
                texts.join("\n")
            }
        }
    }
}

/// Returns the members of an input beside its command, in parentheses: what makes it more than this command.
fn with(input: &serde_json::Value) -> String {
    let shown = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let members = input.as_object().into_iter().flatten().filter(|(key, value)| *key != "command" && !value.is_null());
    let told: Vec<String> = members.map(|(key, value)| format!("{key}: {}", shown(value))).collect();
    if told.is_empty() { String::new() } else { format!(" ({})", told.join(", ")) }
}

/// Returns a question with the labels from which a person chooses.
fn with_options(question: &Question) -> String {
    if question.options.is_empty() {
        return question.text.clone();
    }
    format!("{} ({})", question.text, question.options.join(" | "))
}

/// Returns the first line of a text, with the number of its lines if there are more.
fn first_line(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    match text.lines().count() {
        0 | 1 => first.to_owned(),
        count => format!("{first} … ({count} lines)"),
    }
}

/// What a person, or a rule, decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "verdict")]
pub enum Verdict {
    Allow {
        /// Input that the tool is used with instead of the agent's. `None` for the agent's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Value>,
    },
    Deny {
        reason: String,
    },
    /// Answers to questions: pairs of the question's id and the answer.
    Answer {
        answers: Vec<(String, String)>,
    },
}

impl Verdict {
    /// Returns the word that events and JSON use.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Allow { .. } => "allow",
            Self::Deny { .. } => "deny",
            Self::Answer { .. } => "answer",
        }
    }

    /// Returns the word for a request with this answer.
    pub fn participle(&self) -> &'static str {
        match self {
            Self::Allow { .. } => "allowed",
            Self::Deny { .. } => "denied",
            Self::Answer { .. } => "answered",
        }
    }
}

/// How an answer came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    Person,
    Rule,
    Timeout,
    /// A person answered in the agent's own dialog.
    Terminal,
}

/// Who answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answerer {
    pub uid: u32,
    pub user: Option<String>,
    pub pid: i32,
    /// Terminal of the answer. `None` if there was none.
    pub tty: Option<String>,
    /// Address from which the person was logged in by ssh. `None` if that is unknown.
    pub from: Option<String>,
    pub via: Via,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AskAnswer {
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Digest of the request that was shown.
    pub digest: String,
    pub by: Answerer,
    pub at_ms: u64,
}

/// Who used an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Identifies the process for which the answer was used, for example the attempt.
    pub by: String,
    pub at_ms: u64,
}

/// Why nobody waits for an answer any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Over {
    pub why: String,
    pub at_ms: u64,
}

/// A request with everything that is recorded about it.
#[derive(Clone, Debug, PartialEq)]
pub struct AskRecord {
    pub ask: Ask,
    pub answer: Option<AskAnswer>,
    pub taken: Option<Taken>,
    pub over: Option<Over>,
}

/// State of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskState {
    /// Waits for an answer.
    Open,
    /// Answered; the agent has not heard the answer yet.
    Answered,
    /// The agent was told the answer, or the process that was to tell it has ended.
    Taken,
    /// Nobody waits any more.
    Over,
}

impl AskState {
    /// Returns the word that listings and JSON use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Answered => "answered",
            Self::Taken => "taken",
            Self::Over => "over",
        }
    }
}

impl AskRecord {
    pub fn state(&self) -> AskState {
        match (&self.over, &self.taken, &self.answer) {
            (Some(_), _, _) => AskState::Over,
            (None, Some(_), _) => AskState::Taken,
            (None, None, Some(_)) => AskState::Answered,
            (None, None, None) => AskState::Open,
        }
    }

    /// Reports whether the agent shows no dialog while its hook waits for the answer, as `codex` does in a window.
    pub fn is_hidden(&self) -> bool {
        self.ask.waits == Waits::Shown && self.ask.who.agent.as_deref() == Some("codex")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_asks_for_more_is_shown_as_a_command_with_what_it_asks() {
        let wish = |input: Value| AskWish::Tool { input };
        let escalated = wish(serde_json::json!({
            "command": "git push", "reason": "May I?", "additionalPermissions": { "network": true }, "cwd": null
        }));
        assert_eq!(
            escalated.text("exec"),
            r#"exec: git push (additionalPermissions: {"network":true}, reason: May I?)"#
        );
        assert_eq!(wish(serde_json::json!({ "command": "ls" })).text("exec"), "exec: ls");
        assert_eq!(wish(serde_json::json!({ "url": "x" })).text("fetch"), r#"fetch {"url":"x"}"#);
    }

    fn asked(wish: AskWish) -> Ask {
        Ask {
            schema: SCHEMA.to_owned(),
            number: 7,
            key: "k".to_owned(),
            who: Asker::default(),
            tool: "Bash".to_owned(),
            wish,
            cwd: "/w".to_owned(),
            waits: Waits::Held,
            digest: "d".to_owned(),
            asked_at_ms: 1,
            expires_at_ms: None,
        }
    }

    #[test]
    fn the_command_that_answers_takes_an_answer_for_each_question() {
        let question = |text: &str, options: &[&str]| Question {
            text: text.to_owned(),
            options: options.iter().map(ToString::to_string).collect(),
            ..Question::default()
        };
        let (which, when) = (question("Which?", &["a", "b"]), question("When?", &[]));
        let one = asked(AskWish::Question { questions: vec![which.clone()] });
        let two = asked(AskWish::Question { questions: vec![which, when] });
        let command = asked(AskWish::Command { command: "make".to_owned() });
        for (ask, command, choices) in [
            (&one, "swarm answer 7 TEXT", "Which? (a | b)"),
            (&two, "swarm answer 7 TEXT TEXT", "Which? (a | b)\nWhen?"),
            (&command, "swarm approve 7", "Bash: make"),
        ] {
            assert_eq!((ask.command(), ask.choices()), (command.to_owned(), choices.to_owned()));
            assert_eq!(ask.needs().answer.as_deref(), Some(command));
        }
    }

    #[test]
    fn what_is_left_out_of_a_line_is_marked() {
        let ask = |command: &str| asked(AskWish::Command { command: command.to_owned() });
        for (command, needs, summary) in [
            ("make", "Bash: make", "make"),
            ("make\nrm -rf x", "Bash: make … (2 lines)", "make … (2 lines)"),
            ("a\u{1b}[2Kb", "Bash: a\u{1b}[2Kb", "a\u{fffd}[2Kb"),
        ] {
            assert_eq!((ask(command).needs().text, ask(command).summary()), (needs.to_owned(), summary.to_owned()));
        }
        let long = ask(&"é".repeat(300)).summary();
        assert_eq!(long, format!("{}… (300 characters)", "é".repeat(200)));
    }
}
