//! What counts as finished work: only the recorded branch, and all that a resolver left.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use swarm_model::merge::queue::{Addition, Item, Link, Phase, Queue, Rules, State};
use swarm_model::merge::{Build, Resolution};
use swarm_model::{BaseRef, RowWorktree, Target};
use swarm_ports::{Completed, Completion, Landings as _};

use super::tests_checkout::Site;
use super::{GitLandings, complete, leftover, resolve, scratch};
use crate::fixture::text;
use crate::repository::markers::{self, Conflict};

impl Site {
    /// Creates the worktree of a worker with one commit. Returns its directory and its completion.
    pub(super) fn worker(&self, name: &str) -> (PathBuf, Completion) {
        let (tree, commit) = (self.fix.root.join(name), self.tip("main"));
        let path = tree.to_str().unwrap().to_owned();
        self.fix.git(&["worktree", "add", "-q", "-b", name, &path, "main"]);
        fs::write(tree.join(name), "work\n").unwrap();
        self.fix.at(&tree, &["add", "-A"]);
        self.fix.at(&tree, &["commit", "-qm", "work"]);
        let base_repo = self.fix.repo.to_str().unwrap().to_owned();
        let row = RowWorktree { path, branch: name.into(), base_repo };
        let base = BaseRef { branch: Some("main".into()), commit };
        (tree, Completion { worker: Some((row, Some(base))), ..self.completion(name) })
    }

    pub(super) async fn done(&self, completion: &Completion) -> Completed {
        self.landings.complete(completion.clone()).await.unwrap()
    }

    pub(super) fn tip(&self, name: &str) -> String {
        text(&self.fix.git(&["rev-parse", name]))
    }
}

#[tokio::test]
async fn only_the_recorded_branch_lands() {
    let site = Site::new();
    let (tree, completion) = site.worker("a");
    site.fix.git(&["branch", "wip"]);
    site.fix.at(&tree, &["switch", "-q", "wip"]);
    for uncommitted in [false, true] {
        if uncommitted {
            fs::write(tree.join("f"), "not meant for wip\n").unwrap();
        }
        let done = site.done(&completion).await;
        assert_eq!((done.tip.as_str(), done.is_mendable), ("", true));
        let why = done.waits.unwrap();
        assert!(why.starts_with("its worktree has branch 'wip' checked out instead of 'a'"), "{why}");
    }
    assert_eq!(site.tip("wip"), site.tip("main"), "nothing was committed to it");
    site.fix.at(&tree, &["checkout", "-q", "f"]);
    site.fix.at(&tree, &["switch", "-q", "a"]);
    let done = site.done(&completion).await;
    assert_eq!((done.tip, done.waits), (site.tip("a"), None));
}

#[tokio::test]
async fn branches_are_completed_together_and_each_has_its_answer() {
    let site = Site::new();
    for name in ["a", "c"] {
        site.branch(name, &format!("echo {name} > {name}"));
    }
    let wanted = ["a", "missing", "c"].map(|name| site.completion(name)).to_vec();
    let done = site.landings.complete_all(wanted).await;
    let tips: Vec<_> = done.iter().map(|done| done.as_ref().map(|done| done.tip.clone()).ok()).collect();
    assert_eq!(tips, [Some(site.tip("a")), None, Some(site.tip("c"))]);
    for tip in tips.into_iter().flatten() {
        assert_eq!(site.tip(&complete::pinned(&tip)), tip);
    }
    let refusal = done[1].as_ref().unwrap_err();
    assert!(refusal.cause.starts_with("worker 'missing' not found"), "{refusal:?}");
}

#[tokio::test]
async fn a_landing_is_not_recorded_before_its_candidates_are_durable() {
    let site = Site::new();
    let file = site.fix.root.join("file");
    fs::write(&file, "").unwrap();
    // This path cannot be opened, so that its file system cannot be synced.
    let repository = file.join("repo").to_str().unwrap().to_owned();
    let target = Target { repository, ..site.target.clone() };
    let chain = vec![Link { item: 0, commit: "c".into() }];
    let landing = Queue { phase: Phase::Landing { base: "b".into(), chain }, ..Queue::default() };
    site.landings.workspaces.note_built(&target);
    for _ in 0..2 {
        site.landings.save(&target, &landing).await.unwrap_err();
        assert!(site.landings.load(&target).await.unwrap().is_none());
    }
    site.landings.save(&target, &Queue::default()).await.unwrap();
    let restarted = GitLandings::new(site.paths.clone(), PathBuf::from("/nowhere"));
    restarted.save(&target, &landing).await.expect("an earlier process has synced what it recorded");
}

