//! Edits that a person makes while a landing waits, or after it was interrupted.

use std::fs;
use std::time::{Duration, Instant};

use swarm_model::merge::Landing;

use super::tests_checkout::Site;
use super::{checkout, land};
use crate::fixture::text;

/// Returns lines with the numbers `from` to `to`.
fn numbers(from: u32, to: u32) -> String {
    (from..=to).map(|number| format!("{number}\n")).collect()
}

/// A site with the branch `topic`, which changes the first of 20 lines of `f` and `h`, appends a line to `g`, deletes `gone`,
/// and adds `new/file`.
fn site() -> Site {
    let site = Site::new();
    for name in ["f", "g", "h", "gone"] {
        fs::write(site.fix.repo.join(name), numbers(1, 20)).unwrap();
    }
    site.fix.git(&["add", "."]);
    site.fix.commit("lines", "more", "1\n");
    site.branch("topic", "sed -i '1s/.*/topic/' f h; echo 21 >> g; rm gone; mkdir new; echo new > new/file");
    site
}

impl Site {
    fn status(&self) -> String {
        text(&self.fix.git(&["status", "--porcelain", "-uall"]))
    }

    fn has(&self, path: &str) -> bool {
        self.fix.repo.join(path).symlink_metadata().is_ok()
    }

    fn text_of(&self, path: &str) -> String {
        fs::read_to_string(self.fix.repo.join(path)).unwrap()
    }

    fn is_free(&self) -> bool {
        let names = fs::read_dir(self.fix.repo.join(".git")).unwrap().map(|entry| entry.unwrap().file_name());
        names.into_iter().all(|name| name != "index.lock" && !name.to_string_lossy().starts_with("swarm-landing"))
    }

    /// Makes the `read-tree` of landings run this script, in which `$GIT` is the real git.
    fn stub(&mut self, body: &str) {
        self.fix.caller = self.fix.with_stub_of("read-tree -m", &format!("cd {}; {body}", self.fix.repo.display()));
    }

    /// Starts to land the branch and fails in the middle.
    async fn interrupted(&self, name: &str) -> checkout::Marker {
        let item = self.item(name).await;
        let workspace = self.workspace();
        let failed = land::land(&workspace, &self.tip("main"), &item.tip);
        assert!(failed.is_err_and(|fault| fault.killed));
        checkout::Marker::load(&workspace).unwrap().unwrap()
    }
}

#[tokio::test]
async fn an_edit_while_a_landing_waits_for_the_index_stays() {
    for (file, edited) in [("f", numbers(1, 15)), ("g", numbers(1, 15)), ("f", String::new()), ("f", "mine\n".into())] {
        let site = site();
        let lock = site.fix.repo.join(".git/index.lock");
        fs::write(&lock, "").unwrap();
        let edit = async {
            let limit = Instant::now() + Duration::from_secs(8);
            let workspace = loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                let known = site.landings.workspace(&site.target, None).await;
                if let Some(known) = known.ok().filter(|known| checkout::Marker::load(known).unwrap().is_some()) {
                    break known;
                }
                assert!(Instant::now() < limit);
            };
            fs::write(site.fix.repo.join(file), &edited).unwrap();
            fs::remove_file(&lock).unwrap();
            drop(workspace);
        };
        let (landed, ()) = tokio::join!(site.land("topic"), edit);
        assert_eq!(landed, Landing::Overlap(vec![file.into()]));
        assert_eq!((site.text_of(file), site.status()), (edited, format!(" M {file}")));
        assert!(site.is_free());
        site.fix.git(&["checkout", "-q", "."]);
        assert_eq!(site.land("topic").await, Landing::Done(Vec::new()));
        assert_eq!(site.status(), "");
        assert!(site.has("new/file") && !site.has("gone") && site.is_free());
    }
}

#[tokio::test]
async fn an_edit_after_a_landing_died_before_git_wrote_stays() {
    for has_lock in [false, true] {
        for edited in [numbers(1, 15), String::new(), "topic\n".into()] {
            let site = site();
            let item = site.item("topic").await;
            let workspace = site.workspace();
            let planned = checkout::plan(&workspace, &site.tip("main"), &item.tip).unwrap();
            let checkout::Planned::Ready(mut plan) = planned else { panic!("it waits") };
            plan.marker.save(&workspace).unwrap();
            if has_lock {
                assert!(plan.lock().unwrap().is_none());
            }
            fs::write(site.fix.repo.join("f"), &edited).unwrap();
            fs::remove_file(site.fix.repo.join("gone")).unwrap();
            checkout::recover(&workspace, &plan.marker).unwrap();
            assert_eq!((site.text_of("f"), site.has("gone")), (edited, false));
            assert!(site.is_free());
        }
    }
}

