//! Who writes to the files of flows that are run: people by other processes, and another
//! program, which tells nobody.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use swarm_ports::BoxFuture;
use tokio::sync::Notify;

use super::store::FLOW;
use swarm_sys::readable::Readable;

const FLAGS: AddWatchFlags = AddWatchFlags::IN_MOVED_TO
    .union(AddWatchFlags::IN_CLOSE_WRITE)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);

/// One watch of the kernel for all flows: a user may have few.
pub struct Watches {
    inotify: Inotify,
    flows: Mutex<BTreeMap<WatchDescriptor, Arc<Notify>>>,
}

impl Watches {
    /// Within a runtime.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn start() -> io::Result<Arc<Self>> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let readable = Readable::new(inotify.as_fd().try_clone_to_owned()?)?;
        let watches = Arc::new(Self { inotify, flows: Mutex::default() });
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
            let flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
            let changed =
                events.iter().filter(|event| event.name.as_deref().is_none_or(|name| name == OsStr::new(FLOW)));
            changed.filter_map(|event| flows.get(&event.wd)).for_each(|flow| flow.notify_one());
        }
    }

    /// Resolves at the next change of the flow's file in `dir`, also at one since this was
    /// asked last. Never where it cannot be watched: then those who write tell of it.
    pub fn changed(&self, dir: &Path) -> BoxFuture<'static, ()> {
        let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        // The same folder has the same watch.
        let told = self.inotify.add_watch(dir, FLAGS).map(|watch| Arc::clone(flows.entry(watch).or_default()));
        match told {
            Ok(told) => Box::pin(async move { told.notified().await }),
            Err(error) => {
                tracing::warn!(dir = %dir.display(), %error, "a flow is not watched");
                Box::pin(std::future::pending())
            }
        }
    }

    pub fn forget(&self, dir: &Path) {
        let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        // Asked for only to be told which one it is.
        let Ok(watch) = self.inotify.add_watch(dir, FLAGS) else { return };
        let _ = self.inotify.rm_watch(watch);
        flows.remove(&watch);
    }
}