#[tokio::test]
async fn a_candidate_is_synced_when_the_queue_records_it() {
    let site = Site::new();
    site.branch("a", "echo a > a");
    let item = site.item("a").await;
    let unsynced = || site.landings.workspaces.unsynced.lock().unwrap().contains(&site.target);
    let base = site.tip("main");
    let Build::Made(commit) = site.landings.build(&site.target, &item, &base).await else { panic!("is built") };
    assert!(unsynced());
    let chain = vec![Link { item: 0, commit }];
    let landing = Queue { phase: Phase::Landing { base, chain }, ..Queue::default() };
    site.landings.save(&site.target, &landing.kept()).await.unwrap();
    assert!(!unsynced());
}

#[tokio::test]
async fn a_detached_head_lands_if_it_contains_the_recorded_branch() {
    let site = Site::new();
    let (tree, completion) = site.worker("a");
    let branch = site.tip("a");
    site.fix.at(&tree, &["checkout", "-q", "--detach", "main"]);
    let done = site.done(&completion).await;
    let why = done.waits.unwrap();
    let short = &site.tip("main")[..12];
    let words = format!("HEAD of its worktree is detached at {short}, which does not contain branch 'a'");
    assert!(why.starts_with(&words), "{why}");
    site.fix.at(&tree, &["checkout", "-q", "--detach", "a"]);
    fs::write(tree.join("more"), "more\n").unwrap();
    let done = site.done(&completion).await;
    assert_eq!((text(&site.fix.git(&["rev-parse", &format!("{}~1", done.tip)])), done.waits), (branch, None));
    site.fix.git(&["branch", "-qD", "a"]);
    let why = site.done(&completion).await.waits.unwrap();
    assert!(why.contains("branch 'a' does not exist"), "{why}");
}

#[tokio::test]
async fn work_from_a_base_that_was_rewritten_waits_for_a_person() {
    let site = Site::new();
    site.fix.commit("oops", "secret", "1234\n");
    let (_, completion) = site.worker("a");
    let done = site.done(&completion).await;
    let item = Addition { name: "a".into(), tip: done.tip, fork: done.fork, ..Addition::default() };
    let mut item = item.into_item(0, &Rules::default(), 0);
    let build = async |item: &Item| site.landings.build(&site.target, item, &site.tip("main")).await;
    site.fix.commit("more", "f", "2\n");
    assert!(matches!(build(&item).await, Build::Made(_)), "the base only moved on");
    site.fix.git(&["reset", "-q", "--hard", "HEAD~2"]);
    let Build::Failed(why) = build(&item).await else { panic!("it was built") };
    let (fork, words) =
        (completion.worker.clone().unwrap().1.unwrap().commit, "the base was rewritten: 'main' no longer");
    assert!(why.starts_with(&format!("{words} contains {}, from which 'a' started (", &fork[..12])), "{why}");
    item.fork = None;
    assert!(matches!(build(&item).await, Build::Made(_)), "a person accepted it");
    // Another base has nothing to do with the recorded commit.
    site.fix.git(&["branch", "other"]);
    let other = site.done(&Completion { base: Some("other".into()), ..completion }).await;
    assert_eq!(other.fork, None);
}

#[tokio::test]
async fn a_continued_branch_keeps_the_commit_from_which_it_started() {
    let site = Site::new();
    site.fix.commit("oops", "secret", "1234\n");
    let (tree, mut completion) = site.worker("a");
    let oops = site.tip("main");
    site.fix.git(&["reset", "-q", "--hard", "HEAD~1"]);
    // The worker was cleaned. The next one that continues the branch records the base of its own start.
    let restart = |completion: &mut Completion| {
        let worker = completion.worker.as_mut().unwrap();
        worker.1 = Some(BaseRef { branch: Some("main".into()), commit: site.tip("main") });
    };
    restart(&mut completion);
    let done = site.done(&completion).await;
    assert_eq!(done.fork.as_ref(), Some(&oops));
    let item = Addition { name: "a".into(), tip: done.tip, fork: done.fork, ..Addition::default() };
    let item = item.into_item(0, &Rules::default(), 0);
    let built = site.landings.build(&site.target, &item, &site.tip("main")).await;
    assert!(matches!(&built, Build::Failed(why) if why.starts_with("the base was rewritten")), "{built:?}");
    // Merging the new base does not remove anything.
    site.fix.commit("other", "f", "2\n");
    site.fix.at(&tree, &["merge", "-q", "-m", "merged", "main"]);
    restart(&mut completion);
    assert_eq!(site.done(&completion).await.fork.as_ref(), Some(&oops));
    // A rebase does.
    site.fix.at(&tree, &["reset", "-q", "--hard", "HEAD~1"]);
    site.fix.at(&tree, &["rebase", "-q", "--onto", "main", "HEAD~1"]);
    assert_eq!(site.done(&completion).await.fork, Some(site.tip("main")));
}

