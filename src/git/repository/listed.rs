//! The worktrees of a repository as git's own records have them, read without git.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::worktrees::{admin, plan};

/// A linked worktree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub path: PathBuf,
    /// Its short name; none when HEAD is detached.
    pub branch: Option<String>,
}

/// # Errors
/// When the repository or its records cannot be read.
pub fn worktrees_of(repo: &Path) -> io::Result<Vec<Listed>> {
    let common = admin::common_dir(repo)?;
    let listed = admin::entries(&common)?
        .into_iter()
        .filter_map(|entry| Some(Listed { path: admin::tree_of(&entry)?, branch: branch_in(&entry) }));
    Ok(listed.collect())
}

/// The branch that a work tree is on; none when HEAD is detached or cannot be read.
pub fn branch_of(tree: &Path) -> Option<String> {
    let git_dir = admin::link_of(tree).ok().flatten().unwrap_or_else(|| tree.join(".git"));
    branch_in(&git_dir)
}

/// Where references are kept in tables, this file names none that there could be.
fn branch_in(git_dir: &Path) -> Option<String> {
    let head = fs::read_to_string(git_dir.join("HEAD")).ok()?;
    head.trim_end().strip_prefix("ref: refs/heads/").filter(|branch| *branch != ".invalid").map(str::to_owned)
}

/// The main work tree of the repository that this work tree is of.
pub fn main_tree(root: &Path) -> Option<PathBuf> {
    admin::checkout_of(&admin::common_dir(root).ok()?).map(Path::to_owned)
}

/// Where worktrees of this repository lie, where nothing else is said.
pub fn default_dir(repo: &Path) -> PathBuf {
    repo.with_file_name(plan::folder_of(repo.file_name().unwrap_or_default()))
}
