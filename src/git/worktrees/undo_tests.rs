//! Rollback of a start from every stage at which it may have been killed, against real git.

use std::fs;
use std::path::Path;

use swarm_model::WorktreePlan;
use swarm_ports::{WorktreeError, Worktrees};

use crate::Git;
use crate::fixture::{Fixture, block, text};

/// Damage to a worktree and its entry.
type Stage = (&'static str, fn(&Path, &Path));
/// Work that happens in a worktree.
type Work = (&'static str, fn(&Path));

/// Rolls back twice and asserts that nothing is left and nothing was saved.
fn assert_undone(fix: &Fixture, plan: &WorktreePlan) {
    for _ in 0..2 {
        fix.undo(plan).unwrap();
        fix.assert_no_trace(plan);
    }
    assert!(fix.trash().is_empty(), "something was saved that was not work");
    assert!(fix.has("refs/heads/main") && fix.repo.join("f").exists());
}

#[test]
fn nothing_and_everything_are_undone() {
    let fix = Fixture::new();
    assert_undone(&fix, &fix.plan("w"));
    let (plan, _) = fix.made("w");
    assert_undone(&fix, &plan);
    assert!(!fix.root.join("repo-worktrees").exists());
}

#[test]
fn every_partial_state_is_rolled_back() {
    let long = "0123456789\n".repeat(10_000);
    let stages: [Stage; 14] = [
        ("index missing", |_, entry| fs::remove_file(entry.join("index")).unwrap()),
        ("index.lock present", |_, entry| {
            fs::rename(entry.join("index"), entry.join("index.lock")).unwrap();
        }),
        ("half checked out", |tree, entry| {
            fs::remove_file(entry.join("index")).unwrap();
            fs::write(entry.join("locked"), "initializing").unwrap();
            fs::remove_file(tree.join("f")).unwrap();
            let big = fs::read(tree.join("big")).unwrap();
            fs::write(tree.join("big"), &big[..5000]).unwrap();
        }),
        ("record without HEAD", |tree, entry| {
            for file in ["index", "HEAD", "commondir"] {
                fs::remove_file(entry.join(file)).unwrap();
            }
            for file in ["f", "big", ".gitignore", "link"] {
                fs::remove_file(tree.join(file)).unwrap();
            }
        }),
        ("record without link", |tree, entry| {
            fs::remove_dir_all(tree).unwrap();
            fs::remove_file(entry.join("index")).unwrap();
        }),
        ("record just begun", |tree, entry| {
            fs::remove_dir_all(tree).unwrap();
            fs::remove_dir_all(entry).unwrap();
            fs::create_dir_all(entry).unwrap();
            fs::write(entry.join("locked"), "initializing").unwrap();
        }),
        ("branch alone", |tree, entry| {
            fs::remove_dir_all(tree).unwrap();
            fs::remove_dir_all(entry.parent().unwrap()).unwrap();
        }),
        ("lock of the branch", |_, entry| fs::write(entry.join("../../refs/heads/w.lock"), "").unwrap()),
        ("commondir torn", |_, entry| fs::write(entry.join("commondir"), "").unwrap()),
        ("path torn", |_, entry| {
            fs::write(entry.join("gitdir"), "/somewhere\0\0\0\0").unwrap();
            fs::write(entry.join("locked"), "initial\0\0\0\0\0").unwrap();
        }),
        ("head and index torn", |_, entry| {
            fs::write(entry.join("HEAD"), "").unwrap();
            let index = fs::read(entry.join("index")).unwrap();
            fs::write(entry.join("index"), [&index[..index.len() / 2], &vec![0; index.len() / 2]].concat()).unwrap();
            fs::write(entry.join("locked"), "").unwrap();
        }),
        ("both names torn", |tree, entry| {
            fs::write(tree.join(".git"), "gitdir: /somewh\0\0\0").unwrap();
            fs::write(entry.join("gitdir"), "").unwrap();
        }),
        ("record lost", |_, entry| fs::remove_dir_all(entry).unwrap()),
        ("own removal cut off", |tree, _| fs::remove_file(tree.join("f")).unwrap()),
    ];
    for (stage, damage) in stages {
        let fix = Fixture::new();
        std::os::unix::fs::symlink("f", fix.repo.join("link")).unwrap();
        fix.commit("big", "big", &long);
        let (plan, path) = fix.made("w");
        damage(&path, &fix.repo.join(".git/worktrees/w"));
        println!("{stage}");
        assert_undone(&fix, &plan);
    }
}

#[test]
fn work_is_saved_before_it_is_undone() {
    let works: [Work; 4] = [
        ("a new file", |tree| fs::write(tree.join("new"), "work\n").unwrap()),
        ("a changed file", |tree| fs::write(tree.join("f"), "work\n").unwrap()),
        ("a longer file", |tree| fs::write(tree.join("f"), "1\nwork\n").unwrap()),
        ("a file where a link was", |tree| {
            fs::remove_file(tree.join("f")).unwrap();
            std::os::unix::fs::symlink("work", tree.join("f")).unwrap();
        }),
    ];
    for (what, work) in works {
        for has_index in [true, false] {
            let fix = Fixture::new();
            let (plan, path) = fix.made("w");
            if !has_index {
                fs::remove_file(fix.repo.join(".git/worktrees/w/index")).unwrap();
            }
            work(&path);
            fix.undo(&plan).unwrap();
            fix.assert_no_trace(&plan);
            let trash = fix.trash();
            assert_eq!(trash.len(), 1, "{what}, index: {has_index}");
            let shown = text(&fix.git(&["log", "-p", "--first-parent", "-1", &trash[0]]));
            assert!(shown.contains("work"), "{what}: {shown}");
            fix.undo(&plan).unwrap();
        }
    }
}

#[test]
fn what_was_only_staged_is_saved() {
    let fix = Fixture::new();
    let (plan, path) = fix.made("w");
    fs::write(path.join("f"), "work\n").unwrap();
    fix.at(&path, &["add", "f"]);
    fs::write(path.join("f"), "1\n").unwrap();
    fix.undo(&plan).unwrap();
    assert_eq!(text(&fix.git(&["show", &format!("{}^2:f", fix.trash()[0])])), "work");
}

#[test]
fn a_branch_with_commits_stays() {
    let fix = Fixture::new();
    let (plan, path) = fix.made("w");
    fix.at(&path, &["commit", "-q", "--allow-empty", "-m", "work"]);
    fix.undo(&plan).unwrap();
    assert!(!path.exists() && fix.has("refs/heads/w"));
}

#[test]
fn other_worktrees_and_directories_are_left_alone() {
    let fix = Fixture::new();
    // Another worktree holds the branch, one is missing, one is locked.
    let plan = fix.plan("w");
    let other = fix.root.join("other");
    fix.git(&["worktree", "add", "-q", "-b", "w", other.to_str().unwrap()]);
    let (_, gone) = fix.made("w2");
    fs::remove_dir_all(&gone).unwrap();
    fs::create_dir_all(Path::new(&plan.path).join("mine")).unwrap();
    fix.undo(&plan).unwrap();
    assert!(fix.has("refs/heads/w") && other.join("f").exists());
    assert!(Path::new(&plan.path).join("mine").exists(), "a directory that git did not make");
    assert!(fix.repo.join(".git/worktrees/w2").exists(), "another missing worktree was pruned");

    let (plan, path) = fix.made("v");
    fix.git(&["worktree", "lock", path.to_str().unwrap()]);
    assert!(matches!(fix.undo(&plan), Err(WorktreeError::Unknown(_))));
    assert!(path.join("f").exists());
}

#[test]
fn a_git_that_was_killed_is_undone_and_can_be_run_again() {
    let fix = Fixture::new();
    fix.git(&["config", "x.y", "z"]);
    let before = fs::read(fix.repo.join(".git/config")).unwrap();
    let killed = fix.with_stub(
        "$GIT \"$@\"
        cd $HOME/../repo/.git
        mv worktrees/w/index worktrees/w/index.lock
        printf initializing > worktrees/w/locked
        : > refs/heads/w.lock; : > packed-refs.lock; : > config.lock
        kill -9 $$",
    );
    let plan = fix.plan("w");
    let error = block(Git::new().make(&plan, &killed)).unwrap_err();
    let WorktreeError::Create { cause, remedy, .. } = error else { panic!("{error:?}") };
    assert_eq!((cause.as_str(), remedy.as_deref()), ("git was killed by signal 9", Some("run the command again")));
    fix.assert_no_trace(&plan);
    for lock in ["refs/heads/w.lock", "packed-refs.lock", "config.lock"] {
        assert!(!fix.repo.join(".git").join(lock).exists(), "{lock} is still there");
    }
    assert_eq!(fs::read(fix.repo.join(".git/config")).unwrap(), before);
    fix.make(&plan).unwrap();
    assert!(Path::new(&plan.path).join("f").exists());
}

#[test]
fn an_older_lock_is_named_and_stays() {
    let fix = Fixture::new();
    let plan = fix.plan("w");
    let lock = fix.repo.join(".git/config.lock");
    let old = fs::File::create(&lock).unwrap();
    old.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    drop(old);
    let error = block(Git::new().make(&plan, &fix.with_stub("kill -9 $$"))).unwrap_err();
    let WorktreeError::Create { cause, remedy, .. } = error else { panic!("{error:?}") };
    assert!(cause.contains("config.lock") && remedy.unwrap().contains("config.lock"), "{cause}");
    assert!(lock.exists());
}

#[test]
fn a_lock_that_another_git_may_hold_is_named_and_stays() {
    let fix = Fixture::new();
    let (_, elsewhere) = fix.made("elsewhere");
    let plan = fix.plan("w");
    let killed = fix.with_stub(": > $HOME/../repo/.git/packed-refs.lock; kill -9 $$");
    let git = fix.working_in(&elsewhere);
    let error = block(Git::new().make(&plan, &killed)).unwrap_err();
    let WorktreeError::Create { cause, .. } = error else { panic!("{error:?}") };
    let lock = fix.repo.join(".git/packed-refs.lock");
    assert!(cause.ends_with(&format!("blocked by a lock file: {}", lock.display())), "{cause}");
    assert!(lock.exists());
    drop(git);
}

#[test]
fn an_undo_waits_for_a_git_that_still_runs() {
    let fix = Fixture::new();
    let (plan, path) = fix.made("w");
    // A git that runs in the worktree and exits at end of file of its stdin.
    let mut command = std::process::Command::new("git");
    command.current_dir(&path).args(["cat-file", "--batch"]).stdin(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::null());
    let mut git = command.spawn().unwrap();
    let refused = crate::repository::holders::wait_for_git_at(&path, std::time::Duration::from_millis(1)).unwrap_err();
    assert!(refused.cause.contains(&format!("process {}", git.id())), "{refused}");
    std::thread::scope(|scope| {
        let undo = scope.spawn(|| fix.undo(&plan));
        drop(git.stdin.take());
        git.wait().unwrap();
        undo.join().unwrap().unwrap();
    });
    fix.assert_no_trace(&plan);
}
