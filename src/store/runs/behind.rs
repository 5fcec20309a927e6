//! An attempt that continues on a branch without the work of the jobs after which it comes: that work was done anew, or landed
//! late, after the branch was made.

use std::path::{Path, PathBuf};

use swarm_git::repository::{branch_tip, contains};
use swarm_model::Caller;
use swarm_model::run::progress::Now;
use swarm_model::run::words::Word;
use swarm_sys::clock::wall_ms;
use swarm_sys::paths::Paths;

use super::events;
use super::home::Home;
use crate::tenants::remove_without_work;

/// Commits of the base that are missing in the branch of a job, and whether the branch was removed for that reason.
pub struct Behind {
    /// Jobs whose work is missing.
    after: Vec<String>,
    base: String,
    /// Worktree in which the attempt continues without that work. `None`: branch and worktree had no work and are removed, so
    /// that the attempt makes them from the base as it is now.
    worktree: Option<PathBuf>,
}

impl Behind {
    /// Appends to a prompt what the agent has to know about the missing work.
    pub fn told_after(&self, prompt: &str) -> String {
        let (after, base) = (named(&self.after), &self.base);
        let what = match &self.worktree {
            Some(_) => format!(
                "Your worktree does not have the work of {after} yet, on which this task builds: it has landed on {base} \
                 since. Run 'git merge {base}' first, and check what it changes for your work."
            ),
            None => format!(
                "Your worktree was made anew from {base}, which now has the work of {after}, on which this task builds. \
                 Nothing that an earlier attempt left is in it."
            ),
        };
        format!("{}\n\n{what}\n", prompt.trim_end())
    }
}

/// Removes worktree and branch of a job that do not have all work of the jobs after which it comes, if they have no work of
/// their own, and reports that. `None` if nothing is missing.
pub fn renewed(now: &Now, caller: &Caller, paths: &Paths) -> Option<Behind> {
    let (plan, job) = (&*now.plan, now.job());
    // The branch of a job that has not begun is somebody else's.
    if now.landed.is_empty() || !now.has_begun() {
        return None;
    }
    let (branch, base, root) = (job.branch.as_ref()?, plan.base.as_ref()?, Path::new(&plan.root));
    let tip = branch_tip(root, branch, caller).ok()??;
    // What the base no longer has cannot be brought along.
    let is_missing = |commit: &str| !contains(root, branch, commit, caller) && contains(root, base, commit, caller);
    let missing = now.landed.iter().filter(|(_, commit)| is_missing(commit));
    let after: Vec<String> = missing.map(|(id, _)| id.clone()).collect();
    if after.is_empty() {
        return None;
    }
    let tree = Home::new(&plan.home).worktrees().join(job.leaf());
    let is_anew = contains(root, base, &tip, caller)
        && remove_without_work(job.leaf(), &tree, root, (branch.as_str(), base.as_str()), paths, caller);
    let behind = Behind { after, base: base.clone(), worktree: (!is_anew).then_some(tree) };
    tell(now, &behind);
    Some(behind)
}

fn tell(now: &Now, behind: &Behind) {
    let word = Word::Behind {
        attempt: now.progress.attempt,
        after: behind.after.clone(),
        base: behind.base.clone(),
        worktree: behind.worktree.as_ref().map(|tree| tree.to_string_lossy().into_owned()),
    };
    let line = events::line(&now.plan.id, &now.job().id, wall_ms(), word);
    let told = line.and_then(|line| events::report(&Home::new(&now.plan.home).events(), &line));
    if let Err(error) = told {
        tracing::warn!(home = %now.plan.home, %error, "cannot report what a branch does not have");
    }
}

fn named(ids: &[String]) -> String {
    ids.iter().map(|id| format!("'{id}'")).collect::<Vec<_>>().join(", ")
}
