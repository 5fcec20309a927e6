//! Runners that this process has started for the user's notification command. No text proves that a process is one: an
//! agent may choose the command line of a verification.

use std::sync::{Mutex, PoisonError};

use swarm_sys::procfs;

/// The runners, by process number and start time.
static RUNNERS: Mutex<Vec<(i32, u64)>> = Mutex::new(Vec::new());

/// A runner that counts as that of a notification until this is dropped.
pub struct Mark((i32, u64));

impl Mark {
    /// Marks a child of this process. `None` if it cannot be examined: then it counts as any other command.
    pub fn set(pid: i32) -> Option<Self> {
        let runner = (pid, procfs::stat(pid)?.start_ticks);
        RUNNERS.lock().unwrap_or_else(PoisonError::into_inner).push(runner);
        Some(Self(runner))
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        RUNNERS.lock().unwrap_or_else(PoisonError::into_inner).retain(|runner| *runner != self.0);
    }
}

/// Reports whether this process has started a process for a notification.
pub fn is_notification(pid: i32) -> bool {
    let Some(stat) = procfs::stat(pid) else { return false };
    RUNNERS.lock().unwrap_or_else(PoisonError::into_inner).contains(&(pid, stat.start_ticks))
}
