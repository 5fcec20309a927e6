//! Room on a disk that is taken while there is some, and given up for what must
//! be written when there is none left.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

const FILE: &str = "reserve";
/// Reserves grow by so much at a time.
const STEP_BYTES: u64 = 64 << 10;
/// With less than this a disk is full for whoever works there.
const ROOM_BYTES_MIN: u64 = 1 << 20;

/// Takes room for `bytes` in a directory of ours, as far as it is not taken yet.
///
/// # Errors
/// What the system says; nothing is taken then.
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

/// Gives the room up; whether there was any.
pub fn give_up(dir: &Path) -> bool {
    fs::remove_file(dir.join(FILE)).is_ok()
}

/// Whether there is hardly any room left, beside what is reserved.
pub fn is_short(dir: &Path) -> bool {
    let path = dir.join(format!("{FILE}.tmp.{}", std::process::id()));
    let taken = take(&path, ROOM_BYTES_MIN);
    let _ = fs::remove_file(&path);
    taken.is_err_and(|error| is_full(&error))
}

/// Whether it says that there is no room, on the disk or for this user.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn take(path: &Path, bytes: u64) -> io::Result<()> {
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    let bytes = i64::try_from(bytes).map_err(io::Error::other)?;
    loop {
        match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_once_and_given_up_once() {
        let dir = tempfile::tempdir().unwrap();
        let taken = || fs::metadata(dir.path().join(FILE)).map(|kept| kept.len()).ok();
        keep(dir.path(), 1).unwrap();
        assert_eq!(taken(), Some(STEP_BYTES));
        keep(dir.path(), STEP_BYTES + 1).unwrap();
        keep(dir.path(), 1).unwrap();
        assert_eq!(taken(), Some(2 * STEP_BYTES));
        assert!(!is_short(dir.path()) && give_up(dir.path()) && !give_up(dir.path()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // More than any disk has: what is there of it goes again.
        assert!(keep(dir.path(), 1 << 52).is_err() && taken().is_none());
    }
}
