//! The branch on which a worktree is restored.

use std::path::Path;

use super::restore::RestoreRequest;
use super::saved::Save;
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::repository::{objects, parse};
use crate::worktrees::plan;

/// Branch on which the worktree is restored.
pub(super) struct BranchChoice {
    pub(super) branch: Option<String>,
    /// Whether the branch has to be created.
    pub(super) create: bool,
    pub(super) notes: Vec<String>,
}

/// Chooses the original branch, the requested new one, or a detached HEAD with a note why.
pub(super) fn choose_branch(
    cli: &Cli,
    common: &Path,
    save: &Save,
    request: &RestoreRequest,
) -> Result<BranchChoice, Fault> {
    let detached =
        |note: Option<String>| BranchChoice { branch: None, create: false, notes: note.into_iter().collect() };
    if let Some(new) = &request.branch {
        if !objects::is_branch_name(new) {
            return Err(Fault::new(format!("'{new}' is not a valid branch name")));
        }
        let (branch, tip) = (format!("refs/heads/{new}"), objects::branch_tip(cli, common, new)?);
        if tip.is_some() && !(tip == save.head && is_left(cli, common, save, &branch)?) {
            return Err(Fault::new(format!("a branch named '{new}' already exists")).remedy("choose another name"));
        }
        let create = tip.is_none() && save.head.is_some();
        return Ok(BranchChoice { branch: Some(branch), create, notes: Vec::new() });
    }
    let Some(full) = &save.branch else { return Ok(detached(None)) };
    let short = full.strip_prefix("refs/heads/").unwrap_or(full);
    let tip = objects::branch_tip(cli, common, short)?;
    if let Some(holder) = holder(cli, common, full)? {
        let note = format!("branch '{short}' is checked out at {holder}, so HEAD is detached");
        return Ok(detached(Some(note)));
    }
    let is_same = tip.is_none() || tip == save.head;
    if !is_same {
        let tip = tip.unwrap_or_default();
        let note = format!("branch '{short}' is now at {}, so HEAD is detached", plan::short(&tip));
        return Ok(detached(Some(note)));
    }
    Ok(BranchChoice { branch: Some(full.clone()), create: tip.is_none() && save.head.is_some(), notes: Vec::new() })
}

/// Returns the path of the worktree that has a branch checked out.
fn holder(cli: &Cli, common: &Path, branch: &str) -> Result<Option<String>, Fault> {
    let listed = parse::worktrees(&cli.read(common).args(["worktree", "list", "--porcelain", "-z"]).run()?);
    Ok(listed.into_iter().find(|one| one.branch.as_deref() == Some(branch)).map(|one| one.path))
}

/// Reports whether a branch is as a restore of the save made it, by its reflog, and no worktree uses it.
fn is_left(cli: &Cli, common: &Path, save: &Save, branch: &str) -> Result<bool, Fault> {
    let log = cli.read(common).args(["reflog", "show", "--format=%gs", "--max-count=2", branch, "--"]).line_if_any()?;
    Ok(log == Some(created(save)) && holder(cli, common, branch)?.is_none())
}

/// Returns the reflog's message of a branch that a restore of the save makes.
pub(super) fn created(save: &Save) -> String {
    format!("swarm: restored {}/{}", save.name, save.stamp)
}
