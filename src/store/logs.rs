//! Keeps the logs of workers within their size limit.
//!
//! Workers write to their files themselves, in append mode. inotify reports writes; the last part of a file that
//! exceeds its limit is copied to `FILE.1`, then the file is truncated (`log_parts.rs`). Output written between these
//! two steps is lost; below the limit nothing is ever lost.
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

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use swarm_ports::{BoxFuture, Logs, OutputLimit};
use tokio::sync::Notify;

use crate::log_parts::{LOCK_MAX, Rotation, unfinished};
use swarm_sys::paths::Paths;
use swarm_sys::readable::Readable;

/// Pause after a batch of writes was handled, before the next one is read.
const PAUSE: Duration = Duration::from_millis(100);

/// Time for which no rotation waits for the lock of a log that somebody held for longer than a rotation waits.
const LOCK_DISTRUST: Duration = Duration::from_secs(60);

/// File in a generation's directory that holds the number of bytes rotated away.
const ROTATED: &str = "rotated";

pub struct LogKeeper {
    paths: Paths,
    watches: Arc<Watches>,
}

struct Watches {
    inotify: Inotify,
    /// Held only for a moment, because the actors need it: never while a rotation copies or waits for a lock.
    files: Mutex<BTreeMap<WatchDescriptor, Watched>>,
    /// The log that is being rotated; the file of its unfinished part is in use.
    rotating: Mutex<Option<PathBuf>>,
    /// Maximum time for which a rotation waits for the lock of a log.
    lock_max: Duration,
    /// Tasks that wait for the next write of a worker.
    listeners: Mutex<BTreeMap<String, Arc<Notify>>>,
    /// Workers whose output is limited.
    limited: Mutex<BTreeMap<String, Limited>>,
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
    /// When a rotation last waited for its lock in vain.
    held_at: Option<Instant>,
}

impl LogKeeper {
    /// Starts watching in a task of the current runtime.
    ///
    /// # Errors
    /// Fails if inotify is not available; logs are not rotated then.
    pub fn start(paths: Paths) -> io::Result<Self> {
        Self::start_with(paths, LOCK_MAX)
    }

    fn start_with(paths: Paths, lock_max: Duration) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let (files, rotating, listeners, limited) = Default::default();
        let watches = Arc::new(Watches { inotify, files, rotating, lock_max, listeners, limited });
        tokio::spawn(watch(Arc::clone(&watches)));
        Ok(Self { paths, watches })
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
                // Left by a supervisor that was killed during a rotation.
                let rotating = self.watches.rotating();
                if rotating.as_ref() != Some(&path) {
                    let _ = std::fs::remove_file(unfinished(&path));
                }
            }
            let watch = || Ok(self.watches.inotify.add_watch(&path, AddWatchFlags::IN_MODIFY)?);
            let watched = watch().or_else(|_: io::Error| {
                // inotify can watch existing files only.
                OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
                watch()
            });
            match watched {
                Ok(descriptor) => {
                    let watched = Watched { worker: worker.to_owned(), path, limit_bytes, held_at: None };
                    self.watches.files().insert(descriptor, watched);
                }
                Err(error) => tracing::warn!(worker, file, %error, "cannot watch a log; it may exceed its limit"),
            }
        }
        // The limit may have been exceeded before the watch existed.
        self.watches.check_output_limit(worker);
    }

    fn release(&self, worker: &str) {
        self.watches.files().retain(|descriptor, watched| {
            let ours = watched.worker == worker;
            if ours {
                let _ = self.watches.inotify.rm_watch(*descriptor);
            }
            !ours
        });
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

    fn rotating(&self) -> std::sync::MutexGuard<'_, Option<PathBuf>> {
        self.rotating.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Handles pending inotify events: wakes listeners, rotates files that exceed their limit, checks output limits.
    fn check(&self) {
        let (mut written, mut overflowed) = (BTreeSet::new(), false);
        while let Some(events) = self.inotify.read_events().ok().filter(|events| !events.is_empty()) {
            overflowed |= events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW));
            written.extend(events.into_iter().map(|event| event.wd));
        }
        // A copy, because a rotation may take long.
        let files = self.files().clone();
        let heard = |(wd, _): &(&WatchDescriptor, &Watched)| overflowed || written.contains(wd);
        let heard: BTreeSet<&str> = files.iter().filter(heard).map(|(_, watched)| watched.worker.as_str()).collect();
        self.wake(heard.iter().copied());
        // An overflowed queue names no file, so all files are checked after any event.
        for (descriptor, watched) in &files {
            let size = std::fs::metadata(&watched.path).map_or(0, |meta| meta.len());
            if size > watched.limit_bytes {
                *self.rotating() = Some(watched.path.clone());
                let rotated = self.rotate(*descriptor, watched);
                *self.rotating() = None;
                match rotated {
                    Ok(emptied_bytes) => self.count(&watched.worker, emptied_bytes),
                    Err(error) => tracing::warn!(worker = watched.worker, %error, "cannot rotate a log"),
                }
            }
        }
        heard.into_iter().for_each(|worker| self.check_output_limit(worker));
    }

    /// Rotates a log, unless it is released meanwhile: then its next user may rename or delete it. Returns the number of
    /// bytes removed from it.
    fn rotate(&self, descriptor: WatchDescriptor, watched: &Watched) -> io::Result<u64> {
        let mut rotation = Rotation::begin(&watched.path, watched.limit_bytes)?;
        let distrusted = watched.held_at.is_some_and(|held_at| held_at.elapsed() < LOCK_DISTRUST);
        let lock_max = if distrusted { Duration::ZERO } else { self.lock_max };
        if !rotation.lock(lock_max) && !distrusted {
            tracing::warn!(worker = watched.worker, path = %watched.path.display(), "a log is locked by another program");
            if let Some(watched) = self.files().get_mut(&descriptor) {
                watched.held_at = Some(Instant::now());
            }
        }
        rotation.copy_rest()?;
        let files = self.files();
        if files.contains_key(&descriptor) { rotation.finish() } else { Ok(0) }
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
    fn check_output_limit(&self, worker: &str) {
        let files = self.files();
        let all = self.limited();
        let Some(Limited { limit, rotated_bytes, spent, .. }) = all.get(worker) else { return };
        let sizes = files.values().filter(|watched| watched.worker == worker);
        let there: u64 = sizes.map(|watched| std::fs::metadata(&watched.path).map_or(0, |meta| meta.len())).sum();
        if written_bytes(*rotated_bytes, there, limit.before_bytes) > limit.max_bytes {
            spent.notify_one();
        }
    }
}

