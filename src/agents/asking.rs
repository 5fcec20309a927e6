//! Requests of `claude` to people while it runs in a window: what its hooks report about them, and what its hook answers.
//! Pure functions.
//!
//! `claude` shows its dialog while the hook for `PermissionRequest` runs, and the first of the two answers counts. A hook
//! that comes too late is ignored; it is ended by SIGTERM only if the turn was interrupted. The reports name a tool use by
//! its tool and its input: a `PermissionRequest` has no id of the tool use.

use serde_json::{Value, json};
use swarm_model::asks::{AskWish, Question, Verdict};
use swarm_model::json::Members as _;

use super::hooks::{QUESTION, Word};
use super::{claude, short};

/// Answer to a request without words of the person.
const DENIED: &str = "denied by a person";
/// Answer if a question was allowed instead of answered.
const NOT_ANSWERED: &str = "a person let you go on without an answer; decide yourself";
/// What `claude` adds to the input of a question after it was answered.
const ADDED: [&str; 2] = ["answers", "annotations"];

/// Tool that executes a command.
const SHELL: &str = "Bash";
/// Members of its input that say nothing about what the command may do.
const SHELL_INPUT: [&str; 4] = ["command", ABOUT, "timeout", "run_in_background"];
/// What `codex` adds to the input of a command while it asks for a permission: why it wants to execute it.
const ABOUT: &str = "description";

/// What a hook reports about requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The agent asks, and shows a dialog.
    Asks,
    /// The use of a tool is over.
    Used,
    /// A text was submitted. claude takes one also while it shows a dialog, and reads it afterwards.
    Prompt,
    /// A turn is over: nothing that was asked before is open.
    Turn,
    /// The conversation is over.
    Ended,
    /// Nothing.
    Other,
}

/// Returns what a hook reports about requests.
pub fn step(said: &Value) -> Step {
    match said.text("hook_event_name").unwrap_or_default() {
        "PermissionRequest" => Step::Asks,
        "PostToolUse" | "PostToolUseFailure" | "PermissionDenied" => Step::Used,
        "UserPromptSubmit" => Step::Prompt,
        "Stop" | "StopFailure" => Step::Turn,
        "SessionEnd" => Step::Ended,
        _ => Step::Other,
    }
}

/// Returns the id of the subagent that a hook speaks for. `None` for the agent itself.
pub fn subagent(said: &Value) -> Option<&str> {
    said.text("agent_id").filter(|id| !id.is_empty())
}

/// Returns the text that is the same in all reports about a tool use with this input.
pub fn matter(said: &Value) -> String {
    let mut input = said.member("tool_input").cloned().unwrap_or_default();
    let tool = said.text("tool_name").unwrap_or_default();
    let varies = match tool {
        QUESTION => &ADDED[..],
        SHELL => &[ABOUT],
        _ => &[],
    };
    if let Some(members) = input.as_object_mut() {
        members.retain(|key, _| !varies.contains(&key.as_str()));
    }
    json!([tool, input]).to_string()
}

/// Returns what a use of this tool of `claude` wants.
pub fn wish(tool: &str, input: &Value) -> AskWish {
    let text = |key: &str| input.text(key).unwrap_or_default().to_owned();
    match tool {
        SHELL if has_only(input, &SHELL_INPUT) => AskWish::Command { command: text("command") },
        // The wish to leave the agent's own sandbox is part of what is asked, and no rule about the command is meant for it.
        SHELL => AskWish::Tool { input: input.clone() },
        "Write" | "Edit" | "MultiEdit" => {
            AskWish::Write { path: text("file_path"), change: change(input, "file_path") }
        }
        "NotebookEdit" => AskWish::Write { path: text("notebook_path"), change: change(input, "notebook_path") },
        QUESTION => AskWish::Question { questions: input.list("questions").iter().map(question).collect() },
        _ => match tool.strip_prefix("mcp__").and_then(|rest| rest.split_once("__")) {
            Some((server, name)) => {
                AskWish::Mcp { server: server.to_owned(), name: name.to_owned(), arguments: input.clone() }
            }
            None => AskWish::Tool { input: input.clone() },
        },
    }
}

