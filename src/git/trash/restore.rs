//! Restores the save of a removed worktree. The worktree is created in a hidden directory next
//! to its target, filled, verified (saving it again must yield the same ids), and only then
//! moved to the target. A kill at any time leaves the save, and perhaps a hidden directory that
//! the next restore removes.
//!
//! | step | killed right after it |
//! |---|---|
//! | 1 `git worktree add`, locked, in the hidden directory | the next restore removes directory and entry |
//! | 2 files, index, modes, flags; verification | as after 1 |
//! | 3 create the branch if it is missing | the next restore finds it at its commit and uses it; a new name by its reflog |
//! | 4 write the save's ref and the target path into the entry | as after 1 |
//! | 5 move the directory to the target | the next restore unlocks it and reports that it was already restored |
//! | 6 remove the hidden directory, then the lock | the same after 6a; done |
//!
//! The creation and the removal of a worktree complete step 6, too.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use swarm_model::RowWorktree;
use swarm_sys::files::{list, remove_if_present};

use super::branch::{BranchChoice, choose_branch, created};
use super::place::{check_target, target};
use super::raw::{self, Raw};
use super::saved::{self, Save};
use super::{expiry, scratch::Scratch};
use crate::repository::cli::Cli;
use crate::repository::durable::sync_file_systems;
use crate::repository::fault::Fault;
use crate::repository::lock::{self, LOCK_WAIT_MS_MAX};
use crate::repository::plain_ref::{self, Before, Entry};
use crate::repository::{deletion, objects, parse};
use crate::trash::metadata::{self, WorktreeMetadata};
use crate::trash::save::{self, METADATA_FILE, Place};
use crate::worktrees::{admin, copies, make, owner, plan, record};

/// Prefix of the hidden directory's name.
const HIDDEN: &str = ".swarm-restore-";
/// Reason of the worktree lock that keeps git from pruning the entry meanwhile.
const REASON: &str = "swarm is restoring it";
/// File in the worktree's entry with the ref from which the worktree was restored.
const RESTORED: &str = "swarm-restored";

/// Options of a restore.
#[derive(Clone, Debug, Default)]
pub struct RestoreRequest {
    /// Target path; `None` for the original one.
    pub to: Option<PathBuf>,
    /// Name of a new branch to create.
    pub branch: Option<String>,
    /// Whether to delete the save after a complete restore.
    pub drop_save: bool,
    /// State directory, whose verbs find the worktree by the name of its worker. `None`: they do not find it.
    pub state_dir: Option<PathBuf>,
}

/// A restored worktree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredWorktree {
    pub path: PathBuf,
    /// Branch that is checked out; `None` if HEAD is detached.
    pub branch: Option<String>,
    /// Sentences about what differs from the original state.
    pub notes: Vec<String>,
    pub dropped: bool,
}

#[cfg(test)]
pub(crate) fn restore(
    cli: &Cli,
    common: &Path,
    save: &Save,
    request: &RestoreRequest,
) -> Result<RestoredWorktree, Fault> {
    restore_by(cli, common, admin::checkout_of(common), save, request)
}

/// Restores a save of the repository whose base checkout is `base`.
pub(crate) fn restore_by(
    cli: &Cli,
    common: &Path,
    base: Option<&Path>,
    save: &Save,
    request: &RestoreRequest,
) -> Result<RestoredWorktree, Fault> {
    let mut restored = restore_locked(cli, common, save, request)?;
    // Ignored files were not saved, so they are copied from the base checkout again. Done without
    // the lock, because it may be a lot.
    let copied = base.map_or(Ok(()), |base| copy_ignored(cli, common, base, &restored.path));
    if let Err(fault) = copied {
        restored.notes.push(format!("copies and links of [worktree] are missing: {}", fault.cause));
    }
    if let (Some(base), Some(state_dir)) = (base, &request.state_dir)
        && let Err(error) = name_worker(base, state_dir, save, &restored)
    {
        let text = format!("verbs do not find it by the name '{}': {error}", save.name);
        restored.notes.push(text);
    }
    Ok(restored)
}

