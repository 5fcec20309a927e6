//! `--ready-wait`: waits until the program in a pane is ready for input. The wait wakes when the log of the pane grows
//! and captures the screen only then; this is safe because tmux writes the log after it has drawn the output.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use swarm_model::ProcessId;
use swarm_model::dialog::Dialog;
use swarm_model::screen as patterns;

use swarm_store::windows::{Target, TmuxError};
use swarm_sys::procfs;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// The agent shows a dialog, which is left to a person.
    Asks(Box<Dialog>),
    /// The time limit passed first.
    TimedOut,
    /// The worker ended first.
    Ended,
}

/// Pause in the output, in milliseconds, after which the screen is captured.
const BURST_MS: u64 = 50;
/// Maximum time between two captures while a program writes without pause.
const BURST_MS_MAX: u64 = 250;
/// Interval between two captures of a pane without a log.
const LOOK_MS: u64 = 500;

/// Waits until the pane shows a prompt, and has shown it for `steady`. `log` is the file with the output of the pane, if there is one; the end of the
/// process `watch` ends the wait.
///
/// # Errors
/// Returns an error if tmux fails for another reason than a missing pane.
pub fn wait_ready(
    target: &Target,
    log: Option<&Path>,
    watch: Option<&ProcessId>,
    steady: Duration,
    limit: Duration,
) -> Result<Readiness, TmuxError> {
    let deadline = Instant::now() + limit;
    let mut wakers = Wakers { log: log.and_then(watch_log), process: None };
    if let Some(watch) = watch {
        match open_process(watch) {
            Ok(Some(handle)) => wakers.process = Some(handle),
            Ok(None) => return Ok(Readiness::Ended),
            Err(error) => return Err(TmuxError::System(error.to_string())),
        }
    }
    // When the prompt that is shown was seen first.
    let mut shown_at = None;
    loop {
        let screen = match target.tmux.capture(&target.pane, 0, false) {
            Ok(screen) => screen,
            Err(error) if error.is_absence() => return Ok(Readiness::Ended),
            Err(error) => return Err(error),
        };
        match (patterns::judge_dialog(&screen), shown_at) {
            ((_, Some(dialog)), _) => return Ok(Readiness::Asks(Box::new(dialog))),
            ((patterns::Screen::Ready, None), _) if Instant::now() >= deadline => return Ok(Readiness::Ready),
            ((patterns::Screen::Ready, None), Some(at)) if Instant::now() >= at + steady => {
                return Ok(Readiness::Ready);
            }
            ((patterns::Screen::Ready, None), at) => {
                // A dialog that is only half drawn may look like a prompt.
                let woken = match at {
                    None => wakers.settle(deadline),
                    Some(at) => wakers.wait(deadline.min(at + steady)),
                };
                shown_at = at.or(Some(Instant::now()));
                if woken.map_err(|error| TmuxError::System(error.to_string()))? == Woken::Ended {
                    return Ok(Readiness::Ended);
                }
                continue;
            }
            ((patterns::Screen::Asks | patterns::Screen::Other, None), _) => shown_at = None,
        }
        if Instant::now() >= deadline {
            return Ok(Readiness::TimedOut);
        }
        let until = if wakers.log.is_none() { deadline.min(after(LOOK_MS)) } else { deadline };
        if wakers.wait(until).map_err(|error| TmuxError::System(error.to_string()))? == Woken::Ended {
            return Ok(Readiness::Ended);
        }
    }
}

fn after(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

/// Events that end a wait early.
struct Wakers {
    log: Option<Inotify>,
    process: Option<OwnedFd>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Woken {
    Grown,
    Late,
    Ended,
}

impl Wakers {
    /// Waits for output, and then for a pause in the output.
    fn wait(&self, until: Instant) -> io::Result<Woken> {
        let first = self.wait_once(until)?;
        if first != Woken::Grown {
            return Ok(first);
        }
        self.settle(until)
    }

    /// Waits for a pause in the output.
    fn settle(&self, until: Instant) -> io::Result<Woken> {
        let latest = until.min(after(BURST_MS_MAX));
        loop {
            match self.wait_once(latest.min(after(BURST_MS)))? {
                Woken::Grown if Instant::now() < latest => {}
                Woken::Grown | Woken::Late => return Ok(Woken::Grown),
                Woken::Ended => return Ok(Woken::Ended),
            }
        }
    }

    fn wait_once(&self, until: Instant) -> io::Result<Woken> {
        let left = until.saturating_duration_since(Instant::now());
        let limit = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut waits: Vec<_> = self.process.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        waits.extend(self.log.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        match poll(&mut waits, Some(&limit)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Woken::Late),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        if self.process.is_some() && !waits[0].revents().is_empty() {
            return Ok(Woken::Ended);
        }
        if let Some(log) = &self.log {
            // Only the fact that the log grew matters, not the events.
            let _ = log.read_events();
        }
        Ok(Woken::Grown)
    }
}

/// Returns `None` if the log cannot be watched; the caller then polls.
fn watch_log(log: &Path) -> Option<Inotify> {
    File::open(log).ok()?;
    let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
    watch.add_watch(log, AddWatchFlags::IN_MODIFY).ok()?;
    Some(watch)
}

/// Opens a handle of the process; returns `None` if it has ended. The start time is compared after the handle is open,
/// which proves that the handle refers to this process and not to a later one with the same pid.
fn open_process(process: &ProcessId) -> io::Result<Option<OwnedFd>> {
    let pid = if process.pid > 1 { Pid::from_raw(process.pid) } else { None };
    let Some(pid) = pid else { return Ok(None) };
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(procfs::stat(process.pid).is_some_and(|stat| stat.start_ticks == process.start_ticks).then_some(handle))
}

#[cfg(test)]
mod tests;
