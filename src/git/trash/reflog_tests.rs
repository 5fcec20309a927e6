//! Deletions of branches whose reflogs have more than the base.

use std::fs;

use swarm_ports::{DroppedBranch, Force};

use super::restore::{self, RestoreRequest};
use super::saved;
use crate::fixture::{Fixture, text};
use crate::repository::objects;

fn drop_w(fix: &Fixture) -> DroppedBranch {
    crate::repository::drop_landed_branch(&fix.repo, "w", "main", &fix.caller).unwrap()
}

/// Makes a branch `w` at main, with a commit that was taken back, one that was rewritten, and one that is on main.
fn with_commits_taken_back(fix: &Fixture) -> [String; 2] {
    let git = |args: &[&str]| text(&fix.at(&fix.repo, args));
    git(&["checkout", "-q", "-b", "w"]);
    fix.commit("rewritten", "a", "1");
    let rewritten = git(&["rev-parse", "HEAD"]);
    git(&["commit", "-q", "--amend", "-m", "as it lands"]);
    fix.commit("precious", "p", "1\n");
    let precious = git(&["rev-parse", "HEAD"]);
    git(&["reset", "-q", "--hard", "HEAD~1"]);
    git(&["checkout", "-q", "main"]);
    git(&["merge", "-q", "--no-ff", "-m", "m", "w"]);
    [precious, rewritten]
}

#[test]
fn commits_that_only_the_reflog_of_a_deleted_branch_had_are_saved_once_and_restored() {
    let fix = Fixture::new();
    let [precious, rewritten] = with_commits_taken_back(&fix);
    let saved = drop_w(&fix).saved.expect("it is saved");
    assert!(!fix.has("refs/heads/w"));
    fix.git(&["reflog", "expire", "--expire=now", "--all"]);
    fix.git(&["gc", "-q", "--prune=now"]);
    let (cli, common) = (fix.cli(), fix.repo.join(".git"));
    let saves = saved::list(&cli, &common).unwrap();
    let [save] = saves.as_slice() else { panic!("{saves:?}") };
    assert_eq!((&save.reference, save.id().as_str()), (&saved.reference, "w@1"));
    assert_eq!((save.head.as_ref(), save.commits.as_deref()), (Some(&precious), Some([rewritten.clone()].as_slice())));
    assert!(saved::bytes(&cli, &common, save).unwrap() > 0);
    let back = restore::restore(&cli, &common, save, &RestoreRequest::default()).unwrap();
    assert_eq!((back.path.clone(), back.branch.as_deref()), (fix.root.join("repo-worktrees/w"), Some("w")));
    assert!(back.notes.iter().any(|note| note.contains(&rewritten[..12])), "{:?}", back.notes);
    assert_eq!(fs::read_to_string(back.path.join("p")).unwrap(), "1\n");
    assert_eq!(text(&fix.at(&back.path, &["status", "--porcelain"])), "");
    // Deleting the branch again makes no second save of the same commits.
    fix.remove(&back.path, Force::No).unwrap();
    fix.git(&["branch", "-q", "-f", "w", "main"]);
    assert_eq!(drop_w(&fix), DroppedBranch { is_deleted: true, saved: None });
    assert_eq!(fix.trash().len(), 1);
}

#[test]
fn a_reflog_whose_entries_are_all_on_the_base_needs_no_git() {
    let fix = Fixture::new();
    let by_library = |branch: &str| objects::remove_merged_branch(&fix.repo, branch, "main");
    fix.git(&["branch", "w"]);
    fix.commit("forward", "m", "1");
    fix.git(&["checkout", "-q", "w"]);
    fix.git(&["merge", "-q", "main"]);
    fix.commit("one", "a", "1");
    fix.commit("two", "a", "2");
    fix.git(&["checkout", "-q", "main"]);
    fix.commit("other", "o", "1");
    fix.git(&["checkout", "-q", "w"]);
    fix.git(&["merge", "-q", "--no-edit", "main"]);
    fix.commit("three", "a", "3");
    fix.git(&["checkout", "-q", "main"]);
    fix.git(&["merge", "-q", "--no-ff", "-m", "m", "w"]);
    fix.git(&["branch", "again", "w"]);
    assert!(by_library("w").unwrap());
    // A landed commit that was taken back is still on the base.
    fix.git(&["checkout", "-q", "again"]);
    fix.git(&["reset", "-q", "--hard", "HEAD~1"]);
    fix.git(&["checkout", "-q", "main"]);
    assert!(by_library("again").unwrap());
    with_commits_taken_back(&fix);
    assert!(by_library("w").is_err() && fix.has("refs/heads/w"), "something must be saved");
}

#[test]
fn a_deletion_follows_no_link_among_references_and_their_logs() {
    let fix = Fixture::new();
    let common = fix.repo.join(".git");
    let elsewhere = fix.root.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fix.git(&["branch", "arial/w"]);
    for dir in ["logs/refs/heads/arial", "refs/heads/arial"] {
        let (dir, aside) = (common.join(dir), fix.root.join("aside"));
        fs::copy(dir.join("w"), elsewhere.join("w")).unwrap();
        fs::rename(&dir, &aside).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &dir).unwrap();
        let dropped = crate::repository::drop_landed_branch(&fix.repo, "arial/w", "main", &fix.caller);
        assert!(dropped.unwrap_err().contains("is a symbolic link"));
        assert!(elsewhere.join("w").exists(), "{dir:?}");
        fs::remove_file(&dir).unwrap();
        fs::rename(&aside, &dir).unwrap();
    }
}

#[test]
fn a_pinned_tip_needs_no_save_but_a_candidate_does() {
    for (reference, count) in [("refs/swarm/done/", 0), ("refs/swarm/cand/", 1)] {
        let fix = Fixture::new();
        let [precious, rewritten] = with_commits_taken_back(&fix);
        for id in [precious, rewritten] {
            fix.git(&["update-ref", &format!("{reference}{id}"), &id]);
        }
        assert!(drop_w(&fix).is_deleted);
        assert_eq!(fix.trash().len(), count, "{reference}");
    }
}

#[test]
fn a_branch_that_cannot_be_saved_stays() {
    let mut fix = Fixture::new();
    with_commits_taken_back(&fix);
    fix.caller = fix.with_stub_of("commit-tree", "exit 1");
    assert!(crate::repository::drop_landed_branch(&fix.repo, "w", "main", &fix.caller).is_err());
    assert!(fix.has("refs/heads/w") && fix.trash().is_empty());
}

#[test]
fn a_start_that_is_rolled_back_saves_what_its_command_took_back() {
    let fix = Fixture::new();
    let (plan, path) = fix.made("w");
    fs::write(path.join("p"), "1").unwrap();
    fix.at(&path, &["add", "-A"]);
    fix.at(&path, &["commit", "-q", "-m", "precious"]);
    fix.at(&path, &["reset", "-q", "--hard", "HEAD~1"]);
    fix.undo(&plan).unwrap();
    fix.assert_no_trace(&plan);
    let [save] = fix.trash().try_into().unwrap();
    assert_eq!(text(&fix.git(&["show", &format!("{save}:p")])), "1");
}

#[test]
fn a_branch_without_a_reflog_is_deleted() {
    let fix = Fixture::new();
    fix.git(&["-c", "core.logAllRefUpdates=false", "branch", "w"]);
    fs::create_dir_all(fix.repo.join(".git/logs/refs/heads/w")).unwrap();
    assert_eq!(crate::repository::remove_landed_branch(&fix.repo, "w", "main", &fix.caller), Ok(true));
}