fn restore_locked(cli: &Cli, common: &Path, save: &Save, request: &RestoreRequest) -> Result<RestoredWorktree, Fault> {
    let _turn = lock::acquire(common, Duration::from_millis(LOCK_WAIT_MS_MAX))?;
    clear_killed(common)?;
    let target = target(common, save, request)?;
    if let Some(entry) = admin::entry_of(common, &target).map_err(Fault::at(&target))?
        && admin::link_of(&target).ok().flatten().is_some_and(|link| admin::resolved(&link) == admin::resolved(&entry))
        && restored_from(&entry).as_ref() == Some(&save.reference)
    {
        let head = objects::head_ref(cli, &entry)?;
        let note = "the save was already restored".to_owned();
        return finish(
            cli,
            common,
            save,
            request,
            RestoredWorktree { path: target, branch: head, notes: vec![note], dropped: false },
        );
    }
    check_target(cli, common, &target)?;
    let choice = choose_branch(cli, common, save, request)?;
    let leaf = target.file_name().unwrap_or_default().to_owned();
    let nest = target.with_file_name(format!("{HIDDEN}{}", save.stamp));
    let hidden = nest.join(leaf);
    // Left by a restore of this save whose entry a power cut took: `clear_killed` cannot have found it.
    admin::remove_all(&nest).map_err(Fault::at(&nest))?;
    let parents = make::make_parents(&hidden)?;
    let mut notes = choice.notes.clone();
    if let Some(doing) = &save.doing {
        notes.extend(unfinished(doing));
    }
    if let Some(others) = save.commits.as_ref().filter(|commits| !commits.is_empty()) {
        let ids: Vec<&str> = others.iter().map(|id| plan::short(id)).collect();
        notes.push(format!("the save also holds {} ('git log ID' shows what is in them)", ids.join(", ")));
    }
    if save.autostash.is_some() {
        notes.push("the changes that it had stashed are in the list of stashes (git stash pop)".to_owned());
    }
    if let Err(fault) =
        build(cli, common, save, &hidden, &choice).and_then(|()| move_into_place(common, save, &hidden, &target))
    {
        let cleared = clear(common, &hidden);
        if let Some(branch) = choice.branch.as_deref().filter(|_| choice.create)
            && let Some(head) = &save.head
        {
            let _ = deletion::delete(cli, common, branch, Some(head));
        }
        parents.iter().rev().for_each(|dir| drop(fs::remove_dir(dir)));
        return Err(match cleared {
            Ok(()) => fault,
            Err(more) => Fault { cause: format!("{}; {}", fault.cause, more.cause), ..fault },
        });
    }
    finish(cli, common, save, request, RestoredWorktree { path: target, branch: choice.branch, notes, dropped: false })
}

/// Records that the worktree is that of the worker, unless another branch than the worker's is checked out.
fn name_worker(base: &Path, state_dir: &Path, save: &Save, restored: &RestoredWorktree) -> io::Result<()> {
    let saved = save.branch.as_deref().map(|full| full.strip_prefix("refs/heads/").unwrap_or(full));
    let Some(branch) = restored.branch.clone().filter(|branch| saved == Some(branch)) else { return Ok(()) };
    let text = |path: &Path| path.to_str().map(str::to_owned).ok_or(io::ErrorKind::InvalidFilename);
    let tree = RowWorktree { path: text(&restored.path)?, branch, base_repo: text(base)? };
    owner::keep_restored(&save.name, &tree, state_dir)
}

/// Returns a note about an operation that was in progress, unless the restore brings it back.
fn unfinished(doing: &str) -> Option<String> {
    // The state files of these operations are restored.
    let is_resumed = ["a merge", "a cherry-pick", "a revert"].contains(&doing);
    let text = format!("{doing} was in progress and is not resumed; the save still holds its commits");
    (!is_resumed).then_some(text)
}

