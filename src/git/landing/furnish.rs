//! Sets up the verification directory like a worker's worktree: with submodules, copies, links and the user's
//! `post_create` command, by the same settings. Otherwise what passes in a worktree would fail there.

use std::fs;
use std::path::Path;

use swarm_model::merge::queue::Rules;

use super::modules;
use super::scratch::{self, Edits, Leftovers, Scratch};
use crate::landing::workspace::Workspace;
use crate::repository::fault::Fault;
use crate::worktrees::hook::Home;
use crate::worktrees::setup::{self, Bare};
use crate::worktrees::{admin, copies, record, settings};

/// File in the entry of a scratch worktree with the settings by which it was set up.
pub(super) const MARK: &str = "swarm-set-up";

/// Sets up a scratch worktree that was just prepared. Submodules follow each commit; the rest is done once, and again
/// if the settings or copied files changed, or ignored files were deleted. Returns the tracked files that the setup changed, as the
/// user's `post_create` may do.
pub(crate) fn furnish(
    workspace: &Workspace,
    scratch: &Scratch,
    rules: &Rules,
    leftovers: Leftovers,
) -> Result<Edits, Fault> {
    let recorded = rules.checkout.as_deref().map(Path::new).filter(|base| base.exists());
    let Some(base) = admin::checkout_of(&workspace.common).or(recorded) else { return Ok(Edits::default()) };
    let wanted = settings::with_commands(base, &workspace.cli)?;
    if wanted.submodules {
        modules::check_out(workspace, base, scratch)?;
    }
    let text = format!("{wanted:?}\n{}", String::from_utf8_lossy(&copies::included(base)?));
    let mark = scratch.entry.join(MARK);
    let known = admin::ignore_missing(record::read_text(&mark)).map_err(Fault::at(&mark))?;
    let is_set_up = known.as_ref() == Some(&text);
    let stale = copies::stale(base, &scratch.entry);
    if is_set_up && stale.is_empty() && leftovers == Leftovers::Keep {
        return Ok(Edits::default());
    }
    // The mark goes first: a setup that is interrupted starts again.
    admin::ignore_missing(fs::remove_file(&mark)).map_err(Fault::at(&mark))?;
    if known.is_none() {
        // Files of a setup that was interrupted, or cut off by a loss of power, may be incomplete.
        scratch::clean(workspace, scratch, Leftovers::Delete)?;
    }
    copies::remove(&scratch.dir, &stale)?;
    let state_dir = workspace.own.ancestors().nth(2).unwrap_or(Path::new("/")).to_owned();
    let home = Home {
        executable: workspace.executable.clone(),
        state_dir,
        logs: workspace.own.join("logs"),
        strangers: |_, _, _| Ok(()),
    };
    let bare = Bare { base, tree: &scratch.dir, record: &scratch.entry };
    setup::furnish(&workspace.cli, &bare, &wanted, Some(&home))?;
    let made = Edits::read(workspace, scratch)?;
    record::write(&mark, text.as_bytes()).map_err(Fault::at(&mark))?;
    Ok(made)
}
