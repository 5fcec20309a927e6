//! `aider`: aider with one message (`--message-file`). Its exit code is 0 even if the provider refused every request. A turn
//! succeeded if it printed its usage and no error of the provider. It edits files and executes nothing; it has no
//! conversation to continue.

use swarm_model::run::progress::Spent;
use swarm_model::run::{FaultKind, Outcome};

use super::fault::classify_end;
use super::{End, Launch, Parser, Report, Seen, Turn};
use super::{classify, end_words, failure, not_understood, short};
use swarm_config::sections::AgentConfig;

/// Arguments of each turn. The message is read from standard input; history is not written into the worktree.
const ARGUMENTS: [&str; 16] = [
    "--message-file",
    "/dev/stdin",
    "--yes-always",
    "--no-auto-commits",
    "--no-dirty-commits",
    "--no-gitignore",
    "--no-check-update",
    "--no-show-release-notes",
    "--no-fancy-input",
    "--no-pretty",
    "--no-stream",
    "--no-suggest-shell-commands",
    "--chat-history-file",
    "/dev/null",
    "--input-history-file",
    "/dev/null",
];
/// Files that aider writes into its worktree whatever it is told. Those with its configuration are the user's.
pub const OWN_FILES: [&str; 4] =
    [".aider.tags.cache.*", ".aider.chat.history.md", ".aider.input.history", ".aider.llm.history"];
/// Beginning of the line with the tokens of one answer.
const TOKENS: &str = "Tokens: ";
/// Beginning of a line with an error of the provider: `litellm.RateLimitError: …`.
const ERROR: &str = "litellm.";
/// Beginning of the line after an error that is not final.
const RETRY: &str = "Retrying in ";
const EDITED: &str = "Applied edit to ";
/// Beginnings of the lines of standard error in which the agent reports why it ended.
const OWN_ERRORS: [&str; 2] = ["usage: aider", "aider: error"];

pub fn launch(config: &AgentConfig, turn: &Turn<'_>) -> Launch {
    let mut argv = config.command.clone().unwrap_or_else(|| vec!["aider".to_owned()]);
    argv.extend(ARGUMENTS.map(str::to_owned));
    argv.extend(config.model_option());
    argv.extend(config.arguments.clone());
    Launch { argv, env: Vec::new(), input: Some(turn.prompt.to_owned()) }
}

#[derive(Default)]
pub struct Reader {
    /// Last error of the provider that was not followed by another try.
    error: Option<String>,
    /// Last line of the answer.
    last: Option<String>,
    summary: Option<String>,
    /// Sum of the answers. `None` if no usage was printed.
    spent: Option<Spent>,
}

impl Reader {
    fn outcome(&self, end: &End<'_>) -> Outcome {
        if let Some(error) = &self.error {
            return failure(short(error), Some(error.clone()), fault(error, end));
        }
        if !end.ended.is_success() {
            let said = short(end.stderr);
            let how = end_words(end.ended);
            let cause = if said.is_empty() { how } else { format!("{how}: {said}") };
            return failure(cause, None, classify_end(end, &OWN_ERRORS));
        }
        match self.spent {
            Some(_) => Outcome::Success { summary: self.summary.clone() },
            None => not_understood("aider", end),
        }
    }
}

/// Classifies `litellm.RateLimitError: …` by the name of the error.
fn fault(error: &str, end: &End<'_>) -> FaultKind {
    let name = error[ERROR.len()..].split(':').next().unwrap_or_default();
    match name {
        "AuthenticationError"
        | "PermissionDeniedError"
        | "BadRequestError"
        | "NotFoundError"
        | "ContextWindowExceededError"
        | "ContentPolicyViolationError"
        | "BudgetExceededError" => FaultKind::Lasting,
        "RateLimitError" => match classify(error, end) {
            limit @ FaultKind::Limit { .. } => limit,
            _ => FaultKind::Limit { until_ms: None },
        },
        "InternalServerError" | "ServiceUnavailableError" | "APIConnectionError" | "Timeout" | "BadGatewayError" => {
            FaultKind::Passing
        }
        _ => classify(error, end),
    }
}

