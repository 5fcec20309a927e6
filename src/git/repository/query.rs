//! Queries on a repository for the command line verbs.

use std::path::Path;
use std::time::Duration;

use swarm_model::Caller;
use swarm_ports::DroppedBranch;

use super::cli::Cli;
use super::fault::{CliError, Fault};
use super::{deletion, objects, parse, version};
use crate::worktrees::identity;

/// Limit of the questions of [`lines`] and [`lines_in`].
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Runs git in `dir` and returns its output by lines, or `None` if it fails or takes over 10 s. git discovers the
/// repository: `dir` must be the user's own, not a worktree of an agent.
pub fn lines(dir: &Path, words: &[&str], caller: &Caller) -> Option<Vec<String>> {
    let said = Cli::new(caller).ok()?.read(dir).args(words).limit(ANSWER_MAX).run().ok()?;
    Some(String::from_utf8_lossy(&said).lines().map(str::to_owned).collect())
}

/// Runs git in a worktree of `base_repo`, in which an agent may have written anything, and returns its output by lines.
/// `None` if `tree` is not that worktree, or if git fails or takes over 10 s.
pub fn lines_in(tree: &Path, base_repo: &Path, words: &[&str], caller: &Caller) -> Option<Vec<String>> {
    let cli = Cli::new(caller).ok()?;
    let place = identity::open(&cli, tree, base_repo).ok()??;
    let said = place.call(cli.read(tree)).args(words).limit(ANSWER_MAX).run().ok()?;
    Some(String::from_utf8_lossy(&said).lines().map(str::to_owned).collect())
}

/// Returns the content of a file in a commit. `None` if the commit has no such file, or if git fails or takes over 10 s.
pub fn content_in(root: &Path, commit: &str, path: &str, caller: &Caller) -> Option<Vec<u8>> {
    let object = format!("{commit}:{path}");
    Cli::new(caller).ok()?.read(root).args(["cat-file", "blob", &object]).limit(ANSWER_MAX).run().ok()
}

/// Reports whether git accepts `branch` as a branch name.
pub fn is_branch_name(branch: &str) -> bool {
    objects::is_branch_name(branch)
}

/// Reports whether a branch exists; `false` if git cannot tell.
pub fn has_branch(root: &Path, branch: &str, caller: &Caller) -> bool {
    let tip = Cli::new(caller).and_then(|cli| objects::branch_tip(&cli, root, branch));
    tip.is_ok_and(|tip| tip.is_some())
}

/// Returns the commit of a branch; `None` if there is no such branch.
///
/// # Errors
/// Returns a message if git cannot tell.
pub fn branch_tip(root: &Path, branch: &str, caller: &Caller) -> Result<Option<String>, String> {
    let tip = Cli::new(caller).and_then(|cli| objects::branch_tip(&cli, root, branch));
    tip.map_err(|error| Fault::from(error).cause)
}

/// Reports whether a branch contains a commit; `false` if git cannot tell.
pub fn contains(root: &Path, branch: &str, commit: &str, caller: &Caller) -> bool {
    Cli::new(caller).and_then(|cli| is_merged_into(&cli, root, branch, commit)).unwrap_or(false)
}

fn is_merged_into(cli: &Cli, root: &Path, branch: &str, commit: &str) -> Result<bool, CliError> {
    let branch = format!("refs/heads/{branch}");
    let (code, _) = cli.read(root).args(["merge-base", "--is-ancestor", commit, &branch]).run_for(&[0, 1])?;
    Ok(code == 0)
}

/// Deletes a branch as [`drop_landed_branch`] does. Returns whether it was deleted.
///
/// # Errors
/// Returns a message if git cannot tell; the branch still exists then.
pub fn remove_landed_branch(root: &Path, branch: &str, base: &str, caller: &Caller) -> Result<bool, String> {
    drop_landed_branch(root, branch, base, caller).map(|dropped| dropped.is_deleted)
}

/// Deletes a branch that is fully merged into `base`, unless it is checked out somewhere or moves at the same time.
/// Commits that only its reflog has are saved first. The base itself is never deleted.
///
/// # Errors
/// Returns a message if git cannot tell; the branch still exists then.
pub fn drop_landed_branch(root: &Path, branch: &str, base: &str, caller: &Caller) -> Result<DroppedBranch, String> {
    if branch == base {
        return Ok(DroppedBranch::default());
    }
    if let Ok(is_deleted) = objects::remove_merged_branch(root, branch, base) {
        return Ok(DroppedBranch { is_deleted, saved: None });
    }
    drop_by_command(root, branch, base, caller).map_err(|fault| fault.cause)
}

pub(crate) fn drop_by_command(root: &Path, branch: &str, base: &str, caller: &Caller) -> Result<DroppedBranch, Fault> {
    let cli = Cli::new(caller)?;
    let Some(tip) = objects::branch_tip(&cli, root, branch)? else { return Ok(DroppedBranch::default()) };
    let is_landed = is_merged_into(&cli, root, base, &tip)?;
    let full = format!("refs/heads/{branch}");
    let listed = parse::worktrees(&cli.read(root).args(["worktree", "list", "--porcelain", "-z"]).run()?);
    if !is_landed || listed.iter().any(|one| one.branch.as_deref() == Some(&full)) {
        return Ok(DroppedBranch::default());
    }
    let common = objects::common_dir(&cli, root)?;
    let saved = deletion::delete(&cli, Path::new(&common), &full, Some(&tip))?;
    Ok(DroppedBranch { is_deleted: true, saved })
}

/// Checks that git is installed, responds and is new enough.
///
/// # Errors
/// Returns the problem and the remedy.
pub fn is_usable(caller: &Caller) -> Result<(), (String, Option<String>)> {
    let describe = |error: CliError| (error.to_string(), error.remedy());
    Cli::new(caller).and_then(|cli| version::check(&cli)).map_err(describe)
}

/// Returns the common directory of the repository around the caller's working directory.
pub fn common_dir(caller: &Caller) -> Option<String> {
    let cli = Cli::new(caller).ok()?;
    objects::common_dir(&cli, Path::new(&caller.cwd)).ok()
}
