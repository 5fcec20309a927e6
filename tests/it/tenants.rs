//! Worktrees in which a worker runs are not removed, whoever else has finished with them.

use std::path::Path;

use crate::common::{Rig, SOON, wait_until};
use crate::run::Site;

/// Fails at first. Once `go` exists, works until `end` exists.
const SCRIPT: &str = "test -e ROOT/go || exit 1\nwhile ! test -e ROOT/end; do sleep 0.1; done\necho w > w.txt";

fn used_by(worker: &str) -> String {
    format!("worktree is used by running worker '{worker}' (run 'swarm kill {worker}' first)")
}

#[test]
fn a_workstream_that_a_person_has_started_again_keeps_its_worktree_and_makes_way_when_it_has_ended() {
    let site = Site::new();
    let root = site.rig.path("");
    site.spec("a", "retries: 0\n", &SCRIPT.replace("ROOT/", &root.to_string_lossy()));
    site.commit();
    site.plan();
    site.run(1, &[]);
    site.rig.file("go", "");
    site.swarm(&["respawn", "repo.a"]).ok();
    let tree = site.repo.join(".arial/worktrees/a");
    let kept = |what: &str| {
        assert!(tree.join("file").exists(), "{what}");
        assert_eq!(site.git(&["branch", "--list", "arial/a", "--format=%(refname:short)"]), "arial/a", "{what}");
    };
    let said = site.swarm(&["run", "cleanup"]);
    said.is(0, "", "swarm: note: kept repo.a: cannot clean running worker 'repo.a'\n");
    kept("a cleanup");
    // Without a new commit on the base, the workstream would keep its branch anyway.
    site.git(&["commit", "-q", "--allow-empty", "-m", "new"]);
    let said = site.swarm(&["run", "--retry-failed", "--detach"]);
    let warning = format!("swarm: warning: workstream 'a' keeps its branch: {}\n", used_by("repo.a"));
    assert!(said.code == Some(0) && said.err.contains(&warning), "{said:?}");
    kept("a retry");
    // The attempt is started once the worker has ended.
    site.rig.file("end", "");
    site.swarm(&["run", "attach"]).ok();
    assert_eq!(site.landed("w.txt"), "w");
}

#[test]
fn a_helper_that_an_agent_has_started_keeps_the_worktree_of_landed_work() {
    let site = Site::new();
    let (swarm, end) = (env!("CARGO_BIN_EXE_swarm"), site.rig.path("end"));
    let helper = format!("while ! test -e {}; do sleep 0.1; done; cat a.txt", end.display());
    site.spec("a", "", &format!("echo a > a.txt\n'{swarm}' spawn --name helper -- sh -c '{helper}'"));
    site.commit();
    site.plan();
    site.run(0, &[]);
    assert_eq!(site.landed("a.txt"), "a");
    let tree = site.repo.join(".arial/worktrees/a");
    let note = format!("swarm: note: kept {}: {}\n", tree.display(), used_by("helper"));
    site.swarm(&["run", "cleanup"]).is(0, "", &note);
    site.rig.file("end", "");
    site.rig.wait("helper");
    assert_eq!(
        (site.rig.exit("helper").as_str(), site.rig.log("helper", "stdout").as_str()),
        ("code 0, exited", "a\n")
    );
    let removed = format!("removed {}\nremoved arial/a\n", tree.display());
    assert_eq!(site.swarm(&["run", "cleanup"]).ok(), removed);
}

/// Spawns a worker that has ended in a worktree, and another one that runs there.
fn tenant(rig: &Rig, repo: &Path, flags: &[&str]) {
    rig.swarm_in(repo, &["spawn", "--name", "a", "--worktree", "--", "true"]).ok();
    rig.wait("a");
    let words = [&["spawn", "--name", "b"], flags, &["--", "sleep", "600"]].concat();
    rig.swarm_in(repo, &words).ok();
    wait_until("it runs", SOON, || rig.fine("b") == "running");
}

#[test]
fn clean_keeps_a_worktree_in_which_another_worker_runs_until_that_has_ended() {
    for dir in ["../repo-worktrees/a", "../link/a"] {
        let rig = Rig::new();
        let repo = rig.repo();
        std::os::unix::fs::symlink(rig.path("repo-worktrees"), rig.path("link")).expect("made");
        tenant(&rig, &repo, &["--cwd", dir]);
        let tree = rig.path("repo-worktrees/a");
        let said = rig.swarm_in(&repo, &["clean", "a", "--rm-worktree"]);
        let warning = "swarm: warning: preserving worktree for 'a': worktree is used by running worker 'b'\n";
        assert!(said.code == Some(0) && said.err.contains(warning) && tree.exists(), "{said:?}");
        let said = rig.swarm_in(&repo, &["clean", "a", "--force-dirty"]);
        said.refused(1, "cannot remove worktree for 'a': worktree is used by running worker 'b'");
        assert!(tree.exists());
        rig.swarm(&["kill", "b"]).ok();
        rig.swarm_in(&repo, &["clean", "a", "--force-dirty"]).ok();
        assert!(!tree.exists());
    }
}

