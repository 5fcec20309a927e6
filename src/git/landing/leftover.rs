//! Files of a resolver that do not land. Its scratch worktree is deleted after each try, so they are kept elsewhere: the
//! whole worktree of a try without a result as a save in the trash, single files in a directory of the queue.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use swarm_model::merge::queue::Item;

use super::scratch::{self, Scratch};
use crate::landing::workspace::Workspace;
use crate::repository::fault::Fault;
use crate::repository::objects;
use crate::repository::parse::Change;
use crate::trash::save::{self, Place, StateTrees};
use crate::worktrees::{admin, record};

/// Directory of the queue for single files.
const LEFT: &str = "left";
const UNSAVED: &str = "cannot be saved";

/// State of a scratch worktree: its commit and its files.
pub(super) type State = (Option<String>, StateTrees);

/// Returns the state of a scratch worktree, or `None` if it cannot be read.
pub(super) fn state(workspace: &Workspace, place: &Scratch) -> Option<State> {
    let head = objects::head_of(&place.entry).map(|(head, _)| head).ok();
    let place = place_of(workspace, place).ok()?;
    save::capture(&workspace.cli, &place).map(|(trees, _)| (head, trees)).ok()
}

fn place_of(workspace: &Workspace, place: &Scratch) -> Result<Place, Fault> {
    Place::of(&workspace.cli, &workspace.common, &place.entry, &place.dir, "")
}

/// Saves the scratch worktree of a try without a result, and names the save in the log. Does nothing if the worktree is
/// as it was `before`.
pub(super) fn keep(
    workspace: &Workspace,
    place: &Scratch,
    item: &Item,
    before: Option<&State>,
    log: &Path,
) -> Result<(), Fault> {
    keep_inside(workspace, place, item, log)?;
    // git cannot save a repository in a worktree.
    let changes = save::status(&workspace.cli, &place_of(workspace, place)?, "all")?.into_iter();
    let nested: Vec<Vec<u8>> = changes.filter(Change::is_embedded_repository).map(|change| change.path).collect();
    move_out(workspace, place, item, &[nested, special(workspace, place)?].concat(), log)?;
    if before.is_some() && before == state(workspace, place).as_ref() {
        return Ok(());
    }
    let saved = save::save(&workspace.cli, &place_of(workspace, place)?, &format!("{}.resolver", item.name))?;
    let id = saved.reference.strip_prefix(crate::trash::saved::PREFIX).unwrap_or(&saved.reference);
    append(log, &format!("swarm: the files of this try are saved; run 'swarm restore {id} --to DIR' to see them\n"));
    Ok(())
}

/// Returns the tracked paths at which there is neither a file nor a link nor a directory; git cannot save them either.
fn special(workspace: &Workspace, place: &Scratch) -> Result<Vec<Vec<u8>>, Fault> {
    let listed = place.read(workspace).args(["ls-files", "-z"]).run()?;
    let is_special = |path: &&[u8]| {
        let path = admin::without_links(&place.dir, Path::new(OsStr::from_bytes(path)));
        let found = path.and_then(|path| fs::symlink_metadata(path).ok()).map(|meta| meta.file_type());
        found.is_some_and(|kind| !kind.is_file() && !kind.is_symlink() && !kind.is_dir())
    };
    Ok(listed.split(|byte| *byte == 0).filter(is_special).map(<[u8]>::to_vec).collect())
}

/// Keeps what a try left that was interrupted, before its scratch worktree `name` is used again.
pub(super) fn keep_interrupted(workspace: &Workspace, name: &str, item: &Item, log: &Path) -> Result<(), Fault> {
    let dir = workspace.own.join(name);
    if !dir.try_exists().map_err(Fault::at(&dir))? {
        return Ok(());
    }
    super::run::end_leftovers(&dir)?;
    let why = match scratch::recorded(workspace, &dir)? {
        None => "is damaged".to_owned(),
        Some(entry) => {
            let place = Scratch { dir: dir.clone(), entry };
            match keep(workspace, &place, item, None, log) {
                Ok(()) => {
                    // The next try merges in it: nothing that an earlier one left may be at the place of a submodule.
                    scratch::remove(workspace, &place);
                    return Ok(());
                }
                Err(fault) => format!("{UNSAVED}: {}", fault.cause),
            }
        }
    };
    keep_whole(workspace, &dir, item, log, &why)
}

/// Keeps the scratch worktree of a try as a whole, because of this failure to save its files.
pub(super) fn keep_unsaved(workspace: &Workspace, place: &Scratch, item: &Item, log: &Path, fault: &Fault) {
    let kept = keep_whole(workspace, &place.dir, item, log, &format!("{UNSAVED}: {}", fault.cause));
    if let Err(fault) = kept {
        // The next try begins with it.
        tracing::warn!(cause = %fault.cause, "the worktree of a resolver stays at {}", place.dir.display());
    }
}

