//! Saves the content of a worktree before its removal: files, index and HEAD become one commit
//! under `refs/swarm/trash/`. The commit's tree is the directory with untracked files, byte for
//! byte. Its parents are HEAD, the index, the metadata that neither can hold (`particulars`), and
//! the commits that an unfinished merge or rebase refers to or that only the worktree keeps. Objects are durable before the ref
//! names them. Ignored files are not saved.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use swarm_ports::Saved;

use super::raw::{self, Raw};
use super::scratch::Scratch;
use super::{gitlinks, only_here};
use crate::repository::cli::{Call, Cli};
use crate::repository::durable::sync_file_systems;
use crate::repository::fault::Fault;
use crate::repository::gc_lock;
use crate::repository::index::{self, IndexProperties};
use crate::repository::objects;
use crate::repository::parse::{self, Change};
use crate::repository::plain_ref::{self, Before, Update};
use crate::trash::metadata::{self, Flags, WorktreeMetadata};
use crate::worktrees::admin;
use crate::worktrees::record_view::RecordView;
use crate::worktrees::remove::in_progress;
use crate::worktrees::{copies, include, record};

pub(crate) const DURABLE: [&str; 4] = ["-c", "core.fsync=all", "-c", "core.fsyncMethod=fsync"];
/// Ids of the empty blob (SHA-1, SHA-256), which intent-to-add entries have.
const EMPTY: [&str; 2] =
    ["e69de29bb2d1d6434b8b29ae775ad8c2e48c5391", "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813"];
/// Start of the commit message of an index with conflicts.
pub(crate) const UNMERGED: &str = "unmerged index, by stages";
pub(super) const PLAIN: [&str; 6] =
    ["-c", "core.safecrlf=false", "-c", "advice.addEmbeddedRepo=false", "-c", "i18n.commitEncoding=UTF-8"];

/// State files that name commits which may not be reachable otherwise.
const UNFINISHED: [&str; 6] = [
    "MERGE_HEAD",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "MERGE_AUTOSTASH",
    "rebase-merge/orig-head",
    "rebase-apply/orig-head",
];
/// State files that name the changes which a rebase has stashed and applies again at its end.
const AUTOSTASH: [&str; 2] = ["rebase-merge/autostash", "rebase-apply/autostash"];

/// Location and HEAD of a worktree. git is pointed at it explicitly, because discovery would
/// find another repository if the worktree is damaged.
#[derive(Clone)]
pub(crate) struct Place {
    /// The worktree's entry, or the common directory if the entry is incomplete.
    pub(crate) git_dir: PathBuf,
    pub(crate) tree: PathBuf,
    /// `None` if there is no commit yet.
    pub(crate) head: Option<String>,
    /// Full ref name; `None` if HEAD is detached.
    pub(crate) branch: Option<String>,
    pub(crate) is_whole: bool,
    /// Common directory of the repository, as found without the record.
    pub(crate) common: PathBuf,
    /// The git directory with which git runs instead of `git_dir`, if an agent could configure that one.
    pub(crate) view: Option<Arc<RecordView>>,
}

impl Place {
    pub(crate) fn of(cli: &Cli, common: &Path, entry: &Path, tree: &Path, base: &str) -> Result<Self, Fault> {
        let mut place = Self {
            git_dir: entry.to_owned(),
            tree: tree.to_owned(),
            head: None,
            branch: None,
            is_whole: entry.join("HEAD").exists() && entry.join("commondir").exists(),
            common: common.to_owned(),
            view: None,
        };
        if place.is_whole {
            record::check(common, entry)?;
            place.view = RecordView::open(common, entry)?.map(Arc::new);
            if let Some((head, branch)) = objects::head_of_record(common, entry) {
                (place.head, place.branch) = (Some(head), branch);
                return Ok(place);
            }
            let head = ["rev-parse", "--verify", "-q", "HEAD^{commit}"];
            place.head = place.call(cli.read(tree)).args(head).line_if_any()?;
            place.branch = place.call(cli.read(tree)).args(["symbolic-ref", "-q", "HEAD"]).line_if_any()?;
        } else {
            place.git_dir = common.to_owned();
            place.head = Some(base.to_owned());
        }
        Ok(place)
    }

