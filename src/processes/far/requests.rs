//! Requests of another machine that change something, and their answers. A request has an id; whoever asks again with the same
//! id gets the same answer, and nothing is executed a second time.
//!
//! ```text
//! ~/.cache/swarm/requests/ID/   made beside its place and renamed, locked, before anything is executed
//!     lock      held by the process that executes the verb
//!     out, err  what it printed
//!     asks/     what the other end asks: signals, and `here` while somebody is there
//!     end       exit code; written last
//! ```
//!
//! A request without `end` whose lock nobody holds was begun, and nobody knows its end: the machine was restarted, or its
//! process was killed.
//!
//! Nothing of this is synced. The note must outlive the connection and every process, and does so in the memory of the kernel.
//! After a power cut it may be missing, although what the verb did is durable. Therefore whoever asks again says in which boot
//! it asked first ([`swarm_hosts::frames::Repeatable`]): in another one, a request that is not known is not executed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};
use swarm_sys::commands::deadline::wait_until;
use swarm_sys::files::lock::lock;
use swarm_sys::files::{Durability, list, make_dirs, remove_tree, replace_private};
use swarm_sys::{clock, procfs};

/// Time for which an answer is kept.
const AGE_MAX: Duration = Duration::from_secs(600);
/// Maximum number of requests, and of bytes on disk, that are kept.
const COUNT_MAX: usize = 200;
const BYTES_MAX: u64 = 256 << 20;
/// Maximum number of bytes at the end of a stream that are kept.
pub const STREAM_BYTES_MAX: u64 = 16 << 20;
/// Lengths of ids, in hex digits.
const ID_CHARS: std::ops::RangeInclusive<usize> = 16..=64;
/// Pause between two looks at a directory that another machine may change.
const LOOK: Duration = Duration::from_millis(250);
/// Begins the names of requests that are being made.
const UNFINISHED: &str = "new.";

/// Directory of all requests.
pub struct Requests {
    dir: PathBuf,
}

/// Whether a request was known.
pub enum Entry {
    /// It is not, and is now. The file is locked, and must be kept open by whoever executes it.
    New(Request, File),
    Known(Request),
}

/// End of a verb.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct End {
    code: u8,
    boot: String,
    /// Time since boot, in milliseconds.
    at_ms: u64,
}

impl Requests {
    /// Returns those of a user with this cache directory.
    pub fn new(cache: &Path) -> Self {
        Self { dir: cache.join("requests") }
    }

    /// Returns a request that was noted.
    pub fn known(&self, id: &str) -> Option<Request> {
        Some(Request { dir: self.dir.join(id) }).filter(|request| is_id(id) && request.dir.is_dir())
    }

    /// Returns a request as soon as it is noted. `None` if it is not within `limit`.
    pub fn appears(&self, id: &str, limit: Duration) -> Option<Request> {
        make_dirs(&self.dir).ok()?;
        self.appears_by(self.watch().ok().as_ref(), id, limit)
    }

    fn watch(&self) -> nix::Result<Inotify> {
        let changes = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        changes.add_watch(&self.dir, AddWatchFlags::IN_MOVED_TO)?;
        Ok(changes)
    }

    /// Looks at every change that the kernel reports, and by the clock: on a network file system, the kernel does not report what
    /// another machine has noted, and there may be no watch.
    fn appears_by(&self, changes: Option<&Inotify>, id: &str, limit: Duration) -> Option<Request> {
        let until = Instant::now() + limit;
        loop {
            let known = self.known(id);
            if known.is_some() || Instant::now() >= until {
                return known;
            }
            let mut waits: Vec<PollFd<'_>> =
                changes.iter().map(|changes| PollFd::new(*changes, PollFlags::IN)).collect();
            if !wait_until(&mut waits, until.min(Instant::now() + LOOK)).ok()? {
                // A network file system answers from its cache whether a name exists, until the directory is listed.
                let _ = list(&self.dir);
            }
            while changes.is_some_and(|changes| changes.read_events().is_ok_and(|events| !events.is_empty())) {}
        }
    }

    /// Returns those among which this request is.
    pub fn around(request: &Request) -> Option<Self> {
        request.dir.parent().map(|dir| Self { dir: dir.to_owned() })
    }

