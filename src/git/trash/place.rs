//! The place where a save is restored.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::restore::RestoreRequest;
use super::saved::Save;
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::worktrees::{admin, plan};

/// Returns the target path, with the symbolic links above it resolved.
pub(super) fn target(common: &Path, save: &Save, request: &RestoreRequest) -> Result<PathBuf, Fault> {
    let usual = save.commits.as_ref().and_then(|_| plan::place_of(common, &save.name));
    let path = request.to.clone().or(save.path.clone()).or(usual);
    let Some(path) = path.filter(|path| path.is_absolute()) else {
        return Err(Fault::new("the save has no path").remedy("choose a target with --to"));
    };
    match (path.parent(), path.file_name()) {
        (Some(above), Some(leaf)) => Ok(admin::resolved(above).join(leaf)),
        _ => Err(Fault::new(format!("{} cannot be a worktree", path.display()))),
    }
}

/// Fails if something exists at the target or git has an entry for it that must stay.
pub(super) fn check_target(cli: &Cli, common: &Path, target: &Path) -> Result<(), Fault> {
    match fs::symlink_metadata(target) {
        Ok(_) if plan::is_empty_dir(target) => {}
        Ok(_) => {
            return Err(Fault::new(format!("{} already exists", target.display()))
                .remedy("move it away, or choose another target with --to"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(Fault::at(target)(error)),
    }
    if let Some(entry) = admin::entry_of(common, target).map_err(Fault::at(target))? {
        plan::check_abandoned(cli, common, &entry, target)?;
        admin::remove(&entry).map_err(Fault::at(&entry))?;
    }
    Ok(())
}
