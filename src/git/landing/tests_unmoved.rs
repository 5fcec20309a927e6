//! Landings whose base fails to move after the files and the index were updated.

use std::fs;
use std::path::Path;

use swarm_model::merge::Landing;

use super::tests_checkout::Site;
use super::{checkout, land};
use crate::fixture::text;

/// Returns a site with a branch `topic`, and a worktree `second` that has the base checked out, too. While a landing updates
/// the files, the lock of the base disappears, with which it cannot move.
fn site() -> Site {
    let mut site = Site::new();
    site.fix.commit("more", "gone", "1\n");
    site.branch("topic", "echo topic > f; rm gone; mkdir new; echo new > new/file");
    let second = site.fix.root.join("second");
    site.fix.git(&["worktree", "add", "-q", "--force", second.to_str().unwrap(), "main"]);
    let lock = site.fix.repo.join(".git/refs/heads/main.lock");
    site.fix.caller = site.fix.with_stub_of("read-tree -m", &format!("rm -f {}", lock.display()));
    site
}

/// Asserts that nothing of the landing is left.
fn assert_is_back(site: &Site, from: &str) {
    let common = site.fix.repo.join(".git");
    assert_eq!(site.tip("main"), from);
    for (tree, git_dir) in
        [(&site.fix.repo, common.clone()), (&site.fix.root.join("second"), common.join("worktrees/second"))]
    {
        assert_eq!(text(&site.fix.at(tree, &["status", "--porcelain", "-uall"])), "", "{}", tree.display());
        assert_eq!(fs::read_to_string(tree.join("f")).unwrap(), "1\n");
        assert!(tree.join("gone").exists() && !tree.join("new").exists());
        no_leftovers(&git_dir);
    }
}

fn no_leftovers(git_dir: &Path) {
    let names = fs::read_dir(git_dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut left = names.filter(|name| name == "index.lock" || name.to_string_lossy().starts_with("swarm-landing"));
    assert_eq!(left.next(), None);
}

#[tokio::test]
async fn what_has_not_landed_is_not_staged() {
    let site = site();
    let from = site.tip("main");
    let landed = site.land("topic").await;
    let why = "cannot move the base: another process removed the lock of the branch";
    assert_eq!(landed, Landing::Failed(why.to_owned()));
    assert_is_back(&site, &from);
}

#[tokio::test]
async fn a_power_cut_before_the_base_moved_leaves_nothing_staged() {
    let site = site();
    let (from, item) = (site.tip("main"), site.item("topic").await);
    let workspace = site.workspace();
    land::land(&workspace, &from, &item.tip).unwrap_err();
    let file = workspace.own.join("landing.json");
    let mut marker: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    marker["boot"] = "an earlier one".into();
    fs::write(&file, marker.to_string()).unwrap();
    fs::write(site.fix.repo.join("new/file"), "").unwrap();
    fs::write(site.fix.root.join("second/f"), "").unwrap();
    checkout::recover(&workspace, &checkout::Marker::load(&workspace).unwrap().unwrap()).unwrap();
    assert_is_back(&site, &from);
}

#[tokio::test]
async fn what_a_person_has_staged_since_stays() {
    let site = site();
    let (from, item) = (site.tip("main"), site.item("topic").await);
    let workspace = site.workspace();
    land::land(&workspace, &from, &item.tip).unwrap_err();
    // The lock was in the way.
    fs::remove_file(site.fix.repo.join(".git/index.lock")).unwrap();
    fs::write(site.fix.repo.join("mine"), "mine\n").unwrap();
    site.fix.git(&["add", "mine"]);
    checkout::recover(&workspace, &checkout::Marker::load(&workspace).unwrap().unwrap()).unwrap();
    let staged = text(&site.fix.git(&["diff", "--cached", "--name-only"]));
    assert!(staged.lines().any(|name| name == "mine"), "{staged}");
    assert_eq!(text(&site.fix.git(&["diff", "--name-only"])), "", "the index and the files agree");
    no_leftovers(&site.fix.repo.join(".git"));
}

#[tokio::test]
async fn a_base_that_has_moved_keeps_the_new_index() {
    let site = site();
    let (from, item) = (site.tip("main"), site.item("topic").await);
    let workspace = site.workspace();
    land::land(&workspace, &from, &item.tip).unwrap_err();
    // As if the process had been killed right after it moved the base.
    site.fix.git(&["update-ref", "refs/heads/main", &item.tip]);
    checkout::recover(&workspace, &checkout::Marker::load(&workspace).unwrap().unwrap()).unwrap();
    for tree in [site.fix.repo.clone(), site.fix.root.join("second")] {
        assert_eq!(text(&site.fix.at(&tree, &["status", "--porcelain", "-uall"])), "");
        assert_eq!(fs::read_to_string(tree.join("f")).unwrap(), "topic\n");
    }
    no_leftovers(&site.fix.repo.join(".git"));
}
