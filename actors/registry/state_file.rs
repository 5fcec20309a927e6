//! Reads `state.json`, which other programs write as well.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::path::Path;

use swarm_sys::files::open_regular;

use super::error::StoreError;
use super::store::{REGISTRY_BYTES_MAX, io_error};

/// Returns the content of the file; `None` if it does not exist. Follows no symbolic link, and waits for no other end of a
/// pipe.
///
/// # Errors
/// Fails if it is not a regular file, is larger than [`REGISTRY_BYTES_MAX`], or cannot be read.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    let file = match open_regular(OpenOptions::new().read(true), path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(path, &error)),
    };
    let failed = |error: io::Error| io_error("read", path, &error);
    let length = file.metadata().map_err(failed)?.len();
    if length > REGISTRY_BYTES_MAX {
        return Err(StoreError::TooLarge { path: path.to_owned(), limit_bytes: REGISTRY_BYTES_MAX });
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0) + 1);
    file.take(REGISTRY_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}

/// Returns why the file was not opened: for what it is, if it is none.
fn refused(path: &Path, error: &io::Error) -> StoreError {
    let what = match fs::symlink_metadata(path).map(|meta| meta.file_type()) {
        Ok(kind) if kind.is_symlink() => "a symbolic link",
        Ok(kind) if kind.is_dir() => "a directory",
        Ok(kind) if !kind.is_file() => "a special file",
        _ => return io_error("open", path, error),
    };
    StoreError::NotAFile { path: path.to_owned(), what }
}
