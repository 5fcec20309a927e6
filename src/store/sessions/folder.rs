//! One `.agent` folder, held open: what is read and written there lies in that very
//! folder and nowhere that a link leads to, because agents can write there.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, mkdirat, openat, renameat, renameat_with, statat, unlinkat};
use rustix::io::{Errno, retry_on_intr};
use swarm_actors::registry::store::{holder, lock_within};
use swarm_model::{SESSION_BYTES_MAX, SESSION_FOLDER as NAME};

const LOCK: &str = "state.lock";
/// How long the lock is waited for. Whoever holds it writes one small file.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
/// A temporary file this old is of a writer that was killed.
const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(60);

/// A file that is written in place again and again is made anew when it is longer.
const SPARE_BYTES_MAX: u64 = 4096;

/// A name that no other writer has.
fn temporary(name: &str) -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    format!(".{name}.tmp-{}-{number}", std::process::id())
}

pub struct Folder {
    dir: OwnedFd,
    path: PathBuf,
}

/// Proof that nobody else of ours writes there; ends when dropped.
pub struct Lock(#[allow(dead_code, reason = "held for its lock")] File);

/// Tells one version of a file from another.
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
    /// The folder of `base`; none where there is none.
    ///
    /// # Errors
    /// When it is no folder but a link or a file, or the system refuses.
    pub fn open(base: &Path) -> io::Result<Option<Self>> {
        let path = base.join(NAME);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match retry_on_intr(|| rustix::fs::open(&path, flags, Mode::empty())) {
            Ok(dir) => Ok(Some(Self { dir, path })),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) if base.is_dir() => {
                Err(io::Error::other(format!("{} is not a directory", path.display())))
            }
            Err(Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The same, made where it is not there. `base` is not made.
    ///
    /// # Errors
    /// As [`Folder::open`], and when there is no `base`.
    pub fn make(base: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = retry_on_intr(|| rustix::fs::open(base, flags, Mode::empty()))?;
        match retry_on_intr(|| mkdirat(&above, NAME, Mode::from_raw_mode(0o750))) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        Self::open(base)?.ok_or_else(|| io::Error::other(format!("{} was removed just now", base.join(NAME).display())))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What a file holds; none where there is none.
    ///
    /// # Errors
    /// When it is no plain file, larger than a session can be, or the system refuses.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match retry_on_intr(|| openat(&self.dir, name, flags, Mode::empty())) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(self.odd(name, "a symbolic link")),
            Err(error) => return Err(error.into()),
        };
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(self.odd(name, "not a file"));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(meta.len().min(SESSION_BYTES_MAX)).unwrap_or(0));
        file.take(SESSION_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > SESSION_BYTES_MAX {
            return Err(self.odd(name, "too large"));
        }
        Ok(Some(bytes))
    }

    fn odd(&self, name: &str, what: &str) -> io::Error {
        io::Error::other(format!("{} is {what}", self.path.join(name).display()))
    }

    pub fn stamp(&self, name: &str) -> Option<Stamp> {
        let stat = retry_on_intr(|| statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)).ok()?;
        let modified = (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0));
        Some(Stamp { inode: stat.st_ino, bytes: u64::try_from(stat.st_size).unwrap_or(0), modified })
    }

    /// Replaces a file as a whole. `durably` outlives a loss of power.
    ///
    /// # Errors
    /// What the system says; the old one is still there then.
    pub fn replace(&self, name: &str, bytes: &[u8], durably: bool) -> io::Result<Stamp> {
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

    /// Replaces a file as a whole by one that is kept for it, and keeps the one that was
    /// there for the next time: files change places, and none is made or removed. A file
    /// that is renamed over another has its blocks written out first (`auto_da_alloc`,
    /// ext4(5)), which is ten times the cost of all the rest. Not durable; who holds the old
    /// one open still reads it whole until the next time.
    ///
    /// # Errors
    /// What the system says; the old one is still there then.
    pub fn alternate(&self, name: &str, spare: &str, bytes: &[u8]) -> io::Result<()> {
        self.overwrite(spare, bytes)?;
        let exchanged = retry_on_intr(|| renameat_with(&self.dir, spare, &self.dir, name, RenameFlags::EXCHANGE));
        match exchanged {
            Ok(()) => Ok(()),
            // There is none yet, or this file system knows no exchange.
            Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => {
                Ok(retry_on_intr(|| renameat(&self.dir, spare, &self.dir, name))?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Puts other digits where digits are, in place, so that the file is well-formed at
    /// every moment; none where more differs, or the file is not as it was when `stamp`
    /// was taken. Not durable.
    pub fn patch_digits(&self, name: &str, stamp: Stamp, old: &[u8], new: &[u8], _: &Lock) -> Option<Stamp> {
        let differs = |at: &usize| old[*at] != new[*at];
        let mut differing = (0..new.len()).filter(|at| old.len() == new.len() && differs(at));
        let first = differing.next()?;
        let last = differing.clone().next_back().unwrap_or(first);
        let digits = |at: usize| old[at].is_ascii_digit() && new[at].is_ascii_digit();
        if !digits(first) || !differing.all(digits) {
            return None;
        }
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = File::from(retry_on_intr(|| openat(&self.dir, name, flags, Mode::empty())).ok()?);
        let meta = file.metadata().ok()?;
        if Stamp::of(&meta) != stamp || meta.nlink() != 1 {
            return None;
        }
        file.write_all_at(&new[first..=last], first as u64).ok()?;
        Some(Stamp::of(&file.metadata().ok()?))
    }

    /// Writes into a private file in place, made where there is none. What is shorter than
    /// what it held is filled up with blanks.
    fn overwrite(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened = retry_on_intr(|| openat(&self.dir, name, flags, Mode::from_raw_mode(0o600)));
        if let Ok(file) = opened.map(File::from) {
            let meta = file.metadata()?;
            let private = meta.is_file() && meta.mode() & 0o777 == 0o600 && meta.nlink() == 1;
            if private && meta.len() <= SPARE_BYTES_MAX {
                let mut bytes = bytes.to_vec();
                bytes.resize(bytes.len().max(usize::try_from(meta.len()).unwrap_or(0)), b' ');
                return (&file).write_all(&bytes);
            }
        }
        // Somebody made something else of it.
        self.remove(name)?;
        self.write(name, bytes, false).map(drop)
    }

    fn write(&self, name: &str, bytes: &[u8], durably: bool) -> io::Result<Stamp> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let open = || retry_on_intr(|| openat(&self.dir, name, flags, Mode::from_raw_mode(0o600)));
        let file = match open() {
            Err(Errno::EXIST) => {
                // Of a process that had our number before, and was killed.
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

    /// # Errors
    /// What the system says, unless it is not there.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match retry_on_intr(|| unlinkat(&self.dir, name, AtFlags::empty())) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts a file aside under the first name that is free, and gives that name. Under the
    /// lock, so that nobody else takes it.
    ///
    /// # Errors
    /// What the system says.
    pub fn put_aside(&self, name: &str, ending: &str, _: &Lock) -> io::Result<String> {
        for number in 1..1000 {
            let aside = if number == 1 { format!("{name}.{ending}") } else { format!("{name}.{ending}.{number}") };
            let flags = RenameFlags::NOREPLACE;
            match retry_on_intr(|| renameat_with(&self.dir, name, &self.dir, aside.as_str(), flags)) {
                Ok(()) => return Ok(aside),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other(format!("there are too many files {name}.{ending} in {}", self.path.display())))
    }

    /// Appends a line; a file that has grown to `bytes_max` becomes `NAME.old` first.
    ///
    /// # Errors
    /// What the system says.
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

    /// Takes the lock of the folder, which is across processes.
    ///
    /// # Errors
    /// When it is not to be had for ten seconds, with who holds it.
    pub fn lock(&self) -> io::Result<Lock> {
        self.lock_within(LOCK_WAIT_MAX)?.ok_or_else(|| self.is_locked(LOCK_WAIT_MAX))
    }

    /// Says who has the lock that was waited for.
    pub fn is_locked(&self, waited: Duration) -> io::Error {
        let (path, waited) = (self.path.join(LOCK), waited.as_secs());
        io::Error::other(format!("{} is locked for {waited} s by {}", path.display(), holder(&path)))
    }

    /// The same where it is to be had at once.
    ///
    /// # Errors
    /// What the system says.
    pub fn try_lock(&self) -> io::Result<Option<Lock>> {
        self.lock_within(Duration::ZERO)
    }

    /// The same where it is to be had within `limit`.
    ///
    /// # Errors
    /// What the system says.
    pub fn lock_within(&self, limit: Duration) -> io::Result<Option<Lock>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = retry_on_intr(|| openat(&self.dir, LOCK, flags, Mode::from_raw_mode(0o600)));
        let file = File::from(file.map_err(|error| match error {
            Errno::LOOP => self.odd(LOCK, "a symbolic link"),
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

    /// Removes what writers that were killed left behind.
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
    fn files_are_replaced_whole_private_and_without_leftovers() {
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
    fn two_files_change_places_and_nothing_else_is_left() {
        let (base, folder) = made();
        let (spare, texts) = (temporary("beat"), ["one", "three", "two", "four"]);
        for text in texts {
            folder.alternate("beat", &spare, text.as_bytes()).expect("replaced");
            let read = folder.read("beat").expect("read").expect("there");
            assert_eq!(std::str::from_utf8(&read).expect("text").trim_end(), text);
        }
        let inodes = |name: &str| fs::metadata(base.path().join(NAME).join(name)).expect("there").ino();
        let before = (inodes("beat"), inodes(&spare));
        folder.alternate("beat", &spare, b"five").expect("replaced");
        assert_eq!((inodes(&spare), inodes("beat")), before, "no file is made");
    }

    #[test]
    fn digits_are_changed_in_place_and_nothing_else() {
        let (base, folder) = made();
        let path = base.path().join(NAME).join("n");
        folder.replace("n", b"{\"a\": 109, \"b\": 7}", false).expect("written");
        let lock = folder.lock().expect("locked");
        let stamp = folder.stamp("n").expect("there");
        let patch =
            |stamp, old: &str, new: &str| folder.patch_digits("n", stamp, old.as_bytes(), new.as_bytes(), &lock);
        let old = r#"{"a": 109, "b": 7}"#;
        for other in [r#"{"a": 1090, "b": 7}"#, r#"{"c": 109, "b": 8}"#, r#"{"a": 1.9, "b": 8}"#, old] {
            assert_eq!(patch(stamp, old, other), None, "{other}");
        }
        assert_eq!(fs::read_to_string(&path).expect("read"), old);
        let new = r#"{"a": 111, "b": 8}"#;
        let after = patch(stamp, old, new).expect("patched");
        assert_eq!((fs::read_to_string(&path).expect("read").as_str(), folder.stamp("n")), (new, Some(after)));
        assert_eq!(after.inode, stamp.inode);
        assert_eq!(patch(stamp, new, old), None, "it is another one by now");
        fs::hard_link(&path, base.path().join("other")).expect("linked");
        assert_eq!(patch(folder.stamp("n").expect("there"), new, old), None, "it is somewhere else as well");
    }

    #[test]
    fn what_others_make_of_a_spare_file_is_not_written_to() {
        let (base, folder) = made();
        let (spare, kept) = (temporary("beat"), base.path().join("kept"));
        fs::write(&kept, "x").expect("written");
        let made = base.path().join(NAME).join(&spare);
        let odd: [&dyn Fn(); 4] = [
            &|| symlink(&kept, &made).expect("linked"),
            &|| fs::hard_link(&kept, &made).expect("linked"),
            &|| nix::unistd::mkfifo(&made, nix::sys::stat::Mode::S_IRWXU).expect("made"),
            &|| fs::write(&made, vec![b'y'; 8192]).expect("written"),
        ];
        for make in odd {
            let _ = fs::remove_file(&made);
            make();
            folder.alternate("beat", &spare, b"beat").expect("replaced");
            assert_eq!(folder.read("beat").expect("read").as_deref(), Some(b"beat".as_slice()));
            assert_eq!(fs::read(&kept).expect("read"), b"x");
            fs::remove_file(base.path().join(NAME).join("beat")).expect("removed");
        }
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
    fn a_log_that_has_grown_is_put_aside() {
        let (_base, folder) = made();
        for line in ["a", "b", "c"] {
            folder.append("progress.log", line, 4).expect("appended");
        }
        assert_eq!(folder.read("progress.log").expect("read").as_deref(), Some(b"c\n".as_slice()));
        assert_eq!(folder.read("progress.log.old").expect("read").as_deref(), Some(b"a\nb\n".as_slice()));
    }

    #[test]
    fn what_is_put_aside_overwrites_nothing() {
        let (_base, folder) = made();
        for text in ["one", "two"] {
            folder.replace("state.json", text.as_bytes(), false).expect("replaced");
            let lock = folder.lock().expect("locked");
            folder.put_aside("state.json", "malformed", &lock).expect("put aside");
        }
        assert_eq!(folder.read("state.json.malformed").expect("read").as_deref(), Some(b"one".as_slice()));
        assert_eq!(folder.read("state.json.malformed.2").expect("read").as_deref(), Some(b"two".as_slice()));
    }
}
