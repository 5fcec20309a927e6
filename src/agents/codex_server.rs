//! `codex` where it may ask: `codex app-server`, whose messages are JSON-RPC without a version. A turn succeeded if it was
//! completed with a last message. Token counts are totals of the whole conversation; prices are not reported.

pub mod wish;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use swarm_model::asks::judge::Consent;
use swarm_model::asks::{AskWish, Verdict};
use swarm_model::json::Members as _;
use swarm_model::run::progress::Spent;
use swarm_model::run::{FaultKind, Outcome};

use self::wish::Approval;
use super::dialogue::{
    ANSWER_MS, CANCEL_MS, Dialogue, Message, Step, Wire, Writing, broken_off, conversation, late, message,
};
use super::fault::of_status;
use super::{End, Launch, Report, Seen, Session, Turn, classify, failure, gist, not_understood, short};
use swarm_config::sections::AgentConfig;

const WIRE: Wire = Wire { is_versioned: false };
/// Ids of our requests.
const HELLO: u64 = 1;
const OPEN: u64 = 2;
const PROMPT: u64 = 3;
const INTERRUPT: u64 = 4;
/// Number of edits whose files are remembered.
const EDITS_MAX: usize = 1_000;

pub fn launch(config: &AgentConfig) -> Launch {
    let mut argv = config.command.clone().unwrap_or_else(|| vec!["codex".to_owned()]);
    argv.push("app-server".to_owned());
    argv.extend(config.arguments.clone());
    Launch { argv, env: Vec::new(), input: None }
}

/// What the agent has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Hello { until: u64 },
    Open { until: u64 },
    Begin { until: u64 },
    Working,
    Cancelled { until: u64 },
    Over,
}

/// How the turn ended.
enum Ended {
    Completed,
    Interrupted,
    Failed { message: String, status: Option<u16>, is_limit: bool },
    Fault(String, FaultKind),
}

pub struct Reader {
    prompt: String,
    cwd: String,
    model: Option<String>,
    consent: Consent,
    before: Session,
    state: State,
    session: Option<String>,
    turn: Option<String>,
    is_gone: bool,
    is_known: bool,
    ended: Option<Ended>,
    open: Vec<Approval>,
    /// What each edit does, by its id.
    edits: BTreeMap<String, Vec<AskWish>>,
    writing: Writing,
    /// Total of the whole conversation.
    total: Option<Spent>,
}

impl Reader {
    pub fn new(config: &AgentConfig, turn: &Turn<'_>) -> Self {
        Self {
            prompt: turn.prompt.to_owned(),
            cwd: turn.cwd.to_owned(),
            model: config.model.clone(),
            consent: turn.consent.unwrap_or(Consent::FullAccess),
            before: turn.session.cloned().unwrap_or_default(),
            state: State::Hello { until: u64::MAX },
            session: None,
            turn: None,
            is_gone: false,
            is_known: false,
            ended: None,
            open: Vec::new(),
            edits: BTreeMap::new(),
            writing: Writing::default(),
            total: None,
        }
    }

    fn over(&mut self, how: Ended) -> Vec<Step> {
        self.state = State::Over;
        self.ended.get_or_insert(how);
        self.writing.close()
    }

    fn introduced(&mut self, now_ms: u64) -> Vec<Step> {
        self.is_known = true;
        let (approval, sandbox) = match self.consent {
            Consent::NoAccess => ("untrusted", "read-only"),
            Consent::PartialAccess => ("untrusted", "workspace-write"),
            Consent::FullAccess => ("never", "danger-full-access"),
        };
        let mut params = json!({ "cwd": self.cwd, "approvalPolicy": approval, "sandbox": sandbox });
        let resumes = !self.before.id.is_empty();
        if let Some(members) = params.as_object_mut() {
            if resumes {
                members.insert("threadId".to_owned(), self.before.id.clone().into());
                members.insert("excludeTurns".to_owned(), true.into());
            }
            members.extend(self.model.clone().map(|model| ("model".to_owned(), model.into())));
        }
        self.state = State::Open { until: now_ms + ANSWER_MS };
        let method = if resumes { "thread/resume" } else { "thread/start" };
        vec![WIRE.notice("initialized", None), WIRE.request(OPEN, method, params)]
    }

    fn opened(&mut self, result: &Value, now_ms: u64) -> Vec<Step> {
        let Some(id) = result.member("thread").text("id") else {
            return self.over(Ended::Fault("opened a conversation without an id".to_owned(), FaultKind::Lasting));
        };
        self.session = Some(id.to_owned());
        self.state = State::Begin { until: now_ms + ANSWER_MS };
        let input = json!([{ "type": "text", "text": self.prompt }]);
        let prompt = WIRE.request(PROMPT, "turn/start", json!({ "threadId": id, "input": input }));
        vec![Step::Seen(Seen::Session(id.to_owned())), prompt]
    }

