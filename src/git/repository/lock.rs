//! The creation lock of a repository. All supervisors together create or roll back
//! one worktree of it at a time. The lock is a `flock(2)` on a file that is never
//! unlinked, so the kernel releases it however its holder ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::worktrees::record;
use swarm_sys::files::{self, lock};

pub(crate) const LOCK_WAIT_MS_MAX: u64 = 60_000;
const FILE: &str = "swarm-worktree.lock";

#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    #[error("cannot lock {}: {cause}", path.display())]
    Io { path: PathBuf, cause: io::Error },
    #[error("timed out after {} s waiting for another worktree of this repository (process {holder} holds {})", waited.as_secs(), path.display())]
    Busy { path: PathBuf, holder: String, waited: Duration },
}

/// Proof that the repository's creation lock is held.
#[derive(Debug)]
pub(crate) struct CreationLock {
    _file: File,
}

/// Takes the lock of the repository whose common directory is `common`. Waits at most `limit`.
pub(crate) fn acquire(common: &Path, limit: Duration) -> Result<CreationLock, LockError> {
    let path = common.join(FILE);
    let failed = |cause| LockError::Io { path: path.clone(), cause };
    let deadline = Instant::now() + limit;
    loop {
        let file = open(&path).map_err(failed)?;
        let mut file = match file.try_lock() {
            Ok(()) => file,
            Err(TryLockError::Error(cause)) if cause.kind() == io::ErrorKind::Interrupted => continue,
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            Err(TryLockError::WouldBlock) => {
                let left = deadline.saturating_duration_since(Instant::now());
                wait(file, left).map_err(failed)?.ok_or_else(|| LockError::Busy {
                    path: path.clone(),
                    holder: holder(&path),
                    waited: limit,
                })?
            }
        };
        // A person may have removed the file while we waited; a lock on the old
        // file would protect nothing.
        if is_same_file(&file, &path) {
            // The pid in the file is only for the error message of other processes.
            let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
            return Ok(CreationLock { _file: file });
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    files::open_regular(OpenOptions::new().read(true).write(true).create(true).truncate(false), path)
}

/// Waits for the lock in a separate thread. After a timeout, that thread eventually
/// gets the lock, finds no receiver, and releases it.
fn wait(file: File, limit: Duration) -> io::Result<Option<File>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new().name("worktree-lock".to_owned()).spawn(move || {
        let locked = lock::lock(&file).map(|()| file);
        let _ = sender.send(locked);
    })?;
    receiver.recv_timeout(limit).ok().transpose()
}

fn is_same_file(file: &File, path: &Path) -> bool {
    let (Ok(held), Ok(there)) = (file.metadata(), path.symlink_metadata()) else { return false };
    (held.dev(), held.ino()) == (there.dev(), there.ino())
}

fn holder(path: &Path) -> String {
    let text = record::read_text(path).unwrap_or_default();
    Some(text.trim()).filter(|text| !text.is_empty()).unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_waits_for_the_first_and_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = acquire(dir.path(), Duration::ZERO).unwrap();
        let refused = acquire(dir.path(), Duration::from_millis(1)).unwrap_err();
        assert!(refused.to_string().contains(&format!("process {} holds", std::process::id())), "{refused}");

        let (sender, receiver) = mpsc::channel();
        let path = dir.path().to_owned();
        let second = std::thread::spawn(move || {
            let lock = acquire(&path, Duration::from_secs(60)).unwrap();
            sender.send(()).unwrap();
            drop(lock);
        });
        assert!(receiver.try_recv().is_err());
        drop(first);
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        second.join().unwrap();
        assert!(dir.path().join(FILE).exists());
    }

    #[test]
    fn a_lock_does_not_follow_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let theirs = dir.path().join("theirs");
        std::fs::write(&theirs, "precious").unwrap();
        std::os::unix::fs::symlink(&theirs, dir.path().join(FILE)).unwrap();
        assert!(matches!(acquire(dir.path(), Duration::ZERO), Err(LockError::Io { .. })));
        assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "precious");
    }

    #[test]
    fn a_lock_on_a_file_that_was_removed_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let first = acquire(dir.path(), Duration::ZERO).unwrap();
        let inode = path.metadata().unwrap().ino();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| acquire(dir.path(), Duration::from_secs(60)).unwrap());
            // The kernel lists waiters as `-> FLOCK … device:inode …`.
            let wanted = format!(":{inode} ");
            let deadline = Instant::now() + Duration::from_secs(60);
            let is_waiting = || {
                let locks = std::fs::read_to_string("/proc/locks").unwrap();
                locks.lines().any(|line| line.contains("->") && line.contains(&wanted))
            };
            while !is_waiting() {
                assert!(Instant::now() < deadline, "nobody waits");
                std::thread::yield_now();
            }
            std::fs::remove_file(&path).unwrap();
            drop(first);
            let second = second.join().unwrap();
            assert!(path.exists(), "the lock on a removed file was taken for the lock");
            assert!(acquire(dir.path(), Duration::ZERO).is_err());
            drop(second);
        });
    }
}
