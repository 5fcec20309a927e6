//! A nudge: what is typed into a worker's window, and when.

use crate::Every;

/// A moment, on both clocks: durations are measured on the one that counts from the
/// boot, which nobody sets; the other is shown to people and survives a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Negative before the boot.
    pub boot_ms: i64,
    pub wall_ms: u64,
}

/// The present, as the clocks have it.
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

    /// The moment that is so far ahead.
    pub fn after(self, ms: u64) -> Moment {
        let ahead = i64::try_from(ms).unwrap_or(i64::MAX);
        Moment { boot_ms: self.boot().saturating_add(ahead), wall_ms: self.wall_ms.saturating_add(ms) }
    }
}

/// The words of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Active,
    Paused,
    /// Its time is over.
    Expired,
    /// By a person, or because its worker is gone.
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

    /// Whether it may beat again without being started anew.
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
    /// When it was started or resumed: beats of an interval are counted from here.
    pub anchor: Moment,
    pub expires: Option<Moment>,
    pub created_ms: u64,
    pub last_beat_ms: Option<u64>,
    pub beats: u64,
    /// Everything that was due up to here is dealt with: intervals since the anchor,
    /// or a moment of the wall clock where it goes by dates.
    pub handled: u64,
    /// Typing the last beat was begun, and nobody knows yet that it was ended: its text may
    /// stand in the window without Enter.
    pub unfinished: bool,
    /// The request that changed it last.
    pub request: String,
    /// False where another program wrote its file and left out what only ours has.
    pub whole: bool,
}