/// Moves a scratch worktree as it is to a new directory `left/ITEM-N` of the queue, and says so in the log. It remains a
/// worktree of the repository.
fn keep_whole(workspace: &Workspace, dir: &Path, item: &Item, log: &Path, why: &str) -> Result<(), Fault> {
    let entry = scratch::recorded(workspace, dir)?;
    let kept = new_directory(&workspace.own.join(LEFT), item)?;
    match fs::symlink_metadata(dir) {
        // A directory that is not writable cannot be moved to another one.
        Ok(meta) if meta.is_dir() => {
            let _ = fs::set_permissions(dir, fs::Permissions::from_mode(meta.permissions().mode() | 0o700));
        }
        // Nothing but a directory can replace the new one, which is empty.
        _ => fs::remove_dir(&kept).map_err(Fault::at(&kept))?,
    }
    fs::rename(dir, &kept).map_err(Fault::at(dir))?;
    if let Some(entry) = entry {
        let file = entry.join("gitdir");
        let link = [kept.join(".git").as_os_str().as_bytes(), b"\n"].concat();
        record::write(&file, &link).map_err(Fault::at(&file))?;
    }
    let place = kept.display();
    append(log, &format!("swarm: the worktree of a try {why}; it was moved to {place}\n"));
    Ok(())
}

/// Moves the worktrees inside a scratch worktree out of it, also those in ignored directories.
pub(super) fn keep_inside(workspace: &Workspace, place: &Scratch, item: &Item, log: &Path) -> Result<(), Fault> {
    let common = &workspace.common;
    let inside = admin::trees_inside(common, &place.dir).map_err(Fault::at(common))?;
    let root = admin::resolved(&place.dir);
    let names = inside.iter().filter_map(|tree| tree.strip_prefix(&root).ok());
    let names: Vec<Vec<u8>> = names.map(|name| name.as_os_str().as_bytes().to_vec()).collect();
    move_out(workspace, place, item, &names, log)
}

pub(super) fn append(log: &Path, line: &str) {
    let written = fs::OpenOptions::new().append(true).open(log).and_then(|mut log| log.write_all(line.as_bytes()));
    if let Err(error) = written {
        tracing::warn!(%error, "cannot write to the log of the resolver");
    }
}

/// Moves what is not committed out of the scratch directory, which is deleted next, to a new directory `left/ITEM-N`
/// of the queue. Names the paths and that directory in the log. What is behind a symbolic link is somebody else's and stays.
pub(super) fn move_out(
    workspace: &Workspace,
    place: &Scratch,
    item: &Item,
    out: &[Vec<u8>],
    log: &Path,
) -> Result<(), Fault> {
    // The name of a nested repository ends with a slash.
    let name = |path: &[u8]| PathBuf::from(OsStr::from_bytes(path.strip_suffix(b"/").unwrap_or(path)));
    let found = |name: &PathBuf| {
        let path = admin::without_links(&place.dir, name);
        path.is_some_and(|path| fs::symlink_metadata(path).is_ok())
    };
    let out: Vec<PathBuf> = out.iter().map(|path| name(path)).filter(found).collect();
    if out.is_empty() {
        return Ok(());
    }
    let kept = new_directory(&workspace.own.join(LEFT), item)?;
    let mut names = Vec::new();
    for name in &out {
        // One that was moved before may have held this one.
        let (Some(from), to) = (admin::without_links(&place.dir, name), kept.join(name)) else { continue };
        if let Some(above) = to.parent() {
            fs::create_dir_all(above).map_err(Fault::at(above))?;
        }
        admin::ignore_missing(fs::rename(&from, &to)).map_err(Fault::at(&to))?;
        names.push(name.to_string_lossy());
    }
    let why = "because tools generate such files, or they are repositories or special files";
    let line = format!("swarm: not committed, {why}: {} (moved to {})\n", names.join(", "), kept.display());
    append(log, &line);
    Ok(())
}

/// Creates a directory for what an item's resolver left, beside those of earlier tries.
fn new_directory(above: &Path, item: &Item) -> Result<PathBuf, Fault> {
    fs::create_dir_all(above).map_err(Fault::at(above))?;
    let mut number = 1_u32;
    loop {
        let dir = above.join(format!("{}-{number}", item.id));
        match fs::create_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => return made.map(|()| dir.clone()).map_err(Fault::at(&dir)),
        }
    }
}
