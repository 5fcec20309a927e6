//! The effects of `swarm.toml` on new worktrees, and the disk space of worktrees and their saves.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;

use crate::common::{Rig, SOON, wait_until};

const BINARY: &str = env!("CARGO_BIN_EXE_swarm");

/// A repository with these settings.
fn repo(rig: &Rig, settings: &str) -> PathBuf {
    let repo = rig.repo();
    std::fs::write(repo.join(".gitignore"), ".env\ncache/\n").expect("written");
    std::fs::write(repo.join("swarm.toml"), settings).expect("written");
    rig.trust(&repo);
    rig.git(&repo, &["add", "."]);
    rig.git(&repo, &["commit", "-q", "-m", "settings"]);
    std::fs::write(repo.join(".env"), "KEY=1\n").expect("written");
    repo
}

#[track_caller]
fn has_no_trace(rig: &Rig, repo: &std::path::Path) {
    assert!(!rig.path("repo-worktrees").exists());
    assert_eq!(rig.git(repo, &["worktree", "list"]).lines().count(), 1);
    assert_eq!((rig.git(repo, &["branch", "--format=%(refname:short)"]).as_str(), rig.names().len()), ("main", 0));
    assert_eq!(std::fs::read_dir(rig.root().join("w")).map_or(0, Iterator::count), 0);
}

#[test]
fn a_new_worktree_has_the_included_files_and_those_of_post_create() {
    let rig = Rig::new();
    let settings = "[worktree]\ninclude = ['.env']\npost_create = 'mkdir cache && cat .env > cache/made && echo said; echo $SWARM_BASE_REPO >> cache/made'\n\
                    pre_remove = 'cp cache/made \"$SWARM_BASE_REPO/../gone\"'\n";
    let repo = repo(&rig, settings);
    rig.swarm_in(&repo, &["spawn", "--name", "x", "--worktree", "--", "cat", "cache/made", ".env"]).ok();
    rig.wait("x");
    assert_eq!(rig.log("x", "stdout"), format!("KEY=1\n{}\nKEY=1\n", repo.display()));
    let log = rig.root().join("hooks/x.post_create.log");
    assert_eq!(std::fs::read_to_string(&log).expect("kept"), "said\n");
    assert_eq!(std::fs::metadata(&log).expect("there").permissions().mode() & 0o777, 0o600);
    rig.swarm(&["clean", "x"]).is(0, "cleaned x\n", "");
    assert!(std::fs::read_to_string(rig.path("gone")).expect("made before it went").starts_with("KEY=1"));
    assert!(!log.exists());
}

#[test]
fn a_failing_or_hanging_post_create_fails_the_start_and_leaves_nothing() {
    let rig = Rig::new();
    let repo = repo(&rig, "[worktree]\npost_create = 'touch new; echo no such thing; exit 3'\n");
    let spawn = || rig.swarm_in(&repo, &["spawn", "--name", "x", "--worktree", "--", "true"]);
    let said = spawn();
    let cause = "failed to create worktree: worktree.post_create exited with code 3: no such thing";
    let said = said.refused(1, cause);
    assert!(said.err.contains("x.post_create.log"), "{said:?}");
    has_no_trace(&rig, &repo);
    std::fs::write(repo.join("swarm.toml"), "[worktree]\npost_create = 'exec sleep 600'\ntimeout = '0.2s'\n")
        .expect("written");
    rig.trust(&repo);
    assert!(spawn().err.contains("worktree.post_create timed out after"), "a hanging command times out");
    has_no_trace(&rig, &repo);
    std::fs::write(repo.join("swarm.toml"), "[worktree]\nlink = ['../..']\n").expect("written");
    let said = spawn();
    assert!(
        said.code == Some(1) && said.err.contains("worktree.link: '../..' is not a path below the repository"),
        "{said:?}"
    );
    has_no_trace(&rig, &repo);
}

