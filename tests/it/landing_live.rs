//! Landing of work whose worker still runs: only what its branch contains, or what an idle agent has left.

use std::fs;

use crate::common::{SOON, wait_until};
use crate::landing::Site;

/// Starts a worker that commits `one`, leaves `two` uncommitted, and goes on.
fn at_work(site: &Site, name: &str) {
    let ready = site.rig.path(&format!("{name}-ready"));
    let script = format!(
        "echo {name} > {name}-one; git add .; git commit -qm {name}; echo two > {name}-two; touch {}; exec tail -f /dev/null",
        ready.display()
    );
    site.swarm(&["spawn", "--name", name, "--worktree", "--", "sh", "-c", &script]).ok();
    wait_until("the worker has written", SOON, || ready.exists());
}

fn included(name: &str) -> String {
    format!("swarm: note: worker '{name}' is still running: what it does from now on is not included\n")
}

#[test]
fn committed_work_of_a_running_worker_lands_and_the_worker_goes_on() {
    let site = Site::new();
    at_work(&site, "fix");
    let tree = site.rig.path("repo-worktrees/fix");
    // The agent may still be writing, so the addition is refused with a remedy, and nothing is queued.
    let cause = format!("worker 'fix' is still running and has uncommitted changes in {}", tree.display());
    let said = site.swarm(&["merge", "add", "fix", "--verify", "true"]).refused(1, &cause);
    assert!(said.err.contains("'swarm merge add fix --uncommitted'"), "{said:?}");
    assert_eq!(site.swarm(&["merge", "ls", "--all"]).ok(), "");
    fs::remove_file(tree.join("fix-two")).expect("removed");
    let before = site.rig.git(&tree, &["rev-parse", "HEAD"]);
    site.swarm(&["merge", "add", "fix", "--verify", "true"]).is(0, "queued fix for main (item 0)\n", &included("fix"));
    site.swarm(&["merge", "wait", "fix", "--timeout", "25"]).is(0, "fix: landed (main)\n", "");
    assert_eq!(fs::read_to_string(site.repo.join("fix-one")).expect("landed"), "fix\n");
    assert_eq!((site.rig.fine("fix").as_str(), site.rig.git(&tree, &["rev-parse", "HEAD"])), ("running", before));
    // What it does later lands as another item.
    fs::write(tree.join("later"), "later\n").expect("written");
    site.rig.git(&tree, &["add", "later"]);
    site.rig.git(&tree, &["commit", "-q", "-m", "later"]);
    site.swarm(&["merge", "add", "fix"]).is(0, "queued fix for main (item 1)\n", &included("fix"));
    site.swarm(&["merge", "wait", "fix", "--timeout", "25"]).is(0, "fix: landed (main)\n", "");
    assert!(site.repo.join("later").exists());
    site.assert_untouched();
}

#[test]
fn uncommitted_work_of_a_running_worker_lands_if_its_agent_is_idle_or_on_request() {
    let site = Site::new();
    at_work(&site, "idle");
    site.swarm(&["session", "note", "idle", "--operation", "writes"]).ok();
    let said = site.swarm(&["merge", "add", "idle"]);
    assert!(said.code == Some(1) && said.err.contains("has uncommitted changes"), "{said:?}");
    site.swarm(&["session", "note", "idle", "--idle"]).ok();
    site.swarm(&["merge", "add", "idle"]).is(0, "queued idle for main (item 0)\n", &included("idle"));
    at_work(&site, "forced");
    let words = ["merge", "add", "forced", "--uncommitted"];
    site.swarm(&words).is(0, "queued forced for main (item 1)\n", &included("forced"));
    site.swarm(&["merge", "wait", "idle", "forced", "--timeout", "25"]).ok();
    for name in ["idle", "forced"] {
        assert!(site.repo.join(format!("{name}-two")).exists(), "{name}");
        assert_eq!(site.rig.fine(name), "running");
        assert_eq!(site.rig.git(&site.rig.path(&format!("repo-worktrees/{name}")), &["status", "--porcelain"]), "");
    }
    site.assert_untouched();
}

#[test]
fn what_a_forgotten_worker_left_uncommitted_lands_from_its_worktree() {
    let site = Site::new();
    site.worker("gone", &[], "echo lost > lost");
    let kept = site.swarm(&["clean", "gone"]);
    assert!(kept.err.contains("preserving worktree for 'gone'"), "{kept:?}");
    let said = site.swarm(&["merge", "add", "gone"]);
    let note = format!(
        "swarm: note: worker 'gone' is forgotten; what its worktree {} contains is added\n",
        site.rig.path("repo-worktrees/gone").display()
    );
    said.is(0, "queued gone for main (item 0)\n", &note);
    site.swarm(&["merge", "wait", "gone", "--timeout", "25"]).is(0, "gone: landed (main)\n", "");
    assert!(site.repo.join("lost").exists());
}