async fn watch(watches: Arc<Watches>) {
    use std::os::fd::AsFd as _;
    let Ok(fd) = watches.inotify.as_fd().try_clone_to_owned() else { return };
    let Ok(readable) = Readable::new(fd) else { return };
    while readable.wait().await.is_ok() {
        let watches = Arc::clone(&watches);
        let _ = tokio::task::spawn_blocking(move || watches.check()).await;
        tokio::time::sleep(PAUSE).await;
    }
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
    use super::*;

    #[test]
    fn output_of_earlier_generations_is_not_counted() {
        for (rotated, there, before, written) in [(0, 5, 0, 5), (0, 5, 3, 2), (10, 5, 3, 12), (0, 1, 3, 0)] {
            assert_eq!(written_bytes(rotated, there, before), written);
        }
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
        let keeper = LogKeeper::start(paths.clone()).expect("starts");
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
        let keeper = LogKeeper::start(paths.clone()).expect("starts");
        keeper.keep("x", &files, 400, Some(limit));
        let spent = keeper.spent("x");
        writers[1].write_all(&[b'e'; 401]).expect("writes");
        spent.await;
        // The limit may be exceeded already when the worker is registered.
        keeper.keep("x", &files, 400, Some(limit));
        keeper.spent("x").await;
    }

    /// A directory with an empty log of `x`, and a writer to it.
    fn rig() -> (tempfile::TempDir, Paths, std::fs::File) {
        let dir = tempfile::tempdir().expect("makes a directory");
        let paths = Paths::new(dir.path());
        std::fs::create_dir_all(paths.logs()).expect("made");
        let path = paths.logs().join("x.stdout.log");
        let writer = OpenOptions::new().append(true).create(true).open(path).expect("opens");
        (dir, paths, writer)
    }

    #[tokio::test]
    async fn a_worker_that_locks_its_log_delays_nobody_and_a_released_log_is_not_rotated() {
        const LONG: Duration = Duration::from_secs(60 * 60);
        for released in [false, true] {
            let (_dir, paths, mut writer) = rig();
            let path = paths.logs().join("x.stdout.log");
            writer.lock().expect("locks");
            let keeper = LogKeeper::start_with(paths, LONG).expect("starts");
            let files = ["x.stdout.log".to_owned()];
            keeper.keep("x", &files, 400, None);
            writer.write_all(&[b'o'; 600]).expect("writes");
            let size = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len());
            while size(&unfinished(&path)) < 400 {
                tokio::task::yield_now().await;
            }
            // The rotation waits for the lock now.
            let limit = OutputLimit { generation: 1, max_bytes: 1, before_bytes: 0 };
            let (done, is_done) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                keeper.keep("other", &["other.stdout.log".to_owned()], 400, Some(limit));
                keeper.release("other");
                keeper.keep("x", &files, 400, None);
                if released {
                    keeper.release("x");
                }
                let _ = done.send(keeper);
            });
            let keeper = is_done.recv_timeout(Duration::from_secs(30)).expect("nobody waits for the lock");
            assert_eq!(size(&unfinished(&path)), 400, "the part is in use");
            writer.unlock().expect("unlocks");
            while unfinished(&path).exists() || keeper.watches.rotating().is_some() {
                tokio::task::yield_now().await;
            }
            let kept = (size(&path), size(&crate::log_parts::older(&path)));
            assert_eq!(kept, if released { (600, 0) } else { (0, 400) });
        }
    }

    #[tokio::test]
    async fn a_rotation_does_not_wait_twice_for_a_lock() {
        let (_dir, paths, mut writer) = rig();
        writer.lock().expect("locks");
        let keeper = LogKeeper::start_with(paths, Duration::from_millis(1)).expect("starts");
        keeper.keep("x", &["x.stdout.log".to_owned()], 4, None);
        let only = || keeper.watches.files().iter().next().map(|(one, two)| (*one, two.clone())).expect("one log");
        let mut emptied = |watched: &Watched| {
            writer.write_all(b"0123456789").expect("writes");
            keeper.watches.rotate(only().0, watched).expect("rotates")
        };
        assert_eq!(emptied(&only().1), 10);
        let held_at = only().1.held_at;
        assert!(held_at.is_some());
        // Would be set again if it waited.
        assert_eq!((emptied(&only().1), only().1.held_at), (10, held_at));
    }
}
