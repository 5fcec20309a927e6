//! Removal of directories, whatever a command left in them. git fails if a path is longer than the kernel accepts, the
//! standard library if more directories are nested than a process may have open, and both if a directory is not writable,
//! as in Go's module cache.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, fstat, openat, openat2, renameat, unlinkat};
use rustix::io::{Errno, retry_on_intr};

/// Permissions of the owner that the removal of a directory's content needs.
const OWN: u32 = 0o700;

/// Removes a file, or a directory with all that is in it. Permissions that the caller may change are no obstacle, nor is
/// the depth. Symbolic links are not followed, and nothing below a mount point is removed. It is no error if `path` does
/// not exist.
///
/// # Errors
/// Returns the first failure, after everything else was removed. A directory whose content belongs to another user stays,
/// for example.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    if removed(unlinkat(CWD, path, AtFlags::empty()))? || removed(unlinkat(CWD, path, AtFlags::REMOVEDIR))? {
        return Ok(());
    }
    let mut removal = Removal { top: open_top(path)?, next: 0, todo: Vec::new(), failed: None };
    let top = removal.top.try_clone()?;
    removal.empty(&top)?;
    // At most two directories are open, however deep they were.
    while let Some(name) = removal.todo.pop() {
        let emptied = open(&top, &name).and_then(|dir| removal.empty(&dir));
        match emptied.and_then(|()| removed(unlinkat(&top, &*name, AtFlags::REMOVEDIR))) {
            Ok(true) => {}
            Ok(false) => removal.note(Errno::NOTEMPTY.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => removal.note(error),
        }
    }
    if let Some(error) = removal.failed {
        return Err(error);
    }
    if removed(unlinkat(CWD, path, AtFlags::REMOVEDIR))? { Ok(()) } else { Err(Errno::NOTEMPTY.into()) }
}

/// Removes a file, or a directory with all that is in it, as [`remove_tree`] does, but moves nothing: what is left after an
/// interruption is where it was.
///
/// # Errors
/// Returns the first failure and stops there. Fails if more directories are nested than this process may have open.
pub fn remove_in_place(path: &Path) -> io::Result<()> {
    if removed(unlinkat(CWD, path, AtFlags::empty()))? || removed(unlinkat(CWD, path, AtFlags::REMOVEDIR))? {
        return Ok(());
    }
    empty_in_place(&open_top(path)?)?;
    if removed(unlinkat(CWD, path, AtFlags::REMOVEDIR))? { Ok(()) } else { Err(Errno::NOTEMPTY.into()) }
}

fn empty_in_place(dir: &OwnedFd) -> io::Result<()> {
    for name in names(dir)? {
        let remove = |flags| removed(unlinkat(dir, &*name, flags));
        if remove(AtFlags::empty())? || remove(AtFlags::REMOVEDIR)? {
            continue;
        }
        empty_in_place(&open(dir, &name)?)?;
        if !remove(AtFlags::REMOVEDIR)? {
            return Err(Errno::NOTEMPTY.into());
        }
    }
    Ok(())
}

