//! One `.agent` folder, held open.
//!
//! Agents can write there, so no symbolic link is followed: every file read or written lies in this very folder.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, mkdirat, openat, renameat, renameat_with, statat, unlinkat};
use rustix::io::{Errno, retry_on_intr};
use swarm_model::{SESSION_BYTES_MAX, SESSION_FILES, SESSION_FOLDER as NAME};
use swarm_sys::files::lock::{holder, lock_within};

const LOCK: &str = "state.lock";
/// Maximum wait for the lock; its holder only writes one small file.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
/// Age at which a temporary file is known to be a leftover of a killed writer.
const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(60);

/// Returns a file name that no other writer uses.
fn temporary(name: &str) -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    format!(".{name}.tmp-{}-{number}", std::process::id())
}

/// Something else in the place of the folder or of one of its files.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Foreign(String);

/// Reports whether an error says that something else is in the place of the folder or of one of its files, which only its
/// removal mends.
pub fn is_foreign(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<Foreign>())
}

pub struct Folder {
    dir: OwnedFd,
    path: PathBuf,
}

/// Lock of the folder against other writers of this program; released when dropped.
pub struct Lock(#[allow(dead_code, reason = "held for its lock")] File);

/// Identifies one version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(meta: &fs::Metadata) -> Self {
        Self { inode: meta.ino(), bytes: meta.size(), modified: (meta.mtime(), meta.mtime_nsec()) }
    }
}

