//! Fills the board from files and the kernel, and waits for their changes without polling.
//!
//! | what changes | what tells it |
//! |---|---|
//! | a worker is started, started again, or forgotten | `state.json` is replaced |
//! | its exit, what its agent does, or that it is stuck | a file in `w/NAME.GENERATION/`, or of its attempt in a run |
//! | its process is gone, whatever is recorded | a pidfd |
//! | its agent asks a person | a file in `asks/` |
//! | its work is in a merge queue | `queue.json` in `merge/*` is replaced |
//! | it is suspended by a signal | nothing: the workers are read once a minute while any runs |
//!
//! `elsewhere` does the same for runs and flows.
//!
//! Watches are set before what they watch is read. A worker whose watch is new is therefore read again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags as Flags, Inotify, InotifyEvent, WatchDescriptor};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use swarm_model::{FineState, ProcessId, Refusal, RefusalKind, WorkerView};
use swarm_store::repositories::landing::journal;
use swarm_store::runs::order;
use swarm_store::views::{Detail, Pick, load_where};
use swarm_sys::paths::Paths;
use swarm_sys::{files, processes, procfs, watching};

use super::worker::Worker;
use super::{Board, Key, Kind, item};

mod elsewhere;

use elsewhere::Elsewhere;

/// Shortest time between two looks, so that a busy fleet costs little.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The time between two looks is at least this many times what the last one took.
const PAUSE_FACTOR: u32 = 3;
/// Time after which all workers are read again while any runs.
const AGAIN: Duration = Duration::from_secs(60);
/// Part of all workers from which all are read, and not each by its name.
const FEW: usize = 4;
/// The journal of a merge queue.
const QUEUE: &str = "queue.json";
/// Number in epoll of the descriptor of inotify; others are processes.
const FILES: u64 = 0;

/// Changes of names in a directory, and files that were written.
const NAMES: Flags = Flags::IN_CREATE
    .union(Flags::IN_CLOSE_WRITE)
    .union(Flags::IN_DELETE)
    .union(Flags::IN_MOVED_TO)
    .union(Flags::IN_MOVED_FROM)
    .union(Flags::IN_ONLYDIR);
/// The same, and files that are being written.
const CONTENT: Flags = NAMES.union(Flags::IN_MODIFY);
/// The end of a directory itself.
const END: Flags = Flags::IN_DELETE_SELF.union(Flags::IN_MOVE_SELF);

/// Target of an inotify watch.
#[derive(Clone, Debug, PartialEq, Eq)]
enum About {
    /// The state directory.
    Root,
    /// A directory above it, because it does not exist.
    Above,
    Asks,
    /// The directory of all merge queues.
    Queues,
    /// That of one.
    Queue,
    Worker(String),
    /// The directory of the present attempt of a workstream, by its worker.
    Attempt(String),
    /// The directory in which runs are registered, and that of one.
    Runs,
    RunPlace,
    /// The home of a run.
    Home(PathBuf),
    /// The directory in which flows are registered, and that of one.
    Flows,
    FlowPlace,
    /// The folder of a flow, by its key.
    Flow(String),
    /// A directory in which flows of the current directory may appear, and the only name that counts there.
    Here(Option<&'static str>),
}

/// Workers to read at the next look.
#[derive(Debug, Default)]
struct Wanted {
    all: bool,
    /// All workers, and nothing else.
    workers: bool,
    queues: bool,
    names: BTreeSet<String>,
    elsewhere: elsewhere::Wanted,
}

impl Wanted {
    fn is_any(&self) -> bool {
        self.all || self.workers || self.queues || !self.names.is_empty() || self.elsewhere.is_any()
    }
}

/// A worker that runs, or is about to.
#[derive(Default)]
struct Watched {
    /// Directories that tell what it does.
    dirs: BTreeMap<PathBuf, WatchDescriptor>,
    process: Option<(ProcessId, u64, OwnedFd)>,
}

/// Reader of the state directory. Its descriptor is readable when something has changed.
pub struct Source {
    paths: Paths,
    boot: String,
    epoll: OwnedFd,
    /// `None` if the kernel refuses one.
    inotify: Option<Arc<Inotify>>,
    about: BTreeMap<WatchDescriptor, About>,
    workers: BTreeMap<String, Watched>,
    /// Workers by the number of their process in epoll.
    processes: BTreeMap<u64, String>,
    next: u64,
    wanted: Wanted,
    elsewhere: Elsewhere,
    /// Number of workers on the board.
    count: usize,
    /// Time before which nothing is read again.
    not_before: Instant,
    /// Time at which all workers were read.
    looked: Instant,
    /// Why not everything can be watched.
    blind: Option<String>,
}

impl Source {
    /// Creates a reader that also shows the run and the flows of the repository of the current directory.
    ///
    /// # Errors
    /// Returns an error if the kernel has no descriptor left.
    pub fn new(paths: &Paths) -> io::Result<Self> {
        Self::at(paths, std::env::current_dir().ok())
    }

