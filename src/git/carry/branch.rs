//! The branch of a job here, which follows the work on another machine.

use std::path::Path;

use swarm_model::Caller;

use super::is_commit_id;
use crate::landing::complete::pinned;
use crate::repository::cli::Cli;
use crate::repository::durable::sync_file_systems;
use crate::repository::fault::Fault;
use crate::repository::plain_ref::{self, Before, Entry};
use crate::repository::{objects, parse};
use crate::worktrees::record;

/// Move of a branch to work that was fetched.
#[derive(Clone, Copy, Debug)]
pub struct Move<'a> {
    pub branch: &'a str,
    /// Commit that is pinned here.
    pub tip: &'a str,
    /// Message for the reflog.
    pub why: &'a str,
}

/// Moves a branch forward to work that was fetched, or creates it. Does nothing if it contains that work already.
///
/// # Errors
/// Returns a message if the branch has commits that the work does not contain, or is checked out somewhere, or if git fails.
pub fn take(common: &Path, to_move: Move<'_>, caller: &Caller) -> Result<(), String> {
    taken(common, to_move, caller).map_err(|fault| match fault.remedy {
        Some(remedy) => format!("{} ({remedy})", fault.cause),
        None => fault.cause,
    })
}

fn taken(common: &Path, Move { branch, tip, why }: Move<'_>, caller: &Caller) -> Result<(), Fault> {
    if !objects::is_branch_name(branch) || !is_commit_id(tip) {
        return Err(Fault::new(format!("branch '{branch}' cannot be moved to '{tip}'")));
    }
    let cli = Cli::new(caller)?;
    let old = objects::branch_tip(&cli, common, branch)?;
    let contains = |whole: &str, part: &str| {
        let asked = cli.read(common).args(["merge-base", "--is-ancestor", part, whole]).run_for(&[0, 1]);
        asked.map(|(code, _)| code == 0)
    };
    // Somebody has gone on from there.
    if let Some(old) = &old
        && contains(old, tip)?
    {
        return sync_file_systems([common]);
    }
    let full = format!("refs/heads/{branch}");
    record::check_reference(common, &full)?;
    if let Some(target) = objects::symbolic_target(&cli, common, &full)? {
        return Err(Fault::new(format!("branch '{branch}' is a symbolic ref to {target}, which must not move")));
    }
    let listed = parse::worktrees(&cli.read(common).args(["worktree", "list", "--porcelain", "-z"]).run()?);
    if let Some(holder) = listed.iter().find(|one| one.branch.as_deref() == Some(&full)) {
        let cause = format!("branch '{branch}' is checked out at {}", holder.path);
        return Err(Fault::new(cause).remedy(format!("run 'git merge {}' there", pinned(tip))));
    }
    if let Some(old) = &old
        && !contains(tip, old)?
    {
        let cause = format!("branch '{branch}' has commits that its work on the host does not contain");
        let remedy = format!("merge {} into it, or rename it with 'git branch -m'", pinned(tip));
        return Err(Fault::new(cause).remedy(remedy));
    }
    let before = old.as_deref().map_or(Before::Absent, Before::Is);
    plain_ref::write(&cli, common, (&full, tip), before, Entry { why, makes: true })?;
    sync_file_systems([common])
}
