//! Worktrees: where they are made, what they start from, and that no work in them is ever destroyed.

use std::path::{Path, PathBuf};
use std::thread;

use crate::common::{Rig, Said, proc, remove_worktree};

/// Spawns a worker that waits, with a worktree, and returns the worktree's path.
#[track_caller]
fn tree(rig: &Rig, repo: &Path, name: &str, flags: &[&str]) -> PathBuf {
    spawned(rig, repo, name, flags, &["sleep", "600"]);
    PathBuf::from(rig.view(name)["worktree"]["path"].as_str().expect("a path"))
}

#[track_caller]
fn spawned(rig: &Rig, repo: &Path, name: &str, flags: &[&str], words: &[&str]) {
    let words = [&["spawn", "--name", name, "--worktree"], flags, &["--"], words].concat();
    rig.swarm_in(repo, &words).ok();
}

/// Linked worktrees that git knows.
fn linked(rig: &Rig, repo: &Path) -> usize {
    rig.git(repo, &["worktree", "list", "--porcelain"]).matches("worktree ").count() - 1
}

fn branches(rig: &Rig, repo: &Path) -> String {
    rig.git(repo, &["branch", "--format=%(refname:short)"])
}

/// Reference that a note names.
#[track_caller]
fn saved(said: &Said, name: &str) -> String {
    let prefix = format!("swarm: note: uncommitted work of '{name}' was saved as ");
    let line = said.err.lines().find_map(|line| line.strip_prefix(&prefix));
    let reference = line.unwrap_or_else(|| panic!("{said:?}")).to_owned();
    assert!(reference.starts_with(&format!("refs/swarm/trash/{name}/")), "{reference}");
    reference
}

#[test]
fn a_worktree_is_created_beside_the_repository_on_a_branch_of_its_name() {
    let rig = Rig::new();
    let repo = rig.repo();
    let head = rig.git(&repo, &["rev-parse", "HEAD"]);
    std::fs::create_dir(repo.join("sub")).expect("made");
    spawned(&rig, &repo.join("sub"), "x", &[], &["sh", "-c", "pwd; git branch --show-current"]);
    rig.wait("x");
    let path = rig.path("repo-worktrees/x");
    assert_eq!(rig.log("x", "stdout"), format!("{}\nx\n", path.display()));
    let row = &rig.rows()[0];
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    assert_eq!(row["worktree"], serde_json::json!({"path": text(&path), "branch": "x", "base_repo": text(&repo)}));
    assert_eq!(row["cwd"], text(&path));
    assert_eq!(row["metadata"]["swarm"]["base"], serde_json::json!({"branch": "main", "commit": head}));
    let said = rig.swarm(&["status", "x"]);
    assert!(said.out.contains(&format!(", worktree {}, uptime ", path.display())), "{said:?}");
    rig.swarm(&["clean", "x"]).is(0, "cleaned x\n", "");
    assert!(!path.exists());
    assert_eq!(
        (linked(&rig, &repo), branches(&rig, &repo).as_str()),
        (0, "main"),
        "the branch has nothing that main does not have"
    );
}

#[test]
fn an_existing_worktree_or_branch_is_used_and_reported() {
    let rig = Rig::new();
    let repo = rig.repo();
    let spawn =
        |name: &str| rig.swarm_in(&repo, &["spawn", "--name", name, "--worktree", "--", "sh", "-c", "echo >> half"]);
    spawn("a").ok();
    rig.wait("a");
    rig.swarm(&["clean", "a"]);
    let said = spawn("a");
    let tree = rig.path("repo-worktrees/a");
    let note = format!("swarm: note: worktree already exists and is used with its content: {}\n", tree.display());
    assert_eq!((said.code, said.err.as_str()), (Some(0), note.as_str()), "{said:?}");
    rig.git(&repo, &["branch", "b"]);
    let said = spawn("b");
    let note = "swarm: note: branch 'b' already exists and is continued from its tip; its base is 'main'\n";
    assert_eq!(said.err, note, "{said:?}");
}

