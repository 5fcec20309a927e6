//! Candidates equal what `git merge` creates.

use swarm_model::merge::Build;
use swarm_model::merge::queue::Strategy;
use swarm_ports::Landings as _;

use super::check::Check;
use super::tests_checkout::Site;
use crate::fixture::text;

#[tokio::test]
async fn the_attributes_of_the_base_say_how_a_file_is_merged() {
    let site = Site::new();
    site.fix.commit("rules", ".gitattributes", "list merge=union\nlock -merge\n");
    site.fix.commit("list", "list", "one\n");
    site.fix.commit("lock", "lock", "one\ntwo\nthree\nfour\nfive\n");
    for name in ["a", "b"] {
        site.branch(&format!("list-{name}"), &format!("echo {name} >> list"));
    }
    site.branch("lock-a", "sed -i s/one/first/ lock");
    site.branch("lock-b", "sed -i s/five/last/ lock");
    for (file, is_merged) in [("list", true), ("lock", false)] {
        site.fix.git(&["merge", "-q", "--no-edit", &format!("{file}-a")]);
        let item = site.item(&format!("{file}-b")).await;
        let onto = text(&site.fix.git(&["rev-parse", "main"]));
        let built = site.landings.build(&site.target, &item, &onto).await;
        let (merged, _) = site.fix.attempt(&site.fix.repo, &["merge", "-q", "--no-edit", &format!("{file}-b")]);
        assert_eq!(merged, is_merged, "{file}, by git merge");
        match built {
            Build::Made(commit) if is_merged => {
                assert_eq!(text(&site.fix.git(&["show", &format!("{commit}:list")])), "one\na\nb");
            }
            Build::Conflict(files) if !is_merged => assert_eq!(files, ["lock"]),
            other => panic!("{file}: {other:?}"),
        }
        site.fix.attempt(&site.fix.repo, &["merge", "--abort"]);
    }
}

/// Checks a merge of `topic` into `main` with the given tree.
async fn checked(site: &Site, tree: &str) -> Result<(), String> {
    let item = site.item("topic").await;
    let workspace = site.workspace();
    let id = |name: &str| text(&site.fix.git(&["rev-parse", name]));
    let (ours, base) = (id("main"), text(&site.fix.git(&["merge-base", "main", "topic"])));
    let library = workspace.library();
    let (library, bases) = (library.as_deref(), [base]);
    let check = Check { workspace: &workspace, library, name: "topic", bases: &bases, ours: &ours, theirs: &item.tip };
    check.run(tree).map_err(|fault| fault.to_string())
}

/// A topic that changed the first line of a file, and a base that changed the last one.
fn both_changed() -> Site {
    let site = Site::new();
    site.fix.commit("list", "list", "one\ntwo\nthree\nfour\nfive\n");
    site.fix.commit("other", "other", "o\n");
    site.branch("topic", "sed -i s/one/first/ list");
    site.fix.commit("list again", "list", "one\ntwo\nthree\nfour\nlast\n");
    site
}

#[tokio::test]
async fn dropped_and_foreign_changes_are_found() {
    let site = both_changed();
    let merged = text(&site.fix.git(&["merge-tree", "--write-tree", "main", "topic"]));
    assert_eq!(checked(&site, &merged).await, Ok(()));
    let as_it_was = text(&site.fix.git(&["rev-parse", "main^{tree}"]));
    let dropped = checked(&site, &as_it_was).await.expect_err("the first line is unchanged");
    assert_eq!(dropped, "the merge would drop the changes of topic to list");
    site.fix.commit("stray", "other", "somebody's\n");
    let stray = text(&site.fix.git(&["rev-parse", "main^{tree}"]));
    site.fix.git(&["reset", "-q", "--hard", "HEAD~1"]);
    let strange = checked(&site, &stray).await.expect_err("the path is not part of the topic");
    assert_eq!(strange, "the merge would change other, which topic never touched");
}

#[tokio::test]
async fn a_file_that_is_not_added_or_not_removed_is_found() {
    for (script, path) in [("echo q > q", "q"), ("git rm -q other", "other")] {
        let site = Site::new();
        site.fix.commit("other", "other", "o\n");
        site.branch("topic", script);
        site.fix.commit("main goes on", "list", "one\n");
        let as_it_was = text(&site.fix.git(&["rev-parse", "main^{tree}"]));
        let dropped = checked(&site, &as_it_was).await.expect_err("the topic is missing");
        assert_eq!(dropped, format!("the merge would drop the changes of topic to {path}"));
        let merged = text(&site.fix.git(&["merge-tree", "--write-tree", "main", "topic"]));
        assert_eq!(checked(&site, &merged).await, Ok(()));
    }
    // The file appears in the directory to which the base moved the original one.
    let site = Site::new();
    std::fs::create_dir(site.fix.repo.join("d")).unwrap();
    site.fix.commit("in a directory", "d/a", "1\n2\n3\n4\n5\n6\n");
    site.branch("topic", "echo new > d/new");
    site.fix.git(&["mv", "d", "e"]);
    site.fix.git(&["commit", "-qm", "moved"]);
    let merged =
        text(&site.fix.git(&["-c", "merge.directoryRenames=true", "merge-tree", "--write-tree", "main", "topic"]));
    assert!(text(&site.fix.git(&["ls-tree", "-r", "--name-only", &merged])).contains("e/new"));
    assert_eq!(checked(&site, &merged).await, Ok(()));
}

