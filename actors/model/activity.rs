//! Activity of a running agent: working, idle, or waiting for a person. All listings show the same one.

use serde::{Deserialize, Serialize};

/// Whether a running agent works, has finished its turn, or cannot go on without a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Doing {
    Working,
    /// The agent's turn is over; it waits for its next task.
    Idle,
    /// The agent waits for a person.
    Waiting,
}

impl Doing {
    /// Returns the word that listings and JSON use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Idle => "idle",
            Self::Waiting => "waiting",
        }
    }
}

/// How a turn of an agent ended before its work was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TurnEnd {
    /// With an error, for example of the agent's provider.
    Failed,
    /// By a person, in the agent's window.
    Interrupted,
}

impl TurnEnd {
    /// Returns the word that JSON uses.
    pub fn word(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
        }
    }

    /// Returns the words for an agent whose last turn ended so.
    pub fn words(self) -> &'static str {
        match self {
            Self::Failed => "its last turn failed",
            Self::Interrupted => "its turn was interrupted",
        }
    }

    /// Returns the words of [`TurnEnd::words`] with the cause, if there is one.
    pub fn told(self, cause: &str) -> String {
        if cause.is_empty() { self.words().to_owned() } else { format!("{}: {cause}", self.words()) }
    }

    /// Returns the end of a turn from a text that begins with its words.
    pub fn of_text(text: &str) -> Option<Self> {
        [Self::Failed, Self::Interrupted].into_iter().find(|end| text.starts_with(end.words()))
    }
}

/// Kind of what an agent needs from a person.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NeedKind {
    /// The permission to do something.
    Permission,
    /// The answer to a question.
    Question,
    /// A login at its provider.
    Login,
    /// Trust in the directory in which it runs.
    Trust,
    /// Something else, for example a choice in a menu.
    #[default]
    #[serde(other)]
    Input,
}

impl NeedKind {
    /// Returns the word that listings and JSON use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Permission => "permission",
            Self::Question => "question",
            Self::Login => "login",
            Self::Trust => "trust",
            Self::Input => "input",
        }
    }
}

/// Activity of a running agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    pub doing: Doing,
    /// What it works on, or what it waits for. `None` if that is unknown.
    pub what: Option<String>,
    /// When this began, in Unix milliseconds.
    pub since_ms: u64,
    /// What it waits for. `None` unless it waits.
    pub kind: Option<NeedKind>,
    /// How its last turn ended. `None` unless it is idle, and if the turn ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnEnd>,
}

impl Activity {
    /// Returns what the agent of the worker `name` needs from a person, and how a person gives it. `window` tells whether
    /// the agent runs in a window. `None` if it needs nothing.
    pub fn needs(&self, name: &str, window: bool) -> Option<Needs> {
        let kind = self.kind.filter(|_| self.doing == Doing::Waiting)?;
        Some(Needs {
            kind,
            text: self.what.clone().unwrap_or_else(|| "a person".to_owned()),
            since_ms: self.since_ms,
            answer: window.then(|| format!("swarm attach {name}")),
        })
    }
}

/// Request of an agent to a person. The agent continues after the person has answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    pub kind: NeedKind,
    pub text: String,
    /// Since when it waits, in Unix milliseconds.
    pub since_ms: u64,
    /// Command with which a person answers. `None` if there is none.
    pub answer: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_agent_that_waits_needs_something() {
        let activity =
            |doing, kind| Activity { doing, what: Some("may it push?".to_owned()), since_ms: 7, kind, turn: None };
        for doing in [Doing::Working, Doing::Idle] {
            assert_eq!(activity(doing, Some(NeedKind::Question)).needs("fix", true), None, "{doing:?}");
        }
        let needs = activity(Doing::Waiting, Some(NeedKind::Permission)).needs("fix", true).expect("it waits");
        assert_eq!((needs.kind, needs.since_ms), (NeedKind::Permission, 7));
        assert_eq!((needs.text.as_str(), needs.answer.as_deref()), ("may it push?", Some("swarm attach fix")));
        assert_eq!(activity(Doing::Waiting, Some(NeedKind::Login)).needs("fix", false).expect("it waits").answer, None);
    }

    #[test]
    fn the_end_of_a_turn_is_known_by_its_words() {
        for end in [TurnEnd::Failed, TurnEnd::Interrupted] {
            assert_eq!(TurnEnd::of_text(&end.told("API Error")), Some(end));
            assert_eq!(end.told(""), end.words());
        }
        assert_eq!(TurnEnd::of_text("its turn is over"), None);
    }

    #[test]
    fn kinds_of_newer_versions_are_read() {
        let kind: NeedKind = serde_json::from_str("\"budget\"").expect("read");
        assert_eq!(kind, NeedKind::Input);
    }
}
