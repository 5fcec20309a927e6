//! Scratch worktrees of a queue: a commit checked out with a detached HEAD. They are kept, so
//! that the next verification finds what the last one built.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{discarded, kept, modules, places, run, unfit};
use crate::landing::workspace::Workspace;
use crate::repository::cli::Call;
use crate::repository::fault::Fault;
use crate::repository::lock;
use crate::repository::markers::Left;
use crate::repository::parse::{self, status};
use crate::worktrees::{admin, record, removable};
use swarm_sys::files::list;
use swarm_sys::files::reserve;

/// Settings of git in a scratch worktree: the whole commit is checked out, even if the base checkout is sparse. The index is one
/// file, and git compares all stat data with it, as [`kept`] needs.
const WHOLE: [&str; 10] = [
    "-c",
    "core.sparseCheckout=false",
    "-c",
    "index.sparse=false",
    "-c",
    "core.splitIndex=false",
    "-c",
    "core.trustCtime=true",
    "-c",
    "core.checkStat=default",
];

/// A scratch worktree and its entry.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    pub(crate) dir: PathBuf,
    pub(crate) entry: PathBuf,
}

impl Scratch {
    pub(crate) fn read<'a>(&self, workspace: &'a Workspace) -> Call<'a> {
        Workspace::named(workspace.cli.read(&self.dir).args(WHOLE), &self.entry, &self.dir)
    }

    pub(crate) fn write<'a>(&self, workspace: &'a Workspace) -> Call<'a> {
        Workspace::named(workspace.write_at(&self.dir).for_user().args(WHOLE), &self.entry, &self.dir)
    }
}

/// What happens to ignored files that an earlier command left in a scratch worktree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftovers {
    /// They stay, because they make the next command faster.
    Keep,
    Delete,
}

/// Prepares the scratch worktree `name` at `commit`: tracked files as in the commit, and no
/// untracked files except ignored ones. If git cannot clean what an earlier command left, the worktree is made anew.
pub(crate) fn prepare(workspace: &Workspace, name: &str, commit: &str, leftovers: Leftovers) -> Result<Scratch, Fault> {
    let dir = workspace.own.join(name);
    if dir.exists() {
        run::end_leftovers(&dir)?;
    }
    if let Some(entry) = recorded(workspace, &dir)? {
        let scratch = Scratch { dir: dir.clone(), entry };
        match reset(workspace, &scratch, commit, leftovers) {
            Err(fault) if !fault.is_tool_failure && unfit::reason(workspace, commit).is_none() => {
                tracing::warn!(cause = %fault.cause, "git cannot clean {}, so it is made anew", dir.display());
            }
            done => return done.map(|()| scratch),
        }
    }
    make(workspace, &dir, commit)?;
    let made = recorded(workspace, &dir)?;
    let entry = made.ok_or_else(|| Fault::new(format!("git created no worktree at {}", dir.display())))?;
    let scratch = Scratch { dir, entry };
    reset(workspace, &scratch, commit, leftovers)?;
    Ok(scratch)
}

/// Checks out a commit in a scratch worktree, and deletes what does not belong to it.
fn reset(workspace: &Workspace, scratch: &Scratch, commit: &str, leftovers: Leftovers) -> Result<(), Fault> {
    removable::check_mounts(&scratch.dir)?;
    remove_locks(&scratch.entry);
    make_whole(workspace, &scratch.entry)?;
    kept::put_back(workspace, scratch)?;
    scratch.write(workspace).in_record().args(["checkout", "-q", "--force", "--detach", commit]).run()?;
    kept::keep(workspace, scratch)?;
    clean(workspace, scratch, leftovers)?;
    places::empty(workspace, scratch)?;
    if scratch.entry.join("modules").exists() { modules::reset(workspace, scratch) } else { Ok(()) }
}

/// Deletes untracked files.
pub(super) fn clean(workspace: &Workspace, scratch: &Scratch, leftovers: Leftovers) -> Result<(), Fault> {
    // git would delete what is mounted below.
    removable::check_mounts(&scratch.dir)?;
    let flags = if leftovers == Leftovers::Keep { "-ffdq" } else { "-ffdqx" };
    Ok(scratch.write(workspace).args(["clean", flags]).run().map(drop)?)
}

/// Removes stale locks in the entry of a scratch worktree or submodule: only our own git processes work there, and none is
/// running now.
pub(super) fn remove_locks(entry: &Path) {
    let files = list(entry).into_iter().flatten().map(|file| file.path());
    for lock in files.filter(|path| path.extension().is_some_and(|end| end == "lock")) {
        let _ = fs::remove_file(lock);
    }
}

