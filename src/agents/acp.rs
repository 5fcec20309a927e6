//! `acp`: agents that speak the Agent Client Protocol, version 1. A turn succeeded if the agent ends it with the reason
//! `end_turn`. The client offers neither files nor terminals, so that the agent uses its own tools, in its own sandbox.

mod launch;
pub mod usage;
pub mod wish;

use serde_json::{Value, json};
use swarm_model::asks::Verdict;
use swarm_model::json::Members as _;
use swarm_model::run::{FaultKind, Outcome};

use self::usage::Usage;
use self::wish::Permission;
use super::dialogue::{
    ANSWER_MS, CANCEL_MS, Dialogue, Message, Step, Wire, Writing, broken_off, conversation, late, message,
};
use super::fault::of_status;
use super::{End, Kind, Report, Seen, Session, Turn, classify, claude, failure, gist, not_understood, short};

pub use self::launch::launch;

const WIRE: Wire = Wire { is_versioned: true };
/// Version of the protocol.
const VERSION: u64 = 1;
/// Ids of our requests.
const HELLO: u64 = 1;
const OPEN: u64 = 2;
const PROMPT: u64 = 3;
/// Time without a message after which a conversation counts as loaded, in milliseconds. Its history is sent again before
/// or after the answer.
const SILENCE_MS: u64 = 300;
/// Time after which a conversation counts as loaded in any case, in milliseconds.
const SETTLED_MS: u64 = 2_000;
/// Code of an error: the agent is not logged in.
const LOGGED_OUT: i64 = -32000;
/// Number of uses of tools that are remembered, so that each is reported once.
const CALLS_MAX: usize = 1_000;

/// What the agent has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To introduce itself.
    Hello {
        until: u64,
    },
    /// To open a conversation.
    Open {
        until: u64,
        loads: bool,
    },
    /// To send the rest of the history.
    Settling {
        quiet_at: u64,
        until: u64,
    },
    Working,
    /// To end the turn that was cancelled.
    Cancelled {
        until: u64,
    },
    Over,
}

/// How the turn ended, by the agent's or the protocol's word.
enum Ended {
    Reason(String),
    Failed { code: i64, message: String },
    Fault(String, FaultKind),
}

pub struct Reader {
    name: String,
    prompt: String,
    cwd: String,
    before: Session,
    state: State,
    session: Option<String>,
    is_gone: bool,
    is_known: bool,
    /// The agent opens an empty conversation in place of one that it does not know, instead of an error.
    is_lenient: bool,
    /// The history of the conversation was sent.
    has_history: bool,
    ended: Option<Ended>,
    open: Vec<Permission>,
    writing: Writing,
    /// Uses of tools that were reported.
    told: Vec<String>,
    /// Last use that was refused, if the agent has done nothing since.
    refused: Option<String>,
    usage: Usage,
}

impl Reader {
    pub fn new(kind: Kind, name: &str, turn: &Turn<'_>) -> Self {
        let before = turn.session.cloned().unwrap_or_default();
        Self {
            name: name.to_owned(),
            prompt: turn.prompt.to_owned(),
            cwd: turn.cwd.to_owned(),
            usage: Usage::new(before.spent.usd),
            before,
            state: State::Hello { until: u64::MAX },
            session: None,
            is_gone: false,
            is_known: false,
            is_lenient: kind == Kind::Qwen,
            has_history: false,
            ended: None,
            open: Vec::new(),
            writing: Writing::default(),
            told: Vec::new(),
            refused: None,
        }
    }

    fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Ends the dialogue.
    fn over(&mut self, how: Ended) -> Vec<Step> {
        self.state = State::Over;
        self.ended.get_or_insert(how);
        self.writing.close()
    }

