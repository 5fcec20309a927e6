//! Which worktree a directory is. Its `.git` file can be written by the worker's agent, so it is never followed: the
//! repository's record must name the directory, and the file must name this record. After this check, git gets both
//! paths as arguments.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::admin;
use super::remove::REMOVING;
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::trash::save::Place;

/// Returns the linked worktree of `base_repo` at `path`, or `None` if nothing exists at `path`.
///
/// # Errors
/// Fails if the directory is something else, or if it has lost its `.git` file.
pub(crate) fn open(cli: &Cli, path: &Path, base_repo: &Path) -> Result<Option<Place>, Fault> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Fault::at(path)(error)),
        Ok(_) => {}
    }
    let (common, entry) = find(path, base_repo)?;
    let place = Place::of(cli, &common, &entry, path, "")?;
    if entry.join(REMOVING).exists() {
        return Err(Fault::new(format!("{} is being removed", path.display())));
    }
    if !place.is_whole {
        return Err(Fault::new(format!("git's administrative files for {} are incomplete", path.display())));
    }
    Ok(Some(place))
}

/// Returns the common directory and the entry of `path`. Fails unless `path` is a linked
/// worktree of `base_repo`.
pub(crate) fn find(path: &Path, base_repo: &Path) -> Result<(PathBuf, PathBuf), Fault> {
    let common = admin::common_dir(base_repo).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Fault::new(format!("the repository {} no longer exists", base_repo.display())),
        _ => Fault::at(base_repo)(error),
    })?;
    let shown = path.display();
    // Through a symbolic link, git would work on a directory that only the link names.
    if !fs::symlink_metadata(path).map_err(Fault::at(path))?.is_dir() {
        return Err(Fault::new(format!("{shown} is not a directory")));
    }
    if path.join(".git").is_dir() {
        return Err(Fault::new(format!("{shown} is a separate repository, not a worktree")));
    }
    if admin::resolved(path) == admin::resolved(base_repo) {
        return Err(Fault::new(format!("{shown} is the base checkout of its workers, not a worktree")));
    }
    let foreign = || Fault::new(format!("{shown} is not a worktree of {}", base_repo.display()));
    let entry = admin::entry_of(&common, path).map_err(Fault::at(path))?.ok_or_else(foreign)?;
    match admin::link_of(path).map_err(Fault::at(path))? {
        Some(link) if admin::resolved(&link) == admin::resolved(&entry) => {}
        Some(_) => return Err(foreign()),
        // A removal that was killed may have deleted this file first.
        None if entry.join(REMOVING).exists() => {}
        None => {
            return Err(Fault::new(format!("{shown} has no .git file"))
                .remedy(format!("run 'git -C {} worktree repair {shown}'", base_repo.display())));
        }
    }
    Ok((common, entry))
}
