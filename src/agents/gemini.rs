//! `gemini`: Gemini CLI without a terminal (`-o stream-json`). A turn succeeded if its last line, the result, has the
//! status `success` and the exit code is 0. Token counts are those of one start; prices are not reported.

use serde_json::Value;
use swarm_model::Ended;
use swarm_model::json::Members as _;
use swarm_model::run::progress::Spent;
use swarm_model::run::{FaultKind, Outcome};

use super::fault::{classify_end, of_status, own_error};
use super::{End, Launch, Parser, Report, Seen, Session, Turn};
use super::{classify, claude, end_words, failure, gist, not_understood, short};
use swarm_config::sections::AgentConfig;

/// Beginnings of the lines of standard error in which the agent reports why it ended.
const OWN_ERRORS: [&str; 4] = ["Error ", "Error: ", "[API Error", "Gemini CLI is not running in a trusted directory"];
/// Phrases for a conversation that the agent does not find.
const GONE: [&str; 2] = ["Error resuming session: Invalid session identifier", "Error resuming session: No previous"];
/// Variable that makes the agent load the settings of the directory, and keep the permissions that it is started with.
pub const TRUST: &str = "GEMINI_CLI_TRUST_WORKSPACE";

pub fn launch(config: &AgentConfig, turn: &Turn<'_>) -> Launch {
    let mut argv = config.command.clone().unwrap_or_else(|| vec!["gemini".to_owned()]);
    // The prompt goes to standard input, because the length of a command line is limited.
    argv.extend(["-o", "stream-json"].map(str::to_owned));
    // Configured permissions take precedence.
    if !config.arguments.iter().any(|word| word.starts_with("--approval-mode") || word == "--yolo" || word == "-y") {
        argv.extend(["--approval-mode", "yolo"].map(str::to_owned));
    }
    argv.extend(config.model_option());
    match turn.session {
        Some(session) => argv.extend(["--resume".to_owned(), session.id.clone()]),
        None => argv.extend(["--session-id".to_owned(), turn.fresh_id.to_owned()]),
    }
    argv.extend(config.arguments.clone());
    Launch { argv, env: vec![(TRUST.to_owned(), "true".to_owned())], input: Some(turn.prompt.to_owned()) }
}

#[derive(Default)]
pub struct Reader {
    before: Session,
    session: Option<String>,
    /// Message that is being written, in parts.
    writing: String,
    message: Option<String>,
    /// Status and error message of the result.
    result: Option<(String, String)>,
    spent: Spent,
    is_known: bool,
}

impl Reader {
    pub fn new(before: Session) -> Self {
        let spent = Spent { unpriced: true, ..Spent::default() };
        Self { before, spent, ..Self::default() }
    }

    /// Returns the message that has been written, if it is complete.
    fn written(&mut self) -> Option<Seen> {
        let message = std::mem::take(&mut self.writing);
        let told = Some(short(&message)).filter(|text| !text.is_empty())?;
        self.message = Some(message);
        Some(Seen::Text(told))
    }

    fn result(&mut self, line: &Value) {
        let status = line.text("status").unwrap_or_default().to_owned();
        let error = line.member("error").text("message").unwrap_or_default().to_owned();
        let tokens = |key: &str| line.member("stats").whole(key).unwrap_or(0);
        self.spent.input_tokens = tokens("input_tokens");
        self.spent.output_tokens = tokens("output_tokens");
        self.result = Some((status, error));
    }

    fn outcome(&self, end: &End<'_>) -> Outcome {
        match &self.result {
            Some((status, _)) if status == "success" && end.ended.is_success() => {
                Outcome::Success { summary: self.message.as_deref().map(gist) }
            }
            Some((_, error)) if !error.is_empty() => {
                let fault = match status_in(error, end.ended) {
                    Some(status) => of_status(status, error, end),
                    None => classify(error, end),
                };
                failure(short(error), Some(error.clone()), fault)
            }
            Some((status, _)) => {
                let cause = format!("{} with the status '{}'", end_words(end.ended), short(status));
                failure(cause, None, classify_end(end, &OWN_ERRORS))
            }
            None if !self.is_known && end.ended.is_success() => not_understood("gemini", end),
            None => self.failed(end),
        }
    }

    /// Returns the failure of an agent that printed no result.
    fn failed(&self, end: &End<'_>) -> Outcome {
        let said = own_error(end.stderr, &OWN_ERRORS);
        let how = format!("{} without a result", end_words(end.ended));
        if said.starts_with(OWN_ERRORS[3]) {
            return failure(short(&said), Some(said), FaultKind::Lasting);
        }
        let cause = if said.is_empty() { how } else { format!("{how}: {}", short(&said)) };
        failure(cause, None, classify_end(end, &OWN_ERRORS))
    }
}

/// Returns the status of the provider's answer: from the message, or else from the exit code, which is its last byte.
fn status_in(message: &str, ended: Ended) -> Option<u16> {
    let stated = message
        .split_once("\"code\":")
        .map(|(_, rest)| rest.trim_start().chars().take_while(char::is_ascii_digit).collect::<String>());
    let stated = stated.and_then(|digits| digits.parse().ok()).filter(|status| (400..600).contains(status));
    let Ended::Code(code) = ended else { return stated };
    stated.or_else(|| u16::try_from(code).ok().filter(|code| (144..256).contains(code)).map(|code| code + 256))
}

impl Parser for Reader {
    fn line(&mut self, line: &str) -> Vec<Seen> {
        let Ok(value) = serde_json::from_str::<Value>(line) else { return Vec::new() };
        let kind = value.text("type").unwrap_or_default();
        if kind == "message" && value.text("role") == Some("assistant") {
            self.is_known = true;
            self.writing.push_str(value.text("content").unwrap_or_default());
            let is_part = value.member("delta").and_then(Value::as_bool) == Some(true);
            return if is_part { Vec::new() } else { self.written().into_iter().collect() };
        }
        let mut seen: Vec<Seen> = self.written().into_iter().collect();
        match kind {
            "init" => {
                self.session = value.text("session_id").map(str::to_owned);
                seen.extend(self.session.clone().map(Seen::Session));
            }
            "tool_use" => {
                let name = value.text("tool_name").unwrap_or("a tool");
                seen.push(Seen::Tool(claude::tool(name, value.member("parameters"))));
            }
            "error" => {
                let said = value.text("message").map(short).filter(|text| !text.is_empty());
                seen.extend(said.map(Seen::Delay));
            }
            "result" => self.result(&value),
            "message" | "tool_result" => {}
            _ => return seen,
        }
        self.is_known = true;
        seen
    }

    fn end(mut self: Box<Self>, end: End<'_>) -> Report {
        self.written();
        let id = self.session.clone().or_else(|| Some(self.before.id.clone()).filter(|id| !id.is_empty()));
        // The totals are of this start alone.
        let total = self.before.spent.plus(self.spent);
        let session = id.map(|id| Session { id, spent: total, unreported: self.before.unreported });
        let is_gone = !self.before.id.is_empty()
            && self.session.is_none()
            && GONE.iter().any(|phrase| own_error(end.stderr, &OWN_ERRORS).starts_with(phrase));
        Report { outcome: self.outcome(&end), spent: self.spent, session, said: self.message, is_gone, deferred: None }
    }
}
