//! Commits that only a worktree's own refs name.

use swarm_ports::{Force, WorktreeError};

use crate::fixture::Fixture;

#[test]
fn commits_that_only_a_ref_of_the_worktree_has_hold_it() {
    let scripts: [&[&[&str]]; 2] = [
        &[
            &["commit", "-q", "--allow-empty", "-m", "kept"],
            &["update-ref", "refs/worktree/mine", "HEAD"],
            &["reset", "-q", "HEAD~1"],
        ],
        &[
            &["symbolic-ref", "HEAD", "refs/worktree/mine"],
            &["commit", "-q", "--allow-empty", "-m", "orphan"],
            &["reset", "-q", "--hard"],
        ],
    ];
    for script in scripts {
        let fix = Fixture::new();
        let (_, tree) = fix.made("w");
        for words in script {
            fix.at(&tree, words);
        }
        for force in [Force::No, Force::SaveFirst] {
            let Err(WorktreeError::Unknown(cause)) = fix.remove(&tree, force) else { panic!("removed") };
            assert_eq!(cause, "refs/worktree/mine, a ref of the worktree itself, has commits that no branch has");
        }
        fix.at(&tree, &["update-ref", "refs/heads/mine", "refs/worktree/mine"]);
        fix.remove(&tree, Force::SaveFirst).unwrap();
        assert!(!tree.exists());
    }
}
