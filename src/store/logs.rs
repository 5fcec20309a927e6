//! Keeps the logs of workers within their size limit.
//!
//! Workers write to their files themselves, in append mode. inotify reports writes; the last part of a file that
//! exceeds its limit is copied to `FILE.1`, then the file is truncated (`log_parts.rs`). Output written between these
//! two steps is lost; below the limit nothing is ever lost.
//!
//! Readers lock a log for a moment, and a rotation waits for them. Whoever can write to a log can keep it locked, so that
//! nothing but the rotation of this log waits, and only once.
//!
//! A file that the kernel refuses to watch is looked at every few seconds.
//!
//! If the total output of a worker is limited, the total is the size of its files plus the bytes rotated away. The
//! rotated bytes are recorded in the worker's directory, so that the next supervisor continues the count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, Inotify, WatchDescriptor};
use swarm_ports::{BoxFuture, Logs, OutputLimit};
use tokio::sync::Notify;

use crate::log_parts::{is_locked, rotate, unfinished};
use swarm_sys::paths::Paths;
use swarm_sys::readable::Readable;
use swarm_sys::watching::{self, LOOK_PAUSE};

/// Maximum time for which a suspended reader, or a worker that locks its own log, delays rotations of the log.
const LOCK_MAX: Duration = Duration::from_secs(2);

/// Maximum time for which a reader delays a rotation that has begun.
const READER_MAX: Duration = Duration::from_millis(50);

/// Pause after a batch of writes was handled, before the next one is read.
const PAUSE: Duration = Duration::from_millis(100);

/// File in a generation's directory that holds the number of bytes rotated away.
const ROTATED: &str = "rotated";

pub struct LogKeeper {
    paths: Paths,
    watches: Arc<Watches>,
}

struct Watches {
    /// `None` if the kernel refuses one.
    inotify: Option<Inotify>,
    files: Mutex<BTreeMap<WatchDescriptor, Watched>>,
    /// Files that cannot be watched, each with its length when it was looked at last.
    unwatched: Mutex<BTreeMap<PathBuf, (Watched, u64)>>,
    /// Notified for each new one of them.
    refused: Notify,
    /// Tasks that wait for the next write of a worker.
    listeners: Mutex<BTreeMap<String, Arc<Notify>>>,
    /// Workers whose output is limited.
    limited: Mutex<BTreeMap<String, Limited>>,
    /// Log that is being rotated.
    rotating: Mutex<Option<PathBuf>>,
    /// Logs that were locked when they were to be rotated, and since when.
    locked: Mutex<BTreeMap<PathBuf, Instant>>,
    /// Time after which a locked log is rotated in spite of its lock.
    lock_max: Duration,
}

struct Limited {
    limit: OutputLimit,
    rotated_bytes: u64,
    /// File that records `rotated_bytes`.
    note: PathBuf,
    spent: Arc<Notify>,
}

#[derive(Clone)]
struct Watched {
    worker: String,
    path: PathBuf,
    limit_bytes: u64,
}

impl LogKeeper {
    /// Starts watching in a task of the current runtime.
    pub fn start(paths: Paths) -> Self {
        let warn = |error| tracing::warn!(%error, "cannot watch logs, and looks at them every few seconds instead");
        Self::start_with(paths, LOCK_MAX, watching::start().map_err(warn).ok())
    }

    fn start_with(paths: Paths, lock_max: Duration, inotify: Option<Inotify>) -> Self {
        let (files, unwatched, refused, listeners, limited, rotating, locked) = Default::default();
        let watches = Watches { inotify, files, unwatched, refused, listeners, limited, rotating, locked, lock_max };
        let watches = Arc::new(watches);
        tokio::spawn(watch(Arc::clone(&watches)));
        Self { paths, watches }
    }
}

impl Logs for LogKeeper {
    fn keep(&self, worker: &str, files: &[String], limit_bytes: u64, output: Option<OutputLimit>) {
        if let Some(limit) = output {
            let note = self.paths.worker(worker, limit.generation).join(ROTATED);
            let rotated_bytes = std::fs::read_to_string(&note).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
            let limited = Limited { limit, rotated_bytes, note, spent: Arc::default() };
            self.watches.limited().insert(worker.to_owned(), limited);
        }
        for file in files {
            let path = self.paths.logs().join(file);
            {
                let rotating = self.watches.rotating();
                if rotating.as_ref() != Some(&path) {
                    // Left by a supervisor that was killed during a rotation.
                    let _ = std::fs::remove_file(unfinished(&path));
                }
            }
            self.watches.add(Watched { worker: worker.to_owned(), path, limit_bytes });
        }
        // The limit may have been exceeded before the watch existed.
        self.watches.check_output_limit(&self.watches.all_of(worker), worker);
    }

