//! Index of a worktree while git writes it. A sandboxed agent can write to the record of its worktree, and git follows a
//! link in place of the index when it takes the lock. So git works on a copy in the common directory, which then
//! replaces the index by a rename.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::cli::CliError;
use super::fault::Fault;
use super::index::FILE;
use crate::trash::scratch::Scratch;
use crate::worktrees::admin;

/// New index for the git directory of a worktree. Dropping it discards it.
#[derive(Debug)]
pub(crate) struct Draft {
    new: Scratch,
    /// Stamp of the copy, before git replaced it.
    copied: Option<Stamp>,
    index: PathBuf,
    lock: Option<Lock>,
}

type Id = (u64, u64);
/// Identity, and time of the last change. The number alone may be given again at once.
type Stamp = (Id, i64, i64);

impl Draft {
    /// Locks the index in `git_dir` and copies it.
    ///
    /// # Errors
    /// Fails as git does if another process holds the lock, and if the index is no regular file.
    pub(crate) fn of(git_dir: &Path) -> Result<Self, CliError> {
        let lock = Lock::take(git_dir)?;
        Ok(Self { lock: Some(lock), ..Self::unlocked(git_dir)? })
    }

    /// Copies the index in `git_dir`, for a git whose changes to it do not matter.
    pub(crate) fn unlocked(git_dir: &Path) -> Result<Self, CliError> {
        let draft = Self::without_content(git_dir, None);
        let copied = admin::copy_index(&draft.index, draft.path());
        admin::ignore_missing(copied).map_err(Fault::at(&draft.index)).map_err(CliError::Record)?;
        Ok(Self { copied: stamp(draft.path()), ..draft })
    }

    /// Locks the index in `git_dir`, for a new one that has nothing of it.
    ///
    /// # Errors
    /// Fails as git does if another process holds the lock.
    pub(crate) fn empty(git_dir: &Path) -> Result<Self, CliError> {
        let lock = Lock::take(git_dir)?;
        Ok(Self::without_content(git_dir, Some(lock)))
    }

    fn without_content(git_dir: &Path, lock: Option<Lock>) -> Self {
        Self { new: Scratch::new(git_dir, "index"), copied: None, index: git_dir.join(FILE), lock }
    }

    pub(crate) fn path(&self) -> &Path {
        self.new.path()
    }

    /// Puts what git wrote in place, and releases the lock. Replaces a link instead of following it.
    pub(crate) fn install(self) -> Result<(), Fault> {
        let made = stamp(self.path());
        if self.lock.is_some() && made.is_some() && made != self.copied {
            fs::rename(self.path(), &self.index).map_err(Fault::at(&self.index))?;
        }
        Ok(())
    }
}

/// Lock of an index. It is a hard link of a scratch file, so that it is known as ours after a kill.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    id: Option<Id>,
    /// The other name of the lock.
    _ours: Scratch,
}

impl Lock {
    fn take(git_dir: &Path) -> Result<Self, CliError> {
        let (mut ours, path) = (Scratch::new(git_dir, "index"), git_dir.join("index.lock"));
        drop(ours.create().map_err(CliError::Record)?);
        let made = fs::hard_link(ours.path(), &path);
        let made = match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
            // The file system has no hard links.
            Err(_) => fs::File::create_new(&path).map(drop),
            made => made,
        };
        made.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                CliError::Exit { code: 128, message: format!("Unable to create '{}': File exists.", path.display()) }
            }
            _ => CliError::Record(Fault::at(&path)(error)),
        })?;
        Ok(Self { id: id(&path), path, _ours: ours })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.id.is_some() && id(&self.path) == self.id {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn id(path: &Path) -> Option<Id> {
    fs::symlink_metadata(path).ok().map(|seen| (seen.dev(), seen.ino()))
}

fn stamp(path: &Path) -> Option<Stamp> {
    fs::symlink_metadata(path).ok().map(|seen| ((seen.dev(), seen.ino()), seen.ctime(), seen.ctime_nsec()))
}

/// Whether git writes an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// The result counts.
    Writes,
    /// Only to be faster the next time.
    MayWrite,
}

/// Returns the use that a command makes of the index. `None` if it writes none.
pub(super) fn use_of<'a>(args: impl Iterator<Item = &'a [u8]>) -> Option<Use> {
    let mut args = args;
    let verb = loop {
        match args.next()? {
            b"-C" | b"-c" => drop(args.next()),
            option if option.starts_with(b"-") => {}
            verb => break verb,
        }
    };
    match verb {
        b"add" | b"checkout" | b"read-tree" | b"reset" | b"rm" | b"update-index" => Some(Use::Writes),
        b"write-tree" => Some(Use::MayWrite),
        _ => None,
    }
}
