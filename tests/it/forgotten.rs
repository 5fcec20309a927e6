//! Work of forgotten workers, which is found by their names: where it lands, and which of several worktrees is meant.

use std::fs;

use crate::{landing, run};

/// A site with a branch `release` that has a commit of its own, as `main` has.
fn with_release() -> landing::Site {
    let site = landing::Site::new();
    site.git(&["branch", "release"]);
    let tree = site.rig.path("release-tree");
    site.git(&["worktree", "add", "-q", tree.to_str().expect("text"), "release"]);
    for (dir, name) in [(&tree, "only-release"), (&site.repo, "only-main")] {
        fs::write(dir.join(name), "\n").expect("written");
        site.rig.git(dir, &["add", name]);
        site.rig.git(dir, &["commit", "-q", "-m", name, "--", name]);
    }
    site.git(&["worktree", "remove", tree.to_str().expect("text")]);
    site
}

/// Returns the files that the last commit of a branch has brought.
fn brought(site: &landing::Site, branch: &str) -> String {
    site.git(&["diff", "--name-only", &format!("{branch}^1"), branch])
}

fn works(site: &landing::Site, words: &[&str]) {
    let said = site.swarm(words);
    assert_eq!(said.code, Some(0), "{words:?}: {said:?}");
}

#[test]
fn work_of_a_forgotten_worker_lands_on_the_base_from_which_it_started() {
    let site = with_release();
    let main = site.git(&["rev-parse", "main"]);
    site.worker("hot", &["--base", "release"], "echo fix > hot");
    works(&site, &["clean", "hot"]);
    let shown = site.swarm(&["diff", "hot", "--name-only"]);
    assert_eq!(shown.ok(), "hot\n", "compared with its base");
    works(&site, &["merge", "add", "hot"]);
    site.swarm(&["merge", "wait", "hot", "--timeout", "25"]).is(0, "hot: landed (release)\n", "");
    assert_eq!(brought(&site, "release"), "hot");
    // A worker that goes on in it has the same base.
    works(&site, &["spawn", "--name", "hot", "--worktree", "--merge", "--", "sh", "-c", "echo more > more"]);
    site.rig.wait("hot");
    site.swarm(&["merge", "wait", "hot", "--timeout", "25"]).is(0, "hot: landed (release)\n", "");
    assert_eq!(brought(&site, "release"), "more");
    // So has what a removal saved.
    site.worker("back", &["--base", "release"], "echo back > back");
    works(&site, &["clean", "back", "--force-dirty"]);
    works(&site, &["restore", "back"]);
    works(&site, &["merge", "add", "back"]);
    site.swarm(&["merge", "wait", "back", "--timeout", "25"]).is(0, "back: landed (release)\n", "");
    assert_eq!((brought(&site, "release").as_str(), site.git(&["rev-parse", "main"])), ("back", main));
}

#[test]
fn the_branch_of_a_forgotten_worker_goes_once_a_later_one_has_landed_its_work() {
    let site = with_release();
    let branches = || site.git(&["branch", "--format", "%(refname:short)"]);
    site.worker("hot", &["--base", "release"], "echo fix > hot");
    works(&site, &["clean", "hot"]);
    let goes_on = ["spawn", "--name", "hot", "--worktree", "--merge", "--", "sh", "-c", "echo more >> hot"];
    works(&site, &goes_on);
    site.rig.wait("hot");
    site.swarm(&["merge", "wait", "hot", "--timeout", "25"]).is(0, "hot: landed (release)\n", "");
    // A worktree that is made again keeps its base.
    works(&site, &["respawn", "hot", "--clean-first"]);
    site.rig.wait("hot");
    site.swarm(&["merge", "wait", "hot", "--timeout", "25"]).is(0, "hot: landed (release)\n", "");
    assert_eq!(branches(), "hot\nmain\nrelease");
    works(&site, &["clean", "hot"]);
    assert_eq!(branches(), "main\nrelease");
    // The next one starts from what is checked out now.
    works(&site, &["spawn", "--name", "hot", "--worktree", "--", "sh", "-c", "test -e only-main && echo >> hot"]);
    site.rig.wait("hot");
    works(&site, &["clean", "hot", "--force-dirty"]);
    works(&site, &["restore", "hot"]);
    works(&site, &goes_on);
    site.rig.wait("hot");
    site.swarm(&["merge", "wait", "hot", "--timeout", "25"]).is(0, "hot: landed (main)\n", "");
    works(&site, &["clean", "hot"]);
    assert_eq!(branches(), "main\nrelease");
}