/// Reports whether a tool is used with nothing but these members.
fn has_only(input: &Value, keys: &[&str]) -> bool {
    let is_known = |(key, value): (&String, &Value)| keys.contains(&key.as_str()) || *value == Value::Null;
    input.as_object().is_none_or(|members| members.iter().all(is_known))
}

/// Returns what an edit of a file changes: the new content, or the lines that are replaced with the new ones below. Any
/// other input as it is, without the path.
fn change(input: &Value, path: &str) -> String {
    let text = |key: &str| input.text(key).unwrap_or_default();
    if has_only(input, &[path, "content"]) {
        return text("content").to_owned();
    }
    if has_only(input, &[path, "old_string", "new_string", "replace_all"]) {
        let marked = |mark: char, text: &str| text.split('\n').map(|line| format!("{mark}{line}")).collect::<Vec<_>>();
        let lines = [marked('-', text("old_string")), marked('+', text("new_string"))].concat().join("\n");
        let is_everywhere = input.member("replace_all").is_some_and(|value| *value == Value::Bool(true));
        return if is_everywhere { format!("everywhere:\n{lines}") } else { lines };
    }
    let mut rest = input.clone();
    rest.as_object_mut().map(|members| members.remove(path));
    serde_json::to_string_pretty(&rest).unwrap_or_default()
}

fn question(asked: &Value) -> Question {
    let text = asked.text("question").unwrap_or_default().to_owned();
    let labels = asked.list("options").iter().filter_map(|option| option.text("label"));
    Question {
        id: text.clone(),
        options: labels.map(str::to_owned).collect(),
        several: asked.member("multiSelect").and_then(Value::as_bool).unwrap_or(false),
        text,
    }
}

/// Describes a tool use as in the agent's own reports.
pub fn tool(name: &str, wish: &AskWish) -> String {
    match wish {
        AskWish::Command { command } => claude::command(name, command),
        AskWish::Write { path, .. } => short(&format!("{name}: {path}")),
        AskWish::Mcp { arguments: input, .. } | AskWish::Tool { input } => claude::tool(&short(name), Some(input)),
        AskWish::Question { .. } => name.to_owned(),
    }
}

/// Returns the report of an agent that waits for the answer to this request.
pub fn waits(name: &str, wish: &AskWish) -> Word {
    match wish {
        AskWish::Question { questions } => {
            let asked: Vec<Value> = questions.iter().map(shown).collect();
            Word::of_question(Some(&json!({ "questions": asked })))
        }
        _ => Word::of_permission(&tool(name, wish)),
    }
}

fn shown(question: &Question) -> Value {
    let options: Vec<Value> = question.options.iter().map(|label| json!({ "label": label })).collect();
    json!({ "question": question.text, "options": options })
}

/// Returns what the hook for `PermissionRequest` prints. `input` is the input of the tool.
pub fn reply(verdict: &Verdict, wish: &AskWish, input: &Value) -> Value {
    let decision = match decision(verdict, wish, input) {
        Ok(Some(input)) => json!({ "behavior": "allow", "updatedInput": input }),
        Ok(None) => json!({ "behavior": "allow" }),
        Err(why) => json!({ "behavior": "deny", "message": why }),
    };
    json!({ "hookSpecificOutput": { "hookEventName": "PermissionRequest", "decision": decision } })
}

/// Returns what a verdict means for `claude`: the use of the tool, with another input if there is one.
///
/// # Errors
/// Fails with the reason if the tool must not be used.
pub(crate) fn decision(verdict: &Verdict, wish: &AskWish, input: &Value) -> Result<Option<Value>, String> {
    let is_question = matches!(wish, AskWish::Question { .. });
    match verdict {
        Verdict::Allow { input: None } if is_question => Err(NOT_ANSWERED.to_owned()),
        Verdict::Allow { input } => Ok(input.clone()),
        Verdict::Deny { reason } if reason.is_empty() => Err(DENIED.to_owned()),
        Verdict::Deny { reason } => Err(reason.clone()),
        Verdict::Answer { answers } if is_question => Ok(Some(answered(input, answers))),
        // Words in place of a permission.
        Verdict::Answer { answers } => {
            let texts: Vec<&str> = answers.iter().map(|(_, text)| text.as_str()).collect();
            Err(texts.join("\n"))
        }
    }
}

