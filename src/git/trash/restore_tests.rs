//! What a forced removal saves and a restore brings back, against real git, byte for byte.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::collection::vec;
use proptest::prelude::*;
use swarm_ports::Force;

use super::restore::{RestoreRequest, RestoredWorktree, restore};
use super::saved::{self, Save};
use crate::fixture::{Fixture, text};
use crate::trash::{metadata, save};

/// Everything about a worktree that must be restored, read independently of the tested code.
#[derive(Debug, PartialEq, Eq)]
struct Picture {
    files: BTreeMap<Vec<u8>, (u32, Vec<u8>)>,
    /// Entries with stages, entries with flags, and status.
    index: [Vec<u8>; 3],
    announced: Vec<(String, Vec<u8>)>,
    head: String,
}

fn picture(fix: &Fixture, tree: &Path) -> Picture {
    let mut files = BTreeMap::new();
    walk(tree, tree, &mut files);
    let debug = fix.at(tree, &["ls-files", "--debug", "-s", "-z"]);
    Picture {
        files,
        index: [fix.at(tree, &["ls-files", "-s", "-z"]), fix.at(tree, &["ls-files", "-v", "-z"]), status(fix, tree)],
        announced: metadata::intended(&debug),
        head: text(&fix.at(tree, &["rev-parse", "HEAD"])) + &text(&fix.attempt(tree, &["symbolic-ref", "HEAD"]).1),
    }
}

/// Returns the status of a copy of the worktree. Its file times are not those of the index, so that git compares the
/// content of each file: otherwise the times decide whether a file whose filter was changed is shown as modified.
fn status(fix: &Fixture, tree: &Path) -> Vec<u8> {
    let git_dir = text(&fix.at(tree, &["rev-parse", "--absolute-git-dir"]));
    let (copy, index) = (fix.root.join("copy"), fix.root.join("copy.index"));
    assert!(Command::new("cp").arg("-a").arg(tree).arg(&copy).status().unwrap().success());
    fs::copy(Path::new(&git_dir).join("index"), &index).unwrap();
    let mut git = Command::new("git");
    git.env_clear().envs(fix.caller.environment.iter().cloned()).env("GIT_INDEX_FILE", &index).current_dir(&copy);
    git.args(["--git-dir", &git_dir, "--work-tree", ".", "status", "--porcelain", "-z", "-uall"]);
    let out = git.output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    fs::remove_dir_all(&copy).unwrap();
    out.stdout
}

fn walk(root: &Path, dir: &Path, files: &mut BTreeMap<Vec<u8>, (u32, Vec<u8>)>) {
    for file in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = file.path();
        let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        if name == b".git" {
            continue;
        }
        let meta = fs::symlink_metadata(&path).unwrap();
        let content = match meta {
            ref meta if meta.is_dir() => b"<directory>".to_vec(),
            ref meta if meta.is_symlink() => fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec(),
            _ => fs::read(&path).unwrap(),
        };
        files.insert(name, (meta.permissions().mode(), content));
        if meta.is_dir() {
            walk(root, &path, files);
        }
    }
}

fn common(fix: &Fixture) -> PathBuf {
    fix.repo.join(".git")
}

fn saves(fix: &Fixture) -> Vec<Save> {
    saved::list(&fix.cli(), &common(fix)).unwrap()
}

fn bring_back(fix: &Fixture, request: &RestoreRequest) -> RestoredWorktree {
    restore(&fix.cli(), &common(fix), &saves(fix)[0], request).unwrap()
}

const NAMES: [&[u8]; 12] = [
    b"a",
    b"dir/b",
    b"dir/sub/c",
    b"run",
    b"link",
    b"dir",
    b"new",
    b"odd/\xff\n\" \\name",
    b"-dash",
    b"dir/sub",
    b":(x)",
    b"\xc3\xa9",
];
const CONTENTS: [&[u8]; 7] =
    [b"", b"text\n", b"dos\r\nmixed\n", b"\x00\x01binary\xff", b"$Id$\n", b"secret\r\n", b"no end"];
