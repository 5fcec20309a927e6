//! Waits for the end of a git, and keeps a bounded part of what it prints.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::cli::STDOUT_BYTES_MAX;
use super::held::{Held, Search};
use swarm_sys::processes::wait_readable;

/// Time limit for draining the pipes of a git that was killed.
pub(super) const DRAIN_MS_MAX: u64 = 5_000;
pub(super) const STDERR_BYTES_MAX: usize = 64 << 10;

pub(super) struct Finished {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) overflow: bool,
    pub(super) timed_out: bool,
    /// Obstacle for which the command was ended.
    pub(super) held: Option<Held>,
}

/// Bounded copy of one output of the child. Output beyond the bound is read and
/// dropped, so that the child never blocks.
struct Capture {
    pipe: Option<File>,
    kept: Vec<u8>,
    bytes_max: usize,
    overflow: bool,
}

impl Capture {
    fn new(fd: Option<OwnedFd>, bytes_max: usize) -> io::Result<Self> {
        if let Some(fd) = &fd {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        Ok(Self { pipe: fd.map(File::from), kept: Vec::new(), bytes_max, overflow: false })
    }

    /// Reads the output that is available now.
    fn drain(&mut self) {
        let mut buffer = [0_u8; 16 << 10];
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(n) => {
                    let room = self.bytes_max.saturating_sub(self.kept.len());
                    self.kept.extend_from_slice(&buffer[..n.min(room)]);
                    self.overflow |= n > room;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.pipe = None,
            }
        }
    }
}

/// Waits until the child has exited or the limit has passed, in one thread and
/// without polling. Kills the child's process group at the limit, and ends it early if something holds it up, such as the
/// pipe that `find` returns.
pub(super) fn wait_for_exit(
    mut child: Child,
    limit: Duration,
    find: &dyn Fn() -> Option<PathBuf>,
) -> io::Result<Finished> {
    let pid = Pid::from_child(&child);
    let signal_all = |signal| {
        // The child leads its own group, so this ends its helpers too.
        let _ = kill_process_group(pid, signal);
    };
    let kill_all = || signal_all(Signal::KILL);
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(error) => {
            kill_all();
            child.wait()?;
            return Err(error.into());
        }
    };
    let mut out = Capture::new(child.stdout.take().map(OwnedFd::from), STDOUT_BYTES_MAX)?;
    let mut err = Capture::new(child.stderr.take().map(OwnedFd::from), STDERR_BYTES_MAX)?;
    let mut deadline = Instant::now() + limit;
    let mut search = Search::new(deadline);
    let (mut timed_out, mut held) = (false, None);
    let mut status: Option<ExitStatus> = None;
    loop {
        let until = search.at.unwrap_or(deadline);
        let left = until.saturating_duration_since(Instant::now());
        let ready = wait_ready(status.is_none().then_some(&pidfd), &out, &err, left)?;
        out.drain();
        err.drain();
        if ready.is_none() {
            if search.at.is_some() {
                held = search.look(pid, find, deadline);
                if held.is_some() {
                    // git removes its locks.
                    signal_all(Signal::TERM);
                    deadline = Instant::now() + Duration::from_millis(DRAIN_MS_MAX);
                }
                continue;
            }
            if timed_out || status.is_some() {
                break;
            }
            timed_out = true;
            kill_all();
            deadline = Instant::now() + Duration::from_millis(DRAIN_MS_MAX);
        }
        if status.is_none() && ready == Some(true) {
            let ended = child.wait()?;
            out.drain();
            err.drain();
            (status, search.at) = (Some(ended), None);
            if ended.signal().is_none() {
                // A background process of a hook may hold the pipes open forever.
                break;
            }
            // Helpers of a git that was killed would keep working; the pipes
            // reach end of file when the last of them has exited.
            kill_all();
            deadline = Instant::now() + Duration::from_millis(DRAIN_MS_MAX);
        }
        if status.is_some() && out.pipe.is_none() && err.pipe.is_none() {
            break;
        }
    }
    let status = match status {
        Some(status) => status,
        None => child.wait()?,
    };
    Ok(Finished { status, stdout: out.kept, stderr: err.kept, overflow: out.overflow, timed_out, held })
}

/// Waits until the child has exited. Kills its process group if it has not when the limit has passed.
pub(crate) fn end_within(child: &mut Child, limit: Duration) -> io::Result<ExitStatus> {
    if let Some(status) = child.try_wait()? {
        return Ok(status);
    }
    let pid = Pid::from_child(child);
    let has_exited = pidfd_open(pid, PidfdFlags::empty()).is_ok_and(|process| wait_readable(&process, limit));
    if !has_exited {
        let _ = kill_process_group(pid, Signal::KILL);
    }
    child.wait()
}

/// Reads what is available in the pipe of a child that has ended. A process that it left may keep the pipe open.
pub(crate) fn remainder(pipe: impl Into<OwnedFd>) -> Vec<u8> {
    Capture::new(Some(pipe.into()), STDERR_BYTES_MAX).map_or_else(
        |_| Vec::new(),
        |mut capture| {
            capture.drain();
            capture.kept
        },
    )
}

/// Returns `None` on timeout, else whether the child has exited.
fn wait_ready(pidfd: Option<&OwnedFd>, out: &Capture, err: &Capture, left: Duration) -> io::Result<Option<bool>> {
    let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(3);
    fds.extend(pidfd.map(|fd| PollFd::new(fd, PollFlags::IN)));
    for capture in [out, err] {
        fds.extend(capture.pipe.as_ref().map(|pipe| PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)));
    }
    let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some(pidfd.is_some() && !fds[0].revents().is_empty())),
        Err(rustix::io::Errno::INTR) => Ok(Some(false)),
        Err(error) => Err(error.into()),
    }
}
