//! Landing: finished work reaches the base one verified step at a time, and nothing that belongs to the user is
//! touched.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::Value;

use crate::common::proc;
use crate::common::{Rig, SOON, Said, wait_until};
use crate::crash::both;

/// A repository with a file of two lines, a check and an edit of the user.
pub struct Site {
    pub rig: Rig,
    pub repo: PathBuf,
}

pub const CHECK: &str = "test \"$(cat health)\" = good";
const MINE: &str = "edited by a person, committed by nobody\n";

impl Site {
    pub fn new() -> Self {
        let rig = Rig::new();
        let repo = rig.repo();
        let site = Self { rig, repo };
        site.write("health", "good\n");
        site.write("mine", "a person's\n");
        site.git(&["add", "."]);
        site.git(&["commit", "-q", "-m", "two"]);
        site.write("mine", MINE);
        site
    }

    pub fn git(&self, words: &[&str]) -> String {
        self.rig.git(&self.repo, words)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.repo.join(name), text).expect("written");
        if name == "swarm.toml" {
            self.rig.trust(&self.repo);
        }
    }

    pub fn swarm(&self, words: &[&str]) -> Said {
        self.rig.swarm_in(&self.repo, words)
    }

    /// Runs a worker with a worktree whose script does this and ends.
    #[track_caller]
    pub fn worker(&self, name: &str, flags: &[&str], script: &str) {
        let words = [&["spawn", "--name", name, "--worktree"], flags, &["--", "sh", "-c", script]].concat();
        self.swarm(&words).ok();
        self.rig.wait(name);
    }

    #[track_caller]
    pub fn merge_wait(&self) -> Said {
        self.swarm(&["merge", "wait", "--timeout", "25"])
    }

    #[track_caller]
    pub fn item(&self, name: &str) -> Value {
        let said = self.swarm(&["merge", "status", name, "--json"]);
        serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
    }

    #[track_caller]
    pub fn state(&self, name: &str) -> String {
        self.item(name)["state"].as_str().expect("a state").to_owned()
    }

    #[track_caller]
    pub fn reason(&self, name: &str) -> String {
        self.item(name)["reason"].as_str().unwrap_or_else(|| panic!("no reason: {}", self.item(name))).to_owned()
    }

    pub fn subjects(&self) -> String {
        self.git(&["log", "--first-parent", "--format=%s", "main"])
    }

    /// Asserts that the checkout has the user's edit and no other change.
    #[track_caller]
    pub fn assert_untouched(&self) {
        assert_eq!(fs::read_to_string(self.repo.join("mine")).expect("there"), MINE);
        assert_eq!(self.git(&["status", "--porcelain"]), " M mine");
    }

    pub fn script(&self, name: &str, body: &str) -> String {
        let path = self.rig.file(name, &format!("#!/bin/sh\n{body}\n"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
        path
    }
}

#[test]
fn good_work_lands_bad_work_is_rejected_and_a_conflict_waits() {
    let site = Site::new();
    site.write("swarm.toml", &format!("[merge]\nverify = '''{CHECK}'''\n"));
    site.git(&["add", "swarm.toml"]);
    site.git(&["commit", "-q", "-m", "config", "--", "swarm.toml"]);
    site.worker("good", &["--merge"], "echo good >> file; mkdir d; echo new > d/new");
    site.swarm(&["merge", "wait", "good", "--timeout", "25"]).is(0, "good: landed (main)\n", "");
    site.worker("bad", &["--merge"], "echo ill > health; git commit -qam bad");
    let said = site.swarm(&["merge", "wait", "bad", "--timeout", "25"]);
    assert_eq!((said.out.as_str(), said.code), ("bad: rejected (main)\n", Some(1)), "{said:?}");
    // This branch started before the good work landed.
    site.git(&["branch", "late", "HEAD~1"]);
    site.worker("conflict", &["--branch", "late", "--merge"], "echo other >> file; git commit -qam other");
    let said = site.swarm(&["merge", "wait", "conflict", "--timeout", "25"]);
    assert_eq!((said.out.as_str(), said.code), ("conflict: conflict (main)\n", Some(1)), "{said:?}");
    // What settled before the wait began and needs a person is a failure, until it is dropped.
    site.merge_wait().is(1, "bad: rejected (main)\nconflict: conflict (main)\n", "");

    assert_eq!(site.subjects(), "Merge good\nconfig\ntwo\none");
    assert_eq!(fs::read_to_string(site.repo.join("file")).expect("there"), "one\ngood\n");
    assert!(site.repo.join("d/new").exists());
    site.assert_untouched();
    let why = site.reason("bad");
    assert!(why.starts_with(&format!("'{CHECK}' exited with code 1; its output is in ")), "{why}");
    assert_eq!(site.item("conflict")["files"], serde_json::json!(["file"]));
    let log = site.swarm(&["merge", "log"]).ok();
    assert!(log.starts_with("TIME "), "{log}");
    let lines = log.lines().skip(1);
    let told: Vec<_> = lines.map(|line| line.split_whitespace().skip(3).take(2).collect::<Vec<_>>()).collect();
    assert_eq!(told, [["good", "landed"], ["bad", "rejected"], ["conflict", "conflict"]]);
    let said = site.swarm(&["merge", "status", "conflict"]);
    assert!(said.out.contains("merge main into conflict, commit, then swarm merge add conflict"), "{said:?}");
    assert_eq!(site.git(&["for-each-ref", "--format=%(refname)", "refs/swarm/done"]).lines().count(), 2);
}

#[test]
fn a_landing_killed_in_the_middle_resumes_and_lands_once() {
    let site = Site::new();
    let go = site.rig.path("go");
    let verify = format!(
        "echo began >> {}; while test ! -e {}; do sleep 0.05; done",
        site.rig.path("began").display(),
        go.display()
    );
    site.worker("w", &["--merge"], "echo w > w");
    site.swarm(&["merge", "wait", "w", "--timeout", "25"]).is(0, "w: landed (main)\n", "");
    site.worker("x", &[], "echo x > x");
    site.swarm(&["merge", "add", "x", "--verify", &verify]).is(0, "queued x for main (item 1)\n", "");
    let began = || fs::read_to_string(site.rig.path("began")).unwrap_or_default().lines().count();
    wait_until("the verification runs", SOON, || began() == 1);
    let runner = |rig: &Rig| {
        rig.processes().into_iter().find(|pid| proc::words(*pid).get(1).is_some_and(|word| word == "__runner"))
    };
    // The processes of a verification end with the supervisor that started it.
    let (supervisor, guard) = both(&site.rig);
    let first = runner(&site.rig).expect("it runs");
    proc::kill(supervisor);
    wait_until("the old verification is ended", SOON, || !proc::alive(first));
    wait_until("the item is verified again without a command", SOON, || began() == 2);
    proc::kill(guard);
    proc::kill(runner(&site.rig).expect("it runs again"));
    wait_until("a killed runner says nothing about the commit", SOON, || began() == 3);
    fs::write(&go, "").expect("written");
    site.merge_wait();
    assert_eq!((site.state("x").as_str(), site.subjects().as_str()), ("landed", "Merge x\nMerge w\ntwo\none"));
    site.assert_untouched();
    let asleep =
        site.rig.processes().into_iter().filter(|pid| proc::words(*pid).first().is_some_and(|word| word == "sleep"));
    assert_eq!(asleep.count(), 0, "a process of a killed verification survived");
}

#[test]
fn a_worker_that_ended_without_supervisor_and_guard_still_lands() {
    let site = Site::new();
    let go = site.rig.path("go");
    let script = format!("echo w > w; while test ! -e {}; do sleep 0.05; done", go.display());
    site.swarm(&["spawn", "--name", "w", "--worktree", "--merge", "--", "sh", "-c", &script]).ok();
    crate::crash::kill_keepers(&site.rig);
    fs::write(go, "").expect("written");
    wait_until("the work has landed without a command", SOON, || site.subjects().starts_with("Merge w"));
    site.assert_untouched();
}

#[test]
fn an_item_waits_for_uncommitted_edits_and_names_them() {
    let site = Site::new();
    site.worker("w", &[], "echo w > mine; echo w >> file; echo w > new");
    site.write("new", "not tracked\n");
    site.swarm(&["merge", "add", "w"]).ok();
    site.merge_wait();
    let item = site.item("w");
    assert_eq!(
        (item["state"].as_str(), item["reason"].as_str()),
        (Some("waiting"), Some("uncommitted edits are in the way"))
    );
    assert_eq!(item["files"], serde_json::json!(["mine", "new"]));
    assert_eq!(
        (site.subjects().as_str(), site.git(&["status", "--porcelain"]).as_str()),
        ("two\none", " M mine\n?? new")
    );
    site.git(&["stash", "-q", "-u"]);
    wait_until("it continues by itself", SOON, || site.state("w") == "landed");
    assert_eq!(site.git(&["status", "--porcelain"]), "");
    assert_eq!(fs::read_to_string(site.repo.join("mine")).expect("there"), "w\n");
}

#[test]
fn a_verification_has_a_time_limit_a_log_and_leaves_no_process() {
    let site = Site::new();
    let began = site.rig.path("began");
    for (name, verify, why) in [
        ("hangs", "sleep 600 & sleep 600".to_owned(), "timed out after 1 s and was killed"),
        ("dirties", "echo x >> file".to_owned(), "passed, but changed 1 tracked file(s): file"),
        ("commits", "git commit -q --allow-empty -m x".to_owned(), "passed, but checked out or created another commit"),
        ("fails", "echo told; exit 7".to_owned(), "exited with code 7"),
        (
            "daemon",
            format!(
                "setsid sh -c 'echo $$ > {}; exec sleep 600' & wait_for() {{ :; }}; while test ! -s {}; do :; done",
                began.display(),
                began.display()
            ),
            "",
        ),
    ] {
        site.worker(name, &[], &format!("echo {name} > {name}"));
        let limit = if name == "hangs" { "1s" } else { "20s" };
        site.swarm(&["merge", "add", name, "--verify", &verify, "--timeout", limit]).ok();
        site.merge_wait();
        if why.is_empty() {
            assert_eq!(site.state(name), "landed");
        } else {
            let reason = site.reason(name);
            assert!(reason.contains(why), "{reason}");
            // The next landing queues the item again, because the base that failed as well has moved.
            if name == "fails" {
                let log = reason.rsplit_once("is in ").expect("a path").1;
                assert_eq!(fs::read_to_string(log).expect("the log"), "told\n");
            }
        }
    }
    let left: i32 = fs::read_to_string(began).expect("there").trim().parse().expect("a pid");
    assert!(!proc::alive(left), "a process left by the verification survived");
    assert_eq!(site.subjects(), "Merge daemon\ntwo\none");
    site.assert_untouched();
}

#[test]
fn a_verification_that_was_killed_is_no_verdict() {
    let site = Site::new();
    site.worker("w", &[], "echo w > w");
    site.swarm(&["merge", "add", "w", "--verify", "kill -9 $$"]).ok();
    site.merge_wait();
    let why = site.reason("w");
    assert_eq!((site.state("w").as_str(), why.as_str()), ("waiting", "'kill -9 $$' was killed by signal 9"));
}

#[test]
fn a_resolver_resolves_or_the_conflict_stays() {
    let site = Site::new();
    for name in ["a", "b", "c"] {
        site.worker(name, &[], &format!("echo {name} >> file"));
    }
    site.swarm(&["merge", "add", "a"]).ok();
    site.merge_wait();
    let files = site.rig.path("files");
    let take = format!("echo \"$SWARM_MERGE_FILES\" > {}; printf 'one\\na\\nb\\n' > file", files.display());
    site.swarm(&["merge", "add", "b", "--resolver", &take]).ok();
    site.merge_wait();
    assert_eq!((site.state("b").as_str(), fs::read_to_string(files).expect("there").as_str()), ("landed", "file\n"));
    assert_eq!(fs::read_to_string(site.repo.join("file")).expect("there"), "one\na\nb\n");
    // A resolver that leaves conflict markers has resolved nothing.
    site.swarm(&["merge", "add", "c", "--resolver", "true"]).ok();
    site.merge_wait();
    let item = site.item("c");
    assert_eq!((item["state"].as_str(), item["resolver_tries"].as_u64()), (Some("conflict"), Some(2)));
    assert_eq!(fs::read_to_string(site.repo.join("file")).expect("there"), "one\na\nb\n");
    site.assert_untouched();
    assert_eq!(site.git(&["worktree", "list"]).matches("resolve-").count(), 0);
    // It changed nothing that would be worth keeping; one that did is kept.
    let saves = || site.git(&["for-each-ref", "--format=%(refname)", "refs/swarm/trash/"]);
    assert_eq!(saves(), "");
    site.swarm(&["merge", "add", "c", "--resolver", "echo half > made; exit 3"]).ok();
    site.merge_wait();
    assert_eq!(site.state("c"), "conflict");
    let queues = fs::read_dir(site.rig.root().join("merge")).expect("queues").flatten();
    let logs: Vec<_> =
        queues.map(|queue| queue.path().join("logs/3.resolver.log")).filter(|log| log.exists()).collect();
    let told = fs::read_to_string(&logs[0]).expect("the log");
    let id = told.split_once("swarm restore ").expect("a save").1.split(' ').next().expect("an id");
    site.swarm(&["restore", id, "--to", "../half"]).ok();
    assert_eq!(fs::read_to_string(site.rig.path("half/made")).expect("restored"), "half\n");
    assert_eq!(saves().lines().count(), 2, "one for each try");
}

#[test]
fn uncommitted_work_lands_without_generated_files() {
    let site = Site::new();
    site.worker("w", &[], "echo 2 >> file; echo n > n; mkdir -p node_modules; echo x > node_modules/x; echo l > a.log");
    let note = "swarm: note: 2 uncommitted path(s) will not land: a.log, node_modules/x\n";
    site.swarm(&["merge", "add", "w"]).is(0, "queued w for main (item 0)\n", note);
    site.merge_wait();
    assert_eq!(site.git(&["diff", "--name-only", "HEAD~1", "HEAD"]), "file\nn");
    assert_eq!(site.git(&["log", "-1", "--format=%s", "w"]), "Work of w");
    let tree = site.rig.path("repo-worktrees/w");
    assert_eq!(site.rig.git(&tree, &["status", "--porcelain"]), "?? a.log\n?? node_modules/");
    // The second time there is nothing to land, which is reported.
    site.swarm(&["merge", "add", "w"]).is(0, "queued w for main (item 1)\n", note);
    site.merge_wait();
    assert_eq!(site.state("w"), "noop");

    // Nothing at all landed of this worker.
    site.worker("only", &[], "mkdir -p dist; echo x > dist/x");
    let note = "swarm: note: 1 uncommitted path(s) will not land: dist/x\n";
    site.swarm(&["merge", "add", "only"]).is(0, "queued only for main (item 2)\n", note);
    let note = "swarm: note: 'only': 1 uncommitted path(s) will not land: dist/x\n";
    site.swarm(&["merge", "wait", "only"]).is(1, "only: noop (main)\n", note);
    let shown = site.swarm(&["merge", "status", "only"]);
    assert!(shown.code == Some(1) && shown.out.contains("  left out  dist/x\n"), "{shown:?}");

    site.worker("many", &[], "for i in $(seq 201); do echo $i > f$i; done");
    let said = site.swarm(&["merge", "add", "many"]);
    assert!(said.out.starts_with("waiting many for main") && said.err.contains("201 untracked files in"), "{said:?}");
    let tree = site.rig.path("repo-worktrees/many");
    fs::remove_file(tree.join("f1")).expect("removed");
    let said = site.swarm(&["merge", "retry", "many"]);
    assert!(said.err.contains("run 'swarm merge add many' to queue the work again"), "{said:?}");
    site.swarm(&["merge", "add", "many"]).ok();
    site.merge_wait();
    assert_eq!(site.state("many"), "landed");
    site.assert_untouched();
}
