//! The table of tools. The list that a client gets, the check of arguments and the documents follow from it.

use serde_json::{Map, Value, json};

/// Acts that a client may do. Looking is always allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    Look,
    Act,
    Answer,
    /// Acts that may answer, too.
    Both,
}

/// Tiers beyond looking that are allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    pub act: bool,
    pub answer: bool,
}

impl Allowed {
    fn has(self, tier: Tier) -> bool {
        match tier {
            Tier::Look => true,
            Tier::Act => self.act,
            Tier::Answer => self.answer,
            Tier::Both => self.act && self.answer,
        }
    }
}

/// Type of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    /// A list of texts that is not empty.
    Texts,
    Flag,
    /// An integer from 1 to this maximum.
    Whole(u64),
    OneOf(&'static [&'static str]),
}

/// An argument of a tool.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    pub name: &'static str,
    pub kind: Kind,
    pub required: bool,
    pub about: &'static str,
}

/// A tool. Its name is that of the verb that it executes.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    pub name: &'static str,
    pub tier: Tier,
    /// Whether it may end something.
    pub destroys: bool,
    pub about: &'static str,
    pub params: &'static [Param],
}

const fn must(name: &'static str, kind: Kind, about: &'static str) -> Param {
    Param { name, kind, required: true, about }
}

const fn may(name: &'static str, kind: Kind, about: &'static str) -> Param {
    Param { name, kind, required: false, about }
}

const fn look(name: &'static str, about: &'static str, params: &'static [Param]) -> Tool {
    Tool { name, tier: Tier::Look, destroys: false, about, params }
}

const fn act(name: &'static str, about: &'static str, params: &'static [Param]) -> Tool {
    Tool { name, tier: Tier::Act, destroys: false, about, params }
}

const fn answer(name: &'static str, about: &'static str, params: &'static [Param]) -> Tool {
    Tool { name, tier: Tier::Answer, destroys: false, about, params }
}

/// Longest wait, in seconds.
pub const WAIT_MAX: u64 = 600;

const NAME: Param = must("name", Kind::Text, "");
const CURSOR: Param = may("cursor", Kind::Text, "");

pub const TOOLS: [Tool; 20] = [
    look(
        "ls",
        "List workers, those that need someone first",
        &[
            may("state", Kind::OneOf(&["needs", "running", "failed", "stopped"]), ""),
            may("tag", Kind::Text, ""),
            CURSOR,
        ],
    ),
    look("explain", "Why a worker is in its state, with evidence, last output and events", &[NAME]),
    look(
        "logs",
        "Last output of a worker; cursor: older lines",
        &[NAME, may("lines", Kind::Whole(2_000), "default 100"), CURSOR],
    ),
    look(
        "diff",
        "Changes of a worker: files and patch; cursor: more of the patch",
        &[NAME, may("path", Kind::Text, "only this file"), CURSOR],
    ),
    look("merge_ls", "Merge queues and what landed", &[may("all", Kind::Flag, "also settled items")]),
    look("run_status", "Workstreams of a run", &[may("home", Kind::Text, "default .arial")]),
    look("approvals", "What agents ask of people", &[may("id", Kind::Text, "one request in full")]),
    look(
        "events",
        "What happened, newest last; cursor: older",
        &[may("name", Kind::Text, ""), may("since", Kind::Text, "10m, 12:30"), CURSOR],
    ),
    look(
        "wait",
        "Wait until workers have ended or need someone, or (for: landed) until their work is settled in the merge \
         queue. If done is false, call again",
        &[
            must("names", Kind::Texts, ""),
            may("any", Kind::Flag, "the first is enough"),
            may("for", Kind::OneOf(&["ended", "landed"]), ""),
            may("seconds", Kind::Whole(WAIT_MAX), "default 45"),
        ],
    ),
    act(
        "spawn",
        "Start a worker",
        &[
            NAME,
            must("command", Kind::Texts, "program and arguments, no shell"),
            may("worktree", Kind::Flag, "own git worktree and branch"),
            may("base", Kind::Text, "commit or branch it starts from"),
            may("cwd", Kind::Text, ""),
            may("tmux", Kind::Flag, "in a terminal, for interactive agents"),
            may("ready_wait", Kind::Flag, "until its prompt is ready"),
            may("merge", Kind::Flag, "land if it succeeds"),
            may("timeout", Kind::Text, "such as 30m"),
            may("tags", Kind::Texts, ""),
        ],
    ),
    act(
        "send",
        "Type a line into a tmux worker",
        &[NAME, must("text", Kind::Text, ""), may("no_enter", Kind::Flag, "")],
    ),
    Tool {
        name: "kill",
        tier: Tier::Act,
        destroys: true,
        about: "Stop workers; worktrees stay",
        params: &[must("names", Kind::Texts, "")],
    },
    act("respawn", "Start a stopped worker again", &[NAME]),
    act(
        "merge_add",
        "Queue work of workers or branches to land",
        &[must("names", Kind::Texts, ""), may("base", Kind::Text, "branch to land on")],
    ),
    act("merge_retry", "Queue rejected work again", &[must("items", Kind::Texts, "numbers or names")]),
    act("run", "Start or continue a run", &[may("file", Kind::Text, ""), may("no_merge", Kind::Flag, "")]),
    answer("approve", "Allow requests", &[must("ids", Kind::Texts, "")]),
    answer("deny", "Deny requests", &[must("ids", Kind::Texts, ""), may("reason", Kind::Text, "told to the agent")]),
    answer(
        "answer",
        "Answer questions of a request",
        &[must("id", Kind::Text, ""), must("answers", Kind::Texts, "one each: text, label or number")],
    ),
    Tool {
        name: "keys",
        tier: Tier::Both,
        destroys: false,
        about: "Press keys in a tmux worker",
        params: &[NAME, must("keys", Kind::Texts, "")],
    },
];

