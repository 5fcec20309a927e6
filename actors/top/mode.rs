//! Target of keys at the moment: the list, or a dialog in front of it.

use super::edit::Edit;
use super::row::{Answer, Id};

/// Most workers that a question names and one key answers. For more, their number must be typed.
const BY_KEY_MAX: usize = 5;

/// A worker as it was shown: another one under its name is not meant.
pub type Target = (Id, Option<u64>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    List,
    /// The table of keys, from this line on.
    Help(usize),
    /// The filter is being typed, and holds at once; with the earlier one.
    Filter(String),
    Type(Typing, Edit),
    Ask(Question),
    /// A request is shown in full, and answered.
    Answer(Request),
}

/// Use of a line that is typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Typing {
    /// For the windows of these workers.
    Line(Vec<Target>),
    /// Keys for the window of this worker.
    Keys(Target),
    /// For the agent of this workstream.
    Context(Target),
    /// Words of a verb.
    Command,
}

/// A verb about a run or a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Question before it, without its keys.
    pub question: String,
    pub words: Vec<String>,
    /// Directory in which it runs, if not the present one.
    pub dir: Option<String>,
}

/// A question before something is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Verb of `swarm`.
    pub verb: &'static str,
    pub targets: Vec<Target>,
    /// Action that replaces the verb, if it is not about workers.
    pub planned: Option<Planned>,
    /// Number that is typed, if it must be.
    pub number: Edit,
}

impl Question {
    pub fn needs_number(&self) -> bool {
        self.targets.len() > BY_KEY_MAX
    }

    /// Returns the question.
    pub fn text(&self) -> String {
        if let Some(planned) = &self.planned {
            return format!("{} y n", planned.question);
        }
        let word = if self.verb == "kill" { "stop" } else { self.verb };
        if self.needs_number() {
            let count = self.targets.len();
            return format!("{word} {count} workers? type {count}, then enter: {}", self.number.text());
        }
        let names: Vec<&str> = self.targets.iter().map(|(id, _)| id.name.as_str()).collect();
        format!("{word} {}? y n", names.join(", "))
    }
}

/// A request that is being answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub id: Id,
    /// Name of the worker that asks.
    pub worker: String,
    pub answer: Answer,
    /// Summary of the question: another question may have the same name.
    pub asks: String,
    /// Whether all of it has been shown. It is not answered before.
    pub is_shown: bool,
    /// Answer to a question.
    pub edit: Edit,
}
