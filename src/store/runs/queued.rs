//! What git says of a run's work in the merge queue.

use std::path::Path;

use swarm_git::landing::{changed, is_queue_of};
use swarm_git::repository::{branch_tip, common_dir, contains};
use swarm_model::merge::queue::{Item, Rules};
use swarm_model::run::progress::Now;
use swarm_model::{Caller, RowWorktree, Target};

use super::home::Home;

/// Reports whether the base contains the work of the job that conflicted last. The branch itself says nothing: a person
/// or an agent may have reset it to the base, or deleted it.
pub fn has_landed(now: &Now, caller: &Caller) -> bool {
    let (Some(base), Some(tip)) = (&now.plan.base, &now.progress.conflict_tip) else { return false };
    now.progress.conflicted && contains(Path::new(&now.plan.root), base, tip, caller)
}

/// Reports whether the branch of the job has commits that are not on the base, or git cannot tell.
pub fn has_work(now: &Now, caller: &Caller) -> bool {
    let (Some(branch), Some(base)) = (&now.job().branch, &now.plan.base) else { return false };
    let root = Path::new(&now.plan.root);
    let tip = branch_tip(root, branch, caller);
    tip.map_or(true, |tip| tip.is_some_and(|tip| !contains(root, base, &tip, caller)))
}

/// Reports whether an item is of the run's repository and base, and on the base if it has landed. Its key proves neither:
/// a run in a copy of the repository may have made the same one, and the base may have been reset since.
pub fn is_own(now: &Now, target: &Target, item: &Item, caller: &Caller) -> bool {
    let root = Path::new(&now.plan.root);
    is_queue_of(root, now.plan.base.as_deref(), target, caller)
        && item.state.commit().is_none_or(|commit| contains(root, target.base(), commit, caller))
}

/// Returns the rules by which the run would add the work of this item now, if they are not those of the item.
pub fn changed_rules(now: &Now, item: &Item, caller: &Caller) -> Option<Rules> {
    let common = common_dir(&Caller { cwd: now.plan.root.clone(), ..caller.clone() });
    let common = common.as_deref().map(Path::new);
    // The queue reads them there, too.
    let main = common.filter(|common| common.ends_with(".git")).and_then(Path::parent);
    changed(&item.rules, main.unwrap_or(Path::new(&now.plan.root)), &now.plan.settings_of(now.job()))
}

/// Returns the worktree of a job that has begun, if its directory or its branch is there, or git cannot tell. The branch has
/// the work of a clean worktree that was removed.
pub fn place(now: &Now, caller: &Caller) -> Option<RowWorktree> {
    let branch = now.job().branch.clone().filter(|_| now.has_begun())?;
    let path = Home::new(&now.plan.home).worktrees().join(now.job().leaf());
    if !path.is_dir() && branch_tip(Path::new(&now.plan.root), &branch, caller) == Ok(None) {
        return None;
    }
    Some(RowWorktree { path: path.to_string_lossy().into_owned(), branch, base_repo: now.plan.root.clone() })
}
