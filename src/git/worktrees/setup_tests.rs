//! Setup of new worktrees, and the handling of what it brought, against real git.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use swarm_ports::{Force, WorktreeError};

use super::topic::{Objects, snapshot};
use super::{admin, identity};
use crate::fixture::{Fixture, text};
use crate::trash::restore::{RestoreRequest, restore};
use crate::trash::saved;

fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// A repository whose base checkout has ignored files of all kinds.
fn furnished(settings: &str) -> Fixture {
    let fix = Fixture::new();
    write(&fix.repo.join("swarm.toml"), settings);
    fix.commit("ignore", ".gitignore", "ignored\n.env*\nnode_modules/\n*.local\nvenv\n");
    write(&fix.repo.join(".env"), "SECRET=1\n");
    fs::set_permissions(fix.repo.join(".env"), fs::Permissions::from_mode(0o600)).unwrap();
    write(&fix.repo.join(".env.other"), "other\n");
    write(&fix.repo.join("deep/er/odd \n name.local"), "deep\n");
    write(&fix.repo.join("node_modules/a/index.js"), "a\n");
    symlink("../a/index.js", fix.repo.join("node_modules/link")).unwrap();
    write(&fix.repo.join("untracked"), "is not ignored\n");
    fix
}

fn refused(fix: &Fixture) -> String {
    let plan = fix.plan("w");
    let Err(WorktreeError::Create { cause, .. }) = fix.make(&plan) else { panic!("made") };
    // git itself may leave the empty directory.
    let _ = fs::remove_dir(fix.repo.join(".git/worktrees"));
    fix.assert_no_trace(&plan);
    cause.replace(fix.root.to_str().unwrap(), "")
}

#[test]
fn only_ignored_files_that_match_are_copied() {
    let fix = furnished("[worktree]\ninclude = ['*.local', 'untracked', 'node_modules/']\n");
    write(&fix.repo.join(".worktreeinclude"), "# comment\n.env\n/nothing\n");
    let (_, tree) = fix.made("w");
    let read = |name: &str| fs::read_to_string(tree.join(name)).ok();
    assert_eq!(read(".env").as_deref(), Some("SECRET=1\n"));
    assert_eq!(fs::metadata(tree.join(".env")).unwrap().mode() & 0o777, 0o600);
    let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    assert_eq!(time(&tree.join(".env")), time(&fix.repo.join(".env")));
    assert_eq!(read("deep/er/odd \n name.local").as_deref(), Some("deep\n"));
    assert_eq!(read("node_modules/a/index.js").as_deref(), Some("a\n"));
    assert_eq!(fs::read_link(tree.join("node_modules/link")).unwrap(), Path::new("../a/index.js"));
    assert_eq!((read(".env.other"), read("untracked")), (None, None));
    assert_eq!(text(&fix.at(&tree, &["status", "--porcelain"])), "");
    // Unchanged copies are not work.
    fix.remove(&tree, Force::No).unwrap();
}

#[test]
fn a_changed_copy_is_work_and_is_saved_but_generated_files_are_not() {
    let fix = furnished("[worktree]\ninclude = ['.env', 'node_modules/']\n");
    let (_, tree) = fix.made("w");
    write(&tree.join("node_modules/a/index.js"), "built\n");
    fix.check(&tree, Force::No).unwrap();
    write(&tree.join(".env"), "SECRET=2\n");
    let Err(WorktreeError::Unknown(cause)) = fix.remove(&tree, Force::No) else { panic!("removed") };
    assert_eq!(cause, ".env changed since it was copied from the base checkout");
    let saved = fix.remove(&tree, Force::SaveFirst).unwrap().unwrap();
    assert_eq!(text(&fix.git(&["show", &format!("{}:.env", saved.commit)])), "SECRET=2");
    let common = fix.repo.join(".git");
    let save = saved::list(&fix.cli(), &common).unwrap().remove(0);
    restore(&fix.cli(), &common, &save, &RestoreRequest::default()).unwrap();
    assert_eq!(fs::read_to_string(tree.join(".env")).unwrap(), "SECRET=2\n");
    assert_eq!(fs::metadata(tree.join(".env")).unwrap().mode() & 0o777, 0o600);
    // Files that were not saved are copied from the base checkout again.
    let brought = |path: &str| fs::read_to_string(tree.join(path)).unwrap();
    assert_eq!(
        brought("node_modules/a/index.js"),
        fs::read_to_string(fix.repo.join("node_modules/a/index.js")).unwrap()
    );
    fix.check(&tree, Force::No).expect_err("it still exists nowhere else");
    let again = fix.remove(&tree, Force::SaveFirst).unwrap().unwrap();
    assert_eq!(text(&fix.git(&["show", &format!("{}:.env", again.commit)])), "SECRET=2");
}

