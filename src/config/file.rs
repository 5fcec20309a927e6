//! Location of the configuration files, and reading them without ever blocking.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;

/// Path of the user's file below the user's configuration directory.
pub const USER_FILE: &str = "swarm/config.toml";
/// Maximum size of a configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Transient errors after which reading is retried.
const PASSING: [Errno; 5] = [Errno::ENOMEM, Errno::EMFILE, Errno::ENFILE, Errno::EIO, Errno::EINTR];
const TRIES_MAX: u32 = 4;
/// Pause before the first retry; each further pause is four times as long.
const PAUSE: Duration = Duration::from_millis(50);

/// Returns the path of the user's file; `None` if neither `XDG_CONFIG_HOME` nor `HOME` is set.
pub fn user_path() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    user_path_in(set("XDG_CONFIG_HOME"), set("HOME"))
}

/// Returns the path of the user's file for these values of `XDG_CONFIG_HOME` and `HOME`.
pub fn user_path_in(xdg: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    // The XDG specification says that relative paths are ignored.
    let base = xdg.filter(|dir| dir.is_absolute()).or_else(|| Some(home?.join(".config")))?;
    Some(base.join(USER_FILE))
}

/// Returns the nearest directory at or above `dir` that has a `.git` entry. A directory without `HEAD` does not count, as for
/// git: the sandboxes of agents leave such directories, also in `/tmp`.
pub fn root_above(dir: &Path) -> Option<&Path> {
    let is_root = |dir: &&Path| {
        let git = dir.join(".git");
        git.symlink_metadata().is_ok_and(|found| !found.is_dir() || git.join("HEAD").symlink_metadata().is_ok())
    };
    dir.ancestors().find(is_root)
}

/// Returns the text of a configuration file; `None` if it does not exist. Transient errors are retried.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    read_up_to(path, FILE_BYTES_MAX)
}

/// Reads a file as [`read`] does, with another limit of its size.
pub fn read_up_to(path: &Path, bytes_max: u64) -> io::Result<Option<String>> {
    let mut pause = PAUSE;
    for _ in 1..TRIES_MAX {
        match read_once(path, bytes_max) {
            Err(error) if error.raw_os_error().is_some_and(|code| PASSING.contains(&Errno::from_raw(code))) => {
                std::thread::sleep(pause);
            }
            done => return there(path, done),
        }
        pause *= 4;
    }
    there(path, read_once(path, bytes_max))
}

fn there(path: &Path, read: io::Result<String>) -> io::Result<Option<String>> {
    match read {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_symlink() => {
            Err(io::Error::new(io::ErrorKind::NotFound, "symbolic link to a file that does not exist"))
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_once(path: &Path, bytes_max: u64) -> io::Result<String> {
    // Without O_NONBLOCK, opening a named pipe would block until someone writes to it.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if meta.len() > bytes_max {
        return Err(io::Error::other(format!("larger than {bytes_max} bytes")));
    }
    let mut text = String::new();
    file.take(bytes_max).read_to_string(&mut text)?;
    Ok(text)
}
