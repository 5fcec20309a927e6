//! Conversation of `opencode run --format json`.

use serde_json::Value;
use swarm_model::json::Members as _;
use swarm_model::run::progress::Spent;

use super::{Said, Told, ended, message, result, tool};
use crate::opencode::{REFUSED, step};

#[derive(Debug, Default)]
pub struct Opencode {
    /// Conversation that was shown.
    session: Option<String>,
    /// Sum of the steps so far.
    spent: Spent,
}

impl Opencode {
    fn began(&mut self, line: &Value) -> Option<Said> {
        let id = line.text("sessionID").filter(|id| self.session.as_deref() != Some(*id))?;
        *self = Self { session: Some(id.to_owned()), ..Self::default() };
        Some(Said::Begin { session: id.to_owned() })
    }

    fn step_ended(&mut self, part: Option<&Value>) -> Option<Said> {
        self.spent = self.spent.plus(step(part));
        let reason = part.text("reason").filter(|reason| *reason != "tool-calls")?;
        let spent = std::mem::take(&mut self.spent);
        let is_well = reason == "stop";
        Some(Said::End {
            failed: !is_well,
            text: if is_well { String::new() } else { reason.to_owned() },
            usd: spent.usd,
            input_tokens: Some(spent.input_tokens),
            output_tokens: Some(spent.output_tokens),
        })
    }
}

impl Told for Opencode {
    fn line(&mut self, line: &Value) -> Vec<Said> {
        let part = line.member("part");
        let mut said: Vec<Said> = self.began(line).into_iter().collect();
        match line.text("type") {
            Some("text") => said.extend(part.text("text").and_then(message)),
            Some("tool_use") => said.extend(tool_use(part)),
            Some("step_finish") => said.extend(self.step_ended(part)),
            Some("error") => {
                let error = line.member("error");
                let text = error.member("data").text("message").or(error.text("name")).unwrap_or("error");
                said.push(ended(true, text));
            }
            _ => {}
        }
        said
    }
}

/// Returns the use of a tool and its result, which are told together.
fn tool_use(part: Option<&Value>) -> [Said; 2] {
    let (name, state) = (part.text("tool").unwrap_or("a tool"), part.member("state"));
    let then = match state.text("error") {
        Some(error) if error.starts_with(REFUSED) => Said::Denied { text: name.to_owned() },
        Some(error) => result(error, true),
        None => {
            let code = state.member("metadata").member("exit").and_then(Value::as_i64);
            result(state.text("output").unwrap_or_default(), code.is_some_and(|code| code != 0))
        }
    };
    [tool(name, state.member("input")), then]
}