const MODES: [u32; 5] = [0o644, 0o755, 0o600, 0o640, 0o4711];

/// Operation in a worktree; an operation that makes no sense there simply fails.
#[derive(Clone, Debug)]
enum Step {
    Write(usize, usize),
    Link(usize, usize),
    Remove(usize),
    Mode(usize, usize),
    EmptyDir(usize),
    Git(&'static [&'static str], usize),
    Plain(&'static [&'static str]),
    Conflict(usize),
    Attributes(usize),
}

const ATTRIBUTES: [&str; 4] =
    ["* text=auto eol=crlf\n", "* text\n", "* filter=lossy\n", "* ident working-tree-encoding=UTF-16\n"];

fn step() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    let with_path = prop_oneof![
        Just(&["add", "-f", "--"][..]),
        Just(&["add", "-N", "-f", "--"][..]),
        Just(&["rm", "-q", "--cached", "-f", "--"][..]),
        Just(&["update-index", "--assume-unchanged", "--"][..]),
        Just(&["update-index", "--skip-worktree", "--"][..]),
        Just(&["mv", "-k", "run", "--"][..]),
        Just(&["checkout", "-q", "--"][..]),
    ];
    let plain = prop_oneof![
        Just(&["add", "-A"][..]),
        Just(&["commit", "-q", "-m", "more"][..]),
        Just(&["checkout", "-q", "--detach"][..]),
        Just(&["config", "core.autocrlf", "true"][..]),
        Just(&["config", "core.autocrlf", "input"][..]),
        Just(&["sparse-checkout", "set", "--cone", "dir/sub"][..]),
        Just(&["sparse-checkout", "set", "--no-cone", "a"][..]),
        Just(&["update-index", "--index-version", "4"][..]),
        Just(&["update-index", "--split-index"][..]),
    ];
    prop_oneof![
        6 => (name.clone(), 0..CONTENTS.len()).prop_map(|(at, content)| Step::Write(at, content)),
        1 => (name.clone(), name.clone()).prop_map(|(at, to)| Step::Link(at, to)),
        2 => name.clone().prop_map(Step::Remove),
        2 => (name.clone(), 0..MODES.len()).prop_map(|(at, mode)| Step::Mode(at, mode)),
        1 => name.clone().prop_map(Step::EmptyDir),
        4 => (with_path, name.clone()).prop_map(|(words, at)| Step::Git(words, at)),
        2 => plain.prop_map(Step::Plain),
        1 => name.prop_map(Step::Conflict),
        1 => (0..ATTRIBUTES.len()).prop_map(Step::Attributes),
    ]
}

fn clear(path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir()) {
        let _ = fs::remove_dir_all(path);
    } else {
        let _ = fs::remove_file(path);
    }
}

/// Clears the path of a file: its parents become directories.
fn room(tree: &Path, name: &[u8]) -> PathBuf {
    let path = tree.join(OsStr::from_bytes(name));
    let above = path.parent().unwrap();
    for dir in above.ancestors().take_while(|dir| dir.starts_with(tree)) {
        if !dir.is_dir() || dir.is_symlink() {
            clear(dir);
        }
    }
    fs::create_dir_all(above).unwrap();
    clear(&path);
    path
}