/// Parses `Tokens: 1.2k sent, 45 received. Cost: $0.0012 message, $0.0034 session.`
fn usage(line: &str) -> Option<Spent> {
    let rest = line.strip_prefix(TOKENS)?;
    let (tokens, cost) = rest.split_once(" Cost: ").map_or((rest, None), |(tokens, cost)| (tokens, Some(cost)));
    let mut spent = Spent { unpriced: true, ..Spent::default() };
    let mut is_complete = false;
    for part in tokens.trim().trim_end_matches('.').split(", ") {
        let (number, what) = part.split_once(' ')?;
        match what {
            "received" => (spent.output_tokens, is_complete) = (count(number)?, true),
            // What was sent, and the parts of it that were written to or read from a cache.
            "sent" => spent.input_tokens = count(number)?,
            _ => {}
        }
    }
    let price = cost.and_then(|cost| cost.strip_prefix('$')?.split_once(' ')?.0.parse::<f64>().ok());
    if let Some(usd) = price.filter(|usd| usd.is_finite() && *usd >= 0.0) {
        spent.usd = Some(usd);
        spent.unpriced = false;
    }
    is_complete.then_some(spent)
}

/// Parses `987`, `1.2k`, `12k` or `1.0M`, which are rounded.
fn count(text: &str) -> Option<u64> {
    let (digits, factor) = match text.strip_suffix(['k', 'M']) {
        Some(digits) => (digits, if text.ends_with('k') { 1e3 } else { 1e6 }),
        None => (text, 1.0),
    };
    let number = digits.replace(',', "").parse::<f64>().ok()? * factor;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be in the range")]
    let number = (0.0..1e15).contains(&number).then_some(number.round() as u64);
    number
}

impl Parser for Reader {
    fn line(&mut self, line: &str) -> Vec<Seen> {
        if let Some(spent) = usage(line) {
            let sum = self.spent.unwrap_or_default().plus(spent);
            self.spent = Some(sum);
            self.summary = self.last.take().or(self.summary.take());
            return vec![Seen::Spent(sum)];
        }
        if line.starts_with(ERROR) && line.contains("Error") {
            self.error = Some(line.to_owned());
            return vec![Seen::Delay(short(line))];
        }
        if line.starts_with(RETRY) {
            self.error = None;
            return vec![Seen::Delay(short(line))];
        }
        if let Some(file) = line.strip_prefix(EDITED) {
            return vec![Seen::Tool(short(&format!("edit: {file}")))];
        }
        let text = short(line);
        if text.is_empty() {
            return Vec::new();
        }
        self.last = Some(text.clone());
        vec![Seen::Text(text)]
    }

    fn end(self: Box<Self>, end: End<'_>) -> Report {
        let unknown = Spent { unpriced: true, ..Spent::default() };
        let spent = self.spent.unwrap_or(unknown);
        Report { outcome: self.outcome(&end), spent, session: None, said: None, is_gone: false, deferred: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_from_each_form_of_its_line() {
        let tokens = |line: &str| usage(line).map(|spent| (spent.input_tokens, spent.output_tokens, spent.usd));
        assert_eq!(tokens("Tokens: 100 sent, 20 received."), Some((100, 20, None)));
        assert_eq!(
            tokens("Tokens: 1.2k sent, 45 received. Cost: $0.0012 message, $0.0034 session."),
            Some((1200, 45, Some(0.0012)))
        );
        assert_eq!(
            tokens(
                "Tokens: 12k sent, 1.0k cache write, 3.0k cache hit, 1.5k received. Cost: $0.25 message, $1.00 session."
            ),
            Some((12_000, 1500, Some(0.25)))
        );
        for line in ["Tokens: ", "Tokens: many sent, few received.", "Tokens: 100 sent.", "100 sent, 20 received."] {
            assert_eq!(tokens(line), None, "{line}");
        }
        assert_eq!(usage("Tokens: 1e300 sent, 20 received."), None);
    }
}
