//! Replacement of a file that another program also replaces, without a lock: the new file and the old one are
//! swapped, and the old one is then compared with what was read before.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::mem;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::{Errno, retry_on_intr};

const PRIVATE: u32 = 0o600;
/// Maximum number of swaps back, more than the number of other writers.
const TRIES_MAX: u32 = 64;

/// Result of a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    Done,
    /// Another program has written the file since. Its version remains.
    Overtaken,
}

/// Replaces the file with `text`, but only if it still contains `seen` (`None`: only if it does not exist).
///
/// # Errors
/// Fails if the file cannot be read or written.
pub fn replace(path: &Path, seen: Option<&[u8]>, text: &[u8], durably: bool) -> io::Result<Replaced> {
    replace_while(path, seen, text, durably, || true)
}

/// Replaces the file like [`replace`], but does not try if `still` returns `false` immediately before. Readers then
/// never see a version that is swapped back.
///
/// # Errors
/// Fails if the file cannot be read or written.
pub fn replace_while(
    path: &Path,
    seen: Option<&[u8]>,
    text: &[u8],
    durably: bool,
    still: impl FnOnce() -> bool,
) -> io::Result<Replaced> {
    let temporary = temporary(path);
    let written = write(&temporary, path, text, durably);
    let replaced = written.and_then(|()| match seen {
        _ if !still() => Ok(Replaced::Overtaken),
        Some(seen) => exchange(&temporary, path, seen, text),
        None => create(&temporary, path),
    })?;
    // The temporary file now has the old content, or content that is not needed.
    absent_ok(fs::remove_file(&temporary))?;
    if durably && let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    Ok(replaced)
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".tmp.{}", std::process::id()));
    PathBuf::from(name)
}

/// Writes the temporary file. It gets the mode of an existing file; a new file is private.
fn write(temporary: &Path, path: &Path, text: &[u8], durably: bool) -> io::Result<()> {
    absent_ok(fs::remove_file(temporary))?;
    let mode = fs::metadata(path).map_or(PRIVATE, |meta| meta.permissions().mode() & 0o777);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(temporary)?;
        if mode != PRIVATE {
            file.set_permissions(fs::Permissions::from_mode(mode))?;
        }
        file.write_all(text)?;
        if durably { file.sync_all() } else { Ok(()) }
    })();
    if written.is_err() {
        let _ = fs::remove_file(temporary);
    }
    written
}

fn create(temporary: &Path, path: &Path) -> io::Result<Replaced> {
    match rename(temporary, path, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(Replaced::Done),
        Err(Errno::EXIST) => Ok(Replaced::Overtaken),
        Err(error) if is_unknown(error) => look_and_rename(temporary, path, None),
        Err(error) => Err(error.into()),
    }
}

fn exchange(temporary: &Path, path: &Path, seen: &[u8], text: &[u8]) -> io::Result<Replaced> {
    match rename(temporary, path, RenameFlags::EXCHANGE) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(Replaced::Overtaken),
        Err(error) if is_unknown(error) => return look_and_rename(temporary, path, Some(seen)),
        Err(error) => return Err(error.into()),
    }
    let mut out = fs::read(temporary)?;
    if out == seen {
        return Ok(Replaced::Done);
    }
    // Swap back until we recover exactly what we last wrote.
    let mut put = text.to_vec();
    for _ in 0..TRIES_MAX {
        rename(temporary, path, RenameFlags::EXCHANGE)?;
        let came = fs::read(temporary)?;
        if came == put {
            return Ok(Replaced::Overtaken);
        }
        put = mem::replace(&mut out, came);
    }
    Err(io::Error::other("another program keeps writing the file"))
}

/// Replaces the file if the file system cannot swap files. Only a check immediately before protects other writers.
fn look_and_rename(temporary: &Path, path: &Path, seen: Option<&[u8]>) -> io::Result<Replaced> {
    if read(path)?.as_deref() != seen {
        return Ok(Replaced::Overtaken);
    }
    fs::rename(temporary, path)?;
    Ok(Replaced::Done)
}

/// Returns the content of a file. `None` if it does not exist.
///
/// # Errors
/// Fails if the file exists and cannot be read.
pub fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
    retry_on_intr(|| renameat_with(CWD, from, CWD, to, flags))
}

/// Reports whether the file system or the kernel does not support the flag.
fn is_unknown(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

fn absent_ok(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_seen_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state.json");
        let there = || fs::read_to_string(&path).expect("there");
        for durably in [false, true] {
            fs::write(&path, "seen").expect("written");
            assert_eq!(replace(&path, Some(b"seen"), b"ours", durably).expect("no failure"), Replaced::Done);
            assert_eq!(there(), "ours");
            // Another program has replaced, removed or created the file since.
            assert_eq!(replace(&path, Some(b"seen"), b"more", durably).expect("no failure"), Replaced::Overtaken);
            assert_eq!(there(), "ours");
            assert_eq!(replace(&path, None, b"more", durably).expect("no failure"), Replaced::Overtaken);
            assert_eq!(there(), "ours");
            fs::remove_file(&path).expect("removed");
            assert_eq!(replace(&path, Some(b"ours"), b"more", durably).expect("no failure"), Replaced::Overtaken);
            assert!(!path.exists());
            assert_eq!(replace(&path, None, b"new", durably).expect("no failure"), Replaced::Done);
            assert_eq!(there(), "new");
        }
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1, "a temporary file is left");
    }

    #[test]
    fn nothing_that_another_program_writes_is_lost() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state.json");
        fs::write(&path, "ours 0").expect("written");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut done = 0;
                while done < 500 {
                    let seen = fs::read_to_string(&path).expect("there");
                    let theirs = seen.split(' ').nth(1).expect("two words");
                    let replaced = replace(&path, Some(seen.as_bytes()), format!("{done} {theirs}").as_bytes(), false);
                    done += u32::from(replaced.expect("no failure") == Replaced::Done);
                }
            });
            scope.spawn(|| {
                let aside = dir.path().join("theirs");
                for count in 1..=500 {
                    fs::write(&aside, format!("theirs {count}")).expect("written");
                    fs::rename(&aside, &path).expect("renamed");
                }
            });
        });
        let text = fs::read_to_string(&path).expect("there");
        assert!(text.ends_with(" 500"), "{text}");
    }
}
