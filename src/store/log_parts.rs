//! Rotation of logs, and how a reader in the middle of a log finds its place after one.
//!
//! A position counts all bytes that were ever written to a log. The rotated part records, in an extended attribute, the
//! position of its own first byte and that of the first byte in the log. Part and log change together while the log is
//! locked, so that a reader that opens both under the lock gets a consistent pair. A part never changes: the next
//! rotation replaces it by another file.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};

/// Name of the extended attribute: two decimal numbers.
const ATTRIBUTE: &str = "user.swarm.part";
/// Maximum time for which a reader waits for a rotation, which may wait for the disk. Whoever can write to a log can
/// also keep it locked.
const READ_LOCK_MAX: Duration = Duration::from_secs(1);
/// Pause between two tries to lock.
const LOCK_PAUSE: Duration = Duration::from_millis(1);
const BLOCK_BYTES: usize = 1 << 20;

/// Positions of a rotated part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Position of its first byte.
    pub start: u64,
    /// Position of the first byte of the log.
    pub next: u64,
}

/// Returns the path of the rotated part of a log.
pub fn older(path: &Path) -> PathBuf {
    beside(path, ".1")
}

/// Returns the path of a part that is being written.
pub fn unfinished(path: &Path) -> PathBuf {
    beside(path, ".1.tmp")
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Returns the positions of a part. `None` if they are unknown: an older version wrote it, the whole log was renamed, or
/// the file system has no attributes.
pub fn part_of(file: &File) -> Option<Part> {
    let mut value = [0; 48];
    let length = fgetxattr(file, ATTRIBUTE, &mut value).ok()?;
    let (start, next) = str::from_utf8(value.get(..length)?).ok()?.split_once(' ')?;
    Some(Part { start: start.parse().ok()?, next: next.parse().ok()? })
}

/// Locks a log for reading, for a moment. A lock that cannot be had in time is done without.
pub fn lock_for_reading(log: &File) {
    locked(READ_LOCK_MAX, || log.try_lock_shared());
}

/// Releases the lock of [`lock_for_reading`].
pub fn unlock(log: &File) {
    let _ = log.unlock();
}

fn locked(limit: Duration, lock: impl Fn() -> Result<(), TryLockError>) {
    let deadline = Instant::now() + limit;
    while matches!(lock(), Err(TryLockError::WouldBlock)) && Instant::now() < deadline {
        std::thread::sleep(LOCK_PAUSE);
    }
}

/// Reports whether somebody else holds a lock of a log.
pub fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|log| matches!(log.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Moves the last `limit_bytes` into the part and truncates the log, which its writers have open in append mode. If the
/// disk is full, the log is truncated without a part, because nothing else would free space. Does without the lock if it
/// cannot be had within `lock_max`. Returns the number of bytes removed from the log.
///
/// # Errors
/// Fails if the log cannot be read or truncated, or the part cannot be written for another reason.
pub fn rotate(path: &Path, limit_bytes: u64, lock_max: Duration) -> io::Result<u64> {
    let mut log = OpenOptions::new().read(true).write(true).open(path)?;
    let (older, unfinished) = (older(path), unfinished(path));
    let base = File::open(&older).ok().and_then(|file| part_of(&file)).map_or(0, |part| part.next);
    let start = log.metadata()?.len().saturating_sub(limit_bytes);
    let mut begin = || {
        let mut to = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        log.seek(SeekFrom::Start(start))?;
        copy(&mut log, &mut to, limit_bytes.saturating_mul(2)).map(|()| to)
    };
    let mut begun = begin();
    if is_full(&begun) && fs::remove_file(&older).is_ok() {
        begun = begin();
    }
    if begun.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    let to = match begun {
        Err(error) if error.kind() == ErrorKind::StorageFull => None,
        begun => Some(begun?),
    };
    // Released when the file is closed.
    locked(lock_max, || log.try_lock());
    if let Some(mut to) = to {
        // What was written meanwhile is little. If it cannot be copied, it is lost, and what was copied before is kept.
        let _ = copy(&mut log, &mut to, limit_bytes);
        let next = base.saturating_add(log.metadata()?.len());
        let value = format!("{} {next}", base.saturating_add(start));
        // Without attributes, a reader that is in the middle of the log may repeat or miss some of it.
        let _ = fsetxattr(&to, ATTRIBUTE, value.as_bytes(), XattrFlags::empty());
        fs::rename(&unfinished, &older)?;
    }
    let emptied_bytes = log.metadata()?.len();
    log.set_len(0)?;
    Ok(emptied_bytes)
}

fn is_full<T>(result: &io::Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::StorageFull)
}

fn copy(from: &mut File, to: &mut File, limit_bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0_u8; BLOCK_BYTES];
    let mut left = limit_bytes;
    while left > 0 {
        let count = match from.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
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
    fn rotation_keeps_the_last_part_and_the_writer_continues_at_the_start() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let path = dir.path().join("x.stdout.log");
        let mut writer = OpenOptions::new().append(true).create(true).open(&path).expect("opens");
        writer.write_all(b"0123456789").expect("writes");
        assert_eq!(rotate(&path, 4, Duration::ZERO).expect("rotates"), 10);
        writer.write_all(b"ab").expect("writes");
        assert_eq!(fs::read(&path).expect("reads"), b"ab");
        assert_eq!(fs::read(older(&path)).expect("reads"), b"6789");
        writer.write_all(b"cdefg").expect("writes");
        let before = File::open(older(&path)).expect("opens");
        assert_eq!(rotate(&path, 4, Duration::ZERO).expect("rotates"), 7);
        assert_eq!(fs::read(older(&path)).expect("reads"), b"defg");
        let kept = File::open(older(&path)).expect("opens");
        if let (Some(one), Some(two)) = (part_of(&before), part_of(&kept)) {
            assert_eq!((one, two), (Part { start: 6, next: 10 }, Part { start: 13, next: 17 }));
        }
        assert!(!unfinished(&path).exists());
    }

    #[test]
    fn a_full_disk_is_freed_without_a_part() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let path = dir.path().join("x.stdout.log");
        fs::write(&path, "0123456789").expect("writes");
        // Every write to it fails as on a full disk.
        std::os::unix::fs::symlink("/dev/full", unfinished(&path)).expect("links");
        assert_eq!(rotate(&path, 4, Duration::ZERO).expect("rotates"), 10);
        assert_eq!((fs::read(&path).expect("reads").len(), older(&path).exists()), (0, false));
    }
}
