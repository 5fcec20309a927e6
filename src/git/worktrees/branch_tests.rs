//! Whether a branch was made for the work in its worktree, over several starts.

use std::fs;
use std::path::{Path, PathBuf};

use swarm_model::{WorktreePlan, WorktreeRequest};
use swarm_ports::{Force, Worktrees as _};

use super::{Git, admin, branches, owner};
use crate::fixture::{Fixture, block, text};
use crate::trash::restore::{RestoreRequest, restore};
use crate::trash::saved;

/// Drops the branch of a plan whose worktree is removed first. Returns whether it is gone.
fn drops(fix: &Fixture, plan: &WorktreePlan) -> bool {
    fix.remove(Path::new(&plan.path), Force::No).unwrap();
    let dropped = block(Git::new().drop_branch(plan, &fix.caller)).unwrap();
    assert_eq!(dropped.is_deleted, !fix.has(&format!("refs/heads/{}", plan.branch)));
    dropped.is_deleted
}

/// Makes the plan for a name again, and starts in what is there.
fn continued(fix: &Fixture, name: &str) -> WorktreePlan {
    let plan = fix.plan(name);
    assert!(!plan.makes_branch, "{plan:?}");
    fix.make(&plan).unwrap();
    plan
}

fn tip(fix: &Fixture, name: &str) -> String {
    text(&fix.git(&["rev-parse", name]))
}

#[test]
fn a_branch_goes_with_the_worktree_that_was_continued_in_and_only_if_it_was_made_for_it() {
    let fix = Fixture::new();
    let first = tip(&fix, "main");
    fix.git(&["branch", "mine"]);
    for name in ["ours", "mine"] {
        fix.made(name);
    }
    fix.commit("second", "g", "2\n");
    let (ours, mine) = (continued(&fix, "ours"), continued(&fix, "mine"));
    assert_eq!((ours.made_at.as_deref(), mine.made_at.as_deref()), (Some(first.as_str()), None));
    assert_eq!((drops(&fix, &ours), drops(&fix, &mine)), (true, false));
    assert_eq!(fix.plan("mine").made_at, None, "without a worktree nothing is on record");
}

#[test]
fn a_start_in_a_worktree_that_fails_leaves_the_branch() {
    let fix = Fixture::new();
    let (_, path) = fix.made("w");
    fix.undo(&continued(&fix, "w")).unwrap();
    assert!(path.join("f").exists() && fix.has("refs/heads/w"));
    // The directory is gone, but not its record.
    fs::remove_dir_all(&path).unwrap();
    let again = continued(&fix, "w");
    assert!(again.makes_tree && again.made_at.is_some());
    fix.undo(&again).unwrap();
    assert!(!path.exists() && fix.has("refs/heads/w"));
}

#[test]
fn the_record_of_an_older_version_is_written_at_the_next_start() {
    let fix = Fixture::new();
    let (made, path) = fix.made("w");
    let common = fix.repo.join(".git");
    let file = admin::entry_of(&common, &path).unwrap().unwrap().join(owner::BRANCH);
    fs::remove_file(&file).unwrap();
    assert_eq!(fix.plan("w").made_at, None);
    let known = WorktreePlan { made_at: Some(made.base.commit.clone()), ..fix.plan("w") };
    fix.make(&known).unwrap();
    assert_eq!(fix.plan("w").made_at, Some(made.base.commit));
    for damaged in ["", "w", "w\n", "w\nx\n", "v\n0123456789012345678901234567890123456789\n"] {
        fs::write(&file, damaged).unwrap();
        assert_eq!(fix.plan("w").made_at, None, "{damaged:?}");
    }
}

#[test]
fn a_branch_of_another_name_in_the_worktree_is_not_ours() {
    let fix = Fixture::new();
    let (_, path) = fix.made("w");
    fix.at(&path, &["branch", "-m", "theirs"]);
    let asked = WorktreeRequest { branch: Some("theirs".to_owned()), ..fix.asked() };
    assert_eq!(fix.plan_of("w", &asked).unwrap().made_at, None);
}