#[test]
fn a_kill_during_post_create_ends_the_worker_after_it() {
    let rig = Rig::new();
    let repo = repo(&rig, "[worktree]\npost_create = 'echo begun; cat \"$SWARM_BASE_REPO/../pipe\"'\n");
    let pipe = rig.path("pipe");
    assert!(rig.program("mkfifo").arg(&pipe).status().expect("run").success());
    let mut spawn = rig.program(BINARY);
    spawn.current_dir(&repo).args(["spawn", "--name", "x", "--worktree", "--", "sleep", "600"]);
    let mut spawn = spawn.stdout(Stdio::null()).spawn().expect("started");
    let log = rig.root().join("hooks/x.post_create.log");
    wait_until("post_create runs", SOON, || fs::read(&log).is_ok_and(|text| text == b"begun\n"));
    rig.swarm(&["kill", "y"]).refused(1, "worker 'y' not found");
    let mut kill = rig.program(BINARY).args(["kill", "x"]).stdout(Stdio::piped()).spawn().expect("started");
    let descriptors = PathBuf::from(format!("/proc/{}/fd", kill.id()));
    let has_asked = || {
        let mut links = fs::read_dir(&descriptors).into_iter().flatten().flatten();
        links.any(|one| fs::read_link(one.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:")))
    };
    wait_until("the kill is sent", SOON, || has_asked() || kill.try_wait().expect("asked").is_some());
    fs::write(&pipe, "go on\n").expect("written");
    assert!(spawn.wait().expect("waited").success());
    let said = kill.wait_with_output().expect("waited");
    assert_eq!((said.status.code(), String::from_utf8_lossy(&said.stdout).as_ref()), (Some(0), "killed x\n"));
    assert_eq!(rig.fine("x"), "stopped");
}

#[test]
fn a_supervisor_killed_during_post_create_leaves_nothing_behind() {
    let rig = Rig::new();
    let repo = repo(&rig, "[worktree]\ninclude = ['.env']\npost_create = 'echo begun; exec sleep 600'\n");
    let mut command = rig.command(&["spawn", "--name", "x", "--worktree", "--", "true"]);
    command.current_dir(&repo).stdout(Stdio::null()).stderr(Stdio::null());
    let mut spawning = command.spawn().expect("started");
    let log = rig.root().join("hooks/x.post_create.log");
    wait_until("the command runs", SOON, || std::fs::read_to_string(&log).is_ok_and(|text| text == "begun\n"));
    std::fs::write(repo.join("swarm.toml"), "").expect("written");
    let pid = rig.keepers().0.expect("runs");
    crate::common::proc::kill(pid);
    let status = spawning.wait().expect("waited");
    // The command repeated its request at the next supervisor, which started over.
    assert_eq!(status.code(), Some(0));
    rig.wait("x");
    assert!(!rig.path("repo-worktrees/x/.env").exists(), "the first supervisor's copy was not removed");
    rig.swarm(&["clean", "x"]).ok();
}

#[test]
fn a_failing_pre_remove_keeps_the_worktree_unless_forced() {
    let rig = Rig::new();
    let repo = repo(&rig, "[worktree]\npre_remove = 'echo still needed; exit 1'\n");
    rig.swarm_in(&repo, &["spawn", "--name", "x", "--worktree", "--", "true"]).ok();
    rig.wait("x");
    let said = rig.swarm(&["kill", "x", "--rm-worktree"]);
    assert!(said.err.contains("worktree.pre_remove exited with code 1: still needed"), "{said:?}");
    assert!(rig.path("repo-worktrees/x").exists());
    fs::write(repo.join("swarm.toml"), "[worktree]\npre_remov = 'x'\n").expect("written");
    let said = rig.swarm(&["clean", "x"]);
    assert!(said.code == Some(1) && said.err.contains("unknown key 'worktree.pre_remov'"), "{said:?}");
    assert_eq!(rig.fine("x"), "exited", "the row of a worktree that stays is kept");
    fs::remove_file(repo.join("swarm.toml")).expect("removed");
    rig.swarm(&["clean", "x", "--force-dirty"]).is(0, "cleaned x\n", "");
    assert!(!rig.path("repo-worktrees/x").exists());
}

#[test]
fn each_worktree_has_its_own_stable_port() {
    let rig = Rig::new();
    let repo = repo(&rig, "[worktree]\nports = '24000-24999'\n");
    let port = |name: &str| rig.view(name)["port"].as_u64();
    for name in ["a", "b"] {
        rig.swarm_in(&repo, &["spawn", "--name", name, "--worktree", "--", "sh", "-c", "echo $SWARM_PORT"]).ok();
        rig.wait(name);
        assert_eq!(rig.log(name, "stdout").trim().parse().ok(), port(name), "{name}");
        assert!(port(name).is_some_and(|port| (24_000..25_000).contains(&port)));
    }
    assert_ne!(port("a"), port("b"));
    let before = port("a");
    rig.swarm(&["respawn", "a"]).ok();
    assert_eq!(port("a"), before);
    rig.spawn("c", &[], &["true"]);
    assert_eq!(port("c"), None);
}

#[test]
fn disk_usage_is_shown_and_a_quota_refuses_another_worktree() {
    let rig = Rig::new();
    let repo = repo(&rig, "[worktree]\nquota = '1M'\n");
    rig.swarm_in(&repo, &["spawn", "--name", "big", "--worktree", "--", "true"]).ok();
    rig.wait("big");
    rig.spawn("small", &[], &["true"]);
    rig.wait("small");
    std::fs::write(rig.path("repo-worktrees/big/new"), vec![7; 2 << 20]).expect("written");
    let usage: Value = serde_json::from_str(&rig.swarm(&["du", "--json"]).ok()).expect("JSON");
    assert_eq!((usage["schema"].as_str(), usage["workers"][0]["name"].as_str()), (Some("swarm.du/1"), Some("big")));
    assert!(usage["workers"][0]["worktree_bytes"].as_u64() >= Some(2 << 20), "{usage}");
    // A worktree that the user made counts for the quota, and is shown.
    rig.git(&repo, &["worktree", "add", "-q", "-b", "own", rig.path("own").to_str().expect("text")]);
    let usage: Value = serde_json::from_str(&rig.swarm(&["du", "--json"]).ok()).expect("JSON");
    assert!(usage["others"][0]["path"].as_str().is_some_and(|path| path.ends_with("/own")), "{usage}");
    let said = rig.swarm_in(&repo, &["spawn", "--name", "more", "--worktree", "--", "true"]);
    assert!(said.code == Some(1) && said.err.contains("worktree.quota") && said.err.contains("swarm du"), "{said:?}");
    assert!(!rig.path("repo-worktrees/more").exists() && rig.names().len() == 2);
    rig.swarm(&["clean", "big", "--force-dirty"]);
    let text = rig.swarm_in(&repo, &["du"]).ok();
    assert!(text.contains("(1 saved in ") && text.contains("small"), "{text}");
    rig.swarm(&["du", "nobody"]).refused(1, "worker 'nobody' not found");
}

#[test]
fn saves_expire_only_by_rule_and_always_with_a_message() {
    let rig = Rig::new();
    let repo = repo(&rig, "");
    let lose = |name: &str| {
        rig.swarm_in(&repo, &["spawn", "--name", name, "--worktree", "--", "sh", "-c", "echo x > new"]).ok();
        rig.wait(name);
        rig.swarm(&["clean", name, "--force-dirty"])
    };
    lose("x");
    lose("y");
    let count = || rig.git(&repo, &["for-each-ref", "refs/swarm/trash"]).lines().count();
    rig.swarm_in(&repo, &["restore", "--expire"]).is(0, "", "");
    let words = ["restore", "--expire", "--max-size", "0"];
    let said = rig.swarm_in(&repo, &[&words[..], &["--dry-run"]].concat()).ok();
    assert!(said.lines().count() == 1 && said.contains("would expire x/") && count() == 2, "{said}");
    assert_eq!(rig.swarm_in(&repo, &[&words[..], &["--json"]].concat()).ok().matches("\"name\"").count(), 1);
    assert_eq!(count(), 1, "the newest save stays");
    std::fs::write(repo.join("swarm.toml"), "[trash]\nmax_size = '1'\n").expect("written");
    rig.trust(&repo);
    let said = lose("z");
    assert!(said.err.contains("has expired: total size over the limit"), "{said:?}");
    assert_eq!(count(), 1);
    let events = rig.swarm(&["events", "--json"]).ok();
    assert!(events.contains("\"save.expired\""), "{events}");
}

#[test]
fn a_verification_finds_its_setup_in_any_layout_of_the_repository() {
    let rig = Rig::new();
    let settings = "[worktree]\ninclude = ['.env']\npost_create = 'mkdir cache && touch cache/made'\n\
                    [merge]\nverify = 'test -e cache/made && grep KEY .env'\n";
    let set_up = |dir: &std::path::Path| {
        fs::write(dir.join(".gitignore"), ".env\ncache/\n").expect("written");
        fs::write(dir.join("swarm.toml"), settings).expect("written");
        rig.git(dir, &["add", "."]);
        rig.git(dir, &["commit", "-q", "-m", "settings"]);
        fs::write(dir.join(".env"), "KEY=1\n").expect("written");
        rig.trust(dir);
    };
    let (apart, store, bare, main) = (rig.path("apart"), rig.path("store"), rig.path("bare"), rig.path("main"));
    let text = |path: &std::path::Path| path.to_str().expect("text").to_owned();
    rig.git(&rig.cwd(), &["init", "-q", "-b", "main", "--separate-git-dir", &text(&store), &text(&apart)]);
    // Without it, git finds the checkout only from within, and a base that is checked out there waits.
    rig.git(&apart, &["config", "core.worktree", &text(&apart)]);
    set_up(&apart);
    rig.git(&rig.cwd(), &["clone", "-q", "--bare", &text(&apart), &text(&bare)]);
    rig.git(&bare, &["worktree", "add", "-q", &text(&main), "main"]);
    fs::write(main.join("more"), "").expect("written");
    set_up(&main);
    for (name, repo) in [("a", &apart), ("b", &main)] {
        rig.swarm_in(repo, &["spawn", "--name", name, "--worktree", "--", "sh", "-c", "echo x > x"]).ok();
        rig.wait(name);
        rig.swarm(&["merge", "add", name]).ok();
        rig.swarm(&["merge", "wait", name]).ok();
        assert_eq!(fs::read_to_string(repo.join("x")).expect("landed"), "x\n", "{name}");
    }
    // What a save does not hold is copied again.
    rig.swarm_in(&main, &["spawn", "--name", "c", "--worktree", "--", "sh", "-c", "echo y > y"]).ok();
    rig.wait("c");
    for words in [&["clean", "c", "--force-dirty"][..], &["restore", "c"]] {
        let said = rig.swarm_in(&main, words);
        assert_eq!(said.code, Some(0), "{said:?}");
    }
    assert_eq!(fs::read_to_string(rig.path("main-worktrees/c/.env")).expect("copied"), "KEY=1\n");
}