    pub(crate) fn call<'a>(&self, call: Call<'a>) -> Call<'a> {
        let mut git_dir = OsString::from("--git-dir=");
        git_dir.push(self.view.as_ref().map_or(self.git_dir.as_path(), |view| view.path()));
        let call = match self.view {
            Some(_) => call.env("GIT_COMMON_DIR", &self.common).with_record(&self.git_dir),
            None => call,
        };
        let mut tree = OsString::from("--work-tree=");
        tree.push(&self.tree);
        call.args([git_dir, tree]).within(&self.tree).without_fetch(&self.git_dir)
    }

    /// Returns the common directory.
    pub(crate) fn common(&self) -> PathBuf {
        self.common.clone()
    }

    pub(super) fn index(&self) -> Option<PathBuf> {
        Some(self.git_dir.join("index")).filter(|index| self.is_whole && index.exists())
    }
}

/// Returns the changes relative to HEAD, and what is at the places of submodules and no part of them. `untracked` is the
/// value for `--untracked-files`.
pub(crate) fn status(cli: &Cli, place: &Place, untracked: &str) -> Result<Vec<Change>, Fault> {
    let mut changes = status_of_files(cli, place, untracked)?;
    changes.extend(gitlinks::foreign(cli, place)?.into_iter().flat_map(|found| found.changes));
    Ok(changes)
}

/// Returns the changes relative to HEAD without those in submodules, where git would run with a configuration that an
/// agent could have written. A submodule that has another commit checked out is a change.
pub(crate) fn status_without_submodules(cli: &Cli, place: &Place) -> Result<Vec<Change>, Fault> {
    status_of_files(cli, place, "all")
}

fn status_of_files(cli: &Cli, place: &Place, untracked: &str) -> Result<Vec<Change>, Fault> {
    // The user's setting may hide untracked files, but they are work, too.
    let untracked = format!("--untracked-files={untracked}");
    let args = ["status", "--porcelain=v1", "-z", "--ignore-submodules=dirty", &untracked];
    Ok(parse::status(&place.call(cli.read(&place.tree)).args(args).strict().run()?))
}

/// Returns the number of changed paths. Fails if some of them cannot be saved.
pub(crate) fn check(cli: &Cli, place: &Place) -> Result<usize, Fault> {
    let changes = status(cli, place, "all")?;
    match changes.iter().find(|change| change.is_embedded_repository()) {
        Some(change) => Err(Fault::new(format!(
            "{} is a separate repository, which cannot be saved",
            place.tree.join(String::from_utf8_lossy(&change.path).trim_end_matches('/')).display()
        ))
        .remedy("move it out of the worktree")),
        None => Ok(changes.len()),
    }
}

/// State of a worktree as tree ids: equal ids mean equal content, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateTrees {
    /// The directory, unconverted.
    pub(crate) tree: String,
    /// The index; one directory per stage if it has conflicts.
    pub(crate) index: String,
    pub(crate) is_merged: bool,
    /// Metadata that the other trees cannot hold.
    pub(crate) metadata: String,
}

/// Name of the only file in the metadata tree.
pub(crate) const METADATA_FILE: &str = "particulars";

/// Saves a worktree and verifies the save.
pub(crate) fn save(cli: &Cli, place: &Place, name: &str) -> Result<Saved, Fault> {
    let changes = if place.is_whole { check(cli, place)? } else { 0 };
    let _hold = gc_lock::hold(&place.common(), gc_lock::SAVE_WAIT)?;
    let (state, raw) = capture(cli, place)?;
    let saved = record(cli, place, &place.tree, name, &state, changes)?;
    // Last, because a sync may take long, in which somebody may write.
    verify(cli, place, &raw, &saved)?;
    Ok(saved)
}

