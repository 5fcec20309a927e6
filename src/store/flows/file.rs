//! Files that are replaced as a whole, locked across processes, and told apart.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use swarm_actors::registry::store::{holder, lock_within};

/// Whoever holds the lock writes small files.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
/// A child of another thread may hold a lock for so long.
const FORK_MAX: Duration = Duration::from_millis(500);
const PRIVATE: u32 = 0o600;

/// Tells one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

/// None where there is no file.
pub fn stamp(path: &Path) -> Option<Stamp> {
    fs::metadata(path).ok().map(|meta| Stamp::of(&meta))
}

impl Stamp {
    fn of(meta: &fs::Metadata) -> Self {
        Self { inode: meta.ino(), bytes: meta.size(), modified: (meta.mtime(), meta.mtime_nsec()) }
    }
}

/// What a file says; none where there is none.
///
/// # Errors
/// When it is no plain file or no text, larger than `bytes_max`, or the system refuses.
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
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(meta.size().min(bytes_max)).unwrap_or(0) + 1);
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it is larger than {bytes_max} bytes")));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| io::Error::other("it is no text"))
}

/// The beginning of what a file says, whatever bytes are in it, and whether that is all.
///
/// # Errors
/// When it is no plain file, or the system refuses.
pub fn read_text_up_to(path: &Path, bytes_max: u64) -> io::Result<(String, bool)> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok((String::from_utf8_lossy(&bytes).into_owned(), meta.size() <= bytes_max))
}

/// A name that no other writer has.
fn temporary(name: &str) -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!(".{name}.tmp-{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed))
}

/// Removes what killed writers left half-written in a folder that nobody writes to now.
pub fn remove_torn(dir: &Path) {
    for file in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = file.file_name();
        let name = name.to_string_lossy();
        if (name.starts_with('.') && name.contains(".tmp-")) || name.starts_with("flow.json.tmp.") {
            let _ = fs::remove_file(file.path());
        }
    }
}

/// Replaces a file as a whole and durably. One that is there keeps its mode, a new one is
/// private.
///
/// # Errors
/// What the system says; the old one is still there then.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(io::Error::other("it is no name of a file"));
    };
    let mode = fs::metadata(path).map_or(PRIVATE, |meta| meta.permissions().mode() & 0o777);
    let temporary = dir.join(temporary(name));
    // Of a process that had our number before, and was killed.
    let _ = fs::remove_file(&temporary);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(&temporary)?;
        file.write_all(bytes)?;
        if mode != PRIVATE {
            file.set_permissions(fs::Permissions::from_mode(mode))?;
        }
        file.sync_all()?;
        // Killed before this line, the old one is there; after it, the new one.
        fs::rename(&temporary, path)
    })();
    written.inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    File::open(dir)?.sync_all()
}

/// As [`replace`], for what is worth having and not worth a wait for the disk: after a crash
/// of the machine it may be the old one, or none.
///
/// # Errors
/// What the system says.
pub fn replace_lightly(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(io::Error::other("it is no name of a file"));
    };
    let temporary = dir.join(temporary(name));
    let _ = fs::remove_file(&temporary);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(&temporary)?;
    let written = file.write_all(bytes).and_then(|()| fs::rename(&temporary, path));
    written.inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// Appends lines. What a writer that was killed left of a line is ended first.
///
/// # Errors
/// What the system says.
pub fn append(path: &Path, lines: &str) -> io::Result<()> {
    use std::os::unix::fs::FileExt as _;
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(PRIVATE).open(path)?;
    let bytes = file.metadata()?.len();
    let mut last = [b'\n'];
    if bytes > 0 {
        file.read_exact_at(&mut last, bytes - 1)?;
    }
    let gap = if last == [b'\n'] { "" } else { "\n" };
    file.write_all(format!("{gap}{lines}").as_bytes())
}

/// Proof that nobody else of ours changes the flow; ends when dropped.
pub struct Lock(#[expect(dead_code, reason = "held for its lock")] File);

/// Takes a lock, which is across processes. Its file is never replaced.
///
/// # Errors
/// When it is not to be had for ten seconds, with who holds it; `NotFound` without the
/// folder.
pub fn lock(path: &Path) -> io::Result<Lock> {
    let held = lock_within(open_lock(path)?, LOCK_WAIT_MAX)?;
    let locked = || {
        let waited = LOCK_WAIT_MAX.as_secs();
        io::Error::other(format!("{} is locked for {waited} s by {}", path.display(), holder(path)))
    };
    held.map(Lock).ok_or_else(locked)
}

/// The same where it is to be had almost at once: a process that was just forked has all
/// locks of its parent until it executes something.
///
/// # Errors
/// What the system says.
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

/// Makes private folders down to `path`, those that are missing.
///
/// # Errors
/// What the system says.
pub fn make_dirs(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}
