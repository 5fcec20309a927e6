//! Updates directories that have the base checked out when the base moves. Keeps uncommitted
//! changes of the user that are not in the way.
//!
//! The new index is built next to the old one and replaces it while we hold `index.lock`. The lock
//! is a file of ours whose inode is recorded, so after a crash the lock is known to be ours and the
//! old index is intact. Under the lock, and before git writes, three things happen in this order:
//! the state of the files that the landing writes is recorded again if it has changed; those that
//! it replaces get a second name in `swarm-landing.kept`; and our lock gets content, so that after
//! a kill it shows whether git may have written.
//!
//! The old index keeps a second name until the base has moved. If it fails to move, that index is put back first, and then
//! the files are rolled back; otherwise the user would find what has not landed among the staged changes.
//!
//! A file is rolled back only if it is not the one that was kept, and is missing or contains a
//! beginning of what we were writing. (A git that is killed during `read-tree -u` leaves files
//! missing, empty or truncated.) What was kept is moved back. So a beginning of the earlier content
//! is never ours: a person has shortened the file.

mod kept;
mod lock;
mod refused;
mod rollback;
mod written;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

pub(crate) use self::lock::retry_until;
use self::lock::{INDEX, LOCK, LOCK_WAIT, take};
use super::at_work;
use super::checked_out::{Holder, Unready, holders_of_base};
use super::trees::{self, Differing};
use crate::landing::obstacles::{self, Tree, is_below};
use crate::landing::workspace::Workspace;
use crate::repository::cli::{Call, CliError};
use crate::repository::content::{self, Match};
use crate::repository::fault::Fault;
use crate::repository::plain_ref::{self, HEAD};
use crate::repository::{holders, index, parse};
use crate::worktrees::{admin, record};
use swarm_sys::files::replace_durably;
use swarm_sys::procfs::known_boot_id;

const MARKER: &str = "landing.json";
/// How long to wait for a git that outlived its supervisor.
const GIT_WAIT: Duration = Duration::from_secs(600);

/// Record of a landing in progress, for recovery after a crash.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Marker {
    from: String,
    to: String,
    started: SystemTime,
    /// Boot in which it started, if that was known.
    #[serde(default)]
    boot: Option<String>,
    checkouts: Vec<Checkout>,
}

/// A directory that has the base checked out.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Checkout {
    tree: PathBuf,
    git_dir: PathBuf,
    /// Inode of the file that becomes `index.lock`.
    lock: u64,
    /// Files that the landing writes there.
    files: Vec<Written>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Written {
    path: Vec<u8>,
    /// Whether the base has no file there yet.
    is_new: bool,
    /// Whether this is a submodule that is replaced by something else.
    #[serde(default)]
    was_link: bool,
    /// State of the file before the landing; `None` if there was no file.
    before: Option<FileStamp>,
}

/// The part of `lstat(2)` that shows whether a file changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileStamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl FileStamp {
    fn at(path: &Path) -> Option<Self> {
        let seen = fs::symlink_metadata(path).ok().filter(|seen| !seen.is_dir())?;
        Some(Self { inode: seen.ino(), bytes: seen.len(), modified: (seen.mtime(), seen.mtime_nsec()) })
    }
}

impl Marker {
    pub(crate) fn load(workspace: &Workspace) -> Result<Option<Self>, Fault> {
        let path = workspace.own.join(MARKER);
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| Fault::at(&path)(error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Fault::at(&path)(error)),
        }
    }

    pub(crate) fn save(&self, workspace: &Workspace) -> Result<(), Fault> {
        let text = serde_json::to_vec(self).map_err(|error| Fault::new(error.to_string()))?;
        replace_durably(&workspace.own, MARKER, &text).map_err(Fault::at(&workspace.own))
    }

    pub(crate) fn remove(&self, workspace: &Workspace) -> Result<(), Fault> {
        admin::ignore_missing(fs::remove_file(workspace.own.join(MARKER))).map(drop).map_err(Fault::at(&workspace.own))
    }

    /// Reports whether the machine is known to have run since the landing started.
    fn is_of_this_boot(&self) -> bool {
        self.boot.is_some() && self.boot == known_boot_id().ok()
    }
}

