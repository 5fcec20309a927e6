//! `claude`: Claude Code without a terminal (`-p --output-format stream-json`).
//!
//! Neither the exit code nor the subtype `success` alone means success: a request that failed permanently has both. A
//! turn succeeded if the exit code is 0 *and* the result has `is_error: false`. Costs are totals of the whole
//! conversation.

use std::collections::{BTreeMap, VecDeque};

use serde::Deserialize;
use serde_json::Value;
use swarm_model::run::progress::Spent;
use swarm_model::run::{FaultKind, Outcome};

use super::{End, Launch, Parser, Report, Seen, Session, Turn, classify, end_words, failure, short};
use swarm_config::sections::AgentConfig;

/// Maximum number of remembered tool uses that may still be denied.
const ASKED_MAX: usize = 64;
/// Tool with which the agent asks a person.
const QUESTION: &str = "AskUserQuestion";
/// Tool with which the agent maintains its task list.
const TODOS: &str = "TodoWrite";

pub fn launch(config: &AgentConfig, turn: &Turn<'_>) -> Launch {
    let mut argv = config.command.clone().unwrap_or_else(|| vec!["claude".to_owned()]);
    // The prompt goes to standard input, because the length of a command line is limited.
    argv.extend(["-p", "--output-format", "stream-json", "--verbose"].map(str::to_owned));
    // Configured permissions take precedence.
    if !config.arguments.iter().any(|word| word == "--permission-mode") {
        argv.extend(["--permission-mode", "acceptEdits", "--allowedTools", "Bash(*)"].map(str::to_owned));
    }
    if let Some(model) = &config.model {
        argv.extend(["--model".to_owned(), model.clone()]);
    }
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
    permission_denials: Vec<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
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

impl Ended {
    /// Returns the input and output tokens of the whole conversation; `usage` counts the last process alone.
    fn total(&self, before: Spent) -> (u64, u64) {
        if self.models.is_empty() {
            let of = &self.usage;
            let input = of.input_tokens + of.cache_creation_input_tokens + of.cache_read_input_tokens;
            return (before.input_tokens + input, before.output_tokens + of.output_tokens);
        }
        self.models.values().fold((0, 0), |(input, output), of| {
            let read = of.input_tokens + of.cache_creation_input_tokens + of.cache_read_input_tokens;
            (input + read, output + of.output_tokens)
        })
    }
}

impl Reader {
    pub fn new(before: Session) -> Self {
        Self { before, ..Self::default() }
    }

    fn assistant(&mut self, line: &Value) -> Vec<Seen> {
        self.error = line["error"].as_str().map(str::to_owned);
        let parts = line["message"]["content"].as_array().into_iter().flatten();
        parts
            .flat_map(|part| {
                let todos = Some(&part["input"]["todos"]).filter(|todos| part["name"] == TODOS && todos.is_array());
                todos.cloned().map(Seen::Todos).into_iter().chain(self.part(part))
            })
            .collect()
    }

    fn part(&mut self, part: &Value) -> Option<Seen> {
        match part["type"].as_str()? {
            "text" => part["text"].as_str().map(short).filter(|text| !text.is_empty()).map(Seen::Text),
            "tool_use" if part["name"] == QUESTION => {
                // Its denial is not reported again.
                self.denied.push(part["id"].as_str().unwrap_or_default().to_owned());
                Some(Seen::Asked(question(&part["input"])))
            }
            "tool_use" => {
                let what = tool(part["name"].as_str()?, &part["input"]);
                self.asked.push_back((part["id"].as_str().unwrap_or_default().to_owned(), what.clone()));
                if self.asked.len() > ASKED_MAX {
                    self.asked.pop_front();
                }
                Some(Seen::Tool(what))
            }
            _ => None,
        }
    }

    fn system(&mut self, line: &Value) -> Vec<Seen> {
        match line["subtype"].as_str() {
            Some("init") => {
                self.session = line["session_id"].as_str().map(str::to_owned);
                self.session.clone().map(Seen::Session).into_iter().collect()
            }
            Some("api_retry") => {
                let error = line["error"].as_str().unwrap_or("error").to_owned();
                let wait = line["retry_delay_ms"].as_f64().unwrap_or_default() / 1000.0;
                let told = Seen::Delay(format!("{error}, retrying in {wait:.1} s"));
                // The agent would retry an invalid key for minutes.
                let doomed = error == "authentication_failed";
                self.retried = Some(error);
                if doomed { vec![told, Seen::Doomed] } else { vec![told] }
            }
            Some("permission_denied") => {
                let id = line["tool_use_id"].as_str().unwrap_or_default().to_owned();
                if self.denied.contains(&id) {
                    return Vec::new();
                }
                let asked = self.asked.iter().find(|(asked, _)| *asked == id).map(|(_, what)| what.clone());
                self.denied.push(id);
                vec![Seen::Denied(asked.unwrap_or_else(|| line["tool_name"].as_str().unwrap_or("a tool").to_owned()))]
            }
            _ => Vec::new(),
        }
    }

    /// Returns the cost of this turn and the total of the conversation.
    fn spent(&self) -> (Spent, Spent) {
        let Some(result) = &self.result else {
            return (Spent { unpriced: true, ..Spent::default() }, self.before.spent);
        };
        let before = self.before.spent;
        let (input_tokens, output_tokens) = result.total(before);
        let usd = result.total_cost_usd;
        let total = Spent { input_tokens, output_tokens, usd: usd.or(before.usd), unpriced: before.unpriced };
        let turn = Spent {
            input_tokens: input_tokens.saturating_sub(before.input_tokens),
            output_tokens: output_tokens.saturating_sub(before.output_tokens),
            usd: usd.map(|total| (total - before.usd.unwrap_or(0.0)).max(0.0)),
            unpriced: usd.is_none(),
        };
        (turn, total)
    }

    fn outcome(&self, end: End<'_>) -> Outcome {
        let Some(result) = &self.result else {
            let said = short(end.stderr);
            let cause = match (said.is_empty(), &self.retried) {
                (false, _) => format!("{} without a result: {said}", end_words(end.ended)),
                (true, Some(error)) => format!("{} while retrying after {error}", end_words(end.ended)),
                (true, None) => format!("{} without a result", end_words(end.ended)),
            };
            let told = format!("{} {}", self.retried.as_deref().unwrap_or_default(), end.stderr);
            return failure(cause, None, classify(&told, end.now_ms));
        };
        if result.is_error == Some(false) && end.ended.is_success() {
            return Outcome::Success { summary: result.result.as_deref().map(short).filter(|text| !text.is_empty()) };
        }
        let said = result.result.clone().unwrap_or_else(|| result.errors.join("; "));
        let cause = if said.trim().is_empty() { end_words(end.ended) } else { short(&said) };
        failure(cause, Some(said).filter(|text| !text.trim().is_empty()), self.fault(result, end.now_ms))
    }

    fn fault(&self, result: &Ended, now_ms: u64) -> FaultKind {
        if let Some(until_ms) = self.limit {
            return FaultKind::Limit { until_ms };
        }
        let said = result.result.clone().unwrap_or_else(|| result.errors.join("; "));
        match (result.subtype.as_str(), self.error.as_deref(), result.terminal_reason.as_deref()) {
            ("error_max_turns", ..) => FaultKind::Task,
            ("error_max_budget_usd", ..) => FaultKind::Lasting,
            (_, Some("authentication_failed" | "billing_error" | "model_not_found" | "invalid_request"), _) => {
                FaultKind::Lasting
            }
            (_, Some("rate_limit"), _) => FaultKind::Limit { until_ms: None },
            (_, Some("server_error" | "overloaded"), _) => FaultKind::Passing,
            (_, Some("unknown"), Some("api_error")) => FaultKind::Lasting,
            _ => classify(&said, now_ms),
        }
    }
}

impl Parser for Reader {
    fn skips(&self, line: &[u8], told: bool) -> bool {
        // Tool results are most of the output and are not needed.
        line.starts_with(br#"{"type":"user""#)
            || (!told
                && line.starts_with(br#"{"type":"assistant""#)
                && memchr::memmem::find(line, br#""error":"#).is_none())
    }

    fn line(&mut self, line: &str) -> Vec<Seen> {
        let Ok(value) = serde_json::from_str::<Value>(line) else { return Vec::new() };
        match value["type"].as_str() {
            Some("system") => self.system(&value),
            Some("assistant") => self.assistant(&value),
            Some("rate_limit_event") if value["rate_limit_info"]["status"] == "rejected" => {
                let seconds = value["rate_limit_info"]["resetsAt"].as_u64();
                self.limit = Some(seconds.map(|seconds| seconds.saturating_mul(1000)));
                Vec::new()
            }
            Some("result") => {
                // A result that cannot be parsed is no evidence of success.
                let ended: Ended = serde_json::from_value(value).unwrap_or_default();
                let is_new = |one: &&Value| !self.denied.iter().any(|id| one["tool_use_id"] == *id);
                let denied = ended.permission_denials.iter().filter(is_new);
                let seen = denied
                    .map(|one| Seen::Denied(tool(one["tool_name"].as_str().unwrap_or("a tool"), &one["tool_input"])));
                let seen = seen.collect();
                self.result = Some(ended);
                seen
            }
            _ => Vec::new(),
        }
    }

    fn end(self: Box<Self>, end: End<'_>) -> Report {
        let (spent, total) = self.spent();
        let id = self.session.clone().or_else(|| Some(self.before.id.clone()).filter(|id| !id.is_empty()));
        let session = id.map(|id| Session { id, spent: total });
        let said = self.result.as_ref().and_then(|result| result.result.clone());
        Report { outcome: self.outcome(end), spent, session, said }
    }
}

/// Returns the questions in one line, each with the offered answers.
pub fn question(input: &Value) -> String {
    let asked = input["questions"].as_array().into_iter().flatten().filter_map(|asked| {
        let options = asked["options"].as_array().into_iter().flatten();
        let options: Vec<&str> = options.filter_map(|option| option["label"].as_str()).collect();
        let text = asked["question"].as_str()?;
        Some(if options.is_empty() { text.to_owned() } else { format!("{text} ({})", options.join(" | ")) })
    });
    let asked: Vec<String> = asked.collect();
    if asked.is_empty() { "a question".to_owned() } else { short(&asked.join(" ")) }
}

/// Describes a tool use, for example `Bash: cargo test` or `Write: src/lib.rs`.
pub fn tool(name: &str, input: &Value) -> String {
    let about = ["command", "file_path", "path", "pattern", "url", "query", "description", "prompt"];
    match about.iter().find_map(|key| input[key].as_str()) {
        Some(detail) => short(&format!("{name}: {detail}")),
        None => name.to_owned(),
    }
}
