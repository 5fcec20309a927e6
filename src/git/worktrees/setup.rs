//! Sets up a new worktree beyond its commit: submodules, copies, links, and the user's
//! `post_create` command. Setup can be repeated and rolled back.

use std::path::Path;

use swarm_model::WorktreePlan;

use super::hook::{self, Home, Hook};
use super::settings::{self, WorktreeSettings};
use super::{admin, copies, submodules};
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;

/// Worktree without anything but its commit.
pub(crate) struct Bare<'a> {
    pub(crate) base: &'a Path,
    pub(crate) tree: &'a Path,
    /// The worktree's entry in the repository.
    pub(crate) record: &'a Path,
}

pub(crate) fn set_up(cli: &Cli, plan: &WorktreePlan, home: Option<&Home>) -> Result<(), Fault> {
    let (base, tree) = (Path::new(&plan.base_repo), Path::new(&plan.path));
    let settings = settings::with_commands(base, cli)?;
    let common = admin::common_dir(base).map_err(Fault::at(base))?;
    let record = admin::entry_of(&common, tree).map_err(Fault::at(tree))?;
    let record = record.ok_or_else(|| Fault::new(format!("{} is not a linked worktree", tree.display())))?;
    if settings.submodules {
        // git discovers the worktree by its `.git` file, which it has just written: no agent has run there.
        submodules::check_out(cli, base, tree, &|_, _| Ok(()))?;
    }
    furnish(cli, &Bare { base, tree, record: &record }, &settings, home)
}

/// Brings copies and links, and runs the user's command.
pub(crate) fn furnish(
    cli: &Cli,
    bare: &Bare<'_>,
    settings: &WorktreeSettings,
    home: Option<&Home>,
) -> Result<(), Fault> {
    let Bare { base, tree, record } = *bare;
    copies::copy_ignored(cli, base, tree, record, settings)?;
    copies::link_ignored(cli, base, tree, settings)?;
    let Some(command) = &settings.post_create else { return Ok(()) };
    hook::run(home, cli, &Hook { key: "post_create", command, limit: settings.limit(), tree, base_repo: base })
}
