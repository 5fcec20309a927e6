//! Keeps the work of an attempt for another machine: commits and pins it as work that is to land, without a queue.

use std::path::{Path, PathBuf};

use swarm_model::Target;
use swarm_ports::Completion;

use super::complete::{Work, locks_of, of_worker, sync};
use super::site::CompletionRepo;
use super::with_retries;
use crate::clones::Failure;
use crate::repository::cli::Cli;

/// Work that is pinned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// `None` if there is neither a worktree nor a branch.
    pub tip: Option<String>,
    /// Uncommitted paths that `tip` does not contain.
    pub left_out: Vec<String>,
    /// Why uncommitted work is not in `tip`.
    pub waits: Option<String>,
}

/// Commits what a worker left in its worktree, and pins the tip. If that cannot be committed as it is, such as an
/// unfinished merge, pins the tip of the branch. Work that was kept before has the same tip.
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
    let done = with_retries(&locks, || of_worker(&cli, completion, worktree, &target));
    let (work, hold, waits) = match done {
        Ok((work, hold)) => (work, hold, None),
        Err(fault) if fault.is_tool_failure => return Err(fault.into()),
        Err(fault) => {
            let tip = site.tip(&worktree.branch)?;
            (Work { tip: tip.unwrap_or_default(), left_out: Vec::new() }, None, Some(fault.cause))
        }
    };
    if work.tip.is_empty() {
        return Ok(Kept { waits, ..Kept::default() });
    }
    with_retries(&locks, || site.pin(&work.tip))?;
    sync(common).map_err(|refusal| Failure { cause: refusal.cause, passes: true })?;
    drop(hold);
    Ok(Kept { tip: Some(work.tip), left_out: work.left_out, waits })
}
