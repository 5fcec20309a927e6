//! Files: atomic and durable replacement, locks with a deadline, and reserved disk space.

pub mod compare_exchange;
pub mod lock;
pub mod reserve;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use swarm_ports::BoxFuture;

/// Replaces a file atomically and durably. A new file is private.
///
/// # Errors
/// Fails if the file cannot be written. The old file remains, unless only the last sync failed.
pub fn replace_durably(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = dir.join(format!("{name}.tmp.{}", std::process::id()));
    let _ = fs::remove_file(&temporary);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, dir.join(name))
    })();
    if let Err(error) = written {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    File::open(dir)?.sync_all()
}

/// Writes a private file in place, neither atomically nor durably.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Creates a private directory durably.
///
/// # Errors
/// Fails if the directory cannot be created, or already exists.
pub fn make_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)?;
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// Runs blocking file operations off the thread of the runtime.
pub fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> BoxFuture<'static, io::Result<T>> {
    Box::pin(
        async move { tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error))) },
    )
}
