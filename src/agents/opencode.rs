//! `opencode`: opencode without a terminal (`run --format json`). A turn succeeded if the reason of its last step is
//! `stop` and the exit code is 0: a refused permission ends the turn with exit code 0 as well, at the step that asked for
//! it. Tokens and prices are those of each step.

use serde_json::Value;
use swarm_model::json::Members as _;
use swarm_model::run::progress::Spent;
use swarm_model::run::{FaultKind, Outcome};

use super::fault::{classify_end, of_status};
use super::{End, Launch, Parser, Report, Seen, Session, Turn};
use super::{classify, claude, end_words, failure, gist, not_understood, short};
use swarm_config::sections::AgentConfig;

/// Beginnings of the lines of standard error in which the agent reports why it ended.
const OWN_ERRORS: [&str; 1] = ["Error: "];
/// Message about a conversation that the agent does not find.
const GONE: &str = "Error: Session not found";
/// Beginning of the error of a tool use that needed a permission.
pub const REFUSED: &str = "The user rejected permission";
const PERMISSION: &str = "OPENCODE_PERMISSION";
/// Variable with which it does not load the configuration of the repository, and its value.
pub const OWN_SETTINGS_ONLY: (&str, &str) = ("OPENCODE_DISABLE_PROJECT_CONFIG", "1");