    fn answered(&mut self, id: u64, result: &Value, now_ms: u64) -> Vec<Step> {
        match (id, self.state) {
            (HELLO, State::Hello { .. }) => self.introduced(now_ms),
            (OPEN, State::Open { .. }) => self.opened(result, now_ms),
            (PROMPT, State::Begin { .. }) => {
                self.turn = result.member("turn").text("id").map(str::to_owned);
                self.state = State::Working;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn failed(&mut self, id: u64, message: String) -> Vec<Step> {
        match (id, self.state) {
            (OPEN, State::Open { .. }) => self.is_gone = !self.before.id.is_empty(),
            (HELLO, State::Hello { .. }) | (PROMPT, State::Begin { .. }) => {}
            _ => return Vec::new(),
        }
        self.over(Ended::Failed { message, status: None, is_limit: false })
    }

    fn requested(&mut self, id: &Value, method: &str, params: Option<&Value>) -> Vec<Step> {
        if method == "mcpServer/elicitation/request" {
            return vec![WIRE.result(id, json!({ "action": "decline", "content": null }))];
        }
        let edit = params.text("itemId").and_then(|item| self.edits.get(item));
        let edit = edit.map_or(&[][..], Vec::as_slice);
        let Some(approval) = Approval::new(id, method, params, edit, &self.cwd) else {
            return vec![WIRE.no_method(id, method)];
        };
        let is_open = matches!(self.state, State::Begin { .. } | State::Working);
        if !is_open || params.text("threadId") != self.session.as_deref() {
            return vec![approval.cancelled()];
        }
        let mut steps: Vec<Step> = self.writing.done().into_iter().collect();
        steps.push(Step::Ask(approval.request()));
        self.open.push(approval);
        steps
    }

    fn noticed(&mut self, method: &str, params: Option<&Value>) -> Vec<Step> {
        if params.text("threadId") != self.session.as_deref() || self.session.is_none() {
            return Vec::new();
        }
        match method {
            "item/started" => self.item(params.member("item"), false),
            "item/completed" => self.item(params.member("item"), true),
            "thread/tokenUsage/updated" => {
                let total = params.member("tokenUsage").member("total");
                let (input_tokens, output_tokens) =
                    (total.whole("inputTokens").unwrap_or(0), total.whole("outputTokens").unwrap_or(0));
                self.total = Some(Spent { input_tokens, output_tokens, usd: None, unpriced: true });
                vec![Step::Seen(Seen::Spent(self.spent().0))]
            }
            "error" => {
                let retries = params.member("willRetry").and_then(Value::as_bool) == Some(true);
                let error = params.member("error");
                let said = error.text("additionalDetails").or(error.text("message")).map(short);
                said.filter(|_| retries).map(|said| Step::Seen(Seen::Delay(said))).into_iter().collect()
            }
            "turn/completed" => self.completed(params.member("turn")),
            _ => Vec::new(),
        }
    }

    fn completed(&mut self, turn: Option<&Value>) -> Vec<Step> {
        // The end of an earlier turn, which was interrupted, may be reported late.
        if self.turn.is_some() && turn.text("id") != self.turn.as_deref() || self.state == State::Over {
            return Vec::new();
        }
        let error = turn.member("error");
        match turn.text("status") {
            Some("completed") => self.over(Ended::Completed),
            Some("interrupted") => self.over(Ended::Interrupted),
            status => {
                let message = error.text("message").unwrap_or(status.unwrap_or("turn failed")).to_owned();
                let info = error.member("codexErrorInfo");
                let nested = info.and_then(Value::as_object).and_then(|info| info.values().next());
                let status = nested.whole("httpStatusCode").and_then(|status| u16::try_from(status).ok());
                let is_limit = info.and_then(Value::as_str) == Some("usageLimitExceeded");
                self.over(Ended::Failed { message, status, is_limit })
            }
        }
    }

    fn item(&mut self, item: Option<&Value>, is_done: bool) -> Vec<Step> {
        match item.text("type") {
            Some("commandExecution") if !is_done => {
                let command = item.text("command").map(wish::unwrapped).unwrap_or_default();
                vec![Step::Seen(Seen::Tool(short(&format!("exec: {command}"))))]
            }
            Some("fileChange") => {
                let paths: Vec<&str> = item.list("changes").iter().filter_map(|change| change.text("path")).collect();
                let seen = Step::Seen(Seen::Tool(short(&format!("edit: {}", paths.join(", ")))));
                if self.edits.len() < EDITS_MAX {
                    let wishes = item.list("changes").iter().flat_map(wish::of_change).collect();
                    self.edits.extend(item.text("id").map(|id| (id.to_owned(), wishes)));
                }
                if is_done { vec![seen] } else { Vec::new() }
            }
            Some("mcpToolCall") if !is_done => {
                let (server, tool) = (item.text("server").unwrap_or_default(), item.text("tool").unwrap_or_default());
                vec![Step::Seen(Seen::Tool(short(&format!("{server}.{tool}"))))]
            }
            Some("agentMessage") if is_done => {
                self.writing.push(item.text("text").unwrap_or_default());
                self.writing.done().into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the usage of this turn, and what remains unreported. The total includes turns that were killed, as far as
    /// codex has recorded them.
    fn spent(&self) -> (Spent, Spent) {
        match self.total {
            Some(total) => self.before.turn(total),
            None => (Spent { unpriced: true, ..Spent::default() }, self.before.unreported),
        }
    }

    fn outcome(&self, end: &End<'_>) -> Outcome {
        match &self.ended {
            Some(Ended::Completed) => match &self.writing.last {
                Some(message) => Outcome::Success { summary: Some(gist(message)) },
                // A refusal looks like this.
                None => failure("turn ended without a message", None, FaultKind::Task),
            },
            Some(Ended::Interrupted) => failure("the turn was cancelled", None, FaultKind::Passing),
            Some(Ended::Failed { message, status, is_limit }) => {
                let fault = match (classify(message, end), status) {
                    (limit @ FaultKind::Limit { .. }, _) => limit,
                    (_, _) if *is_limit => FaultKind::Limit { until_ms: None },
                    (_, Some(status)) => of_status(*status, message, end),
                    (fault, None) => fault,
                };
                failure(short(message), Some(message.clone()), fault)
            }
            Some(Ended::Fault(cause, fault)) => failure(format!("codex {cause}"), None, *fault),
            None if !self.is_known && end.ended.is_success() => not_understood("codex", end),
            None => broken_off(end, &["Error: ", "ERROR: "]),
        }
    }
}

impl Dialogue for Reader {
    fn begin(&mut self, now_ms: u64) -> Vec<Step> {
        self.state = State::Hello { until: now_ms + ANSWER_MS };
        let about = json!({ "name": "swarm", "title": "swarm", "version": env!("CARGO_PKG_VERSION") });
        let params = json!({ "clientInfo": about, "capabilities": { "experimentalApi": true } });
        vec![WIRE.request(HELLO, "initialize", params)]
    }

    fn line(&mut self, line: &str, now_ms: u64) -> Vec<Step> {
        let Ok(value) = serde_json::from_str::<Value>(line) else { return Vec::new() };
        let Some(message) = message(&value) else { return Vec::new() };
        if self.state == State::Over {
            return Vec::new();
        }
        match message {
            Message::Result { id, result } => self.answered(id, result, now_ms),
            Message::Failed { id, message, .. } => self.failed(id, message),
            Message::Request { id, method, params } => self.requested(id, method, params),
            Message::Notice { method, params } => self.noticed(method, params),
        }
    }

    fn answer(&mut self, call: &str, verdict: &Verdict) -> Vec<Step> {
        let Some(at) = self.open.iter().position(|open| open.request().call == call) else { return Vec::new() };
        let mut approval = self.open.remove(at);
        match approval.answer(verdict) {
            Some(step) => vec![step],
            // An edit of several files is allowed file by file.
            None => {
                let request = approval.request();
                self.open.insert(at, approval);
                vec![Step::Ask(request)]
            }
        }
    }

    fn cancel(&mut self, now_ms: u64) -> Vec<Step> {
        if !matches!(self.state, State::Begin { .. } | State::Working) {
            return if self.state == State::Over { Vec::new() } else { self.over(Ended::Interrupted) };
        }
        self.state = State::Cancelled { until: now_ms + CANCEL_MS };
        let mut steps: Vec<Step> = self.open.drain(..).map(|approval| approval.cancelled()).collect();
        let params = json!({ "threadId": self.session, "turnId": self.turn });
        steps.push(WIRE.request(INTERRUPT, "turn/interrupt", params));
        steps
    }

    fn due_ms(&self) -> Option<u64> {
        match self.state {
            State::Hello { until } | State::Open { until } | State::Begin { until } | State::Cancelled { until } => {
                Some(until)
            }
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
            State::Open { .. } => self.over(late("thread/start")),
            State::Begin { .. } => self.over(late("turn/start")),
            State::Cancelled { .. } => self.over(Ended::Interrupted),
            State::Working | State::Over => Vec::new(),
        }
    }

    fn end(mut self: Box<Self>, end: End<'_>) -> Report {
        self.writing.done();
        let outcome = self.outcome(&end);
        let id = conversation(self.session.as_ref(), &self.before);
        let total = self.total.unwrap_or(self.before.spent);
        let (spent, unreported) = self.spent();
        let session = id.map(|id| Session { id, spent: total, unreported });
        Report { outcome, spent, session, said: self.writing.last, is_gone: self.is_gone, deferred: None }
    }
}
