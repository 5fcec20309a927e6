//! Landing in odd circumstances and with rules other than the defaults.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Rig, SOON, proc, remove_worktree, wait_until};
use crate::landing::{CHECK, Site};

#[test]
fn a_batch_is_verified_together_and_a_bad_item_does_not_block_the_others() {
    let site = Site::new();
    let runs = site.rig.path("runs");
    site.worker("first", &[], "echo first > first");
    site.swarm(&["merge", "add", "first"]).ok();
    site.merge_wait();
    site.swarm(&["merge", "pause"]).is(0, "paused the queue of main\n", "");
    let verify = format!("echo run >> {}; {CHECK}", runs.display());
    for number in 0..8 {
        let script = if number == 5 { "echo ill > health".to_owned() } else { format!("echo {number} > n{number}") };
        site.worker(&format!("w{number}"), &[], &script);
        site.swarm(&["merge", "add", &format!("w{number}"), "--verify", &verify, "--batch", "8"]).ok();
    }
    let said = site.swarm(&["merge", "ls"]);
    assert!(said.err.contains("the queue of main is paused") && said.out.matches("queued").count() == 8, "{said:?}");
    site.swarm(&["merge", "resume"]).is(0, "resumed the queue of main\n", "");
    site.merge_wait();
    let landed = (0..8).filter(|number| site.state(&format!("w{number}")) == "landed").count();
    assert_eq!((landed, site.state("w5").as_str()), (7, "rejected"));
    let count = fs::read_to_string(runs).expect("there").lines().count();
    assert!(count <= 7, "{count} verifications");
    site.assert_untouched();
}

#[test]
fn each_item_of_a_batch_is_verified_on_request() {
    let site = Site::new();
    let runs = site.rig.path("runs");
    let verify = format!("echo run >> {}; {CHECK}", runs.display());
    site.worker("w0", &[], "echo 0 > n0");
    site.swarm(&["merge", "add", "w0"]).ok();
    site.merge_wait();
    site.swarm(&["merge", "pause"]).ok();
    for name in ["w1", "w2", "w3"] {
        site.worker(name, &[], &format!("echo {name} > {name}"));
        site.swarm(&["merge", "add", name, "--verify", &verify, "--batch", "3", "--verify-each"]).ok();
    }
    site.swarm(&["merge", "resume"]).ok();
    site.merge_wait();
    assert_eq!(fs::read_to_string(runs).expect("there").lines().count(), 3);
    assert!(["w1", "w2", "w3"].iter().all(|name| site.state(name) == "landed"));
}

#[test]
fn an_item_replaced_by_a_later_one_is_no_longer_listed() {
    let site = Site::new();
    site.git(&["branch", "late", "HEAD"]);
    site.worker("w", &[], "echo w >> file");
    site.swarm(&["merge", "add", "w"]).ok();
    site.merge_wait();
    let tree = site.rig.path("late");
    site.git(&["worktree", "add", "-q", tree.to_str().expect("text"), "late"]);
    fs::write(tree.join("file"), "one\nlate\n").expect("written");
    site.rig.git(&tree, &["commit", "-qam", "late"]);
    site.swarm(&["merge", "add", "late"]).ok();
    site.merge_wait();
    assert!(site.swarm(&["merge", "ls"]).ok().contains("conflict"));
    // Manually, as the hint says.
    site.rig.git(&tree, &["merge", "-q", "-X", "ours", "main"]);
    site.swarm(&["merge", "add", "late"]).ok();
    site.merge_wait();
    assert_eq!(site.swarm(&["merge", "ls"]).ok(), "", "nothing is left to do");
    let states = ["w", "late", "late"].iter().zip(["landed", "conflict", "landed"]);
    let log = site.swarm(&["merge", "log"]).ok();
    let told = log.lines().skip(1).map(|line| line.split_whitespace().skip(3).take(2).collect::<Vec<_>>());
    assert!(told.eq(states.map(|(name, state)| vec![*name, state])), "{log}");
}

#[test]
fn a_worktree_with_a_detached_head_lands_its_content() {
    let site = Site::new();
    let script = "git checkout -q --detach; echo one >> file; git commit -qam one; echo two >> file";
    site.worker("w", &[], script);
    site.swarm(&["merge", "add", "w"]).ok();
    site.merge_wait();
    let (state, reason) = (site.state("w"), site.item("w")["reason"].clone());
    assert_eq!(state, "landed", "{reason}");
    assert_eq!(fs::read_to_string(site.repo.join("file")).expect("there"), "one\none\ntwo\n");
    site.assert_untouched();
}