#[tokio::test]
async fn a_branch_that_did_not_start_from_the_base_may_land() {
    let site = Site::new();
    site.branch("side", "echo side > side");
    site.fix.git(&["branch", "-q", "topic", "side"]);
    let (_, completion) = site.worker("unused");
    let (mut row, base) = completion.worker.clone().unwrap();
    (row.branch, row.path) = ("topic".into(), site.fix.root.join("nowhere").to_str().unwrap().into());
    let done = site.done(&Completion { worker: Some((row, base)), ..completion }).await;
    assert_eq!((done.tip, done.fork), (site.tip("side"), Some(site.tip("main"))));
}

/// A scratch directory in which a merge of `topic` has stopped.
pub(super) async fn stopped_merge(site: &Site) -> (Item, scratch::Scratch, String) {
    site.fix.commit("list", "list", "one\n");
    site.branch("topic", "echo topic > list");
    site.fix.commit("another", "list", "main\n");
    let item = site.item("topic").await;
    let (workspace, onto) = (site.workspace(), site.tip("main"));
    let place = scratch::prepare(&workspace, "resolve-0", &onto, scratch::Leftovers::Delete).unwrap();
    let merge = ["merge", "--no-commit", "--no-ff", &item.tip];
    assert!(!site.fix.attempt(&place.dir, &merge).0, "a conflict");
    (item, place, onto)
}

pub(super) fn log(site: &Site) -> PathBuf {
    let log = site.fix.root.join("log");
    fs::write(&log, "").unwrap();
    log
}

fn files(site: &Site, commit: &str) -> String {
    text(&site.fix.git(&["ls-tree", "-r", "--name-only", commit]))
}

pub(super) fn write(dir: &Path, names: &[&str]) {
    for name in names {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "of the resolver\n").unwrap();
    }
}

#[tokio::test]
async fn new_files_of_a_resolver_land() {
    let site = Site::new();
    let (item, place, onto) = stopped_merge(&site).await;
    write(&place.dir, &["list", "new.txt", "lib/helper.rs", ":(top)odd*", "ignored", "build.log"]);
    let (workspace, conflicts, log) = (site.workspace(), [Conflict::at("list")], log(&site));
    let resolved = resolve::commit_result(&workspace, &place, &item, &onto, &conflicts, &log).unwrap();
    let Resolution::Done(tip) = resolved else { panic!("{resolved:?}") };
    assert_eq!(files(&site, &tip), ".gitignore\n:(top)odd*\nf\nlib/helper.rs\nlist\nnew.txt");
    let told = fs::read_to_string(log).unwrap();
    assert!(told.starts_with("swarm: not committed, because tools generate such files"), "{told}");
}

#[tokio::test]
async fn what_a_resolver_left_and_what_does_not_land_is_kept() {
    let site = Site::new();
    let (item, place, onto) = stopped_merge(&site).await;
    let (workspace, conflicts, log) = (site.workspace(), [Conflict::at("list")], log(&site));
    let left = workspace.own.join("left");
    for number in 1..3 {
        write(&place.dir, &["list", "build.log", "pkg/dist/out"]);
        site.fix.at(&place.dir, &["init", "-q", "nested"]);
        write(&place.dir, &["nested/own"]);
        let resolved = resolve::commit_result(&workspace, &place, &item, &onto, &conflicts, &log).unwrap();
        let Resolution::Done(tip) = resolved else { panic!("{resolved:?}") };
        assert_eq!(files(&site, &tip), ".gitignore\nf\nlist");
        let kept = left.join(format!("{}-{number}", item.id));
        for path in ["build.log", "pkg/dist/out", "nested/own"] {
            assert_eq!(fs::read_to_string(kept.join(path)).unwrap(), "of the resolver\n", "{path}");
            assert!(!place.dir.join(path).exists());
        }
        assert!(kept.join("nested/.git/HEAD").exists());
        let told = fs::read_to_string(&log).unwrap();
        let names = format!("build.log, nested, pkg/dist/out (moved to {})\n", kept.display());
        assert!(told.ends_with(&names), "{told}");
    }
}