/// Returns the input of a question with its answers. Several answers to one question are divided by commas.
fn answered(input: &Value, answers: &[(String, String)]) -> Value {
    let mut all = serde_json::Map::new();
    for (id, text) in answers {
        let text = match all.get(id).and_then(Value::as_str) {
            Some(before) => format!("{before}, {text}"),
            None => text.clone(),
        };
        all.insert(id.clone(), Value::String(text));
    }
    let mut input = input.as_object().cloned().unwrap_or_default();
    input.insert("answers".to_owned(), Value::Object(all));
    Value::Object(input)
}

#[cfg(test)]
mod tests {
    use swarm_model::NeedKind;

    use super::*;
    use crate::hooks::hear;

    fn hook(event: &str, tool: &str, input: &Value) -> Value {
        json!({ "hook_event_name": event, "session_id": "C-1", "tool_name": tool, "tool_input": input })
    }

    fn asked() -> Value {
        json!({ "questions": [{ "question": "Which?", "header": "Choice", "multiSelect": true,
                                "options": [{ "label": "a" }, { "label": "b" }] }] })
    }

    #[test]
    fn each_event_says_what_became_of_requests() {
        for (event, expected) in [
            ("PermissionRequest", Step::Asks),
            ("PostToolUse", Step::Used),
            ("PostToolUseFailure", Step::Used),
            ("PermissionDenied", Step::Used),
            ("UserPromptSubmit", Step::Prompt),
            ("Stop", Step::Turn),
            ("StopFailure", Step::Turn),
            ("SessionEnd", Step::Ended),
            ("PreToolUse", Step::Other),
            ("Notification", Step::Other),
            ("", Step::Other),
        ] {
            assert_eq!(step(&json!({ "hook_event_name": event })), expected, "{event}");
        }
        assert_eq!(step(&json!(["Stop"])), Step::Other);
        assert_eq!(subagent(&json!({ "agent_id": "helper" })), Some("helper"));
        assert_eq!((subagent(&json!({ "agent_id": null })), subagent(&json!({}))), (None, None));
    }

    #[test]
    fn the_end_of_a_tool_use_names_the_same_matter_as_its_request() {
        let touch = json!({ "command": "touch a" });
        let of = |event: &str, tool: &str, input: &Value| matter(&hook(event, tool, input));
        assert_eq!(of("PermissionRequest", "Bash", &touch), of("PostToolUse", "Bash", &touch));
        assert_ne!(
            of("PermissionRequest", "Bash", &touch),
            of("PostToolUse", "Bash", &json!({ "command": "touch b" }))
        );
        assert_ne!(of("PermissionRequest", "Bash", &touch), of("PostToolUse", "Shell", &touch));
        let mut answered = asked();
        answered["answers"] = json!({ "Which?": "a" });
        answered["annotations"] = json!({});
        assert_eq!(of("PermissionRequest", QUESTION, &asked()), of("PostToolUse", QUESTION, &answered));
        let explained = json!({ "command": "touch a", "description": "may I?" });
        assert_eq!(of("PermissionRequest", SHELL, &explained), of("PostToolUse", SHELL, &touch));
        let answers = json!({ "answers": 1 });
        assert_ne!(
            of("PermissionRequest", "Bash", &answers),
            of("PostToolUse", "Bash", &json!({})),
            "only of questions"
        );
    }

    fn write(path: &str, change: &str) -> AskWish {
        AskWish::Write { path: path.to_owned(), change: change.to_owned() }
    }

