//! Removal of worktrees with directories in which nothing can be deleted, without the privileges of root.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use rustix::thread::{CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities};
use swarm_ports::{Force, WorktreeError};

use super::{admin, remove};
use crate::fixture::Fixture;

/// Returns what `work` returns in a thread without the capabilities that make root ignore permissions. Programs that it
/// starts lack them, too.
fn as_ordinary_user<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let dropped = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH | CapabilitySet::FOWNER;
    std::thread::scope(|scope| {
        let run = scope.spawn(move || {
            if rustix::process::geteuid().is_root() {
                for one in dropped.iter() {
                    remove_capability_from_bounding_set(one).unwrap();
                }
                let mut sets = capabilities(None).unwrap();
                sets.effective &= !dropped;
                sets.permitted &= !dropped;
                set_capabilities(None, sets).unwrap();
            }
            work()
        });
        run.join().unwrap()
    })
}

/// Returns a worktree with an ignored directory that has a file and is write-protected, and this directory.
fn with_module_cache() -> (Fixture, PathBuf, PathBuf) {
    let fix = Fixture::new();
    fix.commit("ignore", ".gitignore", "ignored\n.go/\n");
    let (_, tree) = fix.made("w");
    let cache = tree.join(".go/pkg/m@v1");
    fs::create_dir_all(cache.join("inner")).unwrap();
    for dir in [cache.join("inner"), cache.clone()] {
        fs::write(dir.join("go.mod"), "module m\n").unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o555)).unwrap();
    }
    (fix, tree, cache)
}

fn removed(fix: &Fixture, tree: &Path) -> Result<(), WorktreeError> {
    as_ordinary_user(|| remove::remove(&fix.cli(), "w", tree, &fix.repo, Force::No, None, &|| Ok(())).map(drop))
}

#[test]
fn a_worktree_with_write_protected_directories_is_removed() {
    let (fix, tree, _) = with_module_cache();
    assert_eq!(removed(&fix, &tree), Ok(()));
    assert!(!tree.exists() && !fix.repo.join(".git/worktrees").exists());
}

#[test]
fn a_directory_of_another_user_is_found_before_anything_is_deleted() {
    if !rustix::process::geteuid().is_root() {
        // Only root can give a directory away.
        return;
    }
    let (fix, tree, cache) = with_module_cache();
    chown(&cache, Some(65534), Some(65534)).unwrap();
    let Err(WorktreeError::Tool(cause)) = removed(&fix, &tree) else { panic!("removed") };
    assert!(cause.contains("m@v1 belongs to another user") && cause.contains("then run the command again"), "{cause}");
    assert!(tree.join("f").exists() && tree.join(".git").exists() && cache.join("inner/go.mod").exists());
    assert!(!fix.repo.join(".git/worktrees/w/swarm-removing").exists());
    chown(&cache, Some(0), Some(0)).unwrap();
    assert_eq!(removed(&fix, &tree), Ok(()));
    assert!(!tree.exists() && !fix.repo.join(".git/worktrees").exists());
}

/// Runs `work` in a thread for which a directory with a file is mounted at `to`. Returns that file, or `None` if this
/// process may not mount anything.
fn with_mount<T: Send>(fix: &Fixture, to: &Path, work: impl FnOnce() -> T + Send) -> Option<(PathBuf, T)> {
    let mine = fix.root.join("mine");
    fs::create_dir_all(&mine).unwrap();
    fs::create_dir_all(to).unwrap();
    fs::write(mine.join("thesis"), "my only copy").unwrap();
    let run = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).ok()?;
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(Some(&mine), to, none, MsFlags::MS_BIND, none).unwrap();
        Some(work())
    };
    let done = std::thread::scope(|scope| scope.spawn(run).join().unwrap());
    assert!(done.is_some() || !rustix::process::geteuid().is_root());
    Some((mine.join("thesis"), done?))
}

#[test]
fn a_worktree_in_which_a_file_system_is_mounted_stays() {
    let fix = Fixture::new();
    fix.commit("ignore", ".gitignore", "data/\n");
    let (_, tree) = fix.made("w");
    let data = tree.join("data/a b");
    for force in [Force::No, Force::SaveFirst] {
        let remove = || remove::remove(&fix.cli(), "w", &tree, &fix.repo, force, None, &|| Ok(())).map(drop);
        let Some((file, refused)) = with_mount(&fix, &data, remove) else { return };
        let why =
            format!("a file system is mounted at {0} (run 'umount {0}', then run the command again)", data.display());
        assert_eq!(refused, Err(WorktreeError::Unknown(why)));
        assert_eq!(fs::read_to_string(&file).unwrap(), "my only copy");
        assert!(tree.join("f").exists() && !fix.repo.join(".git/worktrees/w/swarm-removing").exists());
        let Some((_, all)) = with_mount(&fix, &data, || admin::remove_all(&tree)) else { return };
        assert!(all.unwrap_err().to_string().starts_with("a file system is mounted at ") && file.exists());
    }
    assert_eq!(removed(&fix, &tree), Ok(()));
}

#[test]
fn work_in_a_directory_that_git_cannot_read_is_not_removed() {
    for (mode, is_tracked) in [(0o300, false), (0, false), (0, true)] {
        let fix = Fixture::new();
        fs::create_dir(fix.repo.join("notes")).unwrap();
        fix.commit("notes", "notes/old", "old");
        let (_, tree) = fix.made("w");
        let notes = if is_tracked { tree.join("notes") } else { tree.join("new") };
        let permit = |mode| fs::set_permissions(&notes, fs::Permissions::from_mode(mode)).unwrap();
        fs::create_dir_all(&notes).unwrap();
        fs::write(notes.join("old"), "work").unwrap();
        permit(mode);
        for force in [Force::No, Force::SaveFirst] {
            let done = as_ordinary_user(|| remove::remove(&fix.cli(), "w", &tree, &fix.repo, force, None, &|| Ok(())));
            let Err(WorktreeError::Unknown(cause)) = done else { panic!("{done:?}") };
            assert!(cause.starts_with("git cannot see all files: ") && cause.contains("chmod u+rwx"), "{cause}");
        }
        permit(0o700);
        assert_eq!(fs::read_to_string(notes.join("old")).unwrap(), "work");
        let saved = remove::remove(&fix.cli(), "w", &tree, &fix.repo, Force::SaveFirst, None, &|| Ok(())).unwrap();
        assert!(saved.is_some() && !tree.exists());
    }
}

#[test]
fn a_worktree_that_somebody_begins_to_use_during_the_removal_stays() {
    let fix = Fixture::new();
    let (_, tree) = fix.made("w");
    let used = || Err(WorktreeError::Used("b".to_owned()));
    let removed = remove::remove(&fix.cli(), "w", &tree, &fix.repo, Force::No, None, &used);
    assert_eq!(removed, Err(WorktreeError::Used("b".to_owned())));
    fs::write(tree.join("work"), "").unwrap();
    let removed = remove::remove(&fix.cli(), "w", &tree, &fix.repo, Force::SaveFirst, None, &used);
    assert_eq!(removed, Err(WorktreeError::Used("b".to_owned())));
    assert!(tree.join("work").exists());
}
