//! Acts of the page: a closed list, each as the words of a verb. None of them forces, removes, or agrees to what a repository
//! executes. Each act names the generation of the worker that the page showed.

use serde::Deserialize;
use serde_json::Value;

use super::gates::{self, Asked, Reply};
use crate::verbs::Line;

/// Acts that the page may offer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    pub act: bool,
    pub answer: bool,
}

/// Maximum number of keys that are pressed at once.
const KEYS_MAX: usize = 32;

/// Request of the page.
#[derive(Debug, Deserialize)]
pub struct Order {
    /// Worker that was shown; for requests of agents the one that asks. `None` for acts that are about no worker.
    pub name: Option<String>,
    pub generation: Option<u64>,
    #[serde(flatten)]
    pub act: Act,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum Act {
    Send {
        text: String,
    },
    Keys {
        keys: Vec<String>,
    },
    Interrupt,
    Kill,
    Respawn,
    MergeAdd,
    MergeRetry {
        item: String,
    },
    Approve {
        request: String,
    },
    Deny {
        request: String,
        reason: Option<String>,
    },
    Answer {
        request: String,
        answers: Vec<String>,
    },
    /// Answers what a flow asks.
    Flow {
        asked: Asked,
        reply: Reply,
    },
}

/// Row of the board that an act names, as it is now.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    Nothing,
    Item(Item),
    /// Row of a flow.
    Flow(Value),
}

/// Item of a merge queue, by the directory of its repository, its branch and its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub repository: String,
    pub base: String,
    pub number: u64,
}

impl Act {
    pub fn is_allowed(&self, allowed: Allowed) -> bool {
        let is_answer = self.request().is_some() || matches!(self, Self::Flow { .. });
        if is_answer { allowed.answer } else { allowed.act }
    }

    /// Returns the number of the request that this answers.
    pub fn request(&self) -> Option<&str> {
        match self {
            Self::Approve { request } | Self::Deny { request, .. } | Self::Answer { request, .. } => Some(request),
            _ => None,
        }
    }
}

impl Order {
    /// Returns the worker that must be the one that was shown. `None` if the act is about none.
    ///
    /// # Errors
    /// Returns a sentence if it is missing.
    pub fn worker(&self) -> Result<Option<(&str, u64)>, String> {
        // Requests of flows are FLOW/N.
        let is_about_none = matches!(self.act, Act::MergeRetry { .. } | Act::Flow { .. })
            || self.act.request().is_some_and(|request| request.contains('/'));
        match (&self.name, self.generation) {
            _ if is_about_none => Ok(None),
            (Some(name), Some(generation)) => Ok(Some((name, generation))),
            _ => Err("'name' and 'generation' of the worker are missing".to_owned()),
        }
    }

    /// Returns the line with the generation of the worker that was shown, which the verb compares as it acts.
    #[must_use]
    pub fn bound(&self, line: &Line) -> Line {
        let is_bound = self.act.request().is_none() && matches!(self.worker(), Ok(Some(_)));
        let Some(generation) = self.generation.filter(|_| is_bound) else { return line.clone() };
        let mut words = line.0.clone();
        let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
        words.insert(end, format!("--generation={generation}"));
        Line(words)
    }

