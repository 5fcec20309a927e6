//! Files: atomic and durable replacement, locks with a deadline, and reserved disk space.

pub mod compare_exchange;
mod list;
pub mod lock;
mod mounts;
mod remove;
pub mod reserve;
mod temporary;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

pub use list::{is_absent, list, list_if_present};
pub use mounts::mounts_below;
pub use remove::{remove_in_place, remove_tree};
use swarm_ports::BoxFuture;
use temporary::Temporary;
pub use temporary::{is_abandoned, remove_abandoned};

const PRIVATE: u32 = 0o600;

/// Permissions of a file that replaces another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only the owner may read and write it.
    Private,
    /// As the replaced file; private if there is none.
    KeepOrPrivate,
    /// As the replaced file, or as the umask says if there is none; these bits are added.
    KeepOrDefault { add: u32 },
}

/// Whether a replacement survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The file and its directory are synced.
    Synced,
    /// Nothing is synced: after a power cut there is the old file, the new one, or none.
    None,
}

/// Replaces the file at `path` atomically: readers, and a process that is killed at any moment, leave the old file or
/// the new one. `temporary` is the file that is written first; it must be in the same directory, and no other writer
/// may use its name.
///
/// # Errors
/// Returns any I/O error; the old file then still exists, except if only the sync of the directory failed.
pub fn replace(temporary: &Path, path: &Path, bytes: &[u8], mode: Mode, durability: Durability) -> io::Result<()> {
    let written = write_new(temporary, path, bytes, mode, durability).and_then(|()| fs::rename(temporary, path));
    if let Err(error) = written {
        let _ = fs::remove_file(temporary);
        return Err(error);
    }
    match (durability, path.parent()) {
        (Durability::Synced, Some(dir)) => File::open(dir)?.sync_all(),
        _ => Ok(()),
    }
}

fn write_new(temporary: &Path, path: &Path, bytes: &[u8], mode: Mode, durability: Durability) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if !matches!(mode, Mode::KeepOrDefault { .. }) {
        options.mode(PRIVATE);
    }
    let mut file = match options.open(temporary) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // A leftover of a killed process that had the same pid.
            fs::remove_file(temporary)?;
            options.open(temporary)?
        }
        opened => opened?,
    };
    file.write_all(bytes)?;
    let old = || fs::metadata(path).ok().map(|meta| meta.permissions().mode());
    let wanted = match mode {
        Mode::Private => None,
        Mode::KeepOrPrivate => old(),
        Mode::KeepOrDefault { add } => Some(old().map_or_else(|| mode_of(&file), Ok)? | add),
    };
    if let Some(wanted) = wanted {
        file.set_permissions(fs::Permissions::from_mode(wanted & 0o7777))?;
    }
    match durability {
        Durability::Synced => file.sync_all(),
        Durability::None => Ok(()),
    }
}

/// Renames a file if there is one. Unlike a rename that fails, this does not lock the directory if there is none.
///
/// # Errors
/// Returns any I/O error, except that there is no such file.
pub fn rename_if_present(from: &Path, to: &Path) -> io::Result<()> {
    if is_absent(from) { Ok(()) } else { absent_ok(fs::rename(from, to)) }
}

/// Removes a file if there is one. Unlike a removal that fails, this does not lock the directory if there is none.
///
/// # Errors
/// Returns any I/O error, except that there is no such file.
pub fn remove_if_present(path: &Path) -> io::Result<()> {
    if is_absent(path) { Ok(()) } else { absent_ok(fs::remove_file(path)) }
}

/// Takes a missing file for success.
///
/// # Errors
/// Returns all other errors.
pub fn absent_ok(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn mode_of(file: &File) -> io::Result<u32> {
    Ok(file.metadata()?.permissions().mode())
}

/// Replaces the private file `name` in `dir` atomically and durably.
///
/// # Errors
/// As [`replace`].
pub fn replace_durably(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    replace_private(dir, name, bytes, Durability::Synced)
}

/// Replaces the private file `name` in `dir` atomically.
///
/// # Errors
/// As [`replace`].
pub fn replace_private(dir: &Path, name: &str, bytes: &[u8], durability: Durability) -> io::Result<()> {
    let temporary = Temporary::new(dir, name);
    replace(&temporary.path, &dir.join(name), bytes, Mode::Private, durability)
}

/// Writes a private file in place, neither atomically nor durably.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Opens a regular file. Does not follow a symbolic link at the end of the path, and does not wait for the other end of
/// a pipe.
///
/// # Errors
/// Fails if the file cannot be opened, or is not a regular file.
pub fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

/// Creates a private directory durably.
///
/// # Errors
/// Fails if the directory cannot be created, or already exists.
pub fn make_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)?;
    sync_parent(path)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => File::open(".")?.sync_all(),
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Creates the missing directories down to `path`, private and durably.
///
/// # Errors
/// Fails if one of them cannot be created, or if something else has its name.
pub fn make_dirs(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_dirs(parent)?;
    }
    match make_dir(path) {
        // Another process was faster; its entry may not be durable yet.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => sync_parent(path),
        made => made,
    }
}

/// Makes everything durable that was written to the file system of an existing path, by any process. Its duration
/// depends on all unwritten data of that file system.
///
/// # Errors
/// Fails if the path cannot be opened, or if data could not be written to the disk.
pub fn sync_file_system(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    Ok(rustix::io::retry_on_intr(|| rustix::fs::syncfs(&file))?)
}

/// Runs blocking file operations off the thread of the runtime.
pub fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> BoxFuture<'static, io::Result<T>> {
    Box::pin(
        async move { tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error))) },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leftover_of_the_temporary_file_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let (temporary, path) = (dir.path().join("tmp"), dir.path().join("file"));
        fs::write(&temporary, "a leftover, longer than the text").expect("written");
        replace(&temporary, &path, b"text", Mode::Private, Durability::None).expect("replaced");
        assert_eq!(fs::read_to_string(&path).expect("there"), "text");
        // Its target is none of ours.
        fs::write(dir.path().join("target"), "kept").expect("written");
        std::os::unix::fs::symlink("target", &temporary).expect("linked");
        replace(&temporary, &path, b"again", Mode::Private, Durability::None).expect("replaced");
        assert_eq!(fs::read_to_string(&path).expect("there"), "again");
        assert_eq!(fs::read_to_string(dir.path().join("target")).expect("there"), "kept");
    }

    #[test]
    fn only_an_absent_file_needs_no_change() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, other) = (dir.path().join("file"), dir.path().join("other"));
        remove_if_present(&file).expect("nothing to do");
        rename_if_present(&file, &other).expect("nothing to do");
        fs::write(&file, "").expect("written");
        rename_if_present(&file, &other).expect("renamed");
        assert!(!file.exists() && other.exists());
        std::os::unix::fs::symlink("nowhere", &file).expect("linked");
        remove_if_present(&file).expect("removed");
        remove_if_present(&other).expect("removed");
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 0);
    }

    #[test]
    fn missing_directories_are_created_private_and_existing_ones_are_kept() {
        let top = tempfile::tempdir().expect("a directory");
        let inner = top.path().join("a/b");
        make_dirs(&inner).expect("made");
        assert_eq!(fs::metadata(&inner).expect("there").permissions().mode() & 0o777, 0o700);
        make_dirs(&inner).expect("there already");
        fs::write(top.path().join("file"), "").expect("written");
        make_dirs(&top.path().join("file/below")).expect_err("a file is in the way");
    }
}
