//! Merges of roles compared with those of git.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::{MergeOutcome, RoleTree, commit_work, merge_handoff};
use crate::fixture::{Fixture, text};
use crate::landing::tests_index::swap;

/// Commits the changes of a script in a new worktree, which starts from `from`.
fn committed(fix: &Fixture, name: &str, from: &str, script: &str) -> PathBuf {
    let dir = fix.root.join(name);
    fix.git(&["worktree", "add", "-q", "-b", name, dir.to_str().unwrap(), from]);
    let script = format!("{script}\ngit add -A; git commit -q --allow-empty -m {name}");
    let mut shell = Command::new("sh");
    shell.args(["-ec", &script]).current_dir(&dir).env_clear().envs(fix.caller.environment.iter().cloned());
    assert!(shell.status().unwrap().success(), "{name}");
    dir
}

/// Returns index, status, and the content of all files.
fn state(fix: &Fixture, dir: &Path) -> String {
    let git = |args: &[&str]| text(&fix.at(dir, args));
    let listed = git(&["ls-files", "-s", "-t"]) + "\n" + &git(&["status", "--porcelain=v2", "--untracked-files=all"]);
    let content = Command::new("sh")
        .args(["-c", "find . -path ./.git -o -type l -exec readlink {} + -o -type f -exec grep -a '' {} + | sort"])
        .current_dir(dir)
        .output()
        .unwrap();
    listed + "\n" + &text(&content.stdout)
}

const BASE: &str =
    "printf '%s\\n' 1 2 3 4 5 6 7 8 9 > f; cp f gone; cp f d; cp f moved; printf 'a\\0' > logo; ln -s f link
    mkdir dir; for i in 1 2 3 4; do seq $i 20 > dir/$i; done; echo a > list.u; echo '*.u merge=union' > .gitattributes";

#[test]
fn a_merge_leaves_what_git_leaves() {
    let cases = [
        ("clean", "echo dev > new; sed -i s/9/dev/ f", "sed -i s/1/qa/ f; git mv moved to"),
        ("text", "sed -i s/5/dev/ f; echo dev > new", "sed -i s/5/qa/ f"),
        ("deleted", "git rm -q gone", "sed -i s/5/qa/ gone"),
        ("deleted here", "sed -i s/5/dev/ gone", "git rm -q gone"),
        ("added twice", "echo dev > new", "echo qa > new"),
        ("a directory", "git rm -q d; mkdir d; echo dev > d/x", "sed -i s/5/qa/ d"),
        ("a directory here", "sed -i s/5/dev/ d", "git rm -q d; mkdir d; echo qa > d/x"),
        ("renamed twice", "git mv moved dev", "git mv moved qa"),
        ("renamed", "git mv moved dev; sed -i s/5/dev/ dev", "sed -i s/5/qa/ moved"),
        ("a directory that was split", "git mv dir one; mkdir two; git mv one/3 one/4 two", "echo new > dir/new"),
        ("binary", "printf 'dev\\0' > logo", "printf 'qa\\0' > logo"),
        ("a link", "ln -sf gone link", "ln -sf d link"),
        ("an attribute", "echo dev >> list.u", "echo qa >> list.u"),
        ("a mode", "chmod +x f; sed -i s/5/dev/ f", "sed -i s/5/qa/ f"),
    ];
    let fix = Fixture::new();
    committed(&fix, "base", "main", BASE);
    fix.git(&["config", "merge.conflictStyle", "diff3"]);
    for (number, (case, theirs, ours)) in cases.into_iter().enumerate() {
        let dev = committed(&fix, &format!("dev{number}"), "base", theirs);
        let commit = text(&fix.at(&dev, &["rev-parse", "HEAD"]));
        let [role, by_hand] = ["role", "hand"].map(|name| committed(&fix, &format!("{name}{number}"), "base", ours));
        let branch = role.file_name().unwrap().to_str().unwrap();
        let outcome = merge_handoff(RoleTree { dir: &role, base_repo: &fix.repo, branch }, &commit, "dev", &fix.caller);
        let is_clean = fix.attempt(&by_hand, &["merge", "-q", "-m", "m", &commit]).0;
        assert_eq!(outcome.unwrap() == MergeOutcome::Merged, is_clean, "{case}");
        assert_eq!(state(&fix, &role), state(&fix, &by_hand), "{case}");
        let parents = |dir: &Path| {
            let head = fix.attempt(dir, &["rev-parse", "-q", "--verify", "MERGE_HEAD"]);
            (head, text(&fix.at(dir, &["log", "-1", "--format=%p"])).split(' ').count())
        };
        assert_eq!(parents(&role), parents(&by_hand), "{case}");
    }
}

#[test]
fn conflicts_outside_of_a_sparse_worktree_are_written() {
    let fix = Fixture::new();
    let set = "git sparse-checkout set --cone other; git config core.sparseCheckout";
    committed(&fix, "base", "main", "mkdir d other; echo 1 > d/f; echo 1 > d/kept");
    let dev = committed(&fix, "dev", "base", "echo dev > d/f");
    let commit = text(&fix.at(&dev, &["rev-parse", "HEAD"]));
    let role = committed(&fix, "role", "base", &format!("echo qa > d/f; git commit -qam qa; {set}"));
    assert!(!role.join("d/f").exists());
    let tree = RoleTree { dir: &role, base_repo: &fix.repo, branch: "role" };
    let outcome = merge_handoff(tree, &commit, "dev", &fix.caller).unwrap();
    assert_eq!(outcome, MergeOutcome::Conflict(vec!["d/f".to_owned()]));
    assert!(fs::read_to_string(role.join("d/f")).unwrap().contains("<<<<<<< HEAD\nqa\n"));
    assert!(!role.join("d/kept").exists());
}

