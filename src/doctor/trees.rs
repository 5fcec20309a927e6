//! Worktrees: those that no worker has, and workers without theirs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use swarm_model::Caller;
use swarm_ports::Records as _;

use super::{Finding, Patient, Repair};
use crate::adapters::git::{self, Listed};
use crate::adapters::records::DiskRecords;
use crate::adapters::views::{self, Registry};
use crate::paths::Paths;

/// A repository with more orphans is looked at again when those are gone.
const LOOKED_AT_MAX: usize = 50;
/// What a worker of ours has in its worktree.
const SESSION: &str = ".agent";

pub fn worktrees(patient: &Patient) -> Vec<Finding> {
    let Ok(registry) = &patient.registry else { return Vec::new() };
    let (mut found, mut strange) = (Vec::new(), Vec::new());
    let (mut known, mut repos) = (BTreeSet::new(), BTreeSet::new());
    for worker in &registry.workers {
        let Some(tree) = &worker.row.worktree else { continue };
        known.insert(resolved(Path::new(&tree.path)));
        repos.insert(resolved(Path::new(&tree.base_repo)));
    }
    repos.extend(patient.root.as_deref().and_then(git::main_tree).map(|root| resolved(&root)));
    for repo in repos {
        match git::worktrees_of(&repo) {
            Ok(listed) => {
                found.extend(locks(&repo));
                strange.extend(strangers(&repo, &known, &listed));
            }
            Err(error) => {
                let what = format!("the repository {} of a worker cannot be read: {error}", repo.display());
                found.push(Finding::error("worktrees", what));
            }
        }
    }
    // What was begun or removed meanwhile is seen only now.
    let now = Now::look(patient);
    found.extend(now.gone());
    strange.retain(|(_, one)| !now.known.contains(&resolved(&one.path)));
    found.extend(strange.iter().take(LOOKED_AT_MAX).map(|(repo, one)| orphan(patient, repo, one)));
    found
}

/// The workers as they are behind a look at their repositories.
struct Now {
    registry: Option<Registry>,
    /// Worktrees of rows, and of starts that have none yet.
    known: BTreeSet<PathBuf>,
}

impl Now {
    fn look(patient: &Patient) -> Self {
        let records = DiskRecords::new(patient.paths.clone()).scan_now().unwrap_or_default();
        let planned = records.iter().filter_map(|facts| facts.spec.spec()?.worktree.as_ref());
        let mut known: BTreeSet<PathBuf> = planned.map(|plan| resolved(Path::new(&plan.path))).collect();
        let registry = views::load(&patient.paths).ok();
        let rows = registry.iter().flat_map(|registry| &registry.workers);
        known.extend(rows.filter_map(|worker| Some(resolved(Path::new(&worker.row.worktree.as_ref()?.path)))));
        Self { registry, known }
    }

    /// Workers without their worktrees.
    fn gone(&self) -> Vec<Finding> {
        let workers = self.registry.iter().flat_map(|registry| &registry.workers);
        let told = workers.filter_map(|worker| {
            let (tree, name) = (worker.row.worktree.as_ref()?, &worker.row.name);
            let is_gone = !Path::new(&tree.path).exists() && Path::new(&tree.base_repo).exists();
            let what = format!("the worktree of '{name}' is gone: {}", tree.path);
            let remedy = format!("swarm respawn {name} makes it again on its branch, swarm clean {name} forgets it");
            is_gone.then(|| Finding::warning("worktrees", what).remedy(remedy))
        });
        told.collect()
    }
}

fn strangers(repo: &Path, known: &BTreeSet<PathBuf>, listed: &[Listed]) -> Vec<(PathBuf, Listed)> {
    let is_strange = |one: &&Listed| !known.contains(&resolved(&one.path)) && is_ours(one, repo, known);
    listed.iter().filter(is_strange).map(|one| (repo.to_owned(), one.clone())).collect()
}

/// Locks that keep every git out, whose git is gone.
fn locks(repo: &Path) -> Vec<Finding> {
    let told = |path: PathBuf| {
        let what = format!("{} was left by a git that was killed, and keeps others out", path.display());
        Finding::error("worktrees", what).repair(Repair::Lock { path, repo: repo.to_owned() })
    };
    git::stale_locks(repo).unwrap_or_default().into_iter().map(told).collect()
}

/// Whether swarm made it: what a person made beside ours is that person's.
fn is_ours(one: &Listed, repo: &Path, known: &BTreeSet<PathBuf>) -> bool {
    if one.path.exists() {
        return one.path.join(SESSION).is_dir();
    }
    let beside = |path: &PathBuf| path.parent() == one.path.parent();
    known.iter().any(beside) || one.path.parent() == Some(&git::default_dir(repo))
}

fn orphan(patient: &Patient, repo: &Path, one: &Listed) -> Finding {
    let shown = one.path.display();
    let branch = one.branch.as_ref().map_or_else(|| "no branch".to_owned(), |branch| format!("branch {branch}"));
    if !one.path.exists() {
        let what = format!("git still has a record of the worktree {shown} ({branch}), whose directory is gone");
        let git = format!("git -C {} worktree", repo.display());
        let remedy = format!("if it was moved: {git} repair NEW-PATH; if it was deleted: {git} prune");
        return Finding::warning("worktrees", what).remedy(remedy);
    }
    let spare = git::is_spare(&one.path, repo, &patient.caller);
    let repair = Repair::Worktree { path: one.path.clone(), repo: repo.to_owned() };
    let repair = Some(repair).filter(|_| spare.is_ok() && git::is_left_by(&one.path, patient.paths.root()));
    let holds = match spare {
        Ok(()) => "and holds no work that git would miss".to_owned(),
        Err(cause) => format!("and must not go as it is: {cause}"),
    };
    let name = one.path.file_name().unwrap_or_default().to_string_lossy();
    let what = format!("the worktree {shown} ({branch}) belongs to no worker of this state directory, {holds}");
    let finding = Finding::warning("worktrees", what).remedy(format!(
        "swarm spawn --name {name} --worktree -- COMMAND goes on in it; git -C {} worktree remove {shown} removes it, \
         with the files that git ignores",
        repo.display()
    ));
    Finding { repair, ..finding }
}

/// Removes one, when it is still as it was told.
///
/// # Errors
/// Why it stays.
pub(super) fn remove(tree: &Path, repo: &Path, paths: &Paths, caller: &Caller) -> Result<(), String> {
    let now = Now::look(&Patient::new(paths.clone(), caller.clone()));
    if now.registry.is_none() || now.known.contains(&resolved(tree)) || !git::is_left_by(tree, paths.root()) {
        return Err("somebody has it now".to_owned());
    }
    let name = tree.file_name().unwrap_or_default().to_string_lossy().into_owned();
    git::remove_worktree_if_spare(&name, tree, repo, caller)
}

fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
