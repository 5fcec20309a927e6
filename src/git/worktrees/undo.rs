//! Rolls back a start that never executed, from any stage. A git that was killed leaves
//! a partial checkout, a partial worktree entry or only a branch. Anything that differs
//! from what the start created is saved first. The rollback may be killed after any step
//! and can be repeated.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use swarm_model::WorktreePlan;

use super::remove::{has_initialised_submodules, in_progress};
use super::{admin, record, removable};
use crate::repository::cli::Cli;
use crate::repository::content::{self, Match};
use crate::repository::fault::Fault;
use crate::repository::lock::{self, CreationLock, LOCK_WAIT_MS_MAX};
use crate::repository::{deletion, holders, objects, parse};
use crate::trash::save::{self, Place};
use crate::trash::scratch::Scratch;
use swarm_sys::files;

/// First bytes of an index.
const INDEX_MAGIC: &[u8] = b"DIRC";
/// Maximum number of files that may be truncated because git was still writing them.
const CUT_OFF_FILES_MAX: usize = 64;

pub(crate) fn undo(cli: &Cli, plan: &WorktreePlan) -> Result<(), Fault> {
    if !plan.makes_tree {
        return Ok(());
    }
    let repo = Path::new(&plan.base_repo);
    let path = Path::new(&plan.path);
    let common = match admin::common_dir(repo) {
        // The whole repository was deleted, and its worktree with it.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.exists() => return Ok(()),
        found => found.map_err(Fault::at(repo))?,
    };
    let lock = lock::acquire(&common, Duration::from_millis(LOCK_WAIT_MS_MAX))?;
    holders::wait_for_git_at(path, Duration::from_millis(LOCK_WAIT_MS_MAX))?;
    if plan.makes_branch {
        // Only our own git had a reason to create this branch, so its lock is ours.
        let lock = common.join(format!("refs/heads/{}.lock", plan.branch));
        holders::clear_stale_locks(&[lock], None);
    }
    undo_locked(cli, &common, plan, &lock)
}

