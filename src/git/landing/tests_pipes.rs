//! Pipes in place of files from which git reads its rules.

use std::fs;
use std::path::{Path, PathBuf};

use swarm_ports::{Force, WorktreeError, Worktrees as _};

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
