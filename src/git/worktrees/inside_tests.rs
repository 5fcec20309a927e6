//! Worktrees that contain other worktrees of the repository, against real git.

use std::fs;
use std::path::{Path, PathBuf};

use swarm_ports::{Force, WorktreeError};

use crate::fixture::Fixture;

/// Creates a worktree with another one in an ignored directory, which holds uncommitted work.
fn nested(fix: &Fixture, name: &str) -> (PathBuf, PathBuf) {
    fs::create_dir_all(fix.repo.join(".git/info")).unwrap();
    fs::write(fix.repo.join(".git/info/exclude"), ".agents/\n").unwrap();
    let (_, outer) = fix.made(name);
    let inner = outer.join(".agents/inner");
    fix.at(&outer, &["worktree", "add", "-q", "-b", "inner", inner.to_str().unwrap()]);
    fs::write(inner.join("work"), "unsaved\n").unwrap();
    (outer, inner)
}

#[track_caller]
fn assert_kept(fix: &Fixture, outer: &Path, inner: &Path) {
    let contains = WorktreeError::Contains(inner.to_str().unwrap().to_owned());
    assert_eq!(contains.to_string(), format!("worktree contains the worktree {}", inner.display()));
    for force in [Force::No, Force::SaveFirst] {
        assert_eq!(fix.check(outer, force), Err(contains.clone()));
        assert_eq!(fix.remove(outer, force), Err(contains.clone()));
    }
    assert_eq!(fs::read_to_string(inner.join("work")).unwrap(), "unsaved\n");
    assert!(outer.join("f").exists());
}

#[test]
fn a_worktree_stays_as_long_as_it_contains_another_one() {
    let fix = Fixture::new();
    let (outer, inner) = nested(&fix, "w");
    assert_kept(&fix, &outer, &inner);
    // Also through another name.
    let link = fix.root.join("link");
    std::os::unix::fs::symlink(outer.parent().unwrap(), &link).unwrap();
    assert_kept(&fix, &link.join("w"), &inner);
    // The save of the outer worktree would not hold the work of the inner one.
    fs::write(outer.join("f"), "changed\n").unwrap();
    assert_kept(&fix, &outer, &inner);
    assert!(fix.trash().is_empty());
    // The inner one itself may go.
    fix.remove(&inner, Force::SaveFirst).unwrap().unwrap();
    fix.remove(&outer, Force::SaveFirst).unwrap().unwrap();
    assert!(!outer.exists());
}

#[test]
fn worktrees_elsewhere_and_those_that_are_gone_keep_no_other() {
    let fix = Fixture::new();
    let (outer, inner) = nested(&fix, "w");
    let (_, beside) = fix.made("w2");
    fs::write(beside.join("work"), "").unwrap();
    fs::remove_dir_all(&inner).unwrap();
    fs::write(fix.repo.join(".git/worktrees/file"), "").unwrap();
    fs::create_dir(fix.repo.join(".git/worktrees/begun")).unwrap();
    assert_eq!(fix.remove(&outer, Force::No), Ok(None));
    assert!(!outer.exists() && beside.join("work").exists());
}

#[test]
fn a_worktree_that_was_moved_with_another_one_inside_stays() {
    let fix = Fixture::new();
    let (outer, inner) = nested(&fix, "w");
    let moved = fix.root.join("moved");
    fix.git(&["worktree", "move", outer.to_str().unwrap(), moved.to_str().unwrap()]);
    assert!(!inner.exists());
    assert_kept(&fix, &moved, &moved.join(".agents/inner"));
}

#[test]
fn an_entry_that_cannot_be_read_is_not_taken_for_none() {
    let fix = Fixture::new();
    let (outer, inner) = nested(&fix, "w");
    let named = fix.repo.join(".git/worktrees/inner/gitdir");
    fs::remove_file(&named).unwrap();
    fs::create_dir(&named).unwrap();
    for force in [Force::No, Force::SaveFirst] {
        assert!(matches!(fix.remove(&outer, force), Err(WorktreeError::Tool(_))));
    }
    assert!(inner.join("work").exists() && outer.join("f").exists());
}

#[test]
fn a_rollback_keeps_a_worktree_that_contains_another_one() {
    let fix = Fixture::new();
    let plan = fix.plan("w");
    let (outer, inner) = nested(&fix, "w");
    let Err(WorktreeError::Unknown(why)) = fix.undo(&plan) else { panic!("it was rolled back") };
    assert!(why.contains(&format!("contains the worktree {}", inner.display())), "{why}");
    assert!(inner.join("work").exists());
    fs::remove_file(inner.join("work")).unwrap();
    fix.remove(&inner, Force::No).unwrap();
    fix.undo(&plan).unwrap();
    assert!(!outer.exists());
}