#[tokio::test]
async fn files_in_a_renamed_directory_are_not_reported() {
    let site = Site::new();
    std::fs::create_dir(site.fix.repo.join("d")).unwrap();
    site.fix.commit("in a directory", "d/a", "1\n2\n3\n4\n5\n6\n");
    site.branch("topic", "for n in 1 2 3; do echo $n > d/n$n; done; git add .; git commit -qm files; echo x > x");
    site.fix.git(&["merge", "-q", "--ff-only", "topic~1"]);
    site.fix.git(&["mv", "d", "e"]);
    site.fix.git(&["commit", "-qm", "moved"]);
    let merged = text(&site.fix.git(&["merge-tree", "--write-tree", "main", "topic"]));
    assert_eq!(checked(&site, &merged).await, Ok(()));
    // The files follow the renamed directory.
    let site = Site::new();
    std::fs::create_dir(site.fix.repo.join("d")).unwrap();
    site.fix.commit("in a directory", "d/a", "1\n2\n3\n4\n5\n6\n");
    site.branch("topic", "for n in 1 2 3; do echo $n > d/n$n; done");
    site.fix.git(&["mv", "d", "e"]);
    site.fix.git(&["commit", "-qm", "moved"]);
    let follows = ["-c", "merge.directoryRenames=true", "merge-tree", "--write-tree", "main", "topic"];
    assert_eq!(checked(&site, &text(&site.fix.git(&follows))).await, Ok(()));
}

#[tokio::test]
async fn a_rebase_applies_each_commit_and_is_no_stricter_than_git() {
    let site = Site::new();
    let list = "one\ntwo\nthree\nfour\nfive\nsix\nseven\n";
    site.fix.commit("list", "list", list);
    // The topic reverted this change, and the base made the same change meanwhile.
    let script = "sed -i s/one/first/ list; git commit -qam 'there' --author 'Ada <>'; \
                  sed -i s/first/one/ list; git commit -qam 'and back'; sed -i s/seven/last/ list";
    site.branch("topic", script);
    site.fix.commit("the same", "list", &list.replace("one", "first").replace("four", "4"));
    let mut item = site.item("topic").await;
    item.rules.strategy = Strategy::Rebase;
    let onto = text(&site.fix.git(&["rev-parse", "main"]));
    let Build::Made(commit) = site.landings.build(&site.target, &item, &onto).await else {
        panic!("it can be rebased");
    };
    assert_eq!(text(&site.fix.git(&["show", &format!("{commit}:list")])), "one\ntwo\nthree\n4\nfive\nsix\nlast");
    // An author without a mail stays the author.
    site.branch("second", "echo s > s; git add s; git commit -qm 'by her' --author 'Ada <>'; echo t > t");
    let mut item = site.item("second").await;
    item.rules.strategy = Strategy::Rebase;
    let Build::Made(commit) = site.landings.build(&site.target, &item, &commit).await else {
        panic!("it can be rebased");
    };
    assert_eq!(text(&site.fix.git(&["log", "-1", "--format=%an <%ae>", &format!("{commit}~1")])), "Ada <>");
}

#[tokio::test]
async fn changes_that_the_base_already_has_are_not_reported() {
    let site = both_changed();
    site.fix.commit("the same", "list", "first\ntwo\nthree\nfour\nlast\n");
    let item = site.item("topic").await;
    let onto = text(&site.fix.git(&["rev-parse", "main"]));
    assert_eq!(site.landings.build(&site.target, &item, &onto).await, Build::Contained);
    // With a merge driver of the user's choice, dropped changes are the user's decision.
    site.fix.commit("rules", ".gitattributes", "list merge=ours\n");
    site.fix.commit("another", "list", "one\ntwo\nthree\nfour\nlast\n");
    let as_it_was = text(&site.fix.git(&["rev-parse", "main^{tree}"]));
    assert_eq!(checked(&site, &as_it_was).await, Ok(()));
}

#[tokio::test]
async fn work_that_was_taken_back_is_nothing() {
    let tries = "echo x > x; git add x; git commit -qm try";
    let reverts = "git revert --no-edit HEAD >/dev/null";
    let merges = "git merge -q --no-edit main";
    let cases = [
        (format!("{tries}; {reverts}"), Build::Nothing),
        (format!("{tries}; {merges}; git rm -q x; git commit -qm back"), Build::Nothing),
        ("git commit -q --allow-empty -m nothing".to_owned(), Build::Nothing),
        (merges.to_owned(), Build::Nothing),
        // The base has made the same change.
        ("echo s > same; git add same; git commit -qm same".to_owned(), Build::Contained),
        (format!("echo s > same; git add same; git commit -qm same; {merges}"), Build::Contained),
        (format!("{tries}; {reverts}; echo s > same; git add same; git commit -qm same"), Build::Contained),
    ];
    for (script, expected) in cases {
        for strategy in [Strategy::Merge, Strategy::Squash, Strategy::Rebase] {
            let site = Site::new();
            let theirs = format!("cd {}; echo s > same; git add same; git commit -qm theirs", site.fix.repo.display());
            site.branch("topic", &format!("({theirs}); {script}; exit 0"));
            let mut item = site.item("topic").await;
            item.rules.strategy = strategy;
            let onto = text(&site.fix.git(&["rev-parse", "main"]));
            let built = site.landings.build(&site.target, &item, &onto).await;
            assert_eq!(built, expected, "{strategy:?} {script}");
        }
    }
}