/// Writes the commits and the ref of a save, durably. `path` is where the worktree belongs.
pub(crate) fn record(
    cli: &Cli,
    place: &Place,
    path: &Path,
    name: &str,
    state: &StateTrees,
    changes: usize,
) -> Result<Saved, Fault> {
    let note = if state.is_merged { "index" } else { UNMERGED };
    let index = commit(cli, place, &state.index, &format!("{note} of {name}"), place.head.as_slice())?;
    let metadata = commit(cli, place, &state.metadata, &format!("particulars of {name}"), &[])?;
    let stashed = named_commits(cli, place, &AUTOSTASH)?;
    let message = message(place, path, name, changes, [&index, &metadata], stashed.first());
    let mut parents: Vec<String> = place.head.iter().cloned().chain([index]).collect();
    parents.extend(named_commits(cli, place, &UNFINISHED)?);
    parents.extend(stashed);
    parents.extend(only_here::commits(cli, place)?);
    parents.push(metadata);
    let commit = commit(cli, place, &state.tree, &message, &parents)?;
    publish(cli, place, name, commit)
}

/// Writes the ref of a save, durably.
pub(super) fn publish(cli: &Cli, place: &Place, name: &str, commit: String) -> Result<Saved, Fault> {
    let reference = reference(name);
    record::check_reference(&place.common(), &reference)?;
    // A power cut could otherwise keep the ref and take its commit.
    sync_file_systems([place.common().as_path()])?;
    // The zero id as old value: the ref must not exist yet.
    let none = "0".repeat(commit.len());
    let update = Update { name: &reference, to: &commit, before: Before::Absent, is_durable: true };
    if !plain_ref::set(&place.common, &update, |_| ())? {
        let write = place.call(cli.write(&place.tree)).args(DURABLE);
        write.args(["update-ref", "-m", "swarm: saved", &reference, &commit, &none]).run()?;
    }
    // git syncs files, and not the directories that name them; what is saved is deleted next.
    sync_file_systems([place.common().as_path()])?;
    Ok(Saved { reference, commit })
}

/// An index that is to be saved.
pub(crate) struct SavedIndex {
    pub(crate) entries: Vec<parse::Entry>,
    /// See [`StateTrees::index`].
    pub(crate) tree: String,
    pub(crate) is_merged: bool,
    pub(crate) flags: Flags,
}

/// Writes the index as a tree; no ref holds it yet.
pub(crate) fn capture_index(cli: &Cli, place: &Place) -> Result<SavedIndex, Fault> {
    let (scratch, properties) = index_copy(cli, place)?;
    let entries = parse::index(&step(cli, place, &scratch).args(["ls-files", "-s", "-z"]).run()?);
    let is_merged = entries.iter().all(|entry| entry.stage == 0);
    let tree = match is_merged {
        true => step(cli, place, &scratch).arg("write-tree").line()?,
        false => stages_tree(cli, place, &entries)?,
    };
    let flags = flags(cli, place, &scratch, &entries, properties.as_ref())?;
    Ok(SavedIndex { entries, tree, is_merged, flags })
}

/// Writes objects for the current state; no ref holds them yet.
pub(crate) fn capture(cli: &Cli, place: &Place) -> Result<(StateTrees, Raw), Fault> {
    let SavedIndex { entries, tree: index, is_merged, flags } = capture_index(cli, place)?;
    let raw = Raw::new(place, &index)?;
    raw.fill_index(cli, &entries)?;
    // Files in the directory of a submodule that is not checked out take its place in the tree; the index still has it.
    let replaced = gitlinks::with_files(cli, place, &entries)?;
    raw.forget(cli, entries.iter().filter(|entry| replaced.contains(&entry.path)))?;
    let mut absent = flags.skipped.clone();
    absent.retain(|path| fs::symlink_metadata(place.tree.join(OsStr::from_bytes(path))).is_err());
    raw.skip(cli, &absent)?;
    raw.add_all(cli, &entries, &include::withheld(&place.common()))?;
    add_copies(cli, place, &raw)?;
    let saved = parse::index(&raw.write(cli).args(["ls-files", "-s", "-z"]).run()?);
    // git keeps a conflict whose path it cannot look up, as below a link that points to itself. No file is there.
    let (saved, gone): (Vec<_>, Vec<_>) = saved.into_iter().partition(|entry| entry.stage == 0);
    raw.forget(cli, gone.iter())?;
    refuse_new_gitlinks(place, &entries, &saved)?;
    let tree = raw.write(cli).arg("write-tree").line()?;
    let record = place.is_whole.then_some(place.git_dir.as_path());
    let metadata = WorktreeMetadata::of(&place.tree, record, flags, &saved).map_err(Fault::at(&place.tree))?;
    let metadata = metadata_tree(cli, place, &metadata)?;
    Ok((StateTrees { tree, index, is_merged, metadata }, raw))
}

