//! Watches a file of the same name in many folders for changes by other processes, which do not announce them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use swarm_ports::BoxFuture;
use tokio::sync::Notify;

use swarm_sys::readable::Readable;

const FLAGS: AddWatchFlags = AddWatchFlags::IN_MOVED_TO
    .union(AddWatchFlags::IN_CLOSE_WRITE)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);

/// One inotify instance for all folders, because instances per user are limited.
pub struct Watches {
    /// Name of the file.
    file: &'static str,
    inotify: Inotify,
    folders: Mutex<BTreeMap<WatchDescriptor, Arc<Notify>>>,
}

impl Watches {
    /// Starts the task that reads inotify events about files with this name; must be called within a runtime.
    ///
    /// # Errors
    /// Fails if inotify is not available.
    pub fn start(file: &'static str) -> io::Result<Arc<Self>> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let readable = Readable::new(inotify.as_fd().try_clone_to_owned()?)?;
        let watches = Arc::new(Self { file, inotify, folders: Mutex::default() });
        let all = Arc::clone(&watches);
        tokio::spawn(async move {
            while readable.wait().await.is_ok() {
                all.take();
            }
        });
        Ok(watches)
    }

    fn take(&self) {
        while let Ok(events) = self.inotify.read_events() {
            if events.is_empty() {
                return;
            }
            let folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
            let changed =
                events.iter().filter(|event| event.name.as_deref().is_none_or(|name| name == OsStr::new(self.file)));
            changed.filter_map(|event| folders.get(&event.wd)).for_each(|folder| folder.notify_one());
        }
    }

    /// Resolves at the next change of the file in `dir`, or at once if it changed since the last call. Never
    /// resolves if the folder cannot be watched; changes are then noticed only if their writers announce them.
    pub fn changed(&self, dir: &Path) -> BoxFuture<'static, ()> {
        let mut folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        // Adding a watch for the same folder again returns the same descriptor.
        let change = self.inotify.add_watch(dir, FLAGS).map(|watch| Arc::clone(folders.entry(watch).or_default()));
        match change {
            Ok(change) => Box::pin(async move { change.notified().await }),
            Err(error) => {
                tracing::warn!(dir = %dir.display(), %error, "cannot watch a folder for changes");
                Box::pin(std::future::pending())
            }
        }
    }

    pub fn forget(&self, dir: &Path) {
        let mut folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        // Adding the watch again only returns its descriptor.
        let Ok(watch) = self.inotify.add_watch(dir, FLAGS) else { return };
        let _ = self.inotify.rm_watch(watch);
        folders.remove(&watch);
    }
}