    fn at(paths: &Paths, here: Option<PathBuf>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let started = watching::start();
        let blind = started.as_ref().err().map(ToString::to_string);
        let inotify = started.ok().map(Arc::new);
        if let Some(inotify) = &inotify {
            epoll::add(&epoll, inotify.as_ref(), epoll::EventData::new_u64(FILES), epoll::EventFlags::IN)?;
        }
        let now = Instant::now();
        Ok(Self {
            paths: paths.clone(),
            boot: procfs::boot_id(),
            epoll,
            inotify,
            about: BTreeMap::new(),
            workers: BTreeMap::new(),
            processes: BTreeMap::new(),
            next: FILES + 1,
            wanted: Wanted { all: true, ..Wanted::default() },
            elsewhere: Elsewhere::new(here),
            count: 0,
            not_before: now,
            looked: now,
            blind,
        })
    }

    /// Returns when to look although nothing has changed. `None`: never.
    pub fn due(&self) -> Option<Instant> {
        if self.wanted.is_any() {
            return Some(self.not_before);
        }
        let every = match self.blind {
            Some(_) => watching::LOOK_PAUSE,
            None if self.workers.is_empty() => return None,
            None => AGAIN,
        };
        Some(self.looked + every)
    }

    /// Reads what has changed into the board, unless the last look was just now. Returns warnings.
    ///
    /// # Errors
    /// Returns an error if the registry cannot be read. The next look tries again.
    pub fn look(&mut self, board: &mut Board) -> Result<Vec<String>, Refusal> {
        self.take().map_err(|error| Refusal::new(RefusalKind::Internal, format!("cannot watch: {error}")))?;
        let began = Instant::now();
        if self.due().is_none_or(|due| began < due) {
            return Ok(Vec::new());
        }
        if !self.wanted.is_any() {
            // The kernel tells everything but a stop of a process by a signal.
            let knows_all = self.blind.is_none() && !self.elsewhere.is_doubtful;
            (self.wanted.workers, self.wanted.all) = (knows_all, !knows_all);
        }
        let read = self.read(board);
        self.not_before = Instant::now() + (began.elapsed() * PAUSE_FACTOR).max(PAUSE_MIN);
        if read.is_err() {
            self.wanted.all = true;
            self.not_before = Instant::now() + watching::LOOK_PAUSE;
        }
        let blind = self.blind.iter().map(|why| format!("cannot watch everything, and looks every few seconds: {why}"));
        read.map(|warnings| warnings.into_iter().chain(blind).collect())
    }

    fn read(&mut self, board: &mut Board) -> Result<Vec<String>, Refusal> {
        let mut wanted = std::mem::take(&mut self.wanted);
        if wanted.all || wanted.queues {
            self.read_queues(board)?;
            wanted.elsewhere.runs = true;
        }
        wanted.elsewhere.flows |= wanted.all;
        let mut warnings = Vec::new();
        if wanted.all || wanted.workers || !wanted.names.is_empty() {
            warnings = self.read_workers(&wanted, board)?;
            // A worker may be the first or the last one of a run.
            wanted.elsewhere.runs |= std::mem::take(&mut self.wanted.elsewhere.runs);
        }
        warnings.extend(self.read_elsewhere(wanted.elsewhere, board));
        Ok(warnings)
    }

    fn read_workers(&mut self, wanted: &Wanted, board: &mut Board) -> Result<Vec<String>, Refusal> {
        let registry = if wanted.all || wanted.workers || wanted.names.len() * FEW > self.count {
            self.looked = Instant::now();
            self.watch_places();
            let registry = load_where(&self.paths, Detail::Fine, Pick::All)?;
            board.replace(|key| key.kind == Kind::Worker, registry.workers.iter().map(row));
            self.count = registry.workers.len();
            let left: Vec<String> = self.workers.keys().filter(|name| registry.find(name).is_none()).cloned().collect();
            left.iter().for_each(|name| self.forget(name));
            self.wanted.elsewhere.runs |= self.elsewhere.note_workers(registry.workers.iter(), true);
            registry
        } else {
            let names: Vec<&str> = wanted.names.iter().map(String::as_str).collect();
            let registry = load_where(&self.paths, Detail::Fine, Pick::Named(&names))?;
            for name in names {
                match registry.find(name) {
                    Some(view) => {
                        let (key, row) = row(view);
                        board.put(key, row);
                    }
                    None => {
                        board.remove(&Key { kind: Kind::Worker, name: name.to_owned() });
                        self.forget(name);
                        self.elsewhere.forget_worker(name);
                        self.wanted.elsewhere.runs = true;
                    }
                }
            }
            self.wanted.elsewhere.runs |= self.elsewhere.note_workers(registry.workers.iter(), false);
            registry
        };
        registry.workers.iter().for_each(|view| self.watch_worker(view));
        let state = self.paths.state();
        let unread = |(row, cause)| format!("cannot read entry {row} of {}: {cause}", state.display());
        Ok(registry.warnings.into_iter().chain(registry.unreadable.into_iter().map(unread)).collect())
    }