    fn release(&self, worker: &str) {
        self.watches.files().retain(|descriptor, watched| {
            let ours = watched.worker == worker;
            if let Some(inotify) = self.watches.inotify.as_ref().filter(|_| ours) {
                let _ = inotify.rm_watch(*descriptor);
            }
            !ours
        });
        self.watches.unwatched().retain(|_, (watched, _)| watched.worker != worker);
        self.watches.limited().remove(worker);
        self.watches.wake([worker]);
    }

    fn written(&self, worker: &str) -> BoxFuture<'static, ()> {
        let mut listeners = self.watches.listeners();
        let next = Arc::clone(listeners.entry(worker.to_owned()).or_default()).notified_owned();
        Box::pin(next)
    }

    fn spent(&self, worker: &str) -> BoxFuture<'static, ()> {
        match self.watches.limited().get(worker) {
            Some(limited) => Box::pin(Arc::clone(&limited.spent).notified_owned()),
            None => Box::pin(std::future::pending()),
        }
    }
}

impl Watches {
    fn files(&self) -> std::sync::MutexGuard<'_, BTreeMap<WatchDescriptor, Watched>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unwatched(&self) -> std::sync::MutexGuard<'_, BTreeMap<PathBuf, (Watched, u64)>> {
        self.unwatched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the files of a worker.
    fn all_of(&self, worker: &str) -> Vec<Watched> {
        let (files, unwatched) = (self.files(), self.unwatched());
        let all = files.values().chain(unwatched.values().map(|(watched, _)| watched));
        all.filter(|watched| watched.worker == worker).cloned().collect()
    }

    /// Watches a log, which is made if there is none.
    fn add(&self, watched: Watched) {
        match self.watch(&watched.path) {
            Ok(descriptor) => drop(self.files().insert(descriptor, watched)),
            Err(error) => {
                if self.inotify.is_some() {
                    let Watched { worker, path, .. } = &watched;
                    tracing::warn!(worker, path = %path.display(), %error, "cannot watch a log");
                }
                let bytes = length(&watched.path);
                self.unwatched().insert(watched.path.clone(), (watched, bytes));
                self.refused.notify_one();
            }
        }
    }

    fn watch(&self, path: &Path) -> io::Result<WatchDescriptor> {
        let Some(inotify) = &self.inotify else { return Err(io::ErrorKind::Unsupported.into()) };
        match inotify.add_watch(path, AddWatchFlags::IN_MODIFY) {
            // inotify can watch existing files only.
            Err(Errno::ENOENT) => {
                OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
                inotify.add_watch(path, AddWatchFlags::IN_MODIFY).map_err(watching::explained)
            }
            watched => watched.map_err(watching::explained),
        }
    }

    /// Looks at the files that could not be watched, and watches those that can be now. Returns the workers that may have
    /// written to them.
    fn look(&self) -> BTreeSet<String> {
        let mut written = BTreeSet::new();
        let mut unwatched = self.unwatched();
        for (watched, bytes) in unwatched.values_mut() {
            let before = std::mem::replace(bytes, length(&watched.path));
            if before != *bytes {
                written.insert(watched.worker.clone());
            }
        }
        unwatched.retain(|path, (watched, _)| match self.watch(path) {
            Ok(descriptor) => {
                self.files().insert(descriptor, watched.clone());
                written.insert(watched.worker.clone());
                false
            }
            Err(_) => true,
        });
        written
    }

    fn limited(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Limited>> {
        self.limited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listeners(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Notify>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the listeners of these workers; each is woken once.
    fn wake<'a>(&self, workers: impl IntoIterator<Item = &'a str>) {
        let mut listeners = self.listeners();
        for worker in workers {
            if let Some(listener) = listeners.remove(worker) {
                listener.notify_waiters();
            }
        }
    }

    fn rotating(&self) -> std::sync::MutexGuard<'_, Option<PathBuf>> {
        self.rotating.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles pending inotify events: wakes listeners, rotates files that exceed their limit, checks output limits.
    /// Returns whether a file could not be rotated yet because it is locked.
    fn check(&self) -> bool {
        let (mut written, mut overflowed) = (BTreeSet::new(), false);
        let read = || self.inotify.as_ref()?.read_events().ok();
        while let Some(events) = read().filter(|events| !events.is_empty()) {
            overflowed |= events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW));
            written.extend(events.into_iter().map(|event| event.wd));
        }
        let mut heard = self.look();
        // A copy: a rotation waits for readers and for the disk, and the supervisor's own thread must not.
        let files = self.files().clone();
        let watched = files.iter().filter(|(wd, _)| overflowed || written.contains(wd));
        heard.extend(watched.map(|(_, watched)| watched.worker.clone()));
        let unwatched = self.unwatched().values().map(|(watched, _)| watched.clone()).collect::<Vec<_>>();
        let files: Vec<Watched> = files.into_values().chain(unwatched).collect();
        self.wake(heard.iter().map(String::as_str));
        // An overflowed queue names no file, so all files are checked after any event.
        let is_large =
            |watched: &&Watched| std::fs::metadata(&watched.path).is_ok_and(|meta| meta.len() > watched.limit_bytes);
        let mut is_postponed = false;
        for watched in files.iter().filter(is_large) {
            match self.lock_wait(&watched.path) {
                Some(wait) => self.rotate(watched, wait),
                None => is_postponed = true,
            }
        }
        heard.iter().for_each(|worker| self.check_output_limit(&files, worker));
        is_postponed
    }

    /// Returns how long a rotation of the log may wait for its readers. `None` if it is locked, and not for long yet.
    fn lock_wait(&self, path: &Path) -> Option<Duration> {
        let mut locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_locked(path) {
            locked.remove(path);
            return Some(READER_MAX);
        }
        let since = *locked.entry(path.to_owned()).or_insert_with(Instant::now);
        (since.elapsed() >= self.lock_max).then_some(Duration::ZERO)
    }

    fn rotate(&self, watched: &Watched, lock_max: Duration) {
        *self.rotating() = Some(watched.path.clone());
        let rotated = rotate(&watched.path, watched.limit_bytes, lock_max);
        *self.rotating() = None;
        match rotated {
            Ok(emptied_bytes) => self.count(&watched.worker, emptied_bytes),
            Err(error) => tracing::warn!(worker = watched.worker, %error, "cannot rotate a log"),
        }
    }

    /// Adds bytes that were removed from the files. They are recorded after their removal: a crash in between lets the
    /// worker write more than its limit, never less.
    fn count(&self, worker: &str, emptied_bytes: u64) {
        let mut all = self.limited();
        let Some(limited) = all.get_mut(worker) else { return };
        limited.rotated_bytes = limited.rotated_bytes.saturating_add(emptied_bytes);
        let noted = write_note(&limited.note, limited.rotated_bytes);
        if let Err(error) = noted {
            tracing::warn!(worker, %error, "cannot record the rotated output");
        }
    }

    /// Notifies the waiting task if a worker has exceeded its output limit.
    fn check_output_limit(&self, files: &[Watched], worker: &str) {
        let all = self.limited();
        let Some(Limited { limit, rotated_bytes, spent, .. }) = all.get(worker) else { return };
        let sizes = files.iter().filter(|watched| watched.worker == worker);
        let there: u64 = sizes.map(|watched| length(&watched.path)).sum();
        if written_bytes(*rotated_bytes, there, limit.before_bytes) > limit.max_bytes {
            spent.notify_one();
        }
    }
}

async fn watch(watches: Arc<Watches>) {
    use std::os::fd::AsFd as _;
    let readable = watches.inotify.as_ref().and_then(|inotify| inotify.as_fd().try_clone_to_owned().ok());
    let readable = readable.and_then(|fd| Readable::new(fd).ok());
    let heard = async || match &readable {
        Some(readable) => readable.wait().await.is_ok(),
        None => std::future::pending().await,
    };
    let mut is_postponed = false;
    loop {
        let looks = !watches.unwatched().is_empty();
        // The kernel does not report that a lock was released.
        let goes_on = is_postponed
            || tokio::select! {
                goes_on = heard() => goes_on,
                () = watches.refused.notified() => true,
                () = tokio::time::sleep(LOOK_PAUSE), if looks => true,
            };
        if !goes_on {
            return;
        }
        let watches = Arc::clone(&watches);
        is_postponed = tokio::task::spawn_blocking(move || watches.check()).await.unwrap_or(false);
        tokio::time::sleep(PAUSE).await;
    }
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |meta| meta.len())
}