#[test]
fn a_branch_that_somebody_made_anew_under_the_name_stays() {
    let fix = Fixture::new();
    let (plan, path) = fix.made("w");
    fix.commit("second", "g", "2\n");
    fix.remove(&path, Force::No).unwrap();
    fix.git(&["branch", "-D", "w"]);
    fix.git(&["branch", "w"]);
    assert!(!block(Git::new().drop_branch(&plan, &fix.caller)).unwrap().is_deleted);
    assert!(fix.has("refs/heads/w"));
}

#[test]
fn a_restored_worktree_still_has_the_branch_that_was_made_for_it() {
    let fix = Fixture::new();
    let (plan, path) = fix.made("w");
    fs::write(path.join("f"), "changed\n").unwrap();
    fix.remove(&path, Force::SaveFirst).unwrap();
    let (cli, common) = (fix.cli(), fix.repo.join(".git"));
    let bring_back = |request: &RestoreRequest| {
        let save = saved::list(&cli, &common).unwrap().remove(0);
        restore(&cli, &common, &save, request).unwrap().path
    };
    let elsewhere: PathBuf = fix.root.join("elsewhere");
    let request =
        RestoreRequest { to: Some(elsewhere.clone()), branch: Some("new".to_owned()), ..RestoreRequest::default() };
    bring_back(&request);
    assert_eq!(owner::branch_origin(&common, &elsewhere, "new"), None, "a person chose it");
    assert_eq!(bring_back(&RestoreRequest::default()), path);
    let again = continued(&fix, "w");
    assert_eq!(again.made_at, Some(plan.base.commit));
    fix.at(&path, &["checkout", "-q", "--", "f"]);
    assert!(drops(&fix, &again));
}

#[test]
fn the_base_of_a_branch_is_known_after_its_worktree_until_somebody_else_makes_it() {
    let fix = Fixture::new();
    let common = fix.repo.join(".git");
    fix.git(&["branch", "release"]);
    fix.git(&["branch", "mine"]);
    fix.commit("second", "g", "2\n");
    let from = |base: &str| WorktreeRequest { base: Some(base.to_owned()), ..fix.asked() };
    let plan =
        fix.plan_of("team/w", &WorktreeRequest { branch: Some("team/w".to_owned()), ..from("release") }).unwrap();
    fix.make(&plan).unwrap();
    let path = Path::new(&plan.path);
    fix.at(path, &["commit", "-q", "--allow-empty", "-m", "work"]);
    let (_, mine) = fix.made("mine");
    for tree in [path, &mine] {
        fix.remove(tree, Force::No).unwrap();
    }
    let known = branches::known(&common, "team/w").expect("known");
    assert_eq!((&known.base, known.made_at.as_str()), (&plan.base, plan.base.commit.as_str()));
    assert_eq!(branches::known(&common, "mine"), None, "a person made it");
    // A branch that started from a commit is recorded, too, without a base.
    let at = WorktreeRequest { branch: Some("at".to_owned()), ..from("HEAD~1") };
    let at = fix.plan_of("at", &at).unwrap();
    fix.make(&at).unwrap();
    fix.at(Path::new(&at.path), &["commit", "-q", "--allow-empty", "-m", "work"]);
    fix.remove(Path::new(&at.path), Force::No).unwrap();
    let known = branches::known(&common, "at").expect("known").base;
    assert_eq!((known.branch.as_ref(), &known), (None, &at.base));
    fix.git(&["branch", "-D", "at"]);
    // The next start has that base, unless another one is asked for.
    let asked = WorktreeRequest { branch: Some("team/w".to_owned()), ..fix.asked() };
    let again = fix.plan_of("team/w", &asked).unwrap();
    assert_eq!((&again.base, again.made_at.as_ref()), (&plan.base, Some(&plan.base.commit)));
    let resumed = WorktreeRequest { resume: true, base: Some("main".to_owned()), ..asked };
    assert_eq!(fix.plan_of("team/w", &resumed).unwrap().base.branch.as_deref(), Some("main"));

    fix.git(&["branch", "-D", "team/w"]);
    fix.git(&["branch", "team/w"]);
    assert_eq!(branches::known(&common, "team/w"), None, "it begins at another commit");
    fix.git(&["branch", "-D", "team/w"]);
    let (_, other) = fix.made("other");
    fix.remove(&other, Force::No).unwrap();
    let files = swarm_sys::files::list(&common.join("swarm-branches")).unwrap();
    assert_eq!(files.len(), 1, "only what exists is kept");
}
