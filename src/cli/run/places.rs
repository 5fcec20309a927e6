//! Branches and worktrees of a job file's jobs. A job works on `arial/FILE-ID/NAME`, which no other run uses. A job that
//! starts over gets a branch without any earlier work: what an earlier attempt left is removed if it is nothing, and
//! otherwise stays, and the job gets `arial/FILE-ID/NAME-2`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use swarm_model::run::beginning::Beginning;
use swarm_model::run::plan::{Plan, branches_of_file};
use swarm_model::run::worker_name;
use swarm_model::{Caller, Refusal, RefusalKind};
use swarm_store::repositories::{branch_tip, lines, remove_landed_branch, remove_worktree_if_clean};
use swarm_store::runs::home::Home;
use swarm_store::runs::journal;
use swarm_store::views::{Detail, Pick, load_where};
use swarm_sys::paths::Paths;

use super::{plan, tidy};
use crate::cli::error::Failure;
use crate::cli::screen::Screen;

/// Number of places with earlier work that a note names.
const NAMED_MAX: usize = 5;

/// Chooses the branch of each job of a job file, and removes what earlier attempts left of jobs that start over, unless it
/// is work; a note names that. Does nothing while a run is in progress.
///
/// # Errors
/// Fails if git cannot list the branches, or the supervisor cannot be reached.
pub fn choose(
    plan: &mut Plan,
    retry_failed: bool,
    caller: &Caller,
    paths: &Paths,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let (None, Some(base)) = (&plan.specs, plan.base.clone()) else { return Ok(()) };
    let home = Home::new(&plan.home);
    let Ok(_lock) = plan::alone(&home, paths) else { return Ok(()) };
    let earlier = journal::replay(&home).ok().flatten();
    let beginning = Beginning::new(plan, earlier.as_ref(), retry_failed);
    let root = Path::new(&plan.root);
    let branches = branches_of_file(&plan.slug);
    let Some(leaves) = leaves(root, &plan.slug, caller) else {
        return Err(Refusal::new(RefusalKind::Tool, format!("cannot list the branches of {}", plan.root)).into());
    };
    let workers: Vec<String> = plan.jobs.iter().map(|job| worker_name(&plan.slug, &job.id)).collect();
    let named: Vec<&str> = workers.iter().map(String::as_str).collect();
    let registry = load_where(paths, Detail::Word, Pick::Named(&named))?;
    let running = registry.workers.iter().filter(|view| view.state.is_running());
    let running = running.map(|view| view.row.name.clone()).collect();
    let places = Places { root, base: &base, home: &home, branches: &branches, leaves, running, caller, paths };
    let ids: BTreeSet<String> = plan.jobs.iter().map(|job| job.id.clone()).collect();
    for job in plan.jobs.iter_mut().filter(|job| job.branch.is_some()) {
        if let Some(branch) = beginning.branch(job) {
            job.branch = Some(branch.to_owned());
            continue;
        }
        let worker = worker_name(&plan.slug, &job.id);
        let mut left = Left::default();
        if let Some((before, progress)) = beginning.earlier(&job.id)
            && let Some(begun) = progress.begun.as_ref().filter(|begun| Some(&begun.branch) == before.branch.as_ref())
            && !begun.branch.starts_with(&branches)
        {
            // An older program has chosen the name.
            places.vacate(before.leaf(), &begun.branch, &worker, &mut left);
        }
        let leaf = places.free(&job.id, &ids, &worker, &mut left);
        let branch = format!("{branches}{leaf}");
        if left.is_removed {
            tidy::forget(&worker, caller, paths, &mut |refusal| {
                if refusal.kind != RefusalKind::NotFound {
                    screen.warning(&refusal.cause);
                }
            })?;
        }
        if !left.kept.is_empty() {
            let kept = latest(&left.kept);
            let text = format!("job '{}' starts over on {branch}; what earlier attempts left stays on {kept}", job.id);
            screen.aside("note: ", &text);
        }
        job.branch = Some(branch);
    }
    Ok(())
}