/// Returns the bytes written by one generation: rotated bytes plus bytes in the files, less the bytes that were there
/// `before` it started.
fn written_bytes(rotated: u64, there: u64, before: u64) -> u64 {
    rotated.saturating_add(there).saturating_sub(before)
}

fn write_note(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn output_of_earlier_generations_is_not_counted() {
        for (rotated, there, before, written) in [(0, 5, 0, 5), (0, 5, 3, 2), (10, 5, 3, 12), (0, 1, 3, 0)] {
            assert_eq!(written_bytes(rotated, there, before), written);
        }
    }

    /// A log that its own worker keeps locked and that exceeds its limit, and the lock.
    async fn locked_log(paths: &Paths, keeper: &LogKeeper) -> (PathBuf, File) {
        std::fs::create_dir_all(paths.logs()).expect("made");
        let path = paths.logs().join("x.stdout.log");
        let mut log = OpenOptions::new().append(true).create(true).open(&path).expect("opens");
        log.lock().expect("locks");
        keeper.keep("x", &["x.stdout.log".to_owned()], 400, None);
        let seen = keeper.written("x");
        log.write_all(&[b'o'; 600]).expect("writes");
        seen.await;
        (path, log)
    }

    async fn emptied(path: &Path) {
        while std::fs::metadata(path).expect("there").len() > 0 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_locked_log_delays_only_its_own_rotation() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let paths = Paths::new(dir.path());
        let keeper = LogKeeper::start_with(paths.clone(), Duration::MAX, watching::start().ok());
        let (path, log) = locked_log(&paths, &keeper).await;
        keeper.keep("other", &["other.stdout.log".to_owned()], 400, None);
        keeper.release("other");
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 600, "nobody waited for the rotation");
        log.unlock().expect("unlocks");
        emptied(&path).await;
    }

    #[tokio::test]
    async fn a_log_that_stays_locked_is_rotated_all_the_same() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let paths = Paths::new(dir.path());
        let keeper = LogKeeper::start_with(paths.clone(), Duration::ZERO, watching::start().ok());
        let (path, mut log) = locked_log(&paths, &keeper).await;
        emptied(&path).await;
        log.write_all(&[b'o'; 600]).expect("writes");
        emptied(&path).await;
    }

    #[tokio::test]
    async fn without_inotify_logs_are_looked_at() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let paths = Paths::new(dir.path());
        let keeper = LogKeeper::start_with(paths.clone(), Duration::MAX, None);
        let (path, log) = locked_log(&paths, &keeper).await;
        log.unlock().expect("unlocks");
        emptied(&path).await;
        keeper.release("x");
        assert!(keeper.watches.unwatched().is_empty());
    }

    #[tokio::test]
    async fn exceeding_the_output_limit_is_reported_also_by_the_next_keeper() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let paths = Paths::new(dir.path());
        for made in [paths.logs(), paths.worker("x", 3)] {
            std::fs::create_dir_all(made).expect("made");
        }
        let files = ["x.stdout.log".to_owned(), "x.stderr.log".to_owned()];
        let mut writers = files
            .each_ref()
            .map(|file| OpenOptions::new().append(true).create(true).open(paths.logs().join(file)).expect("opens"));
        writers[0].write_all(&[b'-'; 100]).expect("writes as the earlier generation");
        let limit = OutputLimit { generation: 3, max_bytes: 1000, before_bytes: 100 };
        let keeper = LogKeeper::start(paths.clone());
        let left = unfinished(&paths.logs().join(&files[0]));
        std::fs::write(&left, "").expect("written by a killed supervisor");
        keeper.keep("x", &files, 400, Some(limit));
        assert!(!left.exists());
        keeper.keep("other", &[], 400, None);
        let seen = keeper.written("x");
        writers[0].write_all(&[b'o'; 600]).expect("writes");
        seen.await;
        let rotated = async || {
            while std::fs::metadata(paths.worker("x", 3).join(ROTATED)).map_or(0, |meta| meta.len()) == 0 {
                tokio::task::yield_now().await;
            }
        };
        rotated().await;
        assert_eq!(std::fs::read_to_string(paths.worker("x", 3).join(ROTATED)).expect("noted"), "700");
        // Simulates the death of this supervisor.
        keeper.release("x");
        let keeper = LogKeeper::start(paths.clone());
        keeper.keep("x", &files, 400, Some(limit));
        let spent = keeper.spent("x");
        writers[1].write_all(&[b'e'; 401]).expect("writes");
        spent.await;
        // The limit may be exceeded already when the worker is registered.
        keeper.keep("x", &files, 400, Some(limit));
        keeper.spent("x").await;
    }
}