/// Makes a worktree whole that git created as sparse as the base checkout.
fn make_whole(workspace: &Workspace, entry: &Path) -> Result<(), Fault> {
    let patterns = entry.join("info/sparse-checkout");
    if !patterns.try_exists().map_err(Fault::at(&patterns))? {
        return Ok(());
    }
    let config = entry.join("config.worktree");
    if config.try_exists().map_err(Fault::at(&config))? {
        // For the user's command.
        workspace.write().args(["config", "--file"]).arg(&config).args(["core.sparseCheckout", "false"]).run()?;
    }
    // The index says which files are not checked out. The patterns go last, so that this is repeated after a kill.
    let index = entry.join("index");
    admin::ignore_missing(fs::remove_file(&index)).map_err(Fault::at(&index))?;
    admin::ignore_missing(fs::remove_file(&patterns)).map(drop).map_err(Fault::at(&patterns))
}

/// Deletes what a command left behind, because it may have filled the disk that also holds the
/// queue's journal. Failures become visible in the next [`prepare`].
pub(crate) fn discard(workspace: &Workspace, scratch: &Scratch, commit: &str) {
    // `clean` first, because it frees space; `checkout` needs some.
    if clean_or_discard(workspace, scratch, Leftovers::Keep) {
        let checked_out = || {
            kept::put_back(workspace, scratch)?;
            scratch.write(workspace).in_record().args(["checkout", "-q", "--force", "--detach", commit]).run()?;
            kept::keep(workspace, scratch)
        };
        let _: Result<(), Fault> = checked_out();
    }
}

/// Deletes ignored files, too, if the disk is nearly full; they can be built again.
pub(crate) fn free_space(workspace: &Workspace, name: &str) {
    let dir = workspace.own.join(name);
    if !reserve::is_short(&workspace.own) {
        return;
    }
    if let Ok(Some(entry)) = recorded(workspace, &dir) {
        clean_or_discard(workspace, &Scratch { dir, entry }, Leftovers::Delete);
    }
}

/// Cleans a scratch worktree, or deletes all of it if git cannot. Returns whether it still exists.
fn clean_or_discard(workspace: &Workspace, scratch: &Scratch, leftovers: Leftovers) -> bool {
    match clean(workspace, scratch, leftovers) {
        Err(fault) if !fault.is_tool_failure => discarded::discard(&scratch.dir).is_err(),
        _ => true,
    }
}

/// Returns the record of a scratch worktree, if its `.git` file leads to it. A verification may have written anything
/// into the directory, also a `.git` file with the record of somebody else's worktree.
pub(super) fn recorded(workspace: &Workspace, dir: &Path) -> Result<Option<PathBuf>, Fault> {
    let Some(entry) = admin::entry_of(&workspace.common, dir).map_err(Fault::at(dir))? else { return Ok(None) };
    // A verification may also have taken away the permission to read it.
    let link = admin::link_of(dir).unwrap_or_default();
    let is_same = link.is_some_and(|link| admin::resolved(&link) == admin::resolved(&entry));
    let is_dir = fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir());
    let is_plain = |entry: &PathBuf| record::check(&workspace.common, entry).is_ok();
    Ok(Some(entry).filter(|entry| is_same && is_dir && entry.join("HEAD").exists() && is_plain(entry)))
}

fn make(workspace: &Workspace, dir: &Path, commit: &str) -> Result<(), Fault> {
    // The worktree is incomplete or its entry is missing; it contains nobody's work.
    discarded::discard(dir)?;
    let _lock = lock::acquire(&workspace.common, Duration::from_millis(lock::LOCK_WAIT_MS_MAX))?;
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let known = admin::entry_of(&workspace.common, dir).map_err(Fault::at(&workspace.common))?;
    for entry in known.into_iter().chain(admin::unfinished(&workspace.common, &name)) {
        admin::remove(&entry).map_err(Fault::at(&entry))?;
    }
    let reason = format!("scratch directory of the merge queue of {}", workspace.target.base());
    let add = ["worktree", "add", "-q", "-f", "-f", "--detach", "--no-checkout", "--lock", "--reason", &reason, "--"];
    workspace.write().args(add).arg(dir).arg(commit).run()?;
    Ok(())
}

