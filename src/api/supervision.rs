//! The supervisor as something to wait on, for commands that wait for what only a supervisor can bring about.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use swarm_model::{Hello, Refusal, RefusalKind};

use super::client::{connect_or_start, hello, internal};
use super::start::await_socket;
use crate::processes::guard;
use swarm_sys::paths::Paths;
use swarm_sys::{processes, procfs};

/// Maximum number of supervisors that may end while they are being found.
const FIND_TRIES_MAX: u32 = 5;
/// Maximum wait for the end of a connection to a supervisor that has ended.
const FIND_PAUSE: Duration = Duration::from_secs(1);

/// A running supervisor, watched for its end.
pub struct Supervision<'a> {
    paths: &'a Paths,
    /// `None` if it ended because there was nothing left to supervise.
    supervisor: Option<OwnedFd>,
    guard: Option<OwnedFd>,
}

impl<'a> Supervision<'a> {
    /// Starts a supervisor unless one is running, and watches it.
    ///
    /// # Errors
    /// Fails with the reason if no supervisor could be started.
    pub fn ensure(paths: &'a Paths) -> Result<Self, Refusal> {
        let mut new = Self { paths, supervisor: None, guard: None };
        new.watch()?;
        Ok(new)
    }

    /// Like [`ensure`](Self::ensure), but starts no supervisor after a person stopped it.
    ///
    /// # Errors
    /// Fails as `ensure` does, and if the supervisor was stopped.
    pub fn unless_stopped(paths: &'a Paths) -> Result<Self, Refusal> {
        if guard::is_stopped(paths.root()) { Err(stopped()) } else { Self::ensure(paths) }
    }

    /// Returns a descriptor that is readable when the supervisor has ended.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.supervisor.as_ref().map(AsFd::as_fd)
    }

    /// Reports whether a supervisor is watched: it has not ended because there was nothing left to supervise.
    pub fn is_watching(&self) -> bool {
        self.supervisor.is_some()
    }

    /// Reports whether the supervisor has ended.
    pub fn has_ended(&self) -> bool {
        self.supervisor.as_ref().is_some_and(|fd| processes::wait_readable(fd, Duration::ZERO))
    }

    /// Finds or starts the next supervisor, if this one has ended. One that ended because it had nothing to supervise
    /// needs no successor.
    ///
    /// # Errors
    /// Fails if a person stopped the supervisor, or if no other one can be started.
    pub fn renew(&mut self) -> Result<(), Refusal> {
        if !self.has_ended() {
            return Ok(());
        }
        if guard::is_stopped(self.paths.root()) {
            return Err(stopped());
        }
        self.supervisor = None;
        if guard::is_idle(self.paths.root()) {
            return Ok(());
        }
        // The guard restarts it; starting another guard beside it would move the supervisor.
        await_socket(self.paths, self.guard.as_ref());
        self.watch()
    }

    /// Finds or starts a supervisor, and returns its process id. Watches it, unless it cannot be opened.
    fn find(&mut self) -> Result<i32, Refusal> {
        let mut tries = 0;
        loop {
            let stream = connect_or_start(self.paths)?;
            let pid = getsockopt(&stream, PeerCredentials).map_err(|error| internal(&error.to_string()))?.pid();
            self.supervisor = open(pid);
            tries += 1;
            if self.supervisor.is_some() || tries == FIND_TRIES_MAX {
                return Ok(pid);
            }
            // It ended after it was connected to. Its connections end with it, and the next one is another's.
            processes::wait_readable(&stream, FIND_PAUSE);
        }
    }

    fn watch(&mut self) -> Result<(), Refusal> {
        let pid = self.find()?;
        if procfs::stat(pid).is_some_and(|stat| stat.is_suspended()) {
            // Its answer would delay a caller that has a time limit of its own.
            return Ok(());
        }
        // A supervisor that does not answer may still do its work.
        let Hello { guard, .. } = match hello(self.paths) {
            Ok(Some(hello)) => hello,
            Ok(None) | Err(_) => return Ok(()),
        };
        self.guard = guard.and_then(open);
        Ok(())
    }
}

/// Opens a process; `None` if it is gone.
fn open(pid: i32) -> Option<OwnedFd> {
    let boot = procfs::boot_id();
    processes::pidfd(&procfs::identity(pid, &boot)?, &boot).ok().flatten()
}

/// Returns the refusal for a command that waits for work of a supervisor that a person stopped.
pub fn stopped() -> Refusal {
    let cause = "the supervisor was stopped, and nothing goes on without it";
    Refusal::new(RefusalKind::Stopping, cause).remedy("run 'swarm supervisor start', then this command again")
}
