//! The project that a directory belongs to. All worktrees of a repository are one project.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum size of a `.git` file or of `commondir`, in bytes.
const LINK_BYTES_MAX: u64 = 1 << 16;

/// Project that a person trusts or not: a repository, or a folder outside of any repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// Real path of git's common directory, or of the folder.
    pub key: String,
}

impl Project {
    /// Returns the project whose `swarm.toml` is in `root`.
    ///
    /// # Errors
    /// Fails if `root` does not exist or its `.git` cannot be read.
    pub fn of(root: &Path) -> io::Result<Self> {
        let git = root.join(".git");
        let place = match fs::metadata(&git) {
            Ok(meta) if meta.is_file() => common_of(root, &git, meta.len())?,
            Ok(_) => git,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                root.to_owned()
            }
            Err(error) => return Err(error),
        };
        let place = place.canonicalize()?;
        let key = match place.to_str() {
            Some(text) => text.to_owned(),
            None => place.as_os_str().as_encoded_bytes().escape_ascii().to_string(),
        };
        Ok(Self { key })
    }

    /// Returns the path to show: that of the main worktree.
    pub fn shown(&self) -> &str {
        shown(&self.key)
    }
}

impl Project {
    /// Returns the path to show, with which `swarm trust` finds the project: that of the main worktree, or `root` if the
    /// repository is bare, a submodule, or has its git directory elsewhere.
    pub fn named(&self, root: &Path) -> String {
        let shown = self.shown();
        if shown == self.key { root.display().to_string() } else { shown.to_owned() }
    }
}

/// Returns the path to show for the key of a project.
pub fn shown(key: &str) -> &str {
    key.strip_suffix("/.git").filter(|root| !root.is_empty()).unwrap_or(key)
}

/// Returns the common directory that the `.git` file of a linked worktree or of a submodule leads to.
fn common_of(root: &Path, git: &Path, bytes: u64) -> io::Result<PathBuf> {
    let Some(git_dir) = linked(root, git, bytes)? else { return Ok(root.to_owned()) };
    match fs::read_to_string(git_dir.join("commondir")) {
        Ok(common) => Ok(git_dir.join(common.trim_end_matches(['\n', '\r']))),
        Err(error) if error.kind() == io::ErrorKind::NotFound && git_dir.is_dir() => Ok(git_dir),
        // A link to nowhere: only the folder itself can be meant.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(root.to_owned()),
        Err(error) => Err(error),
    }
}

/// Returns the directory that the file `git` of the checkout `root` names; `None` if it names none.
fn linked(root: &Path, git: &Path, bytes: u64) -> io::Result<Option<PathBuf>> {
    if bytes > LINK_BYTES_MAX {
        return Err(io::Error::other(format!("{} is larger than {LINK_BYTES_MAX} bytes", git.display())));
    }
    let text = fs::read_to_string(git)?;
    Ok(text.strip_prefix("gitdir: ").map(|link| root.join(link.trim_end_matches(['\n', '\r']))))
}

/// Returns the directory with git's files of the checkout at `root`, which need not exist; `None` if `.git` cannot be read
/// or is none.
pub(super) fn git_dir_of(root: &Path) -> Option<PathBuf> {
    let git = root.join(".git");
    let meta = fs::metadata(&git).ok()?;
    if meta.is_file() { linked(root, &git, meta.len()).ok()? } else { meta.is_dir().then_some(git) }
}

/// Returns the directory whose `swarm.toml` applies in `dir`.
pub fn root_of(dir: &Path) -> &Path {
    let has = |name: &str| dir.join(name).symlink_metadata().is_ok();
    if has(".git") || has(crate::FILE) { dir } else { crate::root_above(dir).unwrap_or(dir) }
}