pub(crate) struct Plan {
    pub(crate) marker: Marker,
    /// Worktrees that have the base checked out.
    holders: Vec<Holder>,
    /// Gits that were at work in a directory before it was locked, and have not ended.
    lasting: BTreeSet<i32>,
    /// Changes between the old and the new commit of the base.
    paths: Vec<Differing>,
}

pub(crate) enum Planned {
    Ready(Plan),
    Unready(Unready),
    /// No directory can have the new commit.
    Refused(String),
}

/// Changes of a person that a landing would overwrite.
struct InTheWay {
    seen: Vec<String>,
    /// Files that are absent and marked assume-unchanged, so that git does not show it.
    marked: Vec<String>,
}

/// Result of updating the files.
pub(crate) enum Updated {
    Done,
    /// Uncommitted changes in these files would be overwritten; nothing was written.
    Overlap(Vec<String>),
    Refused(String),
    /// Nothing was written, because a person resolves conflicts there.
    Unready(Unready),
}

/// Determines which directories have the base checked out and what would change there.
pub(crate) fn plan(workspace: &Workspace, from: &str, to: &str) -> Result<Planned, Fault> {
    let (started, boot) = (SystemTime::now(), known_boot_id().ok());
    let mut marker = Marker { from: from.into(), to: to.into(), started, boot, checkouts: Vec::new() };
    let holders = match holders_of_base(workspace)? {
        Ok(holders) => holders,
        Err(unready) => return Ok(Planned::Unready(unready)),
    };
    if holders.is_empty() {
        return Ok(Planned::Ready(Plan { marker, holders, lasting: BTreeSet::new(), paths: Vec::new() }));
    }
    let paths = written(workspace, from, to)?;
    if let Some(odd) = paths.iter().find(|differing| is_never_written(&differing.path)) {
        let path = String::from_utf8_lossy(&odd.path);
        return Ok(Planned::Refused(format!("git writes no file '{path}', so no directory can have this commit")));
    }
    let commit = holders.iter().find_map(|(tree, git_dir)| Some((tree, at_work::commit_in(tree, git_dir)?)));
    if let Some((tree, process)) = commit {
        let pid = process.file_name().unwrap_or_default().display();
        let why = format!("git (process {pid}) is making a commit in {}", tree.display());
        let why = format!("{why} (the work lands by itself once that git has ended)");
        return Ok(Planned::Unready(Unready { why, until: Some(process) }));
    }
    let replaced = obstacles::replaced_links(&paths);
    for (tree, git_dir) in holders.clone() {
        // Without an index, nothing is checked out.
        let index = git_dir.join("index");
        if !index.try_exists().map_err(Fault::at(&index))? {
            continue;
        }
        let lock = git_dir.join(LOCK);
        let failed = Fault::at(&lock);
        admin::ignore_missing(fs::remove_file(&lock)).map_err(&failed)?;
        let made = fs::File::create_new(&lock).and_then(|file| file.metadata()).map_err(&failed)?;
        let look = |differing: &Differing| {
            let before = FileStamp::at(&tree.join(OsStr::from_bytes(&differing.path)));
            let (is_new, was_link) = (differing.before.is_none(), replaced.contains(differing.path.as_slice()));
            Written { path: differing.path.clone(), is_new, was_link, before }
        };
        let files = paths.iter().map(look).collect();
        marker.checkouts.push(Checkout { tree, git_dir, lock: made.ino(), files });
    }
    Ok(Planned::Ready(Plan { marker, holders, lasting: BTreeSet::new(), paths }))
}

/// Reports whether a path is none that git checks out: one that leads out of the directory, or into a repository. What is
/// there is no edit of a person.
fn is_never_written(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/')
        .any(|part| matches!(part, b"" | b"." | b"..") || part.eq_ignore_ascii_case(b".git"))
}

