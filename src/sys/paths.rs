//! Paths in the state directory.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// Returns the first `bytes` bytes of the SHA-256 of `text` in hex, as a short name.
pub fn digest(text: &[u8], bytes: usize) -> String {
    Sha256::digest(text).iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

/// Maximum number of symbolic links that are followed, as in the kernel.
const LINKS_MAX: usize = 40;

/// Resolves the symbolic links of a path whose last parts need not exist. A link to something that does not exist yet
/// is followed too: otherwise the path would have another name once it exists.
///
/// # Errors
/// Fails if a part of the path cannot be examined, or there are too many links.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let mut missing = Vec::new();
        let mut above = path.as_path();
        let there = loop {
            match above.canonicalize() {
                Ok(there) => break there,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            if let Ok(target) = above.read_link() {
                // Its own directory exists, or this would not be readable.
                break above.parent().unwrap_or(Path::new("/")).join(target);
            }
            let Some(name) = above.file_name() else { return Ok(path) };
            missing.push(name.to_owned());
            above = above.parent().unwrap_or(Path::new("/"));
        };
        let was_link = above.is_symlink() && !above.exists();
        let resolved = missing.iter().rev().fold(there, |path, name| path.join(name));
        if !was_link {
            return Ok(resolved);
        }
        path = resolved;
    }
    Err(io::Error::other(format!("too many symbolic links: {}", path.display())))
}

/// Returns a variable that is not empty.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// State directory (`$SWARM_DIR`, else `~/.swarm`), and the paths in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    root: PathBuf,
}

impl Paths {
    /// Maximum length of the path of a Unix socket in bytes (`sun_path` without its final NUL).
    const SOCKET_PATH_BYTES_MAX: usize = 107;

    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the state directory that the environment names.
    ///
    /// # Errors
    /// Fails if neither `SWARM_DIR` nor `HOME` is set, or the current directory is unknown.
    pub fn from_env() -> io::Result<Self> {
        match variable("SWARM_DIR") {
            Some(dir) => Self::at(Path::new(&dir)),
            None => Self::of_home(),
        }
    }

    /// Returns the state directory that counts if the environment names no other.
    ///
    /// # Errors
    /// Fails if `HOME` is not set, or the current directory is unknown.
    pub fn of_home() -> io::Result<Self> {
        let home = variable("HOME").ok_or_else(|| io::Error::other("neither SWARM_DIR nor HOME is set"))?;
        Self::at(&Path::new(&home).join(".swarm"))
    }

    fn at(root: &Path) -> io::Result<Self> {
        let root = std::path::absolute(root)?;
        Ok(Self { root: resolve(&root)? })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }
    pub fn state(&self) -> PathBuf {
        self.root.join("state.json")
    }
    pub fn workers(&self) -> PathBuf {
        self.root.join("w")
    }
    pub fn worker(&self, name: &str, generation: u64) -> PathBuf {
        self.workers().join(swarm_model::worker_dir_name(name, generation))
    }
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }
    /// Returns the directory that has a directory for each merge queue.
    pub fn merges(&self) -> PathBuf {
        self.root.join("merge")
    }
    /// Returns the directory that has a directory for each run that is not over.
    pub fn runs(&self) -> PathBuf {
        self.root.join("run")
    }
    /// Returns the directory that has a file for each worktree in which a run was begun.
    pub fn begun(&self) -> PathBuf {
        self.root.join("begun")
    }
    /// Returns the directory that has a directory for each loop, as in the original `swarm`.
    pub fn loops(&self) -> PathBuf {
        self.root.join("ralph")
    }
    /// Returns the directory of the requests of agents to people.
    pub fn asks(&self) -> PathBuf {
        self.root.join("asks")
    }
    /// Returns the directory that has a directory for each running flow.
    pub fn flows(&self) -> PathBuf {
        self.root.join("flow")
    }
    /// Returns the file with the id of the state directory.
    pub fn id(&self) -> PathBuf {
        self.root.join("id")
    }
    /// Returns the directory that has a directory for each host with calls that it has not answered yet.
    pub fn owed(&self) -> PathBuf {
        self.root.join("owed")
    }
    /// Returns the directory for the output of worktree hooks.
    pub fn hooks(&self) -> PathBuf {
        self.root.join("hooks")
    }
    /// Returns the directory that has a file for each nudge, as in the original `swarm`.
    pub fn heartbeats(&self) -> PathBuf {
        self.root.join("heartbeats")
    }
    pub fn heartbeat_lock(&self) -> PathBuf {
        self.root.join("heartbeat.lock")
    }
    /// Returns the path of a worker's log. `kind` is `stdout`, `stderr` or `tmux`.
    pub fn log(&self, name: &str, kind: &str) -> PathBuf {
        self.logs().join(format!("{name}.{kind}.log"))
    }
    pub fn events(&self) -> PathBuf {
        self.root.join("events.jsonl")
    }
    pub fn supervisor_lock(&self) -> PathBuf {
        self.root.join("supervisor.lock")
    }
    /// Returns the path of the file that names the machine whose supervisor serves this directory.
    pub fn supervisor_machine(&self) -> PathBuf {
        self.root.join("supervisor.machine")
    }
    /// Returns the path of the file that lists the boots of machines that a person declared gone.
    pub fn supervisor_gone(&self) -> PathBuf {
        self.root.join("supervisor.gone")
    }
    pub fn supervisor_log(&self) -> PathBuf {
        self.root.join("supervisor.log")
    }

    /// Returns the path of the API socket: in the state directory, or, if that path is too long for a socket, in a
    /// private directory of the user below `/tmp`.
    pub fn socket(&self) -> PathBuf {
        let here = self.root.join("supervisor.sock");
        if here.as_os_str().len() <= Self::SOCKET_PATH_BYTES_MAX {
            return here;
        }
        let user = nix::unistd::getuid();
        PathBuf::from(format!("/tmp/swarm-{user}")).join(format!("{}.sock", self.digest()))
    }

    /// Returns the name of the tmux session for this state directory, as in the original `swarm`.
    pub fn session(&self) -> String {
        format!("swarm-{}", self.digest())
    }

    /// Returns the first eight hex digits of the SHA-256 of the resolved path.
    fn digest(&self) -> String {
        let resolved = self.root.canonicalize().unwrap_or_else(|_| self.root.clone());
        let path: &OsStr = resolved.as_os_str();
        digest(path.as_bytes(), 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_path_has_one_name_before_and_after_it_exists() {
        let dir = tempfile::tempdir().expect("a directory");
        let home = dir.path().canonicalize().expect("there");
        symlink("far/away", home.join("one")).expect("linked");
        symlink(home.join("one"), home.join("two")).expect("linked");
        for (typed, real) in
            [("one/s", "far/away/s"), ("two", "far/away"), ("plain/s", "plain/s"), ("two/a/b", "far/away/a/b")]
        {
            let (typed, real) = (home.join(typed), home.join(real));
            let before = resolve(&typed).expect("resolved");
            assert_eq!(before, real);
            std::fs::create_dir_all(&real).expect("made");
            assert_eq!(resolve(&typed).expect("resolved"), before);
            std::fs::remove_dir_all(home.join(real.strip_prefix(&home).expect("below").iter().next().expect("a part")))
                .expect("removed");
        }
        symlink("loop", home.join("loop")).expect("linked");
        assert!(resolve(&home.join("loop/s")).is_err());
    }
}