    /// Notes a request, unless it is known.
    ///
    /// # Errors
    /// Fails if the id is none, or if the request cannot be noted.
    pub fn enter(&self, id: &str) -> io::Result<Entry> {
        if !is_id(id) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not an id of a request"));
        }
        if let Some(request) = self.known(id) {
            return Ok(Entry::Known(request));
        }
        make_dirs(&self.dir)?;
        self.note(id).or_else(|_| {
            // Old answers may take the space that is missing.
            self.tidy();
            self.note(id)
        })
    }

    fn note(&self, id: &str) -> io::Result<Entry> {
        let request = Request { dir: self.dir.join(id) };
        let unfinished = Request { dir: self.dir.join(format!("{UNFINISHED}{}", clock::random_token())) };
        let made = unfinished.make().and_then(|lock| match fs::rename(&unfinished.dir, &request.dir) {
            Ok(()) => Ok(Some(lock)),
            Err(_) if request.dir.is_dir() => Ok(None),
            Err(error) => Err(error),
        });
        match made {
            Ok(Some(lock)) => Ok(Entry::New(request, lock)),
            // Another connection was faster.
            Ok(None) => {
                let _ = remove_tree(&unfinished.dir);
                Ok(Entry::Known(request))
            }
            Err(error) => {
                let _ = remove_tree(&unfinished.dir);
                Err(error)
            }
        }
    }

    /// Removes requests that are over and old, and the oldest ones if there are too many.
    pub fn tidy(&self) {
        let all = list(&self.dir).unwrap_or_default().into_iter().map(|entry| Request { dir: entry.path() });
        let mut over: Vec<(Duration, Request)> =
            all.filter(|request| !request.is_at_work()).map(|request| (request.age(), request)).collect();
        over.sort_by_key(|(age, _)| *age);
        let mut bytes = 0;
        for (index, (age, request)) in over.iter().enumerate() {
            bytes += request.bytes();
            if *age >= AGE_MAX || index >= COUNT_MAX || bytes > BYTES_MAX {
                let _ = remove_tree(&request.dir);
            }
        }
    }
}