#[test]
fn links_point_to_the_base_checkout_and_are_ignored() {
    let fix = furnished("[worktree]\nlink = ['node_modules', 'absent', 'deep/er/odd']\n");
    let (_, tree) = fix.made("w");
    assert_eq!(fs::read_link(tree.join("node_modules")).unwrap(), fix.repo.join("node_modules"));
    assert!(!tree.join("absent").exists());
    assert_eq!(text(&fix.at(&tree, &["status", "--porcelain"])), "");
    fix.remove(&tree, Force::No).unwrap();
    assert!(fix.repo.join("node_modules/a/index.js").exists(), "only the link was removed, not its target");
}

#[test]
fn paths_outside_of_the_repository_and_hidden_work_are_refused_and_rolled_back() {
    let outside = furnished("[worktree]\nlink = ['venv']\n");
    symlink("/etc", outside.repo.join("venv")).unwrap();
    assert_eq!(refused(&outside), "worktree.link: 'venv' points outside of the repository");
    let tracked = furnished("[worktree]\nlink = ['untracked']\n");
    assert_eq!(refused(&tracked), "worktree.link: 'untracked' is not ignored by git");
    let pattern = furnished("");
    write(&pattern.repo.join(".worktreeinclude"), "a/../../x\n");
    assert_eq!(refused(&pattern), "/repo/.worktreeinclude has a pattern outside of the repository");

    let endless = furnished("");
    symlink("/dev/zero", endless.repo.join(".worktreeinclude")).unwrap();
    assert_eq!(refused(&endless), "/repo/.worktreeinclude is not a regular file");
    fs::remove_file(endless.repo.join(".worktreeinclude")).unwrap();
    fs::File::create(endless.repo.join(".worktreeinclude")).unwrap().set_len((1 << 20) + 1).unwrap();
    assert_eq!(refused(&endless), "/repo/.worktreeinclude is larger than 1 MiB");
    // The commit has a symbolic link where the base checkout now has a directory.
    let swapped = furnished("[worktree]\ninclude = ['*.local']\n");
    fs::remove_dir_all(swapped.repo.join("deep")).unwrap();
    symlink(swapped.root.join("home"), swapped.repo.join("deep")).unwrap();
    swapped.git(&["add", "-f", "deep"]);
    swapped.git(&["commit", "-q", "-m", "a link"]);
    fs::remove_file(swapped.repo.join("deep")).unwrap();
    write(&swapped.repo.join("deep/x.local"), "x\n");
    let cause = refused(&swapped);
    assert!(cause.ends_with("deep is not a directory there") || !swapped.root.join("home/x.local").exists(), "{cause}");
    assert!(!swapped.root.join("home/x.local").exists());
    // This instance of `Git` cannot run the user's commands.
    let command = furnished("[worktree]\npost_create = 'true'\n");
    assert_eq!(refused(&command), "cannot run worktree.post_create here");
}

/// A repository with the submodule `lib/outer`, which has the submodule `in`. Their origins are returned as well.
fn with_submodules() -> (Fixture, [PathBuf; 2]) {
    let fix = furnished("[worktree]\nsubmodules = true\n");
    let (inner, outer) = (fix.root.join("inner"), fix.root.join("outer"));
    for (dir, below) in [(&inner, None), (&outer, Some(&inner))] {
        fs::create_dir(dir).unwrap();
        fix.at(dir, &["init", "-q", "-b", "main"]);
        write(&dir.join("file"), "one\n");
        if let Some(below) = below {
            let words = ["-c", "protocol.file.allow=always", "submodule", "add", "-q", below.to_str().unwrap(), "in"];
            fix.at(dir, &words);
        }
        fix.at(dir, &["add", "-A"]);
        fix.at(dir, &["commit", "-q", "-m", "one"]);
    }
    let url = outer.to_str().unwrap();
    fix.git(&["-c", "protocol.file.allow=always", "submodule", "add", "-q", "--name", "a/b", url, "lib/outer"]);
    let deep = ["-c", "protocol.file.allow=always", "submodule", "update", "-q", "--init", "--recursive"];
    fix.git(&deep);
    fix.git(&["commit", "-q", "-m", "submodules"]);
    (fix, [outer, inner])
}