#[tokio::test]
async fn what_a_failed_try_of_a_resolver_left_is_saved() {
    let site = Site::new();
    let (item, place, onto) = stopped_merge(&site).await;
    let (workspace, log) = (site.workspace(), log(&site));
    let saves = || text(&site.fix.git(&["for-each-ref", "--format=%(refname)", "refs/swarm/trash/"]));
    let before = leftover::state(&workspace, &place);
    assert!(before.is_some());
    leftover::keep(&workspace, &place, &item, before.as_ref(), &log).unwrap();
    assert_eq!((saves(), fs::read_to_string(&log).unwrap()), (String::new(), String::new()), "nothing changed");
    site.fix.at(&place.dir, &["init", "-q", "nested"]);
    write(&place.dir, &["list", "new.txt", "nested/own"]);
    leftover::keep(&workspace, &place, &item, before.as_ref(), &log).unwrap();
    let save = saves();
    assert!(save.starts_with("refs/swarm/trash/topic.resolver/"), "{save}");
    for path in ["list", "new.txt"] {
        assert_eq!(text(&site.fix.git(&["show", &format!("{save}:{path}")])), "of the resolver");
    }
    let left = workspace.own.join("left");
    assert!(left.join(format!("{}-1/nested/own", item.id)).exists());
    let told = fs::read_to_string(&log).unwrap();
    let id = save.strip_prefix("refs/swarm/trash/").unwrap();
    assert!(told.contains(&format!("run 'swarm restore {id} --to DIR' to see them\n")), "{told}");
    // The supervisor was killed during the next try.
    write(&place.dir, &["late.txt"]);
    leftover::keep_interrupted(&workspace, "resolve-0", &item, &log).unwrap();
    assert!(
        saves()
            .lines()
            .any(|save| site.fix.attempt(&site.fix.repo, &["cat-file", "-e", &format!("{save}:late.txt")]).0)
    );
    assert!(!place.dir.exists(), "the next try merges in a new one");
    let place = scratch::prepare(&workspace, "resolve-0", &onto, scratch::Leftovers::Delete).unwrap();
    write(&place.dir, &["late.txt"]);
    // A resolver replaced the worktree by a repository of its own.
    fs::remove_file(place.dir.join(".git")).unwrap();
    site.fix.at(&place.dir, &["init", "-q", "."]);
    leftover::keep_interrupted(&workspace, "resolve-0", &item, &log).unwrap();
    assert!(left.join(format!("{}-2/late.txt", item.id)).exists() && !place.dir.exists());
}

#[tokio::test]
async fn a_worktree_inside_that_of_a_resolver_is_kept_even_if_ignored() {
    let site = Site::new();
    let (item, place, _) = stopped_merge(&site).await;
    let (workspace, log) = (site.workspace(), log(&site));
    fs::create_dir_all(site.fix.repo.join(".git/info")).unwrap();
    fs::write(site.fix.repo.join(".git/info/exclude"), "tmp/\n").unwrap();
    site.fix.at(&place.dir, &["worktree", "add", "-q", "--detach", "tmp/inner"]);
    write(&place.dir, &["tmp/inner/own"]);
    leftover::keep(&workspace, &place, &item, None, &log).unwrap();
    let kept = workspace.own.join("left").join(format!("{}-1/tmp/inner/own", item.id));
    assert_eq!(fs::read_to_string(kept).unwrap(), "of the resolver\n");
    assert!(!place.dir.join("tmp/inner").exists());
}

#[tokio::test]
async fn too_many_new_files_of_a_worker_are_its_own_to_resolve() {
    let site = Site::new();
    let (tree, completion) = site.worker("a");
    let names: Vec<String> = (0..201).map(|number| format!("n{number}")).collect();
    write(&tree, &names.iter().map(String::as_str).collect::<Vec<_>>());
    let done = site.done(&completion).await;
    assert_eq!((done.tip.as_str(), done.is_mendable), ("", true));
    let why = format!("201 untracked files in {}, more than 200 (commit the files that matter", tree.display());
    assert!(done.waits.as_ref().is_some_and(|said| said.starts_with(&why)), "{:?}", done.waits);
    fs::remove_file(tree.join("n200")).unwrap();
    let done = site.done(&completion).await;
    assert_eq!((done.waits, done.is_mendable), (None, false));
    assert_eq!(files(&site, &done.tip).lines().count(), 203);
}

