//! Owners of state directories. Root may use the directory of another user, which has to stay usable for that user.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

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

/// Why a supervisor must not execute what a state directory contains: another user may have written it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exposed {
    Owner { path: PathBuf, user: u32 },
    Mode { path: PathBuf, mode: u32 },
}

impl fmt::Display for Exposed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner { path, user } => write!(out, "{} belongs to another user (uid {user})", path.display()),
            Self::Mode { path, mode } => {
                write!(out, "{} is writable by other users (mode {mode:04o})", path.display())
            }
        }
    }
}

impl Exposed {
    /// Returns a hint for the user of the supervisor.
    pub fn remedy(&self) -> String {
        match self {
            Self::Owner { .. } => {
                "set SWARM_DIR to a directory of your own, or make sure who has written it, and change its owner"
                    .to_owned()
            }
            Self::Mode { path, .. } => {
                format!("make sure that nobody else has written it, and run 'chmod go-w {}'", path.display())
            }
        }
    }
}

/// Returns what another user may have written of a state directory: the directory, or an entry from which commands are
/// executed. The group of this process may write: many systems have one for each user. What root owns is as good as the
/// user's own.
///
/// # Errors
/// Fails if something exists and cannot be examined.
pub fn exposed(paths: &Paths) -> io::Result<Option<Exposed>> {
    let root = paths.root();
    let inside = ["run", "merge", "flow", "ralph", "rules.jsonl"].map(|entry| root.join(entry));
    let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    for path in [root.to_owned(), paths.state(), paths.workers()].into_iter().chain(inside) {
        match std::fs::metadata(&path) {
            Ok(meta) => {
                if let Some(exposed) = exposure(path, (meta.uid(), meta.gid()), meta.mode(), me) {
                    return Ok(Some(exposed));
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Returns how a file of this owner (user and group) and this mode is exposed to others than `me`, a user and its group.
fn exposure(path: PathBuf, owner: (u32, u32), mode: u32, me: (u32, u32)) -> Option<Exposed> {
    if owner.0 != me.0 && owner.0 != 0 {
        return Some(Exposed::Owner { path, user: owner.0 });
    }
    let is_of_others = owner.1 != me.1 && owner.1 != 0;
    let is_writable = mode & 0o002 != 0 || (mode & 0o020 != 0 && is_of_others);
    is_writable.then_some(Exposed::Mode { path, mode: mode & 0o7777 })
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
    fn what_others_may_have_written_is_exposed() {
        let me = (1000, 1000);
        for (owner, mode, is_exposed) in [
            ((1000, 1000), 0o700, false),
            ((1000, 100), 0o755, false),
            // With umask 002.
            ((1000, 1000), 0o775, false),
            ((1000, 0), 0o770, false),
            ((1000, 100), 0o775, true),
            ((1000, 1000), 0o702, true),
            ((1000, 1000), 0o777, true),
            // Also with the sticky bit: others could add workers.
            ((1000, 1000), 0o1777, true),
            ((1001, 1001), 0o777, true),
            ((1001, 1001), 0o700, true),
            ((0, 0), 0o755, false),
            ((0, 1000), 0o775, false),
            ((0, 0), 0o777, true),
        ] {
            let found = exposure(PathBuf::from("/d"), owner, 0o40000 | mode, me);
            assert_eq!(found.is_some(), is_exposed, "{owner:?} {mode:o} {found:?}");
        }
    }

    #[test]
    fn each_part_from_which_commands_come_is_examined() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        let set =
            |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
        for part in ["w", "run", "merge", "flow", "ralph", "logs"] {
            std::fs::create_dir(dir.path().join(part)).expect("made");
            set(&dir.path().join(part), 0o700);
        }
        for part in ["state.json", "rules.jsonl"] {
            std::fs::write(dir.path().join(part), "").expect("written");
            set(&dir.path().join(part), 0o600);
        }
        assert_eq!(exposed(&paths).expect("examined"), None);
        for part in ["", "w", "run", "merge", "flow", "ralph", "state.json", "rules.jsonl"] {
            let path = if part.is_empty() { dir.path().to_owned() } else { dir.path().join(part) };
            set(&path, 0o722);
            let found = exposed(&paths).expect("examined").expect("is exposed");
            assert_eq!(found.to_string(), format!("{} is writable by other users (mode 0722)", path.display()));
            assert!(found.remedy().ends_with(&format!("'chmod go-w {}'", path.display())));
            set(&path, 0o700);
        }
        set(&dir.path().join("logs"), 0o777);
        assert_eq!(exposed(&paths).expect("examined"), None, "nothing of it is executed");
    }

    #[test]
    fn what_does_not_exist_belongs_to_nobody_else() {
        let root = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(root.path().join("state"));
        assert_eq!(other_user(&paths).expect("examined"), None);
        // An error other than absence is no answer.
        std::os::unix::fs::symlink("loop", root.path().join("loop")).expect("made");
        other_user(&Paths::new(root.path().join("loop"))).expect_err("cannot be told");
    }
}