/// Returns the paths that differ between two commits.
fn written(workspace: &Workspace, from: &str, to: &str) -> Result<Vec<Differing>, Fault> {
    if let Some(repo) = workspace.library()
        && let Ok(paths) = trees::differing(&repo, from, to)
    {
        return Ok(paths);
    }
    let call = workspace.read().args(["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-ext-diff"]);
    Ok(trees::listed(&call.args([from, to]).run()?))
}

impl Plan {
    /// Locks all indexes, or returns the reason why one cannot be locked. A git of a person that has written the index has
    /// not moved its branch yet, so this waits until it has ended, for some seconds at most.
    pub(crate) fn lock(&mut self) -> Result<Option<Unready>, Fault> {
        let locked = self.lock_within(LOCK_WAIT)?;
        if locked.is_some() || !at_work::has_writers(self.trees(), &self.lasting) {
            return Ok(locked);
        }
        self.unlock_indexes()?;
        self.wait_for_gits();
        self.lock_within(LOCK_WAIT)
    }

    /// Waits until gits that may have read an index have ended, for some seconds at most.
    pub(crate) fn wait_for_gits(&mut self) {
        let mut lasting = std::mem::take(&mut self.lasting);
        at_work::wait_for_writers(self.trees(), &mut lasting);
        self.lasting = lasting;
    }

    /// Reports whether other directories have the base checked out than when this was planned.
    pub(crate) fn is_outdated(&self, workspace: &Workspace) -> Result<bool, Fault> {
        Ok(holders_of_base(workspace)?.map_or(true, |holders| holders != self.holders))
    }

    /// Locks all indexes as [`Plan::lock`] does. `limit`: how long to wait for each.
    pub(crate) fn lock_within(&self, limit: Duration) -> Result<Option<Unready>, Fault> {
        for checkout in &self.marker.checkouts {
            let lock = checkout.git_dir.join("index.lock");
            if !take(&checkout.git_dir.join(LOCK), &lock, limit).map_err(Fault::at(&lock))? {
                self.unlock()?;
                let why =
                    format!("{} has been locked by another git process for {} s", lock.display(), limit.as_secs());
                let why = format!(
                    "{why} (the work lands by itself once that git has ended; remove the file only if it was killed)"
                );
                return Ok(Some(Unready { why, until: Some(lock) }));
            }
        }
        Ok(None)
    }

    /// Returns the directories that the landing updates.
    pub(crate) fn trees(&self) -> impl Iterator<Item = &Path> {
        self.marker.checkouts.iter().map(|checkout| checkout.tree.as_path())
    }

    fn unlock_indexes(&self) -> Result<(), Fault> {
        self.marker.checkouts.iter().try_for_each(Checkout::unlock)
    }

    /// Releases our locks.
    pub(crate) fn unlock(&self) -> Result<(), Fault> {
        self.marker.checkouts.iter().try_for_each(Checkout::release)
    }

    /// Updates files and indexes from one commit to the other. A refused update has changed
    /// nothing. Needs the locks.
    pub(crate) fn update(&mut self, workspace: &Workspace) -> Result<Updated, Fault> {
        self.look_again(workspace)?;
        for (number, checkout) in self.marker.checkouts.iter().enumerate() {
            match checkout.update(workspace, &self.marker, &self.paths)? {
                Updated::Done => {}
                refused => {
                    // Earlier directories are already updated, so restore them.
                    let mut updated = self.marker.checkouts[..number].iter();
                    updated.try_for_each(|updated| updated.restore(workspace, &self.marker).map(drop))?;
                    return Ok(refused);
                }
            }
        }
        for checkout in &self.marker.checkouts {
            checkout.replace_index().map_err(Fault::at(&checkout.git_dir.join(index::FILE)))?;
        }
        Ok(Updated::Done)
    }

