//! A directory of the queue's own with a commit checked out, detached. It stays,
//! so that the next verification finds what the last one built.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::desk::Desk;
use super::run;
use crate::adapters::git::fault::Fault;
use crate::adapters::git::{admin, lock};

/// Brings the scratch directory `name` to `commit`: tracked files as in it, and
/// untracked ones gone but for those that git ignores.
pub(super) fn prepare(desk: &Desk, name: &str, commit: &str) -> Result<PathBuf, Fault> {
    let dir = desk.own.join(name);
    if dir.exists() {
        run::end_leftovers(&dir)?;
    }
    let is_ours = admin::link_of(&dir).ok().flatten().is_some_and(|entry| entry.join("HEAD").exists());
    if !is_ours {
        make(desk, &dir, commit)?;
    }
    // Only a git of ours works here, and none does now.
    if let Ok(Some(entry)) = admin::link_of(&dir) {
        let files = fs::read_dir(&entry).into_iter().flatten().flatten().map(|file| file.path());
        for lock in files.filter(|path| path.extension().is_some_and(|end| end == "lock")) {
            let _ = fs::remove_file(lock);
        }
    }
    desk.write_at(&dir).args(["checkout", "-q", "--force", "--detach", commit]).run()?;
    desk.write_at(&dir).args(["clean", "-ffdq"]).run()?;
    Ok(dir)
}

fn make(desk: &Desk, dir: &Path, commit: &str) -> Result<(), Fault> {
    // Half made, or git's record of it is gone: nothing in it is anybody's work.
    let _lock = lock::acquire(&desk.common, Duration::from_millis(lock::LOCK_WAIT_MS_MAX))?;
    admin::ignore_missing(fs::remove_dir_all(dir)).map_err(Fault::at(dir))?;
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let known = admin::entry_of(&desk.common, dir).map_err(Fault::at(&desk.common))?;
    for entry in known.into_iter().chain(admin::begun(&desk.common, &name)) {
        admin::remove(&entry).map_err(Fault::at(&entry))?;
    }
    let reason = format!("scratch directory of the merge queue of {}", desk.target.base());
    let add = ["worktree", "add", "-q", "-f", "-f", "--detach", "--no-checkout", "--lock", "--reason", &reason, "--"];
    desk.write().args(add).arg(dir).arg(commit).run()?;
    Ok(())
}

/// Removes it with git's record of it.
pub(super) fn remove(desk: &Desk, name: &str) -> Result<(), Fault> {
    let dir = desk.own.join(name);
    if !dir.exists() {
        return Ok(());
    }
    run::end_leftovers(&dir)?;
    if desk.write().args(["worktree", "remove", "-f", "-f", "--"]).arg(&dir).run().is_err() {
        admin::ignore_missing(fs::remove_dir_all(&dir)).map_err(Fault::at(&dir))?;
    }
    Ok(())
}

/// The files in it that are not as committed, and whether another commit is checked out.
pub(super) fn changed(desk: &Desk, dir: &Path, commit: &str) -> Result<Option<String>, Fault> {
    let head = desk.cli.read(dir).args(["rev-parse", "--verify", "HEAD"]).line()?;
    if head != commit {
        return Ok(Some("it checked out or made another commit".to_owned()));
    }
    let out = desk.cli.read(dir).args(["status", "--porcelain", "-z", "--untracked-files=no"]).run()?;
    let changes = crate::adapters::git::parse::status(&out);
    let named: Vec<_> = changes.iter().take(3).map(|change| String::from_utf8_lossy(&change.path)).collect();
    Ok((!changes.is_empty()).then(|| format!("it changed {} tracked file(s): {}", changes.len(), named.join(", "))))
}
