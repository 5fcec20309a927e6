use std::os::unix::fs::symlink;

use swarm_ports::Worktrees as _;

use super::*;
use crate::Git;
use crate::clones::make_clone;
use crate::fixture::{Fixture, block, text};
use crate::trash::save::save;
use crate::worktrees::identity;
use crate::worktrees::topic::{Objects, snapshot};

fn write(path: &Path, content: &[u8]) {
    fs::create_dir_all(path.parent().expect("a parent")).expect("made");
    fs::write(path, content).expect("written");
}

fn file(path: &str, mode: u32) -> File {
    File { path: path.to_owned(), mode, content: path.as_bytes().to_vec() }
}

#[test]
fn the_files_that_go_are_those_that_a_worktree_here_gets() {
    let fix = Fixture::new();
    assert_eq!(names(&fix.repo, &fix.caller), Ok(Vec::new()));
    fix.commit("ignore", ".gitignore", ".env*\n*.local\n/.worktreeinclude\n");
    write(&fix.repo.join(".worktreeinclude"), b".env\nuntracked\n.worktreeinclude\nlink.local\n");
    write(&fix.repo.join("swarm.toml"), b"[worktree]\ninclude = ['a/*.local']\n");
    write(&fix.repo.join(".env"), b"SECRET=\xff\n");
    write(&fix.repo.join("a/b.local"), b"b");
    for other in [".env.other", "untracked", "c.local", ".agent/d.local"] {
        write(&fix.repo.join(other), b"x");
    }
    symlink("/etc/passwd", fix.repo.join("link.local")).expect("linked");
    fs::set_permissions(fix.repo.join(".env"), Permissions::from_mode(0o600)).expect("set");
    assert_eq!(names(&fix.repo, &fix.caller), Ok(vec![".env".to_owned(), "a/b.local".to_owned()]));
    let files = read(&fix.repo, &fix.caller).expect("read");
    assert_eq!((files[0].mode, files[0].content.as_slice()), (0o600, b"SECRET=\xff\n".as_slice()));
    assert_eq!(files.len(), 2);
    fs::File::create(fix.repo.join("a/big.local")).expect("made").set_len(BYTES_MAX).expect("set");
    let cause = "3 ignored files of 17 MiB would go to other hosts, more than 1000 or 16 MiB";
    assert_eq!(names(&fix.repo, &fix.caller), Err(cause.to_owned()));
}

#[test]
fn a_worktree_of_the_clone_gets_them_and_no_commit_contains_them() {
    let mut fix = Fixture::new();
    let clone = fix.root.join("clone");
    make_clone(&clone, "sha1", &fix.caller).expect("made");
    // The work there ignores nothing, and one file is its own.
    fs::create_dir(fix.repo.join("conf")).expect("made");
    fix.commit("tracked", "conf/own.local", "own\n");
    fix.at(&clone, &["fetch", "-q", fix.repo.to_str().expect("text"), "main:main"]);
    let files = [file(".env", 0o600), file("conf/deep/x.local", 0o640), file("conf/own.local", 0o600)];
    put(&clone, &[file("old", 0o600)]).expect("put");
    put(&clone, &files).expect("put");
    assert!(!clone.join("old").exists());
    fix.caller.cwd = clone.display().to_string();
    let asked = swarm_model::WorktreeRequest {
        cwd: clone.display().to_string(),
        branch: Some("w".into()),
        base: Some("refs/heads/main".into()),
        ..swarm_model::WorktreeRequest::default()
    };
    let git = Git::new();
    let plan = block(git.plan("w", &asked, &fix.caller)).expect("planned");
    block(git.make(&plan, &fix.caller)).expect("made");
    clear(&clone).expect("cleared");
    assert_eq!(list(&clone).expect("listed").len(), 1, "only .git is left");
    let tree = Path::new(&plan.path);
    let mode = |name: &str| fs::metadata(tree.join(name)).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(".env"), mode("conf/deep/x.local")), (0o600, 0o640));
    assert_eq!(fs::read(tree.join("conf/own.local")).expect("read"), b"own\n", "what is tracked stays");
    assert_eq!(text(&fix.at(tree, &["status", "--porcelain"])), "");

    // The agent brings a file of rules that names them again, and changes one.
    write(&tree.join(".gitignore"), b"!.env\n!*.local\n");
    write(&tree.join(".env"), b"changed");
    assert_eq!(text(&fix.at(tree, &["status", "--porcelain", "-uall"])).lines().count(), 3);
    let cli = Cli::new(&fix.caller).expect("git");
    let place = identity::open(&cli, tree, &clone).expect("read").expect("there");
    let seen = snapshot(&cli, &place, Objects::Keep).expect("taken");
    let made = seen.tree.expect("a tree");
    assert_eq!(text(&fix.at(tree, &["ls-tree", "-r", "--name-only", &made])), ".gitignore\nconf/own.local\nf");
    assert_eq!(seen.left_out, [".env", "conf/deep/x.local"]);
    // Nor does a save, whatever the rules there say.
    for rules in [Some(b"!.env\n!*.local\n"), None] {
        match rules {
            Some(rules) => write(&tree.join(".gitignore"), rules),
            None => fs::remove_file(tree.join(".gitignore")).expect("removed"),
        }
        write(&tree.join("work"), b"work");
        let saved = save(&cli, &place, "w").expect("saved");
        let listed = text(&fix.at(tree, &["ls-tree", "-r", "--name-only", &saved.commit]));
        assert!(listed.contains("work") && !listed.contains(".env") && !listed.contains("x.local"), "{listed}");
        fs::remove_file(tree.join("work")).expect("removed");
    }
    // A copy of which only this worktree has a change is no work.
    let changed = crate::worktrees::copies::changed(tree, &place.git_dir);
    assert_eq!(changed, [b""; 0]);
}

#[test]
fn a_path_that_leads_elsewhere_is_refused() {
    let fix = Fixture::new();
    let clone = fix.root.join("clone");
    make_clone(&clone, "sha1", &fix.caller).expect("made");
    for odd in
        ["", "/etc/x", "../x", "a/../x", "a//b", "./a", "a/", ".git/config", "a/.GIT/x", ".worktreeinclude", "a\0"]
    {
        let failure = put(&clone, &[file("fine", 0o600), file(odd, 0o600)]).expect_err(odd);
        assert!(!failure.passes, "{odd}");
    }
    put(&clone, &[file("a", 0o600), file("a/b", 0o600)]).expect_err("a file is no directory");
    put(&clone, &[file("a", 0o600), file("a", 0o600)]).expect_err("twice");
    put(&clone, &[]).expect("nothing");
    assert_eq!(list(&clone).expect("listed").len(), 1);
}
