//! Restores of what a removal saved.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{Rig, run};
use crate::run::Site;

/// Makes a worktree with work of all kinds and removes it by force.
fn removed(rig: &Rig, name: &str) -> (PathBuf, PathBuf) {
    let repo = if rig.path("repo").exists() { rig.path("repo") } else { rig.repo() };
    let said = rig.swarm_in(&repo, &["spawn", "--name", name, "--worktree", "--", "true"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    rig.wait(name);
    let tree = rig.path(&format!("repo-worktrees/{name}"));
    std::fs::write(tree.join("file"), "staged\n").expect("written");
    rig.git(&tree, &["add", "file"]);
    std::fs::write(tree.join("file"), "changed\r\n").expect("written");
    std::fs::write(tree.join("new"), "new\n").expect("written");
    std::os::unix::fs::symlink("nowhere", tree.join("link")).expect("made");
    let said = rig.swarm(&["clean", name, "--force-dirty"]);
    assert!(said.code == Some(0) && !tree.exists(), "{said:?}");
    (repo, tree)
}

#[track_caller]
fn is_back(rig: &Rig, tree: &Path) {
    assert_eq!(rig.git(tree, &["status", "--porcelain"]), "MM file\n?? link\n?? new");
    let read = |name: &str| std::fs::read_to_string(tree.join(name)).expect("back");
    assert_eq!((read("file").as_str(), read("new").as_str()), ("changed\r\n", "new\n"));
    assert_eq!(rig.git(tree, &["show", ":file"]), "staged");
    assert_eq!(std::fs::read_link(tree.join("link")).expect("back"), Path::new("nowhere"));
}

#[test]
fn forced_removals_are_listed_shown_and_restored() {
    let rig = Rig::new();
    let (repo, tree) = removed(&rig, "x");
    let said = rig.swarm_in(&repo, &["restore"]);
    let row: Vec<&str> = said.out.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    let head = rig.git(&repo, &["rev-parse", "HEAD"]);
    assert_eq!((row[0], row[4], row[5], row[6]), ("x@1", "x", &head[..12], "3"), "{said:?}");
    assert_eq!(row.last().copied(), tree.to_str(), "{said:?}");
    let all: Value = serde_json::from_str(&rig.swarm_in(&repo, &["restore", "--json"]).ok()).expect("JSON");
    assert_eq!((all["schema"].as_str(), all["saves"].as_array().map(Vec::len)), (Some("swarm.saves/1"), Some(1)));
    assert_eq!((all["saves"][0]["id"].as_str(), all["saves"][0]["changes"].as_u64()), (Some("x@1"), Some(3)));
    let shown = rig.swarm_in(&repo, &["restore", "x", "--show"]).ok();
    assert!(shown.ends_with("M file\nA link\nA new\n"), "{shown}");
    let one: Value =
        serde_json::from_str(&rig.swarm_in(&repo, &["restore", "x", "--show", "--json"]).ok()).expect("JSON");
    assert_eq!((one["schema"].as_str(), one["files"][2]["status"].as_str()), (Some("swarm.save/1"), Some("added")));
    let patch = rig.swarm_in(&repo, &["restore", "x", "--diff"]).ok();
    assert!(patch.contains("+++ b/new\n@@ -0,0 +1 @@\n+new\n"), "{patch}");
    // From any directory, even that of another worktree.
    let said = rig.swarm(&["restore", "x", "-C", repo.to_str().expect("text")]);
    said.is(0, &format!("restored x to {} (branch x)\n", tree.display()), "");
    is_back(&rig, &tree);
    let again = rig.swarm_in(&tree, &["restore", "x@1", "--drop", "--json"]).ok();
    let again: Value = serde_json::from_str(&again).expect("JSON");
    assert_eq!((again["schema"].as_str(), again["dropped"].as_bool()), (Some("swarm.restored/1"), Some(true)));
    assert_eq!(again["notes"][0], "the save was already restored");
    is_back(&rig, &tree);
    let none = format!("swarm: note: no saves in {}\n", repo.display());
    rig.swarm_in(&repo, &["restore"]).is(0, "", &none);
}

#[test]
fn commits_that_an_agent_took_back_are_saved_before_their_branch_is_deleted() {
    let rig = Rig::new();
    let repo = rig.repo();
    let script = "echo 1 > p; git add p; git commit -qm precious; git reset -q --hard HEAD~1";
    rig.swarm_in(&repo, &["spawn", "--name", "w", "--worktree", "--", "sh", "-c", script]).ok();
    rig.wait("w");
    let precious = rig.git(&repo, &["rev-parse", "w@{1}"]);
    let said = rig.swarm(&["clean", "w"]);
    assert!(said.code == Some(0) && said.err.contains("'swarm restore w' brings them back"), "{said:?}");
    assert_eq!(rig.git(&repo, &["branch", "--list", "w"]), "");
    let saves: Value = serde_json::from_str(&rig.swarm_in(&repo, &["restore", "--json"]).ok()).expect("JSON");
    assert_eq!((saves["saves"][0]["head"].as_str(), &saves["saves"][0]["path"]), (Some(&*precious), &Value::Null));
    assert_eq!(saves["saves"][0]["commits"].as_array().map(Vec::len), Some(0));
    let tree = rig.path("repo-worktrees/w");
    let said = rig.swarm_in(&repo, &["restore", "w", "--drop"]);
    said.is(0, &format!("restored w to {} (branch w)\n", tree.display()), "");
    assert_eq!(rig.git(&tree, &["log", "-1", "--format=%s"]), "precious");
}

#[test]
fn commits_that_a_workstream_took_back_are_saved_when_it_has_landed() {
    let site = Site::new();
    let commit = |name: &str| format!("echo 1 > {name}; git add {name}; git commit -qm {name}");
    site.spec("a", "", &format!("{}; git reset -q --hard HEAD~1; {}", commit("precious"), commit("other")));
    site.commit();
    site.plan();
    site.run(0, &[]);
    assert_eq!((site.landed("other").as_str(), site.git(&["branch", "--list", "arial/*"]).as_str()), ("1", ""));
    let saved = site.git(&["for-each-ref", "--format=%(refname)", "refs/swarm/trash/arial/a/"]);
    assert_eq!(site.git(&["show", &format!("{saved}:precious")]), "1");
    let events = site.swarm(&["events"]).ok();
    assert!(events.contains(&saved), "{events}");
}

#[test]
fn an_impossible_restore_is_refused_and_changes_nothing() {
    let rig = Rig::new();
    let (repo, tree) = removed(&rig, "x");
    let refused = |words: &[&str], cause: &str, hint: &str| {
        let said = rig.swarm_in(&repo, words).refused(1, cause);
        assert!(said.err.contains(hint), "{said:?}");
    };
    let nothing = format!("save 'y' not found in {}", repo.display());
    refused(&["restore", "y"], &nothing, "did you mean 'x'?");
    std::fs::create_dir_all(&tree).expect("made");
    std::fs::write(tree.join("mine"), "mine").expect("written");
    refused(&["restore", "x"], &format!("{} already exists", tree.display()), "--to");
    let to = rig.path("else");
    let to = to.to_str().expect("text");
    refused(&["restore", "x", "--to", to, "--branch", "main"], "a branch named 'main' already exists", "another");
    refused(&["restore", "x", "--to", to, "--branch", "a..b"], "'a..b' is not a valid branch name", "");
    let outside = rig.swarm(&["restore"]).refused(1, &format!("no git repository at {}", rig.cwd().display()));
    assert!(outside.err.contains("--repo"), "{outside:?}");
    assert!(!rig.path("else").exists() && std::fs::read_dir(&tree).expect("there").count() == 1);
    rig.swarm_in(&repo, &["restore", "x", "--to", "../else"]).is(0, &format!("restored x to {to} (branch x)\n"), "");
    is_back(&rig, &rig.path("else"));
}

#[test]
fn saves_of_one_name_are_distinguished_and_all_repositories_are_listed() {
    let rig = Rig::new();
    let (_, tree) = removed(&rig, "x");
    let (repo, _) = removed(&rig, "x");
    let list: Value = serde_json::from_str(&rig.swarm_in(&repo, &["restore", "--json"]).ok()).expect("JSON");
    let ids: Vec<&str> =
        list["saves"].as_array().expect("a list").iter().filter_map(|save| save["id"].as_str()).collect();
    assert_eq!(ids, ["x@1", "x@2"]);
    let stamp = list["saves"][1]["stamp"].as_str().expect("a stamp");
    rig.swarm_in(&repo, &["restore", &format!("x/{stamp}")]).ok();
    is_back(&rig, &tree);
    rig.swarm_in(&repo, &["spawn", "--name", "other", "--worktree", "--", "true"]).ok();
    let all: Value = serde_json::from_str(&rig.swarm(&["restore", "--all-repos", "--json"]).ok()).expect("JSON");
    assert_eq!(all["saves"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_restore_killed_at_any_call_of_git_has_the_same_result() {
    let rig = Rig::new();
    let (repo, tree) = removed(&rig, "x");
    rig.git(&repo, &["branch", "-D", "x"]);
    let real = rig.program("sh").args(["-c", "command -v git"]).output().expect("found").stdout;
    let real = String::from_utf8(real).expect("text");
    let (count, stubs) = (rig.path("count"), rig.path("stubs"));
    std::fs::create_dir(&stubs).expect("made");
    let script = format!(
        "#!/bin/sh\nn=$(($(cat {0}) - 1))\necho $n > {0}\n[ $n -eq 0 ] && kill -9 $PPID && exit 1\nexec {1} \"$@\"\n",
        count.display(),
        real.trim()
    );
    rig.file("stub", &script);
    rig.program("sh").args(["-c", "cp ../stub ../stubs/git && chmod 755 ../stubs/git"]).status().expect("run");
    let path = format!("{}:{}", stubs.display(), std::env::var("PATH").expect("a path"));
    for call in 1.. {
        std::fs::write(&count, call.to_string()).expect("written");
        let mut command = rig.command(&["restore", "x", "-C", repo.to_str().expect("text")]);
        command.env("PATH", &path);
        let said = run(command);
        let done = said.code == Some(0);
        assert!(done || said.code.is_none(), "call {call}: {said:?}");
        if !done {
            rig.swarm_in(&repo, &["restore", "x"]);
        }
        is_back(&rig, &tree);
        assert_eq!(rig.git(&tree, &["branch", "--show-current"]), "x", "call {call}");
        assert_eq!(std::fs::read_dir(rig.path("repo-worktrees")).expect("there").count(), 1, "call {call}");
        assert_eq!(rig.git(&repo, &["worktree", "list"]).lines().count(), 2, "call {call}");
        if done {
            assert!(call > 15, "only {call} calls");
            return;
        }
        rig.git(&repo, &["worktree", "remove", "--force", tree.to_str().expect("text")]);
        rig.git(&repo, &["branch", "-D", "x"]);
    }
}
