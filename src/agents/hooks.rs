//! Hooks: how an agent is made to say what it is at, and what it says then. Pure.
//!
//! Of the agents that are known only `claude` can be given hooks for one start alone
//! (`--settings`), beside those that its user and the repository have. `codex` asks a
//! person to trust each hook first, and its `notify` would take the place of the user's
//! own; what it says is understood where a person has put our command among its hooks.

use std::path::Path;

use serde_json::{Value, json};

use super::{claude, resume, short};

/// What an agent says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// It is at work, and at nothing that has a name.
    Working,
    /// It begins to use a tool.
    Tool(String),
    /// It begins something that is no tool.
    Doing(String),
    /// That tool is done with.
    Done(String),
    /// It waits for a person.
    Waits(String),
    /// It still does, for what it may have said before in more words.
    StillWaits(String),
    /// It has done what it was told, and waits for what is next.
    Idle(String),
}

/// What one hook tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heard {
    /// The conversation that it is in.
    pub conversation: Option<String>,
    pub word: Option<Word>,
    /// What it means to do: a list of `{content, status, activeForm}`.
    pub todos: Option<Value>,
}

/// What `claude` is to tell of.
const EVENTS: [&str; 12] = [
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PermissionRequest",
    "PermissionDenied",
    "PostToolUse",
    "PostToolUseFailure",
    "Notification",
    "PreCompact",
    "Stop",
    "StopFailure",
    "SessionEnd",
];
/// After so many seconds the agent goes on without an answer.
const SECONDS_MAX: u32 = 10;
const COMPACTING: &str = "compacts its conversation";
/// What a question is asked with.
const QUESTION: &str = "AskUserQuestion";
const TODOS: &str = "TodoWrite";

/// The same command line with hooks that run `program`. None for programs that take none,
/// and where the user has given settings: of two, the agent would read the last only.
pub fn command(argv: &[String], program: &Path) -> Option<Vec<String>> {
    let (agent, words) = argv.split_first()?;
    if resume::program(argv)? != "claude" || resume::has_option(argv, "--settings")? {
        return None;
    }
    let settings = settings(program.to_str()?).to_string();
    let ours = [agent.clone(), "--settings".to_owned(), settings];
    Some(ours.into_iter().chain(words.iter().cloned()).collect())
}

fn settings(program: &str) -> Value {
    // Whatever comes of it, the agent hears nothing: a program that is gone by now is no
    // failure of the agent's, and what is printed would be taken for an answer.
    let command = format!("'{}' session hook >/dev/null 2>&1 || :", program.replace('\'', r"'\''"));
    let hook = json!([{ "hooks": [{ "type": "command", "command": command, "timeout": SECONDS_MAX }] }]);
    let hooks: serde_json::Map<String, Value> =
        EVENTS.iter().map(|event| ((*event).to_owned(), hook.clone())).collect();
    json!({ "hooks": hooks })
}

/// What a hook of `claude` or `codex` was given, which may be anything.
pub fn hear(said: &Value) -> Heard {
    let text = |key: &str| said[key].as_str().unwrap_or_default();
    let event = text("hook_event_name");
    let (name, input) = (short(text("tool_name")), &said["tool_input"]);
    let tool = || claude::tool(&name, input);
    let word = match event {
        "SessionStart" | "UserPromptSubmit" | "Stop" | "StopFailure" | "SessionEnd" => Word::Working,
        "PreToolUse" => Word::Tool(tool()),
        "PermissionRequest" if name == QUESTION => Word::Waits(claude::question(input)),
        "PermissionRequest" => Word::Waits(short(&format!("it asks for a permission: {}", tool()))),
        "PermissionDenied" | "PostToolUse" | "PostToolUseFailure" => Word::Done(tool()),
        "PreCompact" => Word::Doing(COMPACTING.to_owned()),
        "PostCompact" => Word::Done(COMPACTING.to_owned()),
        "Notification" => match notification(text("notification_type"), short(text("message"))) {
            Some(word) => word,
            None => return Heard::default(),
        },
        _ => return Heard::default(),
    };
    // One that ends is not gone on with, and a helper's is not its own.
    let own = event != "SessionEnd" && said["agent_id"].is_null();
    let conversation = Some(text("session_id")).filter(|id| own && resume::is_id(id)).map(str::to_owned);
    let todos = Some(&input["todos"]).filter(|todos| event == "PreToolUse" && name == TODOS && todos.is_array());
    Heard { conversation, word: Some(word), todos: todos.cloned() }
}

