//! Pauses before retries, and the number of attempts that do not count as failures.

use swarm_model::run::FaultKind;
use swarm_model::run::progress::{Now, Progress};

/// First pause after a temporary failure, in milliseconds. Each further pause is twice as long.
pub const PAUSE_MS: u64 = 15_000;
/// Longest pause after a temporary failure, in milliseconds.
pub const PAUSE_MS_MAX: u64 = 10 * 60_000;
/// Longest pause until a time that a provider names, in milliseconds. Their limits last a week at most.
pub const LIMIT_MS_MAX: u64 = 8 * 24 * 60 * 60_000;
/// Number of attempts that may end at the provider's usage limit without counting as failures.
pub const LIMITED_MAX: u32 = 20;
/// Number of attempts that may be lost without counting as failures.
pub const LOST_MAX: u32 = 3;
/// Number of attempts that a temporary failure outside the task may end without counting as failures.
pub const PASSING_MAX: u32 = 10;

/// Pauses before a host is tried again that refuses, in milliseconds; the last one counts for all further refusals. Some
/// servers block an address after a few failed logins: by default, fail2ban does after five within ten minutes.
const REFUSED_MS: [u64; 3] = [15_000, 120_000, 300_000];

/// Counts an attempt that failed. Reports whether no retry is left.
pub fn count(progress: &mut Progress, fault: FaultKind, retries: u32) -> bool {
    let excused = match fault {
        FaultKind::Limit { .. } => {
            progress.limited += 1;
            progress.limited <= LIMITED_MAX
        }
        FaultKind::Lost => {
            progress.lost += 1;
            progress.lost <= LOST_MAX
        }
        FaultKind::Passing => {
            progress.passing += 1;
            progress.passing <= PASSING_MAX
        }
        FaultKind::Task | FaultKind::Lasting => false,
    };
    if !excused {
        progress.failures += 1;
    }
    !excused && (fault == FaultKind::Lasting || progress.failures > retries)
}

/// Reports whether the present attempt of a job, if it fails like this, is its last one.
pub fn is_last(now: &Now, fault: FaultKind) -> bool {
    count(&mut now.progress.clone(), fault, now.job().retries)
}

/// Returns the pause before retry number `times` of a job that met its provider's limit. The provider's time holds if it
/// is in the future. If it has passed, or the limit was met before, the pause grows: the local clock may be ahead of the
/// provider's, and the retries must not be used up within a moment.
pub fn limit_pause_ms(until_ms: Option<u64>, now_ms: u64, times: u32) -> u64 {
    let named_ms = until_ms.map_or(0, |until_ms| until_ms.saturating_sub(now_ms)).min(LIMIT_MS_MAX);
    if named_ms > 0 && times <= 1 { named_ms } else { named_ms.max(pause_ms(times)) }
}

/// Returns the pause after refusal number `times` of a host, in milliseconds. The first one is short: a host that is being
/// started may refuse what it accepts a moment later.
pub fn refused_ms(times: u32) -> u64 {
    let last = REFUSED_MS.len() - 1;
    REFUSED_MS[usize::try_from(times.saturating_sub(1)).map_or(last, |times| times.min(last))]
}

/// Returns the pause before retry number `times`, which doubles each time up to [`PAUSE_MS_MAX`].
pub fn pause_ms(times: u32) -> u64 {
    let doublings = times.saturating_sub(1).min(16);
    (PAUSE_MS << doublings).min(PAUSE_MS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_refuses_is_asked_soon_and_never_five_times_in_ten_minutes() {
        let asked: Vec<u64> = (1..40)
            .scan(0, |at_ms, times| {
                let now_ms = *at_ms;
                *at_ms += refused_ms(times);
                Some(now_ms)
            })
            .collect();
        assert_eq!(asked[1], 15_000);
        assert!(asked.windows(5).all(|five| five[4] - five[0] > 600_000), "{asked:?}");
        assert!(asked.windows(2).all(|two| two[1] - two[0] <= 300_000), "{asked:?}");
    }
}