    fn introduced(&mut self, result: &Value, now_ms: u64) -> Vec<Step> {
        self.is_known = true;
        if result.whole("protocolVersion") != Some(VERSION) {
            let version = result.member("protocolVersion").cloned().unwrap_or_default();
            let cause = format!("speaks version {version} of the Agent Client Protocol, not version {VERSION}");
            return self.over(Ended::Fault(cause, FaultKind::Lasting));
        }
        let offers = result.member("agentCapabilities");
        let resumes = offers.member("sessionCapabilities").member("resume").is_some_and(|it| !it.is_null());
        let loads = offers.member("loadSession").and_then(Value::as_bool) == Some(true);
        let id = Some(self.before.id.clone()).filter(|id| !id.is_empty());
        let (method, id) = match id {
            Some(id) if resumes && !self.is_lenient => ("session/resume", Some(id)),
            Some(id) if loads => ("session/load", Some(id)),
            Some(_) => {
                // The attempt begins anew, with the whole prompt.
                self.is_gone = true;
                return self.over(Ended::Fault("the agent continues no conversation".to_owned(), FaultKind::Lasting));
            }
            None => ("session/new", None),
        };
        self.state = State::Open { until: now_ms + ANSWER_MS, loads: method == "session/load" };
        let mut params = json!({ "cwd": self.cwd, "mcpServers": [] });
        if let (Some(id), Some(members)) = (id, params.as_object_mut()) {
            members.insert("sessionId".to_owned(), id.into());
        }
        vec![WIRE.request(OPEN, method, params)]
    }

    fn opened(&mut self, result: &Value, loads: bool, now_ms: u64) -> Vec<Step> {
        let known = Some(self.before.id.clone()).filter(|id| !id.is_empty());
        let Some(id) = known.or_else(|| result.text("sessionId").map(str::to_owned)) else {
            return self.over(Ended::Fault("opened a conversation without an id".to_owned(), FaultKind::Lasting));
        };
        self.session = Some(id.clone());
        let mut steps = vec![Step::Seen(Seen::Session(id))];
        if loads {
            self.state = State::Settling { quiet_at: now_ms + SILENCE_MS, until: now_ms + SETTLED_MS };
        } else {
            steps.push(self.prompt());
        }
        steps
    }

    fn prompt(&mut self) -> Step {
        self.state = State::Working;
        let content = json!([{ "type": "text", "text": self.prompt }]);
        WIRE.request(PROMPT, "session/prompt", json!({ "sessionId": self.session, "prompt": content }))
    }

    fn answered(&mut self, id: u64, result: &Value, now_ms: u64) -> Vec<Step> {
        match (id, self.state) {
            (HELLO, State::Hello { .. }) => self.introduced(result, now_ms),
            (OPEN, State::Open { loads, .. }) => self.opened(result, loads, now_ms),
            (PROMPT, State::Working | State::Cancelled { .. }) => {
                let mut steps = self.usage.result(result);
                let reason = result.text("stopReason").unwrap_or("none").to_owned();
                steps.extend(self.over(Ended::Reason(reason)));
                steps
            }
            // Answered twice, or never asked.
            _ => Vec::new(),
        }
    }

    fn failed(&mut self, id: u64, code: i64, message: String) -> Vec<Step> {
        match (id, self.state) {
            (HELLO, State::Hello { .. }) => self.over(Ended::Failed { code, message }),
            (OPEN, State::Open { .. }) => {
                // A new conversation fails for the same reason, if there is another one.
                self.is_gone = !self.before.id.is_empty() && code != LOGGED_OUT;
                self.over(Ended::Failed { code, message })
            }
            (PROMPT, State::Working | State::Cancelled { .. }) => self.over(Ended::Failed { code, message }),
            _ => Vec::new(),
        }
    }

    fn requested(&mut self, id: &Value, method: &str, params: Option<&Value>) -> Vec<Step> {
        if method != "session/request_permission" {
            return vec![WIRE.no_method(id, method)];
        }
        let permission = Permission::new(id, params, &self.open);
        if self.state != State::Working || params.text("sessionId") != self.session.as_deref() {
            return vec![permission.cancelled()];
        }
        let mut steps: Vec<Step> = self.writing.done().into_iter().collect();
        self.refused = None;
        steps.extend(self.tool(params.member("toolCall")));
        steps.push(Step::Ask(permission.request.clone()));
        self.open.push(permission);
        steps
    }

