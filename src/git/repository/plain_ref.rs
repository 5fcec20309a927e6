//! Sets references that are files, and appends to their logs, as git does, but without following a link. A sandboxed agent
//! may write to `refs` and `logs`, and git would open the log that it finds there at that moment.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, fchmod, fstat, mkdirat, open, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::fault::Fault;
use crate::landing::checkout::retry_until;
use crate::worktrees::record;

/// Maximum wait for a lock of another git.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// Flags of directories that lead to a reference.
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Flags of files. None is waited for.
const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// A new value of a reference, given by its full name.
pub(crate) struct Update<'a> {
    pub(crate) name: &'a str,
    pub(crate) to: &'a str,
    pub(crate) before: Before<'a>,
    /// Whether the value survives a power cut.
    pub(crate) is_durable: bool,
}

/// Required old value of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before<'a> {
    Any,
    Absent,
    Is(&'a str),
}

/// Sets a reference. `log` is called under its lock, before the new value counts. Returns `false` without a change if
/// references are no files in this repository, or are behind links as a whole.
///
/// # Errors
/// Fails if something leads to another place, if the reference has another value (transient, so that the caller reads it
/// again), or if its lock stays taken.
pub(crate) fn set(common: &Path, update: &Update<'_>, log: impl FnOnce()) -> Result<bool, Fault> {
    let is_link = fs::symlink_metadata(common.join("config")).is_ok_and(|meta| meta.is_symlink());
    if is_link || common.join("reftable").is_dir() {
        return Ok(false);
    }
    let file = common.join(update.name);
    let Some((dir, leaf)) = directory(common, update.name, true).map_err(|error| at(&file, error))? else {
        return Ok(false);
    };
    let shown = common.join(format!("{}.lock", update.name));
    let lock = format!("{leaf}.lock");
    let mut made = None;
    let is_ours = retry_until(file.parent().unwrap_or(common), LOCK_WAIT, || {
        match openat(&dir, &lock, FILE | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(0o666)) {
            Ok(file) => {
                made = Some(File::from(file));
                Ok(true)
            }
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    });
    is_ours.map_err(Fault::at(&shown))?;
    let Some(held) = made else {
        let cause = format!("{} has been locked by another git process for {} s", shown.display(), LOCK_WAIT.as_secs());
        return Err(Fault { is_tool_failure: true, ..Fault::new(cause) });
    };
    let done = under_lock(common, (&dir, leaf.as_str()), &held, update, log);
    if done.is_err() || done.as_ref().is_ok_and(|is_new| !is_new) {
        let _ = unlinkat(&dir, &lock, AtFlags::empty());
        return done.map(|_| true);
    }
    renameat(&dir, &lock, &dir, &leaf).map_err(|error| {
        let _ = unlinkat(&dir, &lock, AtFlags::empty());
        at(&file, error)
    })?;
    Ok(true)
}

/// Writes the new value to the lock. Returns `false` if the reference has it already.
fn under_lock(
    common: &Path,
    (dir, leaf): (&OwnedFd, &str),
    mut held: &File,
    update: &Update<'_>,
    log: impl FnOnce(),
) -> Result<bool, Fault> {
    let file = common.join(update.name);
    let now = match openat(dir, leaf, FILE | OFlags::RDONLY, Mode::empty()) {
        Ok(now) => {
            let now = File::from(now);
            let meta = now.metadata().map_err(Fault::at(&file))?;
            if !meta.is_file() {
                return Err(Fault::new(format!("{} is no file", file.display())).remedy("move it away".to_owned()));
            }
            let _ = held.set_permissions(meta.permissions());
            let mut text = String::new();
            now.take(u64::from(u16::MAX)).read_to_string(&mut text).map_err(Fault::at(&file))?;
            Some(text.trim_end().to_owned())
        }
        Err(Errno::NOENT) => {
            if let Ok(like) = fs::metadata(common.join("HEAD")) {
                let _ = held.set_permissions(like.permissions());
            }
            packed(common, update.name).map_err(Fault::at(common))?
        }
        Err(error) => return Err(at(&file, error)),
    };
    let is_expected = match update.before {
        Before::Any => true,
        Before::Absent => now.is_none(),
        Before::Is(old) => now.as_deref() == Some(old),
    };
    if !is_expected {
        let cause = format!("{} has been changed by another process", update.name);
        return Err(Fault { transient: true, is_tool_failure: true, ..Fault::new(cause) });
    }
    if now.as_deref() == Some(update.to) {
        return Ok(false);
    }
    let written = held.write_all(format!("{}\n", update.to).as_bytes());
    let written = written.and_then(|()| if update.is_durable { held.sync_data() } else { Ok(()) });
    written.map_err(Fault::at(&file))?;
    log();
    Ok(true)
}

/// Appends a line to the log `logs/NAME` in the git directory `root`, if there is one. Failures are only logged: the value
/// of the reference counts.
pub(crate) fn append(root: &Path, name: &str, line: &str) {
    let appended = || -> io::Result<()> {
        let Some((dir, leaf)) = directory(root, &format!("logs/{name}"), false)? else { return Ok(()) };
        let log = match openat(&dir, &leaf, FILE | OFlags::WRONLY | OFlags::APPEND, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            log => File::from(log?),
        };
        if !log.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        (&log).write_all(line.as_bytes())
    };
    if let Err(error) = appended() {
        tracing::warn!(%error, name, "cannot append to the reflog");
    }
}

/// Opens the directory of a path below `root`, and returns it with the last part. `None` if it is missing and is not to be
/// made.
fn directory(root: &Path, name: &str, makes: bool) -> io::Result<Option<(OwnedFd, String)>> {
    let mut dir = open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut parts = name.split('/').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return Ok(Some((dir, part.to_owned())));
        }
        let next = match openat(&dir, part, DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT) if !makes => return Ok(None),
            Err(Errno::NOENT) => make(&dir, part)?,
            opened => opened?,
        };
        dir = next;
    }
    Ok(None)
}

/// Makes a directory with the permissions of the one above it, as in a repository that users share.
fn make(above: &OwnedFd, part: &str) -> io::Result<OwnedFd> {
    match mkdirat(above, part, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let made = openat(above, part, DIRECTORY, Mode::empty())?;
    let _ = fchmod(&made, Mode::from_raw_mode(fstat(above)?.st_mode & 0o7777));
    Ok(made)
}

/// Returns the value of a packed reference.
fn packed(common: &Path, name: &str) -> io::Result<Option<String>> {
    let text = match record::read(&common.join("packed-refs")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    // The names of other references may be any bytes.
    let value = |line: &[u8]| {
        let id = line.strip_suffix(name.as_bytes())?.strip_suffix(b" ")?;
        std::str::from_utf8(id).ok().filter(|id| !id.contains(' ')).map(str::to_owned)
    };
    Ok(text.split(|byte| *byte == b'\n').find_map(value))
}

fn at(file: &Path, error: impl Into<io::Error>) -> Fault {
    let error = error.into();
    let is_link = [Errno::LOOP, Errno::NOTDIR].iter().any(|link| error.raw_os_error() == Some(link.raw_os_error()));
    if !is_link {
        return Fault::at(file)(error);
    }
    let cause = format!("{} is a symbolic link, or behind one, which git does not make there", file.display());
    Fault::new(cause).remedy("delete it".to_owned())
}

#[cfg(test)]
#[path = "plain_ref_tests.rs"]
mod tests;
