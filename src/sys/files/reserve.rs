//! Reserved disk space, which is released when the disk is full and a record must be written.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

const FILE: &str = "reserve";
/// Unit in which the reserve grows.
const STEP_BYTES: u64 = 64 << 10;
/// Free space below which a disk counts as full.
const ROOM_BYTES_MIN: u64 = 1 << 20;

/// Reserves at least `bytes` in a directory, counting what is reserved already.
///
/// # Errors
/// Fails if there is not enough space. Nothing is reserved then.
pub fn keep(dir: &Path, bytes: u64) -> io::Result<()> {
    let wanted = bytes.div_ceil(STEP_BYTES).max(1) * STEP_BYTES;
    let path = dir.join(FILE);
    if fs::metadata(&path).is_ok_and(|kept| kept.len() >= wanted) {
        return Ok(());
    }
    let taken = take(&path, wanted);
    if taken.is_err() {
        let _ = fs::remove_file(&path);
    }
    taken
}

/// Releases the reserve. Returns whether there was one.
pub fn give_up(dir: &Path) -> bool {
    fs::remove_file(dir.join(FILE)).is_ok()
}

/// Reports whether the disk is almost full, apart from the reserve.
pub fn is_short(dir: &Path) -> bool {
    let path = dir.join(format!("{FILE}.tmp.{}", std::process::id()));
    let taken = take(&path, ROOM_BYTES_MIN);
    let _ = fs::remove_file(&path);
    taken.is_err_and(|error| is_full(&error))
}

/// Reports whether the error means that the disk is full, or that the quota of the user is exceeded.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn take(path: &Path, bytes: u64) -> io::Result<()> {
    allocate(&File::options().write(true).create(true).truncate(false).open(path)?, bytes)
}

/// Allocates the first `bytes` of a file, so that a full disk does not keep them from being written. A file system that
/// cannot allocate gets zeros after the present end of the file.
///
/// # Errors
/// Fails if there is not enough space.
pub fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    allocate_by(|bytes| fallocate(file, FallocateFlags::empty(), 0, bytes), file, bytes)
}

fn allocate_by(call: impl Fn(i64) -> nix::Result<()>, file: &File, bytes: u64) -> io::Result<()> {
    let count = i64::try_from(bytes).map_err(io::Error::other)?;
    loop {
        match call(count) {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => return fill(file, bytes),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Extends a file to `bytes` with zeros.
fn fill(file: &File, bytes: u64) -> io::Result<()> {
    let zeros = [0; 4096];
    let mut at = file.metadata()?.len();
    while at < bytes {
        let count = (bytes - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..usize::try_from(count).unwrap_or(zeros.len())], at)?;
        at += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_reserved_once_and_released_once() {
        let dir = tempfile::tempdir().unwrap();
        let taken = || fs::metadata(dir.path().join(FILE)).map(|kept| kept.len()).ok();
        keep(dir.path(), 1).unwrap();
        assert_eq!(taken(), Some(STEP_BYTES));
        keep(dir.path(), STEP_BYTES + 1).unwrap();
        keep(dir.path(), 1).unwrap();
        assert_eq!(taken(), Some(2 * STEP_BYTES));
        assert!(!is_short(dir.path()) && give_up(dir.path()) && !give_up(dir.path()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // More than any disk has: a partial reserve is removed.
        assert!(keep(dir.path(), 1 << 52).is_err() && taken().is_none());
    }
    #[test]
    fn a_file_system_that_cannot_allocate_gets_zeros() {
        for refusal in [Errno::EOPNOTSUPP, Errno::ENOSYS] {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(b"data", 0).unwrap();
            let calls = std::cell::Cell::new(0);
            let interrupted = |_| {
                calls.set(calls.get() + 1);
                Err(if calls.get() == 1 { Errno::EINTR } else { refusal })
            };
            allocate_by(interrupted, &file, 5000).unwrap();
            let mut bytes = [1; 5001];
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 5000, "{refusal}");
            assert!(bytes.starts_with(b"data") && bytes[4..5000].iter().all(|byte| *byte == 0), "{refusal}");
        }
    }

    #[test]
    fn a_lack_of_space_is_reported() {
        let file = tempfile::tempfile().unwrap();
        let refused = allocate_by(|_| Err(Errno::ENOSPC), &file, 1).unwrap_err();
        assert!(is_full(&refused) && file.metadata().unwrap().len() == 0, "{refused}");
        // A device that can neither allocate nor keep what is written to it.
        let full = File::options().write(true).open("/dev/full").unwrap();
        assert!(is_full(&allocate_by(|_| Err(Errno::EOPNOTSUPP), &full, 1).unwrap_err()));
    }
}
