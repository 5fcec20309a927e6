//! Finds the commit of the base from which a worker's branch started. A base that no longer contains it was rewritten,
//! and landing the branch would bring back what somebody removed.
//!
//! A worker that continues an existing branch has the base of its own start on record, which may be newer than the
//! branch. The reflog of the branch names the commit at which it was created, and the reflog of the base proves that
//! this commit was on the base.

use swarm_model::{BaseRef, Target};
use swarm_ports::Completion;

use super::site::CompletionRepo;
use crate::repository::fault::Fault;

/// Maximum number of entries of the base's reflog that are searched for a commit that was only below the base's tip.
const ENTRIES_MAX: usize = 200;

/// Returns the commit of the base that `tip` contains and that must still be on the base when it lands. `None` if the
/// worker started from another branch or commit, or if its work was rebased since.
pub(crate) fn fork(
    site: &CompletionRepo<'_>,
    target: &Target,
    completion: &Completion,
    tip: &str,
) -> Result<Option<String>, Fault> {
    let Some((worktree, base)) = &completion.worker else { return Ok(None) };
    let recorded = base.as_ref().and_then(|BaseRef { branch, commit }| {
        let is_base = branch.as_deref() == Some(target.base());
        is_base.then(|| commit.clone())
    });
    let now = site.tip(target.base())?;
    let Some(now) = now.filter(|_| !tip.is_empty()) else { return Ok(recorded) };
    let created = site.reflog(&format!("refs/heads/{}", worktree.branch))?.pop();
    let mut known = None;
    for (commit, is_certain) in [(recorded, true), (created, false)] {
        let Some(commit) = commit else { continue };
        if !site.contains(tip, &commit)? {
            continue;
        }
        if site.contains(&now, &commit)? {
            known.get_or_insert(commit);
        } else if is_certain || was_on(site, &target.branch, &commit)? {
            return Ok(Some(commit));
        }
    }
    Ok(known)
}

/// Reports whether a branch certainly started on the branch that is checked out: at a commit of it, and not at one that
/// came there with a merge.
pub(crate) fn is_from_head(site: &CompletionRepo<'_>, branch: &str) -> Result<bool, Fault> {
    let created = site.reflog(&format!("refs/heads/{branch}"))?.pop();
    let head = site.head().map(|head| site.tip(&head)).transpose()?.flatten();
    match (created, head) {
        (Some(created), Some(head)) => site.is_on_line(&head, &created),
        _ => Ok(false),
    }
}

/// Reports whether a branch has contained the commit, by its reflog.
fn was_on(site: &CompletionRepo<'_>, branch: &str, commit: &str) -> Result<bool, Fault> {
    let entries = site.reflog(branch)?;
    if entries.iter().any(|entry| entry == commit) {
        return Ok(true);
    }
    // Commits in a reflog may have been pruned.
    Ok(entries.iter().take(ENTRIES_MAX).any(|entry| site.contains(entry, commit).unwrap_or_default()))
}
