//! Finds the worktrees that have the base checked out.

use std::fs;
use std::path::{Path, PathBuf};

use crate::landing::workspace::Workspace;
use crate::repository::fault::Fault;
use crate::repository::parse;
use crate::worktrees::admin;

/// A worktree and its git directory.
pub(crate) type Holder = (PathBuf, PathBuf);

/// Returns the worktrees that have the base checked out, or the reason why it must not be moved
/// now. Anything unreadable is an error: in a worktree that was overlooked, the landing would
/// look as if the user had reverted it.
pub(crate) fn holders_of_base(workspace: &Workspace) -> Result<Result<Vec<Holder>, String>, Fault> {
    let Some(repo) = workspace.library() else { return holders_by_command(workspace).map(Ok) };
    let mut dirs: Vec<Holder> = Vec::new();
    if let Some(tree) = repo.workdir().filter(|_| !repo.is_bare()) {
        if !leads_back(&repo, tree, &workspace.common) {
            let why = format!("the main worktree of {} is not where git looks for it", workspace.common.display());
            return Ok(Err(format!("{why} (run 'git -C {} config core.worktree PATH')", workspace.common.display())));
        }
        dirs.push((tree.to_owned(), workspace.common.clone()));
    }
    for entry in admin::entries(&workspace.common).map_err(Fault::at(&workspace.common))? {
        dirs.extend(admin::known_tree_of(&entry).map_err(Fault::at(&entry))?.map(|tree| (tree, entry)));
    }
    for (tree, git_dir) in &dirs {
        for kind in ["rebase-merge", "rebase-apply"] {
            if says(&git_dir.join(kind).join("head-name"), &workspace.target.branch)? {
                let why = format!("'{}' is being rebased in {}", workspace.target.base(), tree.display());
                return Ok(Err(format!("{why} (finish or abort the rebase, then run 'swarm merge retry')")));
            }
        }
    }
    let head = format!("ref: {}", workspace.target.branch);
    let mut holders = Vec::new();
    for (tree, git_dir) in dirs {
        if says(&git_dir.join("HEAD"), &head)? && tree.try_exists().map_err(Fault::at(&tree))? {
            holders.push((tree, git_dir));
        }
    }
    Ok(Ok(holders))
}

/// Reports whether the directory belongs to this repository according to its `.git` or to
/// `core.worktree`. With `git init --separate-git-dir`, it may belong to it according to neither.
fn leads_back(repo: &git2::Repository, tree: &Path, common: &Path) -> bool {
    // Compared with the common directory only; no git follows it.
    let dot_git = match admin::link_of(tree) {
        Ok(Some(linked)) => linked,
        _ => tree.join(".git"),
    };
    let same = dot_git.canonicalize().is_ok_and(|dot_git| common.canonicalize().is_ok_and(|common| common == dot_git));
    same || repo.config().is_ok_and(|config| config.get_path("core.worktree").is_ok())
}

fn says(path: &Path, text: &str) -> Result<bool, Fault> {
    let said = admin::ignore_missing(fs::read_to_string(path)).map_err(Fault::at(path))?;
    Ok(said.is_some_and(|said| said.trim_end() == text))
}

fn holders_by_command(workspace: &Workspace) -> Result<Vec<Holder>, Fault> {
    let listed = workspace.read().args(["worktree", "list", "--porcelain", "-z"]).run()?;
    let mut holders = Vec::new();
    for worktree in
        parse::worktrees(&listed).into_iter().filter(|tree| tree.branch.as_ref() == Some(&workspace.target.branch))
    {
        let tree = PathBuf::from(&worktree.path);
        if tree.try_exists().map_err(Fault::at(&tree))? {
            // By record: the `.git` file of a linked worktree can be an agent's.
            let entry = admin::entry_of(&workspace.common, &tree).map_err(Fault::at(&tree))?;
            holders.push((tree, entry.unwrap_or_else(|| workspace.common.clone())));
        }
    }
    Ok(holders)
}
