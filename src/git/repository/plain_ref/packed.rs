//! The file of packed references. No sandboxed agent can write it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::LOCK_WAIT;
use crate::landing::checkout::retry_until;
use crate::trash::scratch::Scratch;
use crate::worktrees::admin;

const FILE: &str = "packed-refs";

/// Returns the file in which git keeps packed references. It may be a link of the user, which git follows, also for the
/// lock. `None` for a link to a file that does not exist.
///
/// # Errors
/// Fails if the link cannot be followed.
fn real(common: &Path) -> io::Result<Option<PathBuf>> {
    let file = common.join(FILE);
    if !fs::symlink_metadata(&file).is_ok_and(|meta| meta.is_symlink()) {
        return Ok(Some(file));
    }
    admin::ignore_missing(file.canonicalize())
}

/// Returns the path of the lock, or `None` if only git knows it.
pub(super) fn lock_path(common: &Path) -> io::Result<Option<PathBuf>> {
    Ok(real(common)?.map(|file| file.with_added_extension("lock")))
}

/// Packed references that concern a name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Packed {
    pub(super) value: Option<String>,
    /// Another reference that this name would be a directory of, or that would be a directory of this one.
    pub(super) conflict: Option<String>,
}

/// Looks a reference up.
pub(super) fn find(common: &Path, name: &str) -> io::Result<Packed> {
    let mut found = Packed::default();
    each_line(common, |line| {
        let Some((id, other)) = parsed(line) else { return Ok(()) };
        // The names of other references may be any bytes.
        if other == name.as_bytes() {
            found.value = String::from_utf8(id.to_vec()).ok();
        } else if found.conflict.is_none() && (is_below(other, name.as_bytes()) || is_below(name.as_bytes(), other)) {
            found.conflict = Some(String::from_utf8_lossy(other).into_owned());
        }
        Ok(())
    })?;
    Ok(found)
}

/// Lock of the file. While it is held, no other git packs references. It is kept open, so that other processes see that it is
/// held. Dropping it releases it.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Takes the lock at its path. `None` if another process holds it for long.
    pub(super) fn take(path: PathBuf) -> io::Result<Option<Self>> {
        let mut made = None;
        retry_until(path.parent().unwrap_or(&path), LOCK_WAIT, || match File::create_new(&path) {
            Ok(file) => {
                made = Some(file);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        })?;
        Ok(made.map(|file| Self { path, _file: file }))
    }

    /// Removes a reference from the file, durably.
    pub(super) fn remove(&self, common: &Path, name: &str) -> io::Result<()> {
        let real = common.join(FILE).canonicalize()?;
        let dir = real.parent().unwrap_or(common);
        let mut new = Scratch::new(dir, "packed");
        let file = new.create().map_err(|fault| io::Error::other(fault.cause))?;
        file.set_permissions(real.metadata()?.permissions())?;
        without(common, name, &file)?;
        fs::rename(new.path(), &real)?;
        File::open(dir)?.sync_all()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(lock = %self.path.display(), %error, "cannot remove our lock");
        }
    }
}

/// Writes the lines of all other references to `file`.
fn without(common: &Path, name: &str, file: &File) -> io::Result<()> {
    let mut out = io::BufWriter::new(file);
    let mut is_removed = false;
    each_line(common, |line| {
        // The line after a tag says what the tag is of.
        let is_peeled = line.starts_with(b"^");
        let is_named = || parsed(line).is_some_and(|(_, other)| other == name.as_bytes());
        is_removed = if is_peeled { is_removed } else { is_named() };
        if is_removed { Ok(()) } else { out.write_all(line) }
    })?;
    out.flush()?;
    file.sync_all()
}

/// Calls `visit` for each line, which includes its end.
fn each_line(common: &Path, mut visit: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = match OpenOptions::new().read(true).custom_flags(nonblocking).open(common.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("packed-refs is not a regular file"));
    }
    let (mut reader, mut line) = (BufReader::with_capacity(64 << 10, file), Vec::new());
    while reader.read_until(b'\n', &mut line)? > 0 {
        visit(&line)?;
        line.clear();
    }
    Ok(())
}

/// Returns the id and the name in a line.
fn parsed(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let line = line.trim_ascii_end();
    let at = line.iter().position(|byte| *byte == b' ')?;
    let is_id = line[..at].iter().all(u8::is_ascii_hexdigit);
    is_id.then(|| (&line[..at], &line[at + 1..]))
}

/// Reports whether the name `other` is below `name`.
fn is_below(other: &[u8], name: &[u8]) -> bool {
    other.strip_prefix(name).is_some_and(|rest| rest.starts_with(b"/"))
}
