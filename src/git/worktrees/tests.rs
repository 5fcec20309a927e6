//! Planning, creating, checking, saving and removing, against real git.

use std::fs;
use std::path::Path;

use swarm_model::{BaseRef, WorktreeRequest};
use swarm_ports::{Force, WorktreeError, Worktrees};

use crate::Git;
use crate::fixture::{Fixture, block, text};

fn unknown(result: Result<impl std::fmt::Debug, WorktreeError>) -> String {
    match result {
        Err(WorktreeError::Unknown(cause)) => cause,
        other => panic!("not unknown: {other:?}"),
    }
}

#[test]
fn a_plan_has_the_original_layout_and_the_base() {
    let fix = Fixture::new();
    let head = text(&fix.git(&["rev-parse", "HEAD"]));
    let plan = fix.plan("w");
    assert_eq!(plan.path, fix.root.join("repo-worktrees/w").to_str().unwrap());
    assert_eq!((plan.branch.as_str(), plan.base_repo.as_str()), ("w", fix.repo.to_str().unwrap()));
    assert_eq!(plan.base, BaseRef { branch: Some("main".to_owned()), commit: head.clone() });
    assert!(plan.makes_branch && plan.makes_tree);
    assert!(!fix.root.join("repo-worktrees").exists(), "planning created something");

    let asked = WorktreeRequest { dir: Some("d".to_owned()), branch: Some("a/b".to_owned()), ..fix.asked() };
    let plan = fix.plan_of("w", &asked).unwrap();
    assert_eq!((plan.path.as_str(), plan.branch.as_str()), (fix.root.join("d/w").to_str().unwrap(), "a/b"));
    let asked = WorktreeRequest { dir: Some("/nowhere".to_owned()), base: Some(head[..10].to_owned()), ..fix.asked() };
    let plan = fix.plan_of("w", &asked).unwrap();
    assert_eq!((plan.path.as_str(), plan.base), ("/nowhere/w", BaseRef { branch: None, commit: head }));
}

#[test]
fn a_plan_is_refused_with_its_cause() {
    let fix = Fixture::new();
    fix.git(&["branch", "x/y"]);
    let with = |branch: &str| WorktreeRequest { branch: Some(branch.to_owned()), ..fix.asked() };
    for bad in ["-x", "a..b", "a b", "HEAD"] {
        assert_eq!(fix.refusal("w", &with(bad)).0, format!("'{bad}' is not a valid branch name"));
    }
    assert_eq!(fix.refusal("w", &with("x")).0, "branch 'x' conflicts with the existing branch 'x/y'");
    assert_eq!(fix.refusal("w", &with("main/z")).0, "branch 'main/z' conflicts with the existing branch 'main'");
    assert!(fix.refusal("w", &with("main")).0.contains("is checked out at"));
    let base = WorktreeRequest { base: Some("nothing".to_owned()), ..fix.asked() };
    assert!(fix.refusal("w", &base).0.contains("'nothing' is not a commit"));
    let home = WorktreeRequest { cwd: "home".to_owned(), ..fix.asked() };
    assert!(fix.refusal("w", &home).0.ends_with("not in a git repository"));
    fs::create_dir_all(fix.root.join("repo-worktrees/w/mine")).unwrap();
    assert!(fix.refusal("w", &fix.asked()).0.ends_with("repo-worktrees/w already exists"));

    let none = Fixture::empty();
    let (cause, remedy) = none.refusal("w", &none.asked());
    assert!(cause.contains("has no commit yet") && remedy.unwrap().contains("git commit"), "{cause}");
}

#[test]
fn a_bare_repository_is_refused_and_left_alone() {
    let fix = Fixture::new();
    fix.at(&fix.root, &["clone", "-q", "--bare", "repo", "bare.git"]);
    let before = fs::read(fix.root.join("bare.git/config")).unwrap();
    let asked = WorktreeRequest { cwd: "bare.git".to_owned(), ..fix.asked() };
    assert!(fix.refusal("w", &asked).0.contains("bare repository"));
    assert_eq!(fs::read(fix.root.join("bare.git/config")).unwrap(), before);
    // A worktree of the bare repository is accepted.
    fix.at(&fix.root, &["-C", "bare.git", "worktree", "add", "-q", "-b", "t", "../tree"]);
    let plan = fix.plan_of("w", &WorktreeRequest { cwd: "tree".to_owned(), ..fix.asked() }).unwrap();
    fix.make(&plan).unwrap();
    assert_eq!(plan.path, fix.root.join("tree-worktrees/w").to_str().unwrap());
    assert!(Path::new(&plan.path).join("f").exists());
    assert_eq!(fs::read(fix.root.join("bare.git/config")).unwrap(), before);
}

