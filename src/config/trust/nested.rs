//! Directories below the root of a repository that have a folder `.claude` of their own. `claude` loads skills and
//! commands from those that it works in.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Name of the folder.
pub(super) const FOLDER: &str = ".claude";
/// Directories that are not searched. `claude` loads nothing from what git ignores; of that, only these are known here.
const NOT_SEARCHED: [&str; 3] = [".git", "node_modules", FOLDER];
/// Beginning of the file `.git` of a worktree or submodule.
const LINK: &str = "gitdir:";
/// Directory of git with the records of worktrees.
const WORKTREES: &str = "/worktrees/";

/// Returns the directories below `root`, relative to it and sorted. Worktrees are left out: each is a root of its own.
/// Symbolic links to directories are not followed, so that the search ends.
///
/// # Errors
/// Fails if a directory cannot be read for another reason than its permissions, or its name is not UTF-8.
pub(super) fn dirs(root: &Path) -> Result<Vec<String>, String> {
    let (mut found, mut waiting) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(dir) = waiting.pop() {
        let path = root.join(&dir);
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let listed = match fs::read_dir(&path) {
            // The agent runs as the same user.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => continue,
            listed => listed.map_err(failed)?,
        };
        for file in listed {
            let file = file.map_err(failed)?;
            let name = file.file_name();
            if name == FOLDER && !dir.as_os_str().is_empty() {
                let Some(dir) = dir.to_str() else { return Err(format!("{}: name is not UTF-8", path.display())) };
                found.push(dir.to_owned());
            }
            let below = || dir.join(&name);
            if file.file_type().map_err(failed)?.is_dir()
                && NOT_SEARCHED.iter().all(|skipped| name != *skipped)
                && !is_worktree(&root.join(below()))
            {
                waiting.push(below());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn is_worktree(dir: &Path) -> bool {
    let link = dir.join(".git");
    let is_file = fs::symlink_metadata(&link).is_ok_and(|meta| meta.is_file());
    let text = if is_file { super::super::file::read(&link).ok().flatten() } else { None };
    text.is_some_and(|text| text.starts_with(LINK) && text.contains(WORKTREES))
}