#[tokio::test]
async fn a_landing_that_died_in_the_middle_is_rolled_back_and_edits_stay() {
    // Of `f` only a part was written, and `g` not yet.
    let partly = "$GIT \"$@\"; head -c 9 f > part; mv part f; rm g; kill -9 $$";
    for removes_lock in [false, true] {
        let mut site = site();
        site.stub(partly);
        let marker = site.interrupted("topic").await;
        assert!(site.has("new/file") && !site.has("gone") && !site.has("g"));
        if removes_lock {
            fs::remove_file(site.fix.repo.join(".git/index.lock")).unwrap();
        }
        fs::write(site.fix.repo.join("h"), numbers(1, 15)).unwrap();
        checkout::recover(&site.workspace(), &marker).unwrap();
        assert_eq!((site.text_of("h"), site.status().as_str()), (numbers(1, 15), " M h"));
        assert!(!site.has("new") && site.is_free());
        // A second one finds nothing to do.
        fs::write(site.fix.repo.join("f"), numbers(1, 3)).unwrap();
        fs::remove_file(site.fix.repo.join("gone")).unwrap();
        marker.save(&site.workspace()).unwrap();
        checkout::recover(&site.workspace(), &marker).unwrap();
        assert_eq!(site.text_of("f"), numbers(1, 3));
    }
}

#[tokio::test]
async fn what_was_not_kept_is_written_again_from_the_commit() {
    let mut site = site();
    site.stub("$GIT \"$@\"; rm -r g .git/swarm-landing.kept; kill -9 $$");
    let marker = site.interrupted("topic").await;
    checkout::recover(&site.workspace(), &marker).unwrap();
    assert_eq!(site.status(), "");
    assert!(site.is_free());
}

#[tokio::test]
async fn a_roll_back_that_fails_leaves_no_lock() {
    let mut site = site();
    site.stub("$GIT \"$@\"; rm -r g .git/swarm-landing.kept; kill -9 $$");
    let marker = site.interrupted("topic").await;
    fs::write(site.fix.repo.join(".git/info/attributes"), "g filter=fake\n").unwrap();
    site.fix.git(&["config", "filter.fake.required", "true"]);
    site.fix.git(&["config", "filter.fake.smudge", "false"]);
    assert!(checkout::recover(&site.workspace(), &marker).is_err());
    assert!(checkout::Marker::load(&site.workspace()).unwrap().is_some(), "it is tried again");
    site.fix.git(&["commit", "-q", "--allow-empty", "-m", "of a person"]);
    site.fix.git(&["config", "filter.fake.smudge", "cat"]);
    checkout::recover(&site.workspace(), &marker).unwrap();
    fs::remove_file(site.fix.repo.join(".git/info/attributes")).unwrap();
    assert_eq!(site.status(), "");
    assert!(site.is_free());
}

#[tokio::test]
async fn a_git_that_is_killed_while_it_refreshes_is_no_answer() {
    let mut site = site();
    let first = "test -e refreshed || { touch refreshed .git/swarm-landing.index.lock; kill -9 $$; }; exec $GIT \"$@\"";
    let body = format!("cd {}; {first}", site.fix.repo.display());
    site.fix.caller = site.fix.with_stub_of("update-index -q --refresh", &body);
    let item = site.item("topic").await;
    let (workspace, from) = (site.workspace(), site.tip("main"));
    assert!(land::land(&workspace, &from, &item.tip).is_err_and(|fault| fault.killed));
    let landed = land::land(&workspace, &from, &item.tip);
    assert!(matches!(landed, Ok(Landing::Done(_))), "{landed:?}");
    fs::remove_file(site.fix.repo.join("refreshed")).unwrap();
    assert_eq!(site.status(), "");
}

#[tokio::test]
async fn a_roll_back_continues_after_a_git_that_was_killed() {
    let mut site = site();
    site.stub("$GIT \"$@\"; rm -r g .git/swarm-landing.kept; kill -9 $$");
    let marker = site.interrupted("topic").await;
    fs::write(site.fix.repo.join(".git/swarm-landing.restore.lock"), "").unwrap();
    checkout::recover(&site.workspace(), &marker).unwrap();
    assert_eq!(site.status(), "");
    assert!(site.is_free());
}

#[tokio::test]
async fn a_roll_back_needs_the_index() {
    let mut site = site();
    site.stub("$GIT \"$@\"; rm g; kill -9 $$");
    let marker = site.interrupted("topic").await;
    site.fix.with_stub_of("diff-index --cached", "exit 128");
    assert!(checkout::recover(&site.workspace(), &marker).is_err(), "that it cannot be read is no answer");
    site.fix.with_stub_of("nothing", "");
    checkout::recover(&site.workspace(), &marker).unwrap();
    assert_eq!(site.status(), "");
    assert!(site.is_free());
}