#[test]
fn an_existing_branch_is_checked_out_and_an_existing_worktree_is_adopted() {
    let fix = Fixture::new();
    fix.git(&["branch", "w"]);
    fix.commit("second", "f", "2\n");
    let base = WorktreeRequest { base: Some("main".to_owned()), ..fix.asked() };
    assert!(fix.refusal("w", &base).0.contains("which is not the base"));
    let (plan, path) = fix.made("w");
    assert!(!plan.makes_branch && plan.makes_tree);
    assert_eq!(fs::read_to_string(path.join("f")).unwrap(), "1\n");

    let again = fix.plan("w");
    assert!(!again.makes_branch && !again.makes_tree);
    fs::write(path.join("work"), "").unwrap();
    fix.make(&again).unwrap();
    fix.undo(&again).unwrap();
    assert!(path.join("work").exists(), "an adopted worktree must not be rolled back");
}

#[test]
fn a_missing_worktree_is_made_again_unless_it_is_locked() {
    let fix = Fixture::new();
    let (_, path) = fix.made("w");
    fix.git(&["worktree", "lock", "--reason", "usb", path.to_str().unwrap()]);
    fs::remove_dir_all(&path).unwrap();
    let (cause, remedy) = fix.refusal("w", &fix.asked());
    assert!(cause.contains("missing and locked: usb") && remedy.unwrap().contains("unlock"), "{cause}");
    fix.git(&["worktree", "unlock", path.to_str().unwrap()]);
    let (plan, path) = fix.made("w");
    assert!(!plan.makes_branch && path.join("f").exists());
}

#[test]
fn creation_runs_one_git_with_hooks_and_leaves_no_trace_on_failure() {
    let fix = Fixture::new();
    fix.script(&fix.repo.join(".git/hooks/post-checkout"), "touch hook-ran");
    let counted = fix.with_stub("echo x >> $HOME/count");
    let plan = fix.plan("w");
    block(Git::new().make(&plan, &counted)).unwrap();
    assert!(Path::new(&plan.path).join("hook-ran").exists());
    assert_eq!(fs::read_to_string(fix.root.join("home/count")).unwrap(), "x\n");
    assert!(!fix.has("refs/heads/v"));

    let plan = fix.plan("v");
    fix.script(&fix.repo.join(".git/hooks/post-checkout"), "echo said no >&2; exit 3");
    let error = fix.make(&plan).unwrap_err();
    assert_eq!(error, WorktreeError::Create { cause: "said no".to_owned(), remedy: None, passes: false });
    assert!(!Path::new(&plan.path).exists() && !fix.has("refs/heads/v"));
    assert!(fix.has("refs/heads/w") && fix.trash().is_empty());
}

#[test]
fn a_branch_created_meanwhile_is_not_rolled_back() {
    let fix = Fixture::new();
    let plan = fix.plan("w");
    fix.git(&["branch", "w"]);
    let error = fix.make(&plan).unwrap_err();
    assert!(error.to_string().contains("a branch named 'w' already exists"), "{error}");
    assert!(fix.has("refs/heads/w") && !fix.root.join("repo-worktrees").exists());
}

#[test]
fn four_at_once_are_all_made() {
    let fix = Fixture::new();
    let plans: Vec<_> = (0..4).map(|n| fix.plan(&format!("w{n}"))).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = plans.iter().map(|plan| scope.spawn(|| fix.make(plan))).collect();
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
    });
    let listed = text(&fix.git(&["worktree", "list"]));
    assert_eq!(listed.lines().count(), 5, "{listed}");
    assert!(fix.repo.join(".git/swarm-worktree.lock").exists());
}

#[test]
fn a_clean_worktree_goes_and_its_branch_stays() {
    let fix = Fixture::new();
    let (_, path) = fix.made("w");
    fs::write(path.join("ignored"), "").unwrap();
    fix.check(&path, Force::No).unwrap();
    assert!(path.exists());
    assert_eq!(fix.remove(&path, Force::No).unwrap(), None);
    assert!(!path.exists() && fix.has("refs/heads/w") && !fix.repo.join(".git/worktrees").exists());
    assert_eq!(fix.remove(&path, Force::No).unwrap(), None);
}