#[test]
fn clean_keeps_the_worktree_of_a_window_and_of_a_worker_that_will_be_restarted() {
    let rig = Rig::new();
    let repo = rig.repo();
    rig.swarm_in(&repo, &["spawn", "--name", "a", "--worktree", "--", "true"]).ok();
    rig.wait("a");
    let tree = rig.path("repo-worktrees/a");
    let spawn = ["spawn", "--name", "b", "--cwd", "../repo-worktrees/a"];
    let window = ["--tmux", "--", "sleep", "600"];
    let fails = ["--restart", "on-failure", "--", "false"];
    for (how, state) in [(&window[..], "running"), (&fails[..], "backoff")] {
        rig.swarm_in(&repo, &[&spawn[..], how].concat()).ok();
        wait_until("it is there", SOON, || rig.fine("b") == state);
        if state == "running" {
            // Forgets the worker, and keeps its worktree.
            assert_eq!(rig.swarm_in(&repo, &["clean", "a"]).code, Some(0));
        }
        let said = rig.swarm_in(&repo, &["clean", "a", "--force-dirty"]);
        said.refused(1, "cannot remove worktree for 'a': worktree is used by running worker 'b'");
        assert!(tree.exists(), "{state}");
        rig.swarm(&["kill", "b"]).ok();
        rig.swarm(&["clean", "b"]).ok();
    }
    rig.swarm_in(&repo, &["clean", "a", "--force-dirty"]).ok();
    assert!(!tree.exists());
}

/// Runs a command with another state directory than the rig's.
fn other(rig: &Rig, repo: &Path, words: &[&str]) -> crate::common::Said {
    let mut command = rig.command(words);
    command.current_dir(repo).env("SWARM_DIR", rig.path("other"));
    crate::common::run(command)
}

#[test]
fn a_worktree_stays_while_a_worker_of_another_state_directory_uses_it() {
    let rig = Rig::new();
    let repo = rig.repo();
    let tree = rig.path("repo-worktrees/fix");
    let spawn = ["spawn", "--name", "fix", "--worktree", "--"];
    rig.swarm_in(&repo, &[&spawn[..], &["true"]].concat()).ok();
    rig.wait("fix");
    // Theirs continues in it, and ours is asked to remove it.
    let said = other(&rig, &repo, &[&spawn[..], &["sleep", "600"]].concat());
    assert!(said.code == Some(0) && said.err.contains("worktree already exists"), "{said:?}");
    let session = tree.join(".agent/state.json");
    wait_until("the agent is in its session", SOON, || {
        std::fs::read_to_string(&session).is_ok_and(|text| text.contains("\"status\": \"running\""))
    });
    let alive = "worktree is used by a running agent: process ";
    let said = rig.swarm_in(&repo, &["respawn", "fix", "--clean-first", "--force-dirty"]);
    assert!(said.code == Some(1) && said.err.contains(&format!("cannot remove worktree: {alive}")), "{said:?}");
    let said = rig.swarm_in(&repo, &["clean", "fix", "--force-dirty"]);
    let warning = format!("swarm: warning: preserving worktree for 'fix': {alive}");
    assert!(said.code == Some(0) && said.err.contains(&warning) && tree.exists(), "{said:?}");
    assert!(!said.err.contains("continues in it"), "{said:?}");
    // The worktree is still marked as ours, but we have no worker in it any more.
    other(&rig, &repo, &["kill", "fix"]).ok();
    other(&rig, &repo, &["clean", "fix"]).ok();
    assert!(!tree.exists());

    // One that was made for them stays theirs after its worker has ended.
    assert_eq!(other(&rig, &repo, &[&spawn[..], &["true"]].concat()).code, Some(0));
    other(&rig, &repo, &["wait", "fix"]).ok();
    let said = rig.swarm_in(&repo, &[&spawn[..], &["true"]].concat());
    assert!(said.code == Some(0) && said.err.contains("worktree already exists"), "{said:?}");
    rig.wait("fix");
    let said = rig.swarm_in(&repo, &["kill", "fix", "--rm-worktree"]);
    let used = format!("worktree is used by worker 'fix' of the state directory {}", rig.path("other").display());
    assert!(said.err.contains(&format!("cannot remove worktree for 'fix': {used}\n")), "{said:?}");
    let said = rig.swarm_in(&repo, &["clean", "fix"]);
    assert!(said.code == Some(0) && said.err.contains(&used) && tree.exists(), "{said:?}");
    assert_eq!(rig.git(&repo, &["branch", "--list", "fix", "--format=%(refname:short)"]), "fix");
    other(&rig, &repo, &["clean", "fix"]).ok();
    assert!(!tree.exists());
    other(&rig, &repo, &["supervisor", "stop"]).ok();
}
