//! Logs within their limit. Workers write to their files themselves, in append
//! mode; the kernel tells of writes (inotify), and a file over its limit is
//! copied aside, its last part only, and emptied. What a worker writes in
//! between those two steps is lost; nothing below the limit ever is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use swarm_actors::ports::{BoxFuture, Logs};
use tokio::sync::Notify;

use super::readable::Readable;

/// After a write was seen, no other is looked at for this long.
const PAUSE: Duration = Duration::from_millis(100);

pub struct LogKeeper {
    dir: PathBuf,
    watches: Arc<Watches>,
}

struct Watches {
    inotify: Inotify,
    files: Mutex<BTreeMap<WatchDescriptor, Watched>>,
    /// Who wants to know of the next write, by worker.
    listeners: Mutex<BTreeMap<String, Arc<Notify>>>,
}

struct Watched {
    worker: String,
    path: PathBuf,
    limit_bytes: u64,
}

impl LogKeeper {
    /// Watches in a task of the current runtime. Where there is no inotify,
    /// logs are not rotated, and that is said once.
    pub fn start(dir: PathBuf) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let watches = Arc::new(Watches { inotify, files: Mutex::default(), listeners: Mutex::default() });
        tokio::spawn(watch(Arc::clone(&watches)));
        Ok(Self { dir, watches })
    }
}

impl Logs for LogKeeper {
    fn keep(&self, worker: &str, files: &[String], limit_bytes: u64) {
        for file in files {
            let path = self.dir.join(file);
            let watch = || Ok(self.watches.inotify.add_watch(&path, AddWatchFlags::IN_MODIFY)?);
            let watched = watch().or_else(|_: io::Error| {
                // Not there yet: made here, so that it can be watched.
                OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
                watch()
            });
            match watched {
                Ok(descriptor) => {
                    let watched = Watched { worker: worker.to_owned(), path, limit_bytes };
                    self.watches.files().insert(descriptor, watched);
                }
                Err(error) => tracing::warn!(worker, file, %error, "a log is not watched and may grow"),
            }
        }
    }

    fn release(&self, worker: &str) {
        self.watches.files().retain(|descriptor, watched| {
            let ours = watched.worker == worker;
            if ours {
                let _ = self.watches.inotify.rm_watch(*descriptor);
            }
            !ours
        });
        self.watches.tell([worker]);
    }

    fn written(&self, worker: &str) -> BoxFuture<'static, ()> {
        let mut listeners = self.watches.listeners();
        let next = Arc::clone(listeners.entry(worker.to_owned()).or_default()).notified_owned();
        Box::pin(next)
    }
}

impl Watches {
    fn files(&self) -> std::sync::MutexGuard<'_, BTreeMap<WatchDescriptor, Watched>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listeners(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Notify>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A listener is told once.
    fn tell<'a>(&self, workers: impl IntoIterator<Item = &'a str>) {
        let mut listeners = self.listeners();
        for worker in workers {
            if let Some(listener) = listeners.remove(worker) {
                listener.notify_waiters();
            }
        }
    }

    /// Takes what is pending and rotates what is over its limit.
    fn check(&self) {
        let (mut written, mut overflowed) = (BTreeSet::new(), false);
        while let Some(events) = self.inotify.read_events().ok().filter(|events| !events.is_empty()) {
            overflowed |= events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW));
            written.extend(events.into_iter().map(|event| event.wd));
        }
        let files = self.files();
        let heard = |(wd, _): &(&WatchDescriptor, &Watched)| overflowed || written.contains(wd);
        self.tell(files.iter().filter(heard).map(|(_, watched)| watched.worker.as_str()));
        // An overflowing queue names no file, so after any event all are looked at.
        for watched in files.values() {
            let size = std::fs::metadata(&watched.path).map_or(0, |meta| meta.len());
            if size > watched.limit_bytes
                && let Err(error) = rotate(&watched.path, watched.limit_bytes)
            {
                tracing::warn!(worker = watched.worker, %error, "a log could not be rotated");
            }
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

/// Keeps the last `limit_bytes` in `PATH.1` and empties the file, which its
/// writers have open in append mode.
fn rotate(path: &Path, limit_bytes: u64) -> io::Result<()> {
    let mut from = OpenOptions::new().read(true).write(true).open(path)?;
    let size = from.metadata()?.len();
    let mut kept = path.as_os_str().to_owned();
    kept.push(".1");
    let mut to = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&kept)?;
    from.seek(SeekFrom::Start(size.saturating_sub(limit_bytes)))?;
    copy(&mut from, &mut to, limit_bytes)?;
    from.set_len(0)
}

fn copy(from: &mut File, to: &mut File, limit_bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0_u8; 1 << 20];
    let mut left = limit_bytes.saturating_mul(2);
    while left > 0 {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..count])?;
        left = left.saturating_sub(count as u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_is_kept_and_the_writer_goes_on_at_the_start() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let path = dir.path().join("x.stdout.log");
        let mut writer = OpenOptions::new().append(true).create(true).open(&path).expect("opens");
        writer.write_all(b"0123456789").expect("writes");
        rotate(&path, 4).expect("rotates");
        writer.write_all(b"ab").expect("writes");
        assert_eq!(std::fs::read(&path).expect("reads"), b"ab");
        assert_eq!(std::fs::read(dir.path().join("x.stdout.log.1")).expect("reads"), b"6789");
    }
}
