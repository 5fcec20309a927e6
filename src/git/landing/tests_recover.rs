//! Recovery from a landing that was interrupted.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use swarm_model::merge::Landing;
use swarm_model::merge::queue::Obstacle;
use swarm_ports::Landings as _;

use super::tests_checkout::Site;
use super::{checkout, complete, with_retries};
use crate::fixture::{Fixture, text};
use crate::repository::fault::Fault;

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
    let checkout::Planned::Ready(mut plan) = checkout::plan(&workspace, &site.tip("main"), &item.tip).unwrap() else {
        panic!("it waits")
    };
    plan.marker.save(&workspace).unwrap();
    assert!(plan.lock().unwrap().is_none());
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

#[tokio::test]
async fn what_a_failed_landing_left_is_removed_once_that_is_possible() {
    let site = Site::new();
    site.branch("topic", "echo t > t");
    let item = site.item("topic").await;
    let workspace = site.workspace();
    let checkout::Planned::Ready(plan) = checkout::plan(&workspace, &site.tip("main"), &item.tip).unwrap() else {
        panic!("it waits")
    };
    plan.marker.save(&workspace).unwrap();
    let in_the_way = site.fix.repo.join(".git/swarm-landing.lock");
    fs::remove_file(&in_the_way).unwrap();
    fs::create_dir(&in_the_way).unwrap();
    let landed = site.land("topic").await;
    assert!(matches!(&landed, Landing::Stuck(_)), "{landed:?}");
    let cleared = async || site.landings.cleared(&site.target, &Obstacle::Leftovers).await;
    assert!(cleared().await.is_err());
    assert!(checkout::Marker::load(&workspace).unwrap().is_some());
    fs::remove_dir(&in_the_way).unwrap();
    cleared().await.unwrap();
    assert!(checkout::Marker::load(&workspace).unwrap().is_none());
    assert_eq!(site.land("topic").await, Landing::Done(Vec::new()));
}

#[test]
fn a_lock_that_another_git_may_have_taken_meanwhile_stays() {
    let fix = Fixture::new();
    let common = fix.repo.join(".git");
    let locks: Vec<PathBuf> = complete::locks_of(&common, None);
    let lock = common.join("packed-refs.lock");
    // Returns whether the lock is still there after a git was killed.
    let stays = || {
        let is_first = std::cell::Cell::new(true);
        let tried = with_retries(&|| locks.clone(), || {
            if is_first.replace(false) {
                fs::write(&lock, "").unwrap();
                return Err(Fault { killed: true, ..Fault::new("git was killed") });
            }
            Ok(lock.exists())
        });
        tried.unwrap()
    };
    let git = fix.working_in(&fix.repo);
    assert!(stays(), "it may be the lock of the other git");
    drop(git);
    assert!(!stays());
}
