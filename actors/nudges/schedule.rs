//! Due times of beats: pure arithmetic. Each due time causes one beat, or shares one with others
//! that were missed; a beat is never early.

use swarm_model::Every;
use swarm_model::nudges::{Now, Nudge};

/// Function that returns the first date of a cron expression after a time (Unix milliseconds), if
/// there is one.
pub type Dates<'a> = &'a dyn Fn(&str, u64) -> Option<u64>;

/// Limit in milliseconds: if the wall clock was set back by more, it was wrong before, and dates
/// start over. Below it, each date still occurs once (cron uses the same limit).
pub const SET_BACK_MS_MAX: u64 = 3 * 3_600_000;

/// Due time of a beat, on the clock that decides it, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Boot(u64),
    Wall(u64),
}

impl Due {
    pub fn is_over(self, now: Now) -> bool {
        self.left_ms(now) == 0
    }

    /// Returns the time left in milliseconds.
    pub fn left_ms(self, now: Now) -> u64 {
        match self {
            Self::Boot(at) => at.saturating_sub(now.boot_ms),
            Self::Wall(at) => at.saturating_sub(now.wall_ms),
        }
    }
}

/// Returns the due time of the next beat. `None` if a cron expression has no further date.
pub fn next(nudge: &Nudge, dates: Dates<'_>) -> Option<Due> {
    match &nudge.every {
        Every::Interval { ms } => Some(Due::Boot(interval_due(nudge, *ms, nudge.handled.saturating_add(1)))),
        Every::Cron { expression } => {
            let date = dates(expression, nudge.handled)?;
            Some(Due::Wall(date_due(nudge, date)))
        }
    }
}

/// Returns the new value of `handled` once the present beat is done: it covers everything that is
/// due now. `None` if nothing is due.
pub fn due(nudge: &Nudge, now: Now, dates: Dates<'_>) -> Option<u64> {
    if !next(nudge, dates)?.is_over(now) {
        return None;
    }
    Some(match &nudge.every {
        Every::Interval { ms } => {
            let passed = u64::try_from(now.boot().saturating_sub(nudge.anchor.boot_ms)).unwrap_or(0);
            let last = passed / (*ms).max(1);
            // Jitter may delay the last of them.
            let last = if interval_due(nudge, *ms, last) > now.boot_ms { last.saturating_sub(1) } else { last };
            last.max(nudge.handled.saturating_add(1))
        }
        Every::Cron { expression } => {
            let mut handled = dates(expression, nudge.handled)?;
            // Anything older than the jitter is certainly due.
            handled = handled.max(now.wall_ms.saturating_sub(nudge.jitter_ms));
            while let Some(date) = dates(expression, handled).filter(|date| date_due(nudge, *date) <= now.wall_ms) {
                handled = date;
            }
            handled
        }
    })
}

/// Returns the initial value of `handled`.
pub fn begin(every: &Every, now: Now) -> u64 {
    match every {
        Every::Interval { .. } => 0,
        Every::Cron { .. } => now.wall_ms,
    }
}

/// Corrects a schedule that does not fit the clocks, and reports whether it changed anything. After
/// a reboot the anchor is known by the wall clock only; if that was set back since, the next beat
/// would be more than one interval away. Dates may also lie in a future that was wrong.
pub fn settle(nudge: &mut Nudge, now: Now) -> bool {
    match nudge.every {
        Every::Interval { ms } => {
            let ahead = i64::try_from(ms).unwrap_or(i64::MAX);
            let next = nudge.anchor.boot_ms.saturating_add(times(ms, nudge.handled.saturating_add(1)));
            let is_wrong = next > now.boot().saturating_add(ahead);
            if is_wrong {
                nudge.anchor = now.moment();
                nudge.handled = 0;
            }
            is_wrong
        }
        Every::Cron { .. } => {
            let is_wrong = nudge.handled > now.wall_ms.saturating_add(SET_BACK_MS_MAX);
            if is_wrong {
                nudge.handled = now.wall_ms;
            }
            is_wrong
        }
    }
}

fn times(ms: u64, count: u64) -> i64 {
    i64::try_from(ms.saturating_mul(count)).unwrap_or(i64::MAX)
}

fn interval_due(nudge: &Nudge, ms: u64, count: u64) -> u64 {
    let at = nudge.anchor.boot_ms.saturating_add(times(ms, count));
    let late = jitter(nudge, count).min(ms.saturating_sub(1));
    u64::try_from(at).unwrap_or(0).saturating_add(late)
}

fn date_due(nudge: &Nudge, date: u64) -> u64 {
    date.saturating_add(jitter(nudge, date))
}

/// Returns the delay of a beat in milliseconds. It is deterministic, so that it need not be stored,
/// but differs between beats and between workers.
fn jitter(nudge: &Nudge, slot: u64) -> u64 {
    if nudge.jitter_ms == 0 {
        return 0;
    }
    let seed = nudge.worker.bytes().fold(nudge.created_ms, |hash, byte| mix(hash ^ u64::from(byte)));
    mix(seed ^ mix(slot)) % nudge.jitter_ms.saturating_add(1)
}

/// One step of splitmix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
