//! Keeps the files that a landing replaces or deletes, so that a roll back needs no filter to write them again.
//!
//! A file that is kept has a second name: its inode stays in use, so that a file with this inode at the old place is
//! known not to be git's, whatever its content. Where that is impossible, for example on another file system, the file
//! is copied.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use super::{Checkout, FileStamp, Written};
use crate::repository::fault::Fault;
use crate::worktrees::admin;
use swarm_sys::files::remove_tree;

/// Directory with the files that are replaced, by their numbers.
pub(super) const KEPT: &str = "swarm-landing.kept";
/// Directory for files that are written again.
pub(super) const MADE: &str = "swarm-landing.made";

impl Checkout {
    /// Keeps the files that git is about to replace or delete. Returns whether there are any.
    pub(super) fn keep(&self) -> Result<bool, Fault> {
        let dir = self.git_dir.join(KEPT);
        let failed = Fault::at(&dir);
        remove_tree(&dir).map_err(&failed)?;
        let mut has_kept = false;
        for (number, file) in self.files.iter().enumerate().filter(|(_, file)| file.is_replaced()) {
            if !has_kept {
                fs::DirBuilder::new().mode(0o700).create(&dir).map_err(&failed)?;
                has_kept = true;
            }
            let (path, kept) = (self.path_of(file), self.kept(number));
            match fs::hard_link(&path, &kept).or_else(|_| copy(&path, &kept)) {
                // Somebody has just deleted it, and git will see that.
                Err(error) if is_absent(&error) => {}
                kept => kept.map_err(Fault::at(&path))?,
            }
        }
        Ok(has_kept)
    }

    /// Returns the second name of a file, by its number.
    pub(super) fn kept(&self, number: usize) -> PathBuf {
        self.git_dir.join(KEPT).join(number.to_string())
    }

    /// Reports whether the file at `path` is the one that was kept, so that git has not written it.
    pub(super) fn is_kept_at(&self, number: usize, path: &Path) -> bool {
        let id = |path: &Path| fs::symlink_metadata(path).map(|seen| (seen.dev(), seen.ino()));
        id(path).is_ok_and(|one| id(&self.kept(number)).is_ok_and(|other| one == other))
    }

    /// Reports whether the file with this number was kept, and whole.
    pub(super) fn has_kept(&self, number: usize, file: &Written) -> bool {
        let (Some(kept), Some(before)) = (FileStamp::at(&self.kept(number)), &file.before) else { return false };
        // In a file with the same inode, any difference is somebody's edit.
        kept.inode == before.inode || kept.bytes == before.bytes
    }

    /// Returns the files that somebody changed after git had looked at them and before git replaced them.
    pub(super) fn edited_meanwhile(&self) -> Vec<String> {
        let is_edited = |number: usize, file: &Written| {
            let (kept, before) = (FileStamp::at(&self.kept(number)), file.before.as_ref());
            kept.zip(before).is_some_and(|(kept, before)| kept.inode == before.inode && kept != *before)
        };
        let edited =
            self.files.iter().enumerate().filter(|(number, file)| file.is_replaced() && is_edited(*number, file));
        edited.map(|(_, file)| String::from_utf8_lossy(&file.path).into_owned()).collect()
    }

    /// Moves a file to a place in the worktree. It replaces what is there in one step. Returns false if a directory that
    /// is not empty is in the way.
    pub(super) fn put(&self, from: &Path, file: &Written) -> Result<bool, Fault> {
        let path = self.path_of(file);
        let failed = Fault::at(&path);
        if path.is_dir() && !path.is_symlink() && fs::remove_dir(&path).is_err() {
            return Ok(false);
        }
        if let Some(above) = path.parent() {
            fs::create_dir_all(above).map_err(&failed)?;
        }
        match fs::rename(from, &path) {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                let beside = self.beside(file);
                admin::ignore_missing(fs::remove_file(&beside)).map_err(&failed)?;
                copy(from, &beside).and_then(|()| fs::rename(&beside, &path)).map_err(&failed)?;
            }
            moved => moved.map_err(&failed)?,
        }
        Ok(true)
    }

    /// Returns the temporary name beside a file, for a copy from another file system.
    fn beside(&self, file: &Written) -> PathBuf {
        let path = self.path_of(file);
        let name = path.file_name().unwrap_or_default().as_bytes();
        path.with_file_name(OsStr::from_bytes(&[b".swarm-landing-", &name[..name.len().min(200)]].concat()))
    }

    /// Removes a copy beside a file that a kill has left.
    pub(super) fn remove_beside(&self, file: &Written) -> Result<(), Fault> {
        let beside = self.beside(file);
        match fs::remove_file(&beside) {
            Err(error) if !is_absent(&error) => Err(Fault::at(&beside)(error)),
            _ => Ok(()),
        }
    }

    pub(super) fn path_of(&self, file: &Written) -> PathBuf {
        self.tree.join(OsStr::from_bytes(&file.path))
    }
}

impl Written {
    /// Reports whether the landing replaces or deletes a file.
    fn is_replaced(&self) -> bool {
        !self.is_new && self.before.is_some()
    }
}

/// Reports whether an error says that there is no such file.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Copies a file durably, with its times and permissions, or a symbolic link.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let seen = fs::symlink_metadata(from)?;
    if seen.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if !seen.is_file() {
        return Err(io::Error::other("neither a file nor a symbolic link"));
    }
    fs::copy(from, to)?;
    let file = fs::File::open(to)?;
    // The times need no permission to write, because the file is ours.
    file.set_modified(seen.modified()?)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_copy_has_the_times_and_permissions() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link, made) = (dir.path().join("f"), dir.path().join("l"), dir.path().join("m"));
        fs::write(&file, "1\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o500)).unwrap();
        fs::File::open(&file).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        copy(&file, &made).unwrap();
        let (one, other) = (fs::metadata(&file).unwrap(), fs::metadata(&made).unwrap());
        assert_eq!((one.mtime(), one.mode(), one.len()), (other.mtime(), other.mode(), other.len()));
        fs::remove_file(&made).unwrap();
        symlink("nowhere", &link).unwrap();
        copy(&link, &made).unwrap();
        assert_eq!(fs::read_link(&made).unwrap(), Path::new("nowhere"));
    }
}
