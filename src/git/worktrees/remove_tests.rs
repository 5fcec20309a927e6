//! Work that is easily overlooked when a worktree is removed, against real git.

use std::fs;
use std::path::{Path, PathBuf};

use swarm_ports::{Force, WorktreeError};

use super::topic::{Objects, snapshot};
use super::{admin, identity};
use crate::fixture::{Fixture, text};
use crate::trash::restore::{RestoreRequest, RestoredWorktree, restore};
use crate::trash::saved;

fn bring_back(fix: &Fixture) -> RestoredWorktree {
    let common = fix.repo.join(".git");
    let save = saved::list(&fix.cli(), &common).unwrap().remove(0);
    restore(&fix.cli(), &common, &save, &RestoreRequest::default()).unwrap()
}

/// Returns a worktree with the submodule `sub/lib`, which is not checked out.
fn with_submodule() -> (Fixture, PathBuf) {
    let fix = Fixture::new();
    fix.at(&fix.root, &["clone", "-q", "repo", "other"]);
    fix.git(&["-c", "protocol.file.allow=always", "submodule", "add", "-q", "../other", "sub/lib"]);
    fix.git(&["commit", "-qm", "sub"]);
    let (_, tree) = fix.made("w");
    assert!(fs::read_dir(tree.join("sub/lib")).unwrap().next().is_none());
    (fix, tree)
}

fn left_out(fix: &Fixture, tree: &Path) -> Vec<String> {
    let place = identity::open(&fix.cli(), tree, &fix.repo).unwrap().unwrap();
    snapshot(&fix.cli(), &place, Objects::Discard).unwrap().left_out
}

#[test]
fn files_in_the_directory_of_a_submodule_that_is_not_checked_out_are_work() {
    let (fix, tree) = with_submodule();
    let dir = tree.join("sub/lib/src");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("ignored"), "").unwrap();
    fix.check(&tree, Force::No).unwrap();
    assert!(left_out(&fix, &tree).is_empty());
    fs::write(dir.join("work.c"), "hours of work\n").unwrap();
    assert_eq!(text(&fix.at(&tree, &["status", "--porcelain", "-uall"])), "", "git does not show it");
    assert_eq!(left_out(&fix, &tree), ["sub/lib/"]);
    assert_eq!(fix.check(&tree, Force::No), Err(WorktreeError::Dirty(1)));
    assert_eq!(fix.remove(&tree, Force::No), Err(WorktreeError::Dirty(1)));
    fs::write(tree.join("new"), "").unwrap();
    assert_eq!(left_out(&fix, &tree), ["sub/lib/"]);

    let index = text(&fix.at(&tree, &["ls-files", "-s"]));
    let saved = fix.remove(&tree, Force::SaveFirst).unwrap().unwrap();
    assert_eq!(text(&fix.git(&["show", &format!("{}:sub/lib/src/work.c", saved.commit)])), "hours of work");
    assert!(!tree.exists());
    bring_back(&fix);
    assert_eq!(fs::read_to_string(dir.join("work.c")).unwrap(), "hours of work\n");
    assert_eq!(text(&fix.at(&tree, &["ls-files", "-s"])), index, "the index still names the submodule");
}

#[test]
fn a_repository_in_the_directory_of_a_submodule_that_is_not_checked_out_holds_a_worktree() {
    let (fix, tree) = with_submodule();
    fix.at(&tree, &["init", "-q", "sub/lib/inner"]);
    assert_eq!(fix.remove(&tree, Force::No), Err(WorktreeError::Dirty(1)));
    let Err(WorktreeError::Unknown(cause)) = fix.remove(&tree, Force::SaveFirst) else { panic!("removed") };
    assert!(cause.contains("sub/lib/inner is a separate repository, which cannot be saved"), "{cause}");
    assert!(admin::entry_of(&fix.repo.join(".git"), &tree).unwrap().is_some() && fix.trash().is_empty());
}
