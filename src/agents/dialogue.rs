//! Dialogues with agents that exchange JSON-RPC messages, one per line, over standard input and output. Such an agent may
//! ask before it uses a tool.
//!
//! A dialogue is a pure machine. Whoever runs the agent passes it lines, answers and the time, and carries out the steps
//! that it returns. Times are in milliseconds since the dialogue began.

use serde_json::{Value, json};
use swarm_model::asks::{AskWish, Verdict};
use swarm_model::json::Members as _;
use swarm_model::run::Outcome;

use super::fault::classify_end;
use super::{End, Report, Seen, Session, end_words, failure, short};

/// Time in which an agent must answer a message that is no task, in milliseconds.
pub(crate) const ANSWER_MS: u64 = 60_000;
/// Time in which an agent must end a turn that was cancelled, in milliseconds.
pub(crate) const CANCEL_MS: u64 = 30_000;
/// Words for [`ANSWER_MS`].
const ANSWER_TIME: &str = "60 s";
/// Code of an error: the method is not known.
const NO_METHOD: i64 = -32601;

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Seen(Seen),
    /// Send this line, which has no line break.
    Send(String),
    /// Decide about a request, and call [`Dialogue::answer`].
    Ask(Request),
    /// The agent has nothing more to do: close its standard input, and end it if it stays.
    Close,
}

/// Request of the agent for a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Identifies the use of the tool within the conversation.
    pub call: String,
    /// Name of the tool, or of the kind of tool, as the agent calls it.
    pub tool: String,
    pub wish: AskWish,
}

/// Conversation with an agent during one turn.
pub trait Dialogue: Send {
    /// Begins the turn.
    fn begin(&mut self, now_ms: u64) -> Vec<Step>;
    /// Reads one line of the agent.
    fn line(&mut self, line: &str, now_ms: u64) -> Vec<Step>;
    /// Answers the request of a call. A call that is not open is ignored.
    fn answer(&mut self, call: &str, verdict: &Verdict) -> Vec<Step>;
    /// Cancels the turn; open requests are answered so that nothing is executed.
    fn cancel(&mut self, now_ms: u64) -> Vec<Step>;
    /// Returns the time at which [`Self::tick`] must be called. `None` if the dialogue waits without a limit of its own.
    fn due_ms(&self) -> Option<u64>;
    /// The time of [`Self::due_ms`] has come.
    fn tick(&mut self, now_ms: u64) -> Vec<Step>;
    /// Returns the result of the turn after the process has ended.
    fn end(self: Box<Self>, end: End<'_>) -> Report;
}

/// Message of an agent.
#[derive(Debug, PartialEq)]
pub(crate) enum Message<'a> {
    Request { id: &'a Value, method: &'a str, params: Option<&'a Value> },
    Notice { method: &'a str, params: Option<&'a Value> },
    Result { id: u64, result: &'a Value },
    Failed { id: u64, code: i64, message: String },
}

/// Returns the message in a line's value. `None` for anything else.
pub(crate) fn message(value: &Value) -> Option<Message<'_>> {
    let (id, method) = (value.member("id").filter(|id| id.is_string() || id.is_number()), value.text("method"));
    let params = value.member("params");
    match (id, method) {
        (Some(id), Some(method)) => Some(Message::Request { id, method, params }),
        (None, Some(method)) => Some(Message::Notice { method, params }),
        (Some(id), None) => match (value.member("error"), value.member("result")) {
            (Some(error), _) if error.is_object() => {
                let code = error.member("code").and_then(Value::as_i64).unwrap_or(0);
                Some(Message::Failed { id: id.as_u64()?, code, message: words(error) })
            }
            (_, Some(result)) => Some(Message::Result { id: id.as_u64()?, result }),
            _ => None,
        },
        (None, None) => None,
    }
}

/// Returns the text of an error with its details. The text may be the provider's raw answer, which is JSON.
fn words(error: &Value) -> String {
    let text = error.text("message").unwrap_or("error");
    let inner = serde_json::from_str::<Value>(text).ok();
    let text = inner.as_ref().member("error").text("message").unwrap_or(text);
    match error.member("data").text("details").or(error.member("data").and_then(Value::as_str)) {
        Some(details) if !text.contains(details) => format!("{text}: {details}"),
        _ => text.to_owned(),
    }
}

/// Writes messages to an agent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    /// Whether messages name the version of JSON-RPC.
    pub is_versioned: bool,
}

