//! File operations for flows: atomic replacement, locks between processes, and detection of changes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::runs::home::NO_LINK;
use swarm_sys::files::lock::{holder, lock_within};
use swarm_sys::files::{self, Durability, Mode};

/// Maximum wait for a lock; its holder only writes small files.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
/// Maximum time that a child forked by another thread may keep an inherited lock until it executes a program.
const FORK_MAX: Duration = Duration::from_millis(500);
const PRIVATE: u32 = 0o600;

/// Identifies one version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

/// Returns the stamp of a file; `None` if it does not exist.
pub fn stamp(path: &Path) -> Option<Stamp> {
    fs::metadata(path).ok().map(|meta| Stamp::of(&meta))
}

impl Stamp {
    fn of(meta: &fs::Metadata) -> Self {
        Self { inode: meta.ino(), bytes: meta.size(), modified: (meta.mtime(), meta.mtime_nsec()) }
    }
}

/// Reads a text file; `None` if it does not exist.
///
/// # Errors
/// Fails if it is not a regular file, is larger than `bytes_max` or not valid UTF-8, or on I/O errors.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<Option<String>> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = match OpenOptions::new().read(true).custom_flags(nonblocking).open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(meta.size().min(bytes_max)).unwrap_or(0) + 1);
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("larger than {bytes_max} bytes")));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| io::Error::other("not valid UTF-8"))
}

/// Reads the first `bytes_max` bytes of a file as text, replacing invalid UTF-8, and reports whether that is all.
///
/// # Errors
/// Fails if it is not a regular file, or on I/O errors.
pub fn read_text_up_to(path: &Path, bytes_max: u64) -> io::Result<(String, bool)> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok((String::from_utf8_lossy(&bytes).into_owned(), meta.size() <= bytes_max))
}

/// Returns a file name that no other writer uses.
fn temporary(name: &str) -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!(".{name}.tmp-{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed))
}

/// Removes temporary files of killed writers from a folder without active writers. Those of `flow.json`, which may be
/// versions of another program, are not among them.
pub fn remove_torn(dir: &Path) {
    for file in files::list(dir).into_iter().flatten() {
        let name = file.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.contains(".tmp-") {
            let _ = fs::remove_file(file.path());
        }
    }
}

/// Replaces a file atomically and durably. An existing file keeps its mode, a new one is private.
///
/// # Errors
/// Returns any I/O error; the old file then still exists.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    files::replace(&beside(path)?, path, bytes, Mode::KeepOrPrivate, Durability::Synced)
}

/// Replaces a file atomically but not durably, without waiting for the disk: after a crash of the machine the file may
/// be the old one or missing.
///
/// # Errors
/// Returns any I/O error.
pub fn replace_lightly(path: &Path, bytes: &[u8]) -> io::Result<()> {
    files::replace(&beside(path)?, path, bytes, Mode::Private, Durability::None)
}

/// Returns the path of the temporary file for a replacement.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(io::Error::other("not a valid file name"));
    };
    Ok(dir.join(temporary(name)))
}

/// Appends lines. If a killed writer left an incomplete line, a newline is inserted first.
///
/// # Errors
/// Returns any I/O error.
pub fn append(path: &Path, lines: &str) -> io::Result<()> {
    use std::os::unix::fs::FileExt as _;
    let mut open = OpenOptions::new();
    let mut file = open.read(true).append(true).create(true).mode(PRIVATE).custom_flags(NO_LINK).open(path)?;
    let bytes = file.metadata()?.len();
    let mut last = [b'\n'];
    if bytes > 0 {
        file.read_exact_at(&mut last, bytes - 1)?;
    }
    let gap = if last == [b'\n'] { "" } else { "\n" };
    file.write_all(format!("{gap}{lines}").as_bytes())
}

/// Lock of a flow against other processes of this program; released when dropped.
pub struct Lock(#[expect(dead_code, reason = "held for its lock")] File);

/// Takes a lock that excludes other processes. The lock file is never replaced.
///
/// # Errors
/// Fails if the lock is not free within ten seconds, and names its holder; `NotFound` if the folder does not exist.
pub fn lock(path: &Path) -> io::Result<Lock> {
    let held = lock_within(open_lock(path)?, LOCK_WAIT_MAX)?;
    let locked = || {
        let waited = LOCK_WAIT_MAX.as_secs();
        io::Error::other(format!("{} is locked by {} (waited {waited} s)", path.display(), holder(path)))
    };
    held.map(Lock).ok_or_else(locked)
}

/// Takes a lock if it is free; otherwise returns `None`. Waits briefly, because a forked process inherits all locks of
/// its parent until it executes a program.
///
/// # Errors
/// Returns any I/O error.
pub fn try_lock(path: &Path) -> io::Result<Option<Lock>> {
    let file = open_lock(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Lock(file))),
        Err(fs::TryLockError::WouldBlock) => Ok(lock_within(file, FORK_MAX)?.map(Lock)),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(PRIVATE).custom_flags(flags).open(path)
}
