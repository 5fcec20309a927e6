//! Decides when a worker that ended is restarted, and when its restarts are given up.

use swarm_model::{Wanted, WantedState};

/// Delay of the first restart, in milliseconds.
pub const DELAY_MS_MIN: u64 = 1_000;
/// Longest delay of a restart, in milliseconds.
pub const DELAY_MS_MAX: u64 = 60_000;
/// Delay in milliseconds after a restart that failed for a reason outside the worker.
pub const PASSING_MS: u64 = 10_000;
/// Uptime in milliseconds after which a worker restarts with the first delay again.
pub const HEALTHY_MS: u64 = 600_000;
/// Maximum number of restarts within [`HEALTHY_MS`]. A worker that would exceed it is given up
/// (the restart intensity of Erlang/OTP supervisors).
pub const RESTARTS_MAX: usize = 10;

/// Decision about a worker that ended and whose policy restarts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Start at `wanted.next_start_ms`, `delay_ms` from now.
    Restart { wanted: Wanted, delay_ms: u64 },
    /// Do not restart: the limit is reached.
    GiveUp { wanted: Wanted },
}

/// Decides about a worker that was up for `up_ms` and ended at `now_ms`.
pub fn after_end(wanted: &Wanted, up_ms: u64, now_ms: u64) -> Verdict {
    let mut wanted = wanted.clone();
    if up_ms >= HEALTHY_MS {
        wanted.restarts = 0;
        wanted.recent_ms.clear();
    }
    // Count only restarts in the past and within the window, so that a wall clock that was set
    // back does not count restarts that appear to lie in the future.
    wanted.recent_ms.retain(|at| *at <= now_ms && now_ms - at < HEALTHY_MS);
    if wanted.recent_ms.len() >= RESTARTS_MAX {
        wanted.state = WantedState::Failed;
        wanted.next_start_ms = None;
        return Verdict::GiveUp { wanted };
    }
    let doublings = wanted.restarts.min(16);
    let delay_ms = DELAY_MS_MIN.saturating_mul(1 << doublings).min(DELAY_MS_MAX);
    wanted.restarts = wanted.restarts.saturating_add(1);
    wanted.recent_ms.push(now_ms);
    wanted.next_start_ms = Some(now_ms.saturating_add(delay_ms));
    Verdict::Restart { wanted, delay_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(lives_ms: &[u64]) -> Vec<Option<u64>> {
        let (mut wanted, mut now) = (Wanted::default(), 1_000_000_000);
        let mut seen = Vec::new();
        for up_ms in lives_ms {
            now += up_ms;
            match after_end(&wanted, *up_ms, now) {
                Verdict::Restart { wanted: next, delay_ms } => {
                    seen.push(Some(delay_ms));
                    now += delay_ms;
                    wanted = next;
                }
                Verdict::GiveUp { wanted: next } => {
                    seen.push(None);
                    wanted = next;
                }
            }
        }
        seen
    }

    #[test]
    fn delays_double_to_a_minute() {
        let expected = [1, 2, 4, 8, 16, 32, 60, 60].map(|s| Some(s * 1000));
        assert_eq!(delays(&[10; 8]), expected);
    }

    #[test]
    fn ten_healthy_minutes_reset_the_failures() {
        assert_eq!(delays(&[10, 10, 10, HEALTHY_MS, 10]), [1, 2, 4, 1, 2].map(|s| Some(s * 1000)));
    }

    #[test]
    fn a_crash_loop_ends() {
        let seen = delays(&[0; RESTARTS_MAX + 1]);
        assert_eq!(seen.iter().filter(|delay| delay.is_some()).count(), RESTARTS_MAX);
        assert_eq!(seen.last(), Some(&None));
    }
}