/// Deletes the save if requested, after syncing the restored worktree to disk.
fn finish(
    cli: &Cli,
    common: &Path,
    save: &Save,
    request: &RestoreRequest,
    mut restored: RestoredWorktree,
) -> Result<RestoredWorktree, Fault> {
    sync_file_systems([restored.path.as_path(), common])?;
    if request.drop_save {
        expiry::forget(cli, common, save)?;
        restored.dropped = true;
    }
    restored.branch = restored.branch.map(|full| full.strip_prefix("refs/heads/").unwrap_or(&full).to_owned());
    Ok(restored)
}

fn copy_ignored(cli: &Cli, common: &Path, base: &Path, tree: &Path) -> Result<(), Fault> {
    let settings = crate::worktrees::settings::worktree(base)?;
    let Some(record) = admin::entry_of(common, tree).map_err(Fault::at(tree))? else { return Ok(()) };
    copies::copy_ignored(cli, base, tree, &record, &settings)?;
    copies::link_ignored(cli, base, tree, &settings)
}

/// Performs steps 1 to 3.
fn build(cli: &Cli, common: &Path, save: &Save, hidden: &Path, choice: &BranchChoice) -> Result<(), Fault> {
    let start = save.head.as_ref().unwrap_or(&save.commit);
    let add =
        cli.write(common).for_user().args(["-c", "worktree.useRelativePaths=false", "worktree", "add", "--quiet"]);
    let add = add.args(["--no-checkout", "--detach", "--lock", "--reason", REASON, "--"]).arg(hidden);
    add.arg(start).run()?;
    let entry = admin::entry_of(common, hidden).map_err(Fault::at(hidden))?;
    let entry = entry.ok_or_else(|| Fault::new(format!("git created no worktree at {}", hidden.display())))?;
    let mut place = Place {
        git_dir: entry,
        tree: hidden.to_owned(),
        head: save.head.clone(),
        branch: None,
        is_whole: true,
        common: common.to_owned(),
        view: None,
    };
    fill(cli, common, save, &place)?;
    if let (Some(branch), Some(head), true) = (&choice.branch, &save.head, choice.create) {
        let entry = Entry { why: &created(save), makes: true };
        let made = plain_ref::write(cli, common, (branch, head), Before::Absent, entry);
        made.map_err(|fault| fault.remedy("choose another branch with --branch"))?;
    }
    if let Some(branch) = &choice.branch {
        place.branch = Some(branch.clone());
        place.call(cli.write(hidden)).in_record().args(["symbolic-ref", "HEAD", branch]).run()?;
    }
    save.autostash.as_ref().map_or(Ok(()), |stashed| stash(cli, &place, stashed))
}

/// Adds the changes that a rebase had stashed to the list of stashes, as git does if it cannot apply them. Does nothing
/// if they are there.
fn stash(cli: &Cli, place: &Place, commit: &str) -> Result<(), Fault> {
    let known = ["rev-parse", "--verify", "-q", "refs/stash"];
    if place.call(cli.read(&place.tree)).args(known).line_if_any()?.is_some() {
        let list = ["log", "--walk-reflogs", "--no-show-signature", "--format=%H", "refs/stash", "--"];
        if place.call(cli.read(&place.tree)).args(list).line()?.lines().any(|known| known == commit) {
            return Ok(());
        }
    }
    // As `git stash store` does, which would follow a link in place of the log.
    let entry = Entry { why: "swarm: restored autostash", makes: true };
    plain_ref::write(cli, &place.common, ("refs/stash", commit), Before::Any, entry)
}

