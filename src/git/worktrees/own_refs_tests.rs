//! Commits that only a worktree's own refs name.

use swarm_ports::{Force, WorktreeError};

use crate::fixture::{Fixture, text};

#[test]
fn a_commit_of_a_head_on_a_ref_of_the_worktree_itself_holds_it() {
    let fix = Fixture::new();
    let (_, tree) = fix.made("w");
    fix.at(&tree, &["symbolic-ref", "HEAD", "refs/worktree/mine"]);
    fix.at(&tree, &["commit", "-q", "--allow-empty", "-m", "orphan"]);
    fix.at(&tree, &["reset", "-q", "--hard"]);
    let head = text(&fix.at(&tree, &["rev-parse", "HEAD"]));
    assert_eq!(fix.remove(&tree, Force::No), Err(WorktreeError::Unreachable(head)));
    fix.at(&tree, &["update-ref", "refs/heads/mine", "HEAD"]);
    fix.remove(&tree, Force::No).unwrap();
    assert!(!tree.exists());
}
