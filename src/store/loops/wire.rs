//! `ralph/NAME/state.json` in the format of the original `swarm`.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use swarm_model::loops::progress::{ExitReason, Loop, Plan, Stage, Status, Wire};

use swarm_sys::files::compare_exchange;

/// Fields of the original in its order, with its defaults for missing ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WireState {
    pub worker_name: String,
    pub prompt_file: String,
    pub max_iterations: u32,
    #[serde(default)]
    pub current_iteration: u32,
    #[serde(default)]
    pub status: Status,
    /// Naive local time, as are the next two fields.
    #[serde(default)]
    pub started: String,
    #[serde(default)]
    pub last_iteration_started: String,
    #[serde(default)]
    pub last_iteration_ended: String,
    /// Durations of the iterations in seconds.
    #[serde(default)]
    pub iteration_durations: Vec<u64>,
    #[serde(default)]
    pub consecutive_failures: u32,
    #[serde(default)]
    pub total_failures: u32,
    #[serde(default)]
    pub done_pattern: Option<String>,
    #[serde(default = "inactivity_timeout")]
    pub inactivity_timeout: u64,
    #[serde(default)]
    pub check_done_continuous: bool,
    #[serde(default)]
    pub exit_reason: Option<ExitReason>,
    #[serde(default)]
    pub prompt_baseline_content: String,
    /// Time in UTC, with the offset.
    #[serde(default)]
    pub last_screen_change: Option<String>,
    #[serde(default)]
    pub monitor_pid: Option<i64>,
    #[serde(default)]
    pub max_context: Option<u32>,
    #[serde(default)]
    pub context_nudge_sent: bool,
    /// Fields of other programs.
    #[serde(flatten)]
    pub more: BTreeMap<String, Value>,
}

fn inactivity_timeout() -> u64 {
    180
}

impl WireState {
    pub fn of(it: &Loop) -> Self {
        let plan = &it.plan;
        let time = |at_ms| local(at_ms, "%Y-%m-%dT%H:%M:%S%.6f");
        Self {
            worker_name: plan.name.clone(),
            prompt_file: plan.prompt_file.clone(),
            max_iterations: it.max_iterations,
            current_iteration: it.iteration,
            status: it.status,
            started: time(it.started_ms),
            last_iteration_started: time(it.iteration_started_ms),
            last_iteration_ended: it.iteration_ended_ms.map(time).unwrap_or_default(),
            iteration_durations: it.durations.clone(),
            consecutive_failures: it.consecutive_failures,
            total_failures: it.total_failures,
            done_pattern: plan.done_pattern.clone(),
            inactivity_timeout: plan.inactivity_timeout_s,
            check_done_continuous: plan.check_done_continuous,
            exit_reason: it.exit_reason,
            prompt_baseline_content: it.baseline.clone(),
            last_screen_change: it.screen_changed_ms.map(utc),
            monitor_pid: it.is_active().then(|| i64::from(std::process::id())),
            max_context: plan.max_context,
            context_nudge_sent: it.nudged,
            more: BTreeMap::new(),
        }
    }

    /// Converts the state of another program's loop into ours; the loop is then between two iterations, or over.
    pub fn into_loop(self, name: &str) -> Loop {
        let plan = Plan {
            name: name.to_owned(),
            prompt_file: self.prompt_file,
            max_iterations: self.max_iterations,
            inactivity_timeout_s: self.inactivity_timeout,
            done_pattern: self.done_pattern,
            check_done_continuous: self.check_done_continuous,
            max_context: self.max_context,
            ..Plan::default()
        };
        let changed = self.last_screen_change.and_then(|text| text.parse::<Timestamp>().ok());
        let it = Loop {
            status: self.status,
            exit_reason: self.exit_reason,
            iteration: self.current_iteration,
            detached: true,
            has_run: true,
            started_ms: millis(&self.started).unwrap_or_default(),
            iteration_started_ms: millis(&self.last_iteration_started).unwrap_or_default(),
            iteration_ended_ms: millis(&self.last_iteration_ended),
            durations: self.iteration_durations,
            consecutive_failures: self.consecutive_failures,
            total_failures: self.total_failures,
            baseline: self.prompt_baseline_content,
            entered: true,
            preflown: true,
            screen_changed_ms: changed.and_then(|at| u64::try_from(at.as_millisecond()).ok()),
            nudged: self.context_nudge_sent,
            ..Loop::new(plan, 0)
        };
        let stage = if it.may_go_on() { Stage::Between { again: false } } else { Stage::Over };
        Loop { stage, ..it }
    }

    /// Preserves what another program wrote: its own fields, and times that differ from ours only in their format.
    pub fn keep(&mut self, found: Self) {
        self.more = found.more;
        for (ours, theirs) in [
            (&mut self.started, found.started),
            (&mut self.last_iteration_started, found.last_iteration_started),
            (&mut self.last_iteration_ended, found.last_iteration_ended),
        ] {
            if millis(&theirs).is_some() && millis(&theirs) == millis(ours) {
                *ours = theirs;
            }
        }
    }

    pub fn wire(&self) -> Wire {
        Wire { status: self.status, max_iterations: self.max_iterations }
    }

    /// Renders the state as the original does: two-space indent, ASCII only.
    ///
    /// # Errors
    /// Fails only for values that JSON cannot represent.
    pub fn render(&self) -> io::Result<String> {
        Ok(swarm_model::Wire::render(self, 0)?)
    }
}

/// Reason why the file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The system failed. The content may be sound.
    #[error("{0}")]
    Unread(io::Error),
    #[error("{0}")]
    Damaged(String),
}

/// Reads the file; `None` if there is none.
///
/// # Errors
/// Fails if the file exists and cannot be read or parsed.
pub fn read(path: &Path) -> Result<Option<WireState>, Fault> {
    let text = compare_exchange::read(path).map_err(Fault::Unread)?;
    text.map(|text| parse(&text).map_err(Fault::Damaged)).transpose()
}

/// Parses the content of the file.
///
/// # Errors
/// Returns the parse error as text.
pub fn parse(text: &[u8]) -> Result<WireState, String> {
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

/// Parses a naive local time into Unix milliseconds.
pub fn millis(text: &str) -> Option<u64> {
    let zoned = text.parse::<DateTime>().ok()?.to_zoned(TimeZone::system()).ok()?;
    u64::try_from(zoned.timestamp().as_millisecond()).ok()
}

fn timestamp(at_ms: u64) -> Timestamp {
    i64::try_from(at_ms).ok().and_then(|at_ms| Timestamp::from_millisecond(at_ms).ok()).unwrap_or_default()
}

/// Formats Unix milliseconds as naive local time.
pub fn local(at_ms: u64, format: &str) -> String {
    timestamp(at_ms).to_zoned(TimeZone::system()).strftime(format).to_string()
}

fn utc(at_ms: u64) -> String {
    timestamp(at_ms).strftime("%Y-%m-%dT%H:%M:%S%.6f+00:00").to_string()
}