    fn update(&mut self, update: Option<&Value>) -> Vec<Step> {
        let kind = update.text("sessionUpdate").unwrap_or_default();
        let mut steps = self.usage.update(update);
        if kind == "agent_message_chunk" {
            let text = update.member("content").text("text").unwrap_or_default();
            self.writing.push(text);
            if !text.trim().is_empty() {
                self.refused = None;
            }
            return steps;
        }
        match kind {
            "tool_call" | "tool_call_update" => {
                steps.extend(self.writing.done());
                let is_pending = update.text("status").is_none_or(|status| status == "pending");
                // Its input may not be complete yet.
                if kind == "tool_call_update" || !is_pending {
                    let told = self.tool(update);
                    if told.is_some() {
                        self.refused = None;
                    }
                    steps.extend(told);
                }
            }
            "plan" => {
                let todo = |entry: &Value| {
                    json!({ "content": entry.member("content"), "status": entry.member("status"),
                        "activeForm": entry.member("content") })
                };
                let items: Vec<Value> = update.list("entries").iter().map(todo).collect();
                steps.push(Step::Seen(Seen::Todos(items.into())));
            }
            _ => {}
        }
        steps
    }

    /// Reports the use of a tool once, when its input is known.
    fn tool(&mut self, tool: Option<&Value>) -> Option<Step> {
        let call = tool.text("toolCallId")?;
        if self.told.iter().any(|told| told == call) {
            return None;
        }
        let kind = tool.text("kind").unwrap_or("tool");
        let named = claude::tool(kind, tool.member("rawInput"));
        let what = match tool.text("title") {
            Some(title) if named == kind => short(&format!("{kind}: {title}")),
            None if named == kind => return None,
            _ => named,
        };
        if self.told.len() == CALLS_MAX {
            self.told.remove(0);
        }
        self.told.push(call.to_owned());
        Some(Step::Seen(Seen::Tool(what)))
    }

    fn outcome(&self, end: &End<'_>) -> Outcome {
        match &self.ended {
            Some(Ended::Reason(reason)) => self.stopped(reason),
            Some(Ended::Failed { code, message }) => {
                let fault = match status_of(*code, message) {
                    _ if *code == LOGGED_OUT => FaultKind::Lasting,
                    Some(status) => of_status(status, message, end),
                    None => classify(message, end),
                };
                failure(short(message), Some(message.clone()), fault)
            }
            Some(Ended::Fault(cause, fault)) => failure(format!("{} {cause}", self.name), None, *fault),
            None if !self.is_known && end.ended.is_success() => not_understood(&self.name, end),
            None => broken_off(end, &["Error: ", "error: "]),
        }
    }

    fn stopped(&self, reason: &str) -> Outcome {
        match (reason, &self.refused) {
            ("end_turn", Some(what)) => {
                failure(format!("stopped because it was not allowed {what}"), None, FaultKind::Lasting)
            }
            ("end_turn", None) => Outcome::Success { summary: self.writing.last.as_deref().map(gist) },
            ("refusal", _) => failure("the model refused the task", self.writing.last.clone(), FaultKind::Lasting),
            ("cancelled", _) => failure("the turn was cancelled", None, FaultKind::Passing),
            (reason, _) => failure(format!("stopped with the reason '{}'", short(reason)), None, FaultKind::Task),
        }
    }
}

/// Returns the status of the provider's answer: the code of the error, or a number with which its message or its details
/// begin.
fn status_of(code: i64, message: &str) -> Option<u16> {
    let last = message.rsplit(": ").next().unwrap_or_default();
    let numbers = [message, last].map(|text| text.split(' ').next().and_then(|word| word.parse().ok()));
    let all = [u16::try_from(code).ok()].into_iter().chain(numbers);
    all.flatten().find(|status| (400..600).contains(status))
}