#[test]
fn a_failure_that_does_not_recur_is_reported_as_flaky_and_rejects_nothing() {
    let site = Site::new();
    let seen = site.rig.path("seen");
    site.worker("w", &[], "echo w > w");
    site.swarm(&["merge", "add", "w", "--verify", &format!("test -e {0} || {{ touch {0}; exit 1; }}", seen.display())])
        .ok();
    site.merge_wait();
    assert_eq!((site.state("w").as_str(), site.item("w")["flaky"].as_bool()), ("landed", Some(true)));
    assert!(site.swarm(&["merge", "log"]).ok().contains("(flaky)"));
}

#[test]
fn merge_wait_waits_for_the_first_worker_of_a_base_without_a_queue() {
    let site = Site::new();
    let go = site.rig.path("go");
    let script = format!("while test ! -e {}; do sleep 0.05; done; echo w > w", go.display());
    site.swarm(&["spawn", "--name", "w", "--worktree", "--merge", "--", "sh", "-c", &script]).ok();
    for base in ["main", "refs/heads/main"] {
        let said = site.swarm(&["merge", "wait", "--base", base, "--timeout", "1"]);
        said.is(1, "w: still working (timeout)\n", "");
    }
    site.swarm(&["merge", "wait", "--base", "other"]).refused(1, "no merge queue for 'other'");
    fs::write(go, "").expect("written");
    site.swarm(&["merge", "wait", "--base", "main", "--timeout", "25"]).is(0, "w: landed (main)\n", "");
}

#[test]
fn strategies_priorities_and_drops() {
    let site = Site::new();
    site.worker(
        "first",
        &[],
        "echo first > first; git add .; git commit -qm 'work: one'; echo x >> first; git commit -qam 'work: two'",
    );
    site.swarm(&["merge", "add", "first", "--strategy", "squash"]).ok();
    site.merge_wait();
    let message = site.git(&["log", "-1", "--format=%B"]);
    assert_eq!(message, "first\n\n* work: one\n* work: two\n\nSwarm-Completion: first/0");
    assert_eq!(site.git(&["rev-list", "--count", "HEAD"]), "3");
    site.swarm(&["merge", "pause"]).ok();
    for (name, priority) in [("low", "0"), ("high", "5"), ("out", "9")] {
        site.worker(
            name,
            &["--base", "main~1"],
            &format!(
                "echo {name} > {name}; git add .; \
                 git commit -qm 'add {name}' -m 'and why' --author 'Ada L <a@b.c>' --date '981167106 +0130'"
            ),
        );
        site.swarm(&["merge", "add", name, "--base", "main", "--strategy", "rebase", "--priority", priority]).ok();
    }
    site.swarm(&["merge", "drop", "out"]).is(0, "dropped out (item 3)\n", "");
    site.swarm(&["merge", "resume"]).ok();
    site.merge_wait();
    assert_eq!(site.subjects(), "add low\nadd high\nfirst\ntwo\none");
    // After a rebase the author stays the same, and the committer is the one who rebased.
    let told = site.git(&["log", "-1", "--date=raw", "--format=%an %ae %ad %cn%n%B"]);
    assert_eq!(told, "Ada L a@b.c 981167106 +0130 Rig\nadd low\n\nand why");
    assert_eq!(site.state("out"), "dropped");
    site.assert_untouched();
}

#[test]
fn the_base_moves_or_is_deleted_during_a_verification() {
    let site = Site::new();
    let repo = site.repo.display().to_string();
    let once = site.rig.path("once");
    site.worker("w", &[], "echo w > w");
    let verify =
        format!("test -e {0} || {{ touch {0}; git -C {repo} commit -q --allow-empty -m theirs; }}", once.display());
    site.swarm(&["merge", "add", "w", "--verify", &verify]).ok();
    site.merge_wait();
    assert_eq!(site.subjects(), "Merge w\ntheirs\ntwo\none");
    site.git(&["branch", "release"]);
    site.worker("x", &[], "echo x > x");
    site.swarm(&["merge", "add", "x", "--base", "release", "--verify", &format!("git -C {repo} branch -D release")])
        .ok();
    site.merge_wait();
    assert_eq!(site.state("x"), "waiting");
    assert!(site.reason("x").contains("base branch 'release' not found"), "{}", site.reason("x"));
    site.assert_untouched();
}