#[test]
fn a_missing_directory_counts_as_removed_and_its_entry_stays_unless_that_is_forced() {
    let fix = Fixture::new();
    for (name, is_locked) in [("a", false), ("b", true)] {
        let (_, path) = fix.made(name);
        if is_locked {
            fix.git(&["worktree", "lock", path.to_str().unwrap()]);
        }
        fs::remove_dir_all(&path).unwrap();
        let entry = fix.repo.join(".git/worktrees").join(name);
        assert_eq!(fix.remove(&path, Force::No).unwrap(), None);
        // The worktree may have been moved.
        assert!(entry.join("HEAD").exists());
        assert_eq!(fix.remove(&path, Force::SaveFirst).unwrap(), None);
        assert_eq!(entry.exists(), is_locked);
    }
}

#[test]
fn every_kind_of_change_is_counted_as_git_counts() {
    let fix = Fixture::new();
    fix.git(&["config", "status.showUntrackedFiles", "no"]);
    let (_, path) = fix.made("w");
    fs::create_dir(path.join("new")).unwrap();
    fs::write(path.join("new/a"), "").unwrap();
    fs::write(path.join("new/b"), "").unwrap();
    assert_eq!(fix.check(&path, Force::No).unwrap_err().to_string(), "worktree has 1 uncommitted change(s)");
    fs::write(path.join("f"), "changed").unwrap();
    assert_eq!(fix.check(&path, Force::No), Err(WorktreeError::Dirty(2)));
    fix.at(&path, &["add", "f"]);
    assert_eq!(fix.remove(&path, Force::No), Err(WorktreeError::Dirty(2)));
    assert!(path.join("new/a").exists());
}

#[test]
fn a_worktree_that_cannot_be_checked_stays() {
    let fix = Fixture::new();
    let (_, path) = fix.made("w");
    fix.git(&["worktree", "lock", "--reason", "mine", path.to_str().unwrap()]);
    for force in [Force::No, Force::SaveFirst] {
        assert_eq!(unknown(fix.remove(&path, force)), "worktree is locked: mine");
    }
    fix.git(&["worktree", "unlock", path.to_str().unwrap()]);
    assert!(unknown(fix.check(&fix.repo, Force::SaveFirst)).contains("a separate repository"));
    assert!(unknown(fix.check(&fix.root.join("home"), Force::SaveFirst)).contains("is not a worktree of"));
    let gone = block(Git::new().check(path.to_str().unwrap(), "/nowhere", Force::SaveFirst, &fix.caller));
    assert_eq!(unknown(gone), "the repository /nowhere no longer exists");
    fs::write(fix.repo.join(".git/worktrees/w/index"), "damaged").unwrap();
    assert!(unknown(fix.remove(&path, Force::SaveFirst)).contains("index file"));
    assert!(path.join("f").exists());
}

#[test]
fn unfinished_work_of_git_and_lost_commits_are_seen() {
    let fix = Fixture::new();
    let (_, path) = fix.made("w");
    fix.at(&path, &["bisect", "start"]);
    assert_eq!(unknown(fix.remove(&path, Force::No)), "a bisect is in progress in the worktree");
    fix.at(&path, &["bisect", "reset"]);
    fix.at(&path, &["checkout", "-q", "--detach"]);
    fix.check(&path, Force::No).unwrap();
    fix.at(&path, &["commit", "-q", "--allow-empty", "-m", "lost"]);
    let lost = text(&fix.at(&path, &["rev-parse", "HEAD"]));
    assert_eq!(fix.remove(&path, Force::No), Err(WorktreeError::Unreachable(lost.clone())));
    let saved = fix.remove(&path, Force::SaveFirst).unwrap().unwrap();
    assert_eq!(text(&fix.git(&["rev-parse", &format!("{}^1", saved.reference)])), lost);
    assert!(!path.exists());
}

#[test]
fn a_rebase_in_progress_is_seen() {
    let fix = Fixture::new();
    let (_, path) = fix.made("w");
    fs::write(path.join("f"), "ours\n").unwrap();
    fix.at(&path, &["commit", "-qam", "ours"]);
    fix.commit("theirs", "f", "theirs\n");
    assert!(!fix.attempt(&path, &["rebase", "-q", "main"]).0);
    assert_eq!(fix.remove(&path, Force::No), Err(WorktreeError::Dirty(1)));
    fix.at(&path, &["checkout", "-q", "--ours", "f"]);
    fix.at(&path, &["add", "f"]);
    assert_eq!(unknown(fix.remove(&path, Force::No)), "a rebase is in progress in the worktree");
    assert!(path.exists());
}

