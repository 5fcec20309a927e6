//! Commits in the worktree of a role. `git commit` and `git merge` would read the settings of the record, and append to its
//! log, while a process that the agent left can replace both.

use std::fs;
use std::path::Path;

use super::Git;
use crate::repository::durable::sync_file_systems;
use crate::repository::fault::Fault;
use crate::worktrees::{admin, moved, record};

/// Files of a merge, a cherry-pick or a revert that a commit ends.
const UNDER_WAY: [&str; 8] = [
    "MERGE_HEAD",
    "MERGE_MODE",
    "MERGE_MSG",
    "MERGE_RR",
    "SQUASH_MSG",
    "AUTO_MERGE",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
];

/// Commits the index, and ends a merge with that. The state of the merge goes last: after a kill, the next commit ends it.
pub(super) fn commit(git: &Git, message: &str) -> Result<(), Fault> {
    let head = git.head()?;
    let file = git.place.git_dir.join("MERGE_HEAD");
    let merged = admin::ignore_missing(record::read_text(&file)).map_err(Fault::at(&file))?.unwrap_or_default();
    let merged: Vec<&str> = merged.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // A word with other characters could be an option of git.
    if let Some(odd) = merged.iter().find(|line| !line.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        return Err(Fault::new(format!("{} has a line that is no commit: {odd}", file.display())));
    }
    let tree = git.write().arg("write-tree").line()?;
    let parents = std::iter::once(head.as_str()).chain(merged.iter().copied()).flat_map(|parent| ["-p", parent]);
    let call = git.write().args(["-c", "commit.gpgSign=false", "commit-tree", "-m", message]);
    let made = call.args(parents).arg(tree).line()?;
    let kind = if merged.is_empty() { "commit" } else { "commit (merge)" };
    let subject = message.lines().next().unwrap_or_default();
    move_to(git, [&head, &made], &format!("{kind}: {subject}"))?;
    forget_merge(&git.place.git_dir)
}

/// Moves the branch of the role, or a detached HEAD, from one commit to another.
pub(super) fn move_to(git: &Git, from_to: [&str; 2], why: &str) -> Result<(), Fault> {
    // A power cut could otherwise take the commit, or the files, from under the branch.
    sync_file_systems([git.place.tree.as_path(), git.place.common.as_path()])?;
    match &git.place.branch {
        Some(branch) => moved::move_branch(&git.cli, &git.place, branch, from_to, why),
        None => moved::move_head(&git.cli, &git.place, from_to, why),
    }
}

/// Removes the state of a merge.
pub(super) fn forget_merge(git_dir: &Path) -> Result<(), Fault> {
    for name in UNDER_WAY {
        let file = git_dir.join(name);
        admin::ignore_missing(fs::remove_file(&file)).map_err(Fault::at(&file))?;
    }
    Ok(())
}
