//! Recovery from a landing that was interrupted.

use std::process::{Command, Stdio};

use super::checkout;
use super::tests_checkout::Site;
use crate::fixture::text;

#[tokio::test]
async fn a_git_of_the_user_does_not_delay_the_recovery() {
    let site = Site::new();
    site.branch("topic", "echo t > t");
    let item = site.item("topic").await;
    let workspace = site.workspace();
    // As in `git commit`, which waits for an editor.
    let mut git = Command::new("git");
    git.args(["hash-object", "--stdin"]).current_dir(&site.fix.repo).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut users = git.spawn().unwrap();
    let checkout::Planned::Ready(plan) = checkout::plan(&workspace, &site.tip("main"), &item.tip).unwrap() else {
        panic!("it waits")
    };
    plan.marker.save(&workspace).unwrap();
    assert_eq!(plan.lock().unwrap(), None);
    checkout::recover(&workspace, &plan.marker).unwrap();
    assert!(!site.fix.repo.join(".git/index.lock").exists() && checkout::Marker::load(&workspace).unwrap().is_none());
    assert!(users.try_wait().unwrap().is_none());
    drop(users.stdin.take());
    users.wait().unwrap();
    // What is waited for instead.
    let environment = workspace.write().args(["-c", "alias.environment=!env", "environment"]).run().unwrap();
    let mark = format!("SWARM_LANDING={}", workspace.own.display());
    assert!(text(&environment).lines().any(|line| line == mark));
}