#[test]
fn uncommitted_work_of_a_restored_worktree_lands_if_the_rest_has_landed() {
    let site = Site::new();
    let works = |words: &[&str]| assert_eq!(site.swarm(words).code, Some(0), "{words:?}");
    let go = site.rig.path("go");
    let script = format!(
        "echo one > one; git add one; git commit -qm one; until [ -e {} ]; do sleep 0.02; done; echo two > two",
        go.display()
    );
    site.rig.swarm_in(&site.repo, &["spawn", "--name", "back", "--worktree", "--", "sh", "-c", &script]).ok();
    let tree = site.rig.path("repo-worktrees/back");
    wait_until("its work is committed", SOON, || {
        site.rig.git(&site.repo, &["log", "--format=%s", "back"]).starts_with("one")
    });
    works(&["merge", "add", "back"]);
    works(&["merge", "wait", "back", "--timeout", "25"]);
    std::fs::write(&go, "").expect("written");
    site.rig.wait("back");
    works(&["clean", "back", "--rm-worktree", "--force-dirty"]);
    assert!(!tree.exists());
    works(&["restore", "back"]);
    works(&["merge", "add", "back"]);
    site.swarm(&["merge", "wait", "back", "--timeout", "25"]).is(0, "back: landed (main)\n", "");
    assert!(site.repo.join("two").exists());
    // The branch alone, as always.
    works(&["merge", "add", "refs/heads/back"]);
}

#[test]
fn a_pipe_in_place_of_an_object_is_named_and_holds_up_only_its_own_item() {
    let site = Site::new();
    for name in ["first", "w", "other"] {
        site.worker(name, &[], &format!("echo {name} > {name}"));
    }
    // The queue has the repository open from then on.
    site.swarm(&["merge", "add", "first"]).ok();
    site.merge_wait().is(0, "first: landed (main)\n", "");
    site.swarm(&["merge", "pause", "--base", "main"]).ok();
    site.swarm(&["merge", "add", "w", "other"]).ok();
    let tip = site.item("w")["tip"].as_str().expect("a tip").to_owned();
    let object = site.repo.join(".git/objects").join(&tip[..2]).join(&tip[2..]);
    let saved = site.rig.path("saved");
    fs::rename(&object, &saved).expect("moved");
    nix::unistd::mkfifo(&object, nix::sys::stat::Mode::S_IRWXU).expect("made");
    site.swarm(&["merge", "resume", "--base", "main"]).ok();
    assert_eq!(site.swarm(&["merge", "wait", "w", "other", "--timeout", "25"]).code, Some(1));
    let reason = site.item("w")["reason"].as_str().expect("a reason").to_owned();
    assert!(reason.starts_with(&format!("git cannot read {}, which is a named pipe", object.display())), "{reason}");
    fs::remove_file(&object).expect("removed");
    fs::rename(&saved, &object).expect("moved");
    assert_eq!(site.state("other"), "landed");
    site.swarm(&["merge", "retry", "w"]).ok();
    assert_eq!(site.merge_wait().code, Some(0));
    assert_eq!(site.state("w"), "landed");
}

#[test]
fn a_pipe_in_the_data_of_the_repository_is_named_and_holds_nothing_up_for_ever() {
    let site = Site::new();
    site.worker("w", &[], "echo w > w");
    site.swarm(&["merge", "pause", "--base", "main"]).ok();
    site.swarm(&["merge", "add", "w"]).ok();
    let pipe = site.repo.join(".git/objects/info/alternates");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("made");
    site.swarm(&["merge", "resume", "--base", "main"]).ok();
    assert_eq!((site.merge_wait().out.as_str(), site.state("w").as_str()), ("w: waiting (main)\n", "waiting"));
    let reason = site.item("w")["reason"].as_str().expect("a reason").to_owned();
    assert!(reason.starts_with(&format!("git cannot read {}, which is a named pipe", pipe.display())), "{reason}");
    fs::remove_file(&pipe).expect("removed");
    site.swarm(&["merge", "retry", "w"]).ok();
    site.merge_wait().is(0, "w: landed (main)\n", "");
}

#[test]
fn a_wait_for_work_that_cannot_be_queued_names_the_cause() {
    let site = Site::new();
    let go = site.rig.path("go");
    let script = format!("while [ ! -e {} ]; do sleep .02; done", go.display());
    site.swarm(&["spawn", "--name", "w", "--worktree", "--merge", "--", "sh", "-c", &script]).ok();
    fs::rename(site.repo.join(".git"), site.rig.path("moved")).expect("moved");
    fs::write(&go, "").expect("written");
    let said = site.rig.swarm_in(&site.rig.path(""), &["merge", "wait", "w", "--timeout", "25"]);
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""));
    assert!(said.err.contains("'w' was not queued: ") && said.err.contains("repo"), "{said:?}");
    // Many events later.
    fs::write(site.rig.root().join("events.jsonl"), "").expect("written");
    let said = site.rig.swarm_in(&site.rig.path(""), &["merge", "wait", "w", "--timeout", "25"]);
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{said:?}");
    assert!(said.err.contains("'w' was not queued (run 'swarm events'"), "{said:?}");
}