/// Performs step 2.
fn fill(cli: &Cli, common: &Path, save: &Save, place: &Place) -> Result<(), Fault> {
    let Some(index) = &save.index else { return Err(Fault::new(format!("{} contains no index", save.reference))) };
    let metadata = match &save.metadata {
        Some(commit) => {
            let blob = format!("{commit}:{METADATA_FILE}");
            WorktreeMetadata::decode(&cli.read(common).args(["cat-file", "blob", &blob]).run()?)
        }
        None => WorktreeMetadata::default(),
    };
    let record = || Fault::at(&place.git_dir);
    metadata::write_state(&place.git_dir, &metadata.state).map_err(record())?;
    copies::mark_changed(&place.git_dir, &metadata.copied).map_err(record())?;
    // The index of saved commits is HEAD itself.
    let is_merged = save.commits.is_some() || !saved::is_unmerged(cli, common, index)?;
    write_files(cli, save, place, &metadata)?;
    write_index(cli, place, index, is_merged, &metadata)?;
    let (now, _) = save::capture(cli, place)?;
    let tree =
        |commit: &str| cli.read(common).args(["rev-parse", "--verify", "-q", &format!("{commit}^{{tree}}")]).line();
    let differs = |what: &str| Fault::new(format!("restored {what} differs from {}", save.reference));
    if now.index != tree(index)? || now.is_merged != is_merged {
        return Err(differs("index"));
    }
    let Some(kept) = &save.metadata else { return Ok(()) };
    if now.tree != save.tree {
        let args = ["diff-tree", "-r", "--name-only", "--no-renames", &save.tree, &now.tree];
        let paths = cli.read(common).args(args).line()?;
        return Err(differs(paths.lines().next().unwrap_or("file")));
    }
    if now.metadata != tree(kept)? {
        let blob = format!("{}:{METADATA_FILE}", now.metadata);
        let found = cli.read(common).args(["cat-file", "blob", &blob]).run()?;
        return Err(differs(&metadata::difference(&metadata.encode(), &found)));
    }
    Ok(())
}

/// Writes the files. Saves of an earlier version contain files as converted by git's filters, so
/// these are converted back.
fn write_files(cli: &Cli, save: &Save, place: &Place, metadata: &WorktreeMetadata) -> Result<(), Fault> {
    let raw = Raw::new(place, &save.tree)?;
    raw.write(cli).args(["read-tree", &save.tree]).run()?;
    let entries = parse::index(&raw.write(cli).args(["ls-files", "-s", "-z"]).run()?);
    // A file may have replaced a directory of such paths.
    let known: HashSet<&[u8]> = entries.iter().map(|entry| entry.path.as_slice()).collect();
    let absent = metadata.absent.iter().filter(|path| known.contains(path.as_slice()));
    raw.skip(cli, &absent.cloned().collect::<Vec<_>>())?;
    let call = match save.metadata {
        Some(_) => raw.write(cli),
        None => place.call(cli.write(&place.tree)).env("GIT_INDEX_FILE", raw.index()),
    };
    call.args(["checkout-index", "--all", "--force", "--quiet"]).run()?;
    metadata.apply(&place.tree, &entries).map_err(Fault::at(&place.tree))
}

fn write_index(
    cli: &Cli,
    place: &Place,
    index: &str,
    is_merged: bool,
    metadata: &WorktreeMetadata,
) -> Result<(), Fault> {
    let write = || place.call(cli.write(&place.tree));
    let intended = || add_intended(cli, place, &metadata.intended);
    if is_merged {
        write().args(["read-tree", index]).run()?;
        intended()?;
    } else {
        write().args(["read-tree", "--empty"]).run()?;
        // First: `git add` of a file would remove the unmerged paths below a directory of that name.
        intended()?;
        let listed = write().args(["ls-tree", "-r", "-z", "--full-tree", index]).run()?;
        let lines = staged(&listed, &metadata.intended);
        raw::feed(write().args(["update-index", "-z", "--index-info"]), &place.git_dir, &lines)?;
    }
    // Refreshes the file times in the index. Failure is harmless: a required filter may be missing.
    if write().args(["update-index", "-q", "--refresh"]).run().is_err() {
        // Nobody else knows this worktree yet, so the lock is that of a git that was killed.
        remove_if_present(&place.git_dir.join("index.lock")).map_err(Fault::at(&place.git_dir))?;
    }
    raw::mark(write(), &place.git_dir, "--assume-unchanged", &metadata.assumed)?;
    raw::mark(write(), &place.git_dir, "--skip-worktree", &metadata.skipped)
}