/// Adds ignored files that were copied from the base checkout and have changed since.
fn add_copies(cli: &Cli, place: &Place, raw: &Raw) -> Result<(), Fault> {
    let copies = if place.is_whole { copies::changed(&place.tree, &place.git_dir) } else { Vec::new() };
    if copies.is_empty() {
        return Ok(());
    }
    let add = ["add", "-f", "--sparse", "--pathspec-from-file=-", "--pathspec-file-nul"];
    let call = raw.write(cli).args(PLAIN).env("GIT_LITERAL_PATHSPECS", "1").args(add);
    raw::feed(call, &place.git_dir, &copies.join(&0))
}

fn flags(
    cli: &Cli,
    place: &Place,
    scratch: &Scratch,
    entries: &[parse::Entry],
    properties: Option<&IndexProperties>,
) -> Result<Flags, Fault> {
    let (mut assumed, mut skipped, mut intended) = (Vec::new(), Vec::new(), Vec::new());
    if place.index().is_some() && properties.is_none_or(|properties| properties.has_hidden) {
        let listed = place.call(cli.read(&place.tree)).args(["ls-files", "-v", "-z"]).run()?;
        (assumed, skipped) = parse::flagged(&listed);
    }
    if entries.iter().any(|entry| EMPTY.contains(&entry.id.as_str())) {
        let listed = step(cli, place, scratch).args(["ls-files", "--debug", "-s", "-z"]).run()?;
        intended = metadata::intended(&listed);
    }
    Ok(Flags { intended, assumed, skipped })
}

pub(super) fn metadata_tree(cli: &Cli, place: &Place, metadata: &WorktreeMetadata) -> Result<String, Fault> {
    let write = || place.call(cli.write(&place.tree)).args(DURABLE);
    let blob = write().args(["hash-object", "-w", "--no-filters", "--stdin"]);
    let blob = raw::output_with_input(blob, &place.git_dir, &metadata.encode())?;
    let line = format!("100644 blob {}\t{METADATA_FILE}\n", String::from_utf8_lossy(&blob).trim_end());
    let tree = raw::output_with_input(write().arg("mktree"), &place.git_dir, line.as_bytes())?;
    Ok(String::from_utf8_lossy(&tree).trim_end().to_owned())
}

/// Returns a copy of the index without hidden entries, and the unusual properties of the original.
pub(crate) fn index_copy(cli: &Cli, place: &Place) -> Result<(Scratch, Option<IndexProperties>), Fault> {
    let scratch = Scratch::new(&place.git_dir, "index");
    match place.index() {
        Some(index) => admin::copy_index(&index, scratch.path()).map_err(Fault::at(&index))?,
        None => {
            if let Some(head) = &place.head {
                step(cli, place, &scratch).args(["read-tree", head]).run()?;
            }
        }
    }
    let properties = index::properties(scratch.path());
    if properties.as_ref().is_none_or(|properties| properties.has_hidden) {
        unhide(cli, place, &scratch)?;
    }
    Ok((scratch, properties))
}