#[test]
fn branch_base_and_directory_can_be_chosen() {
    let rig = Rig::new();
    let repo = rig.repo();
    let first = rig.git(&repo, &["rev-parse", "HEAD"]);
    rig.git(&repo, &["branch", "old"]);
    rig.git(&repo, &["commit", "-q", "--allow-empty", "-m", "two"]);
    let path = tree(&rig, &repo, "a", &["--branch", "feature/a", "--base", "old", "--worktree-dir", "trees"]);
    assert_eq!(path, rig.path("trees/a"), "a relative directory is resolved beside the repository");
    assert_eq!(rig.git(&path, &["rev-parse", "HEAD"]), first);
    assert_eq!(rig.git(&path, &["branch", "--show-current"]), "feature/a");
    assert_eq!(rig.rows()[0]["metadata"]["swarm"]["base"], serde_json::json!({"branch": "old", "commit": first}));
    let absolute = rig.path("absolute");
    let path = tree(&rig, &repo, "b", &["--branch", "old", "--worktree-dir", absolute.to_str().expect("text")]);
    assert_eq!(path, absolute.join("b"));
    assert_eq!(rig.git(&path, &["branch", "--show-current"]), "old");
    tree(&rig, &repo, "c", &["--base", &first]);
    assert_eq!(rig.rows()[2]["metadata"]["swarm"]["base"], serde_json::json!({"branch": null, "commit": first}));
    // Each of these is refused before anything is created.
    for flags in [
        &["--branch", "old"][..],
        &["--branch", "main"],
        &["--base", "nowhere"],
        &["--branch", "a..b"],
        &["--branch", "-x"],
    ] {
        let words = [&["spawn", "--name", "d", "--worktree"], flags, &["--", "true"]].concat();
        let said = rig.swarm_in(&repo, &words);
        assert!(said.code == Some(1) || said.code == Some(2), "{flags:?}: {said:?}");
        assert!(said.err.starts_with("swarm: error: "), "{flags:?}: {said:?}");
    }
    assert_eq!((rig.names().len(), linked(&rig, &repo)), (3, 3));
    assert!(!rig.path("repo-worktrees/d").exists());
}

#[test]
fn a_worktree_needs_a_repository_with_a_commit() {
    let rig = Rig::new();
    let said = rig.swarm(&["spawn", "--name", "x", "--worktree", "--", "true"]);
    said.is(1, "", "swarm: error: failed to create worktree: not in a git repository\n");
    let empty = rig.path("empty");
    std::fs::create_dir(&empty).expect("made");
    rig.git(&empty, &["init", "-q"]);
    let said = rig.swarm_in(&empty, &["spawn", "--name", "x", "--worktree", "--", "true"]);
    assert!(said.code == Some(1) && said.err.contains("has no commit yet"), "{said:?}");
    assert_eq!(rig.names().len(), 0);
}

#[test]
fn uncommitted_work_is_never_removed() {
    let rig = Rig::new();
    let repo = rig.repo();
    let path = tree(&rig, &repo, "x", &[]);
    std::fs::write(path.join("file"), "changed\n").expect("written");
    std::fs::write(path.join("new"), "new\n").expect("written");
    let kept = "swarm: warning: cannot remove worktree for 'x': worktree has 2 uncommitted change(s)\n\
                swarm: use --force-dirty to remove anyway\n";
    rig.swarm(&["kill", "x", "--rm-worktree"]).is(0, "killed x\n", kept);
    let kept = format!(
        "swarm: warning: preserving worktree for 'x': worktree has 2 uncommitted change(s)\n\
         swarm: worktree at: {}\nswarm: use --force-dirty to remove anyway\n\
         swarm: hint: in {}, 'swarm spawn --name x --worktree' continues in it; 'swarm clean x --force-dirty' saves its \
         work and removes it\n",
        path.display(),
        repo.display()
    );
    rig.swarm(&["clean", "x"]).is(0, "cleaned x\n", &kept);
    assert_eq!(std::fs::read_to_string(path.join("file")).expect("kept"), "changed\n");
    assert_eq!(std::fs::read_to_string(path.join("new")).expect("kept"), "new\n");
    assert_eq!(linked(&rig, &repo), 1);
    // The hint holds although the worker is forgotten.
    rig.swarm_in(&repo, &["clean", "x"]).is(1, "", "swarm: error: worker 'x' not found\n");
    let said = rig.swarm_in(&repo, &["clean", "x", "--force-dirty"]);
    assert!(said.out == "cleaned x\n" && said.err.contains("'x' was saved as refs/swarm/trash/"), "{said:?}");
    assert!(!path.exists() && linked(&rig, &repo) == 0);
    rig.swarm_in(&repo, &["clean", "x", "--force-dirty"]).is(1, "", "swarm: error: worker 'x' not found\n");
    rig.swarm_in(&repo, &["restore", "x"]).ok();
    assert_eq!(std::fs::read_to_string(path.join("new")).expect("restored"), "new\n");
}

