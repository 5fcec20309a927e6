//! Owners of state directories. Root may use the directory of another user, which has to stay usable for that user.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::paths::Paths;

/// Returns the other user to whom a state directory, its registry or its records belong, if this process is root's. `None`
/// if all that exists is root's own.
///
/// # Errors
/// Fails if something exists and its owner cannot be read.
pub fn other_user(paths: &Paths) -> io::Result<Option<u32>> {
    let me = rustix::process::geteuid().as_raw();
    for path in [paths.root().to_owned(), paths.state(), paths.workers()] {
        match std::fs::metadata(&path) {
            Ok(meta) if is_foreign(meta.uid(), me) => return Ok(Some(meta.uid())),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Reports whether a supervisor of user `me` must not serve the state of user `owner`.
fn is_foreign(owner: u32, me: u32) -> bool {
    me == 0 && owner != 0
}

/// Gives a file or directory that this process has just made to the owner of the directory `dir` around it, if this process
/// is root's and `dir` is another user's.
///
/// # Errors
/// Returns any I/O error.
pub fn give(file: impl AsFd, dir: &Path) -> io::Result<()> {
    let around = std::fs::metadata(dir)?;
    if is_foreign(around.uid(), rustix::process::geteuid().as_raw()) {
        let (user, group) = (rustix::fs::Uid::from_raw(around.uid()), rustix::fs::Gid::from_raw(around.gid()));
        rustix::fs::fchown(file, Some(user), Some(group))?;
    }
    Ok(())
}

/// Creates the missing directory `dir` as [`files::make_dirs`](crate::files::make_dirs) does, and [gives](give) it to the
/// owner of the one around it.
///
/// # Errors
/// Returns any I/O error.
pub fn make_dir_inside(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    crate::files::make_dirs(dir)?;
    dir.parent().map_or(Ok(()), |around| give(File::open(dir)?, around))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_would_serve_the_state_of_another_user() {
        for (owner, me, foreign) in [(0, 0, false), (1000, 0, true), (1000, 1000, false), (1000, 1001, false)] {
            assert_eq!(is_foreign(owner, me), foreign, "{owner} {me}");
        }
    }

    #[test]
    fn what_does_not_exist_belongs_to_nobody_else() {
        let root = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(root.path().join("state"));
        assert_eq!(other_user(&paths).expect("is told"), None);
        // An error other than absence is no answer.
        std::os::unix::fs::symlink("loop", root.path().join("loop")).expect("made");
        other_user(&Paths::new(root.path().join("loop"))).expect_err("cannot be told");
    }
}
