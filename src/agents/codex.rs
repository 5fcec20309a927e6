//! `codex`: Codex without a terminal (`codex exec --json`). Token counts are totals of the whole conversation; prices
//! are not reported.

use serde_json::Value;
use swarm_model::json::Members as _;
use swarm_model::run::Outcome;
use swarm_model::run::progress::Spent;

use super::fault::{classify_end, own_error};
use super::{
    End, Launch, Parser, Report, Seen, Session, Turn, classify, end_words, failure, gist, not_understood, short,
};
use swarm_config::sections::AgentConfig;

/// Beginnings of the lines of standard error in which the agent reports why it ended.
const OWN_ERRORS: [&str; 2] = ["Error: ", "ERROR: "];
/// Phrases for a conversation that the agent does not find.
const GONE: [&str; 2] = ["no rollout found for", "no saved session found"];

pub fn launch(config: &AgentConfig, turn: &Turn<'_>) -> Launch {
    let mut argv = config.command.clone().unwrap_or_else(|| vec!["codex".to_owned()]);
    argv.push("exec".to_owned());
    if turn.session.is_some() {
        argv.push("resume".to_owned());
    }
    argv.extend(["--json", "--skip-git-repo-check"].map(str::to_owned));
    // A chosen sandbox takes precedence.
    let chooses = |word: &String| word.starts_with("sandbox_mode=") || word.starts_with("--sandbox") || word == "-s";
    if !config.arguments.iter().any(chooses) {
        argv.push("--dangerously-bypass-approvals-and-sandbox".to_owned());
    }
    argv.extend(config.model_option());
    argv.extend(config.arguments.clone());
    argv.extend(turn.session.map(|session| session.id.clone()));
    // The prompt goes to standard input, because the length of a command line is limited.
    argv.push("-".to_owned());
    Launch { argv, env: Vec::new(), input: Some(turn.prompt.to_owned()) }
}

#[derive(Default)]
pub struct Reader {
    before: Session,
    session: Option<String>,
    /// Total of the whole conversation.
    total: Option<Spent>,
    completed: bool,
    failed: Option<String>,
    message: Option<String>,
    /// A line was understood.
    is_known: bool,
}

impl Reader {
    pub fn new(before: Session) -> Self {
        Self { before, ..Self::default() }
    }

    fn item(&mut self, item: Option<&Value>, completed: bool) -> Vec<Seen> {
        let seen = match item.text("type") {
            Some("command_execution") if !completed => {
                item.text("command").map(|command| Seen::Tool(short(&format!("exec: {command}"))))
            }
            Some("file_change") if completed => {
                let paths = item.list("changes").iter().filter_map(|change| change.text("path"));
                let paths: Vec<&str> = paths.collect();
                Some(Seen::Tool(short(&format!("edit: {}", paths.join(", ")))))
            }
            Some("agent_message") if completed => {
                let text = item.text("text").unwrap_or_default().to_owned();
                self.message = Some(text.clone()).filter(|text| !text.trim().is_empty());
                self.message.as_deref().map(|text| Seen::Text(short(text)))
            }
            _ => None,
        };
        seen.into_iter().collect()
    }

    fn outcome(&self, end: End<'_>) -> Outcome {
        if let Some(message) = &self.failed {
            return failure(short(message), Some(message.clone()), classify(message, &end));
        }
        if !self.is_known && end.ended.is_success() {
            return not_understood("codex", &end);
        }
        if !end.ended.is_success() || !self.completed {
            let said = short(end.stderr);
            let how = format!("{} without completing its turn", end_words(end.ended));
            let cause = if said.is_empty() { how } else { format!("{how}: {said}") };
            return failure(cause, None, classify_end(&end, &OWN_ERRORS));
        }
        match &self.message {
            Some(message) => Outcome::Success { summary: Some(gist(message)) },
            // A refusal looks like this: a completed turn without any message.
            None => failure("turn ended without a message", None, swarm_model::run::FaultKind::Task),
        }
    }
}

impl Parser for Reader {
    fn skips(&self, line: &[u8], told: bool) -> bool {
        !told && line.starts_with(br#"{"type":"item."#) && memchr::memmem::find(line, b"agent_message").is_none()
    }

    fn line(&mut self, line: &str) -> Vec<Seen> {
        let Ok(value) = serde_json::from_str::<Value>(line) else { return Vec::new() };
        let kind = value.text("type").unwrap_or_default();
        self.is_known |= ["thread.", "turn.", "item."].iter().any(|start| kind.starts_with(start));
        match Some(kind) {
            Some("thread.started") => {
                self.session = value.text("thread_id").map(str::to_owned);
                self.session.clone().map(Seen::Session).into_iter().collect()
            }
            Some("item.started") => self.item(value.member("item"), false),
            Some("item.completed") => self.item(value.member("item"), true),
            Some("turn.completed") => {
                self.completed = true;
                let tokens = |key: &str| value.member("usage").whole(key).unwrap_or(0);
                let (input_tokens, output_tokens) = (tokens("input_tokens"), tokens("output_tokens"));
                self.total = Some(Spent { input_tokens, output_tokens, usd: None, unpriced: true });
                Vec::new()
            }
            Some("turn.failed") => {
                self.failed = Some(message_of(value.member("error").text("message").unwrap_or("turn failed")));
                Vec::new()
            }
            Some("error") => {
                let message = value.text("message").unwrap_or_default();
                if message.starts_with("Reconnecting") { vec![Seen::Delay(short(message))] } else { Vec::new() }
            }
            _ => Vec::new(),
        }
    }

    fn end(self: Box<Self>, end: End<'_>) -> Report {
        let total = self.total.unwrap_or(self.before.spent);
        let (spent, unreported) = match self.total {
            Some(total) => self.before.turn(total),
            None => (Spent { unpriced: true, ..Spent::default() }, self.before.unreported),
        };
        let id = self.session.clone().or_else(|| Some(self.before.id.clone()).filter(|id| !id.is_empty()));
        let session = id.map(|id| Session { id, spent: total, unreported });
        // An agent that has found the conversation names it first.
        let is_missing = || {
            let said = own_error(end.stderr, &OWN_ERRORS).to_lowercase();
            GONE.iter().any(|phrase| said.contains(phrase))
        };
        let is_gone = !self.before.id.is_empty() && self.session.is_none() && is_missing();
        Report { outcome: self.outcome(end), spent, session, said: self.message, is_gone, deferred: None }
    }
}

/// Returns the error message. The text may be the provider's raw answer, which is JSON.
fn message_of(text: &str) -> String {
    let inner = serde_json::from_str::<Value>(text).ok();
    let inner = inner.as_ref().member("error").text("message");
    inner.unwrap_or(text).to_owned()
}