/// Returns a writing call that uses the copy of the index.
pub(crate) fn step<'a>(cli: &'a Cli, place: &Place, scratch: &Scratch) -> Call<'a> {
    place.call(cli.write(&place.tree)).args(DURABLE).args(PLAIN).env("GIT_INDEX_FILE", scratch.path())
}

/// Counts files that differ from the index although `git status` does not report them, because
/// the user marked them as assume-unchanged or skip-worktree.
pub(crate) fn hidden_changes(cli: &Cli, place: &Place) -> Result<usize, Fault> {
    let Some(index) = place.index() else { return Ok(0) };
    if index::properties(&index).is_some_and(|properties| !properties.has_hidden) {
        return Ok(0);
    }
    let listed = place.call(cli.read(&place.tree)).args(["ls-files", "-v", "-z"]).run()?;
    if parse::hidden(&listed).is_empty() {
        return Ok(0);
    }
    let scratch = Scratch::new(&place.git_dir, "hidden");
    admin::copy_index(&index, scratch.path()).map_err(Fault::at(&index))?;
    unhide(cli, place, &scratch)?;
    // Refresh first: different file times alone are not a change.
    index::refresh(step(cli, place, &scratch))?;
    let differing = ["diff-files", "-z", "--name-only", "--ignore-submodules=dirty"];
    let changed = step(cli, place, &scratch).args(differing).strict().run()?;
    Ok(changed.iter().filter(|byte| **byte == 0).count())
}

/// Makes git compare every existing file. Missing files stay hidden, because a sparse worktree
/// has not deleted what it does not check out.
fn unhide(cli: &Cli, place: &Place, scratch: &Scratch) -> Result<(), Fault> {
    let listed = step(cli, place, scratch).args(["ls-files", "-v", "-z"]).run()?;
    let mut hidden = parse::hidden(&listed);
    hidden.retain(|path| fs::symlink_metadata(place.tree.join(OsStr::from_bytes(path))).is_ok());
    if hidden.is_empty() {
        return Ok(());
    }
    for flag in ["--no-assume-unchanged", "--no-skip-worktree"] {
        let mut list_file = Scratch::new(&place.git_dir, "list");
        let mut list = list_file.create()?;
        list.write_all(&hidden.join(&0)).map_err(Fault::at(list_file.path()))?;
        list.rewind().map_err(Fault::at(list_file.path()))?;
        step(cli, place, scratch).args(["update-index", flag, "-z", "--stdin"]).input(list).run()?;
    }
    Ok(())
}

/// Writes an index with conflicts, which cannot be written as a tree directly, as a tree with
/// one directory per stage.
fn stages_tree(cli: &Cli, place: &Place, entries: &[parse::Entry]) -> Result<String, Fault> {
    let scratch = Scratch::new(&place.git_dir, "stages");
    let mut list_file = Scratch::new(&place.git_dir, "list");
    let mut list = list_file.create()?;
    for entry in entries {
        let mut line = format!("{} {} 0\tstage{}/", entry.mode, entry.id, entry.stage).into_bytes();
        line.extend_from_slice(&entry.path);
        line.push(0);
        list.write_all(&line).map_err(Fault::at(list_file.path()))?;
    }
    list.rewind().map_err(Fault::at(list_file.path()))?;
    step(cli, place, &scratch).args(["update-index", "-z", "--index-info"]).input(list).run()?;
    Ok(step(cli, place, &scratch).arg("write-tree").line()?)
}

/// Fails if a directory has become a separate repository: git would record only its HEAD, and
/// its files would be lost.
fn refuse_new_gitlinks(place: &Place, before: &[parse::Entry], after: &[parse::Entry]) -> Result<(), Fault> {
    let is_link = |entry: &&parse::Entry| entry.mode == "160000";
    let known: HashSet<&[u8]> = before.iter().filter(is_link).map(|entry| entry.path.as_slice()).collect();
    match after.iter().filter(is_link).find(|entry| !known.contains(entry.path.as_slice())) {
        Some(entry) => {
            let path = place.tree.join(&*String::from_utf8_lossy(&entry.path));
            Err(Fault::new(format!("{} is a separate repository, which cannot be saved", path.display())))
        }
        None => Ok(()),
    }
}

