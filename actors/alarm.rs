//! Waits for a date.

use swarm_ports::{Alarm, Clock};

/// Resolves when the wall clock reaches `at_ms`, or after the time that is left until then now, whichever comes first: a
/// clock that is set back delays nothing for longer. Time in suspend counts.
pub async fn until(clock: &dyn Clock, at_ms: u64) {
    let boot_ms = clock.boot_ms().saturating_add(at_ms.saturating_sub(clock.wall_ms()));
    // The alarm also rings when the wall clock is set.
    while clock.wall_ms() < at_ms && clock.boot_ms() < boot_ms {
        clock.alarm(Alarm { boot_ms: Some(boot_ms), wall_ms: Some(at_ms) }).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, Instant};

    use super::*;
    use crate::testing::FakeClock;

    /// Milliseconds for which a wait of an hour takes if the wall clock is set by these amounts, one per minute.
    async fn takes_ms(jumps_ms: &[i64]) -> u128 {
        const HOUR_MS: u64 = 3_600_000;
        let clock = FakeClock::default();
        let begun = Instant::now();
        let setting = async {
            for by in jumps_ms {
                tokio::time::sleep(Duration::from_secs(60)).await;
                clock.jump_wall_ms(*by);
            }
        };
        let ((), ()) = tokio::join!(until(&clock, clock.wall_ms() + HOUR_MS), setting);
        begun.elapsed().as_millis()
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_follows_a_clock_that_is_set_forward_and_not_one_that_is_set_back() {
        const MINUTE_MS: i64 = 60_000;
        for (jumps, minutes) in [
            (vec![], 60),
            // A machine that slept finds that the date has passed.
            (vec![90 * MINUTE_MS], 1),
            (vec![10 * MINUTE_MS], 50),
            (vec![-600 * MINUTE_MS], 60),
            (vec![10 * MINUTE_MS, -10 * MINUTE_MS], 60),
        ] {
            assert_eq!(takes_ms(&jumps).await, minutes * 60_000, "{jumps:?}");
        }
    }
}
