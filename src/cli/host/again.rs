//! Pauses between two tries to reach a host.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use swarm_sys::clock;

use crate::cli::error::Failure;
use crate::cli::watch::{Interrupt, Until, wait_any};

/// First and longest pause.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Difference of two clocks after which this machine counts as having slept.
const SLEPT: Duration = Duration::from_secs(2);

/// Clock that rings after a time in which this machine may sleep, as a descriptor to wait on.
pub struct Alarm(OwnedFd);

impl Alarm {
    pub fn new() -> Result<Self, Failure> {
        let made = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK);
        made.map(Self).map_err(|error| Failure::system("cannot make a timer", &error.into()))
    }

    /// Rings after `pause` and not before, whatever was set earlier.
    pub fn set(&self, pause: Duration) -> Result<(), Failure> {
        let pause = pause.max(Duration::from_nanos(1));
        let it_value = Timespec::try_from(pause).unwrap_or(Timespec { tv_sec: i64::MAX / 2, tv_nsec: 0 });
        let time = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        let set = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &time);
        set.map(drop).map_err(|error| Failure::system("cannot set a timer", &error.into()))
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lengths of the pauses: none, then one second, doubled up to a minute. Each is up to a quarter longer, so that many
/// commands do not come back at the same time.
#[derive(Debug, Default)]
pub struct Pauses {
    next: Option<Duration>,
}

impl Pauses {
    /// Returns the next pause; `chance` is below 256.
    pub fn next(&mut self, chance: u8) -> Duration {
        let Some(next) = self.next else {
            self.next = Some(PAUSE_MIN);
            return Duration::ZERO;
        };
        self.next = Some((next * 2).min(PAUSE_MAX));
        next + next * u32::from(chance) / 1024
    }

    /// Begins again, because the network may be another one.
    pub fn reset(&mut self) {
        self.next = Some(PAUSE_MIN);
    }

    /// Waits until the next try; returns false if a person gives up.
    pub fn wait(&mut self, interrupt: &Interrupt, alarm: &Alarm, limit: Option<Instant>) -> Result<bool, Failure> {
        let chance = clock::random_token().bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
        let pause = self.next(chance);
        if pause.is_zero() {
            return Ok(true);
        }
        alarm.set(pause)?;
        let (awake, boot_ms) = (Instant::now(), clock::boot_ms());
        let ready = wait_any(&[(interrupt.as_fd(), Until::Readable), (alarm.as_fd(), Until::Readable)], limit)?;
        let passed = Duration::from_millis(clock::boot_ms().saturating_sub(boot_ms));
        if passed > awake.elapsed() + SLEPT {
            self.reset();
        }
        Ok(!ready[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_minute_and_begin_again_after_a_sleep() {
        let mut pauses = Pauses::default();
        let seconds: Vec<u64> = (0..9).map(|_| pauses.next(0).as_secs()).collect();
        assert_eq!(seconds, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        pauses.reset();
        assert_eq!(pauses.next(0), PAUSE_MIN);
        assert!((PAUSE_MIN * 2..PAUSE_MIN * 5 / 2).contains(&pauses.next(u8::MAX)));
    }
}
