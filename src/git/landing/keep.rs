//! Keeps the work of an attempt for another machine: commits and pins it as work that is to land, without a queue.

use std::path::{Path, PathBuf};

use swarm_model::{RowWorktree, Target};
use swarm_ports::{Completion, Saved};

use super::complete::{Work, exclusive, locks_of, of_worker, sync};
use super::site::CompletionRepo;
use super::with_retries;
use crate::clones::Failure;
use crate::repository::cli::Cli;
use crate::repository::deletion;
use crate::repository::fault::Fault;
use crate::trash::save;
use crate::worktrees::{identity, remove};

/// Work that is pinned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// `None` if there is neither a worktree nor a branch.
    pub tip: Option<String>,
    /// Uncommitted paths that `tip` does not contain.
    pub left_out: Vec<String>,
    /// Why uncommitted work is not in `tip`.
    pub waits: Option<String>,
    /// Commit with all that the worktree has in that case, which is pinned as well: its files, and what is checked out or
    /// being merged there. `None` if `tip` has it all.
    pub also: Option<String>,
}

/// Commits what a worker left in its worktree, and pins the tip. If that cannot be committed as it is, such as an
/// unfinished merge, pins the tip of the branch, and a save of the worktree. Work that was kept before has the same tip.
///
/// # Errors
/// Fails if git or the system fails, which says nothing about the work.
pub fn keep(completion: &Completion) -> Result<Kept, Failure> {
    let Some((worktree, _)) = &completion.worker else { return Ok(Kept::default()) };
    let cli = Cli::new(&completion.caller)?;
    let repo = PathBuf::from(&worktree.base_repo);
    let site = CompletionRepo::open(&cli, &repo);
    let repository = site.common()?;
    let branch = format!("refs/heads/{}", completion.base.as_deref().unwrap_or_default());
    let target = Target { repository, branch };
    let common = Path::new(&target.repository);
    let locks = || locks_of(common, Some(worktree));
    let lock = exclusive(&worktree.path);
    let _alone = lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let done = with_retries(&locks, || of_worker(&cli, completion, worktree, &target));
    let (work, hold, waits, also) = match done {
        Ok((work, hold)) => (work, hold, None, None),
        Err(fault) if fault.is_tool_failure => return Err(fault.into()),
        Err(fault) => {
            let tip = site.tip(&worktree.branch)?.unwrap_or_default();
            let also = saved(&cli, &site, &completion.name, worktree, &tip).unwrap_or_else(|fault| {
                tracing::warn!(tree = worktree.path, cause = fault.cause, "cannot save what an attempt has left");
                None
            });
            (Work { tip, left_out: Vec::new() }, None, Some(fault.cause), also)
        }
    };
    let tip = Some(work.tip).filter(|tip| !tip.is_empty());
    if let Some(tip) = &tip {
        with_retries(&locks, || site.pin(tip))?;
    }
    sync(common).map_err(|refusal| Failure { cause: refusal.cause, passes: true })?;
    drop(hold);
    Ok(Kept { tip, left_out: work.left_out, waits, also })
}

/// Saves a worktree, and pins the save as work. `None` if `tip` has all of it.
fn saved(
    cli: &Cli,
    site: &CompletionRepo<'_>,
    name: &str,
    worktree: &RowWorktree,
    tip: &str,
) -> Result<Option<String>, Fault> {
    let (tree, repo) = (Path::new(&worktree.path), Path::new(&worktree.base_repo));
    let Some(place) = identity::open(cli, tree, repo)? else { return Ok(None) };
    let is_contained = match &place.head {
        Some(head) => !tip.is_empty() && site.contains(tip, head)?,
        None => true,
    };
    if is_contained && remove::in_progress(&place.git_dir).is_none() && save::check(cli, &place)? == 0 {
        return Ok(None);
    }
    let Saved { reference, commit } = save::save(cli, &place, name)?;
    site.pin(&commit)?;
    deletion::delete(cli, &place.common(), &reference, Some(&commit))?;
    Ok(Some(commit))
}
