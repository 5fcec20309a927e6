use std::os::unix::fs::symlink;

use swarm_model::{BaseRef, RowWorktree, WorktreeRequest};

use super::*;
use crate::fixture::{Fixture, text};
use crate::repository::objects;
use crate::worktrees::topic;

/// A worktree `w` with one uncommitted file.
fn worktree(fix: &Fixture) -> PathBuf {
    let tree = fix.root.join("w");
    fix.git(&["worktree", "add", "-q", "-b", "w", tree.to_str().unwrap()]);
    fs::write(tree.join("work"), "uncommitted\n").unwrap();
    tree
}

fn row(fix: &Fixture, tree: &Path) -> RowWorktree {
    let of = |path: &Path| path.to_str().unwrap().to_owned();
    RowWorktree { path: of(tree), branch: "w".to_owned(), base_repo: of(&fix.repo) }
}

#[test]
fn a_missing_git_file_is_an_error_and_is_written_again_before_a_start() {
    let fix = Fixture::new();
    let tree = worktree(&fix);
    let known = verified(&tree, &fix.repo).unwrap().unwrap();
    assert_eq!(known.entry, fix.repo.join(".git/worktrees/w"));
    let before = fs::read(tree.join(".git")).unwrap();
    fs::remove_file(tree.join(".git")).unwrap();
    let fault = verified(&tree, &fix.repo).unwrap_err();
    assert!(fault.cause.ends_with("has lost its .git file"), "{}", fault.cause);
    assert!(fault.remedy.unwrap().contains("worktree repair"));
    let base = BaseRef { branch: Some("main".to_owned()), commit: String::new() };
    let refusal = topic::topic(&fix.caller, &row(&fix, &tree), Some(&base)).map(drop).unwrap_err();
    assert!(refusal.cause.ends_with("has lost its .git file"), "{}", refusal.cause);
    ensure(&tree, &fix.repo).unwrap();
    assert_eq!(fs::read(tree.join(".git")).unwrap(), before);
    assert_eq!(text(&fix.at(&tree, &["status", "--porcelain"])), "?? work");
    // The remedy works as well.
    fs::remove_file(tree.join(".git")).unwrap();
    fix.git(&["worktree", "repair"]);
    assert_eq!(verified(&tree, &fix.repo).unwrap(), Some(known));
}

#[test]
fn a_record_that_names_the_worktree_of_another_is_not_the_record_of_that() {
    let fix = Fixture::new();
    let tree = worktree(&fix);
    // More than one, because records are listed in any order.
    for name in ["a", "b", "x", "y"] {
        fix.git(&["worktree", "add", "-q", "-b", name, fix.root.join(name).to_str().unwrap()]);
        let gitdir = fix.repo.join(".git/worktrees").join(name).join("gitdir");
        fs::write(gitdir, format!("{}\n", tree.join(".git").display())).unwrap();
    }
    let known = verified(&tree, &fix.repo).unwrap().unwrap();
    assert_eq!(known.entry, fix.repo.join(".git/worktrees/w"));
    ensure(&tree, &fix.repo).unwrap();
    // Nothing says any more which of them is its own.
    fs::remove_file(tree.join(".git")).unwrap();
    let fault = ensure(&tree, &fix.repo).unwrap_err();
    assert!(fault.cause.contains("several records name it: ") && !tree.join(".git").exists(), "{}", fault.cause);
    fs::write(tree.join(".git"), link_text(&known.entry)).unwrap();
    assert_eq!(verified(&tree, &fix.repo).unwrap(), Some(known));
}

