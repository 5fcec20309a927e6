//! Submodules of a scratch worktree. A verification may have written anything into their directories: a `.git` file that
//! leads to somebody else's repository, or a repository of its own whose configuration names programs. git enters
//! only those whose `.git` file leads to their own repository in the entry of the scratch worktree.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::kept;
use super::scratch::{self, Scratch};
use crate::landing::workspace::Workspace;
use crate::repository::fault::Fault;
use crate::repository::parse;
use crate::worktrees::{admin, plan, submodules};
use swarm_sys::files;

/// Takes the path and the checkout of a submodule. Returns whether git may look for submodules in it.
type Visit<'a> = &'a mut dyn FnMut(&[u8], &Scratch) -> Result<bool, Fault>;

/// Maximum depth of submodules in submodules.
const DEPTH_MAX: usize = 16;

/// Discards what a verification changed in the submodules, also in files that it hid from git.
///
/// # Errors
/// Fails if the repository of a submodule has other settings than before: git might execute what they name. The scratch
/// worktree must be made anew then.
pub(super) fn reset(workspace: &Workspace, scratch: &Scratch) -> Result<(), Fault> {
    each(workspace, scratch, &mut |_, own| {
        if !kept::has_own_settings(workspace, own) {
            return Err(Fault::new(format!(
                "a command changed the settings of the repository {}",
                own.entry.display()
            )));
        }
        scratch::remove_locks(&own.entry);
        kept::put_back(workspace, own)?;
        own.write(workspace).args(["reset", "-q", "--hard"]).run()?;
        kept::keep(workspace, own)?;
        own.write(workspace).args(["clean", "-ffdq"]).run()?;
        Ok(true)
    })
}

/// Checks out the submodules that the base checkout has. Deletes whatever else is in their places.
pub(super) fn check_out(workspace: &Workspace, base: &Path, scratch: &Scratch) -> Result<(), Fault> {
    submodules::check_out(&workspace.cli, base, &scratch.dir, &|above, path| {
        let failed = Fault::at(above);
        let entry = admin::link_of(above).map_err(&failed)?;
        let entry = entry.ok_or_else(|| Fault::new(format!("{} has no .git file", above.display())))?;
        let dir = make_directory(above, Path::new(path)).map_err(&failed)?;
        let above = Scratch { dir: above.to_owned(), entry };
        if own(workspace, &above, &dir)?.is_none() && !plan::is_empty_dir(&dir) {
            files::remove_tree(&dir).and_then(|()| fs::create_dir(&dir)).map_err(Fault::at(&dir))?;
        }
        Ok(())
    })?;
    each(workspace, scratch, &mut |_, own| {
        kept::keep_settings(workspace, own)?;
        kept::keep(workspace, own)?;
        Ok(true)
    })
}

/// Calls `visit` for the path and the checkout of each submodule of a scratch worktree, and then for those in it.
pub(super) fn each(workspace: &Workspace, scratch: &Scratch, visit: Visit<'_>) -> Result<(), Fault> {
    below(workspace, scratch, b"", 0, visit)
}

fn below(workspace: &Workspace, above: &Scratch, prefix: &[u8], depth: usize, visit: Visit<'_>) -> Result<(), Fault> {
    if depth == DEPTH_MAX || !above.entry.join("modules").exists() {
        return Ok(());
    }
    let listed = parse::index(&above.read(workspace).args(["ls-files", "-s", "-z"]).run()?);
    let mut paths: Vec<_> = listed.into_iter().filter(|entry| entry.mode == "160000").map(|entry| entry.path).collect();
    paths.dedup();
    for path in paths {
        let Some(dir) = directory(&above.dir, Path::new(OsStr::from_bytes(&path))) else { continue };
        if let Some(own) = own(workspace, above, &dir)? {
            let path = [prefix, &path].concat();
            if visit(&path, &own)? {
                below(workspace, &own, &[path.as_slice(), b"/"].concat(), depth + 1, visit)?;
            }
        }
    }
    Ok(())
}

/// Returns the submodule that is checked out at `dir`, if its repository is in the entry of the worktree above it, and
/// belongs to this directory.
pub(super) fn own(workspace: &Workspace, above: &Scratch, dir: &Path) -> Result<Option<Scratch>, Fault> {
    let Some(link) = admin::link_of(dir).map_err(Fault::at(dir))? else { return Ok(None) };
    let (modules, entry) = (admin::resolved(&above.entry.join("modules")), admin::resolved(&link));
    if entry == modules || !entry.starts_with(&modules) || !entry.join("HEAD").exists() {
        return Ok(None);
    }
    // Nothing but this value is read from there.
    let call = workspace.read().args(["config", "--file"]).arg(entry.join("config"));
    let Some(place) = call.args(["--get", "core.worktree"]).line_if_any()? else { return Ok(None) };
    let is_here = admin::resolved(&entry.join(place)) == admin::resolved(dir);
    Ok(is_here.then(|| Scratch { dir: dir.to_owned(), entry }))
}

/// Returns the directory `path` below `root`, if it exists and no part of `path` is a symbolic link.
pub(super) fn directory(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut dir = root.to_owned();
    for part in path {
        dir.push(part);
        fs::symlink_metadata(&dir).ok().filter(fs::Metadata::is_dir)?;
    }
    Some(dir)
}

/// Creates the directory `path` below `root`, in place of files and symbolic links.
fn make_directory(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut dir = root.to_owned();
    for part in path {
        dir.push(part);
        match admin::ignore_missing(fs::symlink_metadata(&dir))? {
            Some(found) if found.is_dir() => continue,
            Some(_) => fs::remove_file(&dir)?,
            None => {}
        }
        fs::create_dir(&dir)?;
    }
    Ok(dir)
}
