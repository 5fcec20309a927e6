//! Candidates equal what `git merge` creates.

use swarm_model::merge::queue::{Item, Queue, Rules, State, Strategy};
use swarm_model::merge::{Build, Resolution};
use swarm_ports::Landings as _;

use super::check::Check;
use super::tests_checkout::Site;
use super::{journal, resolve, scratch};
use crate::fixture::text;
use crate::repository::markers;

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

/// A topic that changed a line of `big` and one of `small`, and has landed on the base with a squash.
async fn squashed() -> Site {
    let site = Site::new();
    let lines: String = (1..=30).map(|line| format!("{line}\n")).collect();
    site.fix.commit("big", "big", &lines);
    site.fix.commit("small", "small", &lines);
    site.branch("topic", "sed -i s/^7$/SEVEN/ big; sed -i s/^5$/FIVE/ small");
    changed(&site, "s/^20$/TWENTY/");
    let item = site.item("topic").await;
    site.fix.git(&["merge", "-q", "--squash", "topic"]);
    site.fix.git(&["commit", "-q", "-m", "topic"]);
    let commit = site.tip("main");
    let items = vec![Item { state: State::Landed { commit }, ..item }];
    journal::save(&site.paths, &site.target, &Queue { items, next: 1, ..Queue::default() }).unwrap();
    site
}

/// Changes `big` on the base.
fn changed(site: &Site, script: &str) {
    let big = std::fs::read_to_string(site.fix.repo.join("big")).unwrap();
    let sed = std::process::Command::new("sed").args(["-i", script, "big"]).current_dir(&site.fix.repo).status();
    assert!(sed.unwrap().success() && std::fs::read_to_string(site.fix.repo.join("big")).unwrap() != big, "{script}");
    site.fix.git(&["commit", "-q", "-a", "-m", "of a person"]);
}

/// The item of a branch that goes on from the topic.
async fn continued(site: &Site, name: &str, script: &str) -> Item {
    site.branch(name, &format!("git reset -q --hard topic; {script}"));
    let mut item = site.item(name).await;
    (item.id, item.rules.strategy) = (1, Strategy::Squash);
    item
}

fn words(site: &Site, commit: &str, file: &str) -> Vec<String> {
    let content = text(&site.fix.git(&["show", &format!("{commit}:{file}")]));
    content.lines().filter(|line| line.parse::<u32>().is_err()).map(str::to_owned).collect()
}

#[tokio::test]
async fn what_has_landed_as_another_commit_is_no_change_of_the_next_landing() {
    let (takes_back, improves) = ("s/^SEVEN$/7/; s/^15$/FIFTEEN/", "s/^SEVEN$/SEVEN by a person/; s/^15$/FIFTEEN/");
    let cases = [
        (takes_back, "", &["FIFTEEN", "TWENTY", "25th"][..]),
        (improves, "", &["SEVEN by a person", "FIFTEEN", "TWENTY", "25th"]),
        ("s/^15$/FIFTEEN/", "sed -i s/^SEVEN$/SEVENTH/ big; ", &["SEVENTH", "FIFTEEN", "TWENTY", "25th"]),
        // The topic has merged what the base has taken back since.
        ("s/^TWENTY$/20/; s/^15$/FIFTEEN/", "git merge -q --no-edit main~2; ", &["SEVEN", "FIFTEEN", "25th"]),
    ];
    for (of_person, of_worker, expected) in cases {
        let site = squashed().await;
        changed(&site, of_person);
        let item = continued(&site, "next", &format!("{of_worker}sed -i s/^25$/25th/ big")).await;
        let built = site.landings.build(&site.target, &item, &site.tip("main")).await;
        let Build::Made(commit) = built else { panic!("{of_person} {of_worker}: {built:?}") };
        assert_eq!(words(&site, &commit, "big"), expected, "{of_person} {of_worker}");
        assert_eq!(words(&site, &commit, "small"), ["FIVE"]);
        assert_eq!(text(&site.fix.git(&["rev-parse", &format!("{commit}^@")])), site.tip("main"));
    }
}

#[tokio::test]
async fn a_resolver_sees_nothing_again_that_has_landed_as_another_commit() {
    let site = squashed().await;
    changed(&site, "s/^SEVEN$/7/; s/^25$/TWENTYFIVE/");
    let item = continued(&site, "next", "sed -i s/^25$/25th/ big").await;
    let (workspace, onto) = (site.workspace(), site.tip("main"));
    assert_eq!(site.landings.build(&site.target, &item, &onto).await, Build::Conflict(vec!["big".to_owned()]));
    let start = resolve::start(&workspace, &item, &onto).unwrap();
    let place = scratch::prepare(&workspace, "resolve-1", &start, scratch::Leftovers::Delete).unwrap();
    assert!(!site.fix.attempt(&place.dir, &["merge", "--no-commit", "--no-ff", &item.tip]).0, "a conflict");
    let stopped = markers::stopped(&|| place.read(&workspace), &place.entry, &place.dir).unwrap();
    let merged = std::fs::read_to_string(place.dir.join("big")).unwrap();
    assert!(!merged.contains("SEVEN") && merged.contains("25th"), "{merged}");
    let resolved: Vec<&str> = merged.lines().filter(|line| !line.starts_with(['<', '=', '>'])).collect();
    std::fs::write(place.dir.join("big"), resolved.join("\n") + "\n").unwrap();
    let log = super::tests_complete::log(&site);
    let done = resolve::commit_result(&workspace, &place, &item, &start, &stopped, &log).unwrap();
    let Resolution::Done(tip) = done else { panic!("{done:?}") };
    let built = site.landings.build(&site.target, &Item { tip, ..item }, &onto).await;
    let Build::Made(commit) = built else { panic!("{built:?}") };
    assert_eq!(words(&site, &commit, "big"), ["TWENTY", "TWENTYFIVE", "25th"]);
    // Another strategy merges with the base itself.
    let item = Item { rules: Rules::default(), ..site.item("next").await };
    assert_eq!(resolve::start(&workspace, &item, &onto).unwrap(), onto);
}