#[test]
fn only_the_file_that_leads_to_the_record_is_accepted() {
    let fix = Fixture::new();
    let tree = worktree(&fix);
    fix.git(&["worktree", "add", "-q", "-b", "other", fix.root.join("other").to_str().unwrap()]);
    let dot_git = tree.join(".git");
    let right = fs::read_to_string(&dot_git).unwrap();
    fs::create_dir(tree.join("evil")).unwrap();
    let texts = ["gitdir: evil\n", "", "garbage", "gitdir: ", "gitdir: ../other/.git", "gitdir: ../repo/.git\n"];
    let other = fs::read_to_string(fix.root.join("other/.git")).unwrap();
    let long = format!("gitdir: {}", "x".repeat(1 << 20));
    for wrong in texts.into_iter().chain([other.as_str(), &long]) {
        fs::write(&dot_git, wrong).unwrap();
        assert!(verified(&tree, &fix.repo).is_err(), "{wrong:.40}");
        assert!(ensure(&tree, &fix.repo).is_err(), "{wrong:.40}");
        assert_eq!(fs::read_to_string(&dot_git).unwrap(), wrong, "it is left alone");
    }
    fs::remove_file(&dot_git).unwrap();
    for target in [fix.repo.join(".git"), fix.root.join("other/.git"), tree.join("nothing")] {
        symlink(target, &dot_git).unwrap();
        assert!(verified(&tree, &fix.repo).is_err() && ensure(&tree, &fix.repo).is_err());
        fs::remove_file(&dot_git).unwrap();
    }
    rustix::fs::mknodat(rustix::fs::CWD, &dot_git, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(verified(&tree, &fix.repo).is_err() && ensure(&tree, &fix.repo).is_err(), "a pipe does not block");
    fs::remove_file(&dot_git).unwrap();
    fs::create_dir(&dot_git).unwrap();
    assert!(verified(&tree, &fix.repo).is_err() && ensure(&tree, &fix.repo).is_err());
    fs::remove_dir(&dot_git).unwrap();
    fs::write(&dot_git, right).unwrap();
    assert!(verified(&tree, &fix.repo).is_ok());
    fs::rename(&tree, fix.root.join("moved")).unwrap();
    assert_eq!(verified(&tree, &fix.repo).unwrap(), None);
    symlink("moved", &tree).unwrap();
    assert!(verified(&tree, &fix.repo).is_err() && ensure(&tree, &fix.repo).is_err(), "a link is no worktree");
}

#[test]
fn a_filter_of_a_git_directory_in_the_worktree_is_not_run() {
    let fix = Fixture::new();
    let tree = worktree(&fix);
    let canary = fix.root.join("canary");
    fix.at(&tree, &["init", "-q", "-b", "w", "evil"]);
    let filter = format!("touch {}; cat", canary.display());
    fix.at(&tree.join("evil"), &["config", "filter.x.clean", &filter]);
    fix.at(&tree, &["--git-dir=evil/.git", "commit", "-q", "--allow-empty", "-m", "evil"]);
    fs::write(tree.join(".gitattributes"), "* filter=x\n").unwrap();
    fs::write(tree.join(".git"), "gitdir: evil/.git\n").unwrap();
    let base = BaseRef { branch: Some("main".to_owned()), commit: String::new() };
    let refusal = topic::topic(&fix.caller, &row(&fix, &tree), Some(&base)).map(drop).unwrap_err();
    assert!(refusal.cause.ends_with("leads to another repository"), "{}", refusal.cause);
    assert!(!canary.exists());
}

#[test]
fn a_record_that_leads_to_another_repository_is_refused() {
    let fix = Fixture::new();
    let tree = worktree(&fix);
    let file = fix.repo.join(".git/worktrees/w/commondir");
    for right in [fix.repo.join(".git").to_str().unwrap(), "../../", "../..\n"] {
        fs::write(&file, right).unwrap();
        assert!(verified(&tree, &fix.repo).unwrap().is_some(), "{right}");
    }
    fix.git(&["init", "-q", tree.join("evil").to_str().unwrap()]);
    for wrong in [tree.join("evil/.git").to_str().unwrap(), ".", "../../..\n"] {
        fs::write(&file, wrong).unwrap();
        for refused in [verified(&tree, &fix.repo).map(drop), ensure(&tree, &fix.repo)] {
            assert!(
                refused.is_err_and(|fault| fault.cause.ends_with("/commondir leads to another repository")),
                "{wrong}"
            );
        }
    }
}

#[test]
fn a_filter_of_a_repository_within_the_worktree_is_not_run() {
    let fix = Fixture::new();
    let tree = worktree(&fix);
    let canary = fix.root.join("canary");
    let sub = tree.join("sub");
    fix.at(&tree, &["init", "-q", "-b", "w", "sub"]);
    fs::write(sub.join("y"), "1\n").unwrap();
    fix.at(&sub, &["add", "y"]);
    fix.at(&sub, &["commit", "-q", "-m", "sub"]);
    fix.at(&tree, &["-c", "advice.addEmbeddedRepo=false", "add", "sub"]);
    fix.at(&tree, &["commit", "-q", "-m", "link"]);
    fs::create_dir(tree.join("d")).unwrap();
    fs::write(tree.join("d/x"), "x\n").unwrap();
    fix.at(&tree, &["add", "d"]);
    fix.at(&tree, &["commit", "-q", "-m", "directory"]);
    // Tracked files change in all the ways that `git add -u` knows.
    fs::remove_dir_all(tree.join("d")).unwrap();
    symlink("sub", tree.join("d")).unwrap();
    fs::write(tree.join("f"), "changed\n").unwrap();
    fs::remove_file(tree.join(".gitignore")).unwrap();
    fix.at(&sub, &["config", "filter.x.clean", &format!("touch {}; cat", canary.display())]);
    fs::write(sub.join(".gitattributes"), "* filter=x\n").unwrap();
    fs::write(sub.join("y"), "2\n").unwrap();
    let base = BaseRef { branch: Some("main".to_owned()), commit: String::new() };
    let topic = topic::topic(&fix.caller, &row(&fix, &tree), Some(&base)).unwrap();
    let changed: Vec<_> = topic.changed().unwrap().into_iter().map(|one| (one.status, one.path)).collect();
    let wanted = [('D', ".gitignore"), ('A', "d"), ('M', "f"), ('A', "sub"), ('A', "work")];
    assert_eq!(changed, wanted.map(|(status, path)| (status, path.to_owned())));
    assert!(!canary.exists(), "git ran in the repository within");
    fix.at(&tree, &["status", "--porcelain"]);
    assert!(canary.exists(), "a plain git would run the filter");
}

#[test]
fn replaced_objects_are_not_seen() {
    let fix = Fixture::new();
    let first = text(&fix.git(&["rev-parse", "HEAD"]));
    fix.commit("second", "f", "2\n");
    let second = text(&fix.git(&["rev-parse", "HEAD"]));
    fix.git(&["replace", &second, &first]);
    assert_eq!(text(&fix.git(&["show", "HEAD:f"])), "1", "git itself sees the replacement");
    let cli = fix.cli();
    assert_eq!(cli.read(&fix.repo).args(["show", "HEAD:f"]).line().unwrap(), "2");
    let library = git2::Repository::open(&fix.repo).unwrap();
    let tree = library.find_commit(git2::Oid::from_str(&second).unwrap()).unwrap().tree_id().to_string();
    let named = cli.read(&fix.repo).args(["rev-parse", "HEAD^{tree}"]).line().unwrap();
    assert_eq!(named, tree, "libgit2 sees the same");
    assert_eq!(objects::commit(&cli, &fix.repo, "HEAD").unwrap(), Some(second));
}

#[test]
fn a_worktree_from_a_worktree_belongs_to_the_repository_of_the_first() {
    let fix = Fixture::new();
    let (plan, tree) = fix.made("w");
    let trees = vec![(plan.path.clone(), plan.base_repo.clone())];
    let asked = WorktreeRequest { cwd: plan.path.clone(), trees, ..fix.asked() };
    fix.at(&tree, &["commit", "-q", "--allow-empty", "-m", "ahead"]);
    let second = fix.plan_of("second", &asked).unwrap();
    assert_eq!(second.base_repo, plan.base_repo);
    assert_eq!(second.path, format!("{}-worktrees/second", plan.path));
    assert_eq!(second.base.branch.as_deref(), Some("w"));
    fix.make(&second).unwrap();
    // The first agent replaces its `.git` file: the second worktree is none the worse for it.
    fs::write(tree.join(".git"), "gitdir: /nowhere\n").unwrap();
    assert!(verified(Path::new(&second.path), Path::new(&second.base_repo)).unwrap().is_some());
    fix.undo(&second).unwrap();
    // A repository that the first agent made.
    fs::remove_file(tree.join(".git")).unwrap();
    fix.at(&tree, &["init", "-q"]);
    fix.at(&tree, &["commit", "-q", "--allow-empty", "-m", "own"]);
    let (cause, _) = fix.refusal("third", &asked);
    assert!(cause.contains("is not the .git file of a worktree"), "{cause}");
    let inner = tree.join("inner");
    fix.at(&tree, &["init", "-q", "inner"]);
    fix.at(&inner, &["commit", "-q", "--allow-empty", "-m", "own"]);
    let asked = WorktreeRequest { cwd: inner.to_str().unwrap().to_owned(), ..asked };
    let (cause, remedy) = fix.refusal("fourth", &asked);
    assert!(cause.ends_with("lies within the worktree of a worker"), "{cause}");
    assert_eq!(remedy, Some(format!("run the command in {}", plan.base_repo)));
}