pub fn launch(config: &AgentConfig, turn: &Turn<'_>) -> Launch {
    let mut argv = config.command.clone().unwrap_or_else(|| vec!["opencode".to_owned()]);
    argv.extend(["run", "--format", "json"].map(str::to_owned));
    argv.extend(config.model_option());
    if let Some(session) = turn.session {
        argv.extend(["-s".to_owned(), session.id.clone()]);
    }
    argv.extend(config.arguments.clone());
    // The prompt goes to standard input, because the length of a command line is limited. Configuration of the repository
    // is not loaded, except for the plugins in it, which recent versions execute all the same.
    let env =
        [(PERMISSION, r#"{"bash":"allow","edit":"allow"}"#), ("OPENCODE_DISABLE_AUTOUPDATE", "1"), OWN_SETTINGS_ONLY];
    let env = env.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    Launch { argv, env, input: Some(turn.prompt.to_owned()) }
}

#[derive(Default)]
pub struct Reader {
    before: Session,
    session: Option<String>,
    /// Reason for the end of the last step. `None` while a step is in progress.
    reason: Option<String>,
    /// Error after which no step has begun.
    failed: Option<Failed>,
    /// Tool use that was refused in the last step.
    refused: Option<String>,
    message: Option<String>,
    spent: Spent,
    is_known: bool,
}

struct Failed {
    message: String,
    status: Option<u16>,
    /// Number of seconds after which the provider accepts requests again.
    retry_after: Option<u64>,
}

impl Reader {
    pub fn new(before: Session) -> Self {
        Self { before, ..Self::default() }
    }

    fn named(&mut self, line: &Value) -> Option<Seen> {
        let id = line.text("sessionID").filter(|_| self.session.is_none())?;
        self.session = Some(id.to_owned());
        Some(Seen::Session(id.to_owned()))
    }

    fn tool(&mut self, part: Option<&Value>) -> Vec<Seen> {
        let state = part.member("state");
        let what = claude::tool(part.text("tool").unwrap_or("a tool"), state.member("input"));
        if !state.text("error").is_some_and(|error| error.starts_with(REFUSED)) {
            return vec![Seen::Tool(what)];
        }
        self.refused = Some(what.clone());
        vec![Seen::Denied(what)]
    }

    fn step(&mut self, part: Option<&Value>) -> Seen {
        self.reason = part.text("reason").map(str::to_owned);
        self.spent = self.spent.plus(step(part));
        Seen::Spent(self.spent)
    }

    fn error(&mut self, error: Option<&Value>) {
        let data = error.member("data");
        let message = data.text("message").or(error.text("name")).unwrap_or("error").to_owned();
        let status = data.whole("statusCode").and_then(|status| u16::try_from(status).ok());
        let retry_after = data.member("responseHeaders").text("retry-after").and_then(|text| text.parse().ok());
        self.failed = Some(Failed { message, status, retry_after });
    }

    fn outcome(&self, end: &End<'_>, stderr: &str) -> Outcome {
        if let Some(Failed { message, status, retry_after }) = &self.failed {
            let fault = match status.map(|status| of_status(status, message, end)) {
                Some(FaultKind::Limit { until_ms: None }) => FaultKind::Limit {
                    until_ms: retry_after.map(|seconds| end.now_ms.saturating_add(seconds.saturating_mul(1000))),
                },
                Some(fault) => fault,
                None => classify(message, end),
            };
            let cause = status.map_or_else(|| short(message), |status| short(&format!("{message} (status {status})")));
            return failure(cause, Some(message.clone()), fault);
        }
        if !self.is_known && end.ended.is_success() {
            return not_understood("opencode", end);
        }
        match (self.reason.as_deref(), &self.refused) {
            (Some("stop"), _) if end.ended.is_success() => {
                Outcome::Success { summary: self.message.as_deref().map(gist) }
            }
            (Some("tool-calls"), Some(what)) if end.ended.is_success() => {
                failure(format!("stopped because it was not allowed {what}"), None, FaultKind::Lasting)
            }
            (Some(reason), _) if end.ended.is_success() => {
                failure(format!("stopped with the reason '{}'", short(reason)), None, FaultKind::Task)
            }
            _ => {
                let how = format!("{} without completing its turn", end_words(end.ended));
                let said = short(stderr);
                let cause = if said.is_empty() { how } else { format!("{how}: {said}") };
                failure(cause, None, classify_end(&End { stderr, ..*end }, &OWN_ERRORS))
            }
        }
    }
}

impl Parser for Reader {
    fn line(&mut self, line: &str) -> Vec<Seen> {
        let Ok(value) = serde_json::from_str::<Value>(line) else { return Vec::new() };
        let part = value.member("part");
        let mut seen: Vec<Seen> = self.named(&value).into_iter().collect();
        match value.text("type") {
            Some("step_start") => (self.reason, self.failed, self.refused) = (None, None, None),
            Some("text") => {
                let text = part.text("text").unwrap_or_default();
                seen.extend(Some(short(text)).filter(|text| !text.is_empty()).map(Seen::Text));
                self.message = Some(text.to_owned()).filter(|text| !text.trim().is_empty()).or(self.message.take());
            }
            Some("tool_use") => seen.extend(self.tool(part)),
            Some("step_finish") => seen.push(self.step(part)),
            Some("error") => self.error(value.member("error")),
            _ => return seen,
        }
        self.is_known = true;
        seen
    }

    fn end(self: Box<Self>, end: End<'_>) -> Report {
        let id = self.session.clone().or_else(|| Some(self.before.id.clone()).filter(|id| !id.is_empty()));
        let unfinished = self.reason.is_none() && self.is_known;
        let spent = Spent { unpriced: self.spent.unpriced || unfinished || !self.is_known, ..self.spent };
        let total = self.before.spent.plus(spent);
        let session = id.map(|id| Session { id, spent: total, unreported: self.before.unreported });
        let stderr = plain(end.stderr);
        let is_gone = !self.before.id.is_empty() && self.session.is_none() && stderr.lines().any(|line| line == GONE);
        Report { outcome: self.outcome(&end, &stderr), spent, session, said: self.message, is_gone, deferred: None }
    }
}

/// Returns what a step used.
pub fn step(part: Option<&Value>) -> Spent {
    let tokens = part.member("tokens");
    let cache = |key: &str| tokens.member("cache").whole(key).unwrap_or(0);
    let of = |key: &str| tokens.whole(key).unwrap_or(0);
    let input_tokens = of("input").saturating_add(cache("read")).saturating_add(cache("write"));
    let output_tokens = of("output").saturating_add(of("reasoning"));
    // A model without a known price has the price 0.
    let usd = part.member("cost").and_then(Value::as_f64).filter(|usd| usd.is_finite() && *usd > 0.0);
    let unpriced = usd.is_none() && input_tokens.saturating_add(output_tokens) > 0;
    Spent { input_tokens, output_tokens, usd, unpriced }
}

/// Returns a text without colours.
fn plain(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}
