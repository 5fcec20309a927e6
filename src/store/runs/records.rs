//! Reads records of runs. Agents can write below `.arial`, so that a record may be a pipe, for whose other end a reader
//! would wait.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Flag that keeps an open from waiting for the other end of a pipe.
pub(super) const NO_WAIT: i32 = OFlags::NONBLOCK.bits().cast_signed();

/// Opens a file, also behind a link, without waiting.
///
/// # Errors
/// Returns any I/O error, and fails for what is not a regular file.
pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    checked(OpenOptions::new().read(true).custom_flags(NO_WAIT).open(path)?)
}

/// Returns the file if it is a regular one.
///
/// # Errors
/// Fails for everything else.
pub(super) fn checked(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

/// Returns the content of a file.
///
/// # Errors
/// As [`open`].
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open(path)?.read_to_end(&mut content)?;
    Ok(content)
}

/// Returns the content of a file as text.
///
/// # Errors
/// As [`open`], and fails for what is not UTF-8.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    let mut content = String::new();
    open(path)?.read_to_string(&mut content)?;
    Ok(content)
}