fn happen(fix: &Fixture, tree: &Path, step: &Step) {
    match *step {
        Step::Write(at, content) => fs::write(room(tree, NAMES[at]), CONTENTS[content]).unwrap(),
        Step::Link(at, to) => symlink(OsStr::from_bytes(NAMES[to]), room(tree, NAMES[at])).unwrap(),
        Step::Remove(at) => clear(&tree.join(OsStr::from_bytes(NAMES[at]))),
        Step::Mode(at, mode) => {
            let path = tree.join(OsStr::from_bytes(NAMES[at]));
            if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file()) {
                fs::set_permissions(&path, fs::Permissions::from_mode(MODES[mode])).unwrap();
            }
        }
        Step::EmptyDir(at) => {
            let path = room(tree, NAMES[at]);
            fs::create_dir_all(path.join("below")).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
        }
        Step::Git(words, at) => {
            let mut command = Command::new("git");
            command.arg("-C").arg(tree).arg("--literal-pathspecs").args(words).arg(OsStr::from_bytes(NAMES[at]));
            let _ = command.env_clear().envs(fix.caller.environment.iter().cloned()).output().unwrap();
        }
        Step::Plain(words) => drop(fix.attempt(tree, words)),
        Step::Conflict(at) => {
            let blob = text(&fix.at(tree, &["rev-parse", "HEAD:a"]));
            let mut lines = Vec::new();
            // Removes the stage 0 entry first.
            let gone = format!("0 {} 0\t", "0".repeat(blob.len()));
            for head in [gone, format!("100644 {blob} 1\t"), format!("100644 {blob} 3\t")] {
                lines.extend_from_slice(head.as_bytes());
                lines.extend_from_slice(NAMES[at]);
                lines.push(0);
            }
            let list = fix.root.join("list");
            fs::write(&list, lines).unwrap();
            let _ = fix
                .cli()
                .user(tree)
                .args(["update-index", "-z", "--index-info"])
                .input(fs::File::open(list).unwrap())
                .run();
        }
        Step::Attributes(at) => fs::write(room(tree, b".gitattributes"), ATTRIBUTES[at]).unwrap(),
    }
}