#[test]
fn a_repository_inside_cannot_be_saved_and_stays() {
    let fix = Fixture::new();
    let (_, path) = fix.made("w");
    fix.at(&path, &["init", "-q", "inner"]);
    fs::write(path.join("inner/work"), "").unwrap();
    for result in [fix.check(&path, Force::SaveFirst), fix.remove(&path, Force::SaveFirst).map(|_| ())] {
        assert!(unknown(result).contains("w/inner is a separate repository"));
    }
    assert!(path.join("inner/work").exists() && fix.trash().is_empty());
}

#[test]
fn a_save_holds_files_index_and_head() {
    let fix = Fixture::new();
    let (_, path) = fix.made("w");
    fs::write(path.join("f"), "staged\n").unwrap();
    fix.at(&path, &["add", "f"]);
    fs::write(path.join("f"), "unstaged\n").unwrap();
    fs::create_dir(path.join("new")).unwrap();
    fs::write(path.join("new/a b"), "untracked\n").unwrap();
    fs::write(path.join("ignored"), "").unwrap();
    let head = text(&fix.at(&path, &["rev-parse", "HEAD"]));
    let index = text(&fix.at(&path, &["write-tree"]));

    let saved = fix.remove(&path, Force::SaveFirst).unwrap().unwrap();
    assert!(!path.exists());
    assert_eq!(fix.trash(), vec![saved.reference.clone()]);
    assert!(saved.reference.starts_with("refs/swarm/trash/w/2"), "{}", saved.reference);
    let at = |what: &str| text(&fix.git(&["rev-parse", &format!("{}{what}", saved.reference)]));
    assert_eq!((at(""), at("^1"), at("^2^{tree}"), at("^2^1")), (saved.commit.clone(), head.clone(), index, head));
    let files = text(&fix.git(&["ls-tree", "-r", "--name-only", &saved.commit]));
    assert_eq!(files, ".gitignore\nf\nnew/a b");
    assert_eq!(text(&fix.git(&["show", &format!("{}:f", saved.commit)])), "unstaged");
    let note = text(&fix.git(&["show", "-s", "--format=%an <%ae>%n%B", &saved.commit]));
    assert!(note.starts_with("swarm <swarm@localhost>") && note.contains("Branch: refs/heads/w"), "{note}");
    assert!(note.contains(path.to_str().unwrap()));
}

#[test]
fn an_unmerged_index_is_saved_by_stages() {
    let fix = Fixture::new();
    let (_, path) = fix.made("w");
    fs::write(path.join("f"), "ours\n").unwrap();
    fix.at(&path, &["commit", "-qam", "ours"]);
    fix.commit("theirs", "f", "theirs\n");
    let theirs = text(&fix.git(&["rev-parse", "HEAD"]));
    assert!(!fix.attempt(&path, &["merge", "-q", "main"]).0);
    let saved = fix.remove(&path, Force::SaveFirst).unwrap().unwrap();
    let show = |what: &str| text(&fix.git(&["show", &format!("{}{what}", saved.commit)]));
    assert_eq!(
        (show("^2:stage1/f"), show("^2:stage2/f"), show("^2:stage3/f")),
        ("1".into(), "ours".into(), "theirs".into())
    );
    assert_eq!(show("^2:stage0/.gitignore"), "ignored");
    assert!(show(":f").starts_with("<<<<<<<"));
    assert_eq!(text(&fix.git(&["rev-parse", &format!("{}^3", saved.commit)])), theirs);
}

#[test]
fn an_interrupted_removal_is_finished() {
    let fix = Fixture::new();
    for (name, has_link) in [("a", true), ("b", false)] {
        let (_, path) = fix.made(name);
        let entry = fix.repo.join(".git/worktrees").join(name);
        fs::remove_file(path.join("f")).unwrap();
        if !has_link {
            fs::remove_file(path.join(".git")).unwrap();
        }
        assert!(fix.remove(&path, Force::No).is_err(), "a deletion by a user is work");
        fs::write(entry.join("swarm-removing"), "").unwrap();
        fs::write(path.join("new"), "").unwrap();
        assert_eq!(fix.remove(&path, Force::No), Err(WorktreeError::Dirty(2)));
        fs::remove_file(path.join("new")).unwrap();
        fix.at(&path, &["checkout", "-q", "--detach"]);
        fix.at(&path, &["commit", "-q", "--allow-empty", "-m", name]);
        assert!(matches!(fix.remove(&path, Force::No), Err(WorktreeError::Unreachable(_))));
        fix.at(&path, &["branch", &format!("keep-{name}")]);
        fs::write(entry.join("swarm-removing"), "").unwrap();
        assert_eq!(fix.remove(&path, Force::No), Ok(None));
        assert!(!path.exists() && !entry.exists());
    }
}

