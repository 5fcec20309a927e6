use std::fs;

use super::*;
use crate::fixture::Fixture;

/// git closes a lock of references right after it took it, so that an open file does not tell whose it is.
#[test]
fn a_lock_that_another_git_may_hold_stays() {
    let fix = Fixture::new();
    let (_, dir) = fix.made("dev");
    let common = fix.repo.join(".git");
    let [index, branch, packed] =
        ["worktrees/dev/index.lock", "refs/heads/dev.lock", "packed-refs.lock"].map(|name| common.join(name));
    let exist = || [&index, &branch, &packed].map(|lock| lock.exists());
    [&index, &branch, &packed].into_iter().for_each(|lock| fs::write(lock, "").unwrap());
    let git = fix.working_in(&dir);
    clear_stale_locks(&dir, &fix.repo);
    assert_eq!(exist(), [true; 3], "a git works in the worktree");
    drop(git);
    let git = fix.working_in(&fix.repo);
    clear_stale_locks(&dir, &fix.repo);
    assert_eq!(exist(), [false, true, true], "a git works in the repository");
    drop(git);
    clear_stale_locks(&dir, &fix.repo);
    assert_eq!(exist(), [false, false, true], "the lock of packed references is never an earlier turn's");
}
