//! Makes a directory deletable. Tools write-protect directories that they generate, such as Go its module cache, and then
//! nothing in them can be deleted.

use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, Mode, OFlags};
use rustix::io::retry_on_intr;
use swarm_sys::files::{list, mounts_below};

use crate::repository::fault::Fault;

const OWNER: u32 = 0o700;

/// Fails if a file system is mounted at `tree` or below: it is somebody else's, whatever ignore rules say.
pub(crate) fn check_mounts(tree: &Path) -> Result<(), Fault> {
    let mounts = mounts_below(tree).map_err(Fault::at(tree))?;
    mounts.first().map_or(Ok(()), |mount| {
        let cause = format!("a file system is mounted at {}", mount.display());
        Err(Fault::new(cause).remedy(format!("run 'umount {}', then run the command again", mount.display())))
    })
}

/// Gives us all permissions on the directories in `tree` that are ours.
///
/// # Errors
/// Fails if a file system is mounted below, or if a directory with content remains in which we cannot delete anything.
/// Nothing was deleted then.
pub(crate) fn prepare(tree: &Path) -> io::Result<()> {
    if let Some(mount) = mounts_below(tree)?.first() {
        return Err(io::Error::other(format!("a file system is mounted at {}", mount.display())));
    }
    let mut left = vec![tree.to_owned()];
    while let Some(dir) = left.pop() {
        match directories_in(&dir) {
            Ok(inner) => left.extend(inner),
            // Deleted in the meantime, or too deep to have a path. What deletes it next needs none.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidFilename) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn directories_in(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let meta = fs::symlink_metadata(dir)?;
    if !meta.is_dir() {
        return Ok(Vec::new());
    }
    let is_own = meta.uid() == rustix::process::geteuid().as_raw();
    let is_open = is_own && meta.mode() & OWNER == OWNER;
    if is_own && !is_open {
        permit(dir, meta.mode() & 0o7777 | OWNER)?;
    }
    if !is_open && rustix::fs::access(dir, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).is_err() {
        let is_empty = list(dir).is_ok_and(|files| files.is_empty());
        if !is_empty {
            let cause = format!("{} belongs to another user, and nothing in it can be deleted", dir.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, cause));
        }
    }
    let mut inner = Vec::new();
    for file in list(dir)? {
        if file.file_type()?.is_dir() {
            inner.push(file.path());
        }
    }
    Ok(inner)
}

/// Sets the mode of a directory, but not of one that a symbolic link leads to.
fn permit(dir: &Path, mode: u32) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = retry_on_intr(|| rustix::fs::open(dir, flags, Mode::empty()))?;
    fs::set_permissions(format!("/proc/self/fd/{}", opened.as_raw_fd()), fs::Permissions::from_mode(mode))
}