#[test]
fn a_branch_goes_with_its_worker_if_its_base_contains_it() {
    let rig = Rig::new();
    let repo = rig.repo();
    for name in ["merged", "work"] {
        let path = tree(&rig, &repo, name, &[]);
        std::fs::write(path.join(name), "new\n").expect("written");
        rig.git(&path, &["add", "."]);
        rig.git(&path, &["commit", "-q", "-m", name]);
    }
    rig.git(&repo, &["branch", "mine"]);
    tree(&rig, &repo, "other", &["--branch", "mine"]);
    rig.git(&repo, &["merge", "-q", "--no-edit", "merged"]);
    rig.swarm(&["kill", "--all"]).ok();
    rig.swarm(&["clean", "--all"]).ok();
    let branches = rig.git(&repo, &["branch", "--format", "%(refname:short)"]);
    assert_eq!(branches.lines().collect::<Vec<_>>(), ["main", "mine", "work"]);
    let again = ["spawn", "--name", "work", "--worktree", "--", "true"];
    let said = rig.swarm_in(&repo, &again);
    assert!(said.err.contains("branch 'work' already exists and is continued from its tip"), "{said:?}");
}

#[test]
fn commits_that_nothing_else_holds_are_never_removed() {
    let rig = Rig::new();
    let repo = rig.repo();
    let path = tree(&rig, &repo, "x", &[]);
    rig.git(&path, &["checkout", "-q", "--detach"]);
    rig.git(&path, &["commit", "-q", "--allow-empty", "-m", "precious"]);
    let commit = rig.git(&path, &["rev-parse", "HEAD"]);
    let said = rig.swarm(&["kill", "x", "--rm-worktree"]);
    assert!(said.err.contains(&format!("worktree is at commit {commit}, which no branch or tag contains")), "{said:?}");
    assert!(path.exists());
    // A commit on the worktree's branch is kept by the branch.
    let other = tree(&rig, &repo, "y", &[]);
    rig.git(&other, &["commit", "-q", "--allow-empty", "-m", "safe"]);
    let commit = rig.git(&other, &["rev-parse", "HEAD"]);
    rig.swarm(&["kill", "y", "--rm-worktree"]).is(0, "killed y\n", "");
    assert!(!other.exists());
    assert_eq!(rig.git(&repo, &["rev-parse", "y"]), commit);
}

#[test]
fn ignored_files_are_no_work_and_a_missing_tree_counts_as_removed() {
    let rig = Rig::new();
    let repo = rig.repo();
    std::fs::write(repo.join(".gitignore"), "target\n").expect("written");
    rig.git(&repo, &["add", "."]);
    rig.git(&repo, &["commit", "-q", "-m", "ignore"]);
    let path = tree(&rig, &repo, "x", &[]);
    std::fs::write(path.join("target"), "built").expect("written");
    rig.swarm(&["kill", "x", "--rm-worktree"]).is(0, "killed x\n", "");
    assert!(!path.exists());
    rig.swarm(&["clean", "x"]).is(0, "cleaned x\n", "");
    let path = tree(&rig, &repo, "y", &[]);
    rig.swarm(&["kill", "y"]).ok();
    remove_worktree(&path);
    rig.swarm(&["clean", "y"]).is(0, "cleaned y\n", "");
}

