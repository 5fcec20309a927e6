//! Wake-ups of the shim: signals, its deadline, and the removal of its directory. All arrive through descriptors, so
//! one `poll` waits for everything.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use swarm_sys::processes::is_order;

/// Reason of a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    Child,
    /// A supervisor orders the end.
    Stop,
    /// Somebody else asks for the end, such as a machine that shuts down.
    Terminate,
    Hangup,
    Deadline,
    /// Something was removed from the shim's directory.
    Removal,
    /// The worker has written more output than allowed.
    Output,
    /// A command inside the worker needs a supervisor.
    Supervisor,
    /// The window has another size.
    Resize,
}

/// Signals that are waited for. Clients recognize by the last one what a shim can do.
const WAITED: [Signal; 7] = [
    Signal::SIGCHLD,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGIO,
    Signal::SIGXFSZ,
    Signal::SIGWINCH,
    Signal::SIGUSR1,
];

pub struct Signals {
    fd: SignalFd,
    /// Whether somebody other than a supervisor has asked for the end.
    terminated: Cell<bool>,
}

impl Signals {
    /// Blocks the signals that are waited for, and ignores those that a terminal sends to all processes of the pane,
    /// which are for the worker. The child undoes both.
    pub fn block() -> io::Result<Self> {
        let mut set = SigSet::empty();
        for waited in WAITED {
            set.add(waited);
        }
        set.thread_block()?;
        for ignored in
            [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU, Signal::SIGPIPE]
        {
            // SAFETY: ignoring installs no handler, so nothing runs in signal context.
            #[expect(unsafe_code, reason = "sigaction is unsafe for handlers, of which this has none")]
            unsafe {
                signal(ignored, SigHandler::SigIgn)?;
            }
        }
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { fd, terminated: Cell::new(false) })
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes all pending signals, and reports whether one of them is an order to end.
    pub fn is_told_to_end(&self) -> bool {
        let mut told = false;
        while let Some(wake) = self.take() {
            told |= matches!(wake, Wake::Stop | Wake::Terminate);
        }
        told
    }

    /// Waits for `limit` at most, and reports whether somebody other than a supervisor has asked for the end, now or
    /// earlier.
    pub fn is_terminated_within(&self, limit: Duration) -> bool {
        while self.take().is_some() {}
        if !self.terminated.get() {
            self.wait_child(limit);
        }
        self.terminated.get()
    }

    /// Reports whether nothing happens within `limit`. Signals are left for [`wait`](Self::wait).
    pub fn stay_away(&self, limit: Duration, timer: Option<&TimerFd>) -> bool {
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        poll(&mut self.waits(timer), limit) == Ok(0)
    }

    /// Waits for `limit`, or until the terminal is gone.
    pub fn stay_quiet(&self, limit: Duration) {
        while self.take().is_some() {}
        self.stay_away(limit, None);
    }

    fn waits<'a>(&'a self, timer: Option<&'a TimerFd>) -> Vec<PollFd<'a>> {
        let timer = timer.map(|timer| PollFd::new(timer.as_fd(), PollFlags::POLLIN));
        [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)].into_iter().chain(timer).collect()
    }

    /// Waits for the next reason to wake, without limit.
    pub fn wait(&self, timer: Option<&TimerFd>) -> io::Result<Wake> {
        loop {
            if let Some(wake) = self.take() {
                return Ok(wake);
            }
            let mut waits = self.waits(timer);
            match poll(&mut waits, PollTimeout::NONE) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            let rang = waits.get(1).and_then(PollFd::revents).is_some_and(|events| !events.is_empty());
            if rang {
                return Ok(Wake::Deadline);
            }
        }
    }

    /// Waits for a child's change, at most `limit`.
    pub fn wait_child(&self, limit: Duration) {
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)], limit);
        while self.take().is_some() {}
    }

    /// Returns the next signal that has arrived; `None` if there is none.
    pub fn take(&self) -> Option<Wake> {
        loop {
            let info = self.fd.read_signal().ok().flatten()?;
            let number = i32::try_from(info.ssi_signo).ok()?;
            match Signal::try_from(number).ok()? {
                Signal::SIGCHLD => return Some(Wake::Child),
                Signal::SIGTERM if is_order(info.ssi_code) => return Some(Wake::Stop),
                Signal::SIGTERM => {
                    self.terminated.set(true);
                    return Some(Wake::Terminate);
                }
                Signal::SIGHUP => return Some(Wake::Hangup),
                Signal::SIGIO => return Some(Wake::Removal),
                // Not from writes of the shim itself: these are small and happen after the worker's end.
                Signal::SIGXFSZ => return Some(Wake::Output),
                Signal::SIGUSR1 => return Some(Wake::Supervisor),
                Signal::SIGWINCH => return Some(Wake::Resize),
                _ => {}
            }
        }
    }
}

/// Time limit of the worker. Made before the start is committed, because it may fail.
pub struct Deadline {
    timer: TimerFd,
    limit_ms: u64,
}

impl Deadline {
    /// Creates the timer, which continues during suspend; `None` without a limit.
    pub fn make(limit_ms: Option<u64>) -> io::Result<Option<Self>> {
        let Some(limit_ms) = limit_ms else { return Ok(None) };
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC)?;
        Ok(Some(Self { timer, limit_ms }))
    }

    /// Lets the time begin, and returns the timer.
    pub fn begin(self) -> io::Result<TimerFd> {
        let at = TimeSpec::from_duration(Duration::from_millis(self.limit_ms.max(1)));
        self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::empty())?;
        Ok(self.timer)
    }
}

/// Requests a SIGIO when anything is removed from the working directory, by dnotify: unlike inotify it has no limit of
/// instances per user, and there is one shim per worker. Without it, a shim only does not end early if its state
/// directory is deleted.
pub fn watch_removal() -> Option<std::fs::File> {
    let directory = std::fs::File::open(".").ok()?;
    // From <linux/fcntl.h>, which libc does not carry.
    const DN_DELETE: libc::c_int = 0x8;
    const DN_MULTISHOT: libc::c_int = i32::MIN;
    // SAFETY: the descriptor is open, and F_NOTIFY takes an integer.
    #[expect(unsafe_code, reason = "F_NOTIFY has no safe wrapper")]
    let watched = unsafe { libc::fcntl(directory.as_raw_fd(), libc::F_NOTIFY, DN_DELETE | DN_MULTISHOT) };
    (watched == 0).then_some(directory)
}
