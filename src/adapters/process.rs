//! Processes by identity: watched through pidfds, signalled only after a second
//! look through one.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use swarm_model::{Lease, ProcessId, Row};
use swarm_ports::{BoxFuture, Gone, ProcessError, Processes, StopOrder};

use super::cgroup::Groups;
use super::readable::Readable;
use super::{foreign, procfs};

/// How long a tree without a shim has to end by itself.
const GRACE: Duration = Duration::from_secs(5);
/// How long SIGKILL is repeated.
const INSISTENCE: Duration = Duration::from_secs(5);
const ROUND: Duration = Duration::from_millis(200);

/// The system's processes, in this boot.
pub struct SystemProcesses {
    boot: String,
}

impl SystemProcesses {
    pub fn new() -> Self {
        Self { boot: procfs::boot_id() }
    }
}

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

impl Processes for SystemProcesses {
    fn gone(&self, process: ProcessId) -> BoxFuture<'static, Gone> {
        let fd = pidfd(&process, &self.boot);
        Box::pin(async move {
            if let Some(fd) = fd
                && let Ok(readable) = Readable::new(fd)
            {
                let _ = readable.wait().await;
            }
            Gone
        })
    }

    fn is_alive(&self, process: &ProcessId) -> bool {
        procfs::alive(process, &self.boot).is_some()
    }

    fn stop_by_shim(&self, lease: &Lease, order: StopOrder) -> Result<(), ProcessError> {
        let Some(fd) = pidfd(&lease.shim, &self.boot) else { return Ok(()) };
        let signal = match order {
            StopOrder::Stop => rustix::process::Signal::TERM,
            StopOrder::Output => rustix::process::Signal::XFSZ,
        };
        let sent = pidfd_send_signal(&fd, signal);
        // A shim that somebody suspended must wake up to see it.
        let _ = pidfd_send_signal(&fd, rustix::process::Signal::CONT);
        match sent {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(ProcessError::Tool(format!("cannot signal shim {}: {error}", lease.shim.pid))),
        }
    }

    fn stop_unsupervised<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), ProcessError>> {
        let (lease, boot) = (lease.clone(), self.boot.clone());
        blocking(move || {
            // First: what forks without end is not to be looked for one by one.
            let groups = Groups::of(&lease);
            let survivors = groups.end();
            end_set(&|| with_token(&lease, &boot))?;
            groups.remove();
            if survivors.is_empty() { Ok(()) } else { Err(ProcessError::Survivors(survivors)) }
        })
    }

    fn stop_foreign<'a>(&'a self, row: &'a Row) -> BoxFuture<'a, Result<(), ProcessError>> {
        let (row, boot) = (row.clone(), self.boot.clone());
        blocking(move || {
            let Some(leader) = foreign::alive(&row, &boot).map_err(ProcessError::Tool)? else { return Ok(()) };
            let tree = foreign::tree(&leader);
            if row.tmux.is_some() {
                foreign::kill_window(&row).map_err(ProcessError::Tool)?;
            }
            end_set(&|| foreign::still(&tree, &leader, &boot))
        })
    }

    fn foreign<'a>(&'a self, row: &'a Row) -> BoxFuture<'a, Result<Option<ProcessId>, ProcessError>> {
        let (row, boot) = (row.clone(), self.boot.clone());
        blocking(move || foreign::alive(&row, &boot).map_err(ProcessError::Tool))
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

/// Everything that carries the worker's token in its environment, its own
/// process, that process's session, and all their descendants.
fn with_token(lease: &Lease, boot: &str) -> Vec<i32> {
    let needle = format!("SWARM_TOKEN={}", lease.token);
    let leader = procfs::alive(&lease.worker, boot).map(|_| lease.worker.pid);
    let mut found: Vec<i32> = leader.into_iter().collect();
    for pid in procfs::all().unwrap_or_default() {
        let Some(stat) = procfs::stat(pid).filter(procfs::Stat::is_alive) else { continue };
        let marked = std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|pair| pair == needle.as_bytes()));
        if marked || Some(stat.session) == leader {
            found.push(pid);
        }
    }
    let below: Vec<i32> = found.iter().flat_map(|pid| procfs::descendants(*pid)).collect();
    found.extend(below.into_iter().filter(|pid| procfs::stat(*pid).is_some_and(|stat| stat.is_alive())));
    found.sort_unstable();
    found.dedup();
    found
}

fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ProcessError> + Send + 'static,
) -> BoxFuture<'static, Result<T, ProcessError>> {
    Box::pin(async move {
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|error| Err(ProcessError::Tool(io::Error::other(error).to_string())))
    })
}