/// Returns the tools that are allowed.
pub fn allowed(allowed: Allowed) -> impl Iterator<Item = &'static Tool> {
    TOOLS.iter().filter(move |tool| allowed.has(tool.tier))
}

/// Finds a tool.
///
/// # Errors
/// Returns a sentence if there is no such tool, or if it is not allowed.
pub fn find(name: &str, granted: Allowed) -> Result<&'static Tool, String> {
    let Some(tool) = TOOLS.iter().find(|tool| tool.name == name) else {
        let names: Vec<&str> = allowed(granted).map(|tool| tool.name).collect();
        return Err(format!("unknown tool '{name}'; there are {}", names.join(", ")));
    };
    if granted.has(tool.tier) {
        return Ok(tool);
    }
    let tier = match tool.tier {
        Tier::Look | Tier::Act => "act",
        Tier::Answer => "answer",
        Tier::Both => "act,answer",
    };
    Err(format!("'{name}' is not allowed: a person has to start this server as 'swarm mcp --allow {tier}'"))
}

impl Tool {
    /// Returns the JSON Schema of the arguments.
    pub fn schema(&self) -> Map<String, Value> {
        let properties: Map<String, Value> =
            self.params.iter().map(|param| (param.name.to_owned(), param.schema())).collect();
        let required: Vec<&str> = self.params.iter().filter(|param| param.required).map(|param| param.name).collect();
        let mut schema = Map::new();
        schema.insert("type".to_owned(), json!("object"));
        schema.insert("properties".to_owned(), properties.into());
        if !required.is_empty() {
            schema.insert("required".to_owned(), json!(required));
        }
        schema
    }