/// Converts a tree that has a directory per stage into input for `update-index --index-info`.
/// Leaves out the intent-to-add entries, which are files without content in such a tree.
fn staged(listed: &[u8], intended: &[(String, Vec<u8>)]) -> Vec<u8> {
    let intended: HashSet<&[u8]> = intended.iter().map(|(_, path)| path.as_slice()).collect();
    let mut lines = Vec::new();
    for entry in parse::tree(listed) {
        let Some((stage, path)) = entry.path.strip_prefix(b"stage").and_then(|rest| rest.split_first()) else {
            continue;
        };
        let Some(path) = path.strip_prefix(b"/").filter(|path| !intended.contains(path)) else { continue };
        lines.extend_from_slice(format!("{} {} {}\t", entry.mode, entry.id, char::from(*stage)).as_bytes());
        lines.extend_from_slice(path);
        lines.push(0);
    }
    lines
}

/// Adds intent-to-add entries. git adds only paths that exist, so it gets a scratch work tree
/// with empty files of these names.
fn add_intended(cli: &Cli, place: &Place, intended: &[(String, Vec<u8>)]) -> Result<(), Fault> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    if intended.is_empty() {
        return Ok(());
    }
    let stage = Scratch::new(&place.git_dir, "announced").into_path();
    let show = || -> io::Result<()> {
        for (mode, path) in intended {
            let file = stage.join(OsStr::from_bytes(path));
            fs::create_dir_all(file.parent().unwrap_or(&stage))?;
            if mode == "120000" {
                symlink("x", &file)?;
                continue;
            }
            fs::write(&file, b"")?;
            let mode = if mode == "100755" { 0o755 } else { 0o644 };
            fs::set_permissions(&file, fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    };
    let shown = Place { tree: stage.clone(), ..place.clone() };
    let added = show().map_err(Fault::at(&stage)).and_then(|()| {
        let call = shown.call(cli.write(&stage)).env("GIT_LITERAL_PATHSPECS", "1");
        let call = call.args(["add", "-N", "-f", "--sparse", "--pathspec-from-file=-", "--pathspec-file-nul"]);
        let paths: Vec<&[u8]> = intended.iter().map(|(_, path)| path.as_slice()).collect();
        raw::feed(call, &place.git_dir, &paths.join(&0))
    });
    let _ = fs::remove_dir_all(&stage);
    added
}

/// Performs steps 4 to 6.
fn move_into_place(common: &Path, save: &Save, hidden: &Path, target: &Path) -> Result<(), Fault> {
    let entry = admin::entry_of(common, hidden).map_err(Fault::at(hidden))?;
    let entry = entry.ok_or_else(|| Fault::new(format!("git's entry of {} is missing", hidden.display())))?;
    let from = entry.join(RESTORED);
    record::write(&from, format!("{}\n", save.reference).as_bytes()).map_err(Fault::at(&from))?;
    let gitdir = entry.join("gitdir");
    record::write(&gitdir, format!("{}\n", target.join(".git").display()).as_bytes()).map_err(Fault::at(&gitdir))?;
    // Fails unless the directory is empty.
    let _ = fs::remove_dir(target);
    if let Err(error) = renameat_with(CWD, hidden, CWD, target, RenameFlags::NOREPLACE) {
        record::write(&gitdir, format!("{}\n", hidden.join(".git").display()).as_bytes())
            .map_err(Fault::at(&gitdir))?;
        return Err(Fault::at(target)(error.into()));
    }
    unlock(&entry, target);
    Ok(())
}

/// Performs step 6. The lock goes last, because it leads to the hidden directory.
fn unlock(entry: &Path, target: &Path) {
    let from = restored_from(entry).unwrap_or_default();
    let stamp = from.rsplit('/').next().unwrap_or_default();
    let _ = fs::remove_dir(target.with_file_name(format!("{HIDDEN}{stamp}")));
    let _ = fs::remove_file(entry.join("locked"));
}

/// Completes restores that were killed in step 6. The caller holds the creation lock, which proves that no restore is
/// running.
pub(crate) fn complete(common: &Path) {
    for entry in admin::entries(common).unwrap_or_default().into_iter().filter(|entry| is_complete(entry)) {
        admin::tree_of(&entry).inspect(|tree| unlock(&entry, tree));
    }
}

/// Reports whether a worktree was restored and only its lock is left, because the restore was killed or is about to end.
pub(crate) fn is_complete(entry: &Path) -> bool {
    admin::is_locked_for(entry, REASON) && restored_from(entry).is_some() && is_in_place(entry)
}

fn is_in_place(entry: &Path) -> bool {
    // Compared with the record only.
    let link = admin::tree_of(entry).and_then(|tree| admin::link_of(&tree).ok().flatten());
    link.is_some_and(|link| admin::resolved(&link) == admin::resolved(entry))
}

/// Returns the ref of the save from which a worktree was restored.
fn restored_from(entry: &Path) -> Option<String> {
    Some(record::read_text(&entry.join(RESTORED)).ok()?.trim_end().to_owned())
}

/// Removes a hidden directory and the entry of its worktree.
fn clear(common: &Path, hidden: &Path) -> Result<(), Fault> {
    if let Some(entry) = admin::entry_of(common, hidden).map_err(Fault::at(hidden))? {
        admin::remove_tree(hidden).map_err(Fault::at(hidden))?;
        admin::remove(&entry).map_err(Fault::at(&entry))?;
    }
    if let Some(nest) = hidden.parent() {
        let _ = admin::remove_all(nest);
    }
    Ok(())
}

/// Rolls back restores that were killed, or completes them. The creation lock proves that no restore is running.
fn clear_killed(common: &Path) -> Result<(), Fault> {
    for entry in admin::entries(common).map_err(Fault::at(common))? {
        let is_hidden = |path: &Path| {
            let above = path.parent().and_then(Path::file_name);
            above.is_some_and(|name| name.to_string_lossy().starts_with(HIDDEN))
        };
        let tree = admin::tree_of(&entry);
        // A power cut may have taken the lock, or the path that is written after it.
        if !admin::is_locked_for(&entry, REASON) && !tree.as_deref().is_some_and(is_hidden) {
            continue;
        }
        let Some(tree) = tree else {
            admin::remove(&entry).map_err(Fault::at(&entry))?;
            continue;
        };
        if is_hidden(&tree) {
            clear(common, &tree)?;
        } else if is_in_place(&entry) {
            unlock(&entry, &tree);
        } else if admin::lock_reason(&entry).is_some() {
            // Killed between steps 4 and 5: the entry names the target, but the directory was not moved.
            let (above, leaf) = (tree.parent().unwrap_or(common), tree.file_name().unwrap_or_default());
            for nest in list(above).into_iter().flatten() {
                let hidden = nest.path().join(leaf);
                let link = admin::link_of(&hidden).ok().flatten();
                if is_hidden(&hidden) && link.is_some_and(|link| admin::resolved(&link) == admin::resolved(&entry)) {
                    let _ = admin::remove_all(&nest.path());
                }
            }
            admin::remove(&entry).map_err(Fault::at(&entry))?;
        }
    }
    Ok(())
}