impl Wire {
    pub fn request(self, id: u64, method: &str, params: Value) -> Step {
        self.send(json!({ "id": id, "method": method, "params": params }))
    }

    pub fn notice(self, method: &str, params: Option<Value>) -> Step {
        let mut message = json!({ "method": method });
        if let (Some(params), Some(members)) = (params, message.as_object_mut()) {
            members.insert("params".to_owned(), params);
        }
        self.send(message)
    }

    pub fn result(self, id: &Value, result: Value) -> Step {
        self.send(json!({ "id": id, "result": result }))
    }

    /// Refuses a request whose method is not known.
    pub fn no_method(self, id: &Value, method: &str) -> Step {
        let error = json!({ "code": NO_METHOD, "message": format!("method not found: {method}") });
        self.send(json!({ "id": id, "error": error }))
    }

    fn send(self, mut message: Value) -> Step {
        if let (true, Some(members)) = (self.is_versioned, message.as_object_mut()) {
            members.insert("jsonrpc".to_owned(), "2.0".into());
        }
        Step::Send(message.to_string())
    }
}

/// Joins the parts of a message of the agent.
#[derive(Debug, Default)]
pub(crate) struct Writing {
    part: String,
    pub last: Option<String>,
}

impl Writing {
    pub fn push(&mut self, part: &str) {
        self.part.push_str(part);
    }

    /// Ends the dialogue: returns the last message, and closes the agent's input.
    pub fn close(&mut self) -> Vec<Step> {
        self.done().into_iter().chain([Step::Close]).collect()
    }

    /// Returns the message, if one was written since the last call.
    pub fn done(&mut self) -> Option<Step> {
        let message = std::mem::take(&mut self.part);
        let told = Some(short(&message)).filter(|text| !text.is_empty())?;
        self.last = Some(message);
        Some(Step::Seen(Seen::Text(told)))
    }
}

/// Returns what is wrong with an agent that did not answer a message that is no task.
pub(crate) fn late(method: &str) -> String {
    format!("did not answer '{method}' within {ANSWER_TIME}")
}

/// Returns the outcome of an agent that has ended before its turn was over. `marks` begin the lines that tell of errors.
pub(crate) fn broken_off(end: &End<'_>, marks: &[&str]) -> Outcome {
    let how = format!("{} without completing its turn", end_words(end.ended));
    let said = short(end.stderr);
    let cause = if said.is_empty() { how } else { format!("{how}: {said}") };
    failure(cause, None, classify_end(end, marks))
}

/// Returns the id of the conversation: the one that was opened, or else the one that was to be continued.
pub(crate) fn conversation(opened: Option<&String>, before: &Session) -> Option<String> {
    opened.or(Some(&before.id).filter(|id| !id.is_empty())).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart_and_everything_else_is_none() {
        let read = |text: &str| format!("{:?}", message(&serde_json::from_str(text).expect("JSON")));
        for (text, begins) in [
            (r#"{"id":"a","method":"m"}"#, "Some(Request { id: String(\"a\"), method: \"m\", params: None })"),
            (r#"{"id":null,"method":"m","params":{}}"#, "Some(Notice {"),
            (r#"{"id":3,"result":null}"#, "Some(Result { id: 3, result: Null })"),
            (
                r#"{"id":3,"error":{"code":-32000,"message":"m","data":"d"}}"#,
                "Some(Failed { id: 3, code: -32000, message: \"m: d\" })",
            ),
            (
                r#"{"id":3,"error":{"code":401,"message":"{\"error\":{\"message\":\"in\"}}"}}"#,
                "Some(Failed { id: 3, code: 401, message: \"in\" })",
            ),
            (r#"{"id":"3","result":1}"#, "None"),
            (r#"{"id":3}"#, "None"),
            (r#"{"id":3,"error":"e"}"#, "None"),
            ("[]", "None"),
            ("7", "None"),
        ] {
            assert!(read(text).starts_with(begins), "{text}: {}", read(text));
        }
    }
}
