//! Landings of files that a filter writes, which may fail, as that of git-lfs without a network.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use swarm_model::merge::Landing;
use swarm_model::merge::queue::{Addition, Rules};
use swarm_ports::{Completion, Landings as _};

use super::tests_checkout::Site;
use crate::fixture::text;

/// A site in which a filter that works writes `*.lf`.
fn site() -> Site {
    let site = Site::new();
    for key in ["clean", "smudge"] {
        site.fix.git(&["config", &format!("filter.fake.{key}"), "cat"]);
    }
    site.fix.git(&["config", "filter.fake.required", "true"]);
    site.fix.commit("attributes", ".gitattributes", "*.lf filter=fake\n");
    site.fix.commit("a file", "z.lf", "1\n");
    site
}

impl Site {
    fn filter(&self, command: &str) {
        self.fix.git(&["config", "filter.fake.smudge", command]);
    }

    /// Asserts that a landing fails because of the filter, and leaves a worktree as it was.
    async fn fails(&self, name: &str, tree: &Path) {
        let state = || {
            let find = std::process::Command::new("find")
                .args([".", "-name", ".git", "-prune", "-o", "-printf", "%p %y %m %T@ %l\\n"])
                .current_dir(tree)
                .output()
                .unwrap();
            let mut lines: Vec<String> =
                text(&find.stdout).lines().filter(|line| !line.contains(" d ")).map(str::to_owned).collect();
            lines.sort();
            (lines, text(&self.fix.at(tree, &["status", "--porcelain", "-uall"])))
        };
        let git_dir = text(&self.fix.at(tree, &["rev-parse", "--absolute-git-dir"]));
        let before = state();
        let landed = self.land_on(name, "main").await;
        assert!(matches!(&landed, Landing::Failed(why) if why.starts_with("git cannot update ")), "{landed:?}");
        assert_eq!(state(), before, "{name}");
        let left = fs::read_dir(git_dir).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(
            left.into_iter().all(|name| name != "index.lock" && !name.to_string_lossy().starts_with("swarm-landing"))
        );
    }

    /// Lands a branch on a base that need not be checked out by the caller.
    async fn land_on(&self, name: &str, base: &str) -> Landing {
        let completion = Completion { base: Some(base.into()), ..self.completion(name) };
        let done = self.landings.complete(completion).await.unwrap();
        let addition = Addition { name: name.into(), tip: done.tip, rules: done.rules, ..Addition::default() };
        let item = addition.into_item(0, &Rules::default(), 0);
        let from = self.landings.read_base(&self.target).await.unwrap();
        self.landings.land(&self.target, &item, &from, &item.tip).await
    }
}

#[tokio::test]
async fn a_filter_that_fails_leaves_everything_as_it_was() {
    let site = site();
    let repo = site.fix.repo.clone();
    fs::create_dir_all(repo.join("e/sub")).unwrap();
    for (file, content) in [("e/sub/x", "1\n"), ("e/y", "2\n"), ("gone", "x\n"), ("h", "h\n")] {
        fs::write(repo.join(file), content).unwrap();
    }
    std::os::unix::fs::symlink("f", repo.join("link")).unwrap();
    site.fix.git(&["add", "."]);
    site.fix.commit("more", "exec", "x\n");
    site.branch("changed", "echo new > aa; echo 2 > z.lf");
    site.branch(
        "kinds",
        "rm -r e; echo file > e; rm f; mkdir f; echo in > f/in; rm link; echo plain > link; chmod 755 exec; rm gone; ln -s \
         nowhere new; rm h; ln -s ../d h; mkdir -p deep/er; echo n > deep/er/n; echo z > zz.lf",
    );
    site.filter("false");
    for name in ["changed", "kinds"] {
        site.fails(name, &repo).await;
    }
    site.filter("cat");
    assert_eq!(site.land_on("kinds", "main").await, Landing::Done(Vec::new()));
    assert_eq!(text(&site.fix.git(&["status", "--porcelain"])), "");
}

#[tokio::test]
async fn a_large_file_of_a_landing_that_failed_is_removed() {
    let site = site();
    // More than what git may print to us; `smudge` changes what `clean` knows.
    site.branch("large", "truncate -s 70M big.bin; echo z > zz.lf");
    site.filter("false");
    let repo = site.fix.repo.clone();
    site.fails("large", &repo).await;
}

#[tokio::test]
async fn a_filter_fails_in_a_worktree_on_another_file_system() {
    let site = site();
    let away = tempfile::tempdir().unwrap();
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    if device(away.path()) == device(&site.fix.repo) {
        return;
    }
    let tree = away.path().canonicalize().unwrap().join("w");
    site.fix.git(&["switch", "-qc", "side"]);
    site.fix.git(&["worktree", "add", "-q", tree.to_str().unwrap(), "main"]);
    site.branch("changed", "git switch -q changed; echo new > aa; echo 2 > f; echo 2 > z.lf");
    site.filter("false");
    site.fails("changed", &tree).await;
    site.filter("cat");
    assert_eq!(site.land_on("changed", "main").await, Landing::Done(Vec::new()));
    assert_eq!(text(&site.fix.at(&tree, &["status", "--porcelain"])), "");
}
