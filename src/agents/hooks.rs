//! Hooks: arguments that make an agent report its activity, and the parser of these reports. Pure functions.
//!
//! `claude` accepts hooks for a single start (`--settings`), in addition to those of the user and the repository. For those
//! of `codex` see `codex_hooks`.

use std::path::Path;

use serde_json::{Value, json};
use swarm_model::json::Members as _;
use swarm_model::{NeedKind, TurnEnd};

use super::{claude, consent, gist, resume, short};

/// Activity that an agent reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// The agent works on something unnamed.
    Working,
    /// The agent starts to use a tool.
    Tool(String),
    /// The agent starts something that is not a tool.
    Doing(String),
    /// The tool use, or whatever else was started, has ended.
    Done(String),
    /// The agent waits for a person to give it this.
    Waits(NeedKind, String),
    /// The agent waits for a person, possibly for what an earlier `Waits` described in more detail.
    StillWaits(String),
    /// The agent's turn is over; it waits for its next task.
    Idle(String),
    /// The agent's turn ended before its work was done, with this cause. It waits for its next task as well.
    Broken(TurnEnd, String),
    /// The conversation has ended, and with it whatever the agent asked. An agent whose turn was over is still idle: if it
    /// ended because its terminal did, nothing is left to be done.
    Over,
}

/// Report of one hook.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heard {
    /// Id of the agent's conversation.
    pub conversation: Option<String>,
    pub word: Option<Word>,
    /// Task list of the agent: a list of `{content, status, activeForm}`.
    pub todos: Option<Value>,
    /// What the agent still waits for, although `word` says that it works on something beside that.
    pub beside: Option<Word>,
}

impl Word {
    /// Returns the report of an agent that asks for the permission to use a tool.
    pub fn of_permission(tool: &str) -> Self {
        Self::Waits(NeedKind::Permission, short(&format!("asks for permission: {tool}")))
    }

    /// Returns the report of an agent that asks the questions in this input of its tool.
    pub fn of_question(input: Option<&Value>) -> Self {
        Self::Waits(NeedKind::Question, claude::question(input))
    }

    /// Reports whether the agent works.
    pub fn is_work(&self) -> bool {
        match self {
            Self::Working | Self::Tool(_) | Self::Doing(_) | Self::Done(_) | Self::Over => true,
            Self::Waits(..) | Self::StillWaits(_) | Self::Idle(_) | Self::Broken(..) => false,
        }
    }
}

/// Requests of an agent in a window, which its hooks record and wait for.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// Name of the worker.
    pub worker: &'a str,
    pub generation: u64,
}

/// Hook events of `claude` that are reported.
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
/// Timeout of a hook in seconds, after which the agent continues.
const SECONDS_MAX: u32 = 10;
const COMPACTING: &str = "compacts its conversation";
/// Text for an agent that waits for its next task.
pub const TURN_OVER: &str = "its turn is over";
/// Tool with which the agent asks a question.
pub const QUESTION: &str = "AskUserQuestion";
/// Hook event of an agent that shows a dialog, or would if it had a terminal.
const ASKS: &str = "PermissionRequest";
const TODOS: &str = "TodoWrite";

/// Returns the command line extended by hooks that run `program`, which records the activity in the directory `records`.
/// With `asking`, the hooks also record the requests of the agent, and the one for its dialogs waits for the answer.
/// `None` for programs without hooks, and if the command line already has `--settings`, because the agent reads only the
/// last of them.
pub fn command(argv: &[String], program: &Path, records: &Path, asking: Option<Asking<'_>>) -> Option<Vec<String>> {
    let (agent, words) = argv.split_first()?;
    if resume::program(argv)? != "claude" || resume::has_option(argv, "--settings")? {
        return None;
    }
    // Without a terminal there is no dialog beside which a hook could wait: the agent denies at once what it may not do.
    let asking = asking.filter(|_| !resume::is_headless(argv));
    let settings = settings(program.to_str()?, records.to_str()?, asking).to_string();
    let ours = [agent.clone(), "--settings".to_owned(), settings];
    Some(ours.into_iter().chain(words.iter().cloned()).collect())
}