impl Folder {
    /// Opens the folder of `base`; `None` if there is none.
    ///
    /// # Errors
    /// Fails if the path is a link or a file, or on any other I/O error.
    pub fn open(base: &Path) -> io::Result<Option<Self>> {
        let path = base.join(NAME);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match retry_on_intr(|| rustix::fs::open(&path, flags, Mode::empty())) {
            Ok(dir) => Ok(Some(Self { dir, path })),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) if base.is_dir() => {
                Err(io::Error::other(Foreign(format!("{} is not a directory", path.display()))))
            }
            Err(Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the folder of `base`, creating it if it does not exist. Does not create `base`.
    ///
    /// # Errors
    /// Fails as [`Folder::open`] does, and if `base` does not exist.
    pub fn make(base: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = retry_on_intr(|| rustix::fs::open(base, flags, Mode::empty()))?;
        match retry_on_intr(|| mkdirat(&above, NAME, Mode::from_raw_mode(0o750))) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        Self::open(base)?
            .ok_or_else(|| io::Error::other(format!("{} was removed concurrently", base.join(NAME).display())))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content of a file; `None` if it does not exist.
    ///
    /// # Errors
    /// Fails if it is not a regular file, if it is larger than `SESSION_BYTES_MAX`, or on any other I/O error.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match retry_on_intr(|| openat(&self.dir, name, flags, Mode::empty())) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(self.unusable(name, "a symbolic link")),
            Err(error) => return Err(error.into()),
        };
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(self.unusable(name, "not a regular file"));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(meta.len().min(SESSION_BYTES_MAX)).unwrap_or(0));
        file.take(SESSION_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > SESSION_BYTES_MAX {
            return Err(self.unusable(name, "too large"));
        }
        Ok(Some(bytes))
    }

    fn unusable(&self, name: &str, what: &str) -> io::Error {
        io::Error::other(Foreign(format!("{} is {what}", self.path.join(name).display())))
    }

    pub fn stamp(&self, name: &str) -> Option<Stamp> {
        let stat = retry_on_intr(|| statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)).ok()?;
        let modified = (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0));
        Some(Stamp { inode: stat.st_ino, bytes: u64::try_from(stat.st_size).unwrap_or(0), modified })
    }

    /// Replaces a file atomically; with `durably`, the new content survives a power cut.
    ///
    /// # Errors
    /// Fails if the content is larger than `SESSION_BYTES_MAX`, which no reader accepts, and on any I/O error; the old file
    /// then still exists.
    pub fn replace(&self, name: &str, bytes: &[u8], durably: bool) -> io::Result<Stamp> {
        if bytes.len() as u64 > SESSION_BYTES_MAX {
            return Err(self.unusable(name, "too large"));
        }
        let temporary = temporary(name);
        let written = self.write(&temporary, bytes, durably).and_then(|stamp| {
            retry_on_intr(|| renameat(&self.dir, temporary.as_str(), &self.dir, name))?;
            Ok(stamp)
        });
        if written.is_err() {
            let _ = retry_on_intr(|| unlinkat(&self.dir, temporary.as_str(), AtFlags::empty()));
        }
        let stamp = written?;
        if durably {
            retry_on_intr(|| rustix::fs::fsync(&self.dir))?;
        }
        Ok(stamp)
    }

    fn write(&self, name: &str, bytes: &[u8], durably: bool) -> io::Result<Stamp> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let open = || retry_on_intr(|| openat(&self.dir, name, flags, Mode::from_raw_mode(0o600)));
        let file = match open() {
            Err(Errno::EXIST) => {
                // A leftover of a killed process that had the same pid.
                self.remove(name)?;
                open()
            }
            opened => opened,
        };
        let mut file = File::from(file?);
        file.write_all(bytes)?;
        if durably {
            file.sync_all()?;
        }
        Ok(Stamp::of(&file.metadata()?))
    }

    /// Removes a file; an absent one is not an error.
    ///
    /// # Errors
    /// Returns any other I/O error.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match retry_on_intr(|| unlinkat(&self.dir, name, AtFlags::empty())) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves a file aside under the first free name, and returns that name. Requires the lock, so that no other writer
    /// takes the name.
    ///
    /// # Errors
    /// Returns any I/O error; fails if a thousand names are taken.
    pub fn move_aside(&self, name: &str, ending: &str, _: &Lock) -> io::Result<String> {
        for number in 1..1000 {
            let aside = if number == 1 { format!("{name}.{ending}") } else { format!("{name}.{ending}.{number}") };
            let flags = RenameFlags::NOREPLACE;
            match retry_on_intr(|| renameat_with(&self.dir, name, &self.dir, aside.as_str(), flags)) {
                Ok(()) => return Ok(aside),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other(format!("too many files {name}.{ending} in {}", self.path.display())))
    }

    /// Appends a line; a file that has reached `bytes_max` bytes is first renamed to `NAME.old`.
    ///
    /// # Errors
    /// Returns any I/O error.
    pub fn append(&self, name: &str, line: &str, bytes_max: u64) -> io::Result<()> {
        let flags =
            OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let open = || retry_on_intr(|| openat(&self.dir, name, flags, Mode::from_raw_mode(0o600)));
        let mut file = File::from(open()?);
        if file.metadata()?.len() >= bytes_max {
            retry_on_intr(|| renameat(&self.dir, name, &self.dir, format!("{name}.old").as_str()))?;
            file = File::from(open()?);
        }
        file.write_all(format!("{line}\n").as_bytes())
    }

    /// Takes the lock of the folder, which excludes other processes.
    ///
    /// # Errors
    /// Fails if the lock is not free within ten seconds, and names its holder; also on any other I/O error.
    pub fn lock(&self) -> io::Result<Lock> {
        self.lock_within(LOCK_WAIT_MAX)?.ok_or_else(|| self.lock_timeout(LOCK_WAIT_MAX))
    }

    /// Returns the error for a lock that did not become free; it names the holder.
    pub fn lock_timeout(&self, waited: Duration) -> io::Error {
        let (path, waited) = (self.path.join(LOCK), waited.as_secs());
        io::Error::other(format!("{} is locked by {} (waited {waited} s)", path.display(), holder(&path)))
    }

    /// Takes the lock if it is free; otherwise returns `None` at once.
    ///
    /// # Errors
    /// Returns any I/O error.
    pub fn try_lock(&self) -> io::Result<Option<Lock>> {
        self.lock_within(Duration::ZERO)
    }

    /// Takes the lock if it becomes free within `limit`; otherwise returns `None`.
    ///
    /// # Errors
    /// Returns any I/O error.
    pub fn lock_within(&self, limit: Duration) -> io::Result<Option<Lock>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = retry_on_intr(|| openat(&self.dir, LOCK, flags, Mode::from_raw_mode(0o600)));
        let file = File::from(file.map_err(|error| match error {
            Errno::LOOP => self.unusable(LOCK, "a symbolic link"),
            error => error.into(),
        })?);
        if limit.is_zero() {
            return match file.try_lock() {
                Ok(()) => Ok(Some(Lock(file))),
                Err(fs::TryLockError::WouldBlock) => Ok(None),
                Err(fs::TryLockError::Error(error)) => Err(error),
            };
        }
        Ok(lock_within(file, limit)?.map(Lock))
    }

    /// Removes the temporary files of killed writers.
    pub fn tidy(&self, _: &Lock) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        for entry in Dir::read_from(&self.dir).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().to_str() else { continue };
            let Ok(stat) = statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let modified = Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
            if name.contains(".tmp-") && now.saturating_sub(modified) >= TEMPORARY_AGE_MAX {
                let _ = self.remove(name);
            }
        }
    }
}

