//! Arguments of `swarm heartbeat`: those of the original program, and additions of this one.

use clap::{Args, Subcommand, ValueEnum};
use swarm_model::{Every, NudgeSettings};

use crate::cli::duration;
use crate::cli::examples;
use swarm_store::nudges::{calendar, present, wire};

/// Maximum jitter of a cron schedule, in milliseconds.
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
    /// Stop the heartbeat of a worker
    Stop(WorkerArgs),
    /// List all heartbeats
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show the details of one heartbeat
    Status(StatusArgs),
    /// Pause the heartbeat of a worker
    Pause(WorkerArgs),
    /// Resume the heartbeat of a worker; the next beat comes after a full interval
    Resume(WorkerArgs),
}

#[derive(Debug, Args)]
pub struct StartArgs {
    /// Worker that runs in tmux
    pub worker: String,
    /// Time between beats: 3600 (seconds), 30m, 1h30m
    #[arg(long, value_name = "DURATION", required_unless_present = "cron", conflicts_with = "cron")]
    pub interval: Option<String>,
    /// Beat at the times of a cron expression instead (five fields, local time)
    #[arg(long, value_name = "EXPR")]
    pub cron: Option<String>,
    /// Delay each beat by a random time of at most this duration
    #[arg(long, value_name = "DURATION")]
    pub jitter: Option<String>,
    /// Stop the heartbeat after this time [default: never]
    #[arg(long, value_name = "DURATION")]
    pub expire: Option<String>,
    /// Text to type, followed by Enter
    #[arg(long, value_name = "TEXT", default_value = wire::MESSAGE)]
    pub message: String,
    /// Replace an active heartbeat
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Heartbeat flags of `swarm spawn`.
#[derive(Clone, Debug, Default, Args)]
pub struct NudgeFlags {
    /// Start a heartbeat with this interval (tmux workers only)
    #[arg(long, value_name = "DURATION")]
    pub heartbeat: Option<String>,
    /// Stop the heartbeat after this time [default: never]
    #[arg(long, value_name = "DURATION", requires = "heartbeat")]
    pub heartbeat_expire: Option<String>,
    /// Text that the heartbeat types
    #[arg(long, value_name = "TEXT", default_value = "continue")]
    pub heartbeat_message: String,
}

#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// Worker with a heartbeat
    pub worker: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Output format
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
    /// Worker with a heartbeat
    pub worker: String,
    /// Output format
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
    /// Converts the typed flags into settings.
    ///
    /// # Errors
    /// Fails if a duration, the cron expression or the message is invalid, or if the jitter is too long.
    pub fn settings(&self) -> Result<NudgeSettings, String> {
        let every = match (&self.interval, &self.cron) {
            (Some(text), _) => Every::Interval { ms: interval(text)? },
            (None, Some(expression)) => {
                calendar::date_after(expression, present().now.wall_ms, &jiff::tz::TimeZone::system())?;
                Every::Cron { expression: expression.clone() }
            }
            (None, None) => return Err("missing --interval or --cron".to_owned()),
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
                Every::Cron { .. } => format!("invalid jitter '{typed}': the maximum is 24h"),
            });
        }
        let expire_ms = self.expire.as_deref().map(expire).transpose()?;
        Ok(NudgeSettings { every, message: message(&self.message)?, expire_ms, jitter_ms })
    }
}

/// Parses an interval into milliseconds.
///
/// # Errors
/// Returns the original program's message if the interval is not a positive duration in whole seconds.
pub fn interval(text: &str) -> Result<u64, String> {
    whole_ms("interval", text)
}

/// Parses the lifetime of a heartbeat into milliseconds.
///
/// # Errors
/// Fails as [`interval`] does.
pub fn expire(text: &str) -> Result<u64, String> {
    whole_ms("expire", text)
}

/// Checks the text of a heartbeat.
///
/// # Errors
/// Fails if the text is blank.
pub fn message(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("invalid message: empty text".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// Parses whole seconds above zero into milliseconds. Units may be upper or lower case, as in the original program.
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
