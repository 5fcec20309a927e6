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

/// Returns a worktree in which an operation of git has stashed uncommitted changes of `notes`, and stopped at a conflict.
fn with_autostash(operation: &[&str]) -> (Fixture, PathBuf) {
    let fix = Fixture::new();
    fix.commit("notes", "notes", "n\n");
    let (_, tree) = fix.made("w");
    fs::write(tree.join("f"), "topic\n").unwrap();
    fix.at(&tree, &["commit", "-qam", "topic"]);
    fix.commit("base", "f", "base\n");
    fs::write(tree.join("notes"), "two days of work\n").unwrap();
    let (is_done, _) = fix.attempt(&tree, operation);
    assert!(!is_done && fs::read_to_string(tree.join("notes")).unwrap() == "n\n");
    (fix, tree)
}

#[test]
fn changes_that_a_rebase_had_stashed_are_in_the_stash_after_a_restore() {
    for backend in ["--merge", "--apply"] {
        let (fix, tree) = with_autostash(&["rebase", "-q", "--autostash", backend, "main"]);
        fix.remove(&tree, Force::SaveFirst).unwrap().unwrap();
        fix.git(&["reflog", "expire", "--expire=now", "--all"]);
        fix.git(&["gc", "-q", "--prune=now"]);
        let back = bring_back(&fix);
        assert!(back.notes.iter().any(|note| note.contains("git stash pop")), "{backend}: {:?}", back.notes);
        fix.at(&tree, &["reset", "-q", "--hard"]);
        fix.at(&tree, &["stash", "pop", "-q"]);
        assert_eq!(fs::read_to_string(tree.join("notes")).unwrap(), "two days of work\n");
        // Restored once more, it is not stashed twice.
        fs::write(tree.join("f"), "").unwrap();
        fix.git(&["worktree", "remove", "--force", tree.to_str().unwrap()]);
        for _ in 0..2 {
            bring_back(&fix);
            fix.git(&["worktree", "remove", "--force", tree.to_str().unwrap()]);
        }
        assert_eq!(text(&fix.git(&["stash", "list"])).lines().count(), 1);
    }
}

#[test]
fn a_merge_that_had_stashed_changes_can_be_finished_after_a_restore() {
    let (fix, tree) = with_autostash(&["merge", "-q", "--autostash", "main"]);
    fix.remove(&tree, Force::SaveFirst).unwrap().unwrap();
    fix.git(&["reflog", "expire", "--expire=now", "--all"]);
    fix.git(&["gc", "-q", "--prune=now"]);
    assert_eq!(bring_back(&fix).notes, Vec::<String>::new());
    fs::write(tree.join("f"), "both\n").unwrap();
    fix.at(&tree, &["commit", "-qam", "merged"]);
    assert_eq!(fs::read_to_string(tree.join("notes")).unwrap(), "two days of work\n");
}

/// Commits `file` on a detached HEAD and returns the commit.
fn detached(fix: &Fixture, tree: &Path, file: &str) -> String {
    fix.at(tree, &["checkout", "-q", "--detach"]);
    fs::write(tree.join(file), "unique\n").unwrap();
    fix.at(tree, &["add", file]);
    fix.at(tree, &["commit", "-qm", file]);
    text(&fix.at(tree, &["rev-parse", "HEAD"]))
}

#[test]
fn commits_that_only_the_reflog_of_a_worktree_has_are_saved() {
    let fix = Fixture::new();
    let (_, tree) = fix.made("w");
    detached(&fix, &tree, "one");
    let first = detached(&fix, &tree, "two");
    fix.at(&tree, &["checkout", "-q", "-b", "topic", "w"]);
    fix.at(&tree, &["commit", "-q", "--allow-empty", "-m", "of a branch"]);
    let second = text(&fix.at(&tree, &["rev-parse", "HEAD"]));
    fix.at(&tree, &["checkout", "-q", "w"]);
    fix.at(&tree, &["branch", "-q", "-D", "topic"]);
    let third = text(&fix.at(&tree, &["commit-tree", "-p", "HEAD", "-m", "noted", "HEAD^{tree}"]));
    fix.at(&tree, &["update-ref", "refs/worktree/note", &third]);
    let saved = fix.remove(&tree, Force::No).unwrap().expect("saved");
    assert!(!tree.exists());
    fix.git(&["reflog", "expire", "--expire=now", "--all"]);
    fix.git(&["gc", "-q", "--prune=now"]);
    let parents = text(&fix.git(&["log", "-1", "--format=%P", &saved.commit]));
    assert!([&first, &second, &third].iter().all(|commit| parents.contains(commit.as_str())), "{parents}");
    assert_eq!(text(&fix.git(&["show", &format!("{first}:one")])), "unique");
    bring_back(&fix);
    assert_eq!(fix.remove(&tree, Force::No), Ok(None), "the save keeps them");
}

#[test]
fn commits_that_a_ref_or_its_reflog_keeps_need_no_save() {
    let fix = Fixture::new();
    let (_, tree) = fix.made("w");
    fs::write(tree.join("f"), "ours\n").unwrap();
    fix.at(&tree, &["commit", "-qam", "ours"]);
    fix.at(&tree, &["commit", "-q", "--amend", "-m", "amended"]);
    fix.at(&tree, &["commit", "-q", "--allow-empty", "-m", "fixup! amended"]);
    fix.at(&tree, &["reset", "-q", "--hard", "HEAD~1"]);
    fs::write(tree.join("g"), "g\n").unwrap();
    fix.at(&tree, &["add", "g"]);
    fix.at(&tree, &["commit", "-qm", "fixup! amended"]);
    fix.commit("theirs", "h", "theirs\n");
    let autosquash = ["-c", "sequence.editor=true", "rebase", "-q", "-i", "--autosquash", "main"];
    fix.at(&tree, &autosquash);
    detached(&fix, &tree, "kept");
    fix.at(&tree, &["tag", "kept"]);
    fix.at(&tree, &["checkout", "-q", "w"]);
    assert_eq!(fix.remove(&tree, Force::No), Ok(None));
    assert!(fix.trash().is_empty());
}