#[test]
fn no_hook_or_helper_of_the_user_runs_in_our_steps() {
    let site = Site::new();
    let ran = site.rig.path("ran");
    let canary = site.script("canary", &format!("echo \"$0\" >> {}; exit 1", ran.display()));
    // The worker's own git may run the hooks; from here on they must not run.
    site.worker("w", &[], "echo w >> file; echo n > n");
    let hooks =
        ["reference-transaction", "pre-commit", "commit-msg", "post-index-change", "pre-merge-commit", "post-checkout"];
    for hook in hooks {
        fs::copy(&canary, site.repo.join(".git/hooks").join(hook)).expect("copied");
    }
    for key in ["core.fsmonitor", "diff.external", "core.editor", "credential.helper"] {
        site.git(&["config", key, &canary]);
    }
    let _ = fs::remove_file(&ran);
    site.swarm(&["merge", "add", "w", "--verify", "true"]).ok();
    site.merge_wait();
    let seen = || fs::read_to_string(&ran).unwrap_or_default();
    assert_eq!((site.state("w").as_str(), seen().as_str()), ("landed", ""));
    // The same with hooks in a directory of the user's choice.
    site.git(&["config", "core.hooksPath", "/dev/null"]);
    site.git(&["branch", "v", "main"]);
    let tree = site.rig.path("v");
    site.git(&["worktree", "add", "-q", tree.to_str().expect("text"), "v"]);
    fs::write(tree.join("n"), "more\n").expect("written");
    site.rig.git(&tree, &["commit", "-qam", "more"]);
    site.git(&["config", "core.hooksPath", site.repo.join(".git/hooks").to_str().expect("text")]);
    // The user's own git has run the file-system monitor.
    fs::remove_file(&ran).expect("removed");
    site.swarm(&["merge", "add", "v", "--verify", "true"]).ok();
    site.merge_wait();
    assert_eq!((site.state("v").as_str(), seen().as_str()), ("landed", ""));
}

#[test]
fn commits_are_signed_if_configured_and_wait_if_signing_fails() {
    let site = Site::new();
    let signer = site.script("signer", "cat > /dev/null; echo '[GNUPG:] SIG_CREATED ' >&2; printf -- '-----BEGIN PGP SIGNATURE-----\\n\\nx\\n-----END PGP SIGNATURE-----\\n'");
    let broken = site.script("broken", "exit 1");
    site.git(&["config", "gpg.program", &broken]);
    site.git(&["config", "commit.gpgSign", "true"]);
    site.worker("w", &[], "echo w > w");
    site.swarm(&["merge", "add", "w"]).ok();
    site.merge_wait();
    assert_eq!(site.state("w"), "waiting");
    assert!(site.reason("w").contains("cannot sign the commit"), "{}", site.reason("w"));
    site.git(&["config", "gpg.program", &signer]);
    site.swarm(&["merge", "retry", "w"]).ok();
    site.merge_wait();
    assert_eq!(site.item("w")["commit"], site.git(&["rev-parse", "main"]));
    assert!(site.git(&["cat-file", "-p", "main"]).contains("gpgsig -----BEGIN"));
    assert_eq!(site.git(&["for-each-ref", "refs/swarm/signed"]), "");
    site.assert_untouched();
}

#[test]
fn mistakes_are_refused_in_one_line_and_change_nothing() {
    let site = Site::new();
    site.swarm(&["merge", "add", "nothing"])
        .refused(1, &format!("worker 'nothing' not found, and no such branch in {}", site.repo.display()));
    for name in ["-x", "a..b", "@{", "@", "HEAD"] {
        let said = site.swarm(&["merge", "add", "--", name]);
        assert!(said.code == Some(1) && said.err.contains("not found, and no such branch"), "{said:?}");
    }
    site.git(&["branch", "b"]);
    site.swarm(&["merge", "add", "b", "--base", "gone"]).refused(1, "base branch 'gone' not found");
    site.worker("w", &[], "true");
    site.write("swarm.toml", "[merge]\nverfy = 'x'\n");
    let said = site.swarm(&["merge", "add", "b"]);
    assert!(said.err.contains("swarm.toml, line 2: unknown key 'merge.verfy'"), "{said:?}");
    let said = site.swarm(&["merge", "add", "w"]);
    assert!(said.code == Some(1) && said.err.contains("line 2: unknown key 'merge.verfy'"), "{said:?}");
    site.swarm(&["merge", "add", "w", "--base", "gone"]).refused(1, "base branch 'gone' not found");
    fs::remove_file(site.repo.join("swarm.toml")).expect("removed");
    site.swarm(&["merge", "status", "b"]).refused(2, "merge item 'b' not found");
    site.swarm(&["merge", "pause"]).refused(1, "no merge queue");
    site.swarm(&["spawn", "--name", "p", "--", "sleep", "600"]).ok();
    site.swarm(&["merge", "add", "p"]).refused(1, "worker 'p' has no worktree, so there is nothing to merge");
    site.git(&["checkout", "-q", "--detach"]);
    let detached = ["spawn", "--name", "d", "--worktree", "--merge", "--", "true"];
    site.swarm(&detached).refused(1, "--merge requires a base branch, but the worktree would start at a commit");
    site.swarm(&["merge", "add", "b"])
        .refused(1, "'b' started from a commit and not from a branch, so it has no base to land on");
    assert!(!site.rig.root().join("merge").exists());
    assert_eq!(site.git(&["for-each-ref", "refs/swarm"]), "");
}

