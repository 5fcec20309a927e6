//! Work of workers whose worktree is not at its path.

use std::fs;

use super::tests_checkout::Site;
use crate::fixture::text;

#[tokio::test]
async fn the_work_of_a_worktree_that_is_not_at_its_path_waits() {
    let site = Site::new();
    let (tree, completion) = site.worker("a");
    fs::write(tree.join("f"), "not committed\n").unwrap();
    let entry = site.fix.repo.join(".git/worktrees/a");
    let away = site.fix.root.join("away");
    let waits = async |why: &str| {
        let done = site.done(&completion).await;
        assert_eq!((done.tip.as_str(), done.waits.as_deref()), ("", Some(why)));
    };
    let (repo, at) = (site.fix.repo.display(), tree.display());
    fs::rename(&tree, &away).unwrap();
    let remove = format!("run 'git -C {repo} worktree remove {at}' if it is gone");
    waits(&format!("its worktree {at} is missing (bring it back to this path, or {remove})")).await;
    // Its disk is not mounted.
    fs::create_dir(&tree).unwrap();
    waits(&format!("its worktree {at} is missing (bring it back to this path, or {remove})")).await;
    fs::remove_dir(&tree).unwrap();
    // As swarm marks its own worktrees.
    fs::write(entry.join("swarm-made"), "").unwrap();
    site.fix.git(&["worktree", "repair", away.to_str().unwrap()]);
    let back = format!("git -C {repo} worktree move {} {at}", away.display());
    waits(&format!("its worktree {at} was moved to {} (run '{back}')", away.display())).await;
    site.fix.git(&["worktree", "move", away.to_str().unwrap(), tree.to_str().unwrap()]);
    let done = site.done(&completion).await;
    assert_eq!(done.waits, None);
    assert_eq!(text(&site.fix.git(&["show", &format!("{}:f", done.tip)])), "not committed");
    // Gone for good.
    fs::remove_dir_all(&tree).unwrap();
    site.fix.git(&["worktree", "remove", tree.to_str().unwrap()]);
    assert_eq!(site.done(&completion).await.waits, None);
}