fn settings(program: &str, records: &str, asking: Option<Asking<'_>>) -> Value {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    let mut command = format!("{} session hook --records {}", quoted(program), quoted(records));
    if let Some(Asking { worker, generation }) = asking {
        command += &format!(" --asks {}", quoted(&format!("worker/{worker}/{generation}")));
    }
    let hook = |event: &&str| {
        // The hook must never fail, and print nothing but an answer: a missing program is not the agent's failure.
        let (ends, seconds) = match asking {
            Some(_) if *event == ASKS => (" --wait 2>/dev/null || :", consent::SECONDS_MAX),
            _ => (" >/dev/null 2>&1 || :", SECONDS_MAX),
        };
        let hook = json!({ "type": "command", "command": format!("{command}{ends}"), "timeout": seconds });
        ((*event).to_owned(), json!([{ "hooks": [hook] }]))
    };
    let hooks: serde_json::Map<String, Value> = EVENTS.iter().map(hook).collect();
    json!({ "hooks": hooks })
}

/// Parses the input of a hook of `claude` or `codex`. Input that is not understood gives an empty report.
pub fn hear(said: &Value) -> Heard {
    let text = |key: &str| said.text(key).unwrap_or_default();
    let event = text("hook_event_name");
    let (name, input) = (short(text("tool_name")), said.member("tool_input"));
    let tool = || claude::tool(&name, input);
    let word = match event {
        // A conversation that was compacted goes on by itself.
        "SessionStart" if text("source") == "compact" => Word::Working,
        // The turn of a subagent is part of a turn of the agent.
        "Stop" | "StopFailure" if said.member("agent_id").is_some_and(|id| !id.is_null()) => Word::Working,
        "Stop" => Word::Idle(turn_over(text("last_assistant_message"))),
        "SessionStart" => Word::Idle(TURN_OVER.to_owned()),
        "StopFailure" => Word::Broken(TurnEnd::Failed, short(text("last_assistant_message"))),
        "UserPromptSubmit" => Word::Working,
        "SessionEnd" => Word::Over,
        "PreToolUse" => Word::Tool(tool()),
        "PermissionRequest" if name == QUESTION => Word::of_question(input),
        "PermissionRequest" => Word::of_permission(&tool()),
        "PermissionDenied" | "PostToolUse" | "PostToolUseFailure" => Word::Done(tool()),
        "PreCompact" => Word::Doing(COMPACTING.to_owned()),
        "PostCompact" => Word::Done(COMPACTING.to_owned()),
        "Notification" => match notification(text("notification_type"), short(text("message"))) {
            Some(word) => word,
            None => return Heard::default(),
        },
        _ => return Heard::default(),
    };
    // A conversation that ends cannot be resumed, and that of a subagent is not the agent's own.
    let own = event != "SessionEnd" && said.member("agent_id").is_none_or(Value::is_null);
    let conversation = Some(text("session_id")).filter(|id| own && resume::is_id(id)).map(str::to_owned);
    let todos = input.member("todos").filter(|todos| event == "PreToolUse" && name == TODOS && todos.is_array());
    Heard { conversation, word: Some(word), todos: todos.cloned(), beside: None }
}

/// Returns the file in which the agent keeps its conversation, as a hook names it.
pub fn conversation_file(said: &Value) -> Option<&Path> {
    let is_own =
        said.text("hook_event_name") != Some("SessionEnd") && said.member("agent_id").is_none_or(Value::is_null);
    said.text("transcript_path").map(Path::new).filter(|file| is_own && file.is_absolute())
}

/// Returns the text for an agent whose turn ended with this message: the question at its end, or else its gist.
fn turn_over(message: &str) -> String {
    asked(message).unwrap_or_else(|| match gist(message) {
        gist if gist.is_empty() => TURN_OVER.to_owned(),
        gist => format!("{TURN_OVER}: {gist}"),
    })
}

