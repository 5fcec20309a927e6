use std::os::unix::fs::symlink;

use swarm_model::merge::queue::{Addition, Rules, State};

use super::*;
use crate::fixture::{Fixture, text};

fn git(fix: &Fixture, dir: &Path, args: &[&str]) -> String {
    text(&fix.at(dir, args))
}

/// A worktree `w` on branch `w` of a repository with one commit.
fn worktree(fix: &Fixture) -> RowWorktree {
    let path = fix.root.join("w");
    git(fix, &fix.repo, &["worktree", "add", "-q", "-b", "w", path.to_str().unwrap()]);
    RowWorktree {
        path: path.to_str().unwrap().to_owned(),
        branch: "w".to_owned(),
        base_repo: fix.repo.to_str().unwrap().to_owned(),
    }
}

fn main_base() -> BaseRef {
    BaseRef { branch: Some("main".to_owned()), commit: String::new() }
}

fn names(topic: &Topic) -> Vec<(char, String)> {
    topic.changed().unwrap().into_iter().map(|changed| (changed.status, changed.path)).collect()
}

#[test]
fn committed_and_uncommitted_work_are_one_difference() {
    let fix = Fixture::new();
    let row = worktree(&fix);
    let tree = Path::new(&row.path);
    fs::write(tree.join("committed"), "1\n").unwrap();
    git(&fix, tree, &["add", "committed"]);
    git(&fix, tree, &["commit", "-q", "-m", "work"]);
    fs::write(tree.join("f"), "1\n2\n").unwrap();
    fs::write(tree.join("staged"), "s\n").unwrap();
    git(&fix, tree, &["add", "staged"]);
    fs::write(tree.join("-x *"), "odd\n").unwrap();
    fs::write(tree.join("ignored"), "no\n").unwrap();
    symlink("f", tree.join("link")).unwrap();
    let index = fs::read(fix.repo.join(".git/worktrees/w/index")).unwrap();
    let objects = git(&fix, tree, &["count-objects"]);

    let topic = topic(&fix.caller, &row, Some(&main_base())).unwrap();
    let expected = [('A', "-x *"), ('A', "committed"), ('M', "f"), ('A', "link"), ('A', "staged")];
    assert_eq!(names(&topic), expected.map(|(status, path)| (status, path.to_owned())));
    let changed = topic.changed().unwrap();
    assert_eq!((changed[2].added, changed[2].deleted), (Some(1), Some(0)));
    let patch = text(&topic.diff(Shape::Patch).unwrap());
    assert!(patch.contains("+2") && patch.contains("b/staged") && !patch.contains("ignored"), "{patch}");
    drop(topic);

    // Reading the topic changed nothing: no object, no index entry, no file.
    assert_eq!(fs::read(fix.repo.join(".git/worktrees/w/index")).unwrap(), index);
    assert_eq!(git(&fix, tree, &["count-objects"]), objects);
    let litter = fs::read_dir(fix.repo.join(".git/worktrees/w")).unwrap().flatten();
    assert_eq!(litter.filter(|entry| entry.file_name().to_string_lossy().starts_with("swarm-")).count(), 0);
}

#[test]
fn only_the_workers_changes_count_if_the_base_advances() {
    let fix = Fixture::new();
    let row = worktree(&fix);
    fix.commit("base goes on", "other", "x\n");
    fs::write(Path::new(&row.path).join("mine"), "1\n").unwrap();
    let topic = topic(&fix.caller, &row, Some(&main_base())).unwrap();
    assert_eq!(names(&topic), [('A', "mine".to_owned())]);
}

#[test]
fn a_branch_has_its_commits_whatever_is_checked_out_in_its_worktree() {
    let fix = Fixture::new();
    let row = worktree(&fix);
    let tree = Path::new(&row.path);
    fs::write(tree.join("mine"), "1\n").unwrap();
    git(&fix, tree, &["add", "-A"]);
    git(&fix, tree, &["commit", "-q", "-m", "work"]);
    git(&fix, tree, &["switch", "-q", "-c", "other", "main"]);
    fs::write(tree.join("theirs"), "1\n").unwrap();
    assert!(topic(&fix.caller, &row, Some(&main_base())).is_err());
    assert_eq!(names(&topic_of_branch(&fix.caller, &row, Some(&main_base())).unwrap()), [('A', "mine".to_owned())]);
}

#[test]
fn a_missing_worktree_still_has_its_branch() {
    let fix = Fixture::new();
    let row = worktree(&fix);
    let tree = Path::new(&row.path);
    fs::write(tree.join("mine"), "1\n").unwrap();
    git(&fix, tree, &["add", "-A"]);
    git(&fix, tree, &["commit", "-q", "-m", "work"]);
    fs::remove_dir_all(tree).unwrap();
    assert_eq!(names(&topic(&fix.caller, &row, Some(&main_base())).unwrap()), [('A', "mine".to_owned())]);
    // If the base branch is missing, the recorded commit counts; without a record, HEAD.
    let commit = git(&fix, &fix.repo, &["rev-parse", "main"]);
    let gone = BaseRef { branch: Some("gone".to_owned()), commit };
    for base in [Some(&gone), None] {
        assert_eq!(names(&topic(&fix.caller, &row, base).unwrap()).len(), 1);
    }
}

