//! Copies of the indexes that swarm left in a scratch worktree and its submodules. The commands that are executed there may
//! write into the index that git uses. With the stat data of a changed file in it, git would take that file for
//! unchanged, so that a later commit would be verified with a file that is not in it. The kept index has the times and inodes of
//! the files as swarm left them, and git sees each file that was written since.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use super::scratch::Scratch;
use crate::landing::workspace::Workspace;
use crate::repository::fault::Fault;
use crate::worktrees::{admin, record};
use swarm_sys::files;

/// Directory of the copies, in the directory of the queue.
const DIR: &str = "kept";
/// Maximum length of a file name in bytes.
const NAME_BYTES_MAX: usize = 255;
/// What decides in the repository of a submodule what git executes, and how it writes files.
const SETTINGS: [&str; 6] =
    ["config", "config.worktree", "commondir", "info/attributes", "info/exclude", "info/sparse-checkout"];

/// Returns the file of a copy. Submodules in deep directories have none.
fn file(workspace: &Workspace, scratch: &Scratch, what: &str) -> Option<PathBuf> {
    let place = scratch.dir.strip_prefix(&workspace.own).ok()?.as_os_str().as_bytes();
    let name = place.iter().map(|byte| if *byte == b'/' { b'%' } else { *byte });
    let name: Vec<u8> = name.chain(format!(".{what}").bytes()).collect();
    (name.len() <= NAME_BYTES_MAX).then(|| workspace.own.join(DIR).join(OsString::from_vec(name)))
}

/// Keeps the index of a scratch worktree as swarm has just left it.
pub(super) fn keep(workspace: &Workspace, scratch: &Scratch) -> Result<(), Fault> {
    let Some(copy) = file(workspace, scratch, "index") else { return Ok(()) };
    let copied = fs::create_dir_all(workspace.own.join(DIR))
        .and_then(|()| admin::copy_index(&scratch.entry.join("index"), &copy));
    copied.map_err(Fault::at(&copy))
}

/// Puts the kept index back if a command changed the index since, or removes an index of which there is no copy. Returns whether
/// there is no index any more.
pub(super) fn put_back(workspace: &Workspace, scratch: &Scratch) -> Result<bool, Fault> {
    let index = scratch.entry.join("index");
    let kept = file(workspace, scratch, "index");
    if let Some(kept) = kept.filter(|kept| !files::is_absent(kept)) {
        if !is_same(&index, &kept).map_err(Fault::at(&kept))? {
            if index.is_dir() {
                files::remove_tree(&index).map_err(Fault::at(&index))?;
            }
            admin::copy_index(&kept, &index).map_err(Fault::at(&index))?;
        }
        return Ok(false);
    }
    let removed = admin::ignore_missing(fs::remove_file(&index)).map_err(Fault::at(&index))?;
    Ok(removed.is_some())
}

/// Reports whether two indexes have the same content and were last changed at the same time, by which git decides which files it
/// compares.
fn is_same(index: &Path, kept: &Path) -> io::Result<bool> {
    let Some(now) = admin::ignore_missing(fs::symlink_metadata(index))? else { return Ok(false) };
    let then = fs::symlink_metadata(kept)?;
    let is_plain = now.is_file() && now.len() == then.len() && now.modified()? == then.modified()?;
    Ok(is_plain && record::read(index)? == record::read(kept)?)
}

/// Keeps the settings of a submodule's repository.
pub(super) fn keep_settings(workspace: &Workspace, module: &Scratch) -> Result<(), Fault> {
    let Some(copy) = file(workspace, module, "settings") else { return Ok(()) };
    let text = settings(&module.entry).map_err(Fault::at(&module.entry))?;
    let dir = workspace.own.join(DIR);
    fs::create_dir_all(&dir).and_then(|()| record::write(&copy, &text)).map_err(Fault::at(&copy))
}

/// Reports whether the settings of a submodule's repository are those that were kept.
pub(super) fn has_own_settings(workspace: &Workspace, module: &Scratch) -> bool {
    let known = file(workspace, module, "settings").and_then(|copy| record::read(&copy).ok());
    known.is_some() && known == settings(&module.entry).ok()
}

/// Returns the content of all settings, each with its name and length.
fn settings(entry: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for name in SETTINGS {
        if let Some(content) = admin::ignore_missing(record::read(&entry.join(name)))? {
            text.extend(format!("{name} {}\n", content.len()).into_bytes());
            text.extend(content);
        }
    }
    Ok(text)
}

/// Removes the copies of a scratch worktree that is removed.
pub(super) fn forget(workspace: &Workspace, scratch: &Scratch) {
    let Some(name) = scratch.dir.file_name().map(|name| name.as_bytes()) else { return };
    let is_of = |file: &fs::DirEntry| {
        let of = file.file_name();
        of.as_bytes().strip_prefix(name).is_some_and(|rest| rest.starts_with(b".") || rest.starts_with(b"%"))
    };
    for file in files::list_if_present(&workspace.own.join(DIR)).unwrap_or_default().iter().filter(|file| is_of(file)) {
        let _ = fs::remove_file(file.path());
    }
}