#[test]
fn a_link_in_place_of_the_git_file_is_not_written_through() {
    let fix = Fixture::new();
    let (_, path) = fix.made("a");
    fs::write(fix.repo.join(".git/worktrees/a/swarm-removing"), "").unwrap();
    let dot_git = path.join(".git");
    for (target, is_there) in [("precious", true), ("nothing", false)] {
        let target = fix.root.join(target);
        if is_there {
            fs::write(&target, "of a person\n").unwrap();
        }
        fs::remove_file(&dot_git).unwrap();
        std::os::unix::fs::symlink(&target, &dot_git).unwrap();
        assert!(fix.remove(&path, Force::SaveFirst).is_err());
        assert_eq!(fs::read_to_string(&target).ok().as_deref(), is_there.then_some("of a person\n"));
    }
}

#[test]
fn without_git_the_error_says_so() {
    let mut fix = Fixture::new();
    fix.set("PATH", "/nowhere");
    let (cause, remedy) = fix.refusal("w", &fix.asked());
    assert_eq!(cause, "git is not installed or not in PATH");
    assert!(remedy.unwrap().contains("install git 2.38"));
}

#[test]
fn hidden_changes_are_work() {
    let fix = Fixture::new();
    fix.commit("second", "g", "1\n");
    let (_, path) = fix.made("w");
    fix.at(&path, &["update-index", "--assume-unchanged", "f"]);
    fix.at(&path, &["update-index", "--skip-worktree", "g"]);
    fix.check(&path, Force::No).unwrap();
    fs::write(path.join("f"), "hidden\n").unwrap();
    fs::write(path.join("g"), "hidden too\n").unwrap();
    assert!(unknown(fix.remove(&path, Force::No)).contains("2 changed file(s)"));
    let saved = fix.remove(&path, Force::SaveFirst).unwrap().unwrap();
    assert_eq!(text(&fix.git(&["show", &format!("{}:f", saved.commit)])), "hidden");
    assert_eq!(text(&fix.git(&["show", &format!("{}:g", saved.commit)])), "hidden too");
}

#[test]
fn a_sparse_worktree_is_saved_whole() {
    let fix = Fixture::new();
    fs::create_dir(fix.repo.join("d")).unwrap();
    fix.commit("second", "d/x", "1\n");
    let (_, path) = fix.made("w");
    fix.at(&path, &["sparse-checkout", "set", "--no-cone", "/f"]);
    assert!(!path.join("d/x").exists());
    fix.check(&path, Force::No).unwrap();
    fs::write(path.join("f"), "work\n").unwrap();
    let saved = fix.remove(&path, Force::SaveFirst).unwrap().unwrap();
    assert_eq!(text(&fix.git(&["diff", "--name-only", "HEAD", &saved.commit])), "f");
}

#[test]
fn a_submodule_that_is_not_initialised_does_not_hold_a_worktree() {
    let fix = Fixture::new();
    fix.at(&fix.root, &["clone", "-q", "repo", "other"]);
    fix.git(&["-c", "protocol.file.allow=always", "submodule", "add", "-q", "../other", "sub"]);
    fix.git(&["commit", "-qm", "sub"]);
    let (_, path) = fix.made("w");
    assert_eq!(fix.remove(&path, Force::No), Ok(None));
    let (_, path) = fix.made("v");
    fix.at(&path, &["-c", "protocol.file.allow=always", "submodule", "update", "-q", "--init"]);
    fix.at(&path.join("sub"), &["commit", "-q", "--allow-empty", "-m", "only here"]);
    fix.at(&path.join("sub"), &["checkout", "-q", "HEAD~1"]);
    for force in [Force::No, Force::SaveFirst] {
        let why = "submodule sub has commits that the base checkout lacks";
        assert_eq!(unknown(fix.remove(&path, force)), why);
    }
    assert!(path.join("sub/f").exists());
}

