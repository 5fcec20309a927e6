//! Settings of a repository for its worktrees and its trash.

use std::path::Path;

use crate::repository::fault::Fault;
use crate::trash::expiry::TrashPolicy;
pub(crate) use swarm_config::worktree::{Ports, WorktreeSettings};
use swarm_config::{self, Sections};

pub(crate) fn worktree(root: &Path) -> Result<WorktreeSettings, Fault> {
    Ok(read(root)?.worktree)
}

/// Returns the limits after which saves expire.
pub(crate) fn trash(root: &Path) -> Result<TrashPolicy, Fault> {
    let trash = read(root)?.trash;
    Ok(TrashPolicy { max_age: trash.max_age.map(|span| span.0), max_bytes: trash.max_size.map(|size| size.0) })
}

fn read(root: &Path) -> Result<Sections, Fault> {
    // An unreadable file says nothing about the worktree, so a removal must keep the worker's row.
    let wrong = |cause| Fault { is_tool_failure: true, ..Fault::new(cause).remedy("fix the file and try again") };
    swarm_config::load(Some(root)).map_err(wrong)
}
