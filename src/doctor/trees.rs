//! Worktrees: those that no worker has, and workers without theirs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{Finding, Patient, Repair};
use crate::adapters::git::{self, Listed};

/// A repository with more orphans is looked at again when those are gone.
const LOOKED_AT_MAX: usize = 50;
/// What a worker of ours has in its worktree.
const SESSION: &str = ".agent";

pub fn worktrees(patient: &Patient) -> Vec<Finding> {
    let Ok(registry) = &patient.registry else { return Vec::new() };
    let mut found = Vec::new();
    let (mut known, mut repos) = (BTreeSet::new(), BTreeSet::new());
    for worker in &registry.workers {
        let Some(tree) = &worker.row.worktree else { continue };
        let path = resolved(Path::new(&tree.path));
        if !path.exists() && Path::new(&tree.base_repo).exists() {
            let name = &worker.row.name;
            let what = format!("the worktree of '{name}' is gone: {}", path.display());
            let remedy = format!("swarm respawn {name} makes it again on its branch, swarm clean {name} forgets it");
            found.push(Finding::warning("worktrees", what).remedy(remedy));
        }
        known.insert(path);
        repos.insert(resolved(Path::new(&tree.base_repo)));
    }
    repos.extend(patient.root.as_deref().and_then(git::main_tree).map(|root| resolved(&root)));
    for repo in repos {
        match git::worktrees_of(&repo) {
            Ok(listed) => {
                found.extend(locks(&repo));
                found.extend(orphans(patient, &repo, &known, &listed));
            }
            Err(error) => {
                let what = format!("the repository {} of a worker cannot be read: {error}", repo.display());
                found.push(Finding::error("worktrees", what));
            }
        }
    }
    found
}

/// Locks that keep every git out, whose git is gone.
fn locks(repo: &Path) -> Vec<Finding> {
    let told = |path: PathBuf| {
        let what = format!("{} was left by a git that was killed, and keeps others out", path.display());
        Finding::error("worktrees", what).repair(Repair::Lock { path, repo: repo.to_owned() })
    };
    git::stale_locks(repo).unwrap_or_default().into_iter().map(told).collect()
}

fn orphans(patient: &Patient, repo: &Path, known: &BTreeSet<PathBuf>, listed: &[Listed]) -> Vec<Finding> {
    let is_strange = |one: &&Listed| !known.contains(&resolved(&one.path));
    let strange = listed.iter().filter(is_strange).filter(|one| is_ours(one, repo, known));
    strange.take(LOOKED_AT_MAX).map(|one| orphan(patient, repo, one)).collect()
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
        let repair = Repair::Record { path: one.path.clone(), repo: repo.to_owned() };
        let what = format!("git still has a record of the worktree {shown} ({branch}), whose directory is gone");
        return Finding::warning("worktrees", what).repair(repair);
    }
    match git::is_spare(&one.path, repo, &patient.caller) {
        Ok(()) => {
            let repair = Repair::Worktree { path: one.path.clone(), repo: repo.to_owned() };
            let what = format!("the worktree {shown} ({branch}) belongs to no worker, and holds no work");
            Finding::warning("worktrees", what).repair(repair)
        }
        Err(cause) => {
            let what = format!("the worktree {shown} ({branch}) belongs to no worker: {cause}");
            let remedy = format!("commit what you need there; then git -C {} worktree remove {shown}", repo.display());
            Finding::warning("worktrees", what).remedy(remedy)
        }
    }
}

fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
