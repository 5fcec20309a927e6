//! `swarm run --retry-failed`: a failed workstream without work of its own starts again from the base as it is now.

use std::path::Path;

use swarm_model::merge::queue::Item;
use swarm_model::run::beginning::Beginning;
use swarm_model::run::plan::{Plan, Work};
use swarm_model::run::progress::Stage;
use swarm_model::run::worker_name;
use swarm_model::{Caller, QueueView, RefusalKind};
use swarm_ports::WorktreeError;
use swarm_store::repositories::{branch_tip, check_free, contains, remove_without_work};
use swarm_store::runs::before_the_next;
use swarm_store::runs::home::Home;
use swarm_sys::paths::Paths;

use super::plan::alone;
use super::tidy;
use crate::cli::error::Failure;
use crate::cli::merge::queues::Queues;
use crate::cli::screen::Screen;

/// Removes worktree and branch of each failed workstream whose branch has nothing that the base does not have, so that
/// its next attempt makes both from the present base. A workstream with work keeps it; a note says so if the base has
/// moved. `plan` is the plan of the next run. Does nothing while a run is in progress.
///
/// # Errors
/// Fails if the supervisor cannot be reached.
pub fn failed(plan: &Plan, caller: &Caller, paths: &Paths, screen: &mut Screen) -> Result<(), Failure> {
    let home = &Home::new(&plan.home);
    let Ok(_lock) = alone(home, paths) else { return Ok(()) };
    let Some(run) = before_the_next(home).ok().flatten() else { return Ok(()) };
    let Some(base) = &run.plan.base else { return Ok(()) };
    let beginning = Beginning::new(plan, Some(&run), true);
    let root = Path::new(&run.plan.root);
    let Ok(Some(now)) = branch_tip(root, base, caller) else { return Ok(()) };
    let queues = Queues::read_all(paths)?.0;
    for (job, progress) in run.plan.jobs.iter().zip(&run.jobs).filter(|(_, progress)| progress.stage == Stage::Failed) {
        let Some(branch) = &job.branch else { continue };
        if plan.jobs.iter().any(|next| next.id == job.id && beginning.continued(next).is_none()) {
            // It starts over, on a branch of its own.
            continue;
        }
        if matches!(job.work, Work::Command(_)) && progress.begun.is_none() {
            // The branch is somebody else's.
            continue;
        }
        let Ok(Some(tip)) = branch_tip(root, branch, caller) else { continue };
        if contains(root, branch, &now, caller) {
            continue;
        }
        let name = worker_name(&run.plan.slug, &job.id);
        if queues.iter().any(|queue| has_landed(queue, &name, &tip)) {
            // A person added the work. The next attempt sees it, and that nothing is left to do.
            continue;
        }
        let is_empty = contains(root, base, &tip, caller);
        let tree = home.worktrees().join(job.leaf());
        if let Err(WorktreeError::Used(worker)) = check_free(&tree, paths) {
            screen.warning(&format!("workstream '{}' keeps its branch: {}", job.id, tidy::used_by(&worker)));
            continue;
        }
        if is_empty && remove_without_work(job.leaf(), &tree, root, (branch.as_str(), base.as_str()), paths, caller) {
            tidy::forget(&name, caller, paths, &mut |refusal| {
                if refusal.kind != RefusalKind::NotFound {
                    screen.warning(&refusal.cause);
                }
            })?;
            screen.aside("note: ", &format!("workstream '{}' starts again from {base} as it is now", job.id));
        } else {
            let text = format!(
                "workstream '{}' continues its earlier work on {branch}, without what is new on {base}; to bring it up \
                 to date: git -C {} merge {base}",
                job.id,
                tree.display()
            );
            screen.aside("note: ", &text);
        }
    }
    Ok(())
}

/// Reports whether this tip of a worker has landed.
fn has_landed(queue: &QueueView, worker: &str, tip: &str) -> bool {
    let is_it = |item: &Item| item.name == worker && item.work() == tip && item.state.commit().is_some();
    queue.queue.items.iter().any(is_it)
}