/// Returns the question with which the last message of a turn ends. `None` if it ends otherwise.
fn asked(message: &str) -> Option<String> {
    let last = message.trim_end().lines().next_back()?.trim().trim_matches(['*', '_', '`']);
    last.ends_with('?').then(|| short(&format!("it asks: {last}")))
}

fn notification(kind: &str, message: String) -> Option<Word> {
    let message = if message.is_empty() { "needs attention".to_owned() } else { message };
    match kind {
        "idle_prompt" => Some(Word::Idle(message)),
        // Older versions have no kinds.
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
        command(&words(line), Path::new("/opt/it's/swarm"), Path::new("/s/w/a.1"), None)
    }

    /// Returns the command and the timeout of the hook for an event, of an agent in a window.
    fn in_a_window(line: &str, event: &str) -> (String, u64) {
        let asking = Asking { worker: "a", generation: 1 };
        let argv = command(&words(line), Path::new("/swarm"), Path::new("/s/w/a.1"), Some(asking)).expect("is hooked");
        let settings: Value = serde_json::from_str(&argv[2]).expect("JSON");
        let hook = &settings["hooks"][event][0]["hooks"][0];
        (hook["command"].as_str().expect("a command").to_owned(), hook["timeout"].as_u64().expect("a number"))
    }

    #[test]
    fn only_the_hook_beside_a_dialog_waits() {
        let plain = "'/swarm' session hook --records '/s/w/a.1'";
        let waits = format!("{plain} --asks 'worker/a/1' --wait 2>/dev/null || :");
        assert_eq!(in_a_window("claude go", ASKS), (waits, u64::from(consent::SECONDS_MAX)));
        let tells = format!("{plain} --asks 'worker/a/1' >/dev/null 2>&1 || :");
        for event in EVENTS.iter().filter(|event| **event != ASKS) {
            assert_eq!(in_a_window("claude go", event), (tells.clone(), u64::from(SECONDS_MAX)), "{event}");
        }
        for line in ["claude -p go", "claude go --print"] {
            let headless = format!("{plain} >/dev/null 2>&1 || :");
            assert_eq!(in_a_window(line, ASKS), (headless, u64::from(SECONDS_MAX)), "{line}");
        }
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
            let expected = r"'/opt/it'\''s/swarm' session hook --records '/s/w/a.1' >/dev/null 2>&1 || :";
            assert_eq!(command, expected, "{event}");
        }
        assert_eq!(settings.as_object().map(serde_json::Map::len), Some(1), "nothing else is set");
    }

    #[test]
    fn commands_without_hooks_or_with_settings_are_unchanged() {
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
        assert_eq!(command(&[], Path::new("/swarm"), Path::new("/s"), None), None);
    }

    #[test]
    fn each_hook_reports_one_activity() {
        let touch = json!({ "command": "touch a\nb", "description": "x" });
        let asked = json!({ "questions": [{ "question": "Which?", "options": [{ "label": "a" }, { "label": "b" }] }] });
        let tool = |event: &str, name: &str, input: &Value| json!({ "hook_event_name": event, "session_id": "C-1", "tool_name": name, "tool_input": input });
        let notified = |kind: &str, message: &str| json!({ "hook_event_name": "Notification", "session_id": "C-1", "notification_type": kind, "message": message });
        let plain = |event: &str| json!({ "hook_event_name": event, "session_id": "C-1" });
        let said = |text: &str| text.to_owned();
        for (hook, word) in [
            (plain("SessionStart"), Word::Idle(said(TURN_OVER))),
            (json!({ "hook_event_name": "SessionStart", "session_id": "C-1", "source": "compact" }), Word::Working),
            (plain("UserPromptSubmit"), Word::Working),
            (plain("Stop"), Word::Idle(said(TURN_OVER))),
            (
                json!({ "hook_event_name": "Stop", "session_id": "C-1", "last_assistant_message": "Done.\n\n**Push it?**\n" }),
                Word::Idle(said("it asks: Push it?")),
            ),
            (
                json!({ "hook_event_name": "Stop", "session_id": "C-1", "last_assistant_message": "Push?\nI did." }),
                Word::Idle(said("its turn is over: Push? … I did.")),
            ),
            (plain("StopFailure"), Word::Broken(TurnEnd::Failed, String::new())),
            (
                json!({ "hook_event_name": "StopFailure", "session_id": "C-1", "error": "rate_limit",
                        "last_assistant_message": "API Error: Request rejected (429) · refused with 429" }),
                Word::Broken(TurnEnd::Failed, said("API Error: Request rejected (429) · refused with 429")),
            ),
            (tool("PreToolUse", "Bash", &touch), Word::Tool(said("Bash: touch a … (2 lines)"))),
            (tool("PreToolUse", "mcp__x__y", &json!(null)), Word::Tool(said("mcp__x__y"))),
            (tool("PostToolUse", "Bash", &touch), Word::Done(said("Bash: touch a … (2 lines)"))),
            (tool("PostToolUseFailure", "Bash", &touch), Word::Done(said("Bash: touch a … (2 lines)"))),
            (tool("PermissionDenied", "Bash", &touch), Word::Done(said("Bash: touch a … (2 lines)"))),
            (
                tool("PermissionRequest", "Bash", &touch),
                Word::Waits(NeedKind::Permission, said("asks for permission: Bash: touch a … (2 lines)")),
            ),
            (tool("PermissionRequest", QUESTION, &asked), Word::Waits(NeedKind::Question, said("Which? (a | b)"))),
            (notified("permission_prompt", "it needs you"), Word::StillWaits(said("it needs you"))),
            (notified("elicitation_dialog", ""), Word::StillWaits(said("needs attention"))),
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
    fn other_input_is_ignored() {
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
    fn the_end_of_a_conversation_is_no_work() {
        let heard = hear(&json!({ "hook_event_name": "SessionEnd", "session_id": "C-1", "reason": "other" }));
        assert_eq!(heard, Heard { word: Some(Word::Over), ..Heard::default() });
    }

    #[test]
    fn only_the_agents_own_conversation_is_reported() {
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
    fn the_file_of_the_agents_own_conversation_is_reported() {
        for (hook, file) in [
            (
                json!({ "hook_event_name": "Stop", "transcript_path": "/h/c.jsonl", "agent_id": null }),
                Some("/h/c.jsonl"),
            ),
            (json!({ "hook_event_name": "Stop", "transcript_path": "/h/c.jsonl", "agent_id": "helper" }), None),
            (json!({ "hook_event_name": "SessionEnd", "transcript_path": "/h/c.jsonl" }), None),
            (json!({ "hook_event_name": "Stop", "transcript_path": "c.jsonl" }), None),
            (json!({ "hook_event_name": "Stop", "transcript_path": null }), None),
        ] {
            assert_eq!(conversation_file(&hook), file.map(Path::new), "{hook}");
        }
    }

    #[test]
    fn the_task_list_is_reported() {
        let todos = json!([{ "content": "a", "status": "pending" }]);
        let hook = |event: &str, todos: &Value| json!({ "hook_event_name": event, "tool_name": TODOS, "tool_input": { "todos": todos } });
        assert_eq!(hear(&hook("PreToolUse", &todos)).todos, Some(todos.clone()));
        assert_eq!(hear(&hook("PostToolUse", &todos)).todos, None);
        assert_eq!(hear(&hook("PreToolUse", &json!("none"))).todos, None);
    }

    proptest! {
        #[test]
        fn any_input_stays_short_and_on_one_line(name in ".{0,300}", command in "\\PC{0,400}|(a|\n|\u{1b})*") {
            let hook = json!({ "hook_event_name": "PermissionRequest", "tool_name": name,
                               "tool_input": { "command": command } });
            let Some(Word::Waits(_, what)) = hear(&hook).word else { panic!("it waits") };
            prop_assert!(what.chars().count() <= 201 && !what.contains(char::is_control), "{what:?}");
        }
    }
}
