//! A directory of the queue's own with a commit checked out, detached. It stays,
//! so that the next verification finds what the last one built.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::desk::Desk;
use super::run;
use crate::repository::cli::Call;
use crate::repository::fault::Fault;
use crate::repository::lock;
use crate::worktrees::admin;
use swarm_sys::files::reserve;

/// A scratch directory and git's record of it.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    pub(crate) dir: PathBuf,
    entry: PathBuf,
}

impl Scratch {
    pub(crate) fn read<'a>(&self, desk: &'a Desk) -> Call<'a> {
        Desk::named(desk.cli.read(&self.dir), &self.entry, &self.dir)
    }

    pub(crate) fn write<'a>(&self, desk: &'a Desk) -> Call<'a> {
        Desk::named(desk.write_at(&self.dir).for_user(), &self.entry, &self.dir)
    }
}

/// Brings the scratch directory `name` to `commit`: tracked files as in it, and
/// untracked ones gone but for those that git ignores.
pub(crate) fn prepare(desk: &Desk, name: &str, commit: &str) -> Result<Scratch, Fault> {
    let dir = desk.own.join(name);
    if dir.exists() {
        run::end_leftovers(&dir)?;
    }
    let link = || admin::link_of(&dir).map_err(Fault::at(&dir));
    let entry = match link()?.filter(|entry| is_ours(desk, entry)) {
        Some(entry) => entry,
        None => {
            make(desk, &dir, commit)?;
            let made = link()?.filter(|entry| is_ours(desk, entry));
            made.ok_or_else(|| Fault::new(format!("git made no worktree at {}", dir.display())))?
        }
    };
    // Only a git of ours works here, and none does now.
    let files = fs::read_dir(&entry).into_iter().flatten().flatten().map(|file| file.path());
    for lock in files.filter(|path| path.extension().is_some_and(|end| end == "lock")) {
        let _ = fs::remove_file(lock);
    }
    let scratch = Scratch { dir, entry };
    scratch.write(desk).args(["checkout", "-q", "--force", "--detach", commit]).run()?;
    scratch.write(desk).args(["clean", "-ffdq"]).run()?;
    Ok(scratch)
}

/// Takes away what a command left there: it may have filled the disk on which the
/// queue has its journal. What stays shows at the next [`prepare`].
pub(crate) fn discard(desk: &Desk, scratch: &Scratch, commit: &str) {
    // First what makes room; the other one writes.
    let _ = scratch.write(desk).args(["clean", "-ffdq"]).run();
    let _ = scratch.write(desk).args(["checkout", "-q", "--force", "--detach", commit]).run();
}

/// Where a disk is full, what git ignores goes as well: it can be built again.
pub(crate) fn make_room(desk: &Desk, name: &str) {
    let dir = desk.own.join(name);
    if !reserve::is_short(&desk.own) {
        return;
    }
    if let Ok(Some(entry)) = admin::link_of(&dir)
        && is_ours(desk, &entry)
    {
        let _ = Scratch { dir, entry }.write(desk).args(["clean", "-ffdqx"]).run();
    }
}

/// Whether it is a record of a worktree in this repository: a verification may
/// have written anything into the directory.
fn is_ours(desk: &Desk, entry: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    let above = real(entry).and_then(|entry| entry.parent().map(Path::to_owned));
    above.is_some() && above == real(&desk.common.join("worktrees")) && entry.join("HEAD").exists()
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
pub(crate) fn remove(desk: &Desk, name: &str) -> Result<(), Fault> {
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
pub(crate) fn changed(desk: &Desk, scratch: &Scratch, commit: &str) -> Result<Option<String>, Fault> {
    let head = scratch.read(desk).args(["rev-parse", "--verify", "HEAD"]).line()?;
    if head != commit {
        return Ok(Some("it checked out or made another commit".to_owned()));
    }
    let out = scratch.read(desk).args(["status", "--porcelain", "-z", "--untracked-files=no"]).run()?;
    let changes = crate::repository::parse::status(&out);
    let named: Vec<_> = changes.iter().take(3).map(|change| String::from_utf8_lossy(&change.path)).collect();
    Ok((!changes.is_empty()).then(|| format!("it changed {} tracked file(s): {}", changes.len(), named.join(", "))))
}
