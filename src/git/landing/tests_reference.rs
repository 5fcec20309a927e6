//! Moving the base's ref in-process and with git has the same effects.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use super::reference::{DirectUpdate, GitUpdate, Move, RefUpdate};
use super::tests_checkout::Site;
use crate::fixture::text;
use crate::landing::workspace::Workspace;

fn directly(workspace: &Workspace) -> RefUpdate<'_> {
    RefUpdate::Direct(DirectUpdate::start(workspace).unwrap().expect("references are files"))
}

fn by_git(workspace: &Workspace) -> RefUpdate<'_> {
    RefUpdate::Git(GitUpdate::start(workspace).unwrap())
}

/// Returns a repository, its base, and a commit to which the base can move.
async fn site() -> (Site, Workspace, String, String) {
    let site = Site::new();
    site.branch("next", "echo next > next");
    site.item("next").await;
    let workspace = site.workspace();
    let id = |name: &str| text(&site.fix.git(&["rev-parse", name]));
    let (from, to) = (id("main"), id("next"));
    (site, workspace, from, to)
}

fn lock(site: &Site) -> PathBuf {
    site.fix.repo.join(".git/refs/heads/main.lock")
}

#[tokio::test]
async fn both_updates_move_the_ref_and_write_the_same_reflog() {
    let mut told = Vec::new();
    for (is_ours, start) in [(true, directly as for<'a> fn(&'a Workspace) -> RefUpdate<'a>), (false, by_git)] {
        for packed in [false, true] {
            let (site, workspace, from, to) = site().await;
            if packed {
                site.fix.git(&["pack-refs", "--all", "--prune"]);
                // Empty directories, as a deleted branch below that name leaves them.
                fs::create_dir_all(site.fix.repo.join(".git/refs/heads/main/below")).unwrap();
            }
            let readers = fs::Permissions::from_mode(0o640);
            fs::set_permissions(site.fix.repo.join(".git/HEAD"), readers.clone()).unwrap();
            if !packed {
                fs::set_permissions(site.fix.repo.join(".git/refs/heads/main"), readers.clone()).unwrap();
            }
            let to_move = Move { branch: "refs/heads/main", from: &from, to: &to };
            let mut update = start(&workspace);
            update.prepare(to_move).unwrap();
            assert_eq!(text(&site.fix.git(&["rev-parse", "main"])), from, "not before the commit");
            update.commit(to_move).unwrap();
            assert_eq!(text(&site.fix.git(&["rev-parse", "main"])), to);
            let mode = fs::metadata(site.fix.repo.join(".git/refs/heads/main")).unwrap().permissions().mode();
            // git creates the file with the umask of its process.
            assert!(!is_ours || mode & 0o777 == 0o640, "{mode:o}");
            assert!(!lock(&site).exists() && !site.fix.repo.join(".git/HEAD.lock").exists());
            site.fix.git(&["fsck", "--strict"]);
            let last = |name| text(&site.fix.git(&["log", "-1", "-g", "--format=%gs %gn %ge", name]));
            told.push((last("main"), last("HEAD")));
        }
    }
    let first = told[0].clone();
    assert!(first.0.starts_with("swarm: landed "), "{first:?}");
    assert!(told.iter().all(|one| *one == first), "{told:?}");
}

#[tokio::test]
async fn a_ref_that_moved_or_was_not_committed_stays() {
    for start in [directly as for<'a> fn(&'a Workspace) -> RefUpdate<'a>, by_git] {
        let (site, workspace, from, to) = site().await;
        let mut update = start(&workspace);
        update.prepare(Move { branch: "refs/heads/main", from: &from, to: &to }).unwrap();
        assert!(lock(&site).exists());
        let (moved, _) = site.fix.attempt(&site.fix.repo, &["update-ref", "refs/heads/main", &to]);
        assert!(!moved, "another git respects the lock");
        let (switched, _) = site.fix.attempt(&site.fix.repo, &["switch", "-q", "-c", "elsewhere"]);
        assert!(!switched, "nobody leaves the base while files are brought along");
        drop(update);
        assert!(!lock(&site).exists());
        let refused = start(&workspace).prepare(Move { branch: "refs/heads/main", from: &to, to: &from });
        assert!(refused.unwrap_err().cause.starts_with("cannot move the base: "));
        assert!(!lock(&site).exists());
        assert_eq!(text(&site.fix.git(&["rev-parse", "main"])), from);
    }
}

#[tokio::test]
async fn a_lock_of_another_git_is_waited_for() {
    let (site, workspace, from, to) = site().await;
    fs::write(lock(&site), "").unwrap();
    let to_move = Move { branch: "refs/heads/main", from: &from, to: &to };
    let mut update = directly(&workspace);
    std::thread::scope(|scope| {
        // The lock is obtained whether the file is removed before or after the first attempt.
        let held = lock(&site);
        scope.spawn(move || fs::remove_file(held).unwrap());
        update.prepare(to_move).unwrap();
    });
    update.commit(to_move).unwrap();
    assert_eq!(text(&site.fix.git(&["rev-parse", "main"])), to);
}

