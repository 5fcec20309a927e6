//! `claude`: Claude Code without a terminal (`-p --output-format stream-json`).
//!
//! Neither the exit code nor the subtype `success` alone means success: a request that failed permanently has both. A
//! turn succeeded if the exit code is 0 *and* the result has `is_error: false`, *and* no tool use was deferred: a hook of
//! the user may stop the agent at a tool use, which looks like success otherwise. Costs are totals of the whole
//! conversation.
//!
//! Where the agent may ask, a hook of swarm stops it in the same way: the turn ends, and the next one continues there.

use std::collections::{BTreeMap, VecDeque};

use serde::Deserialize;
use serde_json::Value;
use swarm_model::json::Members as _;
use swarm_model::run::progress::Spent;
use swarm_model::run::{FaultKind, Outcome};

use super::asking::wish;
use super::dialogue::Request;
use super::fault::{classify_end, own_error};
use super::reset::reset;
use super::{
    Deferred, End, Launch, Parser, Report, Seen, Session, Turn, classify, consent, end_words, failure, gist,
    not_understood, short,
};
use swarm_config::sections::AgentConfig;
use swarm_model::asks::judge::Consent;

/// Maximum number of remembered tool uses that may still be denied.
const ASKED_MAX: usize = 64;
/// Tool with which the agent asks a person.
const QUESTION: &str = "AskUserQuestion";
/// Tool with which the agent maintains its task list.
const TODOS: &str = "TodoWrite";
/// Reason for which an agent stopped at a tool use that a hook deferred.
const DEFERRED: &str = "tool_deferred";
/// Maximum number of remembered answers.
const ANSWERS_MAX: usize = 64;

/// Beginnings of the lines of standard error in which the agent reports why it ended.
const OWN_ERRORS: [&str; 7] = [
    "Error: ",
    "API Error",
    "Invalid API key",
    "Not logged in",
    "Credit balance",
    "Claude usage limit",
    "No conversation found",
];
/// Beginning of the message about a conversation that the agent does not find.
const GONE: &str = "No conversation found with session ID";
/// Beginning of the message about a conversation that has no deferred tool use to continue at.
const UNMARKED: &str = "Error: No deferred tool marker found";

