//! Uses of tools by `claude` in a run: what its hook for `PreToolUse` reports before each, and what the hook answers. Pure
//! functions.
//!
//! A use that the hook defers ends the process of `claude`. The conversation is continued without a prompt later; `claude`
//! then calls the hook for the same use again, and continues with its answer.

use serde_json::{Map, Value, json};
use swarm_model::asks::{AskWish, Verdict};
use swarm_model::json::Members as _;

use super::asking::{self, wish};
use super::dialogue::Request;

/// Tools of `claude` that neither write nor execute, or do so only through other tools that need permission.
const HARMLESS: [&str; 20] = [
    "Agent",
    "AskUserQuestion",
    "BashOutput",
    "EnterPlanMode",
    "ExitPlanMode",
    "Glob",
    "Grep",
    "KillBash",
    "KillShell",
    "LS",
    "ListMcpResourcesTool",
    "NotebookRead",
    "Read",
    "ReadMcpResourceTool",
    "Skill",
    "SlashCommand",
    "Task",
    "TaskOutput",
    "TodoWrite",
    "ToolSearch",
];
/// Tools of `claude` that only read, but from elsewhere.
const READS_ELSEWHERE: [&str; 2] = ["WebFetch", "WebSearch"];

/// Reports whether a tool of `claude` neither writes nor executes by itself. It may ask a person, or read from elsewhere.
pub fn is_harmless(tool: &str) -> bool {
    HARMLESS.contains(&tool) || READS_ELSEWHERE.contains(&tool)
}

/// Use of a tool that waits for the answer of the hook.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub request: Request,
    /// A subagent uses the tool. If its use is deferred, `claude` continues as if the subagent were done.
    pub is_subagent: bool,
    input: Value,
}

/// Answer of the hook.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The tool may be used, with this input instead of the agent's if there is one.
    Allow {
        input: Option<Value>,
    },
    Deny {
        reason: String,
    },
    /// The agent stops here.
    Defer,
}

impl Call {
    /// Returns the use that the input of the hook reports.
    ///
    /// # Errors
    /// Fails if it reports none.
    pub fn of(said: &str) -> Result<Self, String> {
        let said: Value = serde_json::from_str(said).map_err(|error| error.to_string())?;
        let name = |key: &str| said.text(key).filter(|text| !text.is_empty()).ok_or_else(|| format!("no {key}"));
        let (call, tool) = (name("tool_use_id")?.to_owned(), name("tool_name")?.to_owned());
        let input = said.member("tool_input").cloned().unwrap_or_default();
        let request = Request { call, wish: wish(&tool, &input), tool };
        Ok(Self { request, is_subagent: asking::subagent(&said).is_some(), input })
    }

    /// Reports whether the use needs nobody's permission in any run: it only reads here, or leads to other uses that ask.
    pub fn is_free(&self) -> bool {
        let is_tool = matches!(self.request.wish, AskWish::Tool { .. });
        is_tool && HARMLESS.contains(&self.request.tool.as_str())
    }

    /// Returns the answer with a person's verdict.
    pub fn told(&self, verdict: &Verdict) -> Answer {
        match asking::decision(verdict, &self.request.wish, &self.input) {
            Ok(input) => Answer::Allow { input },
            Err(reason) => Answer::Deny { reason },
        }
    }
}

impl Answer {
    /// Returns what the hook prints.
    pub fn text(&self) -> String {
        let (decision, more) = match self {
            Self::Allow { input } => ("allow", input.as_ref().map(|input| ("updatedInput", input.clone()))),
            Self::Deny { reason } => ("deny", Some(("permissionDecisionReason", json!(reason)))),
            Self::Defer => ("defer", None),
        };
        let said = [("hookEventName", json!("PreToolUse")), ("permissionDecision", json!(decision))];
        let said: Map<String, Value> =
            said.into_iter().chain(more).map(|(key, value)| (key.to_owned(), value)).collect();
        json!({ "hookSpecificOutput": said }).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `claude` 2.1.328 reported about a question.
    const QUESTION: &str = r#"{"session_id":"4e","transcript_path":"/h/4e.jsonl","cwd":"/w","prompt_id":"e4","permission_mode":"default","effort":{"level":"medium"},"hook_event_name":"PreToolUse","tool_name":"AskUserQuestion","tool_input":{"questions":[{"question":"Which one?","header":"Choice","options":[{"label":"yes","description":"yes"},{"label":"no","description":"no"}],"multiSelect":false}]},"tool_use_id":"toolu_f8"}"#;

    fn call(tool: &str, input: &Value) -> Call {
        Call::of(&json!({ "tool_name": tool, "tool_input": input, "tool_use_id": "t1" }).to_string()).expect("a use")
    }

    fn printed(answer: &Answer) -> Value {
        serde_json::from_str(&answer.text()).expect("JSON")
    }

    #[test]
    fn each_use_of_a_tool_is_a_request() {
        let make = call("Bash", &json!({ "command": "make" }));
        let request = Request {
            call: "t1".to_owned(),
            tool: "Bash".to_owned(),
            wish: AskWish::Command { command: "make".to_owned() },
        };
        assert_eq!((&make.request, make.is_subagent, make.is_free()), (&request, false, false));
        let helper = r#"{"tool_name":"Bash","tool_input":{},"tool_use_id":"t","agent_id":"a1","agent_type":"Explore"}"#;
        assert!(Call::of(helper).expect("a use").is_subagent);
        for (tool, is_free) in [
            ("Read", true),
            ("Task", true),
            ("TodoWrite", true),
            ("WebFetch", false),
            ("Monitor", false),
            ("Unheard", false),
            ("mcp__docs__Read", false),
        ] {
            assert_eq!(call(tool, &json!({ "file_path": "a" })).is_free(), is_free, "{tool}");
        }
        assert!(!Call::of(QUESTION).expect("a use").is_free(), "a person is asked");
        for odd in ["", "[]", "{", r#"{"tool_name":"Bash","tool_use_id":""}"#, r#"{"tool_use_id":"t"}"#] {
            assert!(Call::of(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn an_answer_is_printed_as_claude_expects_it() {
        let said = |answer: &Answer| {
            let printed = printed(answer);
            assert_eq!(printed["hookSpecificOutput"]["hookEventName"], "PreToolUse");
            printed["hookSpecificOutput"].clone()
        };
        let make = call("Bash", &json!({ "command": "make" }));
        let allowed = said(&make.told(&Verdict::Allow { input: None }));
        assert_eq!(allowed, json!({ "hookEventName": "PreToolUse", "permissionDecision": "allow" }));
        let edited = said(&make.told(&Verdict::Allow { input: Some(json!({ "command": "make -n" })) }));
        assert_eq!(edited["updatedInput"], json!({ "command": "make -n" }));
        let denied = said(&make.told(&Verdict::Deny { reason: "not now".to_owned() }));
        assert_eq!(
            (&denied["permissionDecision"], &denied["permissionDecisionReason"]),
            (&json!("deny"), &json!("not now"))
        );
        assert_eq!(said(&Answer::Defer)["permissionDecision"], "defer");
        let question = Call::of(QUESTION).expect("a use");
        let answers = vec![("Which one?".to_owned(), "no".to_owned())];
        let answered = said(&question.told(&Verdict::Answer { answers }));
        assert_eq!(answered["permissionDecision"], "allow");
        assert_eq!(answered["updatedInput"]["answers"], json!({ "Which one?": "no" }));
        assert_eq!(answered["updatedInput"]["questions"][0]["header"], "Choice", "the rest of the input stays");
    }
}
