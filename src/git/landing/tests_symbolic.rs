//! Symbolic refs in place of branches and pins: what swarm writes there moves no other branch.

use std::fs;

use swarm_model::merge::Resolution;

use super::tests_checkout::Site;
use super::tests_complete::{log, stopped_merge, write};
use super::{complete, resolve};
use crate::fixture::text;
use crate::repository::markers::Conflict;

#[tokio::test]
async fn a_branch_that_leads_to_another_gets_no_commit() {
    let site = Site::new();
    site.fix.git(&["branch", "release"]);
    let (tree, completion) = site.worker("a");
    site.fix.at(&tree, &["reset", "-q", "--hard", "main"]);
    for target in ["main", "release"] {
        site.fix.git(&["symbolic-ref", "refs/heads/a", &format!("refs/heads/{target}")]);
        let done = site.done(&completion).await;
        assert_eq!((done.tip, done.waits), (site.tip("main"), None), "nothing is to be committed");
        fs::write(tree.join("f"), "left\n").expect("written");
        let done = site.done(&completion).await;
        assert_eq!((done.tip.as_str(), done.is_mendable), ("", true));
        let why = done.waits.expect("it waits");
        let cause = format!("its branch 'a' is a symbolic ref to '{target}', which a commit would move");
        assert!(why.starts_with(&cause), "{why}");
        assert_eq!(text(&site.fix.git(&["log", "--format=%s", target])), "first");
        site.fix.at(&tree, &["checkout", "-q", "f"]);
    }
    // The remedy.
    fs::write(tree.join("f"), "left\n").expect("written");
    let why = site.done(&completion).await.waits.expect("it waits");
    let command = why.split_once("run 'git ").and_then(|(_, rest)| rest.split_once('\''));
    let words: Vec<&str> = command.expect("a command").0.split(' ').collect();
    site.fix.git(&words);
    let done = site.done(&completion).await;
    assert_eq!((done.tip, done.waits), (site.tip("a"), None));
    assert_eq!(text(&site.fix.git(&["log", "--format=%s", "main..a"])), "Work of a");
    assert_eq!(text(&site.fix.at(&tree, &["reflog", "-1", "--format=%gs"])), "swarm: uncommitted work");
    assert_eq!(site.tip("release"), site.tip("main"));
}

#[tokio::test]
async fn a_branch_that_becomes_symbolic_at_the_last_moment_moves_no_other() {
    let site = Site::new();
    let (tree, mut completion) = site.worker("a");
    fs::write(tree.join("f"), "left\n").expect("written");
    site.fix.git(&["branch", "release", "a"]);
    let repo = site.fix.repo.display();
    let stub = format!("$GIT -C {repo} symbolic-ref refs/heads/a refs/heads/release");
    completion.caller.environment = site.fix.with_stub_of("commit-tree", &stub).environment;
    let before = site.tip("release");
    let done = site.done(&completion).await;
    assert_eq!((site.tip("release"), done.tip.as_str()), (before, ""));
    let why = done.waits.expect("it waits");
    assert!(why.starts_with("its branch 'a' is a symbolic ref to 'release'"), "{why}");
    assert_eq!(fs::read_to_string(tree.join("f")).expect("there"), "left\n");
}

#[tokio::test]
async fn the_result_of_a_resolver_is_pinned_and_moves_no_branch() {
    let site = Site::new();
    let (item, place, onto) = stopped_merge(&site).await;
    write(&place.dir, &["list"]);
    site.fix.at(&place.dir, &["add", "list"]);
    site.fix.at(&place.dir, &["commit", "-q", "-m", "resolved"]);
    let head = text(&site.fix.at(&place.dir, &["rev-parse", "HEAD"]));
    let pin = complete::pinned(&head);
    site.fix.git(&["symbolic-ref", &pin, "refs/heads/main"]);
    let (workspace, conflicts, log) = (site.workspace(), [Conflict::at("list")], log(&site));
    let resolved = resolve::commit_result(&workspace, &place, &item, &onto, &conflicts, &log).expect("committed");
    assert_eq!(resolved, Resolution::Done(head.clone()));
    assert_eq!((site.tip("main"), site.tip(&pin)), (onto, head));
}