#[tokio::test]
async fn markers_that_a_resolver_left_are_found_whatever_the_file_is_called_and_however_long_they_are() {
    let site = Site::new();
    let names = [b"caf\xe9.txt".as_slice(), b"long.txt", b"plain.txt"].map(OsStr::from_bytes);
    let write = |dir: &Path, content: &str| names.iter().for_each(|name| fs::write(dir.join(name), content).unwrap());
    write(&site.fix.repo, "one\n");
    site.fix.commit("files", ".gitattributes", "long.txt conflict-marker-size=32\n");
    site.branch("topic", "for name in *.txt; do echo topic > \"$name\"; done");
    write(&site.fix.repo, "main\n");
    site.fix.commit("others", "f", "main\n");
    let (item, onto, log) = (site.item("topic").await, site.tip("main"), log(&site));
    let workspace = site.workspace();
    let place = scratch::prepare(&workspace, "resolve-0", &onto, scratch::Leftovers::Delete).unwrap();
    assert!(!site.fix.attempt(&place.dir, &["merge", "--no-commit", "--no-ff", &item.tip]).0, "a conflict");
    let conflicts = markers::conflicts(&|| place.read(&workspace), &place.entry).unwrap();
    assert_eq!(conflicts.len(), 3);
    let commit = || resolve::commit_result(&workspace, &place, &item, &onto, &conflicts, &log).unwrap();
    for name in names {
        let why = format!("the resolver left conflict markers in {}", name.to_string_lossy());
        assert_eq!(commit(), Resolution::Failed(why));
        fs::write(place.dir.join(name), "of the resolver\n").unwrap();
    }
    assert!(matches!(commit(), Resolution::Done(_)));
}

