//! Checks of worktrees: worktrees without a worker, and workers without their worktree.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use swarm_model::{Caller, RowWorktree};
use swarm_ports::{Records as _, Scan};

use super::{Finding, Patient, Repair};
use swarm_git::repository::Listed;
use swarm_store::records::DiskRecords;
use swarm_store::views::{self, Registry};
use swarm_sys::paths::Paths;

/// Maximum number of orphaned worktrees that are reported at once.
const LOOKED_AT_MAX: usize = 50;
/// Directory that workers of this program have in their worktrees.
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
    repos.extend(patient.root.as_deref().and_then(swarm_git::repository::main_tree).map(|root| resolved(&root)));
    for repo in repos {
        match swarm_git::repository::worktrees_of(&repo) {
            Ok(listed) => {
                found.extend(locks(&repo));
                strange.extend(strangers(&repo, &known, &listed));
            }
            Err(error) => {
                let what = format!("cannot read the repository {} of a worker: {error}", repo.display());
                found.push(Finding::error("worktrees", what));
            }
        }
    }
    // Read again, because workers may have been started or removed in between.
    let now = match Now::look(patient) {
        Ok(now) => now,
        Err(cause) => {
            let what = format!("cannot tell which worktrees have workers: {cause}");
            found.push(Finding::error("worktrees", what));
            return found;
        }
    };
    found.extend(now.gone());
    strange.retain(|(_, one)| !now.known.contains(&resolved(&one.path)));
    found.extend(strange.iter().take(LOOKED_AT_MAX).map(|(repo, one)| orphan(patient, repo, one)));
    found
}

/// Workers as they are after their repositories were read.
struct Now {
    registry: Registry,
    /// Worktrees of rows, and of starts that have no row yet.
    known: BTreeSet<PathBuf>,
}

impl Now {
    /// # Errors
    /// Fails if a row or a record cannot be read: its worktree would look as if nobody used it.
    fn look(patient: &Patient) -> Result<Self, String> {
        let records = DiskRecords::new(patient.paths.clone()).scan_now().and_then(Scan::complete);
        let records = records.map_err(|error| error.to_string())?;
        let planned = records.iter().filter_map(|facts| facts.spec.spec()?.worktree.as_ref());
        let mut known: BTreeSet<PathBuf> = planned.map(|plan| resolved(Path::new(&plan.path))).collect();
        let registry = views::load(&patient.paths).map_err(|refusal| refusal.cause)?;
        known.extend(
            registry.workers.iter().filter_map(|worker| Some(resolved(Path::new(&worker.row.worktree.as_ref()?.path)))),
        );
        Ok(Self { registry, known })
    }

    /// Finds workers whose worktree is missing.
    fn gone(&self) -> Vec<Finding> {
        let told = self.registry.workers.iter().filter_map(|worker| {
            let (tree, name) = (worker.row.worktree.as_ref()?, &worker.row.name);
            let is_gone = !Path::new(&tree.path).exists() && Path::new(&tree.base_repo).exists();
            let what = format!("the worktree of worker '{name}' is missing: {}", tree.path);
            let remedy = format!("run 'swarm respawn {name}' to create it again, or 'swarm clean {name}'");
            is_gone.then(|| Finding::warning("worktrees", what).remedy(remedy))
        });
        told.collect()
    }
}

fn strangers(repo: &Path, known: &BTreeSet<PathBuf>, listed: &[Listed]) -> Vec<(PathBuf, Listed)> {
    let is_strange = |one: &&Listed| !known.contains(&resolved(&one.path)) && is_ours(one, repo, known);
    listed.iter().filter(is_strange).map(|one| (repo.to_owned(), one.clone())).collect()
}

/// Finds locks of dead git processes, which block every other git.
fn locks(repo: &Path) -> Vec<Finding> {
    let told = |path: PathBuf| {
        let what = format!("{} is the lock of a killed git process and blocks other git commands", path.display());
        Finding::error("worktrees", what).repair(Repair::Lock { path, repo: repo.to_owned() })
    };
    swarm_git::repository::stale_locks(repo).unwrap_or_default().into_iter().map(told).collect()
}

/// Reports whether this program created the worktree; other worktrees belong to the user.
fn is_ours(one: &Listed, repo: &Path, known: &BTreeSet<PathBuf>) -> bool {
    if one.path.exists() {
        return one.path.join(SESSION).is_dir();
    }
    let beside = |path: &PathBuf| path.parent() == one.path.parent();
    known.iter().any(beside) || one.path.parent() == Some(&swarm_git::repository::default_dir(repo))
}

fn orphan(patient: &Patient, repo: &Path, one: &Listed) -> Finding {
    let shown = one.path.display();
    let branch = one.branch.as_ref().map_or_else(|| "no branch".to_owned(), |branch| format!("branch {branch}"));
    if !one.path.exists() {
        let what = format!("git still lists the worktree {shown} ({branch}), whose directory is missing");
        let git = format!("git -C {} worktree", repo.display());
        let remedy = format!("run '{git} repair NEW-PATH' if it was moved, or '{git} prune' if it was deleted");
        return Finding::warning("worktrees", what).remedy(remedy);
    }
    let spare = swarm_git::worktrees::check_clean(&one.path, repo, &patient.caller);
    let repair = Repair::Worktree { path: one.path.clone(), repo: repo.to_owned() };
    let repair = Some(repair)
        .filter(|_| spare.is_ok() && swarm_git::worktrees::is_abandoned_by(&one.path, repo, patient.paths.root()));
    let holds = match spare {
        Ok(()) => "and has no unsaved work".to_owned(),
        Err(cause) => format!("and must be kept: {cause}"),
    };
    let name = one.path.file_name().unwrap_or_default().to_string_lossy();
    let tree = RowWorktree {
        path: shown.to_string(),
        branch: one.branch.clone().unwrap_or_else(|| name.to_string()),
        base_repo: repo.display().to_string(),
    };
    let what = format!("the worktree {shown} ({branch}) belongs to no worker of this state directory {holds}");
    let finding = Finding::warning("worktrees", what).remedy(format!(
        "run 'swarm spawn --name {name} {} -- COMMAND' to continue in it, or \
         'git -C {} worktree remove {shown}' to remove it with its ignored files",
        tree.flags(&name).unwrap_or_default(),
        repo.display()
    ));
    Finding { repair, ..finding }
}

/// Removes an orphaned worktree.
///
/// # Errors
/// Returns the reason if it is kept: it has a worker now, or holds work.
pub(super) fn remove(tree: &Path, repo: &Path, paths: &Paths, caller: &Caller) -> Result<(), String> {
    let now = Now::look(&Patient::new(paths.clone(), caller.clone()))?;
    if now.known.contains(&resolved(tree)) || !swarm_git::worktrees::is_abandoned_by(tree, repo, paths.root()) {
        return Err("the worktree is now in use".to_owned());
    }
    let name = tree.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let removed = swarm_store::repositories::remove_worktree_if_clean(&name, tree, repo, paths, caller);
    removed.map_err(|error| error.to_string())
}

fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
