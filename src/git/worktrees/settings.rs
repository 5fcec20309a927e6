//! Settings of a repository for its worktrees and its trash.

use std::path::Path;

use super::admin;
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::trash::expiry::TrashPolicy;
use swarm_config::trust::Untrusted;
pub(crate) use swarm_config::worktree::{Ports, WorktreeSettings};
use swarm_config::{self, Sections};

/// Returns the settings for everything but the user's commands.
pub(crate) fn worktree(root: &Path) -> Result<WorktreeSettings, Fault> {
    Ok(read(root)?.worktree)
}

/// Returns the settings together with the commands, after a check that somebody was asked about them. `cli` has the
/// environment of whoever is refused.
pub(crate) fn with_commands(root: &Path, cli: &Cli) -> Result<WorktreeSettings, Fault> {
    let sections = read(root)?;
    let refused = |untrusted: Untrusted| {
        let Untrusted { cause, remedy, .. } = untrusted.to(&cli.environment);
        Fault { is_tool_failure: true, ..Fault::new(cause).remedy(remedy) }
    };
    sections.unasked.require(&["worktree"]).map_err(refused)?;
    Ok(sections.worktree)
}

/// Returns the limits after which saves expire; none without consent.
pub(crate) fn trash(root: &Path) -> Result<TrashPolicy, Fault> {
    let trash = read(root)?.trash;
    Ok(TrashPolicy { max_age: trash.max_age.map(|span| span.0), max_bytes: trash.max_size.map(|size| size.0) })
}

/// Reads the configuration of the main checkout, also for a root that is a linked worktree: what a person is asked about
/// is read there.
fn read(root: &Path) -> Result<Sections, Fault> {
    let common = admin::common_dir(root).ok();
    let root = common.as_deref().and_then(admin::checkout_of).unwrap_or(root);
    // An unreadable file says nothing about the worktree, so a removal must keep the worker's row.
    let wrong = |cause| Fault { is_tool_failure: true, ..Fault::new(cause).remedy("fix the file and try again") };
    swarm_config::load(Some(root)).map_err(wrong)
}
