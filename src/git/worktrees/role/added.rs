//! Removes the files that a killed merge has written to the worktree of a role and that its HEAD does not have.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::Git;
use crate::repository::fault::Fault;
use crate::repository::index;
use crate::trash::raw;
use crate::trash::save;
use crate::trash::scratch::Scratch;
use crate::worktrees::admin;

/// A file that `commit` adds to HEAD and that exists in the worktree.
struct Added {
    /// Mode and id in the commit.
    entry: String,
    name: Vec<u8>,
    path: PathBuf,
    meta: Metadata,
}

/// Removes the files that `commit` adds to HEAD if they have the content of the commit, or the start of it if they were
/// written after `begun`, the file that was written before the merge. Any other file is somebody's work, and so is
/// a file that is reached through a symbolic link.
pub(super) fn remove(git: &Git, commit: &str, begun: &Metadata) -> Result<(), Fault> {
    let found = found(git, commit)?;
    if found.is_empty() {
        return Ok(());
    }
    let changed = changed(git, &found)?;
    for added in found {
        if !changed.contains(&added.name) || is_part(git, commit, &added, begun)? {
            admin::ignore_missing(fs::remove_file(&added.path)).map_err(Fault::at(&added.path))?;
        }
    }
    Ok(())
}

fn found(git: &Git, commit: &str) -> Result<Vec<Added>, Fault> {
    let tree = &git.place.tree;
    let root = tree.canonicalize().map_err(Fault::at(tree))?;
    let added =
        ["diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--diff-filter=A", "HEAD", commit, "--"];
    let listed = git.read().args(added).run()?;
    let mut fields = listed.split(|byte| *byte == 0);
    let mut found = Vec::new();
    // `:000000 MODE NONE ID A`, then the path.
    while let (Some(head), Some(name)) = (fields.next(), fields.next()) {
        let head = String::from_utf8_lossy(head);
        let (Some(mode), Some(id)) = (head.split(' ').nth(1), head.split(' ').nth(3)) else { continue };
        let Some(path) = admin::without_links(&root, Path::new(OsStr::from_bytes(name))) else { continue };
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        // A submodule is a directory.
        if meta.is_file() || meta.is_symlink() {
            found.push(Added { entry: format!("{mode} {id}"), name: name.to_vec(), path, meta });
        }
    }
    Ok(found)
}

/// Returns the names of the files whose content, after git's conversions, is not that of the commit.
fn changed(git: &Git, found: &[Added]) -> Result<HashSet<Vec<u8>>, Fault> {
    let (place, scratch) = (&git.place, Scratch::new(&git.place.git_dir, "added"));
    let lines = found.iter().flat_map(|added| [added.entry.as_bytes(), b"\t", &added.name, b"\0"].concat());
    let lines: Vec<u8> = lines.collect();
    let step = || save::step(&git.cli, place, &scratch);
    raw::feed(step().args(["update-index", "-z", "--index-info"]), &place.git_dir, &lines)?;
    // The new entries know no file times, so each file is read.
    index::refresh(step())?;
    let changed = step().args(["diff-files", "-z", "--name-only", "--ignore-submodules=dirty"]).run()?;
    Ok(changed.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect())
}

/// Reports whether git wrote a part of the file before it was killed.
fn is_part(git: &Git, commit: &str, added: &Added, begun: &Metadata) -> Result<bool, Fault> {
    let is_earlier = (added.meta.ctime(), added.meta.ctime_nsec()) < (begun.mtime(), begun.mtime_nsec());
    if is_earlier || !added.meta.is_file() {
        return Ok(false);
    }
    let mut blob = OsString::from(format!("{commit}:"));
    blob.push(OsStr::from_bytes(&added.name));
    let whole = git.read().args(["cat-file", "--filters"]).arg(blob).run()?;
    let part = fs::read(&added.path).map_err(Fault::at(&added.path))?;
    Ok(whole.starts_with(&part))
}
