//! Watches a file of the same name in many folders for changes by other processes, which do not announce them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, Inotify, WatchDescriptor};
use swarm_ports::BoxFuture;
use tokio::sync::Notify;

use swarm_sys::readable::Readable;
use swarm_sys::watching;

const FLAGS: AddWatchFlags = AddWatchFlags::IN_MOVED_TO
    .union(AddWatchFlags::IN_CLOSE_WRITE)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);

/// One inotify instance for all folders, because instances per user are limited.
pub struct Watches {
    /// Name of the file.
    file: &'static str,
    flags: AddWatchFlags,
    /// `None` if the kernel refuses one.
    inotify: Option<Inotify>,
    folders: Mutex<Folders>,
}

#[derive(Default)]
struct Folders {
    changes: BTreeMap<WatchDescriptor, Arc<Notify>>,
    /// By path, so that a folder is forgotten without looking at its disk.
    watches: BTreeMap<PathBuf, WatchDescriptor>,
}

impl Watches {
    /// Starts the task that reads inotify events about files with this name; must be called within a runtime.
    pub fn start(file: &'static str) -> Arc<Self> {
        Self::start_with(file, FLAGS)
    }

    /// Like [`Watches::start`], for writes to the very files that [`Watches::changed`] and [`Watches::forget`] name.
    pub fn start_on_writes() -> Arc<Self> {
        Self::start_with("", AddWatchFlags::IN_MODIFY)
    }

    fn start_with(file: &'static str, flags: AddWatchFlags) -> Arc<Self> {
        let started = watching::start().and_then(|inotify| {
            let readable = Readable::new(inotify.as_fd().try_clone_to_owned()?)?;
            Ok((inotify, readable))
        });
        match started {
            Ok((inotify, readable)) => {
                let watches = Self::with(file, flags, Some(inotify));
                let all = Arc::clone(&watches);
                tokio::spawn(async move {
                    while readable.wait().await.is_ok() {
                        all.take();
                    }
                });
                watches
            }
            Err(error) => {
                tracing::warn!(file, %error, "cannot watch for changes, and looks every few seconds instead");
                Self::with(file, flags, None)
            }
        }
    }

    fn with(file: &'static str, flags: AddWatchFlags, inotify: Option<Inotify>) -> Arc<Self> {
        Arc::new(Self { file, flags, inotify, folders: Mutex::default() })
    }

    fn take(&self) {
        while let Some(Ok(events)) = self.inotify.as_ref().map(Inotify::read_events) {
            if events.is_empty() {
                return;
            }
            let folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
            let changed =
                events.iter().filter(|event| event.name.as_deref().is_none_or(|name| name == OsStr::new(self.file)));
            changed.filter_map(|event| folders.changes.get(&event.wd)).for_each(|folder| folder.notify_one());
        }
    }

    /// Resolves at the next change of the file in `dir`, or at once if it changed since the last call. If the folder cannot
    /// be watched, it resolves after a few seconds, so that the caller looks.
    pub fn changed(&self, dir: &Path) -> BoxFuture<'static, ()> {
        let look = || Box::pin(tokio::time::sleep(watching::LOOK_PAUSE));
        let Some(inotify) = &self.inotify else { return look() };
        // Adding a watch for the same folder again returns the same descriptor.
        let change = inotify.add_watch(dir, self.flags).map(|watch| {
            let mut folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
            folders.watches.insert(dir.to_owned(), watch);
            Arc::clone(folders.changes.entry(watch).or_default())
        });
        match change {
            Ok(change) => Box::pin(async move { change.notified().await }),
            Err(error) => {
                let lacks = error == Errno::ENOSPC;
                tracing::warn!(dir = %dir.display(), error = %watching::explained(error), "cannot watch a folder for changes");
                if lacks { look() } else { Box::pin(std::future::pending()) }
            }
        }
    }

    pub fn forget(&self, dir: &Path) {
        let mut folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(inotify) = &self.inotify else { return };
        let Some(watch) = folders.watches.remove(dir) else { return };
        let _ = inotify.rm_watch(watch);
        folders.changes.remove(&watch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn without_inotify_the_caller_looks_every_few_seconds() {
        let watches = Watches::with("file", FLAGS, None);
        let began = tokio::time::Instant::now();
        watches.changed(Path::new("/nowhere")).await;
        assert_eq!(began.elapsed(), watching::LOOK_PAUSE);
        watches.forget(Path::new("/nowhere"));
    }
}
