//! What the configuration of a repository says about its worktrees and saves.

use std::path::Path;

use super::expiry::TrashPolicy;
use super::fault::Fault;
pub(super) use crate::config::worktree::{Ports, WorktreeSettings};
use crate::config::{self, Sections};

pub(super) fn worktree(root: &Path) -> Result<WorktreeSettings, Fault> {
    Ok(read(root)?.worktree)
}

/// When saves are to go by themselves.
pub(super) fn trash(root: &Path) -> Result<TrashPolicy, Fault> {
    let trash = read(root)?.trash;
    Ok(TrashPolicy { max_age: trash.max_age.map(|span| span.0), max_bytes: trash.max_size.map(|size| size.0) })
}

fn read(root: &Path) -> Result<Sections, Fault> {
    config::load(Some(root)).map_err(|cause| Fault::new(cause).remedy("mend the file, then try again"))
}
