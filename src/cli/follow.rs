//! The loop behind `--follow`: bytes as they come, until the worker has ended,
//! the reader has gone or somebody presses Ctrl-C.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::Failure;
use super::life::{BLIND_LOOK, Life, Verdict, watch_records};
use super::tail::{Sink, Tail};
use super::watch::{Changes, Interrupt, Until, wait_any};
use crate::adapters::views::{Registry, load};
use crate::paths::Paths;

/// How long after a window's end its last output may still be on the way
/// through tmux. The writer's closing of the log ends the waiting earlier.
const SETTLE: Duration = Duration::from_millis(250);

/// What is followed: a log of a worker, which ends with it.
pub struct Followed {
    pub life: Life,
    /// The log is written by another process than the worker.
    pub through_tmux: bool,
}

/// Why a pause ended.
#[derive(Default)]
struct Woken {
    interrupted: bool,
    hung_up: bool,
    /// The registry may say something new.
    look: bool,
}

/// A follower of `file`, which need not be there yet.
pub struct Follow<'a> {
    paths: &'a Paths,
    file: &'a Path,
    changes: Changes,
    interrupt: Interrupt,
    records: Option<Changes>,
    closed: bool,
}

impl<'a> Follow<'a> {
    /// Begins to watch, so that whatever is written from now on wakes it.
    pub fn new(paths: &'a Paths, file: &'a Path) -> Result<Self, Failure> {
        let changes = Changes::new()?;
        changes.add_file(file)?;
        if let Some(dir) = file.parent() {
            changes.add_dir(dir)?;
        }
        Ok(Self { paths, file, changes, interrupt: Interrupt::catch()?, records: None, closed: false })
    }

    /// Follows until the worker's end (never, without one) or Ctrl-C.
    /// `shown` makes visible what the sink was given.
    pub fn run(
        &mut self,
        tail: &mut Tail,
        mut followed: Option<Followed>,
        mut registry: Option<Registry>,
        sink: &mut Sink,
    ) -> Result<(), Failure> {
        loop {
            let more = self.drain(tail, sink)?;
            let mut soon = more.then(Instant::now);
            if let Some(followed) = &mut followed {
                match self.verdict(followed, registry.take())? {
                    Verdict::Ended => return self.rest(tail, followed.through_tmux, sink),
                    Verdict::Watched | Verdict::Unwatched => {}
                    Verdict::Gone => {
                        registry = Some(load(self.paths)?);
                        continue;
                    }
                    Verdict::Blind => soon = soon.or_else(|| Some(Instant::now() + BLIND_LOOK)),
                }
            }
            let woken = self.pause(followed.as_mut().map(|followed| &mut followed.life), soon)?;
            if woken.interrupted {
                return Ok(());
            }
            if woken.hung_up {
                return Err(Failure::Output(std::io::ErrorKind::BrokenPipe.into()));
            }
            let blind = soon.is_some() && !more;
            registry = if woken.look || blind { Some(load(self.paths)?) } else { None };
        }
    }

    /// Gives what is new; true when there is more at once.
    fn drain(&mut self, tail: &mut Tail, sink: &mut Sink) -> Result<bool, Failure> {
        loop {
            self.closed |= self.changes.take()?.closed;
            let drained = tail.drain(sink)?;
            if !drained.switched {
                sink(b"")?;
                return Ok(drained.more);
            }
            // Another file has this name now; what was written to it before it
            // is watched is read in the next round.
            self.changes.add_file(self.file)?;
        }
    }

    /// Judges anew when the registry was read, else goes on as before.
    fn verdict(&mut self, followed: &mut Followed, registry: Option<Registry>) -> Result<Verdict, Failure> {
        let Some(mut registry) = registry else {
            return Ok(if followed.life.fd().is_some() { Verdict::Watched } else { Verdict::Unwatched });
        };
        loop {
            let view = registry.find(&followed.life.name);
            let verdict = followed.life.look(view)?;
            if verdict != Verdict::Unwatched {
                self.records = None;
                return Ok(verdict);
            }
            if self.records.is_some() {
                return Ok(verdict);
            }
            let records = Changes::new()?;
            watch_records(&records, self.paths, view.and_then(|view| view.dir.as_deref()))?;
            self.records = Some(records);
            // What changed before the watch was set shows in a second reading.
            registry = load(self.paths)?;
        }
    }

    fn pause(&mut self, mut life: Option<&mut Life>, soon: Option<Instant>) -> Result<Woken, Failure> {
        let stdout = std::io::stdout();
        let mut sources = vec![
            (self.changes.as_fd(), Until::Readable),
            (self.interrupt.as_fd(), Until::Readable),
            (stdout.as_fd(), Until::HungUp),
        ];
        let process = life.as_deref().and_then(Life::fd);
        sources.extend(process.map(|fd| (fd, Until::Readable)));
        let has_process = process.is_some();
        sources.extend(self.records.as_ref().map(|records| (records.as_fd(), Until::Readable)));
        let ready = wait_any(&sources, soon)?;
        let ended = has_process && ready[3];
        let changed = self.records.is_some() && ready.last() == Some(&true) && ready.len() > 3;
        if ended && let Some(life) = &mut life {
            life.process_ended();
        }
        if let Some(records) = &self.records {
            records.take()?;
        }
        Ok(Woken { interrupted: ready[1], hung_up: ready[2], look: ended || changed })
    }

    /// The worker has ended: what is left of its output, and no more.
    fn rest(&mut self, tail: &mut Tail, through_tmux: bool, sink: &mut Sink) -> Result<(), Failure> {
        let deadline = Instant::now() + SETTLE;
        while self.drain(tail, sink)? || (through_tmux && !self.closed && Instant::now() < deadline) {
            wait_any(&[(self.changes.as_fd(), Until::Readable)], Some(deadline))?;
        }
        self.drain(tail, sink).map(drop)
    }
}
