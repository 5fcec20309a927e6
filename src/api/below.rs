//! What is above the process that made a request, by its ancestors.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::notify::own::is_notification;
use swarm_model::Below;
use swarm_sys::paths::Paths;
use swarm_sys::procfs;

use super::orphans::Sessions;

/// Maximum number of ancestors that are examined.
const ANCESTORS_MAX: usize = 4096;

/// Returns the work of an agent, in this state directory, below which a process runs. `None` if there is none. The shim of a
/// worker is an ancestor of its processes, because those that lose their parent become its children. If the shim was killed,
/// their session tells. A process that has ended cannot be examined. Must be called in the supervisor.
pub fn below(pid: i32, paths: &Paths) -> Option<Below> {
    let own = i32::try_from(std::process::id()).ok()?;
    let (mut pid, mut child, mut sessions) = (pid, None, Sessions::default());
    for _ in 0..ANCESTORS_MAX {
        if let Some(child) = child.filter(|_| pid == own) {
            // The command for notifications is the word of the supervisor's user.
            return (!is_notification(child)).then_some(Below::Command);
        }
        child = Some(pid);
        if let Some(name) = worker_of(pid, paths) {
            return Some(Below::Worker(name));
        }
        let Some(stat) = procfs::stat(pid) else { return Some(Below::Unknown) };
        sessions.add(stat.session);
        if stat.parent <= 1 {
            return sessions.worker(paths).map(Below::Worker);
        }
        pid = stat.parent;
    }
    Some(Below::Unknown)
}

/// Returns the worker of a process that is its shim. The working directory of a shim is `w/NAME.GENERATION` in the state
/// directory.
fn worker_of(pid: i32, paths: &Paths) -> Option<String> {
    procfs::is_shim(pid).ok().filter(|is_shim| *is_shim)?;
    let dir = procfs::dir(pid)?;
    if !is_same(dir.parent()?.parent()?, paths.root()) {
        return None;
    }
    let leaf = dir.file_name()?.to_str()?;
    leaf.rsplit_once('.').map(|(name, _)| name.to_owned())
}

fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    matches!((place(one), place(other)), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Returns a process of this one, and what is above it.
    fn seen(paths: &Paths) -> Option<Below> {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("started");
        let seen = below(i32::try_from(child.id()).expect("a pid"), paths);
        drop(child.stdin.take());
        child.wait().expect("it ends");
        seen
    }

    #[test]
    fn a_command_of_the_supervisor_and_a_process_that_has_ended_are_no_person() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        assert_eq!(seen(&paths), Some(Below::Command));
        let mut gone = Command::new("true").spawn().expect("started");
        let pid = i32::try_from(gone.id()).expect("a pid");
        gone.wait().expect("reaped");
        assert_eq!(below(pid, &paths), Some(Below::Unknown));
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert!(!matches!(below(own, &paths), Some(Below::Command)), "the supervisor itself");
    }

    #[test]
    fn a_command_for_a_notification_is_known_by_its_process_and_not_by_its_text() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("started");
        let pid = i32::try_from(child.id()).expect("a pid");
        assert_eq!(below(pid, &paths), Some(Below::Command));
        let mark = crate::notify::own::Mark::set(pid).expect("it runs");
        assert_eq!(below(pid, &paths), None);
        drop(mark);
        assert_eq!(below(pid, &paths), Some(Below::Command));
        drop(child.stdin.take());
        child.wait().expect("it ends");
    }
}