#[test]
fn generated_files_are_left_out_and_listed() {
    let fix = Fixture::new();
    let row = worktree(&fix);
    let tree = Path::new(&row.path);
    let generated = ["node_modules/a/b.js", "sub/target/debug/x", "x.pyc", ".agent/state.json"];
    for path in [generated.as_slice(), &["kept/target/x", ".agent/rules.md"]].concat() {
        fs::create_dir_all(tree.join(path).parent().unwrap()).unwrap();
        fs::write(tree.join(path), "x\n").unwrap();
    }
    let topic = topic(&fix.caller, &row, Some(&main_base())).unwrap();
    assert_eq!(names(&topic), [".agent/rules.md", "kept/target/x"].map(|path| ('A', path.to_owned())));
    assert_eq!(topic.left_out, [".agent/state.json", "node_modules/a/b.js", "sub/target/debug/x", "x.pyc"]);
    drop(topic);

    // Where the repository has such files, new ones are part of the work.
    git(&fix, tree, &["add", "-f", "sub/target/debug/x", "x.pyc"]);
    fs::write(tree.join("y.pyc"), "x\n").unwrap();
    fs::write(tree.join("sub/target/debug/y"), "x\n").unwrap();
    let topic = super::topic(&fix.caller, &row, Some(&main_base())).unwrap();
    assert_eq!(topic.left_out, [".agent/state.json", "node_modules/a/b.js"]);
    assert!(names(&topic).contains(&('A', "y.pyc".to_owned())) && names(&topic).len() == 6, "{:?}", names(&topic));
}

#[test]
fn too_many_files_and_conflicts_are_refused() {
    let fix = Fixture::new();
    let row = worktree(&fix);
    let tree = Path::new(&row.path);
    for number in 0..=UNTRACKED_MAX {
        fs::write(tree.join(format!("n{number}")), "x").unwrap();
    }
    let Err(refusal) = topic(&fix.caller, &row, Some(&main_base())) else { panic!("taken") };
    assert!(refusal.cause.starts_with("201 untracked files in ") && refusal.remedy.is_some(), "{refusal:?}");
    for number in 0..=UNTRACKED_MAX {
        fs::remove_file(tree.join(format!("n{number}"))).unwrap();
    }

    fix.commit("theirs", "f", "theirs\n");
    fs::write(tree.join("f"), "ours\n").unwrap();
    git(&fix, tree, &["commit", "-q", "-a", "-m", "ours"]);
    assert!(!fix.attempt(tree, &["merge", "-q", "main"]).0);
    let Err(refusal) = topic(&fix.caller, &row, Some(&main_base())) else { panic!("taken") };
    assert_eq!(refusal.cause, "f has an unresolved conflict");
}

#[test]
fn settings_of_the_repository_run_nothing() {
    let fix = Fixture::new();
    let row = worktree(&fix);
    let (tree, ran) = (Path::new(&row.path), fix.root.join("ran"));
    let touch = format!("touch {}; true", ran.display());
    for key in ["diff.external", "core.fsmonitor", "diff.x.textconv", "diff.x.command"] {
        git(&fix, tree, &["config", key, &touch]);
    }
    fs::write(tree.join(".gitattributes"), "* diff=x\n").unwrap();
    fs::write(tree.join("f"), "2\n").unwrap();
    let topic = topic(&fix.caller, &row, Some(&main_base())).unwrap();
    assert!(text(&topic.diff(Shape::Patch).unwrap()).contains("+2"));
    assert!(!ran.exists());
}

#[test]
fn what_has_landed_as_another_commit_is_left_out() {
    let fix = Fixture::new();
    let row = worktree(&fix);
    let tree = Path::new(&row.path);
    let commit = |name: &str| {
        fs::write(tree.join(name), "1\n").unwrap();
        git(&fix, tree, &["add", name]);
        git(&fix, tree, &["commit", "-q", "-m", name]);
        git(&fix, tree, &["rev-parse", "HEAD"])
    };
    let landed = |tip: &str, commit: &str| {
        let state = State::Landed { commit: commit.to_owned() };
        let added = Addition { tip: tip.to_owned(), ..Addition::default() };
        Item { state, ..added.into_item(0, &Rules::default(), 0) }
    };
    let left = |items: &[Item]| {
        let topic = topic(&fix.caller, &row, Some(&main_base())).unwrap().without_landed(items).unwrap();
        names(&topic).into_iter().map(|(_, path)| path).collect::<Vec<_>>()
    };
    let (before, first) = (text(&fix.git(&["rev-parse", "HEAD"])), commit("first"));
    fix.commit("squashed", "first", "1\n");
    let squashed = text(&fix.git(&["rev-parse", "HEAD"]));
    let items = [landed(&first, &squashed)];
    assert_eq!((left(&[]), left(&items)), (vec!["first".to_owned()], vec![]));
    fs::write(tree.join("loose"), "1\n").unwrap();
    assert_eq!(left(&items), ["loose"]);
    commit("second");
    assert_eq!(left(&items), ["loose", "second"]);
    // The merge base is newer than what landed.
    git(&fix, tree, &["merge", "-q", "--no-edit", "main"]);
    assert_eq!(left(&items), ["loose", "second"]);
    // The base does not have it any more, or never had it.
    git(&fix, tree, &["reset", "-q", "--hard", &first]);
    fix.git(&["reset", "-q", "--hard", &before]);
    assert_eq!(left(&items), ["first", "loose"]);
    assert_eq!(left(&[landed(&first, &"1".repeat(40))]), ["first", "loose"]);
}