fn worked_in() -> (Fixture, PathBuf) {
    let fix = Fixture::new();
    for (name, content) in [("a", "one\n"), ("dir/b", "two\r\n"), ("dir/sub/c", "$Id$\n"), ("run", "#!/bin/sh\n")] {
        fs::create_dir_all(fix.repo.join(name).parent().unwrap()).unwrap();
        fs::write(fix.repo.join(name), content).unwrap();
    }
    fs::set_permissions(fix.repo.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("dir/b", fix.repo.join("link")).unwrap();
    fix.git(&["config", "filter.lossy.clean", "tr s S"]);
    fix.git(&["config", "filter.lossy.smudge", "cat"]);
    fix.commit("more", "plain", "plain\n");
    let (_, tree) = fix.made("w");
    (fix, tree)
}

#[test]
fn a_conflict_below_a_link_to_itself_is_saved() {
    let (fix, tree) = worked_in();
    for step in [Step::Conflict(9), Step::Link(5, 1)] {
        happen(&fix, &tree, &step);
    }
    let before = picture(&fix, &tree);
    fix.remove(&tree, Force::SaveFirst).unwrap().unwrap();
    bring_back(&fix, &RestoreRequest::default());
    assert_eq!(picture(&fix, &tree), before);
}

#[test]
fn conflicts_where_no_file_can_be_added_are_saved() {
    let sparse = [Step::Plain(&["sparse-checkout", "set", "--no-cone", "a"]), Step::Write(5, 0), Step::Conflict(5)];
    let below_a_link = [Step::Conflict(2), Step::Link(9, 0)];
    let below_an_added = [Step::Link(9, 0), Step::Git(&["add", "-N", "-f", "--"], 9), Step::Conflict(2)];
    for steps in [&sparse[..], &below_a_link[..], &below_an_added[..]] {
        let (fix, tree) = worked_in();
        steps.iter().for_each(|step| happen(&fix, &tree, step));
        let before = picture(&fix, &tree);
        fix.remove(&tree, Force::SaveFirst).unwrap().unwrap();
        bring_back(&fix, &RestoreRequest::default());
        assert_eq!(picture(&fix, &tree), before, "{steps:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_whole_state_of_a_worktree_is_restored(steps in vec(step(), 1..14)) {
        let (fix, tree) = worked_in();
        for step in &steps {
            happen(&fix, &tree, step);
        }
        let before = picture(&fix, &tree);
        let saved = fix.remove(&tree, Force::SaveFirst).unwrap();
        prop_assert!(!tree.exists());
        if let Some(saved) = saved {
            let back = bring_back(&fix, &RestoreRequest::default());
            prop_assert_eq!(back.path.as_path(), tree.as_path());
            prop_assert_eq!(&picture(&fix, &tree), &before);
            prop_assert!(fix.has(&saved.reference), "the save stays until it is dropped");
            prop_assert!(!fs::read_dir(fix.root.join("repo-worktrees")).unwrap().flatten().any(|file| file.file_name() != "w"));
        }
    }
}

#[test]
fn a_merge_in_progress_can_be_finished() {
    let (fix, tree) = worked_in();
    fix.at(&tree, &["checkout", "-q", "-b", "other"]);
    fs::write(tree.join("a"), "theirs\n").unwrap();
    fix.at(&tree, &["commit", "-q", "-am", "theirs"]);
    fix.at(&tree, &["checkout", "-q", "w"]);
    fs::write(tree.join("a"), "ours\n").unwrap();
    fix.at(&tree, &["commit", "-q", "-am", "ours"]);
    assert!(!fix.attempt(&tree, &["merge", "-q", "other"]).0);
    let before = picture(&fix, &tree);
    fix.remove(&tree, Force::SaveFirst).unwrap().unwrap();
    fix.git(&["branch", "-q", "-D", "other"]);
    fix.git(&["gc", "-q", "--prune=now"]);
    let back = bring_back(&fix, &RestoreRequest::default());
    assert_eq!((picture(&fix, &tree), back.notes), (before, Vec::new()));
    fs::write(tree.join("a"), "both\n").unwrap();
    fix.at(&tree, &["commit", "-q", "-am", "merged"]);
    assert_eq!(text(&fix.at(&tree, &["rev-list", "--count", "--parents", "-1", "HEAD"])), "1");
    assert_eq!(text(&fix.at(&tree, &["log", "-1", "--format=%P"])).split(' ').count(), 2);
}

#[test]
fn branches_are_restored_or_a_note_says_why_not() {
    let (fix, tree) = worked_in();
    fs::write(tree.join("a"), "changed\n").unwrap();
    let saved = fix.remove(&tree, Force::SaveFirst).unwrap().unwrap();
    let again = || -> RestoredWorktree {
        let back = bring_back(&fix, &RestoreRequest::default());
        fix.git(&["worktree", "remove", "--force", tree.to_str().unwrap()]);
        back
    };
    assert_eq!(again().branch.as_deref(), Some("w"));
    fix.git(&["branch", "-q", "-D", "w"]);
    assert_eq!(again().branch.as_deref(), Some("w"), "created again if it is missing");
    fix.git(&["branch", "-q", "-f", "w", "main~1"]);
    let back = again();
    assert!(back.branch.is_none() && back.notes[0].starts_with("branch 'w' is now at "), "{back:?}");
    let request = RestoreRequest {
        branch: Some("rescued".to_owned()),
        drop_save: true,
        to: Some(fix.root.join("else/where")),
        ..RestoreRequest::default()
    };
    let back = bring_back(&fix, &request);
    assert_eq!((back.branch.as_deref(), back.path), (Some("rescued"), fix.root.join("else/where")));
    assert!(back.dropped && !fix.has(&saved.reference));
    assert_eq!(text(&fix.at(&fix.root.join("else/where"), &["status", "--short"])), " M a");
}

#[test]
fn nothing_is_overwritten_and_a_failure_leaves_nothing() {
    let (fix, tree) = worked_in();
    fs::write(tree.join("a"), "changed\n").unwrap();
    fix.remove(&tree, Force::SaveFirst).unwrap().unwrap();
    fix.git(&["branch", "-q", "-D", "w"]);
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("mine"), "mine\n").unwrap();
    let save = saves(&fix).remove(0);
    let fault = restore(&fix.cli(), &common(&fix), &save, &RestoreRequest::default()).unwrap_err();
    assert!(fault.cause.ends_with("w already exists") && fault.remedy.unwrap().contains("--to"));
    fs::remove_dir_all(&tree).unwrap();
    // Some of the save's objects are missing.
    let blob = text(&fix.git(&["rev-parse", &format!("{}:a", save.commit)]));
    fs::remove_file(common(&fix).join("objects").join(&blob[..2]).join(&blob[2..])).unwrap();
    restore(&fix.cli(), &common(&fix), &save, &RestoreRequest::default()).unwrap_err();
    assert!(!fix.has("refs/heads/w") && fix.has(&save.reference));
    assert!(fs::read_dir(tree.parent().unwrap()).unwrap().next().is_none() && !common(&fix).join("worktrees").exists());
}

#[test]
fn saves_of_an_earlier_version_are_restored() {
    let (fix, tree) = worked_in();
    fs::write(tree.join("a"), "staged\n").unwrap();
    fix.at(&tree, &["add", "a"]);
    let index = text(&fix.at(&tree, &["write-tree"]));
    fs::write(tree.join("a"), "changed\n").unwrap();
    let head = text(&fix.at(&tree, &["rev-parse", "HEAD"]));
    let before = picture(&fix, &tree);
    fix.at(&tree, &["add", "-A"]);
    let all = text(&fix.at(&tree, &["write-tree"]));
    let index = text(&fix.at(&tree, &["commit-tree", "-p", &head, "-m", "index of w", &index]));
    let message = format!(
        "swarm: saved worktree of w\n\nWorker: w\nPath: {}\nBranch: refs/heads/w\nHEAD: {head}",
        tree.display()
    );
    let commit = text(&fix.at(&tree, &["commit-tree", "-p", &head, "-p", &index, "-m", &message, &all]));
    fix.git(&["update-ref", "refs/swarm/trash/w/20250101T000000Z-00000001", &commit]);
    fix.git(&["worktree", "remove", "--force", tree.to_str().unwrap()]);
    bring_back(&fix, &RestoreRequest::default());
    assert_eq!(picture(&fix, &tree), before);
}

#[test]
fn a_killed_restore_is_rolled_back_and_repeated() {
    let (fix, tree) = worked_in();
    fs::write(tree.join("a"), "changed\n").unwrap();
    let before = picture(&fix, &tree);
    fix.remove(&tree, Force::SaveFirst).unwrap().unwrap();
    let save = saves(&fix).remove(0);
    let hidden = fix.root.join(format!("repo-worktrees/.swarm-restore-{}/w", save.stamp));
    let begin = || {
        let place = hidden.to_str().unwrap();
        fix.git(&["worktree", "add", "-q", "--detach", "--lock", "--reason", "swarm is restoring it", place, "main"]);
    };
    let entry = common(&fix).join("worktrees/w");
    let take_away = || fix.git(&["worktree", "remove", "--force", tree.to_str().unwrap()]);
    // Killed while the worktree was being filled.
    begin();
    bring_back(&fix, &RestoreRequest::default());
    assert_eq!(picture(&fix, &tree), before);
    take_away();
    // A power cut took what was written last.
    for (lock, path) in [("swarm is\0\0\0\0", ""), ("\0\0", "/somewhere/.g\0"), ("swarm is restoring it", "\0\0\0")] {
        begin();
        fs::write(entry.join("locked"), lock).unwrap();
        fs::write(entry.join("gitdir"), path).unwrap();
        bring_back(&fix, &RestoreRequest::default());
        assert_eq!(picture(&fix, &tree), before, "{lock:?} {path:?}");
        assert_eq!(fs::read_dir(common(&fix).join("worktrees")).unwrap().count(), 1, "no entry is left");
        take_away();
    }
    // Killed after the entry named the target.
    begin();
    fs::write(entry.join("gitdir"), format!("{}/.git\n", tree.display())).unwrap();
    bring_back(&fix, &RestoreRequest::default());
    assert_eq!(picture(&fix, &tree), before);
    // Killed after the directory was moved.
    fs::create_dir(hidden.parent().unwrap()).unwrap();
    fs::write(entry.join("locked"), "swarm is restoring it").unwrap();
    let back = bring_back(&fix, &RestoreRequest::default());
    assert_eq!((back.notes, back.branch.as_deref()), (vec!["the save was already restored".to_owned()], Some("w")));
    assert!(!entry.join("locked").exists() && picture(&fix, &tree) == before);
    assert!(save::status(&fix.cli(), &place_of(&fix, &entry, &tree), "all").unwrap().len() == 1);
    assert_eq!(fs::read_dir(fix.root.join("repo-worktrees")).unwrap().count(), 1);
}

#[test]
fn a_restore_that_was_killed_at_its_end_is_completed_by_whoever_is_next() {
    let (fix, tree) = worked_in();
    fs::write(tree.join("a"), "changed\n").unwrap();
    fix.remove(&tree, Force::SaveFirst).unwrap().unwrap();
    let nest = fix.root.join(format!("repo-worktrees/.swarm-restore-{}", saves(&fix).remove(0).stamp));
    bring_back(&fix, &RestoreRequest::default());
    let lock = common(&fix).join("worktrees/w/locked");
    let killed = || {
        fs::create_dir(&nest).unwrap();
        fs::write(&lock, "swarm is restoring it").unwrap();
    };
    killed();
    fix.made("other");
    assert!(!lock.exists() && !nest.exists() && tree.join("a").exists());
    // A lock of a person stays.
    fs::write(&lock, "mine").unwrap();
    assert!(format!("{:?}", fix.remove(&tree, Force::SaveFirst).unwrap_err()).contains("locked: mine"));
    fs::remove_file(&lock).unwrap();
    killed();
    fix.remove(&tree, Force::SaveFirst).unwrap().unwrap();
    assert!(!tree.exists() && !nest.exists() && !common(&fix).join("worktrees/w").exists());
}

#[test]
fn a_restore_that_was_killed_after_it_made_a_branch_is_repeated() {
    let (fix, tree) = worked_in();
    fs::write(tree.join("a"), "changed\n").unwrap();
    fix.remove(&tree, Force::SaveFirst).unwrap().unwrap();
    let (save, to) = (saves(&fix).remove(0), fix.root.join("else"));
    fix.git(&["config", "core.logAllRefUpdates", "false"]);
    // The repository and the hidden directory are kept as a kill leaves them.
    let root = fix.root.display();
    let keep = format!("mkdir {root}/kept && cp -a {root}/repo {root}/.swarm-restore-* {root}/kept && exit 1");
    let stub = fix.with_stub_of("symbolic-ref HEAD refs/heads/other", &keep);
    let request = |branch: &str, to: &Path| RestoreRequest {
        to: Some(to.into()),
        branch: Some(branch.into()),
        ..RestoreRequest::default()
    };
    let cli = |caller| crate::repository::cli::Cli::new(caller).unwrap();
    restore(&cli(&stub), &common(&fix), &save, &request("other", &to)).unwrap_err();
    assert!(!fix.has("refs/heads/other") && !to.exists());
    let kill = || {
        fs::remove_dir_all(&fix.repo).unwrap();
        let kept = fix.root.join("kept");
        assert!(Command::new("cp").args(["-a", "-T"]).args([&kept, &fix.root]).status().unwrap().success());
        assert!(fix.has("refs/heads/other"));
    };
    // Somebody has used the branch since.
    kill();
    let refused = |branch: &str| {
        let fault = restore(&fix.cli(), &common(&fix), &save, &request(branch, &fix.root.join("more"))).unwrap_err();
        assert_eq!(fault.cause, format!("a branch named '{branch}' already exists"));
    };
    fix.git(&["checkout", "-q", "other"]);
    refused("other");
    kill();
    fix.git(&["update-ref", "--create-reflog", "-m", "moved", "refs/heads/other", "main~1"]);
    fix.git(&["update-ref", "--create-reflog", "-m", "moved", "refs/heads/other", save.head.as_ref().unwrap()]);
    fix.git(&["branch", "mine", save.head.as_ref().unwrap()]);
    refused("other");
    refused("mine");
    kill();
    let back = bring_back(&fix, &request("other", &to));
    assert_eq!((back.branch.as_deref(), back.notes), (Some("other"), Vec::new()));
    assert_eq!(fs::read_to_string(to.join("a")).unwrap(), "changed\n");
    refused("other");
}

fn place_of(fix: &Fixture, entry: &Path, tree: &Path) -> save::Place {
    save::Place::of(&fix.cli(), &common(fix), entry, tree, "").unwrap()
}
