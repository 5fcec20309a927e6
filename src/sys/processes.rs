//! Processes by identity: watched through pidfds, signalled only after a second
//! look through one.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use swarm_model::ProcessId;
use swarm_ports::ProcessError;

use super::procfs;

/// How long a tree without a shim has to end by itself.
const GRACE: Duration = Duration::from_secs(5);
/// How long SIGKILL is repeated.
const INSISTENCE: Duration = Duration::from_secs(5);
const ROUND: Duration = Duration::from_millis(200);

/// A descriptor of exactly this process; `None` when it is gone.
pub fn pidfd(process: &ProcessId, boot: &str) -> Option<OwnedFd> {
    let fd = pidfd_open(Pid::from_raw(process.pid)?, PidfdFlags::empty()).ok()?;
    // Looked at after opening: from here on the descriptor is that process.
    procfs::alive(process, boot)?;
    Some(fd)
}

/// Waits until every one of the processes is gone, at most `limit`.
pub fn wait_all_gone(fds: &[OwnedFd], limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    fds.iter().all(|fd| wait_readable(fd, deadline.saturating_duration_since(Instant::now())))
}

/// Waits until there is something to read, or an end, at most `limit`.
pub fn wait_readable(fd: &impl std::os::fd::AsFd, limit: Duration) -> bool {
    let (tv_sec, tv_nsec) = (i64::try_from(limit.as_secs()).unwrap_or(i64::MAX), i64::from(limit.subsec_nanos()));
    loop {
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&rustix::event::Timespec { tv_sec, tv_nsec })) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return ready.is_ok_and(|count| count > 0),
        }
    }
}

/// Signals a descendant of this process, when it still is one.
pub fn signal_descendant(pid: i32, signal: Signal) {
    let Some(raw) = Pid::from_raw(pid) else { return };
    let Ok(fd) = pidfd_open(raw, PidfdFlags::empty()) else { return };
    let me = nix::unistd::getpid().as_raw();
    let mut above = pid;
    // A chain longer than any real tree means that it changed under our eyes.
    for _ in 0..1024 {
        match procfs::stat(above) {
            Some(stat) if stat.parent == me => {
                let _ = pidfd_send_signal(&fd, number(signal));
                return;
            }
            Some(stat) if stat.parent > 1 => above = stat.parent,
            _ => return,
        }
    }
}

fn number(signal: Signal) -> rustix::process::Signal {
    match signal {
        Signal::SIGKILL => rustix::process::Signal::KILL,
        Signal::SIGCONT => rustix::process::Signal::CONT,
        Signal::SIGHUP => rustix::process::Signal::HUP,
        _ => rustix::process::Signal::TERM,
    }
}

/// Ends what `members` lists, again and again until it lists nothing: TERM,
/// five seconds, KILL.
pub fn end_set(members: &dyn Fn() -> Vec<i32>) -> Result<(), ProcessError> {
    let began = Instant::now();
    let mut signal = rustix::process::Signal::TERM;
    let mut signalled = Vec::new();
    loop {
        let living = members();
        if living.is_empty() {
            return Ok(());
        }
        if began.elapsed() > GRACE + INSISTENCE {
            return Err(ProcessError::Survivors(living));
        }
        if began.elapsed() >= GRACE {
            signal = rustix::process::Signal::KILL;
            signalled.clear();
        }
        let mut fds = Vec::new();
        for pid in living {
            let Some(fd) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
                continue;
            };
            if !members().contains(&pid) {
                continue;
            }
            if !signalled.contains(&pid) {
                let _ = pidfd_send_signal(&fd, signal);
                let _ = pidfd_send_signal(&fd, rustix::process::Signal::CONT);
                signalled.push(pid);
            }
            fds.push(fd);
        }
        let limit = if signal == rustix::process::Signal::KILL {
            ROUND
        } else {
            GRACE.saturating_sub(began.elapsed()).max(ROUND)
        };
        wait_all_gone(&fds, limit);
    }
}