#[test]
fn a_deleted_branch_or_worktree_still_lands_the_finished_work() {
    let site = Site::new();
    site.worker("w", &[], "echo w > w; git add .; git commit -qm w");
    site.worker("x", &[], "echo x > x");
    site.git(&["branch", "queue", "main"]);
    site.swarm(&["merge", "add", "queue"]).ok();
    site.merge_wait();
    site.swarm(&["merge", "pause"]).ok();
    site.swarm(&["merge", "add", "w", "x"]).ok();
    remove_worktree(site.rig.path("repo-worktrees"));
    site.git(&["worktree", "prune"]);
    site.git(&["branch", "-D", "w", "x"]);
    site.git(&["gc", "-q", "--prune=now"]);
    site.swarm(&["merge", "resume"]).ok();
    site.merge_wait();
    assert_eq!(site.subjects(), "Merge x\nMerge w\ntwo\none");
    site.assert_untouched();
}

#[test]
fn a_lock_of_another_git_is_waited_for_and_never_removed() {
    let site = Site::new();
    let lock = site.repo.join(".git/index.lock");
    site.worker("w", &[], "echo w > w");
    fs::write(&lock, "").expect("written");
    site.swarm(&["merge", "add", "w"]).ok();
    let waits = |rig: &Rig| {
        rig.root()
            .join("merge")
            .read_dir()
            .is_ok_and(|dirs| dirs.flatten().any(|dir| dir.path().join("landing.json").exists()))
    };
    wait_until("the landing has begun", SOON, || waits(&site.rig));
    assert!(lock.exists());
    fs::remove_file(&lock).expect("removed");
    site.merge_wait();
    assert_eq!((site.state("w").as_str(), lock.exists()), ("landed", false));
    site.assert_untouched();
}

#[test]
fn another_checkout_of_the_base_is_updated() {
    let site = Site::new();
    site.git(&["branch", "other"]);
    site.git(&["switch", "-q", "--force", "other"]);
    let second: PathBuf = site.rig.path("second");
    site.git(&["worktree", "add", "-q", Path::new(&second).to_str().expect("text"), "main"]);
    site.worker("w", &["--base", "main"], "echo w > w");
    site.swarm(&["merge", "add", "w"]).ok();
    site.merge_wait();
    assert_eq!(site.rig.git(&second, &["status", "--porcelain"]), "");
    assert!(second.join("w").exists() && !site.repo.join("w").exists());
}

#[test]
fn a_verification_that_removes_its_repository_harms_no_other_repository() {
    let site = Site::new();
    // A home directory that is a repository and contains the state directory.
    let outer = site.rig.root().parent().expect("a directory").to_owned();
    site.rig.git(&outer, &["init", "-q"]);
    fs::write(outer.join("kept"), "kept\n").expect("written");
    site.rig.git(&outer, &["add", "kept"]);
    site.rig.git(&outer, &["commit", "-q", "-m", "outer"]);
    fs::write(outer.join("kept"), "edited\n").expect("written");
    fs::write(outer.join("new"), "untracked\n").expect("written");
    for (name, verify) in [("w", "rm -rf .git"), ("x", "true")] {
        site.worker(name, &[], &format!("echo {name} > {name}"));
        site.swarm(&["merge", "add", name, "--verify", verify]).ok();
        site.merge_wait();
        assert_eq!(site.state(name), "landed");
    }
    let both = ["kept", "new"].map(|name| fs::read_to_string(outer.join(name)).expect("there"));
    assert_eq!(both, ["edited\n", "untracked\n"]);
    assert_eq!(site.rig.git(&outer, &["log", "--format=%s"]), "outer");
    site.assert_untouched();
}