/// Returns the commits that these state files name.
fn named_commits(cli: &Cli, place: &Place, files: &[&str]) -> Result<Vec<String>, Fault> {
    let mut commits = Vec::new();
    for file in files.iter().filter(|_| place.is_whole) {
        let text = record::read_text(&place.git_dir.join(file)).unwrap_or_default();
        for name in text.lines().filter(|line| !line.is_empty()) {
            commits.extend(objects::commit(cli, &place.git_dir, name)?);
        }
    }
    Ok(commits)
}

pub(super) fn commit(cli: &Cli, place: &Place, tree: &str, message: &str, parents: &[String]) -> Result<String, Fault> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut call = place.call(cli.write(&place.tree)).args(DURABLE).args(PLAIN).args(["-c", "commit.gpgSign=false"]);
    for role in ["AUTHOR", "COMMITTER"] {
        call = call.env(&format!("GIT_{role}_NAME"), "swarm").env(&format!("GIT_{role}_EMAIL"), "swarm@localhost");
        call = call.env(&format!("GIT_{role}_DATE"), format!("{seconds} +0000"));
    }
    call = call.args(["commit-tree", "-m", message]);
    let mut seen = HashSet::new();
    for parent in parents.iter().filter(|parent| seen.insert(*parent)) {
        call = call.args(["-p", parent]);
    }
    Ok(call.arg(tree).line()?)
}

fn message(
    place: &Place,
    path: &Path,
    name: &str,
    changes: usize,
    [index, metadata]: [&String; 2],
    stashed: Option<&String>,
) -> String {
    let none = || "(none)".to_owned();
    let stashed = stashed.map_or_else(String::new, |commit| format!("\nAutostash: {commit}"));
    let doing = place.is_whole.then(|| in_progress(&place.git_dir)).flatten();
    format!(
        "swarm: saved worktree of {name}\n\nWorker: {name}\nPath: {}\nBranch: {}\nHEAD: {}\nDoing: {}\nChanges: {changes}\nIndex: {index}\nParticulars: {metadata}{stashed}",
        path.display(),
        place.branch.clone().unwrap_or_else(none),
        place.head.clone().unwrap_or_else(none),
        doing.map_or_else(none, str::to_owned),
    )
}

fn reference(name: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = jiff::Timestamp::now();
    let unique = now.subsec_nanosecond().unsigned_abs() ^ std::process::id().rotate_left(16);
    let unique = unique.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
    let name = if objects::is_branch_name(name) { name } else { "worker" };
    format!("refs/swarm/trash/{name}/{}-{unique:08x}", now.strftime("%Y%m%dT%H%M%SZ"))
}

/// Verifies that the ref and its objects exist, and that the directory still equals what was
/// saved.
fn verify(cli: &Cli, place: &Place, raw: &Raw, Saved { reference, commit }: &Saved) -> Result<(), Fault> {
    let failed = |what: &str| Fault::new(format!("save {reference} is invalid: {what}"));
    let read = || place.call(cli.read(&place.tree));
    if read().args(["rev-parse", "--verify", "-q", reference]).line_if_any()?.as_ref() != Some(commit) {
        return Err(failed("the ref does not exist"));
    }
    read().args(["cat-file", "-e", &format!("{commit}^{{tree}}")]).run().map_err(|error| failed(&error.to_string()))?;
    let look = || raw.call(cli.read(&place.tree));
    let changed = look().args(["diff-files", "-z", "--name-only", "--ignore-submodules=dirty"]).strict().run()?;
    let new = look().args(["ls-files", "-z", "--others", "--exclude-standard"]).strict().run()?;
    let withheld = include::withheld(&place.common());
    let has_new = new.split(|byte| *byte == 0).any(|path| !path.is_empty() && !withheld.contains(path));
    match changed.is_empty() && !has_new {
        true => Ok(()),
        false => Err(failed("the worktree changed while it was being saved")),
    }
}