fn notification(kind: &str, message: String) -> Option<Word> {
    let message = if message.is_empty() { "it waits for somebody".to_owned() } else { message };
    match kind {
        "idle_prompt" => Some(Word::Idle(message)),
        // Those before there were kinds.
        "" if message.ends_with("waiting for your input") => Some(Word::Idle(message)),
        "" | "permission_prompt" | "elicitation_dialog" | "agent_needs_input" => Some(Word::StillWaits(message)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn hooked(line: &str) -> Option<Vec<String>> {
        command(&words(line), Path::new("/opt/it's/swarm"))
    }

    #[test]
    fn a_command_line_gets_our_settings_before_its_own_words() {
        let argv = hooked("/bin/claude -p go --allowedTools Bash").expect("is hooked");
        assert_eq!(
            (&argv[..2], &argv[3..]),
            (&words("/bin/claude --settings")[..], &words("-p go --allowedTools Bash")[..])
        );
        let settings: Value = serde_json::from_str(&argv[2]).expect("JSON");
        let hooks = settings["hooks"].as_object().expect("an object");
        assert_eq!(hooks.len(), EVENTS.len());
        for (event, hook) in hooks {
            let command = hook[0]["hooks"][0]["command"].as_str().expect("a command");
            assert_eq!(command, r"'/opt/it'\''s/swarm' session hook >/dev/null 2>&1 || :", "{event}");
        }
        assert_eq!(settings.as_object().map(serde_json::Map::len), Some(1), "nothing else is set");
    }

    #[test]
    fn who_takes_no_hooks_or_has_settings_stays_as_it_is() {
        for line in [
            "make claude",
            "sh -c claude",
            "codex exec x",
            "amp",
            "claude mcp list",
            "claude logs 7",
            "claude --settings mine.json go",
            "claude -p go --settings={}",
        ] {
            assert_eq!(hooked(line), None, "{line}");
        }
        assert!(hooked("claude -- --settings").is_some(), "that is a prompt");
        assert_eq!(command(&[], Path::new("/swarm")), None);
    }

    #[test]
    fn each_hook_says_one_thing() {
        let touch = json!({ "command": "touch a\nb", "description": "x" });
        let asked = json!({ "questions": [{ "question": "Which?", "options": [{ "label": "a" }, { "label": "b" }] }] });
        let tool = |event: &str, name: &str, input: &Value| json!({ "hook_event_name": event, "session_id": "C-1", "tool_name": name, "tool_input": input });
        let notified = |kind: &str, message: &str| json!({ "hook_event_name": "Notification", "session_id": "C-1", "notification_type": kind, "message": message });
        let plain = |event: &str| json!({ "hook_event_name": event, "session_id": "C-1" });
        let said = |text: &str| text.to_owned();
        for (hook, word) in [
            (plain("SessionStart"), Word::Working),
            (plain("UserPromptSubmit"), Word::Working),
            (plain("Stop"), Word::Working),
            (plain("StopFailure"), Word::Working),
            (tool("PreToolUse", "Bash", &touch), Word::Tool(said("Bash: touch a"))),
            (tool("PreToolUse", "mcp__x__y", &json!(null)), Word::Tool(said("mcp__x__y"))),
            (tool("PostToolUse", "Bash", &touch), Word::Done(said("Bash: touch a"))),
            (tool("PostToolUseFailure", "Bash", &touch), Word::Done(said("Bash: touch a"))),
            (tool("PermissionDenied", "Bash", &touch), Word::Done(said("Bash: touch a"))),
            (tool("PermissionRequest", "Bash", &touch), Word::Waits(said("it asks for a permission: Bash: touch a"))),
            (tool("PermissionRequest", QUESTION, &asked), Word::Waits(said("Which? (a | b)"))),
            (notified("permission_prompt", "it needs you"), Word::StillWaits(said("it needs you"))),
            (notified("elicitation_dialog", ""), Word::StillWaits(said("it waits for somebody"))),
            (notified("", "Claude is waiting for your input"), Word::Idle(said("Claude is waiting for your input"))),
            (notified("idle_prompt", "done"), Word::Idle(said("done"))),
            (plain("PreCompact"), Word::Doing(said(COMPACTING))),
            (plain("PostCompact"), Word::Done(said(COMPACTING))),
        ] {
            let heard = hear(&hook);
            assert_eq!((heard.word, heard.conversation.as_deref()), (Some(word), Some("C-1")), "{hook}");
        }
    }

    #[test]
    fn what_is_not_meant_for_us_says_nothing() {
        for hook in [
            json!({ "hook_event_name": "Notification", "session_id": "C-1", "notification_type": "auth_success" }),
            json!({ "hook_event_name": "SubagentStop", "session_id": "C-1" }),
            json!({ "type": "agent-turn-complete", "thread-id": "C-1" }),
            json!({ "hook_event_name": ["Stop"] }),
            json!("Stop"),
            json!(null),
        ] {
            assert_eq!(hear(&hook), Heard::default(), "{hook}");
        }
    }

    #[test]
    fn only_its_own_conversation_is_gone_on_with() {
        for (event, id, agent, known) in [
            ("SessionStart", "C-1", json!(null), true),
            ("SessionEnd", "C-1", json!(null), false),
            ("PreToolUse", "C-1", json!("helper"), false),
            ("Stop", "--settings", json!(null), false),
            ("Stop", "", json!(null), false),
        ] {
            let heard = hear(&json!({ "hook_event_name": event, "session_id": id, "agent_id": agent }));
            assert_eq!(heard.conversation.is_some(), known, "{event} {id}");
        }
    }

    #[test]
    fn its_list_of_what_is_to_do_is_heard() {
        let todos = json!([{ "content": "a", "status": "pending" }]);
        let hook = |event: &str, todos: &Value| json!({ "hook_event_name": event, "tool_name": TODOS, "tool_input": { "todos": todos } });
        assert_eq!(hear(&hook("PreToolUse", &todos)).todos, Some(todos.clone()));
        assert_eq!(hear(&hook("PostToolUse", &todos)).todos, None);
        assert_eq!(hear(&hook("PreToolUse", &json!("none"))).todos, None);
    }

    proptest! {
        #[test]
        fn whatever_is_said_stays_short_and_on_one_line(name in ".{0,300}", command in "\\PC{0,400}|(a|\n|\u{1b})*") {
            let hook = json!({ "hook_event_name": "PermissionRequest", "tool_name": name,
                               "tool_input": { "command": command } });
            let Some(Word::Waits(what)) = hear(&hook).word else { panic!("it waits") };
            prop_assert!(what.chars().count() <= 201 && !what.contains(char::is_control), "{what:?}");
        }
    }
}