#[test]
fn the_branch_of_a_forgotten_worker_lands_on_the_base_from_which_it_started() {
    let site = with_release();
    let main = site.git(&["rev-parse", "main"]);
    let script = |name: &str| format!("echo {name} > {name}; git add {name}; git commit -qm {name}");
    for name in ["one", "two", "three"] {
        site.worker(name, &["--base", "release"], &script(name));
        works(&site, &["clean", name]);
        assert!(!site.rig.path(&format!("repo-worktrees/{name}")).exists(), "only the branch is left");
    }
    for (name, shown) in [("one", "one"), ("refs/heads/two", "two")] {
        works(&site, &["merge", "add", name]);
        site.swarm(&["merge", "wait", name, "--timeout", "25"]).is(0, &format!("{name}: landed (release)\n"), "");
        assert_eq!(brought(&site, "release"), shown);
    }
    let said = site.swarm(&["spawn", "--name", "three", "--worktree", "--merge", "--", "true"]);
    assert!(said.code == Some(0) && said.err.contains("continued from its tip; its base is 'release'"), "{said:?}");
    site.swarm(&["merge", "wait", "three", "--timeout", "25"]).is(0, "three: landed (release)\n", "");
    works(&site, &["clean", "three"]);
    assert!(!site.git(&["branch"]).contains("three"));
    assert_eq!((brought(&site, "release").as_str(), site.git(&["rev-parse", "main"])), ("three", main));
}

#[test]
fn work_whose_base_nobody_knows_needs_one() {
    let site = with_release();
    for (name, base) in [("own", "main"), ("other", "release")] {
        site.worker(name, &["--base", base], &format!("echo {name} > {name}"));
        works(&site, &["clean", name]);
        fs::remove_file(site.repo.join(format!(".git/worktrees/{name}/swarm-base"))).expect("an older record");
    }
    works(&site, &["merge", "add", "own"]);
    site.swarm(&["merge", "wait", "own", "--timeout", "25"]).is(0, "own: landed (main)\n", "");
    let said = site.swarm(&["merge", "add", "other"]).refused(1, "it is not known from which branch 'other' started");
    assert!(said.err.contains("swarm merge add other --base BRANCH"), "{said:?}");
    works(&site, &["merge", "add", "other", "--base", "release"]);
    site.swarm(&["merge", "wait", "other", "--timeout", "25"]).is(0, "other: landed (release)\n", "");
    assert_eq!(brought(&site, "release"), "other");
}

#[test]
fn the_name_of_a_job_means_the_work_of_its_last_attempt() {
    let site = run::Site::new();
    site.git(&["branch", "release"]);
    let version = site.rig.path("version");
    let job =
        format!("base = 'release'\n[[job]]\nname = 'w'\nworktree = true\ncommand = 'cp {} w.txt'\n", version.display());
    site.write("jobs.toml", &job);
    for text in ["old", "new"] {
        fs::write(&version, text).expect("written");
        site.run(0, &["jobs.toml"]);
    }
    let shown = site.swarm(&["run", "status", "--home", "jobs.toml"]).ok();
    let name = shown.split("'swarm merge add ").nth(1).and_then(|rest| rest.split('\'').next()).expect("an advice");
    let name = name.split(' ').next().expect("a name");
    assert!(site.swarm(&["diff", name]).ok().contains("+new"));
    let main = site.git(&["rev-parse", "main"]);
    assert_eq!(site.swarm(&["merge", "add", name]).code, Some(0));
    let landed = format!("{name}: landed (release)\n");
    site.swarm(&["merge", "wait", name, "--timeout", "25"]).is(0, &landed, "");
    assert_eq!((site.git(&["show", "release:w.txt"]).as_str(), site.git(&["rev-parse", "main"])), ("new", main));
    // An earlier worktree of that name is refused once the last one is gone.
    assert_eq!(site.swarm(&["clean", name, "--force-dirty"]).code, Some(0));
    let said = site.swarm(&["merge", "add", name]);
    assert!(said.code == Some(1) && said.err.contains("is of an earlier worker of that name"), "{said:?}");
    assert!(
        said.err.contains("swarm merge add refs/heads/arial/") && said.err.contains("/w --base release"),
        "{said:?}"
    );
}

#[test]
fn the_branch_of_a_forgotten_worker_that_started_from_a_commit_needs_a_base() {
    let site = with_release();
    site.worker("old", &["--base", "HEAD~1"], "echo old > old; git add old; git commit -q -m old");
    let cause = "'old' started from a commit and not from a branch, so it has no base to land on";
    site.swarm(&["merge", "add", "old"]).refused(1, cause);
    works(&site, &["clean", "old"]);
    site.swarm(&["merge", "add", "old"]).refused(1, cause);
    works(&site, &["merge", "add", "old", "--base", "release"]);
    site.swarm(&["merge", "wait", "old", "--timeout", "25"]).is(0, "old: landed (release)\n", "");
}