#[test]
fn forced_removal_saves_everything_first() {
    let rig = Rig::new();
    let repo = rig.repo();
    let path = tree(&rig, &repo, "x", &[]);
    rig.git(&path, &["commit", "-q", "--allow-empty", "-m", "on the branch"]);
    std::fs::write(path.join("file"), "staged\n").expect("written");
    rig.git(&path, &["add", "file"]);
    std::fs::write(path.join("file"), "in the tree\n").expect("written");
    std::fs::create_dir(path.join("dir")).expect("made");
    std::fs::write(path.join("dir/é new"), "untracked\n").expect("written");
    rig.git(&path, &["checkout", "-q", "--detach"]);
    rig.git(&path, &["commit", "-q", "--allow-empty", "-m", "detached", "--only"]);
    let head = rig.git(&path, &["rev-parse", "HEAD"]);
    let said = rig.swarm(&["kill", "x", "--rm-worktree", "--force-dirty"]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "killed x\n"), "{said:?}");
    let reference = saved(&said, "x");
    assert!(!path.exists());
    let show = |what: &str| rig.git(&repo, &["show", &format!("{reference}{what}")]);
    assert_eq!(
        (show(":file").as_str(), show(":dir/é new").as_str(), show("^2:file").as_str()),
        ("in the tree", "untracked", "staged")
    );
    assert_eq!(rig.git(&repo, &["rev-parse", &format!("{reference}^1")]), head);
    // The save survives git gc, and can be checked out again.
    rig.git(&repo, &["gc", "-q", "--prune=now"]);
    let restored = rig.path("restored");
    rig.git(&repo, &["worktree", "add", "-q", "--detach", restored.to_str().expect("text"), &reference]);
    assert_eq!(std::fs::read_to_string(restored.join("dir/é new")).expect("restored"), "untracked\n");
    // The same with clean; nothing is saved of a worktree without work.
    rig.swarm(&["clean", "x"]).is(0, "cleaned x\n", "");
    let path = tree(&rig, &repo, "y", &[]);
    rig.swarm(&["kill", "y"]).ok();
    rig.swarm(&["clean", "y", "--force-dirty"]).is(0, "cleaned y\n", "");
    assert!(!path.exists());
    let path = tree(&rig, &repo, "z", &[]);
    std::fs::write(path.join("new"), "z\n").expect("written");
    rig.swarm(&["kill", "z"]).ok();
    let reference = saved(&rig.swarm(&["clean", "z", "--force-dirty"]), "z");
    assert_eq!(rig.git(&repo, &["show", &format!("{reference}:new")]), "z");
}

#[test]
fn removal_works_from_any_directory_and_updates_the_registry() {
    // In the original, removal depends on the caller's directory, and a failure skips the update of the registry.
    let rig = Rig::new();
    let repo = rig.repo();
    let other = rig.repo_named("other");
    for (name, cwd) in [("a", Path::new("/")), ("b", other.as_path())] {
        let path = tree(&rig, &repo, name, &[]);
        rig.swarm_in(cwd, &["kill", name, "--rm-worktree"]).is(0, &format!("killed {name}\n"), "");
        assert!(!path.exists());
        assert_eq!(rig.rows().iter().find(|row| row["name"] == name).expect("a row")["status"], "stopped");
    }
    // From inside the worktree, with variables that point elsewhere.
    let path = tree(&rig, &repo, "c", &[]);
    let mut command = rig.command(&["kill", "c", "--rm-worktree"]);
    command
        .current_dir(&path)
        .env("GIT_DIR", other.join(".git"))
        .env("GIT_WORK_TREE", &other)
        .env("GIT_INDEX_FILE", "/nowhere");
    crate::common::run(command).is(0, "killed c\n", "");
    assert!(!path.exists() && other.join("file").exists());
    assert_eq!(linked(&rig, &repo), 0);
}