/// Removes a scratch worktree and its entry. What cannot be deleted stays under another name: nobody needs the place.
pub(crate) fn remove(workspace: &Workspace, scratch: &Scratch) {
    let remove = || {
        run::end_leftovers(&scratch.dir)?;
        discarded::discard(&scratch.dir)?;
        kept::forget(workspace, scratch);
        let _lock = lock::acquire(&workspace.common, Duration::from_millis(lock::LOCK_WAIT_MS_MAX))?;
        admin::remove(&scratch.entry).map_err(Fault::at(&scratch.entry))
    };
    if let Err(fault) = remove() {
        tracing::warn!(cause = %fault.cause, "cannot remove the scratch directory {}", scratch.dir.display());
    }
}

/// Uncommitted changes of tracked files, byte by byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edits {
    /// Output of `git status --porcelain -z`.
    status: Vec<u8>,
    /// What is at the changed paths.
    content: Vec<u8>,
}

impl Edits {
    /// Reads the changes, also those of files that a command hid from git by what it wrote into the index, and those in
    /// submodules. A submodule whose repository has other settings than before is changed.
    pub(crate) fn read(workspace: &Workspace, scratch: &Scratch) -> Result<Self, Fault> {
        let mut edits = Self::of_files(workspace, scratch)?;
        modules::each(workspace, scratch, &mut |path, own| {
            let is_known = kept::has_own_settings(workspace, own);
            let inner = if is_known { Self::of_files(workspace, own)? } else { Self::of_settings() };
            if inner != Self::default() {
                edits.status.extend([b" M ".as_slice(), path, b"\0"].concat());
                edits.content.extend([inner.status, inner.content].concat());
            }
            Ok(is_known)
        })?;
        Ok(edits)
    }

    fn of_settings() -> Self {
        Self { status: Vec::new(), content: b"settings".to_vec() }
    }

    /// Reads the changes outside of submodules. git runs in none, since a verification may have put any repository into
    /// its place; another commit there is a change.
    fn of_files(workspace: &Workspace, scratch: &Scratch) -> Result<Self, Fault> {
        if kept::put_back(workspace, scratch)? {
            scratch.write(workspace).args(["read-tree", "HEAD"]).run()?;
        }
        let status = ["status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=dirty"];
        let status = scratch.read(workspace).args(status).run()?;
        if status.is_empty() {
            return Ok(Self::default());
        }
        // Not as a patch, which may be larger than what git may print.
        let mut content = Vec::new();
        let mut dirs = Vec::new();
        for path in parse::status(&status).into_iter().map(|change| change.path) {
            let left = Left::below(&scratch.dir, &path)?;
            if left == Left::Other {
                dirs.push(path);
            } else {
                content.extend([path.as_slice(), format!("\0{left:?}\0").as_bytes()].concat());
            }
        }
        if !dirs.is_empty() {
            // The commits of submodules.
            let diff =
                ["diff", "--no-ext-diff", "--no-textconv", "--no-color", "--full-index", "--ignore-submodules=dirty"];
            let diff = scratch.read(workspace).env("GIT_LITERAL_PATHSPECS", "1").args(diff);
            let diff = diff.args(["--submodule=short", "HEAD", "--"]);
            content.extend(diff.args(dirs.iter().map(|dir| OsStr::from_bytes(dir))).run()?);
        }
        Ok(Self { status, content })
    }
}

/// Returns a description of changes to tracked files or HEAD since `before`, or `None` if there are none. Files that are
/// as in the commit again are not changed.
pub(crate) fn changed(
    workspace: &Workspace,
    scratch: &Scratch,
    commit: &str,
    before: &Edits,
) -> Result<Option<String>, Fault> {
    let head = scratch.read(workspace).args(["rev-parse", "--verify", "HEAD"]).line()?;
    if head != commit {
        return Ok(Some("checked out or created another commit".to_owned()));
    }
    let now = Edits::read(workspace, scratch)?;
    if now == *before || now == Edits::default() {
        return Ok(None);
    }
    let known = status(&before.status);
    let (old, new): (Vec<_>, Vec<_>) =
        status(&now.status).into_iter().partition(|change| known.iter().any(|known| known.path == change.path));
    let changes = if new.is_empty() { old } else { new };
    let named: Vec<_> = changes.iter().take(3).map(|change| String::from_utf8_lossy(&change.path)).collect();
    Ok((!changes.is_empty()).then(|| format!("changed {} tracked file(s): {}", changes.len(), named.join(", "))))
}