#[test]
fn hooks_that_the_repository_tracks_do_not_run_for_a_new_worktree() {
    let fix = Fixture::new();
    let ran = fix.root.join("ran");
    let hook = |dir: &Path| {
        fs::create_dir_all(dir).unwrap();
        fix.script(&dir.join("post-checkout"), &format!("touch {}", ran.display()));
    };
    hook(&fix.repo.join(".githooks"));
    fix.git(&["add", "."]);
    fix.git(&["commit", "-qm", "hooks"]);
    let own = fix.root.join("own hooks");
    hook(&own);
    hook(&fix.repo.join(".git/hooks"));
    let linked = fix.root.join("linked");
    std::os::unix::fs::symlink(fix.repo.join(".githooks"), &linked).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    for (number, (path, is_run)) in [
        (".githooks".to_owned(), false),
        (text(&fix.repo.join(".githooks")), false),
        (text(&linked), false),
        (text(&own), true),
        (text(&fix.repo.join(".git/hooks")), true),
    ]
    .into_iter()
    .enumerate()
    {
        fix.git(&["config", "core.hooksPath", &path]);
        fix.made(&format!("w{number}"));
        assert_eq!(fs::remove_file(&ran).is_ok(), is_run, "{path}");
    }
}

#[test]
fn links_to_hooks_that_the_repository_tracks_are_not_followed_for_a_new_worktree() {
    let fix = Fixture::new();
    let ran = fix.root.join("ran");
    let hook = |dir: &Path| {
        fs::create_dir_all(dir).unwrap();
        fix.script(&dir.join("post-checkout"), &format!("touch {}", ran.display()));
    };
    let (tracked, hooks, own) = (fix.repo.join(".githooks"), fix.repo.join(".git/hooks"), fix.root.join("own hooks"));
    hook(&tracked);
    fix.git(&["add", "."]);
    fix.git(&["commit", "-qm", "hooks"]);
    hook(&own);
    let runs = |name: &str| {
        fix.made(name);
        fs::remove_file(&ran).is_ok()
    };
    let replace = |path: &Path, target: &Path| {
        let _ = fs::remove_dir_all(path).or_else(|_| fs::remove_file(path));
        std::os::unix::fs::symlink(target, path).unwrap();
    };
    replace(&hooks, Path::new("../.githooks"));
    assert!(!runs("directory"));
    replace(&hooks, Path::new("../.later"));
    assert!(!runs("absent"));
    replace(&hooks, &own);
    assert!(runs("own-directory"));
    fs::remove_file(&hooks).unwrap();
    fs::create_dir(&hooks).unwrap();
    // Its name says that git does not run it for a worktree.
    replace(&hooks.join("pre-commit"), Path::new("../../.githooks/post-checkout"));
    replace(&hooks.join("post-checkout"), &own.join("post-checkout"));
    assert!(runs("own-hook"));
    replace(&hooks.join("post-checkout"), Path::new("../../.githooks/post-checkout"));
    assert!(!runs("hook"));
    replace(&own.join("post-checkout"), &tracked.join("post-checkout"));
    fix.git(&["config", "core.hooksPath", own.to_str().unwrap()]);
    assert!(!runs("configured"));
    // A worktree below the common directory is a checkout, too.
    let inside = fix.repo.join(".git/inside");
    fix.git(&["worktree", "add", "-q", "--detach", inside.to_str().unwrap()]);
    fix.git(&["config", "core.hooksPath", inside.join(".githooks").to_str().unwrap()]);
    fs::remove_file(&ran).unwrap_or_default();
    assert!(!runs("inside"));
}

