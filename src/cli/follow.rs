//! The loop behind `--follow`: passes bytes on as they are written, until the worker ends, the reader closes the pipe,
//! or the user presses Ctrl-C.

use std::cell::{Cell, RefCell};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::error::Failure;
use super::life::{BLIND_LOOK, WatchState, WatchedWorker, watch_records};
use super::tail::{Place, Sink, Tail};
use super::watch::{Changes, Interrupt, Until, wait_any};
use crate::api::supervision::Supervision;
use swarm_store::views::{Registry, load};
use swarm_sys::paths::Paths;

/// Time after the end of a window in which its last output may still pass through tmux. The wait is over earlier if the
/// writer closes the log.
const SETTLE: Duration = Duration::from_millis(250);

/// A followed log, which ends with its worker.
pub struct Followed {
    pub life: WatchedWorker,
    /// Set if tmux writes the log instead of the worker.
    pub through_tmux: bool,
}

/// Standard error, which is followed beside the standard output.
pub struct Beside {
    file: PathBuf,
    pub tail: Tail,
    /// What was written to it and not yet taken. Filled before the sink is told that no more is available.
    pub told: Rc<RefCell<Vec<u8>>>,
}

impl Beside {
    pub fn of(paths: &Paths, name: &str) -> Self {
        let file = paths.log(name, "stderr");
        Self { tail: Tail::new(file.clone()), file, told: Rc::default() }
    }

    /// Reads new bytes; returns true if more can be read immediately.
    fn drain(&mut self, changes: &Changes) -> Result<bool, Failure> {
        loop {
            let told = &self.told;
            let drained = self.tail.drain(&mut |bytes: &[u8]| {
                told.borrow_mut().extend_from_slice(bytes);
                Ok(())
            })?;
            if !drained.switched {
                return Ok(drained.more);
            }
            changes.add_file(&self.file)?;
        }
    }
}

/// Places of the logs up to which the sink got everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    pub log: Place,
    pub beside: Option<Place>,
}

/// What else a follower waits for: the sink is then called with no bytes.
pub struct Beyond {
    pub changes: Changes,
    pub due: Cell<Option<Instant>>,
    /// Name of the directory below `w/` that the worker has now.
    pub dir: RefCell<Option<String>>,
}

/// Reasons why a pause ended.
#[derive(Default)]
struct Woken {
    interrupted: bool,
    hung_up: bool,
    /// The registry may have changed.
    look: bool,
}

/// Follows `file`, which need not exist yet.
pub struct Follow<'a> {
    paths: &'a Paths,
    file: &'a Path,
    changes: Changes,
    interrupt: Interrupt,
    records: Option<Changes>,
    /// Set once the worker waits for a restart, which needs a supervisor.
    supervision: Option<Supervision<'a>>,
    closed: bool,
    /// Second log of the same worker.
    pub beside: Option<Beside>,
    pub beyond: Option<Rc<Beyond>>,
    /// Filled before the sink is told that no more is available.
    pub places: Option<Rc<RefCell<Places>>>,
}

impl<'a> Follow<'a> {
    /// Starts watching; everything written from now on wakes the follower.
    pub fn new(paths: &'a Paths, file: &'a Path) -> Result<Self, Failure> {
        let changes = Changes::new()?;
        changes.add_file(file)?;
        if let Some(dir) = file.parent() {
            changes.add_dir(dir)?;
        }
        Ok(Self {
            paths,
            file,
            changes,
            interrupt: Interrupt::catch()?,
            records: None,
            supervision: None,
            closed: false,
            beside: None,
            beyond: None,
            places: None,
        })
    }