impl Dialogue for Reader {
    fn begin(&mut self, now_ms: u64) -> Vec<Step> {
        self.state = State::Hello { until: now_ms + ANSWER_MS };
        let files = json!({ "readTextFile": false, "writeTextFile": false });
        let params = json!({
            "protocolVersion": VERSION,
            "clientCapabilities": { "fs": files, "terminal": false },
            "clientInfo": { "name": "swarm", "version": env!("CARGO_PKG_VERSION") },
        });
        vec![WIRE.request(HELLO, "initialize", params)]
    }

    fn line(&mut self, line: &str, now_ms: u64) -> Vec<Step> {
        let Ok(value) = serde_json::from_str::<Value>(line) else { return Vec::new() };
        let Some(message) = message(&value) else { return Vec::new() };
        if let State::Settling { quiet_at, .. } = &mut self.state {
            *quiet_at = now_ms + SILENCE_MS;
        }
        if self.is_over() {
            return Vec::new();
        }
        match message {
            Message::Result { id, result } => self.answered(id, result, now_ms),
            Message::Failed { id, code, message } => self.failed(id, code, message),
            Message::Request { id, method, params } => self.requested(id, method, params),
            Message::Notice { method: "session/update", params } => {
                let is_ours = params.text("sessionId") == self.session.as_deref();
                let update = params.member("update");
                match self.state {
                    State::Working | State::Cancelled { .. } if is_ours => self.update(update),
                    _ => {
                        self.has_history |= update.text("sessionUpdate") == Some("user_message_chunk");
                        Vec::new()
                    }
                }
            }
            Message::Notice { .. } => Vec::new(),
        }
    }

    fn answer(&mut self, call: &str, verdict: &Verdict) -> Vec<Step> {
        let Some(at) = self.open.iter().position(|open| open.request.call == call) else { return Vec::new() };
        let permission = self.open.remove(at);
        let (step, is_allowed) = permission.answer(verdict);
        self.refused = (!is_allowed).then(|| permission.what());
        vec![step]
    }

    fn cancel(&mut self, now_ms: u64) -> Vec<Step> {
        if self.state != State::Working {
            return if self.is_over() { Vec::new() } else { self.over(Ended::Reason("cancelled".to_owned())) };
        }
        self.state = State::Cancelled { until: now_ms + CANCEL_MS };
        let mut steps = vec![WIRE.notice("session/cancel", Some(json!({ "sessionId": self.session })))];
        steps.extend(self.open.drain(..).map(|permission| permission.cancelled()));
        steps
    }

    fn due_ms(&self) -> Option<u64> {
        match self.state {
            State::Hello { until } | State::Open { until, .. } | State::Cancelled { until } => Some(until),
            State::Settling { quiet_at, until } => Some(quiet_at.min(until)),
            State::Working | State::Over => None,
        }
    }

    fn tick(&mut self, now_ms: u64) -> Vec<Step> {
        if self.due_ms().is_none_or(|due| now_ms < due) {
            return Vec::new();
        }
        let late = |method: &str| Ended::Fault(late(method), FaultKind::Passing);
        match self.state {
            State::Hello { .. } => self.over(late("initialize")),
            State::Open { .. } => {
                self.is_gone = !self.before.id.is_empty();
                self.over(late("session/new"))
            }
            State::Settling { .. } if self.is_lenient && !self.has_history => {
                self.is_gone = true;
                self.over(Ended::Fault("does not know the conversation".to_owned(), FaultKind::Passing))
            }
            State::Settling { .. } => vec![self.prompt()],
            State::Cancelled { .. } => self.over(Ended::Reason("cancelled".to_owned())),
            State::Working | State::Over => Vec::new(),
        }
    }

    fn end(mut self: Box<Self>, end: End<'_>) -> Report {
        self.writing.done();
        let outcome = self.outcome(&end);
        let id = conversation(self.session.as_ref(), &self.before);
        let (spent, usd) = self.usage.spent();
        let total = self.before.spent.plus(spent);
        let total = swarm_model::run::progress::Spent { usd: usd.or(total.usd), ..total };
        let session = id.map(|id| Session { id, spent: total, unreported: self.before.unreported });
        Report { outcome, spent, session, said: self.writing.last, is_gone: self.is_gone, deferred: None }
    }
}
