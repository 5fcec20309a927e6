//! Runs in copies of a project, and runs whose records were deleted: each lands its own work.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{SOON, wait_until};
use crate::run::{Site, events, told};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().expect("a parent")).expect("made");
    assert!(Command::new("cp").arg("-a").args([from, to]).status().expect("started").success());
}

/// Adds the spec `b`, plans it, and agrees to it.
fn extend(site: &Site, repo: &Path, script: &str) {
    let text = format!("---\nadapter: shell\nafter: a\n---\n# Spec b\n\n```sh\n{script}\n```\n");
    fs::write(repo.join("specs/b.md"), text).expect("written");
    site.rig.swarm_in(repo, &["plan", "--specs", "specs", "-y"]).ok();
    site.rig.trust(repo);
}

/// A project whose spec `a` has landed.
fn begun() -> Site {
    let site = Site::new();
    site.spec("a", "", "echo a > a.txt");
    site.commit();
    site.plan();
    site.run(0, &[]);
    site
}

#[test]
fn a_run_in_a_copied_project_lands_its_own_work() {
    let site = begun();
    let other = site.rig.path("other");
    copy(&site.repo, &other);
    for repo in [&site.repo, &other] {
        let name = repo.file_name().expect("a name").to_string_lossy().into_owned();
        extend(&site, repo, &format!("echo {name} > b.txt"));
        let said = site.rig.swarm_in(repo, &["run", "--json"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(told(&events(&said.out), "b").last().map(String::as_str), Some("workstream.done"));
        assert_eq!(site.rig.git(repo, &["show", "main:b.txt"]), name);
    }
    // A project that was moved continues its run.
    let moved = site.rig.path("moved");
    fs::rename(&other, &moved).expect("moved");
    let said = site.rig.swarm_in(&moved, &["run"]);
    assert!(said.code == Some(0) && said.out.contains("0 of 2 workstreams pending"), "{said:?}");
    let ids = |repo: &Path| {
        let status = site.rig.swarm_in(repo, &["run", "status"]).ok();
        status.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_ne!(ids(&site.repo), ids(&moved));
}

#[test]
fn a_moved_project_continues_workstreams_that_had_begun() {
    let site = Site::new();
    let go = site.rig.path("go");
    site.spec("finished", "", "echo f > finished.txt");
    let waits =
        format!("echo begun > begun.txt; while ! test -e {}; do sleep 0.1; done; echo w > work.txt", go.display());
    site.spec("working", "", &waits);
    site.commit();
    site.plan();
    site.swarm(&["merge", "pause", "--base", "main"]).ok();
    assert_eq!(site.swarm(&["run", "--detach", "--verify", "true"]).code, Some(0));
    let status = || site.swarm(&["run", "status", "--json"]).out;
    wait_until("one is finished", SOON, || status().contains("\"merging\""));
    let begun = site.repo.join(".arial/worktrees/working/begun.txt");
    wait_until("one is at work", SOON, || begun.exists());
    assert_eq!(site.swarm(&["run", "stop"]).code, Some(0));
    // At a place whose name would give the workers other names.
    let moved = site.rig.path("elsewhere/moved");
    fs::create_dir_all(moved.parent().expect("a parent")).expect("made");
    fs::rename(&site.repo, &moved).expect("moved");
    site.rig.trust(&moved);
    let said = site.rig.swarm_in(&moved, &["run"]);
    assert!(said.code == Some(1) && said.err.contains("git does not know its worktrees here"), "{said:?}");
    let repair = said.err.split_once("run '").and_then(|(_, rest)| rest.split_once('\'')).expect("a command").0;
    assert!(Command::new("sh").args(["-c", repair]).status().expect("started").success(), "{repair}");
    site.rig.file("go", "");
    let said = site.rig.swarm_in(&moved, &["run"]);
    assert!(said.code == Some(0) && said.out.contains("completed: 2 done, 0 failed"), "{said:?}");
    for file in ["finished.txt", "begun.txt", "work.txt"] {
        site.rig.git(&moved, &["cat-file", "-e", &format!("main:{file}")]);
    }
}

#[test]
fn copies_of_the_same_name_have_workers_of_their_own() {
    let site = begun();
    let other = site.rig.path("elsewhere/repo");
    copy(&site.repo, &other);
    let go = site.rig.path("go");
    let waits = |name: &str| format!("while ! test -e {}; do sleep 0.1; done; echo {name} > b.txt", go.display());
    extend(&site, &site.repo, &waits("one"));
    extend(&site, &other, &waits("two"));
    for repo in [&site.repo, &other] {
        site.rig.swarm_in(repo, &["run", "--detach", "--verify", "true"]).ok();
    }
    let running = || site.rig.swarm(&["ls"]).out.matches("running").count();
    wait_until("both are at work", SOON, || running() == 2);
    site.rig.file("go", "");
    let is_done = |repo: &Path| fs::read_to_string(repo.join("b.txt")).unwrap_or_default();
    wait_until("both landed", SOON, || is_done(&site.repo) == "one\n" && is_done(&other) == "two\n");
}

#[test]
fn jobs_whose_records_were_deleted_land_again() {
    let site = Site::new();
    let job = |name: &str| {
        format!("[[job]]\nname = '{name}'\ncommand = 'echo 1 > {name}.txt'\nworktree = true\nmerge = true\n")
    };
    site.write("jobs.toml", &job("one"));
    site.commit();
    let first = site.git(&["rev-parse", "main"]);
    site.run(0, &["jobs.toml"]);
    assert_eq!(site.landed("one.txt"), "1");
    let homes = fs::read_dir(site.rig.root().join("run")).expect("homes").flatten().map(|entry| entry.path());
    homes.filter(|home| home.is_dir()).for_each(|home| fs::remove_dir_all(home).expect("removed"));
    site.git(&["reset", "-q", "--hard", &first]);
    site.run(0, &["jobs.toml"]);
    assert_eq!(site.landed("one.txt"), "1", "it landed, and is not only said to have landed");
}
