//! Conflicts without markers that a resolver leaves as the merge has left them.

use std::fs;
use std::os::unix::fs::symlink;

use swarm_model::merge::Resolution;

use super::tests_checkout::Site;
use super::{resolve, scratch};
use crate::repository::markers;

#[tokio::test]
async fn a_conflict_without_markers_must_be_resolved_by_the_resolver() {
    let site = Site::new();
    let repo = &site.fix.repo;
    fs::write(repo.join("logo"), "a\0").unwrap();
    fs::write(repo.join("gone"), "1\n2\n3\n4\n").unwrap();
    symlink("one", repo.join("link")).unwrap();
    site.fix.git(&["add", "."]);
    site.fix.commit("files", "f", "1\n");
    site.branch("topic", "printf 'topic\\0' > logo; ln -sfn topic link; sed -i s/4/topic/ gone; echo x > extra");
    fs::write(repo.join("logo"), "main\0").unwrap();
    fs::remove_file(repo.join("link")).unwrap();
    symlink("main", repo.join("link")).unwrap();
    site.fix.git(&["rm", "-q", "gone"]);
    site.fix.git(&["add", "."]);
    site.fix.commit("others", "f", "main\n");
    let (item, onto, log) = (site.item("topic").await, site.tip("main"), super::tests_complete::log(&site));
    let workspace = site.workspace();
    let place = scratch::prepare(&workspace, "resolve-0", &onto, scratch::Leftovers::Delete).unwrap();
    assert!(!site.fix.attempt(&place.dir, &["merge", "--no-commit", "--no-ff", &item.tip]).0, "a conflict");
    let stopped = markers::stopped(&|| place.read(&workspace), &place.entry, &place.dir).unwrap();
    let commit = || resolve::commit_result(&workspace, &place, &item, &onto, &stopped, &log).unwrap();
    let is_left = |path: &str| {
        let why = "(it must change the file, or run 'git add' or 'git rm' on it)";
        assert_eq!(commit(), Resolution::Failed(format!("the resolver left {path} unresolved {why}")));
    };
    is_left("gone");
    site.fix.at(&place.dir, &["rm", "-q", "gone"]);
    is_left("link");
    // Written again as it was.
    fs::remove_file(place.dir.join("link")).unwrap();
    symlink("main", place.dir.join("link")).unwrap();
    is_left("link");
    fs::remove_file(place.dir.join("link")).unwrap();
    symlink("both", place.dir.join("link")).unwrap();
    is_left("logo");
    site.fix.at(&place.dir, &["add", "logo"]);
    let Resolution::Done(tip) = commit() else { panic!("it failed") };
    assert_eq!(site.fix.git(&["show", &format!("{tip}:link")]), b"both");
    assert_eq!(site.fix.git(&["show", &format!("{tip}:logo")]), b"main\0");
    assert!(!site.fix.attempt(repo, &["cat-file", "-e", &format!("{tip}:gone")]).0);
}

#[test]
fn the_names_of_many_conflicts_fit_into_a_variable() {
    let files: Vec<String> = (0..10_000).map(|number| format!("directory/{number}")).collect();
    let short = resolve::shortened(&files);
    assert!(short.len() < 64 << 10 && short.len() > 63 << 10);
    assert!(short.lines().zip(&files).all(|(one, other)| one == other));
    assert_eq!(resolve::shortened(&files[..2]), "directory/0\ndirectory/1");
}

#[tokio::test]
async fn a_resolver_that_cannot_be_started_is_no_try() {
    let site = Site::new();
    let (mut item, place, onto) = super::tests_complete::stopped_merge(&site).await;
    let _ = place;
    // Without a program that could run it: the site has none.
    item.rules.resolver = Some("true".into());
    let files = vec!["list".to_owned()];
    let workspace = std::sync::Arc::new(site.workspace());
    let resolved = resolve::resolve(std::sync::Arc::clone(&workspace), &item, &onto, &files).await.unwrap();
    let Resolution::Later(why) = resolved else { panic!("{resolved:?}") };
    assert!(why.starts_with("the resolver cannot be started: cannot run 'true': "), "{why}");
    let logs = workspace.own.join("logs");
    let log = fs::read_to_string(logs.join(format!("{}.resolver.log", item.id))).unwrap();
    assert!(log.lines().any(|line| line.starts_with("swarm: cannot run 'true': ")), "{log}");
    assert_eq!(fs::read_to_string(logs.join(format!("{}.resolver.files", item.id))).unwrap(), "list\n");
    assert!(!workspace.own.join(format!("resolve-{}", item.id)).exists());
}