    /// Records the files as they are now: somebody may have edited them while we waited for the locks.
    fn look_again(&mut self, workspace: &Workspace) -> Result<(), Fault> {
        let mut is_changed = false;
        for checkout in &mut self.marker.checkouts {
            for file in &mut checkout.files {
                let now = FileStamp::at(&checkout.tree.join(OsStr::from_bytes(&file.path)));
                is_changed |= now != file.before;
                file.before = now;
            }
        }
        if is_changed { self.marker.save(workspace) } else { Ok(()) }
    }
}

impl Checkout {
    fn read<'a>(&self, workspace: &'a Workspace) -> Call<'a> {
        Workspace::named(workspace.cli.read(&self.tree), &self.git_dir, &self.tree)
    }

    fn write<'a>(&self, workspace: &'a Workspace) -> Call<'a> {
        Workspace::named(workspace.write_at(&self.tree).for_user(), &self.git_dir, &self.tree)
    }

    fn update(&self, workspace: &Workspace, marker: &Marker, paths: &[Differing]) -> Result<Updated, Fault> {
        let InTheWay { seen, marked } = self.in_the_way(workspace, paths)?;
        if !marked.is_empty() {
            // What git does not show cannot be waited for.
            return Ok(Updated::Refused(refused::reason(&self.tree, &marked, "")));
        }
        if !seen.is_empty() {
            let mut all: BTreeSet<String> = self.overlapping(workspace)?.into_iter().collect();
            // A submodule with changes is in the way as a whole.
            all.retain(|file| !seen.contains(&format!("{file}/")));
            all.extend(seen);
            return Ok(Updated::Overlap(all.into_iter().collect()));
        }
        let has_kept = self.keep()?;
        self.note_begin()?;
        match self.read_tree(workspace, marker, has_kept) {
            Ok(()) => {}
            Err(CliError::Exit { message, .. }) => {
                // git normally refuses before it writes anything, but it may also fail at the last step.
                if self.restore(workspace, marker)? {
                    // A landing that was cut off had come this far, and git refuses to turn a file into a directory twice.
                    let (index, new) = (self.git_dir.join("index"), self.temporary(INDEX));
                    admin::copy_index(&index, &new).map_err(Fault::at(&index))?;
                    return Ok(Updated::Done);
                }
                let files = self.overlapping(workspace)?;
                if let (true, Some(unready)) = (files.is_empty(), self.unmerged(workspace)?) {
                    return Ok(Updated::Unready(unready));
                }
                if files.is_empty() {
                    return Ok(Updated::Refused(refused::reason(&self.tree, &self.hidden(workspace)?, &message)));
                }
                return Ok(Updated::Overlap(files));
            }
            // git may have been killed in the middle.
            Err(error) => return Err(error.into()),
        }
        let edited = self.edited_meanwhile();
        if edited.is_empty() {
            return Ok(Updated::Done);
        }
        self.restore(workspace, marker)?;
        Ok(Updated::Overlap(edited))
    }

    /// Updates the files, and builds a new index next to the old one. Refreshes the index first if files of which only
    /// the times changed would be in the way, as do those that were kept.
    fn read_tree(&self, workspace: &Workspace, marker: &Marker, is_refreshed: bool) -> Result<(), CliError> {
        let new = self.scratch_index(INDEX)?;
        admin::copy_index(&self.git_dir.join("index"), &new)?;
        let step = || self.write(workspace).env("GIT_INDEX_FILE", &new);
        if is_refreshed {
            index::refresh(step())?;
        }
        step().args(["read-tree", "-m", "-u", &marker.from, &marker.to]).run().map(drop)
    }

    /// Returns what a person has put in place of files, or deleted, and git would overwrite, delete or bring back.
    fn in_the_way(&self, workspace: &Workspace, paths: &[Differing]) -> Result<InTheWay, Fault> {
        let tracked = || Ok(self.read(workspace).args(["ls-files", "-z"]).run()?);
        let of =
            |is: fn(&Written) -> bool| self.files.iter().filter(move |file| is(file)).map(|file| file.path.as_slice());
        let tree = Tree { root: &self.tree, tracked: &tracked };
        let mut found = tree.untracked(of(|file| file.is_new), of(|file| file.was_link))?;
        let displaced = tree.displaced(paths)?;
        let mut marked = Vec::new();
        if !displaced.is_empty() {
            // A file may be absent because it is outside of a sparse checkout, or because a landing that was cut off has put
            // the new index in place.
            let listed = self.read(workspace).args(["ls-files", "-v", "-z"]).run()?;
            let (present, assumed) = (refused::present(&listed), refused::marked(&listed));
            for (path, place) in displaced.into_iter().filter(|(path, _)| present.contains(path)) {
                match Path::new(OsStr::from_bytes(path)) == place && assumed.contains(&path) {
                    true => marked.push(String::from_utf8_lossy(path).into_owned()),
                    false => drop(found.insert(place)),
                }
            }
        }
        let seen = found.into_iter().map(|path| path.to_string_lossy().into_owned()).collect();
        Ok(InTheWay { seen, marked })
    }

    /// Returns the uncommitted changes among the files that the landing writes.
    fn overlapping(&self, workspace: &Workspace) -> Result<Vec<String>, Fault> {
        let status =
            self.read(workspace).args(["status", "--porcelain", "-z", "-uall", "--ignore-submodules=dirty"]).run()?;
        let touched = |path: &[u8]| {
            let meets = |file: &[u8]| file == path || is_below(file, path) || is_below(path, file);
            self.files.iter().any(|file| meets(&file.path))
        };
        let changes = parse::status(&status).into_iter().filter(|change| touched(&change.path));
        Ok(changes.map(|change| String::from_utf8_lossy(&change.path).into_owned()).collect())
    }

    /// Returns the conflicts of a person's merge, with which git updates nothing. `None` if there are none. The index is in
    /// the way until it has none.
    fn unmerged(&self, workspace: &Workspace) -> Result<Option<Unready>, Fault> {
        let conflicts = refused::unmerged(&self.read(workspace).args(["ls-files", "--unmerged", "-z"]).run()?);
        let why = || refused::unresolved(&self.tree, &conflicts);
        Ok((!conflicts.is_empty()).then(|| Unready { why: why(), until: Some(self.git_dir.join(index::FILE)) }))
    }

    /// Returns the changed files among those that the landing writes that are marked assume-unchanged or skip-worktree.
    fn hidden(&self, workspace: &Workspace) -> Result<Vec<String>, Fault> {
        let listed = self.read(workspace).args(["ls-files", "-v", "-z"]).run()?;
        let mut hidden = refused::marked(&listed);
        hidden.retain(|path| self.files.iter().any(|file| file.path == *path && file.before.is_some()));
        Ok(hidden.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect())
    }
}

