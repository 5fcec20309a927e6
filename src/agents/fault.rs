//! Classification of an agent's last message: whether and when another attempt may help.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use swarm_model::Ended;
use swarm_model::run::FaultKind;

use super::End;

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
const LIMIT: [&str; 5] = ["rate limit", "usage limit", "hour limit", "(429)", "429 too many"];

/// Phrases of temporary failures.
const PASSING: [&str; 11] = [
    "overloaded",
    "at capacity",
    "high demand",
    "server-side issue",
    "service unavailable",
    "connection refused",
    "connection failed",
    "stream disconnected",
    "internal server error",
    "timed out",
    "temporary error",
];

/// Classifies the message with which an agent gave up. An unknown message counts as a failure of the task.
pub fn classify(message: &str, now_ms: u64) -> FaultKind {
    let words = message.to_lowercase();
    let says = |list: &[&str]| list.iter().any(|word| words.contains(word));
    // Limits first: their messages may also mention billing.
    if says(&LIMIT) {
        return FaultKind::Limit { until_ms: reset(message, now_ms) };
    }
    if says(&LASTING) {
        return FaultKind::Lasting;
    }
    if says(&PASSING) { FaultKind::Passing } else { FaultKind::Task }
}

/// Classifies the end of an agent that left no result. A signal comes from outside and says nothing about the task.
/// After an exit code, only the agent's own error counts: the rest of standard error comes from its tools as well, and
/// may contain any words.
pub fn classify_end(end: &End<'_>, prefixes: &[&str]) -> FaultKind {
    match end.ended {
        Ended::Signal(_) => FaultKind::Task,
        Ended::Code(_) => classify(&own_error(end.stderr, prefixes), end.now_ms),
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

/// Returns the end of a limit in Unix milliseconds if the message has it: `try again in 1.5s`, or
/// `try again at Jan 15th, 2027 8:00 AM` (local time).
pub fn reset(message: &str, now_ms: u64) -> Option<u64> {
    if let Some((_, rest)) = message.split_once("try again in ") {
        let number: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        let amount: f64 = number.trim_end_matches('.').parse().ok()?;
        let unit = rest[number.len()..].trim_start();
        let factor = match unit {
            unit if unit.starts_with("ms") => 1.0,
            unit if unit.starts_with('s') || number.ends_with('.') => 1_000.0,
            unit if unit.starts_with('m') => 60_000.0,
            unit if unit.starts_with('h') => 3_600_000.0,
            unit if unit.starts_with('d') => 86_400_000.0,
            _ => return None,
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a time of a few days in milliseconds"
        )]
        return Some(now_ms.saturating_add((amount * factor) as u64));
    }
    let (_, rest) = message.split_once("try again at ")?;
    let text = rest.trim().trim_end_matches('.');
    let (month, rest) = text.split_once(' ')?;
    let (day, rest) = rest.split_once(',')?;
    let day = day.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let at = DateTime::strptime("%b %d, %Y %I:%M %p", format!("{month} {day},{rest}")).ok()?;
    let at = at.to_zoned(TimeZone::system()).ok()?;
    u64::try_from(at.timestamp().as_millisecond()).ok()
}