#[tokio::test]
async fn an_edit_between_the_look_and_the_write_of_git_stays() {
    let mut site = site();
    site.stub("$GIT \"$@\"; for file in .git/swarm-landing.kept/*; do case $(tail -n1 $file) in 20) echo mine >> $file;; esac; done; exit 0");
    let Landing::Overlap(files) = site.land("topic").await else { panic!("it landed") };
    assert_eq!(files, ["f", "g", "gone", "h"]);
    assert_eq!(site.text_of("f"), numbers(1, 20) + "mine\n");
    assert!(!site.has("new") && site.is_free());
}

#[tokio::test]
async fn a_symbolic_link_in_place_of_a_directory_is_waited_for() {
    let site = Site::new();
    let (dir, away) = (site.fix.repo.join("d"), site.fix.root.join("away"));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("b"), "b\n").unwrap();
    site.fix.commit("a directory", "d/a", "a\n");
    site.branch("topic", "echo new >> d/a");
    site.branch("drops", "rm d/a");
    fs::rename(&dir, &away).unwrap();
    std::os::unix::fs::symlink(&away, &dir).unwrap();
    for name in ["topic", "drops"] {
        let Landing::Overlap(files) = site.land(name).await else { panic!("{name} landed") };
        assert!(files.contains(&"d".to_owned()), "{files:?}");
        assert_eq!((fs::read_link(&dir).unwrap(), site.text_of("d/a").as_str()), (away.clone(), "a\n"));
    }
    fs::remove_file(&dir).unwrap();
    fs::write(&dir, "a file\n").unwrap();
    assert!(matches!(site.land("topic").await, Landing::Overlap(files) if files.contains(&"d".to_owned())));
    assert_eq!(site.text_of("d"), "a file\n");
    fs::remove_file(&dir).unwrap();
    fs::rename(&away, &dir).unwrap();
    assert_eq!(site.land("topic").await, Landing::Done(Vec::new()));
}

#[tokio::test]
async fn an_uncommitted_deletion_is_waited_for() {
    let site = Site::new();
    fs::create_dir(site.fix.repo.join("d")).unwrap();
    site.fix.commit("one", "d/a", "a\n");
    site.fix.commit("two", "gone", "b\n");
    site.branch("topic", "echo new >> d/a; rm gone");
    // The landing deletes this file, too.
    fs::remove_file(site.fix.repo.join("gone")).unwrap();
    for (path, delete) in [("d/a", fs::remove_file as fn(_) -> _), ("d", |path| fs::remove_dir_all(path))] {
        delete(site.fix.repo.join(path)).unwrap();
        assert_eq!(site.land("topic").await, Landing::Overlap(vec!["d/a".into(), "gone".into()]));
        assert!(!site.has("d/a"));
        site.fix.git(&["checkout", "-q", "d/a"]);
    }
    assert_eq!(site.land("topic").await, Landing::Done(Vec::new()));
    assert_eq!((site.text_of("d/a").as_str(), site.status().as_str()), ("a\nnew\n", ""));
}

#[tokio::test]
async fn a_landing_that_died_between_index_and_base_lands_again() {
    let site = Site::new();
    fs::create_dir(site.fix.repo.join("d")).unwrap();
    site.fix.commit("a directory", "d/a", "a\n");
    site.branch("topic", "rm -r d; echo file > d; rm f; mkdir f; echo in > f/in");
    site.fix.git(&["read-tree", "-m", "-u", "main", "topic"]);
    assert_eq!(site.land("topic").await, Landing::Done(Vec::new()));
    assert_eq!(
        (site.text_of("d").as_str(), site.text_of("f/in").as_str(), site.status().as_str()),
        ("file\n", "in\n", "")
    );
}

#[tokio::test]
async fn a_file_outside_of_a_sparse_checkout_is_no_deletion() {
    let site = Site::new();
    for dir in ["in", "out"] {
        fs::create_dir(site.fix.repo.join(dir)).unwrap();
        site.fix.commit(dir, &format!("{dir}/f"), "1\n");
    }
    site.branch("topic", "echo 2 > in/f; echo 2 > out/f; echo new > out/new");
    site.fix.git(&["sparse-checkout", "set", "in"]);
    assert!(!site.has("out"));
    assert_eq!(site.land("topic").await, Landing::Done(Vec::new()));
    assert_eq!((site.text_of("in/f").as_str(), site.has("out"), site.status().as_str()), ("2\n", false, ""));
}