#[test]
fn an_ignored_file_of_the_user_is_never_overwritten() {
    let site = Site::new();
    site.write(".gitignore", ".env\nbuilt/\n");
    site.git(&["add", ".gitignore"]);
    site.git(&["commit", "-q", "-m", "ignore", "--", ".gitignore"]);
    site.write(".env", "secret\n");
    fs::create_dir(site.repo.join("built")).expect("made");
    site.write("built/result", "hours of work\n");
    site.worker("env", &[], "echo theirs > .env; git add -f .env; git commit -qm env");
    site.worker("built", &[], "echo theirs > built; git add -f built; git commit -qm built");
    for (name, file) in [("env", ".env"), ("built", "built/result")] {
        site.swarm(&["merge", "add", name]).ok();
        site.merge_wait();
        let item = site.item(name);
        assert_eq!((item["state"].as_str(), &item["files"]), (Some("waiting"), &serde_json::json!([file])));
    }
    assert_eq!(fs::read_to_string(site.repo.join(".env")).expect("there"), "secret\n");
    assert_eq!(fs::read_to_string(site.repo.join("built/result")).expect("there"), "hours of work\n");
    site.assert_untouched();
}

#[test]
fn a_later_item_does_not_change_the_rules_of_earlier_ones() {
    let site = Site::new();
    for name in ["first", "bad", "free"] {
        site.worker(name, &[], &format!("echo {name} > {name}"));
    }
    site.swarm(&["merge", "add", "first"]).ok();
    site.merge_wait();
    site.swarm(&["merge", "pause"]).ok();
    site.swarm(&["merge", "add", "bad", "--verify", "test ! -e bad"]).ok();
    site.swarm(&["merge", "add", "free"]).ok();
    site.swarm(&["merge", "resume"]).ok();
    site.merge_wait();
    assert_eq!((site.state("bad").as_str(), site.state("free").as_str()), ("rejected", "landed"));
}

#[test]
fn landed_files_have_the_modes_that_the_users_git_would_give() {
    let site = Site::new();
    site.worker("w", &[], "echo w > new; echo w >> file");
    site.swarm(&["merge", "add", "w", "--verify", "umask > ../umask"]).ok();
    site.merge_wait();
    site.write("own", "");
    let mode = |name: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        fs::metadata(site.repo.join(name)).expect("there").permissions().mode()
    };
    assert_eq!((mode("new"), mode("file")), (mode("own"), mode("own")));
}

#[test]
fn a_worktree_with_an_unfinished_git_operation_waits() {
    let site = Site::new();
    site.worker("a", &[], "echo a >> file; git commit -qam a");
    site.worker("b", &[], "echo b >> file; git commit -qam b; git merge -q a || true");
    let said = site.swarm(&["merge", "add", "b"]);
    assert!(
        said.out.starts_with("waiting b") && said.err.contains("a merge is in progress in its worktree"),
        "{said:?}"
    );
    let tree = site.rig.path("repo-worktrees/b");
    assert_eq!(site.rig.git(&tree, &["log", "-1", "--format=%s"]), "b");
    // A restarted supervisor leaves the unfinished operation alone too.
    site.swarm(&["supervisor", "restart"]).ok();
    assert_eq!(site.rig.git(&tree, &["log", "-1", "--format=%s"]), "b");
}

#[test]
fn a_failed_worker_makes_merge_wait_fail() {
    let site = Site::new();
    let go = site.rig.path("go");
    let script = format!("while test ! -e {}; do sleep 0.05; done; exit 1", go.display());
    site.swarm(&["spawn", "--name", "w", "--worktree", "--merge", "--", "sh", "-c", &script]).ok();
    let said = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| site.merge_wait());
        let is_waiting = |pid: &i32| proc::words(*pid).get(2).is_some_and(|word| word == "wait");
        wait_until("'merge wait' runs", SOON, || site.rig.processes().iter().any(is_waiting));
        fs::write(&go, "").expect("written");
        waiting.join().expect("no panic")
    });
    let warning = "swarm: warning: 'w' did not succeed, nothing to land\n";
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (Some(1), "", warning));
}

#[test]
fn a_worker_that_a_verification_starts_outlives_the_next_one() {
    let site = Site::new();
    for name in ["a", "b"] {
        site.worker(name, &[], &format!("echo {name} > {name}"));
    }
    let spawn = format!("{} spawn --name srv -- sleep 600", env!("CARGO_BIN_EXE_swarm"));
    site.swarm(&["merge", "add", "a", "--verify", &spawn]).ok();
    site.swarm(&["merge", "wait", "a"]).ok();
    let pid = site.rig.view("srv")["pid"].clone();
    let environment = fs::read(format!("/proc/{pid}/environ")).expect("it runs");
    assert!(!String::from_utf8_lossy(&environment).contains("SWARM_SCRATCH="));
    site.swarm(&["merge", "add", "b", "--verify", "true"]).ok();
    site.swarm(&["merge", "wait", "b"]).ok();
    let view = site.rig.view("srv");
    assert_eq!((view["status"].as_str(), &view["pid"]), (Some("running"), &pid));
}
