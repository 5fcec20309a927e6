//! State of a nudge: text that is typed into a worker's window on a schedule.

use crate::Every;

/// A point in time on both clocks. Durations are measured on the boot clock, which nobody sets; the
/// wall clock is shown to people and survives a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Milliseconds since boot. Negative before it.
    pub boot_ms: i64,
    pub wall_ms: u64,
}

/// The present time on both clocks, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    pub boot_ms: u64,
    pub wall_ms: u64,
}

impl Now {
    pub fn boot(self) -> i64 {
        i64::try_from(self.boot_ms).unwrap_or(i64::MAX)
    }

    pub fn moment(self) -> Moment {
        Moment { boot_ms: self.boot(), wall_ms: self.wall_ms }
    }

    /// Returns the point in time `ms` milliseconds from now.
    pub fn after(self, ms: u64) -> Moment {
        let ahead = i64::try_from(ms).unwrap_or(i64::MAX);
        Moment { boot_ms: self.boot().saturating_add(ahead), wall_ms: self.wall_ms.saturating_add(ms) }
    }
}

/// Status of a nudge, in the words of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Active,
    Paused,
    /// Expired.
    Expired,
    /// Stopped by a person, or because its worker is gone.
    Stopped,
}

impl Status {
    pub fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Expired => "expired",
            Self::Stopped => "stopped",
        }
    }

    pub fn of_word(word: &str) -> Option<Self> {
        [Self::Active, Self::Paused, Self::Expired, Self::Stopped].into_iter().find(|status| status.word() == word)
    }

    /// Reports whether the nudge may beat again without a new start.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Active | Self::Paused)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nudge {
    pub worker: String,
    pub every: Every,
    pub message: String,
    pub jitter_ms: u64,
    pub status: Status,
    /// Time of the start or resume. Beats of an interval are counted from here.
    pub anchor: Moment,
    pub expires: Option<Moment>,
    pub created_ms: u64,
    pub last_beat_ms: Option<u64>,
    pub beats: u64,
    /// Everything that was due up to here is done: the number of intervals since the anchor, or for
    /// a cron schedule Unix milliseconds.
    pub handled: u64,
    /// The last beat may be typed in part: its text may be in the window without Enter.
    pub unfinished: bool,
    /// Last request that changed the nudge.
    pub request: String,
    /// `false` if another program wrote the file and omitted the fields that only this program
    /// writes.
    pub whole: bool,
}