/// Excludes the files of a session in `base` from git, if `base` is in a repository.
pub(super) fn exclude(base: &Path) {
    let Some(root) = swarm_config::root_above(base) else { return };
    let below = base.strip_prefix(root).unwrap_or(base).join(NAME);
    if let Err(error) = swarm_git::repository::exclude_files(root, &below, &SESSION_FILES) {
        tracing::warn!(root = %root.display(), %error, "cannot exclude the files of the session from git status");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn made() -> (tempfile::TempDir, Folder) {
        let base = tempfile::tempdir().expect("a directory");
        let folder = Folder::make(base.path()).expect("made");
        (base, folder)
    }

    #[test]
    fn replaced_files_are_complete_and_private_and_leave_no_temporary_file() {
        let (base, folder) = made();
        assert_eq!(folder.read("state.json").expect("looked"), None);
        for text in ["one", "two"] {
            folder.replace("state.json", text.as_bytes(), true).expect("replaced");
        }
        assert_eq!(folder.read("state.json").expect("read").as_deref(), Some(b"two".as_slice()));
        let names: Vec<_> = fs::read_dir(base.path().join(NAME)).expect("listed").flatten().collect();
        assert_eq!(names.len(), 1);
        assert_eq!(names[0].metadata().expect("there").permissions().mode() & 0o777, 0o600);
        let dir = fs::metadata(base.path().join(NAME)).expect("there").permissions().mode();
        assert_eq!(dir & 0o027, 0, "{dir:o}");
    }

    #[test]
    fn nothing_is_written_that_is_too_large_to_be_read() {
        let (_base, folder) = made();
        folder.replace("state.json", b"old", false).expect("replaced");
        let mut bytes = vec![b'x'; usize::try_from(SESSION_BYTES_MAX).expect("fits") + 1];
        let error = folder.replace("state.json", &bytes, false).expect_err("refused").to_string();
        assert!(error.ends_with("state.json is too large"), "{error}");
        assert_eq!(folder.read("state.json").expect("read"), Some(b"old".to_vec()));
        bytes.pop();
        folder.replace("state.json", &bytes, false).expect("replaced");
        assert_eq!(folder.read("state.json").expect("read").map(|read| read.len()), Some(bytes.len()));
    }

    #[test]
    fn links_and_special_files_are_not_followed() {
        let (base, folder) = made();
        fs::write(base.path().join("secret"), "x").expect("written");
        symlink(base.path().join("secret"), base.path().join(".agent/state.json")).expect("linked");
        assert!(folder.read("state.json").expect_err("refused").to_string().contains("symbolic link"));
        folder.replace("state.json", b"mine", false).expect("replaced");
        assert_eq!(fs::read(base.path().join("secret")).expect("read"), b"x");
        let other = tempfile::tempdir().expect("a directory");
        symlink(base.path().join(NAME), other.path().join(NAME)).expect("linked");
        assert!(Folder::open(other.path()).is_err());
        assert!(Folder::make(other.path()).is_err());
        assert!(Folder::open(&base.path().join("nowhere")).expect("looked").is_none());
    }

    #[test]
    fn a_lock_keeps_others_out_and_goes_with_its_holder() {
        let (base, folder) = made();
        let held = folder.lock().expect("locked");
        let other = Folder::open(base.path()).expect("opened").expect("there");
        assert!(other.try_lock().expect("tried").is_none());
        drop(held);
        assert!(other.try_lock().expect("tried").is_some());
    }

    #[test]
    fn a_full_log_is_rotated() {
        let (_base, folder) = made();
        for line in ["a", "b", "c"] {
            folder.append("progress.log", line, 4).expect("appended");
        }
        assert_eq!(folder.read("progress.log").expect("read").as_deref(), Some(b"c\n".as_slice()));
        assert_eq!(folder.read("progress.log.old").expect("read").as_deref(), Some(b"a\nb\n".as_slice()));
    }

    #[test]
    fn moving_aside_overwrites_nothing() {
        let (_base, folder) = made();
        for text in ["one", "two"] {
            folder.replace("state.json", text.as_bytes(), false).expect("replaced");
            let lock = folder.lock().expect("locked");
            folder.move_aside("state.json", "malformed", &lock).expect("moved aside");
        }
        assert_eq!(folder.read("state.json.malformed").expect("read").as_deref(), Some(b"one".as_slice()));
        assert_eq!(folder.read("state.json.malformed.2").expect("read").as_deref(), Some(b"two".as_slice()));
    }

    #[test]
    fn something_else_in_place_of_the_folder_or_a_file_is_told_apart() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().expect("a directory");
        let open = || Folder::open(dir.path()).map(drop);
        symlink("/nowhere", dir.path().join(NAME)).expect("linked");
        assert!(open().is_err_and(|error| is_foreign(&error)));
        fs::remove_file(dir.path().join(NAME)).expect("removed");
        let folder = Folder::make(dir.path()).expect("made");
        symlink("/nowhere", folder.path().join("state.json")).expect("linked");
        assert!(folder.read("state.json").is_err_and(|error| is_foreign(&error)));
        assert!(!is_foreign(&io::Error::from(Errno::NOSPC)));
    }
}
