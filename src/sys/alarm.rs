//! Alarms on the boot clock and the wall clock. Timers of the kernel count the time that a machine sleeps, and report
//! when the wall clock is set.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use swarm_ports::Alarm;

use crate::boot_clock::shown_ms;
use crate::readable::Readable;

/// Time after which an alarm rings if no timer is available. The caller then checks the time again.
const FALLBACK: Duration = Duration::from_secs(10);

/// Resolves when the alarm is due, or when the wall clock is set and the alarm depends on it.
pub async fn ring(alarm: Alarm) {
    let boot = wait(TimerfdClockId::Boottime, alarm.boot_ms.map(shown_ms), TimerfdTimerFlags::ABSTIME);
    let wall_flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
    let wall = wait(TimerfdClockId::Realtime, alarm.wall_ms, wall_flags);
    tokio::select! { () = boot => {}, () = wall => {} }
}

async fn wait(clock: TimerfdClockId, at_ms: Option<u64>, flags: TimerfdTimerFlags) {
    let Some(at_ms) = at_ms else { return std::future::pending().await };
    let readable = timer(clock, at_ms, flags).and_then(Readable::new);
    match readable {
        Ok(readable) if readable.wait().await.is_ok() => {}
        Ok(_) | Err(_) => tokio::time::sleep(FALLBACK).await,
    }
}

pub(crate) fn timer(clock: TimerfdClockId, at_ms: u64, flags: TimerfdTimerFlags) -> io::Result<OwnedFd> {
    let fd = timerfd_create(clock, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    // A time of 0 would disarm the timer.
    let at_ms = at_ms.max(1);
    let at = Timespec {
        tv_sec: i64::try_from(at_ms / 1000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(at_ms % 1000 * 1_000_000).unwrap_or(0),
    };
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    timerfd_settime(&fd, flags, &Itimerspec { it_interval: never, it_value: at })?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use swarm_ports::Clock as _;

    use super::*;
    use crate::clock::SystemClock;

    #[tokio::test]
    async fn an_alarm_rings_at_its_time_on_either_clock_and_never_before() {
        let clock = SystemClock::new();
        for on_wall in [false, true] {
            let read = || if on_wall { clock.wall_ms() } else { clock.boot_ms() };
            let at = read() + 60;
            let alarm = if on_wall {
                Alarm { wall_ms: Some(at), boot_ms: None }
            } else {
                Alarm { boot_ms: Some(at), wall_ms: None }
            };
            let began = Instant::now();
            tokio::time::timeout(Duration::from_secs(5), ring(alarm)).await.expect("it rings");
            assert!(read() >= at && began.elapsed() >= Duration::from_millis(50), "{:?}", began.elapsed());
        }
        // An alarm in the past rings at once, and one without a time never.
        ring(Alarm { boot_ms: Some(0), wall_ms: None }).await;
        let never = tokio::time::timeout(Duration::from_millis(50), ring(Alarm::default()));
        assert!(never.await.is_err());
    }
}
