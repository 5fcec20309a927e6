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
/// Maximum time for which a suspended reader, or a worker that has locked its own log, delays a rotation.
pub const LOCK_MAX: Duration = Duration::from_millis(500);
/// Maximum time for which a reader waits for a rotation, which may wait for the disk, or for a worker that has locked
/// its own log. A worker has two logs.
pub const READ_LOCK_MAX: Duration = Duration::from_millis(250);
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

/// Locks a log for reading, for a moment. Reports whether the lock was free within `limit`. Without it, a reader may
/// repeat or miss some output if the log is rotated at this moment.
pub fn lock_for_reading(log: &File, limit: Duration) -> bool {
    locked(limit, || log.try_lock_shared())
}

/// Releases the lock of [`lock_for_reading`].
pub fn unlock(log: &File) {
    let _ = log.unlock();
}

/// Reports whether the lock is ours, or files cannot be locked at all.
fn locked(limit: Duration, lock: impl Fn() -> Result<(), TryLockError>) -> bool {
    let begun = Instant::now();
    while matches!(lock(), Err(TryLockError::WouldBlock)) {
        if begun.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    true
}

/// A rotation in progress: the last `limit_bytes` are moved into the part, and the log, which its writers have open in
/// append mode, is truncated. If the disk is full, the log is truncated without a part, because nothing else would free
/// space. Until [`Rotation::finish`] nothing has changed; an abandoned rotation removes its copy.
pub struct Rotation {
    path: PathBuf,
    log: File,
    /// The new part. `None` if the disk is full.
    to: Option<File>,
    /// Offset in the log of the first byte that is kept.
    start: u64,
    limit_bytes: u64,
    is_finished: bool,
}

impl Rotation {
    /// Copies the last `limit_bytes`, which may take long.
    ///
    /// # Errors
    /// Fails if the log cannot be read, or the part cannot be written for another reason than a full disk.
    pub fn begin(path: &Path, limit_bytes: u64) -> io::Result<Self> {
        let log = OpenOptions::new().read(true).write(true).open(path)?;
        let start = log.metadata()?.len().saturating_sub(limit_bytes);
        let mut rotation = Self { path: path.to_owned(), log, to: None, start, limit_bytes, is_finished: false };
        let mut begun = rotation.copy_first();
        if is_full(&begun) && fs::remove_file(older(path)).is_ok() {
            begun = rotation.copy_first();
        }
        if begun.is_err() {
            let _ = fs::remove_file(unfinished(path));
        }
        rotation.to = match begun {
            Err(error) if error.kind() == ErrorKind::StorageFull => None,
            begun => Some(begun?),
        };
        Ok(rotation)
    }

    fn copy_first(&mut self) -> io::Result<File> {
        let mut to =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(unfinished(&self.path))?;
        self.log.seek(SeekFrom::Start(self.start))?;
        copy(&mut self.log, &mut to, self.limit_bytes.saturating_mul(2)).map(|()| to)
    }

    /// Locks the log, so that readers do not see a part without its log. Reports whether the lock was free within
    /// `limit`; a rotation may do without it. It is released when the rotation ends.
    pub fn lock(&self, limit: Duration) -> bool {
        locked(limit, || self.log.try_lock())
    }

    /// Copies what was written meanwhile.
    ///
    /// # Errors
    /// Fails if the copy fails; the log then keeps what it contains.
    pub fn copy_rest(&mut self) -> io::Result<()> {
        match &mut self.to {
            Some(to) => copy(&mut self.log, to, self.limit_bytes),
            None => Ok(()),
        }
    }

    /// Puts the part in place and truncates the log. Returns the number of bytes removed from the log.
    ///
    /// # Errors
    /// Fails if the part cannot be renamed, or the log cannot be truncated.
    pub fn finish(mut self) -> io::Result<u64> {
        let older = older(&self.path);
        if let Some(to) = &self.to {
            let base = File::open(&older).ok().and_then(|file| part_of(&file)).map_or(0, |part| part.next);
            let next = base.saturating_add(self.log.metadata()?.len());
            let value = format!("{} {next}", base.saturating_add(self.start));
            // Without attributes, a reader that is in the middle of the log may repeat or miss some of it.
            let _ = fsetxattr(to, ATTRIBUTE, value.as_bytes(), XattrFlags::empty());
            fs::rename(unfinished(&self.path), &older)?;
        }
        self.is_finished = true;
        let emptied_bytes = self.log.metadata()?.len();
        self.log.set_len(0)?;
        Ok(emptied_bytes)
    }
}

impl Drop for Rotation {
    fn drop(&mut self) {
        if !self.is_finished && self.to.is_some() {
            let _ = fs::remove_file(unfinished(&self.path));
        }
    }
}

/// Rotates a log in one step. Returns the number of bytes removed from the log.
///
/// # Errors
/// Fails as the steps of [`Rotation`] do.
pub fn rotate(path: &Path, limit_bytes: u64) -> io::Result<u64> {
    let mut rotation = Rotation::begin(path, limit_bytes)?;
    rotation.lock(LOCK_MAX);
    rotation.copy_rest()?;
    rotation.finish()
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
        assert_eq!(rotate(&path, 4).expect("rotates"), 10);
        writer.write_all(b"ab").expect("writes");
        assert_eq!(fs::read(&path).expect("reads"), b"ab");
        assert_eq!(fs::read(older(&path)).expect("reads"), b"6789");
        writer.write_all(b"cdefg").expect("writes");
        let before = File::open(older(&path)).expect("opens");
        assert_eq!(rotate(&path, 4).expect("rotates"), 7);
        assert_eq!(fs::read(older(&path)).expect("reads"), b"defg");
        let kept = File::open(older(&path)).expect("opens");
        if let (Some(one), Some(two)) = (part_of(&before), part_of(&kept)) {
            assert_eq!((one, two), (Part { start: 6, next: 10 }, Part { start: 13, next: 17 }));
        }
        assert!(!unfinished(&path).exists());
    }

    #[test]
    fn a_log_of_which_only_the_end_cannot_be_copied_is_not_truncated() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let path = dir.path().join("x.stdout.log");
        fs::write(&path, "0123456789").expect("writes");
        rotate(&path, 4).expect("rotates");
        let part = part_of(&File::open(older(&path)).expect("opens"));
        let mut writer = OpenOptions::new().append(true).open(&path).expect("opens");
        writer.write_all(b"abcde").expect("writes");
        let mut rotation = Rotation::begin(&path, 4).expect("begins");
        writer.write_all(b"f").expect("writes");
        // The disk is full after the first copy.
        rotation.to = Some(OpenOptions::new().write(true).open("/dev/full").expect("opens"));
        rotation.copy_rest().expect_err("the disk is full");
        drop(rotation);
        assert_eq!(fs::read(&path).expect("reads"), b"abcdef");
        assert_eq!(fs::read(older(&path)).expect("reads"), b"6789");
        assert_eq!(part_of(&File::open(older(&path)).expect("opens")), part);
        assert!(!unfinished(&path).exists());
    }

    #[test]
    fn a_locked_log_is_done_without_its_lock() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let path = dir.path().join("x.stdout.log");
        fs::write(&path, "0123456789").expect("writes");
        let worker = File::open(&path).expect("opens");
        worker.lock().expect("locks");
        let reader = File::open(&path).expect("opens");
        assert!(!lock_for_reading(&reader, Duration::ZERO));
        assert!(!Rotation::begin(&path, 4).expect("begins").lock(Duration::ZERO));
        assert_eq!(rotate(&path, 4).expect("rotates"), 10);
        worker.unlock().expect("unlocks");
        assert!(lock_for_reading(&reader, Duration::ZERO));
    }

    #[test]
    fn a_full_disk_is_freed_without_a_part() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let path = dir.path().join("x.stdout.log");
        fs::write(&path, "0123456789").expect("writes");
        // Every write to it fails as on a full disk.
        std::os::unix::fs::symlink("/dev/full", unfinished(&path)).expect("links");
        assert_eq!(rotate(&path, 4).expect("rotates"), 10);
        assert_eq!((fs::read(&path).expect("reads").len(), older(&path).exists()), (0, false));
    }
}