#[test]
fn submodules_come_from_the_base_checkout_and_are_never_lost() {
    let (fix, [outer, inner]) = with_submodules();
    // No network is needed: the origin is gone.
    fs::rename(&outer, fix.root.join("outer-gone")).unwrap();
    fs::rename(&inner, fix.root.join("inner-gone")).unwrap();
    let before = fs::read_to_string(fix.repo.join(".git/config")).unwrap();
    let (_, tree) = fix.made("w");
    let sub = tree.join("lib/outer");
    assert_eq!(fs::read_to_string(sub.join("in/file")).unwrap(), "one\n");
    assert_eq!(text(&fix.at(&sub, &["config", "remote.origin.url"])), outer.to_str().unwrap());
    assert_eq!(text(&fix.at(&tree, &["status", "--porcelain"])), "");
    assert_eq!(fs::read_to_string(fix.repo.join(".git/config")).unwrap(), before);
    fix.remove(&tree, Force::No).unwrap();
    assert!(!tree.exists());

    let (_, tree) = fix.made("v");
    let sub = tree.join("lib/outer");
    write(&sub.join("in/new"), "work\n");
    let Err(WorktreeError::Unknown(cause)) = fix.remove(&tree, Force::SaveFirst) else { panic!("removed") };
    assert_eq!(cause, "submodule a/b/modules/in has uncommitted changes");
    fix.at(&sub.join("in"), &["add", "-A"]);
    fix.at(&sub.join("in"), &["commit", "-q", "-m", "precious"]);
    fix.at(&sub.join("in"), &["checkout", "-q", "HEAD~1"]);
    let Err(WorktreeError::Unknown(cause)) = fix.remove(&tree, Force::SaveFirst) else { panic!("removed") };
    assert_eq!(cause, "submodule a/b/modules/in has commits that the base checkout lacks");
    assert!(sub.join("in/file").exists());
}

#[test]
fn uncommitted_work_in_submodules_is_named() {
    let (fix, _) = with_submodules();
    let (_, tree) = fix.made("w");
    let left_out = || {
        let place = identity::open(&fix.cli(), &tree, &fix.repo).unwrap().unwrap();
        let seen = snapshot(&fix.cli(), &place, Objects::Discard).unwrap();
        (seen.left_out, seen.tree.is_some())
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(left_out(), (names(&[]), false));
    write(&tree.join("lib/outer/in/file"), "two\n");
    assert_eq!(left_out(), (names(&["lib/outer/in/"]), false));
    write(&tree.join("lib/outer/new"), "");
    write(&tree.join("top"), "");
    assert_eq!(left_out(), (names(&["lib/outer/in/", "lib/outer/"]), true));
    // What is committed there is a change of the worktree.
    fix.at(&tree.join("lib/outer/in"), &["commit", "-qam", "two"]);
    fix.at(&tree.join("lib/outer"), &["add", "-A"]);
    fix.at(&tree.join("lib/outer"), &["commit", "-qm", "two"]);
    assert_eq!(left_out(), (names(&[]), true));
    // One that git cannot read is named, too.
    fs::write(tree.join("lib/outer/in/file"), "three\n").unwrap();
    let index = admin::entry_of(&fix.repo.join(".git"), &tree).unwrap().unwrap().join("modules/a/b/modules/in/index");
    fs::write(index, "damaged").unwrap();
    assert!(left_out().0.contains(&"lib/outer/in/".to_owned()));
}

#[test]
fn work_in_submodules_that_git_status_does_not_list_holds_a_worktree() {
    let (fix, _) = with_submodules();
    let (_, tree) = fix.made("w");
    let (sub, deep) = (tree.join("lib/outer"), tree.join("lib/outer/in"));
    let refused = |why: &str| {
        for force in [Force::No, Force::SaveFirst] {
            let Err(WorktreeError::Unknown(cause)) = fix.remove(&tree, force) else { panic!("removed: {why}") };
            assert_eq!(cause, why);
        }
    };
    for (dir, name) in [(&sub, "a/b"), (&deep, "a/b/modules/in")] {
        for mark in ["assume-unchanged", "skip-worktree"] {
            fix.at(dir, &["update-index", &format!("--{mark}"), "file"]);
            write(&dir.join("file"), "precious\n");
            refused(&format!("submodule {name} has 1 changed file(s) marked assume-unchanged or skip-worktree"));
            assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "precious\n");
            fix.at(dir, &["update-index", &format!("--no-{mark}"), "file"]);
            fix.at(dir, &["checkout", "-q", "file"]);
        }
        fix.at(dir, &["bisect", "start"]);
        refused(&format!("submodule {name} has a bisect in progress"));
        fix.at(dir, &["bisect", "reset"]);
    }
    // A mark alone is no work.
    fix.at(&deep, &["update-index", "--skip-worktree", "file"]);
    fix.check(&tree, Force::No).unwrap();
    // A repository of its own in place of the inner submodule, with the same commit.
    let link = fs::read_to_string(deep.join(".git")).unwrap();
    let module = deep.join(link.trim_end().strip_prefix("gitdir: ").unwrap()).canonicalize().unwrap();
    let head = text(&fix.at(&deep, &["rev-parse", "HEAD"]));
    fs::rename(&deep, fix.root.join("aside")).unwrap();
    fix.at(&sub, &["clone", "-q", module.to_str().unwrap(), "in"]);
    fix.at(&deep, &["checkout", "-q", &head]);
    write(&deep.join("new"), "precious\n");
    fs::remove_dir_all(&module).unwrap();
    refused("submodule a/b has uncommitted changes");
    assert!(deep.join("new").exists());
}