pub(crate) fn undo_locked(cli: &Cli, common: &Path, plan: &WorktreePlan, _lock: &CreationLock) -> Result<(), Fault> {
    let path = Path::new(&plan.path);
    let entry = find_entry(common, path)?;
    if let Some(entry) = &entry {
        if let Some(reason) = admin::lock_reason_of_unfinished(entry) {
            return Err(Fault::new(format!("worktree {} is locked: {reason}", path.display())));
        }
        if path.exists() {
            // Created by a hook, for example. A save would not hold its work.
            if let Some(inner) = admin::trees_inside(common, path).map_err(Fault::at(common))?.first() {
                let cause = format!("worktree {} contains the worktree {}", path.display(), inner.display());
                let remedy = format!("run 'git -C {} worktree remove {}'", plan.base_repo, inner.display());
                return Err(Fault::new(cause).remedy(remedy));
            }
            removable::check_mounts(path)?;
            drop_torn_files(entry)?;
            save_changes(cli, common, plan, entry)?;
            admin::remove_tree(path).map_err(Fault::at(path))?;
        }
        admin::remove(entry).map_err(Fault::at(entry))?;
    } else if super::plan::is_empty_dir(path) {
        fs::remove_dir(path).map_err(Fault::at(path))?;
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    for entry in admin::unfinished(common, &name) {
        admin::remove(&entry).map_err(Fault::at(&entry))?;
    }
    if let Some(above) = path.parent().filter(|above| above.to_string_lossy().ends_with("-worktrees")) {
        // Fails unless the directory is empty.
        let _ = fs::remove_dir(above);
    }
    delete_branch(cli, plan)
}

/// Returns the entry of the worktree. git writes the entry first, so a directory without an
/// entry was not created by git, and not by us.
fn find_entry(common: &Path, path: &Path) -> Result<Option<PathBuf>, Fault> {
    // Compared with the record below, and used alone only if it names an entry of this repository without a worktree.
    let link = admin::link_of(path).map_err(Fault::at(path))?;
    if let Some(entry) = admin::entry_of(common, path).map_err(Fault::at(path))? {
        let is_other = link.is_some_and(|link| admin::resolved(&link) != admin::resolved(&entry));
        if is_other || path.join(".git").is_dir() || path.is_symlink() {
            return Err(Fault::new(format!("{} is not the worktree that was created there", path.display())));
        }
        return Ok(Some(entry));
    }
    // A removal that was killed may have deleted the entry's content before the worktree, and a power cut may have taken
    // it; the entry then no longer names its worktree.
    let below = |link: &PathBuf| {
        let above = link.parent().map(admin::resolved);
        above == Some(common.join("worktrees")) && admin::tree_of(link).is_none()
    };
    if let Some(link) = link {
        return Ok(Some(link).filter(below));
    }
    // A power cut may have taken both names.
    let dot_git = path.join(".git");
    let is_torn = dot_git.is_file() && record::read(&dot_git).is_ok_and(|text| admin::is_torn(&text));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(admin::unfinished(common, &name).into_iter().next().filter(|_| is_torn))
}

/// Removes the files of an entry whose content a power cut took. git fails on them, and does without them or they are
/// known from the plan.
fn drop_torn_files(entry: &Path) -> Result<(), Fault> {
    for name in ["HEAD", "commondir", "index"] {
        let file = entry.join(name);
        let content = admin::ignore_missing(record::read(&file)).map_err(Fault::at(&file))?;
        let is_torn =
            |content: &Vec<u8>| admin::is_torn(content) || (name == "index" && !content.starts_with(INDEX_MAGIC));
        if content.as_ref().is_some_and(is_torn) {
            fs::remove_file(&file).map_err(Fault::at(&file))?;
        }
    }
    Ok(())
}

fn save_changes(cli: &Cli, common: &Path, plan: &WorktreePlan, entry: &Path) -> Result<(), Fault> {
    let path = Path::new(&plan.path);
    let files = files::list(path).map_err(Fault::at(path))?;
    if files.iter().all(|file| file.file_name() == ".git") && !entry.join("index").exists() {
        return Ok(());
    }
    let place = Place::of(cli, common, entry, path, &plan.base.commit)?;
    if is_unmodified(cli, plan, &place)? {
        return Ok(());
    }
    if has_initialised_submodules(entry) {
        return Err(Fault::new(format!("worktree {} has submodules, which cannot be saved", path.display())));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    save::save(cli, &place, &name).map(|_| ())
}

fn is_unmodified(cli: &Cli, plan: &WorktreePlan, place: &Place) -> Result<bool, Fault> {
    let tip = objects::branch_tip(cli, Path::new(&plan.base_repo), &plan.branch)?;
    let expected = match plan.makes_branch {
        true => plan.base.commit.clone(),
        false => tip.unwrap_or_else(|| plan.base.commit.clone()),
    };
    if place.head.as_ref() != Some(&expected) || (place.is_whole && in_progress(&place.git_dir).is_some()) {
        return Ok(false);
    }
    // Filters may make files differ from their blobs; git takes them into account.
    if place.is_whole && save::status(cli, place, "all").is_ok_and(|changes| changes.is_empty()) {
        return Ok(save::hidden_changes(cli, place)? == 0);
    }
    // A partial index proves nothing about the files, so compare their content.
    if place.is_whole && !index_matches_head(cli, place)? {
        return Ok(false);
    }
    is_partial_checkout(cli, place, &expected)
}

/// Reports whether the index holds nothing that HEAD does not.
fn index_matches_head(cli: &Cli, place: &Place) -> Result<bool, Fault> {
    let changes = save::status(cli, place, "no")?;
    // With a missing index, status reports every file as deleted from it.
    let has_index = place.git_dir.join("index").exists();
    Ok(!has_index || changes.iter().all(|change| change.staged == b' '))
}

/// Reports whether each file in the directory equals, or is a truncated copy of, the file at
/// the same path in the commit.
fn is_partial_checkout(cli: &Cli, place: &Place, commit: &str) -> Result<bool, Fault> {
    let listed = place.call(cli.read(&place.tree)).args(["ls-tree", "-r", "-z", "--full-tree", commit]).run()?;
    let expected: HashMap<Vec<u8>, parse::Entry> =
        parse::tree(&listed).into_iter().map(|entry| (entry.path.clone(), entry)).collect();
    let mut found = Vec::new();
    if !collect(&place.tree, Path::new(""), &mut found).map_err(Fault::at(&place.tree))? {
        return Ok(false);
    }
    let Some(wanted) = found.iter().map(|path| expected.get(path.as_os_str().as_bytes())).collect::<Option<Vec<_>>>()
    else {
        return Ok(false);
    };
    let is_link = |entry: &&parse::Entry| entry.mode == "120000";
    let (links, plain): (Vec<_>, Vec<_>) = found.iter().zip(wanted).partition(|(_, entry)| is_link(entry));
    let mut differing = links;
    let ids = hash_files(cli, place, &plain)?;
    differing.extend(plain.into_iter().zip(ids).filter(|((_, entry), id)| entry.id != *id).map(|(pair, _)| pair));
    if differing.iter().filter(|(_, entry)| !is_link(entry)).count() > CUT_OFF_FILES_MAX {
        return Ok(false);
    }
    for (path, entry) in differing {
        let blob = || place.call(cli.read(&place.tree)).args(["cat-file", "blob", &entry.id]);
        let full = place.tree.join(path);
        let failed = Fault::at(&full);
        let is_same = if fs::symlink_metadata(&full).map_err(&failed)?.is_symlink() {
            let is_target = |blob: &[u8]| fs::read_link(&full).is_ok_and(|to| to.as_os_str().as_bytes() == blob);
            is_link(&entry) && is_target(&blob().run()?)
        } else {
            // Not in memory: the file may be large.
            let mut whole = Scratch::new(&place.git_dir, "blob").create()?;
            blob().output(whole.try_clone().map_err(&failed)?).run()?;
            whole.rewind().map_err(&failed)?;
            let found = fs::File::open(&full).map_err(&failed)?;
            content::compare(found, whole).map_err(&failed)? != Match::Other
        };
        if !is_same {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Lists files and symbolic links below `dir`, except the worktree's `.git`. Returns `false`
/// if anything else exists there.
fn collect(root: &Path, below: &Path, found: &mut Vec<PathBuf>) -> io::Result<bool> {
    for file in files::list(&root.join(below))? {
        let path = below.join(file.file_name());
        let kind = file.file_type()?;
        if path == Path::new(".git") {
            continue;
        }
        // Paths are passed to git one per line.
        if path.as_os_str().as_bytes().contains(&b'\n') {
            return Ok(false);
        }
        if kind.is_dir() {
            if !collect(root, &path, found)? {
                return Ok(false);
            }
        } else if kind.is_file() || kind.is_symlink() {
            found.push(path);
        } else {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the blob ids of the files as they are on disk, without filters.
fn hash_files(cli: &Cli, place: &Place, files: &[(&PathBuf, &parse::Entry)]) -> Result<Vec<String>, Fault> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let mut scratch = Scratch::new(&place.git_dir, "paths");
    let mut list = scratch.create()?;
    for (path, _) in files {
        let full = place.tree.join(path);
        if fs::symlink_metadata(&full).is_ok_and(|metadata| metadata.is_symlink()) {
            // A symbolic link in place of a file; its target must not be read.
            return Ok(vec![String::new(); files.len()]);
        }
        let mut line = full.into_os_string();
        line.push("\n");
        list.write_all(line.as_bytes()).map_err(Fault::at(&place.git_dir))?;
    }
    list.rewind().map_err(Fault::at(&place.git_dir))?;
    let out =
        place.call(cli.read(&place.tree)).args(["hash-object", "--no-filters", "--stdin-paths"]).input(list).line()?;
    let ids: Vec<String> = out.lines().map(str::to_owned).collect();
    if ids.len() == files.len() { Ok(ids) } else { Err(Fault::new("git hash-object printed a wrong number of ids")) }
}

/// Deletes the branch if this start created it, it still points to its first commit, and no
/// other worktree has it checked out.
fn delete_branch(cli: &Cli, plan: &WorktreePlan) -> Result<(), Fault> {
    let repo = Path::new(&plan.base_repo);
    if !plan.makes_branch || objects::branch_tip(cli, repo, &plan.branch)?.as_ref() != Some(&plan.base.commit) {
        return Ok(());
    }
    let full = format!("refs/heads/{}", plan.branch);
    let listed = parse::worktrees(&cli.read(repo).args(["worktree", "list", "--porcelain", "-z"]).run()?);
    if listed.iter().any(|one| one.branch.as_deref() == Some(&full)) {
        return Ok(());
    }
    let common = admin::common_dir(repo).map_err(Fault::at(repo))?;
    deletion::delete(cli, &common, &full, Some(&plan.base.commit)).map(drop)
}