    #[test]
    fn a_tool_use_is_a_wish_that_reads_as_its_report() {
        let question = Question {
            id: "Which?".to_owned(),
            text: "Which?".to_owned(),
            options: vec!["a".to_owned(), "b".to_owned()],
            several: true,
        };
        for (name, input, expected) in [
            ("Bash", json!({ "command": "make\nit" }), AskWish::Command { command: "make\nit".to_owned() }),
            ("Write", json!({ "file_path": "/w/a", "content": "x\ny\n" }), write("/w/a", "x\ny\n")),
            (
                "Edit",
                json!({ "file_path": "/w/a", "old_string": "x\ny", "new_string": "z" }),
                write("/w/a", "-x\n-y\n+z"),
            ),
            (
                "Edit",
                json!({ "file_path": "/w/a", "old_string": "x", "new_string": "", "replace_all": true }),
                write("/w/a", "everywhere:\n-x\n+"),
            ),
            ("NotebookEdit", json!({ "notebook_path": "b", "cell": 1 }), write("b", "{\n  \"cell\": 1\n}")),
            (
                "Bash",
                json!({ "command": "make", "dangerouslyDisableSandbox": true }),
                AskWish::Tool { input: json!({ "command": "make", "dangerouslyDisableSandbox": true }) },
            ),
            (
                "mcp__docs__find",
                json!({ "query": "x" }),
                AskWish::Mcp { server: "docs".to_owned(), name: "find".to_owned(), arguments: json!({ "query": "x" }) },
            ),
            ("WebFetch", json!({ "url": "u" }), AskWish::Tool { input: json!({ "url": "u" }) }),
            (QUESTION, asked(), AskWish::Question { questions: vec![question] }),
        ] {
            let wish = wish(name, &input);
            assert_eq!(wish, expected, "{name}");
            if name != "NotebookEdit" {
                let heard = hear(&hook("PermissionRequest", name, &input));
                assert_eq!(Some(waits(name, &wish)), heard.word, "{name}");
            }
        }
        assert!(matches!(waits(QUESTION, &wish(QUESTION, &asked())), Word::Waits(NeedKind::Question, _)));
        assert_eq!(wish("Bash", &json!("odd")), AskWish::Command { command: String::new() });
    }

    #[test]
    fn an_answer_becomes_the_decision_that_claude_expects() {
        let command = AskWish::Command { command: "make".to_owned() };
        let question = wish(QUESTION, &asked());
        let decision = |verdict: &Verdict, wish: &AskWish, input: &Value| {
            let reply = reply(verdict, wish, input);
            assert_eq!(reply["hookSpecificOutput"]["hookEventName"], "PermissionRequest");
            reply["hookSpecificOutput"]["decision"].clone()
        };
        let allow = Verdict::Allow { input: None };
        let deny = |reason: &str| Verdict::Deny { reason: reason.to_owned() };
        let pair = |text: &str| ("Which?".to_owned(), text.to_owned());
        let answer = Verdict::Answer { answers: vec![pair("a"), pair("b")] };
        let input = json!({ "command": "make" });
        assert_eq!(decision(&allow, &command, &input), json!({ "behavior": "allow" }));
        assert_eq!(
            decision(&Verdict::Allow { input: Some(json!({ "command": "make -n" })) }, &command, &input),
            json!({ "behavior": "allow", "updatedInput": { "command": "make -n" } })
        );
        assert_eq!(decision(&deny("no"), &command, &input), json!({ "behavior": "deny", "message": "no" }));
        assert_eq!(decision(&deny(""), &command, &input), json!({ "behavior": "deny", "message": DENIED }));
        assert_eq!(decision(&answer, &command, &input), json!({ "behavior": "deny", "message": "a\nb" }));
        assert_eq!(decision(&allow, &question, &asked()), json!({ "behavior": "deny", "message": NOT_ANSWERED }));
        let mut expected = asked();
        expected["answers"] = json!({ "Which?": "a, b" });
        let told = decision(&answer, &question, &asked());
        assert_eq!(told, json!({ "behavior": "allow", "updatedInput": expected }));
    }
}
