//! Places of files below a git directory, and their locks. Each directory on the way is opened without following a link,
//! and everything that follows refers to the opened directory.

use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fchmod, fstat, mkdirat, open, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

use crate::landing::checkout::retry_until;
use swarm_sys::files;

/// Flags of directories that lead to a file.
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Flags of files. None is waited for.
const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// Number of tries to create a file in a directory that another git removes, because it is empty, at the same time.
const TRIES_MAX: u32 = 5;
/// Maximum size of a reference that is a file.
const VALUE_BYTES_MAX: u64 = 64 << 10;

/// Place of a file: its directory, and its name in there.
#[derive(Debug)]
pub(super) struct Spot {
    dir: OwnedFd,
    leaf: String,
    path: PathBuf,
}

/// A file of a reference, or what is in its place.
#[derive(Debug)]
pub(super) enum Found {
    Nothing,
    Directory,
    Value(String, Permissions),
}

impl Spot {
    /// Returns the place `name` below `root`. Makes missing directories if `makes`, and returns `None` otherwise.
    pub(super) fn open(root: &Path, name: &str, makes: bool) -> io::Result<Option<Self>> {
        let mut dir = open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let path = root.join(name);
        let mut parts = name.split('/').peekable();
        while let Some(part) = parts.next() {
            if matches!(part, "" | "." | "..") {
                break;
            }
            if parts.peek().is_none() {
                return Ok(Some(Self { dir, leaf: part.to_owned(), path }));
            }
            let next = match openat(&dir, part, DIRECTORY, Mode::empty()) {
                Err(Errno::NOENT) if !makes => return Ok(None),
                Err(Errno::NOENT) => make(&dir, part),
                opened => opened,
            };
            dir = next.map_err(|error| explained(&dir, part, error))?;
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a valid name"))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the value of a reference.
    pub(super) fn read(&self) -> io::Result<Found> {
        let file = match openat(&self.dir, &self.leaf, FILE | OFlags::RDONLY, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(Found::Nothing),
            Err(error) => return Err(explained(&self.dir, &self.leaf, error)),
        };
        let meta = file.metadata()?;
        if meta.is_dir() {
            return Ok(Found::Directory);
        }
        if !meta.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut text = String::new();
        file.take(VALUE_BYTES_MAX).read_to_string(&mut text)?;
        Ok(Found::Value(text.trim_end().to_owned(), meta.permissions()))
    }

    /// Opens the regular file for appending. `None` if there is none and none is to be made.
    pub(super) fn append(&self, makes: bool) -> io::Result<Option<File>> {
        let mut flags = FILE | OFlags::WRONLY | OFlags::APPEND;
        if makes {
            flags |= OFlags::CREATE;
        }
        let file = match openat(&self.dir, &self.leaf, flags, Mode::from_raw_mode(0o666)) {
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(explained(&self.dir, &self.leaf, error)),
            Ok(file) => File::from(file),
        };
        if file.metadata()?.is_file() { Ok(Some(file)) } else { Err(io::Error::other("not a regular file")) }
    }

    /// Reports whether a regular file is there.
    pub(super) fn is_file(&self) -> bool {
        let found = statat(&self.dir, &self.leaf, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile)
    }

    /// Removes the file, or the link itself, if there is one.
    pub(super) fn remove(&self) -> io::Result<()> {
        match unlinkat(&self.dir, &self.leaf, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a tree of directories, which is left of references whose names began with this one. Fails at the first file.
    pub(super) fn remove_directories(&self) -> io::Result<()> {
        remove_directories(&self.dir, Path::new(&self.leaf))
    }

    /// Makes the names in the directory durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.dir)?)
    }
}

fn remove_directories(above: &OwnedFd, name: &Path) -> io::Result<()> {
    let dir = openat(above, name, DIRECTORY, Mode::empty())?;
    for entry in files::list(Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())))? {
        remove_directories(&dir, Path::new(&entry.file_name()))?;
    }
    Ok(unlinkat(above, name, AtFlags::REMOVEDIR)?)
}

/// Removes the empty directories above `name` below `root`, apart from the first `kept` ones, as git does after a deletion.
pub(super) fn remove_parents(root: &Path, name: &str, kept: usize) {
    let mut parts: Vec<&str> = name.split('/').collect();
    while parts.len() > kept + 1 {
        parts.pop();
        let Ok(Some(spot)) = Spot::open(root, &parts.join("/"), false) else { return };
        if unlinkat(&spot.dir, &spot.leaf, AtFlags::REMOVEDIR).is_err() {
            return;
        }
    }
}

/// Makes a directory with the permissions of the one above it, as in a repository that users share.
fn make(above: &OwnedFd, part: &str) -> Result<OwnedFd, Errno> {
    match mkdirat(above, part, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let made = openat(above, part, DIRECTORY, Mode::empty())?;
    let _ = fchmod(&made, Mode::from_raw_mode(fstat(above)?.st_mode & 0o7777));
    Ok(made)
}

/// Returns the error of a file or directory that cannot be opened. That of a link is `ELOOP`, also if a directory was
/// expected.
fn explained(dir: &OwnedFd, part: &str, error: Errno) -> io::Error {
    if error != Errno::NOTDIR {
        return error.into();
    }
    let is_link = statat(dir, part, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink);
    if is_link { Errno::LOOP.into() } else { error.into() }
}

/// Lock of a reference. The file is kept open, so that other processes see that it is held. Dropping it releases it.
#[derive(Debug)]
pub(super) struct Lock {
    of: Spot,
    name: String,
    file: File,
}

impl Lock {
    /// Takes the lock of the place `name` below `root`. `None` if another process holds it longer than `limit`.
    pub(super) fn take(root: &Path, name: &str, limit: Duration) -> io::Result<Option<Self>> {
        let mut tries = 1;
        loop {
            let Some(of) = Spot::open(root, name, true)? else { return Ok(None) };
            match Self::of(of, limit) {
                // The directory was removed between the two steps.
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries < TRIES_MAX => tries += 1,
                taken => return taken,
            }
        }
    }

    fn of(of: Spot, limit: Duration) -> io::Result<Option<Self>> {
        let name = format!("{}.lock", of.leaf);
        let mut made = None;
        let flags = FILE | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let dir = of.path.parent().unwrap_or(&of.path).to_owned();
        retry_until(&dir, limit, || match openat(&of.dir, &name, flags, Mode::from_raw_mode(0o666)) {
            Ok(file) => {
                made = Some(File::from(file));
                Ok(true)
            }
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        })?;
        Ok(made.map(|file| Self { of, name, file }))
    }

    /// Returns the place that is locked.
    pub(super) fn of_spot(&self) -> &Spot {
        &self.of
    }

    /// Writes the next value, and gives it the permissions of the present one.
    pub(super) fn write(&self, value: &str, like: Option<Permissions>, is_durable: bool) -> io::Result<()> {
        if let Some(like) = like {
            let _ = self.file.set_permissions(like);
        }
        (&self.file).write_all(format!("{value}\n").as_bytes())?;
        if is_durable { self.file.sync_all() } else { Ok(()) }
    }

    /// Reports whether the lock is still the file that was made.
    pub(super) fn is_ours(&self) -> bool {
        let there = statat(&self.of.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        there.is_ok_and(|there| {
            fstat(&self.file).is_ok_and(|ours| (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino))
        })
    }

    /// Puts the written value in place, and releases the lock with that. Without a sync of the directory, a power cut may
    /// bring the old value back.
    pub(super) fn commit(self, is_durable: bool) -> io::Result<()> {
        renameat(&self.of.dir, &self.name, &self.of.dir, &self.of.leaf)?;
        if is_durable { self.of.sync() } else { Ok(()) }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A lock that stays would block everyone, so the removal is tried twice.
        for _ in 0..2 {
            if !self.is_ours() {
                return;
            }
            if let Err(error) = unlinkat(&self.of.dir, &self.name, AtFlags::empty()) {
                tracing::warn!(of = %self.of.path.display(), %error, "cannot remove our lock");
            }
        }
    }
}
