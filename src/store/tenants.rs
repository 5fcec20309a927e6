//! Workers in worktrees, for verbs and runs that remove a worktree themselves. The removals of workers are guarded by
//! `actors/worker/sites.rs`.

use std::path::{Path, PathBuf};

use swarm_git::repository::remove_landed_branch;
use swarm_model::{Caller, FineState, Row, WorkerView};
use swarm_ports::{Force, WorktreeError};
use swarm_sys::paths::Paths;
use swarm_sys::procfs;

use crate::{starting, strangers, views};

/// Checks that no worker runs in a worktree, is being started there, or will be restarted.
///
/// # Errors
/// Fails with the name of the worker, or if that cannot be read.
pub fn check_free(tree: &Path, paths: &Paths) -> Result<(), WorktreeError> {
    let real = tree.canonicalize().ok().filter(|real| real != tree);
    let names: Vec<PathBuf> = std::iter::once(tree.to_owned()).chain(real).collect();
    // Before the rows are read: a start has a contract until its row is written.
    let starts = starting::rows(paths);
    if let Some(row) = starts.iter().find(|row| works_in(row, &names)) {
        return Err(WorktreeError::Used(row.name.clone()));
    }
    let registry = views::load_where(paths, views::Detail::Word, views::Pick::All);
    let registry = registry.map_err(|refusal| {
        WorktreeError::Unknown(format!("cannot tell which workers use the worktree: {}", refusal.cause))
    })?;
    match registry.workers.iter().find(|worker| is_in(worker, &names)) {
        Some(worker) => Err(WorktreeError::Used(worker.row.name.clone())),
        None => Ok(()),
    }
}

fn is_in(worker: &WorkerView, names: &[PathBuf]) -> bool {
    (worker.state.is_running() || worker.state == FineState::Backoff)
        && (works_in(&worker.row, names) || is_below(worker.pid.and_then(procfs::dir), names))
}

/// Reports whether the directory of a row is in a worktree. It may be written with links, and with `..`.
fn works_in(row: &Row, names: &[PathBuf]) -> bool {
    let dir = Path::new(&row.cwd);
    let real = || dir.is_absolute().then(|| dir.canonicalize().ok()).flatten();
    names.iter().any(|tree| row.works_in(tree)) || is_below(real(), names)
}

fn is_below(dir: Option<PathBuf>, trees: &[PathBuf]) -> bool {
    dir.is_some_and(|dir| trees.iter().any(|tree| dir.starts_with(tree)))
}

/// Removes a worktree that is clean and that no worker uses.
///
/// # Errors
/// Returns why the worktree stays.
pub fn remove_worktree_if_clean(
    name: &str,
    tree: &Path,
    root: &Path,
    paths: &Paths,
    caller: &Caller,
) -> Result<(), WorktreeError> {
    let is_free = || check_free(tree, paths);
    swarm_git::worktrees::remove_worktree_if_clean(name, tree, root, paths, caller, &is_free, strangers::check)
}

/// Removes a worktree that no worker uses, after its work is saved under `refs/swarm/trash/`. It is no error if it is gone.
///
/// # Errors
/// Returns why the worktree stays.
pub fn remove_worktree_saving(
    name: &str,
    tree: &Path,
    root: &Path,
    paths: &Paths,
    caller: &Caller,
) -> Result<(), WorktreeError> {
    let (is_free, strangers) = (|| check_free(tree, paths), strangers::check);
    let force = Force::SaveFirst;
    swarm_git::worktrees::remove_worktree(name, tree, root, paths, caller, &is_free, strangers, force).map(drop)
}

/// Removes a worktree, which may be gone, and its branch if both have no work that `base` does not have. Returns whether both
/// are gone.
pub fn remove_without_work(
    name: &str,
    tree: &Path,
    root: &Path,
    (branch, base): (&str, &str),
    paths: &Paths,
    caller: &Caller,
) -> bool {
    let is_gone = tree.symlink_metadata().is_err() || remove_worktree_if_clean(name, tree, root, paths, caller).is_ok();
    is_gone && remove_landed_branch(root, branch, base, caller).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use swarm_model::{Contract, Spec};

    use super::*;

    #[test]
    fn a_worker_that_is_being_started_uses_its_directory() {
        let root = tempfile::tempdir().expect("a directory");
        let (paths, tree) = (Paths::new(root.path().join("state")), root.path().join("tree"));
        fs::create_dir_all(tree.join("sub")).expect("made");
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&tree, &link).expect("made");
        assert_eq!(check_free(&tree, &paths), Ok(()));
        fs::create_dir_all(root.path().join("repo")).expect("made");
        for cwd in ["tree/sub", "link/sub", "repo/../tree/sub"] {
            let cwd = root.path().join(cwd).to_string_lossy().into_owned();
            let spec = Spec {
                name: "b".to_owned(),
                generation: 1,
                token: "k".to_owned(),
                request: String::new(),
                started: "s".to_owned(),
                contract: Contract { cwd: cwd.clone(), ..Contract::default() },
                worktree: None,
                logs: Vec::new(),
                resume: None,
                hooked: None,
                machine: None,
                exit_slot: None,
            };
            fs::create_dir_all(paths.worker("b", 1)).expect("made");
            fs::write(paths.worker("b", 1).join("spec.pending"), serde_json::to_vec(&spec).expect("JSON"))
                .expect("written");
            let used = Err(WorktreeError::Used("b".to_owned()));
            assert_eq!((check_free(&tree, &paths), check_free(&link, &paths)), (used.clone(), used), "{cwd}");
        }
        assert_eq!(check_free(&root.path().join("tre"), &paths), Ok(()));
    }
}
