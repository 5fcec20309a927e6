//! Lock files that a killed git left behind and that block every other git.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::holders;
use crate::worktrees::admin;

/// Minimum age of a stale lock. A git that waits for an editor keeps its lock as long as the
/// user writes, without an open descriptor; an older lock without a running git is stale.
const AGE_MIN: Duration = Duration::from_secs(600);
/// Locks that a git in any worktree may hold.
const SHARED_LOCKS: [&str; 3] = ["packed-refs.lock", "config.lock", "shallow.lock"];
const ENTRY_LOCKS: [&str; 2] = ["index.lock", "HEAD.lock"];

/// Lists the stale locks of a repository and all its worktrees.
///
/// # Errors
/// Fails if the repository cannot be read.
pub fn stale_locks(repo: &Path) -> io::Result<Vec<PathBuf>> {
    let common = admin::common_dir(repo)?;
    let dirs = admin::dirs(&common)?;
    let is_shared = |lock: &PathBuf| is_stale(lock, None) && holders::no_git_works_in(&dirs, Duration::ZERO);
    let shared = SHARED_LOCKS.map(|name| common.join(name)).into_iter().filter(is_shared);
    let own = ENTRY_LOCKS.iter().map(|name| (common.join(name), Some(repo.to_owned())));
    let entries = admin::entries(&common)?;
    let others = entries.iter().flat_map(|entry| {
        let tree = admin::tree_of(entry);
        ENTRY_LOCKS.iter().map(move |name| (entry.join(name), tree.clone()))
    });
    let of_trees = own.chain(others).filter(|(lock, tree)| is_stale(lock, tree.as_deref())).map(|(lock, _)| lock);
    Ok(of_trees.chain(shared).collect())
}

/// Removes a lock if it is still stale.
///
/// # Errors
/// Returns a message if the lock stays.
pub fn remove_stale_lock(lock: &Path, repo: &Path) -> Result<(), String> {
    match stale_locks(repo).map_err(|error| error.to_string())?.iter().any(|known| known == lock) {
        true => fs::remove_file(lock).map_err(|error| error.to_string()),
        false => Err("the lock is in use or no longer exists".to_owned()),
    }
}

fn is_stale(lock: &Path, tree: Option<&Path>) -> bool {
    let Ok(written) = fs::symlink_metadata(lock).and_then(|meta| meta.modified()) else { return false };
    let is_old = SystemTime::now().duration_since(written).is_ok_and(|age| age >= AGE_MIN);
    is_old && !holders::is_held_open(lock) && !tree.is_some_and(holders::is_git_in)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn only_old_locks_without_a_holder_are_removed() {
        let fix = Fixture::new();
        let lock = fix.repo.join(".git/index.lock");
        let held = fs::File::create(&lock).unwrap();
        assert!(stale_locks(&fix.repo).unwrap().is_empty(), "it is young");
        held.set_modified(SystemTime::now() - 2 * AGE_MIN).unwrap();
        assert!(stale_locks(&fix.repo).unwrap().is_empty(), "a process has it open");
        assert!(remove_stale_lock(&lock, &fix.repo).is_err());
        drop(held);
        let lock = lock.canonicalize().unwrap();
        let found = stale_locks(&fix.repo).unwrap();
        assert_eq!(
            found.iter().map(|one| one.canonicalize().unwrap()).collect::<Vec<_>>(),
            std::slice::from_ref(&lock),
            "held open: {}, git in use: {}, {:?}",
            holders::is_held_open(&lock),
            holders::is_git_in(&fix.repo),
            fs::metadata(&lock)
        );
        assert_eq!(remove_stale_lock(&found[0], &fix.repo), Ok(()));
        assert!(!lock.exists());
    }

    #[test]
    fn a_lock_that_a_git_in_another_worktree_may_hold_stays() {
        let fix = Fixture::new();
        let (_, tree) = fix.made("w");
        let lock = fix.repo.join(".git/packed-refs.lock");
        fs::File::create(&lock).unwrap().set_modified(SystemTime::now() - 2 * AGE_MIN).unwrap();
        let git = fix.working_in(&tree);
        assert!(stale_locks(&fix.repo).unwrap().is_empty());
        drop(git);
        assert_eq!(stale_locks(&fix.repo).unwrap(), [lock.canonicalize().unwrap()]);
    }
}
