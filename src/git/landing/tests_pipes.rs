//! Pipes in place of files from which git reads its rules.

use std::fs;
use std::path::{Path, PathBuf};

use swarm_ports::{Force, WorktreeError, Worktrees as _};

use super::checked_out::holders_of_base;
use super::scratch::{self, Leftovers};
use super::tests_checkout::Site;
use crate::Git;
use crate::fixture::text;
use crate::worktrees::topic;

/// Puts a new file and a pipe with this name into a directory `d` of a worktree.
fn pipe(tree: &Path, name: &str) -> PathBuf {
    let pipe = tree.join("d").join(name);
    fs::create_dir_all(tree.join("d")).unwrap();
    fs::write(tree.join("d/new"), "new\n").unwrap();
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    pipe
}

#[tokio::test]
async fn work_beside_a_pipe_waits_and_the_pipe_is_named() {
    let site = Site::new();
    let (tree, completion) = site.worker("a");
    for name in [".gitignore", ".gitattributes"] {
        let pipe = pipe(&tree, name);
        let cause = format!("git cannot read {}, which is a named pipe", pipe.display());
        let reason = format!("{cause} (remove it, then run the command again)");
        let done = site.done(&completion).await;
        assert_eq!((done.waits.as_ref(), done.is_mendable), (Some(&reason), true));
        let (row, base) = completion.worker.as_ref().unwrap();
        assert_eq!(topic::topic(&site.fix.caller, row, base.as_ref()).err().unwrap().cause, cause);
        fs::remove_file(&pipe).unwrap();
    }
    let pipe = pipe(&tree, ".gitignore");
    let (path, repo) = (tree.to_str().unwrap(), site.fix.repo.to_str().unwrap());
    let refused = Git::new().check(path, repo, Force::No, &site.fix.caller).await;
    let Err(WorktreeError::Unknown(cause)) = refused else { panic!("{refused:?}") };
    assert!(cause.contains(pipe.to_str().unwrap()), "{cause}");
    fs::remove_file(&pipe).unwrap();
    assert_eq!(site.done(&completion).await.waits, None);
}

#[tokio::test]
async fn a_pipe_of_a_verification_does_not_hold_up_the_next_one() {
    let site = Site::new();
    site.branch("topic", "echo topic > topic");
    site.item("topic").await;
    let (workspace, commit) = (site.workspace(), site.tip("topic"));
    let place = scratch::prepare(&workspace, "verify", &commit, Leftovers::Keep).unwrap();
    let pipe = pipe(&place.dir, ".gitignore");
    let place = scratch::prepare(&workspace, "verify", &commit, Leftovers::Keep).unwrap();
    assert!(!pipe.exists());
    assert_eq!(text(&site.fix.at(&place.dir, &["status", "--porcelain"])), "");
}

#[tokio::test]
async fn a_landing_waits_for_no_pipe_in_the_record_of_another_worker() {
    let site = Site::new();
    site.branch("topic", "echo topic > t");
    site.item("topic").await;
    let tree = site.fix.root.join("w");
    site.fix.git(&["worktree", "add", "-q", tree.to_str().unwrap(), "-b", "w"]);
    let workspace = site.workspace();
    let record = workspace.common.join("worktrees/w");
    let held = || holders_of_base(&workspace).map(|held| held.unwrap().len());
    assert_eq!(held(), Ok(1), "the main worktree");
    for name in ["rebase-merge/head-name", "rebase-merge/update-refs", "rebase-apply/head-name", "HEAD"] {
        let file = record.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let content = fs::read(&file).ok();
        let _ = fs::remove_file(&file);
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let fault = held().unwrap_err();
        assert!(fault.cause.starts_with(file.to_str().unwrap()), "{fault:?}");
        assert_eq!(fault.remedy.as_deref(), Some("delete it, then run 'swarm merge retry'"));
        fs::remove_file(&file).unwrap();
        if let Some(content) = content {
            fs::write(&file, content).unwrap();
        }
    }
    assert_eq!(held(), Ok(1));
    // HEAD may be a link, to a reference or to another file.
    let head = site.fix.root.join("head");
    fs::write(&head, "ref: refs/heads/main\n").unwrap();
    for target in [Path::new("refs/heads/main"), &head] {
        fs::remove_file(record.join("HEAD")).unwrap();
        std::os::unix::fs::symlink(target, record.join("HEAD")).unwrap();
        assert!(holders_of_base(&workspace).is_ok_and(|held| held.is_err() || held.unwrap().len() == 2));
    }
    fs::remove_file(record.join("HEAD")).unwrap();
    fs::write(record.join("HEAD"), "ref: refs/heads/w\n").unwrap();
    let branch = workspace.common.join("refs/heads/w");
    fs::remove_file(&branch).unwrap();
    nix::unistd::mkfifo(&branch, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // No commit can move the base through it.
    assert_eq!(held(), Ok(1));
}

#[tokio::test]
async fn a_pipe_in_place_of_the_ref_that_keeps_finished_work_is_replaced() {
    let site = Site::new();
    site.branch("topic", "echo topic > t");
    let tip = site.tip("topic");
    let pin = site.fix.repo.join(".git").join(super::complete::pinned(&tip));
    fs::create_dir_all(pin.parent().unwrap()).unwrap();
    nix::unistd::mkfifo(&pin, nix::sys::stat::Mode::S_IRWXU).unwrap();
    site.item("topic").await;
    assert_eq!(fs::read_to_string(&pin).unwrap().trim_end(), tip);
}
