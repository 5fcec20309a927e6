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

fn cause(result: Result<impl std::fmt::Debug, WorktreeError>) -> String {
    match result {
        Err(WorktreeError::Unknown(cause)) => cause,
        other => panic!("not held: {other:?}"),
    }
}

#[test]
fn a_missing_worktree_is_held_by_what_only_its_entry_has() {
    type Work = (&'static str, fn(&Fixture, &Path));
    let works: [Work; 4] = [
        ("staged changes", |fix, tree| {
            fs::write(tree.join("f"), "staged\n").unwrap();
            fix.at(tree, &["add", "f"]);
        }),
        ("commits that no branch or tag contains", |fix, tree| drop(detached(fix, tree, "new"))),
        ("commits that no branch or tag contains", |fix, tree| {
            detached(fix, tree, "new");
            fix.at(tree, &["checkout", "-q", "w"]);
        }),
        ("a bisect in progress", |fix, tree| drop(fix.at(tree, &["bisect", "start"]))),
    ];
    for (what, work) in works {
        let fix = Fixture::new();
        let (_, tree) = fix.made("w");
        work(&fix, &tree);
        let moved = fix.root.join("moved");
        fs::rename(&tree, &moved).unwrap();
        let why = format!("the worktree at {} is missing, and git still has its {what} (bring it back", tree.display());
        for held in [fix.check(&tree, Force::No), fix.remove(&tree, Force::No).map(drop)] {
            let said = cause(held);
            assert!(said.starts_with(&why), "{said}");
        }
        let (refused, remedy) = fix.refusal("w", &fix.asked());
        assert!(refused.starts_with("the worktree at ") && remedy.unwrap().contains("git worktree prune"), "{refused}");
        let entry = fix.repo.join(".git/worktrees/w");
        let left = fs::read_dir(&entry).unwrap().flatten().map(|file| file.file_name());
        assert!(left.filter(|name| name.to_string_lossy().starts_with("swarm-absent")).count() == 0);
        fs::rename(&moved, &tree).unwrap();
        fix.at(&tree, &["status"]);
    }
}

#[test]
fn the_entry_of_a_missing_worktree_is_saved_and_restored() {
    let fix = Fixture::new();
    let (_, tree) = fix.made("w");
    let commit = detached(&fix, &tree, "new");
    fs::create_dir(tree.join("d")).unwrap();
    for (file, content) in [("d/staged", "staged\n"), ("f", "2\n"), ("announced", "")] {
        fs::write(tree.join(file), content).unwrap();
    }
    fix.at(&tree, &["add", "d", "f"]);
    fix.at(&tree, &["add", "-N", "announced"]);
    fs::write(tree.join("d/staged"), "not staged\n").unwrap();
    let index = fix.at(&tree, &["ls-files", "-s"]);
    fs::rename(&tree, fix.root.join("moved")).unwrap();
    fix.remove(&tree, Force::SaveFirst).unwrap().expect("saved");
    assert!(!fix.repo.join(".git/worktrees").exists());
    let back = bring_back(&fix);
    assert_eq!((back.path.as_path(), back.branch), (tree.as_path(), None));
    assert_eq!(text(&fix.at(&tree, &["rev-parse", "HEAD"])), commit);
    assert_eq!(text(&fix.at(&tree, &["ls-files", "-s"])), text(&index));
    assert_eq!(fs::read_to_string(tree.join("d/staged")).unwrap(), "staged\n");
    assert_eq!(text(&fix.at(&tree, &["status", "--short"])), " D announced\nA  d/staged\nM  f");
}

#[test]
fn a_conflict_of_a_missing_worktree_is_saved_and_restored() {
    let fix = Fixture::new();
    let (_, tree) = fix.made("w");
    fs::write(tree.join("f"), "ours\n").unwrap();
    fix.at(&tree, &["commit", "-qam", "ours"]);
    fix.commit("theirs", "f", "theirs\n");
    assert!(!fix.attempt(&tree, &["merge", "-q", "main"]).0);
    let index = fix.at(&tree, &["ls-files", "-s"]);
    fs::remove_dir_all(&tree).unwrap();
    assert!(cause(fix.remove(&tree, Force::No)).contains("a merge in progress"));
    fix.remove(&tree, Force::SaveFirst).unwrap().expect("saved");
    let back = bring_back(&fix);
    assert_eq!((back.branch.as_deref(), fix.at(&tree, &["ls-files", "-s"])), (Some("w"), index));
    fs::write(tree.join("f"), "both\n").unwrap();
    fix.at(&tree, &["commit", "-qam", "merged"]);
    assert_eq!(text(&fix.at(&tree, &["log", "-1", "--format=%P"])).split(' ').count(), 2);
}
