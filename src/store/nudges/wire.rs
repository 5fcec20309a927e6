//! `heartbeats/NAME.json`: the fields of the original `swarm`, and our own ones in the key `swarm`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use swarm_model::Every;
use swarm_model::nudges::{Moment, Now, Nudge, Status};

/// Default message of the original.
pub const MESSAGE: &str = "continue";

/// Content of the file. As in the original, only the first two fields are required.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct File {
    pub worker_name: String,
    pub interval_seconds: u64,
    #[serde(default = "message")]
    pub message: String,
    #[serde(default)]
    pub expire_at: Option<String>,
    #[serde(default)]
    pub created_at: String,
    #[serde(default)]
    pub last_beat_at: Option<String>,
    #[serde(default)]
    pub beat_count: u64,
    #[serde(default = "status")]
    pub status: String,
    #[serde(default)]
    pub monitor_pid: Option<i64>,
    /// Fields of other programs.
    #[serde(flatten)]
    pub others: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swarm: Option<Value>,
}

/// Values for which the original has no field.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ours {
    /// Boot to which the `…_boot_ms` values belong.
    boot: String,
    anchor_at: String,
    anchor_boot_ms: i64,
    #[serde(default)]
    expire_boot_ms: Option<i64>,
    #[serde(default)]
    interval_ms: Option<u64>,
    #[serde(default)]
    cron: Option<String>,
    #[serde(default)]
    jitter_ms: u64,
    handled: u64,
    #[serde(default)]
    unfinished: bool,
    #[serde(default)]
    request: String,
}

fn message() -> String {
    MESSAGE.to_owned()
}

fn status() -> String {
    Status::Active.word().to_owned()
}

/// The present boot and time.
#[derive(Clone, Debug)]
pub struct Present {
    pub boot: String,
    pub now: Now,
}

impl Present {
    /// Converts a wall clock time to a moment. `boot_ms` is the time on the boot clock if it was recorded in this boot;
    /// changes of the wall clock do not affect it.
    fn moment(&self, wall_ms: u64, boot_ms: Option<i64>) -> Moment {
        let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        let ago = signed(self.now.wall_ms).saturating_sub(signed(wall_ms));
        Moment { boot_ms: boot_ms.unwrap_or(self.now.boot().saturating_sub(ago)), wall_ms }
    }
}

impl File {
    /// Interprets the file.
    ///
    /// # Errors
    /// Fails if a field is invalid, and names it.
    pub fn nudge(&self, present: &Present) -> Result<Nudge, String> {
        let status = Status::of_word(&self.status).ok_or_else(|| format!("unknown status '{}'", self.status))?;
        let ours: Option<Ours> = self.swarm.clone().and_then(|ours| serde_json::from_value(ours).ok());
        let created_ms = match self.created_at.as_str() {
            "" => present.now.wall_ms,
            text => parse_time("created_at", text)?,
        };
        let last_beat_ms = self.last_beat_at.as_deref().map(|text| parse_time("last_beat_at", text)).transpose()?;
        let expires_ms = self.expire_at.as_deref().map(|text| parse_time("expire_at", text)).transpose()?;
        let here = ours.as_ref().filter(|ours| ours.boot == present.boot);
        let anchor = match &ours {
            Some(ours) => {
                let at = parse_time("swarm.anchor_at", &ours.anchor_at)?;
                present.moment(at, here.map(|ours| ours.anchor_boot_ms))
            }
            // The original counts from its last beat.
            None => present.moment(last_beat_ms.unwrap_or(created_ms), None),
        };
        let seconds = Every::Interval { ms: self.interval_seconds.max(1).saturating_mul(1000) };
        let every = match &ours {
            Some(Ours { cron: Some(expression), .. }) => Every::Cron { expression: expression.clone() },
            Some(Ours { interval_ms: Some(ms), .. }) => Every::Interval { ms: (*ms).max(1) },
            Some(_) | None => seconds,
        };
        Ok(Nudge {
            worker: self.worker_name.clone(),
            every,
            message: self.message.clone(),
            jitter_ms: ours.as_ref().map_or(0, |ours| ours.jitter_ms),
            status,
            anchor,
            expires: expires_ms.map(|at| present.moment(at, here.and_then(|ours| ours.expire_boot_ms))),
            created_ms,
            last_beat_ms,
            beats: self.beat_count,
            handled: ours.as_ref().map_or(0, |ours| ours.handled),
            unfinished: ours.as_ref().is_some_and(|ours| ours.unfinished),
            request: ours.as_ref().map(|ours| ours.request.clone()).unwrap_or_default(),
            whole: ours.is_some(),
        })
    }

    /// Returns the file for this nudge, with the fields of other programs from the existing file `there`. `gap_ms` is
    /// the time between two dates of a cron expression, which the original shows as the interval.
    pub fn of(nudge: &Nudge, present: &Present, gap_ms: u64, there: Option<Self>) -> Self {
        let (interval_ms, cron) = match &nudge.every {
            Every::Interval { ms } => (Some(*ms), None),
            Every::Cron { expression } => (None, Some(expression.clone())),
        };
        let ours = Ours {
            boot: present.boot.clone(),
            anchor_at: time(nudge.anchor.wall_ms),
            anchor_boot_ms: nudge.anchor.boot_ms,
            expire_boot_ms: nudge.expires.map(|end| end.boot_ms),
            interval_ms,
            cron,
            jitter_ms: nudge.jitter_ms,
            handled: nudge.handled,
            unfinished: nudge.unfinished,
            request: nudge.request.clone(),
        };
        let there = there.as_ref();
        // Times of other programs may be more precise than a millisecond; they are kept if they are the same.
        let kept = |text: Option<&String>, ms: u64| match text {
            Some(text) if parse_time("", text) == Ok(ms) => text.clone(),
            Some(_) | None => time(ms),
        };
        Self {
            worker_name: nudge.worker.clone(),
            interval_seconds: interval_ms.unwrap_or(gap_ms).div_ceil(1000).max(1),
            message: nudge.message.clone(),
            expire_at: nudge.expires.map(|end| kept(there.and_then(|there| there.expire_at.as_ref()), end.wall_ms)),
            created_at: kept(there.map(|there| &there.created_at), nudge.created_ms),
            last_beat_at: nudge.last_beat_ms.map(|ms| kept(there.and_then(|there| there.last_beat_at.as_ref()), ms)),
            beat_count: nudge.beats,
            status: nudge.status.word().to_owned(),
            monitor_pid: (nudge.status == Status::Active).then(|| i64::from(std::process::id())),
            others: there.map(|there| there.others.clone()).unwrap_or_default(),
            swarm: serde_json::to_value(ours).ok(),
        }
    }
}

/// Formats a time as the original does: UTC, with microseconds and an offset.
pub fn time(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.unwrap_or(Timestamp::UNIX_EPOCH).strftime("%Y-%m-%dT%H:%M:%S.%6f+00:00").to_string()
}

fn parse_time(field: &str, text: &str) -> Result<u64, String> {
    let at: Timestamp = text.parse().map_err(|_| format!("{field} is not a time: '{text}'"))?;
    Ok(u64::try_from(at.as_millisecond()).unwrap_or(0))
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