#[test]
fn a_save_is_restored_without_submodules_which_can_be_checked_out_again() {
    let fix = furnished("[worktree]\nsubmodules = true\n");
    let other = fix.root.join("other");
    fs::create_dir(&other).unwrap();
    fix.at(&other, &["init", "-q"]);
    write(&other.join("file"), "one\n");
    fix.at(&other, &["add", "-A"]);
    fix.at(&other, &["commit", "-q", "-m", "one"]);
    fix.git(&["-c", "protocol.file.allow=always", "submodule", "add", "-q", other.to_str().unwrap(), "sub"]);
    fix.git(&["commit", "-q", "-m", "submodule"]);
    let (_, tree) = fix.made("w");
    write(&tree.join("f"), "changed\n");
    fix.remove(&tree, Force::SaveFirst).unwrap().unwrap();
    let common = fix.repo.join(".git");
    let save = saved::list(&fix.cli(), &common).unwrap().remove(0);
    restore(&fix.cli(), &common, &save, &RestoreRequest::default()).unwrap();
    assert_eq!(text(&fix.at(&tree, &["status", "--porcelain"])), " M f");
    fix.at(&tree, &["-c", "protocol.file.allow=always", "submodule", "update", "-q", "--init"]);
    assert!(tree.join("sub/file").exists());
}

#[test]
fn a_sparse_base_checkout_has_sparse_worktrees() {
    let fix = furnished("");
    for name in ["in/a", "out/b"] {
        write(&fix.repo.join(name), "x\n");
    }
    fix.git(&["add", "in", "out"]);
    fix.git(&["commit", "-q", "-m", "dirs"]);
    fix.git(&["sparse-checkout", "set", "--cone", "in"]);
    let (_, tree) = fix.made("w");
    assert!(tree.join("in/a").exists() && !tree.join("out").exists());
    assert_eq!(text(&fix.at(&tree, &["sparse-checkout", "list"])), "in");
    assert_eq!(text(&fix.at(&tree, &["status", "--porcelain"])), "");
    fix.remove(&tree, Force::No).unwrap();
}

#[test]
fn a_missing_filter_program_is_reported_and_rolled_back() {
    let fix = furnished("");
    fix.git(&["config", "filter.lfs.smudge", "git-lfs-that-is-missing smudge -- %f"]);
    fix.git(&["config", "filter.lfs.required", "true"]);
    fix.commit("pointers", ".gitattributes", "*.bin filter=lfs\n");
    fix.git(&["config", "filter.lfs.clean", "cat"]);
    fix.commit("big", "big.bin", "version https://git-lfs.github.com/spec/v1\n");
    let cause = refused(&fix);
    assert!(cause.contains("big.bin") && cause.contains("lfs"), "{cause}");
    // If the filter is not required, files stay pointers, and the worktree is clean.
    fix.git(&["config", "filter.lfs.required", "false"]);
    let (_, tree) = fix.made("w");
    assert!(fs::read_to_string(tree.join("big.bin")).unwrap().starts_with("version "));
    fix.git(&["config", "filter.lfs.clean", "git-lfs-that-is-missing clean -- %f"]);
    write(&tree.join("big.bin"), "content\r\n");
    fix.remove(&tree, Force::SaveFirst).unwrap().unwrap();
    let common = fix.repo.join(".git");
    let save = saved::list(&fix.cli(), &common).unwrap().remove(0);
    restore(&fix.cli(), &common, &save, &RestoreRequest::default()).unwrap();
    assert_eq!(fs::read_to_string(tree.join("big.bin")).unwrap(), "content\r\n");
}