#[test]
fn a_merge_that_fails_in_the_middle_is_rolled_back() {
    let fix = Fixture::new();
    committed(&fix, "base", "main", BASE);
    let dev = committed(&fix, "dev", "base", "sed -i s/5/dev/ f; echo dev > new");
    let commit = text(&fix.at(&dev, &["rev-parse", "HEAD"]));
    let role = committed(&fix, "role", "base", "sed -i s/5/qa/ f");
    let before = state(&fix, &role);
    let tree = RoleTree { dir: &role, base_repo: &fix.repo, branch: "role" };
    let caller = fix.with_stub_of("ls-files -v", "echo no >&2; exit 1");
    assert_eq!(merge_handoff(tree, &commit, "dev", &caller).unwrap_err().cause, "no");
    assert_eq!(state(&fix, &role), before);
    let outcome = merge_handoff(tree, &commit, "dev", &fix.caller).unwrap();
    assert_eq!(outcome, MergeOutcome::Conflict(vec!["f".to_owned()]));
}

#[test]
fn objects_that_a_partial_clone_lacks_are_fetched() {
    let fix = Fixture::new();
    committed(&fix, "base", "main", BASE);
    let dev = committed(&fix, "dev", "base", "sed -i s/1/dev/ f");
    committed(&fix, "qa", "base", "sed -i s/9/qa/ f");
    fix.git(&["config", "uploadpack.allowFilter", "true"]);
    let (url, clone) = (format!("file://{}", fix.repo.display()), fix.root.join("clone"));
    fix.git(&["clone", "-q", "--filter=blob:none", "-b", "main", &url, clone.to_str().unwrap()]);
    let role = fix.root.join("role");
    fix.at(&clone, &["worktree", "add", "-q", "-b", "role", role.to_str().unwrap(), "origin/qa"]);
    let commit = text(&fix.at(&dev, &["rev-parse", "HEAD"]));
    let tree = RoleTree { dir: &role, base_repo: &clone, branch: "role" };
    assert_eq!(merge_handoff(tree, &commit, "dev", &fix.caller).unwrap(), MergeOutcome::Merged);
    assert_eq!(fs::read_to_string(role.join("f")).unwrap(), "dev\n2\n3\n4\n5\n6\n7\n8\nqa\n");
}

#[test]
fn commits_of_a_role_are_in_the_logs_of_its_branch_and_of_head() {
    let fix = Fixture::new();
    let dev = committed(&fix, "dev", "main", "echo dev > f");
    let commit = text(&fix.at(&dev, &["rev-parse", "HEAD"]));
    let role = committed(&fix, "role", "main", "echo qa > f");
    let tree = RoleTree { dir: &role, base_repo: &fix.repo, branch: "role" };
    let last = |name: &str| text(&fix.at(&role, &["log", "-1", "-g", "--format=%gs %H", name]));
    let head = || text(&fix.at(&role, &["rev-parse", "HEAD"]));
    assert!(matches!(merge_handoff(tree, &commit, "dev", &fix.caller), Ok(MergeOutcome::Conflict(_))));
    fs::write(role.join("f"), "both\n").unwrap();
    commit_work(tree, "both\n\nmore", &fix.caller).unwrap();
    assert_eq!([last("HEAD"), last("role")], [(); 2].map(|()| format!("commit (merge): both {}", head())));
    assert_eq!(
        text(&fix.at(&role, &["log", "-1", "--format=%B|%P"])).split('|').next_back(),
        Some(&*format!("{} {commit}", text(&fix.at(&role, &["rev-parse", "HEAD^1"]))))
    );
    assert!(!fix.attempt(&role, &["rev-parse", "-q", "--verify", "MERGE_HEAD"]).0);
    let next = committed(&fix, "next", "role", "echo next > n");
    let next = text(&fix.at(&next, &["rev-parse", "HEAD"]));
    assert_eq!(merge_handoff(tree, &next, "dev", &fix.caller), Ok(MergeOutcome::Merged));
    assert_eq!((last("role"), head()), (format!("merge {next} {next}"), next));
    fix.at(&role, &["checkout", "-q", "--detach"]);
    fs::write(role.join("f"), "detached\n").unwrap();
    commit_work(tree, "detached", &fix.caller).unwrap();
    assert_eq!(last("HEAD"), format!("commit: detached {}", head()));
    assert_eq!(text(&fix.at(&role, &["status", "--porcelain"])), "");
}

#[test]
fn git_writes_nothing_through_a_link_in_place_of_the_index() {
    for by_worktree in ["false", "true"] {
        for words in ["update-index", "read-tree", "add", "write-tree"] {
            let fix = Fixture::new();
            fix.git(&["config", "extensions.worktreeConfig", by_worktree]);
            let qa = committed(&fix, "qa", "main", "echo qa > f; echo qa > of-qa");
            let dev = committed(&fix, "dev", "main", "echo dev > of-dev");
            let commit = text(&fix.at(&qa, &["rev-parse", "HEAD"]));
            fs::write(dev.join("of-dev"), "more\n").unwrap();
            fs::write(dev.join("new"), "new\n").unwrap();
            let victim = fix.root.join("victim");
            let caller = fix.with_stub_of(words, &swap(&fix.repo.join(".git/worktrees/dev"), &victim));
            let tree = RoleTree { dir: &dev, base_repo: &fix.repo, branch: "dev" };
            let done = commit_work(tree, "work", &caller).and_then(|_| merge_handoff(tree, &commit, "qa", &caller));
            assert!(!victim.exists(), "{words}: {done:?}");
        }
    }
}