    /// Reads the items of all merge queues with which something is left to do.
    fn read_queues(&mut self, board: &mut Board) -> Result<(), Refusal> {
        let merges = self.paths.merges();
        if self.watch(&merges, NAMES | END, About::Queues).is_some() {
            for place in files::list(&merges).into_iter().flatten() {
                self.watch(&place.path(), NAMES | END, About::Queue);
            }
        }
        let failed = |error| Refusal::new(RefusalKind::Internal, format!("cannot read the merge queues: {error}"));
        let views = journal::views(&self.paths).map_err(failed)?;
        let rows = views.iter().flat_map(|view| {
            let open = view.queue.items.iter().filter(|item| !item.is_past());
            open.map(move |item| {
                let name = item::key_of(view, item);
                let mut object = item::item_object(view, item);
                object.as_object_mut().expect("an object").insert("key".to_owned(), name.clone().into());
                (Key { kind: Kind::Item, name }, object.to_string())
            })
        });
        board.replace(|key| key.kind == Kind::Item, rows);
        self.elsewhere.queues = Arc::new(views);
        Ok(())
    }

    /// Takes what the kernel tells.
    fn take(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&none)) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let ended: Vec<u64> =
                events.iter().map(|event| event.data.u64()).filter(|number| *number != FILES).collect();
            for number in &ended {
                let Some(name) = self.processes.get(number).cloned() else { continue };
                self.drop_process(&name);
                self.wanted.names.insert(name);
            }
            if ended.len() < events.len() {
                self.take_files();
            }
            if events.len() < events.capacity() {
                return Ok(());
            }
        }
    }

    fn take_files(&mut self) {
        while let Some(Ok(events)) = self.inotify.as_ref().map(|inotify| inotify.read_events()) {
            events.iter().for_each(|event| self.take_file(event));
        }
    }

    fn take_file(&mut self, event: &InotifyEvent) {
        if event.mask.contains(Flags::IN_Q_OVERFLOW) {
            self.wanted.all = true;
            return;
        }
        let is_over = event.mask.intersects(END.union(Flags::IN_IGNORED));
        let name = event.name.as_deref().unwrap_or(OsStr::new(""));
        match self.about.get(&event.wd) {
            Some(About::Root) => {
                let state = self.paths.state();
                let asks = self.paths.asks();
                self.wanted.all |= is_over || [state, asks].iter().any(|path| path.file_name() == Some(name));
                self.wanted.queues |= self.paths.merges().file_name() == Some(name);
                self.wanted.elsewhere.runs |= self.paths.runs().file_name() == Some(name);
                self.wanted.elsewhere.flows |= self.paths.flows().file_name() == Some(name);
            }
            Some(About::Above | About::Asks) => self.wanted.all = true,
            Some(About::Queues) => self.wanted.queues = true,
            // Verifications write beside it.
            Some(About::Queue) => self.wanted.queues |= is_over || name == QUEUE,
            Some(About::Worker(name)) => {
                let name = name.clone();
                self.wanted.names.insert(name);
            }
            Some(About::Attempt(name)) => {
                let name = name.clone();
                self.wanted.elsewhere.homes.extend(self.elsewhere.home_of_worker(&name).map(Path::to_owned));
                self.wanted.names.insert(name);
            }
            Some(about) => {
                let about = about.clone();
                self.take_elsewhere(&about, name, is_over);
            }
            None => {}
        }
        if event.mask.contains(Flags::IN_IGNORED) {
            self.about.remove(&event.wd);
        }
    }

    /// Watches the state directory, or the next one above it that exists, and the requests of agents.
    fn watch_places(&mut self) {
        let root = self.paths.root().to_owned();
        for dir in root.ancestors() {
            let about = if dir == root { About::Root } else { About::Above };
            if self.watch(dir, NAMES | END, about).is_some() {
                // It may have been made before that.
                let _ = dir == root || self.watch(&root, NAMES | END, About::Root).is_some();
                break;
            }
        }
        self.watch(&self.paths.asks(), NAMES | END, About::Asks);
    }

    /// Watches a worker that runs or is about to, and forgets any other. If something of it is watched for the first time,
    /// it is read again.
    fn watch_worker(&mut self, view: &WorkerView) {
        let name = &view.row.name;
        if !view.state.is_running() && view.state != FineState::Backoff {
            return self.forget(name);
        }
        let mut watched = self.workers.remove(name).unwrap_or_default();
        let dirs = self.dirs_of(view);
        let gone: Vec<PathBuf> = watched.dirs.keys().filter(|dir| !dirs.contains_key(*dir)).cloned().collect();
        gone.iter().for_each(|dir| self.unwatch(watched.dirs.remove(dir)));
        for (dir, (flags, about)) in dirs {
            if !watched.dirs.contains_key(&dir)
                && let Some(watch) = self.watch(&dir, flags, about)
            {
                watched.dirs.insert(dir, watch);
                self.wanted.names.insert(name.clone());
            }
        }
        if watched.process.as_ref().map(|(process, ..)| process) != view.watch.as_ref() {
            if let Some((_, number, _)) = watched.process.take() {
                self.processes.remove(&number);
            }
            watched.process = view.watch.as_ref().and_then(|process| self.watch_process(name, process));
        }
        self.workers.insert(name.clone(), watched);
    }

    /// Returns the directories that tell what a worker does: its records, and those of an attempt of a run.
    fn dirs_of(&self, view: &WorkerView) -> BTreeMap<PathBuf, (Flags, About)> {
        let name = view.row.name.clone();
        let records =
            view.dir.as_ref().map(|dir| (self.paths.workers().join(dir), (CONTENT, About::Worker(name.clone()))));
        let attempt =
            order::attempt_of(&view.row.cmd).map(|dir| (dir.to_owned(), (NAMES, About::Attempt(name.clone()))));
        records.into_iter().chain(attempt).collect()
    }

    fn watch_process(&mut self, name: &str, process: &ProcessId) -> Option<(ProcessId, u64, OwnedFd)> {
        let number = self.next;
        let opened = processes::pidfd(process, &self.boot).and_then(|opened| {
            let Some(fd) = opened else { return Ok(None) };
            epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
            Ok(Some(fd))
        });
        match opened {
            Ok(Some(fd)) => {
                self.next += 1;
                self.processes.insert(number, name.to_owned());
                Some((process.clone(), number, fd))
            }
            Ok(None) => {
                // It has just ended.
                self.wanted.names.insert(name.to_owned());
                None
            }
            Err(error) => {
                self.blind.get_or_insert_with(|| format!("process {}: {error}", process.pid));
                None
            }
        }
    }

    fn drop_process(&mut self, name: &str) {
        // Closing the descriptor takes it out of epoll.
        if let Some((_, number, _)) = self.workers.get_mut(name).and_then(|watched| watched.process.take()) {
            self.processes.remove(&number);
        }
    }

    fn forget(&mut self, name: &str) {
        self.drop_process(name);
        let dirs = self.workers.remove(name).map(|watched| watched.dirs).unwrap_or_default();
        dirs.into_values().for_each(|watch| self.unwatch(Some(watch)));
    }

    /// Watches a directory. Returns `None` if it does not exist or cannot be watched.
    fn watch(&mut self, dir: &Path, flags: Flags, about: About) -> Option<WatchDescriptor> {
        match self.inotify.as_ref()?.add_watch(dir, flags) {
            Ok(watch) => {
                self.about.insert(watch, about);
                Some(watch)
            }
            Err(Errno::ENOENT | Errno::ENOTDIR) => None,
            Err(error) => {
                self.blind.get_or_insert_with(|| format!("{}: {}", dir.display(), watching::explained(error)));
                None
            }
        }
    }

    fn unwatch(&mut self, watch: Option<WatchDescriptor>) {
        if let (Some(watch), Some(inotify)) = (watch, &self.inotify) {
            // Fails if the directory is gone.
            let _ = inotify.rm_watch(watch);
            self.about.remove(&watch);
        }
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn row(view: &WorkerView) -> (Key, String) {
    let text = serde_json::to_string(&Worker::of(view)).expect("views are plain objects with text keys");
    (Key { kind: Kind::Worker, name: view.row.name.clone() }, text)
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