/// Returns a site whose repository was initialized with `option`.
fn site_of(option: &str) -> Site {
    let site = Site::new();
    fs::remove_dir_all(site.fix.repo.join(".git")).unwrap();
    site.fix.git(&["init", "-q", "-b", "main", option]);
    site.fix.commit("again", "f", "1\n");
    site
}

#[tokio::test]
async fn a_log_that_is_replaced_meanwhile_is_neither_followed_nor_waited_for() {
    for option in ["--quiet", "--shared=group", "--object-format=sha256", "symbolic"] {
        for is_pipe in [false, true] {
            let site = site_of(if option == "symbolic" { "--quiet" } else { option });
            site.branch("next", "echo next > next");
            site.item("next").await;
            let (workspace, from, to) = (site.workspace(), site.tip("main"), site.tip("next"));
            let common = site.fix.repo.join(".git");
            if option == "symbolic" {
                site.fix.git(&["branch", "trunk", "main"]);
                site.fix.git(&["symbolic-ref", "refs/heads/main", "refs/heads/trunk"]);
            }
            site.fix.git(&["pack-refs", "--all", "--prune"]);
            let to_move = Move { branch: "refs/heads/main", from: &from, to: &to };
            let mut update = RefUpdate::start(&workspace).unwrap();
            assert!(matches!(update, RefUpdate::Direct(_)), "{option}");
            update.prepare(to_move).unwrap();
            let victim = site.fix.root.join("victim");
            fs::write(&victim, "of a person\n").unwrap();
            for name in ["main", "trunk"] {
                let log = common.join("logs/refs/heads").join(name);
                let _ = fs::remove_file(&log);
                match is_pipe {
                    true => nix::unistd::mkfifo(&log, nix::sys::stat::Mode::S_IRWXU).unwrap(),
                    false => std::os::unix::fs::symlink(&victim, &log).unwrap(),
                }
            }
            update.commit(to_move).unwrap();
            assert_eq!((site.tip("main"), fs::read_to_string(&victim).unwrap()), (to, "of a person\n".to_owned()));
            let moved = if option == "symbolic" { "trunk" } else { "main" };
            let mode = fs::metadata(common.join("refs/heads").join(moved)).unwrap().permissions().mode();
            let expected = if option.starts_with("--shared") { 0o664 } else { 0o644 };
            assert_eq!(mode & 0o777, expected, "{option}: {mode:o}");
            if option == "symbolic" {
                assert_eq!(text(&site.fix.git(&["symbolic-ref", "refs/heads/main"])), "refs/heads/trunk");
            }
            assert!(!lock(&site).exists() && !common.join("HEAD.lock").exists());
        }
    }
}

#[tokio::test]
async fn a_git_that_does_not_answer_is_ended() {
    let (site, workspace, from, to) = site().await;
    let log = site.fix.repo.join(".git/logs/refs/heads/main");
    fs::remove_file(&log).unwrap();
    nix::unistd::mkfifo(&log, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let to_move = Move { branch: "refs/heads/main", from: &from, to: &to };
    let limit = Duration::from_secs(1);
    let started = || RefUpdate::Git(GitUpdate::start_within(&workspace, limit).unwrap());
    let mut update = started();
    update.prepare(to_move).unwrap();
    let fault = update.commit(to_move).unwrap_err();
    assert_eq!((fault.cause.as_str(), fault.killed), ("cannot move the base: git did not answer 'commit'", true));
    assert_eq!(site.tip("main"), from);
}

#[tokio::test]
async fn a_symbolic_base_moves_what_it_leads_to_with_the_logs_of_both() {
    let (site, workspace, from, to) = site().await;
    site.fix.git(&["branch", "trunk", "main"]);
    site.fix.git(&["symbolic-ref", "refs/heads/main", "refs/heads/trunk"]);
    let to_move = Move { branch: "refs/heads/main", from: &from, to: &to };
    let mut update = directly(&workspace);
    update.prepare(to_move).unwrap();
    assert!(site.fix.repo.join(".git/refs/heads/trunk.lock").exists());
    update.commit(to_move).unwrap();
    assert_eq!((site.tip("main"), site.tip("trunk")), (to.clone(), to));
    for name in ["HEAD", "refs/heads/main", "refs/heads/trunk"] {
        let log = fs::read_to_string(site.fix.repo.join(".git/logs").join(name)).unwrap();
        assert!(log.ends_with("\tswarm: landed\n"), "{name}: {log}");
    }
    // The two references lead to each other.
    site.fix.git(&["symbolic-ref", "refs/heads/trunk", "refs/heads/main"]);
    let fault = DirectUpdate::start(&workspace).err().expect("refused");
    assert!(fault.cause.ends_with("is a symbolic reference that leads to no branch"), "{fault}");
}