#[tokio::test]
async fn a_pipe_or_directory_in_place_of_a_conflict_is_an_answer_without_a_wait() {
    let site = Site::new();
    let (item, place, onto) = stopped_merge(&site).await;
    let (workspace, conflicts, log) = (site.workspace(), [Conflict::at("list")], log(&site));
    let commit = || resolve::commit_result(&workspace, &place, &item, &onto, &conflicts, &log).unwrap();
    let list = place.dir.join("list");
    fs::remove_file(&list).unwrap();
    nix::unistd::mkfifo(&list, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let Resolution::Failed(why) = commit() else { panic!("it landed") };
    assert!(why.starts_with("git cannot add what the resolver left: "), "{why}");
    leftover::keep(&workspace, &place, &item, None, &log).unwrap();
    assert!(fs::symlink_metadata(&list).is_err(), "it was moved out");
    write(&place.dir, &["list/of/all"]);
    let Resolution::Done(tip) = commit() else { panic!("it failed") };
    assert_eq!(files(&site, &tip), ".gitignore\nf\nlist/of/all");
}

#[tokio::test]
async fn what_a_resolver_that_commits_left_uncommitted_lands() {
    let site = Site::new();
    let (item, place, onto) = stopped_merge(&site).await;
    write(&place.dir, &["list"]);
    site.fix.at(&place.dir, &["commit", "-qam", "resolved"]);
    write(&place.dir, &["f", "late.txt"]);
    let (workspace, conflicts, log) = (site.workspace(), [Conflict::at("list")], log(&site));
    let resolved = resolve::commit_result(&workspace, &place, &item, &onto, &conflicts, &log).unwrap();
    let Resolution::Done(tip) = resolved else { panic!("{resolved:?}") };
    assert_eq!(files(&site, &tip), ".gitignore\nf\nlate.txt\nlist");
    assert_eq!(text(&site.fix.git(&["show", &format!("{tip}:f")])), "of the resolver");
    for side in [&onto, &item.tip] {
        assert!(site.fix.attempt(&site.fix.repo, &["merge-base", "--is-ancestor", side, &tip]).0);
    }
}

#[tokio::test]
async fn a_resolver_that_gives_up_resolves_nothing() {
    let dropped = "the resolver dropped all changes of the item";
    for (words, why) in [
        (&["merge", "--abort"][..], "the resolver aborted the merge"),
        (&["checkout", "-q", "--ours", "."], dropped),
        (&["merge", "-q", "-s", "ours", "-m", "mine"], dropped),
    ] {
        let site = Site::new();
        let (item, place, onto) = stopped_merge(&site).await;
        if words.contains(&"-s") {
            site.fix.at(&place.dir, &["merge", "--abort"]);
            site.fix.at(&place.dir, &[words, &[item.tip.as_str()]].concat());
        } else {
            site.fix.at(&place.dir, words);
        }
        let (workspace, conflicts, log) = (site.workspace(), [Conflict::at("list")], log(&site));
        let resolved = resolve::commit_result(&workspace, &place, &item, &onto, &conflicts, &log).unwrap();
        assert_eq!(resolved, Resolution::Failed(why.to_owned()), "{words:?}");
    }
}

#[tokio::test]
async fn too_many_new_files_of_a_resolver_fail_the_try() {
    let site = Site::new();
    let (item, place, onto) = stopped_merge(&site).await;
    let names: Vec<String> = (0..201).map(|number| format!("n{number}")).collect();
    write(&place.dir, &["list"]);
    write(&place.dir, &names.iter().map(String::as_str).collect::<Vec<_>>());
    let (workspace, conflicts, log) = (site.workspace(), [Conflict::at("list")], log(&site));
    let resolved = resolve::commit_result(&workspace, &place, &item, &onto, &conflicts, &log).unwrap();
    let why = "the resolver left 201 untracked files, more than 200; it must commit or ignore them";
    assert_eq!(resolved, Resolution::Failed(why.to_owned()));
}

#[tokio::test]
async fn the_pin_of_a_landed_tip_is_deleted_without_the_lock_of_packed_refs() {
    let site = Site::new();
    let lock = site.fix.repo.join(".git/packed-refs.lock");
    for is_packed in [false, true] {
        let name = if is_packed { "packed" } else { "loose" };
        site.branch(name, &format!("echo {name} > {name}"));
        let mut item = site.item(name).await;
        let pin = format!("refs/swarm/done/{}", item.tip);
        site.fix.git(&["merge", "-q", "--no-ff", "-m", "merged", name]);
        item.state = State::Landed { commit: site.tip("main") };
        if is_packed {
            site.fix.git(&["pack-refs", "--all"]);
        } else {
            // If somebody is killed while git has this lock, it stays.
            fs::write(&lock, "").unwrap();
        }
        assert!(site.fix.has(&pin));
        site.landings.tidy(&site.target, std::slice::from_ref(&item)).await;
        assert!(!site.fix.has(&pin), "{name}");
        assert_eq!(lock.exists(), !is_packed, "the lock of somebody else stays");
        let _ = fs::remove_file(&lock);
    }
}

#[tokio::test]
async fn locks_of_a_dead_git_in_the_worktree_do_not_block_its_work() {
    let site = Site::new();
    let (tree, completion) = site.worker("a");
    fs::write(tree.join("more"), "left uncommitted\n").unwrap();
    let entry = site.fix.repo.join(".git/worktrees/a");
    let locks = [entry.join("HEAD.lock"), entry.join("index.lock"), site.fix.repo.join(".git/refs/heads/a.lock")];
    for lock in &locks {
        fs::write(lock, "").unwrap();
    }
    // Somebody works there, whose git may hold the locks.
    let mut person = std::process::Command::new("sleep").arg("1000").current_dir(&tree).spawn().unwrap();
    let done = site.done(&completion).await;
    person.kill().unwrap();
    person.wait().unwrap();
    assert!(done.waits.is_some() && locks.iter().all(|lock| lock.exists()), "{:?}", done.waits);
    // A process of another user may use git there, and nobody can see where it works.
    let done = site.done(&Completion { survivors: vec![1], ..completion.clone() }).await;
    assert!(done.waits.is_some() && locks.iter().all(|lock| lock.exists()), "{:?}", done.waits);
    let done = site.done(&completion).await;
    assert_eq!(done.waits, None);
    assert_eq!(text(&site.fix.git(&["show", &format!("{}:more", done.tip)])), "left uncommitted");
    assert!(!locks.iter().any(|lock| lock.exists()));
}

#[tokio::test]
async fn a_pin_that_a_power_cut_has_torn_is_written_again() {
    let site = Site::new();
    let (_, completion) = site.worker("a");
    let tip = site.tip("a");
    let pin = site.fix.repo.join(".git").join(complete::pinned(&tip));
    fs::create_dir_all(pin.parent().unwrap()).unwrap();
    for torn in [&[0; 41][..], b"", b"half"] {
        fs::write(&pin, torn).unwrap();
        assert_eq!(site.done(&completion).await.tip, tip);
        assert_eq!(fs::read_to_string(&pin).unwrap().trim(), tip);
    }
}
