//! What holds up a git that still runs: a named pipe that it opened, for which nobody else cares.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::fault::CliError;

/// Time after which a git that still runs may be held up by a pipe. Each further pause is twice as long.
const AFTER: Duration = Duration::from_secs(1);
/// Where the kernel lets a process wait that opens a pipe.
const OPENS_A_PIPE: &str = "wait_for_partner";

/// Looks now and then for what holds up a git.
pub(crate) struct Search {
    /// Time of the next look. `None`: there is none any more.
    pub(crate) at: Option<Instant>,
    pause: Duration,
    /// Whether git opened a pipe at the last look.
    was_opening: bool,
}

/// Why a git does not end.
pub(crate) enum Held {
    Pipe(PathBuf),
    /// A pipe that is gone, or at a place where none is looked for.
    Unknown,
}

impl Search {
    /// A search for the time until `deadline`.
    pub(crate) fn new(deadline: Instant) -> Self {
        let at = Some(Instant::now() + AFTER).filter(|at| *at < deadline);
        Self { at, pause: AFTER, was_opening: false }
    }

    /// Looks what holds up the git with this process id. `find` returns a pipe that it may be waiting for.
    pub(crate) fn look(&mut self, git: Pid, find: &dyn Fn() -> Option<PathBuf>, deadline: Instant) -> Option<Held> {
        // First, because a pipe may be removed meanwhile.
        let is_opening = fs::read_to_string(format!("/proc/{git}/wchan")).is_ok_and(|place| place == OPENS_A_PIPE);
        let found = find().map(Held::Pipe);
        // Somebody may be about to open the other end.
        let found = found.or_else(|| (is_opening && self.was_opening).then_some(Held::Unknown));
        self.was_opening = is_opening;
        self.pause *= 2;
        self.at = Some(Instant::now() + self.pause).filter(|at| found.is_none() && *at < deadline);
        found
    }
}

impl From<Held> for CliError {
    fn from(held: Held) -> Self {
        match held {
            Held::Pipe(path) => Self::Pipe(path),
            Held::Unknown => Self::Held,
        }
    }
}