/// Returns the last parts of the names of the branches that the run of a job file has made. `None` if git cannot list them.
pub fn leaves(root: &Path, slug: &str, caller: &Caller) -> Option<BTreeSet<String>> {
    let prefix = format!("refs/heads/{}", branches_of_file(slug));
    let listed = lines(root, &["for-each-ref", "--format=%(refname)", &prefix], caller)?;
    Some(listed.iter().filter_map(|name| name.strip_prefix(&prefix)).map(str::to_owned).collect())
}

/// Returns the latest places as one text, and the number of the others.
fn latest(kept: &[String]) -> String {
    let first = kept.len().saturating_sub(NAMED_MAX);
    let more = if first > 0 { format!(" and {first} more") } else { String::new() };
    format!("{}{more}", kept[first..].join(", "))
}

/// Branches of a job's earlier attempts, after a search for a free place.
#[derive(Default)]
struct Left {
    /// Branches that stay because they or their worktrees hold work.
    kept: Vec<String>,
    /// Whether a worktree or a branch was removed.
    is_removed: bool,
}

/// Places where the jobs of one file work.
struct Places<'a> {
    root: &'a Path,
    base: &'a str,
    home: &'a Home,
    /// Beginning of the names of the branches.
    branches: &'a str,
    /// Rest of the names of those that exist.
    leaves: BTreeSet<String>,
    /// Names of running workers.
    running: BTreeSet<String>,
    caller: &'a Caller,
    paths: &'a Paths,
}

impl Places<'_> {
    /// Returns the first name of a branch and a worktree without earlier work: the id of the job, or the id with a number.
    fn free(&self, id: &str, ids: &BTreeSet<String>, worker: &str, left: &mut Left) -> String {
        let numbered = (2_u32..).map(|number| format!("{id}-{number}")).filter(|leaf| !ids.contains(leaf));
        let is_free = |leaf: &String| {
            let exists = self.leaves.contains(leaf) || self.tree(leaf).symlink_metadata().is_ok();
            !exists || self.vacate(leaf, &format!("{}{leaf}", self.branches), worker, left)
        };
        std::iter::once(id.to_owned()).chain(numbered).find(is_free).unwrap_or_else(|| id.to_owned())
    }

    fn tree(&self, leaf: &str) -> PathBuf {
        self.home.worktrees().join(leaf)
    }

    /// Removes a worktree and its branch unless they hold work or the worker runs. Returns whether both are gone.
    fn vacate(&self, leaf: &str, branch: &str, worker: &str, left: &mut Left) -> bool {
        let tree = self.tree(leaf);
        let is_there = || tree.symlink_metadata().is_ok();
        let exists = || !matches!(branch_tip(self.root, branch, self.caller), Ok(None));
        let had_tree = is_there();
        if !self.running.contains(worker) {
            if had_tree {
                left.is_removed |= remove_worktree_if_clean(leaf, &tree, self.root, self.paths, self.caller).is_ok();
            }
            if !is_there() {
                let removed = remove_landed_branch(self.root, branch, self.base, self.caller);
                left.is_removed |= removed.unwrap_or(false);
            }
        }
        // The worktree of an older program may be at this place with a branch of another name.
        let place = format!(" (in {})", tree.display());
        let is_new = is_there() && !left.kept.iter().any(|kept| kept.ends_with(&place));
        match (exists(), is_new) {
            (true, true) => left.kept.push(format!("{branch}{place}")),
            (true, false) => left.kept.push(branch.to_owned()),
            (false, true) => left.kept.push(tree.to_string_lossy().into_owned()),
            (false, false) => return !is_there(),
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_places_are_named() {
        let kept: Vec<String> = (1..=7).map(|number| format!("t-{number}")).collect();
        assert_eq!(latest(&kept[..2]), "t-1, t-2");
        assert_eq!(latest(&kept), "t-3, t-4, t-5, t-6, t-7 and 2 more");
    }
}