/// Rolls back an interrupted landing, so that it can start again.
pub(crate) fn recover(workspace: &Workspace, marker: &Marker) -> Result<(), Fault> {
    workspace.wait_for_own_git(GIT_WAIT)?;
    let branch = &workspace.target.branch;
    // The base may be symbolic.
    let base = plain_ref::resolved(&workspace.common, branch).unwrap_or_else(|_| branch.clone());
    let mut locks: Vec<PathBuf> =
        [branch, &base, HEAD].map(|name| workspace.common.join(format!("{name}.lock"))).into();
    let mut undone = Ok(());
    for checkout in &marker.checkouts {
        if !checkout.tree.exists() || !checkout.git_dir.exists() {
            continue;
        }
        undone = undone.and(checkout.undo(workspace, marker));
        locks.push(checkout.git_dir.join("HEAD.lock"));
    }
    // Our locks are empty or contain the new value. Any other lock blocks the next landing, which
    // reports it.
    let value = format!("{}\n", marker.to);
    let is_ours = |found: &[u8]| content::compare(found, value.as_bytes()).is_ok_and(|found| found != Match::Other);
    locks.retain(|lock| record::read(lock).is_ok_and(|found| is_ours(&found)));
    holders::clear_stale_locks(&locks, Some(marker.started));
    undone?;
    marker.remove(workspace)
}