pub fn launch(config: &AgentConfig, turn: &Turn<'_>) -> Launch {
    let mut argv = config.command.clone().unwrap_or_else(|| vec!["claude".to_owned()]);
    // The prompt goes to standard input, because the length of a command line is limited.
    argv.extend(["-p", "--output-format", "stream-json", "--verbose"].map(str::to_owned));
    // Configured permissions take precedence.
    if !config.arguments.iter().any(|word| word == "--permission-mode") {
        argv.extend(["--permission-mode", "acceptEdits", "--allowedTools", "Bash(*)"].map(str::to_owned));
    }
    argv.extend(config.model_option());
    match turn.session {
        Some(session) => argv.extend(["--resume".to_owned(), session.id.clone()]),
        None => argv.extend(["--session-id".to_owned(), turn.fresh_id.to_owned()]),
    }
    argv.extend(config.arguments.clone());
    let env = [("DISABLE_AUTOUPDATER", "1")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    Launch { argv, env: env.to_vec(), input: Some(turn.prompt.to_owned()) }
}

#[derive(Default)]
pub struct Reader {
    before: Session,
    session: Option<String>,
    result: Option<Ended>,
    /// Set if the provider's limit rejected a request, with the end of the limit in Unix milliseconds if it is known.
    limit: Option<Option<u64>>,
    /// Kind of error in the last answer.
    error: Option<String>,
    /// Error after which the agent retried.
    retried: Option<String>,
    /// Last tool uses, by their ids.
    asked: VecDeque<(String, String)>,
    /// Ids of tool uses whose denial was reported.
    denied: Vec<String>,
    /// Last answers, by their ids: each is printed once for each of its blocks, every time with its whole usage.
    answers: VecDeque<(String, Tokens)>,
    /// Usage of this turn as its answers report it. Of their output tokens, an unknown part is missing.
    streamed: Spent,
    /// A line was understood.
    is_known: bool,
    /// What the agent may do without asking, if its hook decides about each use of a tool.
    asks: Option<Consent>,
    /// Why this version of the agent cannot ask.
    too_old: Option<String>,
}

/// Last line of a turn.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Ended {
    subtype: String,
    is_error: Option<bool>,
    result: Option<String>,
    errors: Vec<String>,
    total_cost_usd: Option<f64>,
    usage: Tokens,
    /// Totals of the whole conversation by model.
    #[serde(rename = "modelUsage")]
    models: BTreeMap<String, ModelTokens>,
    terminal_reason: Option<String>,
    stop_reason: Option<String>,
    /// Kind of error, for limits of an account.
    api_error: Option<String>,
    deferred_tool_use: Option<Value>,
    permission_denials: Vec<Value>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Tokens {
    input_tokens: u64,
    output_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ModelTokens {
    input_tokens: u64,
    output_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
}

impl Tokens {
    fn input(&self) -> u64 {
        sum([self.input_tokens, self.cache_creation_input_tokens, self.cache_read_input_tokens])
    }
}

impl Ended {
    /// Reports whether a hook stopped the agent at a tool use.
    fn is_deferred(&self) -> bool {
        self.deferred_tool_use.is_some() || self.stop_reason.as_deref() == Some(DEFERRED)
    }

    /// Describes the tool use that was deferred.
    fn deferred(&self) -> String {
        let call = self.deferred_tool_use.as_ref();
        tool(call.text("name").unwrap_or("a tool"), call.member("input"))
    }

    /// Returns the tool use that was deferred.
    fn request(&self) -> Option<Request> {
        let call = self.deferred_tool_use.as_ref().filter(|_| self.is_error == Some(false))?;
        let (id, tool) = (call.text("id")?.to_owned(), call.text("name")?.to_owned());
        let wish = wish(&tool, call.member("input").unwrap_or(&Value::Null));
        Some(Request { call: id, tool, wish })
    }

    /// Returns the input and output tokens of the whole conversation; `usage` counts the last process alone.
    fn total(&self, before: Spent) -> (u64, u64) {
        if self.models.is_empty() {
            let of = &self.usage;
            return (sum([before.input_tokens, of.input()]), sum([before.output_tokens, of.output_tokens]));
        }
        self.models.values().fold((0, 0), |(input, output), of| {
            let read = sum([of.input_tokens, of.cache_creation_input_tokens, of.cache_read_input_tokens]);
            (sum([input, read]), sum([output, of.output_tokens]))
        })
    }
}

/// Returns the sum, or the largest number if the agent reports numbers whose sum is larger.
fn sum<const N: usize>(tokens: [u64; N]) -> u64 {
    tokens.into_iter().fold(0, u64::saturating_add)
}

impl Reader {
    pub fn new(before: Session) -> Self {
        Self { before, ..Self::default() }
    }

    /// Returns a reader of an agent whose hook decides about each use of a tool. What it denies is no news.
    pub fn asking(self, consent: Option<Consent>) -> Self {
        Self { asks: consent, ..self }
    }

    fn assistant(&mut self, line: &Value) -> Vec<Seen> {
        self.error = line.text("error").map(str::to_owned);
        // An agent that continues after it has deferred a tool use has given that up.
        let left = self.result.as_ref().filter(|_| self.asks.is_some()).and_then(Ended::request);
        let spent = self.answer(line.member("message")).map(Seen::Spent);
        let parts = line.member("message").list("content");
        left.map(|left| Seen::Done(left.call)).into_iter().chain(spent).chain(self.parts(parts)).collect()
    }

    /// Counts the usage of an answer. Returns the usage of the turn if it has changed.
    fn answer(&mut self, message: Option<&Value>) -> Option<Spent> {
        let id = message.text("id")?;
        let usage = Tokens::deserialize(message.member("usage")?).ok()?;
        let known = self.answers.iter_mut().find(|(known, _)| known == id);
        let before = match known {
            Some((_, known)) => std::mem::replace(known, usage),
            None => {
                self.answers.push_back((id.to_owned(), usage));
                if self.answers.len() > ANSWERS_MAX {
                    self.answers.pop_front();
                }
                Tokens::default()
            }
        };
        if before == usage {
            return None;
        }
        let more = |now: u64, then: u64, sum: u64| sum.saturating_add(now.saturating_sub(then));
        self.streamed = Spent {
            input_tokens: more(usage.input(), before.input(), self.streamed.input_tokens),
            output_tokens: more(usage.output_tokens, before.output_tokens, self.streamed.output_tokens),
            usd: None,
            unpriced: true,
        };
        Some(self.streamed)
    }

    fn parts(&mut self, parts: &[Value]) -> Vec<Seen> {
        parts
            .iter()
            .flat_map(|part| {
                let todos = part.member("input").member("todos").filter(|todos| todos.is_array());
                let todos = todos.filter(|_| part.text("name") == Some(TODOS));
                todos.cloned().map(Seen::Todos).into_iter().chain(self.part(part))
            })
            .collect()
    }

    fn part(&mut self, part: &Value) -> Option<Seen> {
        match part.text("type")? {
            "text" => part.text("text").map(short).filter(|text| !text.is_empty()).map(Seen::Text),
            "tool_use" if part.text("name") == Some(QUESTION) => {
                // Its denial is not reported again.
                self.denied.push(part.text("id").unwrap_or_default().to_owned());
                let asked = question(part.member("input"));
                Some(if self.asks.is_some() { Seen::Tool(asked) } else { Seen::Asked(asked) })
            }
            "tool_use" => {
                let what = tool(part.text("name")?, part.member("input"));
                self.asked.push_back((part.text("id").unwrap_or_default().to_owned(), what.clone()));
                if self.asked.len() > ASKED_MAX {
                    self.asked.pop_front();
                }
                Some(Seen::Tool(what))
            }
            _ => None,
        }
    }

    fn system(&mut self, line: &Value) -> Vec<Seen> {
        match line.text("subtype") {
            Some("init") => {
                self.session = line.text("session_id").map(str::to_owned);
                let version = line.text("claude_code_version").unwrap_or_default();
                self.too_old =
                    consent::too_old(version, self.asks).map(|(cause, remedy)| format!("{cause} ({remedy})"));
                let doomed = self.too_old.is_some().then_some(Seen::Doomed);
                self.session.clone().map(Seen::Session).into_iter().chain(doomed).collect()
            }
            Some("api_retry") => {
                let error = line.text("error").unwrap_or("error").to_owned();
                let wait = line.member("retry_delay_ms").and_then(Value::as_f64).unwrap_or_default() / 1000.0;
                let told = Seen::Delay(short(&format!("{error}, retrying in {wait:.1} s")));
                // The agent would retry an invalid key for minutes.
                let doomed = error == "authentication_failed";
                self.retried = Some(error);
                if doomed { vec![told, Seen::Doomed] } else { vec![told] }
            }
            Some("permission_denied") => {
                let id = line.text("tool_use_id").unwrap_or_default().to_owned();
                if self.denied.contains(&id) {
                    return Vec::new();
                }
                let asked = self.asked.iter().find(|(asked, _)| *asked == id).map(|(_, what)| what.clone());
                self.denied.push(id);
                if self.asks.is_some() {
                    return Vec::new();
                }
                vec![Seen::Denied(asked.unwrap_or_else(|| line.text("tool_name").unwrap_or("a tool").to_owned()))]
            }
            _ => Vec::new(),
        }
    }

    /// Returns the cost of this turn, the total of the conversation, and what was used beyond that total.
    fn spent(&self) -> (Spent, Spent, Spent) {
        let Some(result) = &self.result else {
            // The agent was killed: what its answers report is known, and their price is not.
            let turn = Spent { unpriced: true, ..self.streamed };
            return (turn, self.before.spent, self.before.unreported.plus(turn));
        };
        let before = self.before.spent;
        let (input_tokens, output_tokens) = result.total(before);
        let usd = result.total_cost_usd;
        let total = Spent { input_tokens, output_tokens, usd: usd.or(before.usd), unpriced: before.unpriced };
        // A turn that was ended by a signal is part of the next total, one that was killed is not. So whatever exceeds the
        // usage of this process is of earlier turns, and of that, what was counted then does not count again.
        let own_input = result.usage.input().max(self.streamed.input_tokens);
        let own_output = result.usage.output_tokens.max(self.streamed.output_tokens);
        let turn_of = |total: u64, before: u64, own: u64, counted: u64| {
            let since = total.saturating_sub(before);
            since - counted.min(since.saturating_sub(own))
        };
        let counted = self.before.unreported;
        let turn = Spent {
            input_tokens: turn_of(input_tokens, before.input_tokens, own_input, counted.input_tokens),
            output_tokens: turn_of(output_tokens, before.output_tokens, own_output, counted.output_tokens),
            usd: usd.map(|total| (total - before.usd.unwrap_or(0.0)).max(0.0)),
            unpriced: usd.is_none(),
        };
        (turn, total, Spent::default())
    }

    fn outcome(&self, end: End<'_>) -> Outcome {
        if let Some(cause) = &self.too_old {
            return failure(cause, None, FaultKind::Lasting);
        }
        if !self.is_known && end.ended.is_success() {
            return not_understood("claude", &end);
        }
        let Some(result) = &self.result else {
            let said = short(end.stderr);
            let cause = match (said.is_empty(), &self.retried) {
                (false, _) => format!("{} without a result: {said}", end_words(end.ended)),
                (true, Some(error)) => format!("{} while retrying after {error}", end_words(end.ended)),
                (true, None) => format!("{} without a result", end_words(end.ended)),
            };
            let fault = match self.retried.as_deref() {
                // The agent is ended by us as soon as it retries with an invalid key.
                Some("authentication_failed") => FaultKind::Lasting,
                Some("server_error" | "overloaded") => FaultKind::Passing,
                Some("rate_limit") if !matches!(end.ended, swarm_model::Ended::Signal(_)) => {
                    FaultKind::Limit { until_ms: None }
                }
                _ => classify_end(&end, &OWN_ERRORS),
            };
            return failure(cause, None, fault);
        };
        if result.is_error == Some(false) && result.is_deferred() {
            let what = result.deferred();
            let cause = format!("stopped at {what}: a hook in claude's settings deferred it, and nobody can be asked");
            return failure(cause, None, FaultKind::Lasting);
        }
        if result.is_error == Some(false) && end.ended.is_success() {
            return Outcome::Success { summary: result.result.as_deref().map(gist).filter(|text| !text.is_empty()) };
        }
        let said = result.result.clone().unwrap_or_else(|| result.errors.join("; "));
        let cause = if said.trim().is_empty() { end_words(end.ended) } else { short(&said) };
        failure(cause, Some(said).filter(|text| !text.trim().is_empty()), self.fault(result, &end))
    }

    /// Reports whether the conversation that this turn was to continue does not exist.
    fn is_gone(&self, end: &End<'_>) -> bool {
        let is_said = match &self.result {
            Some(result) => result.is_error == Some(true) && result.errors.iter().any(|error| error.starts_with(GONE)),
            None => own_error(end.stderr, &OWN_ERRORS).contains(GONE),
        };
        !self.before.id.is_empty() && self.session.is_none() && is_said
    }

    /// Returns the tool use at which the agent has stopped, if it may.
    fn deferred(&self, end: &End<'_>) -> Option<Deferred> {
        self.asks?;
        match &self.result {
            Some(result) => result.request().map(Deferred::At),
            None if self.before.id.is_empty() || self.is_known => None,
            None => end.stderr.lines().any(|line| line.starts_with(UNMARKED)).then_some(Deferred::Nowhere),
        }
    }

    /// Returns the uses of tools whose results a line reports.
    fn results(line: &Value) -> Vec<Seen> {
        let parts = line.member("message").list("content").iter();
        let of_results = parts.filter(|part| part.text("type") == Some("tool_result"));
        of_results.filter_map(|part| part.text("tool_use_id").map(|id| Seen::Done(id.to_owned()))).collect()
    }

    fn fault(&self, result: &Ended, end: &End<'_>) -> FaultKind {
        let said = result.result.clone().unwrap_or_else(|| result.errors.join("; "));
        let dated = || reset(&said, end.now_ms, end.zone);
        if let Some(until_ms) = self.limit {
            return FaultKind::Limit { until_ms: until_ms.or_else(dated) };
        }
        if result.api_error.as_deref() == Some("usage_limit_reached") {
            return FaultKind::Limit { until_ms: dated() };
        }
        match (result.subtype.as_str(), self.error.as_deref(), result.terminal_reason.as_deref()) {
            ("error_max_turns", ..) => FaultKind::Task,
            ("error_max_budget_usd", ..) => FaultKind::Lasting,
            (_, Some("authentication_failed" | "billing_error" | "model_not_found" | "invalid_request"), _) => {
                FaultKind::Lasting
            }
            (_, Some("rate_limit"), _) => FaultKind::Limit { until_ms: dated() },
            (_, Some("server_error" | "overloaded"), _) => FaultKind::Passing,
            (_, Some("unknown"), Some("api_error")) => FaultKind::Lasting,
            _ => classify(&said, end),
        }
    }
}

impl Parser for Reader {
    fn skips(&self, line: &[u8], _told: bool) -> bool {
        // Tool results are most of the output. Only an agent that asks is told when one is there.
        self.asks.is_none() && line.starts_with(br#"{"type":"user""#)
    }

    fn line(&mut self, line: &str) -> Vec<Seen> {
        let Ok(value) = serde_json::from_str::<Value>(line) else { return Vec::new() };
        let kind = value.text("type");
        self.is_known |= matches!(kind, Some("system" | "assistant" | "result"));
        match kind {
            Some("system") => self.system(&value),
            Some("assistant") => self.assistant(&value),
            Some("user") if self.asks.is_some() => Self::results(&value),
            Some("rate_limit_event") if value.member("rate_limit_info").text("status") == Some("rejected") => {
                let seconds = value.member("rate_limit_info").whole("resetsAt");
                self.limit = Some(seconds.map(|seconds| seconds.saturating_mul(1000)));
                Vec::new()
            }
            Some("result") => {
                // A result that cannot be parsed is no evidence of success.
                let ended: Ended = serde_json::from_value(value).unwrap_or_default();
                let is_known = |id: &str| self.denied.iter().any(|known| known == id);
                let is_new = |one: &&Value| !one.text("tool_use_id").is_some_and(is_known);
                let is_news = self.asks.is_none();
                let denied = ended.permission_denials.iter().filter(|one| is_news && is_new(one));
                let told = |one: &Value| tool(one.text("tool_name").unwrap_or("a tool"), one.member("tool_input"));
                let mut seen: Vec<Seen> = denied.map(|one| Seen::Denied(told(one))).collect();
                seen.extend((is_news && ended.is_deferred()).then(|| Seen::Denied(ended.deferred())));
                self.result = Some(ended);
                seen
            }
            _ => Vec::new(),
        }
    }

    fn end(self: Box<Self>, end: End<'_>) -> Report {
        let deferred = self.deferred(&end);
        let (spent, total, unreported) = match deferred {
            Some(Deferred::Nowhere) => (Spent::default(), self.before.spent, self.before.unreported),
            _ => self.spent(),
        };
        let id = self.session.clone().or_else(|| Some(self.before.id.clone()).filter(|id| !id.is_empty()));
        let session = id.map(|id| Session { id, spent: total, unreported });
        let said = self.result.as_ref().and_then(|result| result.result.clone());
        let is_gone = self.is_gone(&end);
        Report { outcome: self.outcome(end), spent, session, said, is_gone, deferred }
    }
}

/// Returns the questions in one line, each with the offered answers.
pub fn question(input: Option<&Value>) -> String {
    let asked = input.list("questions").iter().filter_map(|asked| {
        let options: Vec<&str> = asked.list("options").iter().filter_map(|option| option.text("label")).collect();
        let text = asked.text("question")?;
        Some(if options.is_empty() { text.to_owned() } else { format!("{text} ({})", options.join(" | ")) })
    });
    let asked: Vec<String> = asked.collect();
    if asked.is_empty() { "a question".to_owned() } else { short(&asked.join(" ")) }
}

/// Describes a tool use, for example `Bash: cargo test` or `Write: src/lib.rs`.
pub fn tool(name: &str, input: Option<&Value>) -> String {
    let about = ["command", "file_path", "filePath", "path", "pattern", "url", "query", "description", "prompt"];
    match about.iter().find_map(|key| Some((*key, input.text(key)?))) {
        Some(("command", line)) => command(name, line),
        Some((_, detail)) => short(&format!("{name}: {detail}")),
        None => name.to_owned(),
    }
}

/// Describes the execution of a command in one line, which says so if the command has more lines.
pub fn command(tool: &str, command: &str) -> String {
    let first = short(&format!("{tool}: {}", command.trim_start()));
    match command.trim().lines().count() {
        0 | 1 => first,
        count => format!("{first} … ({count} lines)"),
    }
}
