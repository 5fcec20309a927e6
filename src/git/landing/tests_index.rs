//! Links that an agent puts in place of the index of its worktree, and what git does not write through them.

use std::fs;
use std::path::Path;

use swarm_ports::Landings as _;

use super::tests_checkout::Site;
use crate::fixture::text;

/// Returns a command that replaces the index in `record` by a link to `victim`.
pub(crate) fn swap(record: &Path, victim: &Path) -> String {
    let record = record.display();
    format!("ln -sfn {} {record}/t; mv -T {record}/t {record}/index", victim.display())
}

/// Asserts that nothing of ours is left.
fn no_leftovers(common: &Path, record: &Path) {
    let names = |dir: &Path| fs::read_dir(dir).unwrap().flatten().map(|file| file.file_name()).collect::<Vec<_>>();
    let left = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("swarm-index") || name == "index.lock";
    assert!(!names(common).iter().chain(&names(record)).any(left));
}

#[tokio::test]
async fn an_index_that_becomes_a_link_is_replaced_and_not_followed() {
    for by_worktree in ["false", "true"] {
        let site = Site::new();
        site.fix.git(&["config", "extensions.worktreeConfig", by_worktree]);
        let (tree, mut completion) = site.worker("a");
        let (common, victim) = (site.fix.repo.join(".git"), site.fix.root.join("victim"));
        let record = common.join("worktrees/a");
        fs::write(&victim, "of a person\n").unwrap();
        // As if a completion had been killed after its commit.
        fs::write(tree.join("more"), "more\n").unwrap();
        site.fix.at(&tree, &["add", "more"]);
        site.fix.at(&tree, &["commit", "-qm", "Work of a\n\nCommitted by swarm: it was left uncommitted."]);
        site.fix.at(&tree, &["rm", "-q", "--cached", "more"]);
        let stubbed = site.fix.with_stub_of("log -1 --no-show-signature", &swap(&record, &victim));
        completion.caller.environment = stubbed.environment;
        let done = site.landings.complete(completion.clone()).await.unwrap();
        assert!(record.join("index").symlink_metadata().unwrap().is_file());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "of a person\n");
        assert_eq!((done.waits, done.tip), (None, site.tip("a")));
        assert_eq!(text(&site.fix.at(&tree, &["status", "--porcelain"])), "");
        no_leftovers(&common, &record);
    }
}
