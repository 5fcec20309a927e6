//! What may be typed after `swarm heartbeat`: the original's words, and what only ours
//! has.

use clap::{Args, Subcommand, ValueEnum};
use swarm_actors::model::{Every, NudgeSettings};

use crate::adapters::nudges::{calendar, present, wire};
use crate::cli::duration;
use crate::cli::examples;

/// Longest time by which beats at dates may be late.
const JITTER_MS_MAX: u64 = 24 * 3_600_000;

#[derive(Debug, Args)]
pub struct HeartbeatArgs {
    #[command(subcommand)]
    pub action: HeartbeatAction,
}

#[derive(Debug, Subcommand)]
pub enum HeartbeatAction {
    /// Type a message into the window of a worker on a schedule
    #[command(after_help = examples::HEARTBEAT_START)]
    Start(StartArgs),
    /// End it
    Stop(WorkerArgs),
    /// Show all of them
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Tell everything about one
    Status(StatusArgs),
    /// Let it rest
    Pause(WorkerArgs),
    /// Let it go on; a whole interval passes first
    Resume(WorkerArgs),
}

#[derive(Debug, Args)]
pub struct StartArgs {
    /// A worker in tmux
    pub worker: String,
    /// Time between beats: 3600, 90s, 30m, 1h30m
    #[arg(long, value_name = "DUR", required_unless_present = "cron", conflicts_with = "cron")]
    pub interval: Option<String>,
    /// Beat at the dates of a cron expression instead (five fields, local time)
    #[arg(long, value_name = "EXPR")]
    pub cron: Option<String>,
    /// Each beat comes up to this much later than it is due
    #[arg(long, value_name = "DUR")]
    pub jitter: Option<String>,
    /// End it after this time [default: never]
    #[arg(long, value_name = "DUR")]
    pub expire: Option<String>,
    /// What is typed, with Enter after it
    #[arg(long, value_name = "TEXT", default_value = wire::MESSAGE)]
    pub message: String,
    /// Replace one that is active
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The same, as flags of `swarm spawn`.
#[derive(Clone, Debug, Default, Args)]
pub struct NudgeFlags {
    /// Nudge it: the time between beats (windows only)
    #[arg(long, value_name = "DUR")]
    pub heartbeat: Option<String>,
    /// When that ends [default: never]
    #[arg(long, value_name = "DUR", requires = "heartbeat")]
    pub heartbeat_expire: Option<String>,
    /// What is typed then
    #[arg(long, value_name = "TEXT", default_value = "continue")]
    pub heartbeat_message: String,
}

#[derive(Debug, Args)]
pub struct WorkerArgs {
    pub worker: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Shape of the list
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    pub format: ListFormat,
    /// Print one JSON object
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    Table,
    Json,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    pub worker: String,
    /// Shape of the answer
    #[arg(long, value_enum, default_value_t = StatusFormat::Text)]
    pub format: StatusFormat,
    /// Print one JSON object
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StatusFormat {
    Text,
    Json,
}

impl StartArgs {
    /// # Errors
    /// What is wrong with what was typed.
    pub fn settings(&self) -> Result<NudgeSettings, String> {
        let every = match (&self.interval, &self.cron) {
            (Some(text), _) => Every::Interval { ms: interval(text)? },
            (None, Some(expression)) => {
                calendar::date_after(expression, present().now.wall_ms, &jiff::tz::TimeZone::system())?;
                Every::Cron { expression: expression.clone() }
            }
            (None, None) => return Err("either --interval or --cron is needed".to_owned()),
        };
        let jitter_ms = self.jitter.as_deref().map(|text| whole_ms("jitter", text)).transpose()?.unwrap_or(0);
        let longest = match &every {
            Every::Interval { ms } => ms.saturating_sub(1),
            Every::Cron { .. } => JITTER_MS_MAX,
        };
        if jitter_ms > longest {
            let typed = self.jitter.as_deref().unwrap_or_default();
            return Err(match every {
                Every::Interval { .. } => format!("invalid jitter '{typed}': it must be shorter than the interval"),
                Every::Cron { .. } => format!("invalid jitter '{typed}': 24h is the longest"),
            });
        }
        let expire_ms = self.expire.as_deref().map(expire).transpose()?;
        Ok(NudgeSettings { every, message: message(&self.message)?, expire_ms, jitter_ms })
    }
}

/// # Errors
/// The original's sentence.
pub fn interval(text: &str) -> Result<u64, String> {
    whole_ms("interval", text)
}

/// # Errors
/// As [`interval`].
pub fn expire(text: &str) -> Result<u64, String> {
    whole_ms("expire", text)
}

/// # Errors
/// When nothing would be typed.
pub fn message(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("invalid message: there is nothing to type in it".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// Whole seconds above zero, with units in either case, as the original takes them.
fn whole_ms(what: &str, text: &str) -> Result<u64, String> {
    let wrong = || format!("invalid {what} '{text}'");
    let is_whole = !text.contains('.');
    let time = duration::parse_positive(&text.to_ascii_lowercase()).ok().filter(|_| is_whole);
    time.and_then(|time| u64::try_from(time.as_millis()).ok()).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_the_original() {
        for (text, seconds) in [("3600", 3600), ("1", 1), ("90m", 5400), ("1H30M", 5400), ("2h30m15s", 9015)] {
            assert_eq!(interval(text), Ok(seconds * 1000), "{text}");
        }
        for text in ["", "0", "0h", "-1", "abc", "4x", "1.5h", "30m1h", " 5"] {
            assert_eq!(interval(text), Err(format!("invalid interval '{text}'")));
        }
        assert_eq!(expire("soon"), Err("invalid expire 'soon'".to_owned()));
    }
}
