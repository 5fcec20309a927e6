//! What the merge queue says of a run: whether anything lands, and what became of work that was in it when the run ended.

use swarm_model::QueueView;
use swarm_model::merge::queue::{Item, State};
use swarm_model::run::plan::{Job, Plan};
use swarm_model::run::progress::{Mode, Progress, Run, Stage};
use swarm_store::runs::home::Home;
use swarm_store::runs::journal;
use swarm_sys::paths::Paths;

use super::plain;
use crate::board::run as board;
use crate::cli::merge::queues::Queues;
use crate::cli::merge::show::{is_held, warn_held};
use crate::cli::screen::Screen;

/// Queue in which the work of a run lands. `None` if there is none yet, or if it cannot be read.
pub struct RunQueue(Option<QueueView>);

impl RunQueue {
    pub fn of(plan: &Plan, paths: &Paths) -> Self {
        let base = plan.base.as_deref();
        Self(base.and_then(|base| Queues::of_base(&plan.root, base, paths)))
    }

    /// Returns all items of the queue.
    pub fn items(&self) -> &[Item] {
        self.0.as_ref().map_or(&[], |view| &view.queue.items)
    }

    /// Warns if nothing lands until a person does something, although the work of a job is to land.
    pub fn warn_held(&self, plan: &Plan, screen: &mut Screen) {
        if let Some(view) = self.0.as_ref().filter(|_| plan.jobs.iter().any(|job| job.merge)) {
            warn_held(view, screen);
        }
    }

    /// Brings a run that is over to the state in which its work is by now: the queue goes on without it.
    pub fn bring_up_to_date(&self, run: &mut Run) {
        board::bring_up_to_date(run, self.0.as_slice());
    }

    fn item(&self, plan: &Plan, job: &Job, attempt: u32) -> Option<&Item> {
        board::item(self.0.as_ref()?, plan, job, attempt)
    }

    /// Returns what is to be known of work in the queue whose run is over. `None` if it is not there, or the run goes on.
    pub fn still_lands(&self, run: &Run, progress: &Progress) -> Option<String> {
        let is_left = matches!(run.mode, Mode::Over(_)) && progress.stage == Stage::Merging;
        let base = run.plan.base.as_deref().filter(|_| is_left)?;
        let is_held = self.0.as_ref().is_some_and(is_held);
        Some(if is_held {
            "in the merge queue, from which nothing lands now".to_owned()
        } else {
            plain::still_lands(base)
        })
    }
}

/// Names the work that is in the queue although its spec has been changed or removed since: it lands beside what the new
/// plan makes. `is_planned` reports whether a job is planned as it was.
pub fn note_given_up(run: &Run, is_planned: impl Fn(&Job) -> bool, paths: &Paths, screen: &mut Screen) {
    let queue = RunQueue::of(&run.plan, paths);
    for (job, progress) in run.plan.jobs.iter().zip(&run.jobs).filter(|(job, _)| !is_planned(job)) {
        let Some(item) = queue.item(&run.plan, job, progress.attempt) else { continue };
        let base = run.plan.base.as_deref().unwrap_or_default();
        let may_land = !item.state.is_settled() || matches!(item.state, State::Waiting { .. });
        if may_land {
            let text = format!(
                "the work of '{}' as it was planned before is in the merge queue of {base} and lands unless you run \
                 'swarm merge drop {}'",
                job.id, item.name
            );
            screen.aside("note: ", &text);
        }
    }
}

/// Names the work that lands although the run in this home was stopped.
pub fn note_what_lands(home: &Home, paths: &Paths, screen: &mut Screen) {
    let Some(mut run) = journal::replay(home).ok().flatten() else { return };
    let queue = RunQueue::of(&run.plan, paths);
    queue.bring_up_to_date(&mut run);
    for (job, progress) in run.plan.jobs.iter().zip(&run.jobs) {
        if let Some(text) = queue.still_lands(&run, progress) {
            screen.aside("note: ", &format!("{}: {text}", job.id));
        }
    }
}