#[test]
fn a_repository_that_only_git_can_read_works_throughout() {
    let fix = Fixture::new();
    let sha256 = fix.root.join("s");
    fix.at(&fix.root, &["init", "-q", "-b", "main", "--object-format=sha256", "s"]);
    fs::write(sha256.join("f"), "1\n").unwrap();
    fix.at(&sha256, &["add", "f"]);
    fix.at(&sha256, &["commit", "-qm", "first"]);
    let plan = fix.plan_of("w", &WorktreeRequest { cwd: "s".to_owned(), ..fix.asked() }).unwrap();
    assert_eq!(plan.base.commit.len(), 64);
    fix.make(&plan).unwrap();
    fs::write(Path::new(&plan.path).join("f"), "2\n").unwrap();
    fix.undo(&plan).unwrap();
    assert!(!Path::new(&plan.path).exists());
    let saved = text(&fix.at(&sha256, &["for-each-ref", "--format=%(refname)", "refs/swarm/trash/w"]));
    assert_eq!(text(&fix.at(&sha256, &["show", &format!("{saved}:f")])), "2");
}

#[test]
fn a_change_in_the_same_second_as_the_index_is_saved() {
    let fix = Fixture::new();
    // With trustctime, the change of ctime would reveal the modification.
    fix.git(&["config", "core.trustctime", "false"]);
    let (_, path) = fix.made("w");
    let (file, index) = (path.join("f"), fix.repo.join(".git/worktrees/w/index"));
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    let set = |path: &Path| fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
    set(&file);
    fix.at(&path, &["update-index", "--refresh"]);
    fs::write(&file, "2\n").unwrap();
    [&file, &index].into_iter().for_each(|path| set(path));
    let saved = fix.remove(&path, Force::SaveFirst).unwrap().expect("it was saved");
    assert_eq!(text(&fix.git(&["show", &format!("{}:f", saved.reference)])), "2");
}

#[test]
fn a_branch_is_deleted_only_if_it_is_merged_and_not_checked_out() {
    let fix = Fixture::new();
    let git = |args: &[&str]| text(&fix.at(&fix.repo, args));
    for (name, file) in [("landed", "l"), ("open", "o"), ("held", "l")] {
        git(&["checkout", "-q", "-b", name, "main"]);
        fs::write(fix.repo.join(file), name).unwrap();
        git(&["add", "."]);
        git(&["commit", "-q", "-m", name]);
    }
    git(&["checkout", "-q", "main"]);
    git(&["merge", "-q", "--no-ff", "-m", "m", "landed"]);
    git(&["merge", "-q", "-s", "ours", "-m", "m", "held"]);
    let tree = fix.root.join("held");
    git(&["worktree", "add", "-q", tree.to_str().unwrap(), "held"]);
    git(&["branch", "again", "landed"]);
    let by_library = |branch: &str| crate::repository::remove_landed_branch(&fix.repo, branch, "main", &fix.caller);
    // The fallback for repositories that libgit2 cannot read.
    let by_command = |branch: &str| {
        crate::repository::query::drop_by_command(&fix.repo, branch, "main", &fix.caller).map(|done| done.is_deleted)
    };
    assert_eq!((by_library("open"), by_library("held"), by_library("none")), (Ok(false), Ok(false), Ok(false)));
    assert_eq!((by_command("open"), by_command("held"), by_command("none")), (Ok(false), Ok(false), Ok(false)));
    assert_eq!((by_library("landed"), by_command("again")), (Ok(true), Ok(true)));
    let base = crate::repository::remove_landed_branch(&fix.repo, "open", "open", &fix.caller);
    assert_eq!(base, Ok(false), "a base contains itself");
    assert_eq!(git(&["for-each-ref", "--format=%(refname:short)", "refs/heads"]), "held\nmain\nopen");
}

#[test]
fn a_torn_entry_of_another_worktree_keeps_nobody_from_creating_one() {
    let fix = Fixture::new();
    fix.made("torn");
    let commondir = fix.repo.join(".git/worktrees/torn/commondir");
    fs::write(&commondir, "").unwrap();
    assert!(fix.make(&fix.plan("w")).is_err(), "git creates none, and the file may be one that is being written");
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(&commondir).unwrap().set_modified(long_ago).unwrap();
    fix.made("w");
    assert_eq!(fs::read_to_string(&commondir).unwrap(), "../..\n");
}
