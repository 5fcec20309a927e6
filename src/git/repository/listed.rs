//! The worktrees of a repository as git's administrative files list them, read without running git.

use std::io;
use std::path::{Path, PathBuf};

use crate::worktrees::{admin, plan, record};

/// A linked worktree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub path: PathBuf,
    /// Short branch name; `None` if HEAD is detached.
    pub branch: Option<String>,
}

/// Lists the linked worktrees of a repository.
///
/// # Errors
/// Fails if the repository or its administrative files cannot be read.
pub fn worktrees_of(repo: &Path) -> io::Result<Vec<Listed>> {
    let common = admin::common_dir(repo)?;
    let listed = admin::entries(&common)?
        .into_iter()
        .filter_map(|entry| Some(Listed { path: admin::tree_of(&entry)?, branch: branch_in(&entry) }));
    Ok(listed.collect())
}

/// Reads the branch from `HEAD`. With reftable that file names `.invalid`, which yields `None`.
fn branch_in(git_dir: &Path) -> Option<String> {
    let head = String::from_utf8(record::read_linked(&git_dir.join("HEAD")).ok()?).ok()?;
    head.trim_end().strip_prefix("ref: refs/heads/").filter(|branch| *branch != ".invalid").map(str::to_owned)
}

/// Returns the main worktree of the repository that the worktree `root` belongs to.
pub fn main_tree(root: &Path) -> Option<PathBuf> {
    admin::checkout_of(&admin::common_dir(root).ok()?).map(Path::to_owned)
}

/// Returns the directory in which worktrees of `repo` are created by default.
pub fn default_dir(repo: &Path) -> PathBuf {
    repo.with_file_name(plan::folder_of(repo.file_name().unwrap_or_default()))
}