#[test]
fn a_refused_respawn_leaves_the_worker_running() {
    // The original has already killed the worker at this point.
    let rig = Rig::new();
    let repo = rig.repo();
    let path = tree(&rig, &repo, "x", &[]);
    let pid = rig.pid("x");
    std::fs::write(path.join("new"), "work\n").expect("written");
    let said = rig
        .swarm(&["respawn", "x", "--clean-first"])
        .refused(1, "cannot remove worktree: worktree has 1 uncommitted change(s)");
    assert!(said.err.contains(&format!("worktree at: {}", path.display())), "{said:?}");
    assert!(said.err.contains("use --force-dirty to remove anyway, or commit changes first"), "{said:?}");
    assert!(proc::alive(pid) && rig.pid("x") == pid);
    let said = rig.swarm(&["respawn", "x", "--clean-first", "--force-dirty"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(!proc::alive(pid) && path.exists() && !path.join("new").exists());
    let references = rig.git(&repo, &["for-each-ref", "--format=%(refname)", "refs/swarm/trash"]);
    assert_eq!(rig.git(&repo, &["show", &format!("{references}:new")]), "work");
}

#[test]
fn respawn_recreates_a_removed_worktree_on_its_branch() {
    let rig = Rig::new();
    let repo = rig.repo();
    let path = tree(&rig, &repo, "x", &["--branch", "mine"]);
    rig.git(&path, &["commit", "-q", "--allow-empty", "-m", "progress"]);
    let commit = rig.git(&path, &["rev-parse", "HEAD"]);
    rig.swarm(&["kill", "x", "--rm-worktree"]).is(0, "killed x\n", "");
    assert!(!path.exists());
    rig.git(&repo, &["commit", "-q", "--allow-empty", "-m", "meanwhile"]);
    assert_eq!(rig.swarm_in(Path::new("/"), &["respawn", "x"]).code, Some(0));
    assert_eq!(
        (rig.git(&path, &["rev-parse", "HEAD"]), rig.git(&path, &["branch", "--show-current"])),
        (commit, "mine".to_owned())
    );
}

#[test]
fn a_start_that_fails_leaves_no_trace() {
    const FAILED: &str = "swarm: warning: spawn failed, cleaning up partial state\n\
        swarm: error: command not found: ./no-such-command\n";
    let rig = Rig::new();
    let repo = rig.repo();
    for flags in [&[][..], &["--tmux"]] {
        let words = [&["spawn", "--name", "x", "--worktree"], flags, &["--", "./no-such-command"]].concat();
        rig.swarm_in(&repo, &words).is(1, "", FAILED);
        assert!(!rig.path("repo-worktrees/x").exists(), "{flags:?}");
        assert_eq!((linked(&rig, &repo), branches(&rig, &repo).as_str()), (0, "main"), "{flags:?}");
        assert_eq!(rig.names().len(), 0, "{flags:?}");
        assert_eq!(std::fs::read_dir(rig.root().join("w")).map_or(0, Iterator::count), 0, "{flags:?}");
    }
    // An existing branch stays unchanged.
    rig.git(&repo, &["branch", "kept"]);
    rig.swarm_in(&repo, &["spawn", "--name", "x", "--worktree", "--branch", "kept", "--", "./no-such-command"])
        .is(1, "", FAILED);
    // Without a worktree nothing was there.
    rig.swarm_in(&repo, &["spawn", "--name", "x", "--", "./no-such-command"]).is(
        1,
        "",
        FAILED.split_once('\n').expect("two lines").1,
    );
    assert_eq!(branches(&rig, &repo), "kept\nmain");
    assert_eq!(linked(&rig, &repo), 0);
}

#[test]
fn a_bare_repository_keeps_its_configuration() {
    // The original sets core.bare to false.
    let rig = Rig::new();
    let repo = rig.repo();
    let bare = rig.path("bare.git");
    rig.git(&repo, &["clone", "-q", "--bare", ".", bare.to_str().expect("text")]);
    let config = std::fs::read(bare.join("config")).expect("there");
    let said = rig.swarm_in(&bare, &["spawn", "--name", "x", "--worktree", "--", "true"]);
    assert!(said.code == Some(1) && said.err.contains("bare repository"), "{said:?}");
    // A worktree of the bare repository works.
    let side = rig.path("side");
    rig.git(&bare, &["worktree", "add", "-q", side.to_str().expect("text"), "-b", "side"]);
    let path = tree(&rig, &side, "x", &[]);
    assert_eq!(path, rig.path("side-worktrees/x"));
    rig.swarm(&["kill", "x", "--rm-worktree"]).is(0, "killed x\n", "");
    assert!(!path.exists());
    assert_eq!(std::fs::read(bare.join("config")).expect("there"), config);
    assert_eq!(rig.git(&bare, &["config", "core.bare"]), "true");
}

#[test]
fn a_repository_that_is_bare_by_mistake_is_repaired() {
    let rig = Rig::new();
    let repo = rig.repo();
    rig.git(&repo, &["config", "core.bare", "true"]);
    let said = rig.swarm_in(&repo, &["spawn", "--name", "x", "--worktree", "--", "true"]);
    let warning = "swarm: warning: Fixed core.bare=true in git config\n";
    assert_eq!((said.code, said.err.as_str()), (Some(0), warning), "{said:?}");
    assert!(rig.path("repo-worktrees/x/.git").exists());
    rig.git(&repo, &["config", "core.bare", "true"]);
    let file = repo.join("fleet.toml");
    std::fs::write(&file, "[[worker]]\nname = \"y\"\nworktree = true\ncommand = [\"true\"]\n").expect("written");
    let said = rig.swarm_in(&repo, &["spawn", "--file", "fleet.toml"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), warning), "{said:?}");
    assert_eq!(rig.git(&repo, &["config", "core.bare"]), "false");
}

#[test]
fn six_worktrees_are_created_concurrently() {
    let rig = Rig::new();
    let repo = rig.repo();
    thread::scope(|scope| {
        let (rig, repo) = (&rig, &repo);
        for i in 0..6 {
            scope.spawn(move || spawned(rig, repo, &format!("w{i}"), &[], &["sleep", "600"]));
        }
    });
    assert_eq!((linked(&rig, &repo), rig.names().len()), (6, 6));
    let said = rig.swarm(&["kill", "--all", "--rm-worktree"]);
    assert_eq!((said.code, said.err.as_str(), said.out.lines().count()), (Some(0), "", 6));
    assert_eq!(linked(&rig, &repo), 0);
    assert!(rig.git_says(&repo, &["fsck", "--no-progress"]).code == Some(0));
}

#[test]
fn five_agents_of_one_repository_run_and_are_removed() {
    let rig = Rig::new();
    let repo = rig.repo();
    for i in 0..5 {
        let script = format!(
            "echo work {i} > result; git add result; git commit -q -m work; echo ready; read -r line; echo \"$line\" > answer"
        );
        spawned(&rig, &repo, &format!("agent-{i}"), &["--tmux"], &["sh", "-c", &script]);
    }
    for i in 0..5 {
        let name = format!("agent-{i}");
        crate::common::wait_until("agent ready", crate::common::SOON, || rig.log(&name, "tmux").contains("ready"));
    }
    assert_eq!(rig.swarm(&["send", "--all", "go on"]).ok().lines().count(), 5);
    rig.swarm(&["wait", "--all", "--timeout", "20"]).ok();
    for i in 0..5 {
        assert_eq!(rig.exit(&format!("agent-{i}")), "code 0, exited");
        assert_eq!(rig.git(&repo, &["show", &format!("agent-{i}:result")]), format!("work {i}"));
    }
    // The answers were not committed, so the worktrees stay.
    let said = rig.swarm(&["clean", "--all"]);
    assert_eq!((said.code, said.out.lines().count()), (Some(0), 5));
    assert_eq!(said.err.matches("worktree has 1 uncommitted change(s)").count(), 5, "{said:?}");
    assert_eq!((linked(&rig, &repo), rig.names().len()), (5, 0));
}

#[test]
fn a_diff_shows_the_work_of_a_worker_and_applies_as_a_patch() {
    let rig = Rig::new();
    let repo = rig.repo();
    let script = "echo two >> file; git commit -qam work; echo three > new; mkdir dist; echo x > dist/x";
    spawned(&rig, &repo, "x", &[], &["sh", "-c", script]);
    rig.wait("x");
    let note = "swarm: note: 1 uncommitted path(s) will not land: dist/x\n";
    rig.swarm(&["diff", "x", "--name-only"]).is(0, "file\nnew\n", note);
    let json: serde_json::Value =
        serde_json::from_str(&rig.swarm(&["diff", "x", "--json"]).ok()).expect("one line of JSON");
    assert_eq!(json["schema"], "swarm.diff/1");
    let file = serde_json::json!({"path": "file", "status": "modified", "added": 1, "deleted": 0});
    assert_eq!((&json["files"][0], &json["left_out"][0]), (&file, &serde_json::json!("dist/x")));

    // Even if the worker is stopped and its base has advanced; the diff changes nothing.
    std::fs::write(repo.join("other"), "base\n").expect("written");
    rig.git(&repo, &["add", "."]);
    rig.git(&repo, &["commit", "-qm", "base goes on"]);
    let patch = rig.path("patch");
    std::fs::write(&patch, rig.swarm(&["diff", "x"]).out).expect("written");
    rig.git(&repo, &["apply", "--index", patch.to_str().expect("text")]);
    assert_eq!(std::fs::read_to_string(repo.join("new")).expect("taken over"), "three\n");
    assert!(rig.swarm(&["diff", "x", "--stat"]).out.contains("2 files changed"));

    rig.spawn("plain", &[], &["true"]);
    rig.swarm(&["diff", "plain"]).is(1, "", "swarm: error: worker 'plain' has no worktree\n");
    let unknown = rig.swarm(&["diff", "y"]);
    assert!(unknown.code == Some(1) && unknown.err.contains("worker 'y' not found"), "{unknown:?}");
}

#[test]
fn a_worktree_that_contains_the_worktree_of_a_worker_is_never_removed() {
    let rig = Rig::new();
    let repo = rig.repo();
    std::fs::write(repo.join(".gitignore"), ".agents\n").expect("written");
    rig.git(&repo, &["add", "."]);
    rig.git(&repo, &["commit", "-q", "-m", "ignore"]);
    let outer = tree(&rig, &repo, "x", &[]);
    let below = outer.join(".agents");
    let inner = tree(&rig, &repo, "y", &["--worktree-dir", below.to_str().expect("text")]);
    assert!(inner.starts_with(&outer), "{}", inner.display());
    std::fs::write(inner.join("work"), "unsaved\n").expect("written");
    let cause = format!("worktree contains the worktree {}", inner.display());
    let hint = format!(
        "remove the inner one first: 'swarm clean NAME --rm-worktree' or 'git worktree remove {}'",
        inner.display()
    );
    let said = rig.swarm(&["kill", "x", "--rm-worktree", "--force-dirty"]);
    assert!(said.err.contains("cannot remove worktree for 'x': worktree is used by running worker 'y'\n"), "{said:?}");
    rig.swarm(&["kill", "y"]).ok();
    let said = rig.swarm(&["respawn", "x", "--clean-first"]).refused(1, &format!("cannot remove worktree: {cause}"));
    assert!(said.err.contains(&format!("worktree at: {}; {hint}\n", outer.display())), "{said:?}");
    let kept = format!(
        "swarm: warning: preserving worktree for 'x': {cause}\nswarm: worktree at: {}\nswarm: {hint}\n",
        outer.display()
    );
    rig.swarm(&["clean", "x", "--rm-worktree", "--force-dirty"]).is(0, "cleaned x\n", &kept);
    assert_eq!(std::fs::read_to_string(inner.join("work")).expect("kept"), "unsaved\n");
    assert_eq!((rig.view("y")["status"].as_str(), linked(&rig, &repo)), (Some("stopped"), 2));
}
