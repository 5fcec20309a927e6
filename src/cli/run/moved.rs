//! A run whose repository was moved: its workers are known at the old place, where nothing is any more.

use std::fs;
use std::path::{Path, PathBuf};

use swarm_model::run::plan::Plan;
use swarm_model::{Caller, Refusal, RefusalKind};
use swarm_store::runs::home::Home;
use swarm_store::runs::journal;
use swarm_store::views::{Detail, Pick, load_where};
use swarm_sys::files::is_absent;
use swarm_sys::paths::Paths;
use swarm_sys::quoting::command_line;

use super::tidy;
use crate::cli::error::Failure;
use crate::cli::screen::Screen;

/// Returns the worktrees of a run whose link to git leads to the old place.
fn cut_off(plan: &Plan, trees: &Path) -> Vec<String> {
    let is_cut_off = |tree: &PathBuf| {
        let link = fs::read_to_string(tree.join(".git")).unwrap_or_default();
        link.strip_prefix("gitdir: ").is_some_and(|entry| is_absent(&tree.join(entry.trim_end())))
    };
    let trees = plan.jobs.iter().map(|job| trees.join(job.leaf())).filter(is_cut_off);
    trees.map(|tree| tree.to_string_lossy().into_owned()).collect()
}

/// Forgets the workers that a run began before its repository was moved, so that those of the same names start in the
/// worktrees as they are now. Does nothing as long as anything is at the old place.
///
/// # Errors
/// Fails if git does not know the worktrees at their new place, if the registry cannot be read, or if the supervisor cannot be
/// reached.
pub fn forget_workers(
    plan: &Plan,
    home: &Home,
    caller: &Caller,
    paths: &Paths,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let Ok(begun) = journal::begun(home) else { return Ok(()) };
    let begun = &begun.plan;
    if begun.id != plan.id || begun.root == plan.root || !is_absent(Path::new(&begun.root)) {
        return Ok(());
    }
    let cut_off = cut_off(begun, &home.worktrees());
    if !cut_off.is_empty() {
        let cause = format!("the project was moved from {}, and git does not know its worktrees here", begun.root);
        let words = ["git", "-C", &plan.root, "worktree", "repair"];
        let repair = command_line(words.into_iter().chain(cut_off.iter().map(String::as_str)));
        return Err(Refusal::new(RefusalKind::Invalid, cause).remedy(format!("run '{repair}'")).into());
    }
    let trees = Home::new(&begun.home).worktrees();
    let tag = format!("run:{}", plan.id);
    let registry = load_where(paths, Detail::Word, Pick::All)?;
    for row in registry.workers.iter().map(|view| &view.row).filter(|row| row.tags.contains(&tag)) {
        if row.worktree.as_ref().is_some_and(|tree| Path::new(&tree.path).starts_with(&trees)) {
            tidy::forget(&row.name, caller, paths, &mut |refusal| screen.warning(&refusal.cause))?;
        }
    }
    Ok(())
}
