//! Checks that the work in a worktree is on the branch that was recorded for it. An agent may have checked out another
//! branch, which is somebody else's work and must neither land nor get commits.

use std::path::Path;

use super::cli::Cli;
use super::fault::Fault;
use super::objects;
use crate::trash::save::Place;

/// HEAD of a worktree.
struct Head<'a> {
    cli: &'a Cli,
    /// Repository in which commits are looked up.
    repo: &'a Path,
    tree: &'a Path,
    commit: Option<String>,
    /// Full ref name; `None` if HEAD is detached.
    branch: Option<String>,
}

/// Fails unless HEAD of a worktree of `repo`, whose identity is known, is the branch `recorded`, or is detached at a
/// commit that contains the tip of that branch.
pub(crate) fn check_place(cli: &Cli, repo: &Path, place: &Place, recorded: &str) -> Result<(), Fault> {
    let (commit, branch) = (place.head.clone(), place.branch.clone());
    check(&Head { cli, repo, tree: &place.tree, commit, branch }, recorded)
}

/// Fails if the branch that is checked out in a worktree is a symbolic ref: a commit to it would move the branch that it
/// points to, such as the base.
pub(crate) fn check_own(cli: &Cli, place: &Place) -> Result<(), Fault> {
    let Some(branch) = &place.branch else { return Ok(()) };
    let Some(target) = objects::symbolic_target(cli, &place.common(), branch)? else { return Ok(()) };
    let short = |name: &str| name.strip_prefix("refs/heads/").unwrap_or(name).to_owned();
    let cause =
        format!("its branch '{}' is a symbolic ref to '{}', which a commit would move", short(branch), short(&target));
    let (tree, tip) = (place.tree.display(), place.head.as_deref().unwrap_or("COMMIT"));
    let remedy = format!("run 'git -C {tree} update-ref --no-deref {branch} {tip}' to make it a branch of its own");
    Err(Fault { is_mendable: true, ..Fault::new(cause) }.remedy(remedy))
}

fn check(head: &Head<'_>, recorded: &str) -> Result<(), Fault> {
    if !objects::is_branch_name(recorded) {
        // A row of another program may have no branch.
        return Ok(());
    }
    let Some(other) = head.branch.as_deref() else { return check_detached(head, recorded) };
    let other = other.strip_prefix("refs/heads/").unwrap_or(other);
    if other == recorded {
        return Ok(());
    }
    let cause = format!("its worktree has branch '{other}' checked out instead of '{recorded}'");
    Err(Fault { is_mendable: true, ..Fault::new(cause) }.remedy(switch(head.tree, recorded)))
}

fn check_detached(head: &Head<'_>, recorded: &str) -> Result<(), Fault> {
    let Some(commit) = &head.commit else { return Ok(()) };
    let at = commit.get(..12).unwrap_or(commit);
    let cause = match objects::branch_tip(head.cli, head.repo, recorded)? {
        Some(tip) if is_ancestor(head.cli, head.repo, &tip, commit)? => return Ok(()),
        Some(_) => format!("HEAD of its worktree is detached at {at}, which does not contain branch '{recorded}'"),
        None => format!("HEAD of its worktree is detached at {at}, and branch '{recorded}' does not exist"),
    };
    Err(Fault { is_mendable: true, ..Fault::new(cause) }.remedy(switch(head.tree, recorded)))
}

fn is_ancestor(cli: &Cli, at: &Path, one: &str, other: &str) -> Result<bool, Fault> {
    let (code, _) = cli.read(at).args(["merge-base", "--is-ancestor", one, other]).run_for(&[0, 1])?;
    Ok(code == 0)
}

fn switch(tree: &Path, recorded: &str) -> String {
    format!("run 'git -C {} switch {recorded}' and bring the work there", tree.display())
}