/// Returns whether something is gone; false if it is a directory that must be emptied first.
fn removed(result: rustix::io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR | Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A removal that is under way.
struct Removal {
    /// The directory that is removed. All that is below it is moved to it, one level after the other, so that no path is
    /// long. A removal that is interrupted can start again.
    top: OwnedFd,
    /// Number that is the name of the next directory that is moved.
    next: u64,
    /// Names of directories in `top` that must be emptied.
    todo: Vec<CString>,
    failed: Option<io::Error>,
}

impl Removal {
    /// Removes the files and empty directories in a directory, and moves the others to the top.
    fn empty(&mut self, dir: &OwnedFd) -> io::Result<()> {
        let is_top = dir_id(dir)? == dir_id(&self.top)?;
        for name in names(dir)? {
            let gone = removed(unlinkat(dir, &*name, AtFlags::empty()))
                .and_then(|is_gone| Ok(is_gone || removed(unlinkat(dir, &*name, AtFlags::REMOVEDIR))?));
            match gone {
                Ok(true) => {}
                Ok(false) if is_top => self.todo.push(name),
                Ok(false) => {
                    if let Err(error) = self.move_up(dir, &name) {
                        self.note(error);
                    }
                }
                Err(error) => self.note(error),
            }
        }
        Ok(())
    }

    /// Moves a directory to the top, under a name that is free there.
    fn move_up(&mut self, dir: &OwnedFd, name: &CStr) -> io::Result<()> {
        // The kernel lets only those move a directory who may write to it.
        drop(open(dir, name)?);
        loop {
            let number = CString::new(self.next.to_string())?;
            self.next += 1;
            match renameat(dir, name, &self.top, &*number) {
                Ok(()) => {
                    self.todo.push(number);
                    return Ok(());
                }
                // The name is in use.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn note(&mut self, error: io::Error) {
        self.failed.get_or_insert(error);
    }
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens the directory at `path`, and gives its owner all permissions for it first. Follows no symbolic link at its end.
fn open_top(path: &Path) -> io::Result<OwnedFd> {
    readable(retry_on_intr(|| openat(CWD, path, DIRECTORY | OFlags::PATH, Mode::empty()))?)
}

/// Opens a directory in `at` as [`open_top`] does. Fails with `EXDEV` if it belongs to another mount.
fn open(at: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    let flags = DIRECTORY | OFlags::PATH;
    match retry_on_intr(|| openat2(at, name, flags, Mode::empty(), ResolveFlags::NO_XDEV)) {
        // Linux before 5.6, or a sandbox that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => {
            let named = retry_on_intr(|| openat(at, name, flags, Mode::empty()))?;
            if fstat(&named)?.st_dev != fstat(at)?.st_dev {
                return Err(Errno::XDEV.into());
            }
            readable(named)
        }
        named => readable(named?),
    }
}

/// Opens a directory for reading that is only named yet, as one without read permission is.
fn readable(named: OwnedFd) -> io::Result<OwnedFd> {
    let mode = fstat(&named)?.st_mode;
    if mode & OWN != OWN {
        let link = format!("/proc/self/fd/{}", named.as_raw_fd());
        retry_on_intr(|| rustix::fs::chmod(&link, Mode::from_raw_mode((mode | OWN) & 0o7777)))?;
    }
    Ok(retry_on_intr(|| openat(&named, c".", DIRECTORY | OFlags::RDONLY, Mode::empty()))?)
}

/// Returns the names of what is in a directory.
fn names(dir: &OwnedFd) -> io::Result<Vec<CString>> {
    Ok(retry_on_intr(|| listed(dir))?)
}

fn listed(dir: &OwnedFd) -> rustix::io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn dir_id(dir: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = fstat(dir)?;
    Ok((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    /// Runs `work` with the permissions of a user who owns `dir`, also if the test runs as root.
    fn as_owner<T: Send>(dir: &Path, work: impl FnOnce() -> T + Send) -> T {
        let nobody = nix::unistd::Uid::from_raw(65_534);
        if nix::unistd::getuid().is_root() {
            std::os::unix::fs::chown(dir, Some(nobody.as_raw()), None).expect("chown");
        }
        let run = || {
            if nix::unistd::getuid().is_root() {
                // Only of this thread.
                nix::unistd::setfsuid(nobody);
            }
            work()
        };
        std::thread::scope(|scope| scope.spawn(run).join().expect("finished"))
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    }

    #[test]
    fn directories_deeper_than_any_path_are_removed() {
        // In memory if possible: a disk takes long for so many directories.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        let top = dir.path().join("top");
        fs::create_dir(&top).expect("made");
        // Names that the removal itself would use.
        fs::write(top.join("0"), "").expect("written");
        fs::create_dir_all(top.join("1/1/1")).expect("made");
        let mut below = open_top(&top).expect("opened");
        for _ in 0..30_000 {
            rustix::fs::mkdirat(&below, c"dd", Mode::RWXU).expect("made");
            below = open(&below, c"dd").expect("opened");
        }
        rustix::fs::mkdirat(&below, c"two", Mode::RWXU).expect("made");
        openat(&below, c"file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).expect("made");
        drop(below);
        remove_tree(&top).expect("removed");
        assert!(!top.exists());
        remove_tree(&top).expect("there is nothing to remove");
    }

    #[test]
    fn missing_permissions_of_the_owner_are_no_obstacle() {
        let dir = tempfile::tempdir().expect("a directory");
        let top = dir.path().join("top");
        as_owner(dir.path(), || {
            for (name, mode) in [("read", 0o555), ("none", 0), ("write", 0o200), ("search", 0o100)] {
                let below = top.join(name).join("below");
                fs::create_dir_all(below.join("deeper")).expect("made");
                fs::write(below.join("file"), "").expect("written");
                for one in [&below, &top.join(name)] {
                    chmod(one, mode);
                }
            }
            chmod(&top, 0o500);
            fs::remove_dir_all(&top).expect_err("this needs more than the standard library does");
            remove_tree(&top).expect("removed");
        });
        assert!(!top.exists());
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (top, mine) = (dir.path().join("top"), dir.path().join("mine"));
        fs::create_dir_all(top.join("a/b")).expect("made");
        fs::create_dir(&mine).expect("made");
        fs::write(mine.join("file"), "").expect("written");
        chmod(&mine, 0o500);
        for link in [top.join("link"), top.join("a/b/link"), dir.path().join("link")] {
            symlink(&mine, link).expect("linked");
        }
        for path in [top, dir.path().join("link")] {
            remove_tree(&path).expect("removed");
            assert!(fs::symlink_metadata(path).is_err());
        }
        assert!(mine.join("file").exists());
        assert_eq!(fs::metadata(&mine).expect("there").permissions().mode() & 0o777, 0o500);
    }

    #[test]
    fn nothing_below_a_mount_point_is_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (top, mine) = (dir.path().join("top"), dir.path().join("mine"));
        fs::create_dir(&mine).expect("made");
        fs::write(mine.join("file"), "").expect("written");
        let is_mounted = super::super::mounts::tests::with_mount(&mine, &top.join("a/b"), || {
            assert_eq!(fs::metadata(top.join("a/b")).expect("there").len(), fs::metadata(&mine).expect("there").len());
            fs::write(top.join("a/z"), "").expect("written");
            for remove in [remove_in_place, remove_tree] {
                remove(&top).expect_err("the mount point cannot be removed");
                assert!(mine.join("file").exists());
            }
            // The mount point is named, but not entered: its own name is in the way before.
            let above = open_top(&top.join("a")).expect("opened");
            assert_eq!(open(&above, c"b").map(drop).expect_err("another mount").raw_os_error(), Some(18));
        });
        assert!(mine.join("file").exists());
        assert!(is_mounted || !nix::unistd::getuid().is_root());
    }

    #[test]
    fn a_removal_in_place_moves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let top = dir.path().join("top");
        fs::create_dir_all(top.join("a/b/c")).expect("made");
        fs::write(top.join("a/b/c/file"), "").expect("written");
        chmod(&top.join("a/b"), 0o500);
        remove_in_place(&top).expect("removed");
        assert!(!top.exists());
        remove_in_place(&top).expect("there is nothing to remove");
    }

    #[test]
    fn all_but_what_belongs_to_others_is_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let top = dir.path().join("top");
        let foreign = top.join("b/foreign");
        fs::create_dir_all(&foreign).expect("made");
        fs::write(foreign.join("file"), "").expect("written");
        if nix::unistd::getuid().is_root() {
            for path in [&top, &top.join("b")] {
                std::os::unix::fs::chown(path, Some(65_534), None).expect("chown");
            }
        }
        as_owner(dir.path(), || {
            fs::create_dir_all(top.join("a/mine/deep")).expect("made");
            fs::write(top.join("z"), "").expect("written");
            let is_all = remove_tree(&top);
            // Without root, there is nobody else.
            assert_eq!(is_all.is_ok(), !nix::unistd::getuid().is_root(), "{is_all:?}");
        });
        assert!(!top.join("a").exists() && !top.join("z").exists());
        assert_eq!(foreign.join("file").exists(), nix::unistd::getuid().is_root());
    }
}