    /// Checks the arguments of a call.
    ///
    /// # Errors
    /// Returns a sentence about the first argument that is unknown, missing or of another type.
    pub fn check(&self, arguments: &Map<String, Value>) -> Result<(), String> {
        let of = self.name;
        if let Some(name) = arguments.keys().find(|name| !self.params.iter().any(|param| param.name == *name)) {
            let names: Vec<&str> = self.params.iter().map(|param| param.name).collect();
            return Err(format!("'{of}' has no argument '{}'; it takes {}", shown(name), names.join(", ")));
        }
        for param in self.params {
            match arguments.get(param.name) {
                None | Some(Value::Null) if param.required => return Err(format!("'{of}' needs '{}'", param.name)),
                None | Some(Value::Null) => {}
                Some(value) => {
                    param.kind.check(value).map_err(|wanted| format!("'{}' of '{of}' must be {wanted}", param.name))?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the beginning of a text, for a message.
fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

impl Param {
    fn schema(&self) -> Value {
        let mut schema = match self.kind {
            Kind::Text => json!({"type": "string"}),
            Kind::Texts => json!({"type": "array", "items": {"type": "string"}}),
            Kind::Flag => json!({"type": "boolean"}),
            Kind::Whole(max) => json!({"type": "integer", "maximum": max}),
            Kind::OneOf(words) => json!({"type": "string", "enum": words}),
        };
        if let Some(members) = schema.as_object_mut().filter(|_| !self.about.is_empty()) {
            members.insert("description".to_owned(), json!(self.about));
        }
        schema
    }
}

impl Kind {
    /// Checks a value; fails with what it must be.
    fn check(self, value: &Value) -> Result<(), String> {
        let clean = |text: &Value| text.as_str().is_some_and(|text| !text.contains('\0'));
        let filled = |text: &Value| clean(text) && text.as_str().is_some_and(|text| !text.is_empty());
        let (is_right, wanted) = match self {
            Self::Text => (filled(value), "a text that is not empty, without NUL".to_owned()),
            Self::Texts => {
                let list = value.as_array();
                let is_right = list.is_some_and(|list| list.first().is_some_and(filled) && list.iter().all(clean));
                (is_right, "a list of texts that is not empty, without NUL".to_owned())
            }
            Self::Flag => (value.is_boolean(), "true or false".to_owned()),
            Self::Whole(max) => {
                let is_right = value.as_u64().is_some_and(|number| (1..=max).contains(&number));
                (is_right, format!("an integer from 1 to {max}"))
            }
            Self::OneOf(words) => {
                (value.as_str().is_some_and(|text| words.contains(&text)), format!("one of {}", words.join(", ")))
            }
        };
        if is_right { Ok(()) } else { Err(wanted) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const ALL: Allowed = Allowed { act: true, answer: true };

    #[test]
    fn looking_is_the_default_and_each_tier_adds_its_tools() {
        let names = |granted| allowed(granted).map(|tool| tool.name).collect::<Vec<_>>().join(" ");
        let looks = "ls explain logs diff merge_ls run_status approvals events wait";
        let acts = "spawn send kill respawn merge_add merge_retry run";
        let answers = "approve deny answer";
        assert_eq!(names(Allowed::default()), looks);
        assert_eq!(names(Allowed { act: true, answer: false }), format!("{looks} {acts}"));
        assert_eq!(names(Allowed { act: false, answer: true }), format!("{looks} {answers}"));
        assert_eq!(names(ALL), format!("{looks} {acts} {answers} keys"));
        let unique: BTreeSet<&str> = TOOLS.iter().map(|tool| tool.name).collect();
        assert_eq!(unique.len(), TOOLS.len());
    }

    #[test]
    fn a_tool_that_is_not_allowed_says_who_can_allow_it() {
        let refused = find("kill", Allowed::default()).expect_err("not allowed");
        assert_eq!(refused, "'kill' is not allowed: a person has to start this server as 'swarm mcp --allow act'");
        let refused = find("approve", Allowed { act: true, answer: false }).expect_err("not allowed");
        assert!(refused.ends_with("--allow answer'"), "{refused}");
        // A key may be an answer.
        for granted in [Allowed { act: true, answer: false }, Allowed { act: false, answer: true }] {
            let refused = find("keys", granted).expect_err("not allowed");
            assert!(refused.ends_with("--allow act,answer'"), "{refused}");
        }
        for never in ["clean", "restore", "trust", "merge_drop", "supervisor", "config"] {
            assert!(find(never, ALL).expect_err("none").starts_with("unknown tool"), "{never}");
        }
    }

    #[test]
    fn a_wrong_argument_is_one_sentence() {
        let said = |tool: &str, arguments: Value| {
            let arguments = arguments.as_object().expect("an object").clone();
            find(tool, ALL).expect("a tool").check(&arguments).expect_err("wrong")
        };
        for (tool, arguments, expected) in [
            ("ls", json!({"nmae": "x"}), "'ls' has no argument 'nmae'; it takes state, tag, cursor"),
            ("ls", json!({"state": "odd"}), "'state' of 'ls' must be one of needs, running, failed, stopped"),
            ("logs", json!({}), "'logs' needs 'name'"),
            ("logs", json!({"name": null}), "'logs' needs 'name'"),
            ("logs", json!({"name": ["x"]}), "'name' of 'logs' must be a text that is not empty, without NUL"),
            ("logs", json!({"name": "a\0b"}), "'name' of 'logs' must be a text that is not empty, without NUL"),
            ("logs", json!({"name": "x", "lines": 0}), "'lines' of 'logs' must be an integer from 1 to 2000"),
            ("logs", json!({"name": "x", "lines": 1.5}), "'lines' of 'logs' must be an integer from 1 to 2000"),
            ("wait", json!({"names": "x"}), "'names' of 'wait' must be a list of texts that is not empty, without NUL"),
            ("wait", json!({"names": []}), "'names' of 'wait' must be a list of texts that is not empty, without NUL"),
            ("wait", json!({"names": ["x"], "any": "yes"}), "'any' of 'wait' must be true or false"),
        ] {
            assert_eq!(said(tool, arguments), expected);
        }
        let right = json!({"name": "x", "command": ["sh", "-c", ""], "cwd": null});
        find("spawn", ALL).expect("a tool").check(right.as_object().expect("an object")).expect("right");
    }
}