fn is_id(id: &str) -> bool {
    ID_CHARS.contains(&id.len()) && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A request that is noted.
#[derive(Clone, Debug)]
pub struct Request {
    dir: PathBuf,
}

impl Request {
    /// Returns the request with this directory.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn asks(&self) -> PathBuf {
        self.dir.join("asks")
    }

    pub fn out(&self) -> PathBuf {
        self.dir.join("out")
    }

    pub fn err(&self) -> PathBuf {
        self.dir.join("err")
    }

    /// Makes the files, and locks the request.
    fn make(&self) -> io::Result<File> {
        fs::DirBuilder::new().mode(0o700).create(&self.dir)?;
        fs::DirBuilder::new().mode(0o700).create(self.asks())?;
        let new = |path: PathBuf| OpenOptions::new().append(true).create_new(true).mode(0o600).open(path);
        new(self.out())?;
        new(self.err())?;
        let file = new(self.dir.join("lock"))?;
        lock(&file)?;
        Ok(file)
    }

    /// Says something to the process that executes the verb.
    ///
    /// # Errors
    /// Fails if the request is gone, or the disk is full.
    pub fn ask(&self, what: &str) -> io::Result<()> {
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(self.asks().join(what)).map(drop)
    }

    /// Notes the end of the verb. After a power cut it may be missing, and the request counts as one whose end is not known.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn end(&self, code: u8) -> io::Result<()> {
        let end = End { code, boot: procfs::boot_id(), at_ms: clock::boot_ms() };
        replace_private(&self.dir, "end", &serde_json::to_vec(&end)?, Durability::None)
    }

    /// Returns the exit code of the verb, if it has ended.
    pub fn code(&self) -> Option<u8> {
        self.ended().map(|end| end.code)
    }

    fn ended(&self) -> Option<End> {
        serde_json::from_slice(&fs::read(self.dir.join("end")).ok()?).ok()
    }

    /// Reports whether a process executes the verb.
    pub fn is_at_work(&self) -> bool {
        File::open(self.dir.join("lock"))
            .is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(fs::TryLockError::WouldBlock)))
    }

    /// Returns the time since the end, or since the beginning of a request without one. Clocks that are set count only after a
    /// restart of the machine.
    fn age(&self) -> Duration {
        match self.ended().filter(|end| end.boot == procfs::boot_id()) {
            Some(end) => Duration::from_millis(clock::boot_ms().saturating_sub(end.at_ms)),
            None => {
                let changed = fs::metadata(&self.dir).and_then(|meta| meta.modified());
                changed.ok().and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default()
            }
        }
    }

    /// Returns the space of its output on disk.
    fn bytes(&self) -> u64 {
        [self.out(), self.err()].iter().filter_map(|path| fs::metadata(path).ok()).map(|meta| meta.blocks() * 512).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> String {
        format!("{number:032x}")
    }

    fn entered(requests: &Requests, number: usize) -> (Request, Option<File>) {
        match requests.enter(&id(number)).expect("noted") {
            Entry::New(request, lock) => (request, Some(lock)),
            Entry::Known(request) => (request, None),
        }
    }

    #[test]
    fn a_request_that_is_noted_late_is_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let requests = Requests::new(dir.path());
        assert!(requests.appears(&id(1), Duration::ZERO).is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| requests.appears(&id(1), Duration::from_secs(60)));
            entered(&requests, 2);
            entered(&requests, 1);
            let found = waits.join().expect("ended").expect("noted");
            assert_eq!(found.dir(), dir.path().join("requests").join(id(1)));
        });
    }

    /// Inotify sees nothing that another machine does on a network file system.
    #[test]
    fn a_request_that_the_kernel_does_not_report_is_found_too() {
        let (dir, elsewhere) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        let (requests, other) = (Requests::new(dir.path()), Requests::new(elsewhere.path()));
        entered(&other, 1);
        let blind = other.watch().expect("watched");
        for changes in [None, Some(&blind)] {
            assert!(requests.appears_by(changes, &id(1), Duration::from_millis(1)).is_none());
        }
        std::thread::scope(|scope| {
            let unwatched = scope.spawn(|| requests.appears_by(None, &id(1), Duration::from_secs(60)).is_some());
            let blind = scope.spawn(|| requests.appears_by(Some(&blind), &id(1), Duration::from_secs(60)).is_some());
            entered(&requests, 1);
            assert!(unwatched.join().expect("ended") && blind.join().expect("ended"));
        });
    }

    #[test]
    fn a_request_is_new_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let requests = Requests::new(dir.path());
        let (request, lock) = entered(&requests, 1);
        assert!(lock.is_some() && request.is_at_work() && request.code().is_none());
        assert!(entered(&requests, 1).1.is_none());
        drop(lock);
        assert!(!request.is_at_work() && request.code().is_none(), "begun, and nobody knows its end");
        assert!(entered(&requests, 1).1.is_none(), "it would be executed twice");
        request.end(7).expect("written");
        assert_eq!(entered(&requests, 1).0.code(), Some(7));
        assert!(entered(&requests, 2).1.is_some());
        for odd in ["", "../../../../../../x", "0123456789abcdeg0", &"a".repeat(65), "new.0123456789abcdef"] {
            assert!(requests.enter(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn one_of_many_connections_executes_a_request() {
        let dir = tempfile::tempdir().expect("a directory");
        let requests = Requests::new(dir.path());
        let count = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(|| entered(&requests, 1).1)).collect();
            let locks: Vec<_> = all.into_iter().filter_map(|one| one.join().expect("ended")).collect();
            locks.len()
        });
        assert_eq!(count, 1);
        assert_eq!(list(&dir.path().join("requests")).expect("there").len(), 1, "something is left");
    }

    #[test]
    fn the_oldest_answers_go_and_none_that_is_at_work() {
        let dir = tempfile::tempdir().expect("a directory");
        let requests = Requests::new(dir.path());
        let (going, _lock) = entered(&requests, 0);
        for number in 1..COUNT_MAX + 10 {
            let (request, _) = entered(&requests, number);
            request.end(0).expect("written");
        }
        let left = || list(&dir.path().join("requests")).expect("there").len();
        assert_eq!(left(), COUNT_MAX + 10, "old answers are removed on the way of a verb");
        Requests::around(&going).expect("a directory").tidy();
        assert_eq!(left(), COUNT_MAX + 1);
        assert!(going.is_at_work());
        let (old, _) = entered(&requests, 1000);
        let end = End { code: 0, boot: procfs::boot_id(), at_ms: 0 };
        replace_private(old.dir(), "end", &serde_json::to_vec(&end).expect("json"), Durability::None).expect("written");
        requests.tidy();
        assert_eq!(old.dir().is_dir(), clock::boot_ms() < 600_000);
    }
}
