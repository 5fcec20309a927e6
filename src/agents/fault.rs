//! Classification of an agent's last message: whether and when another attempt may help.

use swarm_model::Ended;
use swarm_model::run::FaultKind;

use super::End;
use super::reset::reset;

/// Phrases of lasting failures: key, billing, model or policy.
const LASTING: [&str; 17] = [
    "authenticat",
    "invalid api key",
    "incorrect api key",
    "not logged in",
    "missing environment variable",
    "unauthorized",
    "forbidden",
    "credit balance",
    "billing",
    "quota exceeded",
    "does not exist",
    "may not exist",
    "usage policy",
    "safeguards flagged",
    "content_filter",
    "prompt is too long",
    "context window",
];

/// Phrases in messages and on screens of agents that are not logged in.
const LOGGED_OUT: [&str; 10] = [
    "authentication failed",
    "authentication_error",
    "invalid api key",
    "incorrect api key",
    "not logged in",
    "please run /login",
    "unauthorized",
    "select login method",
    "paste code here",
    "sign in with chatgpt",
];

/// Reports whether an agent's output says that it is not logged in.
pub fn is_logged_out(said: &str) -> bool {
    let words = said.to_lowercase();
    LOGGED_OUT.iter().any(|word| words.contains(word))
}

/// Phrases of a provider's limits.
const LIMIT: [&str; 10] = [
    "rate limit",
    "rate_limit",
    "usage limit",
    "usage_limit",
    "hour limit",
    "weekly limit",
    "hit your limit",
    "resource_exhausted",
    "(429)",
    "429 too many",
];

/// Phrases of temporary failures.
const PASSING: [&str; 12] = [
    "overloaded",
    "at capacity",
    "high demand",
    "server-side issue",
    "service unavailable",
    "connection refused",
    "connection error",
    "connection failed",
    "stream disconnected",
    "internal server error",
    "timed out",
    "temporary error",
];

/// Classifies the message with which an agent gave up. An unknown message counts as a failure of the task.
pub fn classify(message: &str, end: &End<'_>) -> FaultKind {
    // Programs print either apostrophe.
    let words = message.to_lowercase().replace('\u{2019}', "'");
    let says = |list: &[&str]| list.iter().any(|word| words.contains(word));
    // Limits first: their messages may also mention billing.
    if says(&LIMIT) {
        return FaultKind::Limit { until_ms: reset(message, end.now_ms, end.zone) };
    }
    if says(&LASTING) {
        return FaultKind::Lasting;
    }
    if says(&PASSING) { FaultKind::Passing } else { FaultKind::Task }
}

/// Classifies a message by the status of the provider's answer.
pub fn of_status(status: u16, message: &str, end: &End<'_>) -> FaultKind {
    match (status, classify(message, end)) {
        (429, limit @ FaultKind::Limit { .. }) => limit,
        (429, _) => FaultKind::Limit { until_ms: reset(message, end.now_ms, end.zone) },
        (408 | 500..=599, _) => FaultKind::Passing,
        (400..=499, _) => FaultKind::Lasting,
        (_, fault) => fault,
    }
}

/// Classifies the end of an agent that left no result. A signal comes from outside and says nothing about the task.
/// After an exit code, only the agent's own error counts: the rest of standard error comes from its tools as well, and
/// may contain any words.
pub fn classify_end(end: &End<'_>, prefixes: &[&str]) -> FaultKind {
    match end.ended {
        Ended::Signal(_) => FaultKind::Task,
        Ended::Code(_) => classify(&own_error(end.stderr, prefixes), end),
    }
}

/// Returns the last line of standard error that starts with one of these prefixes, with the causes that follow it. Empty
/// if there is none.
pub fn own_error(stderr: &str, prefixes: &[&str]) -> String {
    let lines: Vec<&str> = stderr.lines().collect();
    let is_own = |line: &&str| prefixes.iter().any(|prefix| line.starts_with(prefix));
    let Some(at) = lines.iter().rposition(is_own) else { return String::new() };
    let is_cause = |line: &&&str| line.is_empty() || line.starts_with([' ', '\t']) || line.starts_with("Caused by:");
    let causes = lines[at + 1..].iter().take_while(is_cause);
    std::iter::once(&lines[at]).chain(causes).copied().collect::<Vec<_>>().join("\n")
}