    /// Follows until the worker ends (forever, without a worker) or Ctrl-C. Calls `sink` with no bytes when no more are
    /// available at the moment, so that it can flush.
    pub fn run(
        &mut self,
        tail: &mut Tail,
        mut followed: Option<Followed>,
        mut registry: Option<Registry>,
        sink: &mut Sink,
    ) -> Result<(), Failure> {
        if let Some(beside) = &self.beside {
            self.changes.add_file(&beside.file)?;
        }
        loop {
            let more = self.drain(tail, sink)?;
            let mut soon = more.then(Instant::now);
            if let Some(followed) = &mut followed {
                match self.verdict(followed, registry.take())? {
                    WatchState::Ended => return self.rest(tail, followed.through_tmux, sink),
                    WatchState::Watched => {}
                    WatchState::Unwatched => self.supervise()?,
                    WatchState::Gone => {
                        registry = Some(load(self.paths)?);
                        continue;
                    }
                    WatchState::Blind => soon = soon.or_else(|| Some(Instant::now() + BLIND_LOOK)),
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

    /// Makes sure that a supervisor runs, because only a supervisor starts the worker again.
    ///
    /// # Errors
    /// Fails if a person stopped it, or if none can be started: nothing would ever be written.
    fn supervise(&mut self) -> Result<(), Failure> {
        match &mut self.supervision {
            None => self.supervision = Some(Supervision::unless_stopped(self.paths)?),
            Some(supervision) if supervision.has_ended() => supervision.renew()?,
            Some(_) => {}
        }
        Ok(())
    }

    /// Passes on new bytes; returns true if more can be read immediately.
    fn drain(&mut self, tail: &mut Tail, sink: &mut Sink) -> Result<bool, Failure> {
        loop {
            self.closed |= self.changes.take()?.closed;
            let drained = tail.drain(sink)?;
            if !drained.switched {
                let more = self.beside.as_mut().map_or(Ok(false), |beside| beside.drain(&self.changes))?;
                if let Some(places) = &self.places {
                    let beside = self.beside.as_ref().map(|beside| beside.tail.place()).transpose()?;
                    *places.borrow_mut() = Places { log: tail.place()?, beside };
                }
                sink(b"")?;
                return Ok(drained.more || more);
            }
            // Another file has this name now. The next round reads what was written to it before this watch.
            self.changes.add_file(self.file)?;
        }
    }

    /// Returns the verdict on the worker from `registry`, or the previous one if the registry was not read.
    fn verdict(&mut self, followed: &mut Followed, registry: Option<Registry>) -> Result<WatchState, Failure> {
        let Some(mut registry) = registry else {
            return Ok(if followed.life.fd().is_some() { WatchState::Watched } else { WatchState::Unwatched });
        };
        loop {
            let view = registry.find(&followed.life.name);
            if let (Some(beyond), Some(view)) = (&self.beyond, view) {
                beyond.dir.borrow_mut().clone_from(&view.dir);
            }
            let verdict = followed.life.look(view)?;
            if verdict != WatchState::Unwatched {
                self.records = None;
                return Ok(verdict);
            }
            if self.records.is_some() {
                return Ok(verdict);
            }
            let records = Changes::new()?;
            watch_records(&records, self.paths, view.and_then(|view| view.dir.as_deref()))?;
            self.records = Some(records);
            // Read again: a change before the watch was set would be missed.
            registry = load(self.paths)?;
        }
    }

    fn pause(&mut self, mut life: Option<&mut WatchedWorker>, soon: Option<Instant>) -> Result<Woken, Failure> {
        let stdout = std::io::stdout();
        let mut sources = vec![
            (self.changes.as_fd(), Until::Readable),
            (self.interrupt.as_fd(), Until::Readable),
            (stdout.as_fd(), Until::HungUp),
        ];
        let process = life.as_deref().and_then(WatchedWorker::fd);
        sources.extend(process.map(|fd| (fd, Until::Readable)));
        let has_process = process.is_some();
        sources.extend(self.records.as_ref().map(|records| (records.as_fd(), Until::Readable)));
        let supervisor = self.supervision.as_ref().filter(|_| self.records.is_some()).and_then(Supervision::fd);
        sources.extend(supervisor.map(|supervisor| (supervisor, Until::Readable)));
        let known = sources.len();
        sources.extend(self.beyond.as_ref().map(|beyond| (beyond.changes.as_fd(), Until::Readable)));
        let due = self.beyond.as_ref().and_then(|beyond| beyond.due.get());
        let ready = wait_any(&sources, soon.into_iter().chain(due).min())?;
        let ended = has_process && ready[3];
        // The records, or the end of the supervisor.
        let changed = ready[..known].iter().skip(3 + usize::from(has_process)).any(|ready| *ready);
        if ended && let Some(life) = &mut life {
            life.process_ended();
        }
        for changes in self.records.iter().chain(self.beyond.as_ref().map(|beyond| &beyond.changes)) {
            changes.take()?;
        }
        Ok(Woken { interrupted: ready[1], hung_up: ready[2], look: ended || changed })
    }

    /// Passes on the remaining output of a worker that has ended.
    fn rest(&mut self, tail: &mut Tail, through_tmux: bool, sink: &mut Sink) -> Result<(), Failure> {
        let deadline = Instant::now() + SETTLE;
        while self.drain(tail, sink)? || (through_tmux && !self.closed && Instant::now() < deadline) {
            wait_any(&[(self.changes.as_fd(), Until::Readable)], Some(deadline))?;
        }
        self.drain(tail, sink).map(drop)
    }
}
