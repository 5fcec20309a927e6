//! The files themselves: where they lie, and how they are read without waiting for
//! anybody.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;

/// Below the directory for configurations of the user.
pub const USER_FILE: &str = "swarm/config.toml";
/// Longer is no configuration.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// What may be otherwise a moment later.
const PASSING: [Errno; 5] = [Errno::ENOMEM, Errno::EMFILE, Errno::ENFILE, Errno::EIO, Errno::EINTR];
const TRIES_MAX: u32 = 4;
/// Before the second time; four times as long before each one after.
const PAUSE: Duration = Duration::from_millis(50);

/// Where the user's own lies; none where there is neither `XDG_CONFIG_HOME` nor `HOME`.
pub fn user_path() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // As the convention has it, a relative one does not count.
    let base = set("XDG_CONFIG_HOME").filter(|dir| dir.is_absolute()).or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(base.join(USER_FILE))
}

/// The nearest directory at or above this one that git takes for the root of a work tree.
pub fn root_above(dir: &Path) -> Option<&Path> {
    dir.ancestors().find(|dir| dir.join(".git").symlink_metadata().is_ok())
}

/// Its text; `None` when it is not there. Repeated where the system had no room for it.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    let mut pause = PAUSE;
    for _ in 1..TRIES_MAX {
        match read_once(path) {
            Err(error) if error.raw_os_error().is_some_and(|code| PASSING.contains(&Errno::from_raw(code))) => {
                std::thread::sleep(pause);
            }
            done => return there(done),
        }
        pause *= 4;
    }
    there(read_once(path))
}

fn there(read: io::Result<String>) -> io::Result<Option<String>> {
    match read {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_once(path: &Path) -> io::Result<String> {
    // A pipe would make the reader wait for somebody who writes.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if meta.len() > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it is larger than {FILE_BYTES_MAX} bytes")));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}
