//! Processes by identity: watched through pidfds, and signalled only through a pidfd whose identity was checked.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;
use nix::unistd::ForkResult;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use swarm_model::ProcessId;
use swarm_ports::ProcessError;

use super::procfs;

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Time for which SIGKILL is repeated.
const INSISTENCE: Duration = Duration::from_secs(5);
/// Pause between two rounds of SIGKILL.
const ROUND: Duration = Duration::from_millis(200);

/// Returns a pidfd of exactly this process. `None` if it is gone.
///
/// # Errors
/// Fails if that cannot be decided, for example because no descriptor is free. The process must then count as alive.
pub fn pidfd(process: &ProcessId, boot: &str) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(None) };
    let fd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Check the identity after opening. From here on the descriptor refers to that process.
    Ok(procfs::alive(process, boot)?.map(|_| fd))
}

/// Forks this process so that the child becomes its sibling: a child of this process's parent. Only for single-threaded
/// processes.
///
/// # Errors
/// Fails if the system refuses. There is no child then.
pub fn fork_sibling() -> io::Result<ForkResult> {
    let flags = libc::c_long::from(libc::CLONE_PARENT | libc::SIGCHLD);
    let none: libc::c_long = 0;
    // SAFETY: equals a fork of a single-threaded process: memory is copied, and nothing is shared. What the C library
    // does at a fork beyond that concerns only other threads, of which there are none.
    #[expect(unsafe_code, reason = "the C library has no function for this")]
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) };
    match i32::try_from(pid) {
        Ok(0) => Ok(ForkResult::Child),
        Ok(pid) if pid > 0 => Ok(ForkResult::Parent { child: nix::unistd::Pid::from_raw(pid) }),
        Ok(_) | Err(_) => Err(Errno::last().into()),
    }
}

/// Waits for at most `limit` until all processes are gone. Returns whether they are.
pub fn wait_all_gone(fds: &[OwnedFd], limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    fds.iter().all(|fd| wait_readable(fd, deadline.saturating_duration_since(Instant::now())))
}

/// Waits for at most `limit` until the descriptor is readable or at its end. Returns whether it is.
pub fn wait_readable(fd: &impl std::os::fd::AsFd, limit: Duration) -> bool {
    let (tv_sec, tv_nsec) = (i64::try_from(limit.as_secs()).unwrap_or(i64::MAX), i64::from(limit.subsec_nanos()));
    loop {
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&rustix::event::Timespec { tv_sec, tv_nsec })) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return ready.is_ok_and(|count| count > 0),
        }
    }
}

/// Signals a process, if it is still a descendant of this process.
pub fn signal_descendant(pid: i32, signal: Signal) {
    let Some(raw) = Pid::from_raw(pid) else { return };
    let Ok(fd) = pidfd_open(raw, PidfdFlags::empty()) else { return };
    let me = nix::unistd::getpid().as_raw();
    let mut above = pid;
    // A chain longer than any real tree means that the tree changed meanwhile.
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

/// Sends SIGTERM as an order of a supervisor. The receiver recognizes it by its code, which kill(2) cannot set: a
/// machine that shuts down sends SIGTERM to all processes, and that is not a wish of a person.
///
/// # Errors
/// Fails as pidfd_send_signal(2) does.
pub fn order_to_end(process: &OwnedFd) -> io::Result<()> {
    // SAFETY: all zeros are a valid siginfo_t, which the kernel only reads.
    #[expect(unsafe_code, reason = "rustix sends no signal with a siginfo_t")]
    let sent = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        (info.si_signo, info.si_code) = (libc::SIGTERM, libc::SI_QUEUE);
        libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), libc::SIGTERM, &raw const info, 0)
    };
    Errno::result(sent).map(drop).map_err(io::Error::from)
}

/// Reports whether the SIGTERM with this code is an order of a supervisor.
pub fn is_order(code: i32) -> bool {
    code == libc::SI_QUEUE
}

fn number(signal: Signal) -> rustix::process::Signal {
    match signal {
        Signal::SIGKILL => rustix::process::Signal::KILL,
        Signal::SIGCONT => rustix::process::Signal::CONT,
        Signal::SIGHUP => rustix::process::Signal::HUP,
        _ => rustix::process::Signal::TERM,
    }
}

/// Ends all processes that `members` returns, until it returns none: SIGTERM, after five seconds SIGKILL.
///
/// # Errors
/// Returns the remaining processes if some are alive after further five seconds, or the reason why `members` cannot
/// list them.
pub fn end_set(members: &dyn Fn() -> io::Result<Vec<i32>>) -> Result<(), ProcessError> {
    let began = Instant::now();
    let mut signal = rustix::process::Signal::TERM;
    let mut signalled = Vec::new();
    loop {
        let is_late = began.elapsed() > GRACE + INSISTENCE;
        let living = match members() {
            Ok(living) if living.is_empty() => return Ok(()),
            Ok(living) if is_late => return Err(ProcessError::Survivors(living)),
            Ok(living) => living,
            Err(error) if is_late => return Err(ProcessError::Tool(format!("cannot list the processes: {error}"))),
            Err(_) => {
                std::thread::sleep(ROUND);
                continue;
            }
        };
        if began.elapsed() >= GRACE {
            signal = rustix::process::Signal::KILL;
            signalled.clear();
        }
        let mut fds = Vec::new();
        for pid in living {
            let Some(fd) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
                continue;
            };
            if !members().is_ok_and(|members| members.contains(&pid)) {
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
        if fds.is_empty() {
            // They could not be opened, perhaps because no descriptor is free.
            std::thread::sleep(ROUND);
        }
        wait_all_gone(&fds, limit);
    }
}