    /// Returns the words of the verb, and the text for its standard input. `found` is what the act names on the board.
    ///
    /// # Errors
    /// Returns a sentence if something is missing.
    pub fn line(&self, found: &Found) -> Result<(Line, Option<String>), String> {
        let json = |words: &[&str]| Line::new(&[words, &["--json"]].concat());
        let name = || self.name.as_deref().into_iter();
        let line = match &self.act {
            // As an argument, others could see the text in the list of processes.
            Act::Send { text } => return Ok((json(&["send"]).names(name().chain(["-"])), Some(text.clone()))),
            Act::Keys { keys } if keys.is_empty() || keys.len() > KEYS_MAX => {
                return Err(format!("'keys' must have 1 to {KEYS_MAX} keys"));
            }
            Act::Keys { keys } => json(&["keys"]).names(name().chain(keys.iter().map(String::as_str))),
            Act::Interrupt => json(&["interrupt"]).names(name()),
            Act::Kill => json(&["kill"]).names(name()),
            Act::Respawn => json(&["respawn"]).names(name()),
            Act::MergeAdd => json(&["merge", "add"]).names(name()),
            Act::MergeRetry { .. } => {
                let Found::Item(item) = found else { return Err("the item is not in a queue any more".to_owned()) };
                json(&["merge", "retry"]).option("base", Some(&item.base)).names([item.number.to_string().as_str()])
            }
            Act::Flow { asked, reply } => {
                let Found::Flow(flow) = found else { return Err("there is no such flow any more".to_owned()) };
                return gates::line(flow, asked, reply);
            }
            Act::Approve { request } => json(&["approve"]).names([request.as_str()]),
            Act::Deny { request, reason } => {
                json(&["deny"]).option("reason", reason.as_deref()).names([request.as_str()])
            }
            Act::Answer { answers, .. } if answers.is_empty() => return Err("'answers' is empty".to_owned()),
            Act::Answer { request, answers } => {
                json(&["answer"]).names(std::iter::once(request.as_str()).chain(answers.iter().map(String::as_str)))
            }
        };
        Ok((line, None))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::sample::command;

    const ALL: Allowed = Allowed { act: true, answer: true };

    fn order(value: Value) -> Order {
        serde_json::from_value(value).expect("an order")
    }

    fn words(order: &Order) -> (String, Option<String>) {
        let item = Item { repository: "/r".to_owned(), base: "main".to_owned(), number: 3 };
        let (line, input) = order.line(&Found::Item(item)).expect("complete");
        command(&line.0.iter().map(String::as_str).collect::<Vec<_>>());
        (line.0.join(" "), input)
    }

    fn about(name: &str, more: Value) -> Order {
        let mut value = json!({"name": name, "generation": 2});
        value.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        order(value)
    }

    #[test]
    fn each_act_is_a_valid_command_line() {
        for (more, expected) in [
            (json!({"verb": "keys", "keys": ["Escape", "1"]}), "keys --json -- a Escape 1"),
            (json!({"verb": "interrupt"}), "interrupt --json -- a"),
            (json!({"verb": "kill"}), "kill --json -- a"),
            (json!({"verb": "respawn"}), "respawn --json -- a"),
            (json!({"verb": "merge-add"}), "merge add --json -- a"),
            (json!({"verb": "merge-retry", "item": "/r:main/3"}), "merge retry --json --base=main -- 3"),
            (json!({"verb": "approve", "request": "17"}), "approve --json -- 17"),
            (json!({"verb": "deny", "request": "f/2", "reason": "-no"}), "deny --json --reason=-no -- f/2"),
            (json!({"verb": "answer", "request": "17", "answers": ["--x", "y"]}), "answer --json -- 17 --x y"),
        ] {
            let order = about("a", more);
            assert!(order.act.is_allowed(ALL) && !order.act.is_allowed(Allowed::default()));
            assert_eq!(words(&order), (expected.to_owned(), None));
        }
        let sent = words(&about("a", json!({"verb": "send", "text": "--x y"})));
        assert_eq!(sent, ("send --json -- a -".to_owned(), Some("--x y".to_owned())));
    }

    #[test]
    fn acts_on_a_worker_name_its_generation() {
        let keys = json!({"verb": "keys", "keys": ["1"]});
        let send = json!({"verb": "send", "text": "x"});
        let verbs = ["kill", "interrupt", "respawn", "merge-add"].map(|verb| json!({"verb": verb}));
        for more in verbs.into_iter().chain([keys, send]) {
            let order = about("--", more);
            let (line, _) = order.line(&Found::Nothing).expect("complete");
            let bound = order.bound(&line);
            command(&bound.0.iter().map(String::as_str).collect::<Vec<_>>());
            let shown = bound.0.join(" ");
            assert_eq!(shown.replacen("--generation=2 ", "", 1), line.0.join(" "));
            assert!(shown.contains(" --json --generation=2 -- "), "{shown}");
        }
        let approve = about("a", json!({"verb": "approve", "request": "17"}));
        let (line, _) = approve.line(&Found::Nothing).expect("complete");
        assert_eq!(approve.bound(&line), line, "a request has a number of its own");
    }

    #[test]
    fn acts_are_about_a_worker_that_was_shown() {
        for verb in ["kill", "interrupt", "respawn", "merge-add"] {
            assert!(order(json!({"verb": verb, "name": "a"})).worker().is_err(), "{verb}");
            assert!(order(json!({"verb": verb, "generation": 1})).worker().is_err(), "{verb}");
            assert_eq!(about("a", json!({"verb": verb})).worker(), Ok(Some(("a", 2))));
        }
        assert!(order(json!({"verb": "approve", "request": "17"})).worker().is_err());
        assert_eq!(order(json!({"verb": "approve", "request": "f/17"})).worker(), Ok(None));
        assert_eq!(order(json!({"verb": "merge-retry", "item": "x"})).worker(), Ok(None));
    }

    #[test]
    fn answers_are_allowed_by_themselves() {
        let (act, answer) = (Allowed { act: true, answer: false }, Allowed { act: false, answer: true });
        let (kill, approve) =
            (about("a", json!({"verb": "kill"})), about("a", json!({"verb": "approve", "request": "1"})));
        let is_allowed = |order: &Order| (order.act.is_allowed(act), order.act.is_allowed(answer));
        assert_eq!((is_allowed(&kill), is_allowed(&approve)), ((true, false), (false, true)));
        let asked = json!({"flow": "f", "request": null, "node": "n", "role": "r", "reason": "x", "text": "t"});
        let of_flow = order(json!({"verb": "flow", "asked": asked, "reply": "yes"}));
        assert_eq!((is_allowed(&of_flow), of_flow.worker()), ((false, true), Ok(None)));
        assert!(of_flow.line(&Found::Nothing).is_err());
    }

    #[test]
    fn nothing_else_is_an_act_and_no_value_becomes_an_option() {
        for verb in ["clean", "spawn", "trust", "consent", "restore", "supervisor", "rules", "Kill", "merge", ""] {
            let value = json!({"verb": verb, "name": "a", "generation": 1});
            assert!(serde_json::from_value::<Order>(value).is_err(), "{verb}");
        }
        for more in [json!({"verb": "kill"}), json!({"verb": "respawn"}), json!({"verb": "merge-add"})] {
            for hostile in ["--rm-worktree", "--all", "--force-dirty", "--verify=true"] {
                let (line, _) = words(&about(hostile, more.clone()));
                assert!(line.ends_with(&format!(" -- {hostile}")), "{line}");
            }
        }
        assert!(order(json!({"verb": "keys", "keys": []})).line(&Found::Nothing).is_err());
        assert!(order(json!({"verb": "keys", "keys": vec!["a"; 33]})).line(&Found::Nothing).is_err());
        assert!(order(json!({"verb": "answer", "request": "1", "answers": []})).line(&Found::Nothing).is_err());
        assert!(order(json!({"verb": "merge-retry", "item": "x"})).line(&Found::Nothing).is_err());
    }
}
