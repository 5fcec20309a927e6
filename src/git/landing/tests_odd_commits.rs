//! Commits that only some versions or settings of git create, and that land nevertheless.

use std::fs;

use swarm_model::merge::queue::{Item, Strategy};
use swarm_model::merge::{Build, Landing};
use swarm_ports::Landings as _;

use super::tests_checkout::Site;
use crate::fixture::text;

impl Site {
    async fn item_by(&self, name: &str, strategy: Strategy) -> Item {
        let mut item = self.item(name).await;
        item.rules.strategy = strategy;
        item
    }

    async fn built(&self, item: &Item) -> String {
        let base = self.landings.read_base(&self.target).await.unwrap();
        match self.landings.build(&self.target, item, &base).await {
            Build::Made(commit) => commit,
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn land_item(&self, item: &Item) -> Landing {
        let base = self.landings.read_base(&self.target).await.unwrap();
        let commit = self.built(item).await;
        self.landings.land(&self.target, item, &base, &commit).await
    }

    fn shows(&self, format: &str, commit: &str) -> String {
        let format = format!("--format={format}");
        text(&self.fix.git(&["log", "-1", "--no-show-signature", "--encoding=UTF-8", &format, commit]))
    }
}

/// Returns a script that commits `file`, and then gives that commit another author and committer.
fn by(author: &str, committer: &str, file: &str) -> String {
    let people = format!("s/^author .* 1/author {author} 1/; s/^committer .* 1/committer {committer} 1/");
    format!(
        "echo {file} > {file}; git add {file}; GIT_AUTHOR_DATE='1700000000 +0100' git commit -qm {file}; \
         git reset -q --soft $(git cat-file commit HEAD | sed '{people}' | git hash-object -t commit -w --stdin \
         --literally); echo {file} > {file}-end"
    )
}

#[tokio::test]
async fn a_commit_without_an_author_s_name_lands_by_rebase() {
    let site = Site::new();
    let cases = [
        ("committer", by(" <>", "Ada <ada@localhost>", "a"), "Ada <ada@localhost>"),
        ("mail", by(" <her@localhost>", "Ada <ada@localhost>", "b"), "Ada <ada@localhost>"),
        ("dots", by(".. <her@localhost>", "Ada <>", "c"), "Ada <>"),
        ("nobody", by(" <>", " <>", "d"), "T <t@localhost>"),
        ("named", by("Eve <eve@localhost>", " <>", "e"), "Eve <eve@localhost>"),
    ];
    for (name, script, author) in cases {
        site.branch(name, &script);
        let item = site.item_by(name, Strategy::Rebase).await;
        assert_eq!(site.land_item(&item).await, Landing::Done(Vec::new()), "{name}");
        assert_eq!(site.shows("%an <%ae> %ad", "main~1").split(" Tue").next(), Some(author), "{name}");
        assert_eq!(site.shows("%at", "main~1"), "1700000000", "{name}: the date is the author's");
    }
}

#[tokio::test]
async fn objects_that_a_remote_promised_are_not_missing() {
    let site = Site::new();
    let (repo, origin) = (&site.fix.repo, site.fix.root.join("origin"));
    for dir in ["in", "out"] {
        fs::create_dir(repo.join(dir)).unwrap();
        site.fix.commit(dir, &format!("{dir}/a"), "1\n");
    }
    site.fix.git(&["switch", "-qc", "feature"]);
    site.fix.commit("of the feature", "out/new", "a blob that nobody fetches\n");
    site.fix.git(&["switch", "-q", "main"]);
    site.fix.git(&["config", "uploadpack.allowFilter", "true"]);
    fs::rename(repo, &origin).unwrap();
    let url = format!("file://{}", origin.display());
    let clone = ["clone", "-q", "--filter=blob:none", "--sparse", &url, repo.to_str().unwrap()];
    site.fix.at(&site.fix.root, &clone);
    site.fix.git(&["sparse-checkout", "set", "in"]);
    let merge = "git merge -q --no-edit origin/feature";
    site.branch("one", &format!("echo one > in/one; git add in/one; git commit -qm one; {merge}; echo 1 > in/more"));
    site.branch("two", "echo two > in/two");
    fs::rename(&origin, site.fix.root.join("gone")).unwrap();
    assert!(!site.fix.attempt(repo, &["cat-file", "-e", "one:out/new"]).0, "it was never fetched");
    let one = site.item("one").await;
    assert_eq!(site.land_item(&one).await, Landing::Done(Vec::new()));
    assert!(repo.join("in/more").exists());
    // Nobody promised what was made here.
    let two = site.item("two").await;
    let blob = text(&site.fix.git(&["rev-parse", "two:in/two"]));
    fs::remove_file(repo.join(".git/objects").join(&blob[..2]).join(&blob[2..])).unwrap();
    let landed = site.land_item(&two).await;
    assert!(matches!(&landed, Landing::Failed(why) if why.contains("are missing in the repository")), "{landed:?}");
}
