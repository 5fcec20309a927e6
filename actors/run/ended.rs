//! The event that tells people, outside of the run's own files, that a run has ended. Pure functions.

use swarm_model::EventKind;
use swarm_model::run::progress::{Progress, Run, Stage};
use swarm_model::run::words::Word;

/// Maximum number of workstreams that the event names.
const NAMES_MAX: usize = 20;

/// Returns the event for the last report of a run; `None` for any other report.
pub(super) fn event(run: &Run, last: &Word) -> Option<EventKind> {
    let Word::RunCompleted { status, done, failed, pending } = last else { return None };
    let named = |is: fn(&Progress) -> bool| {
        let those = run.plan.jobs.iter().zip(&run.jobs).filter(|(_, progress)| is(progress));
        those.map(|(job, _)| job.id.clone()).take(NAMES_MAX).collect::<Vec<_>>()
    };
    Some(EventKind::RunEnded {
        run: run.plan.id.clone(),
        name: run.plan.slug.clone(),
        home: run.plan.home.clone(),
        status: status.clone(),
        done: *done,
        failed: *failed,
        pending: *pending,
        failures: named(|job| job.stage == Stage::Failed),
        waits: named(|job| match job.stage {
            // Otherwise it goes on by itself.
            Stage::Waiting => !job.continues,
            Stage::Asking { .. } => true,
            _ => false,
        }),
    })
}

/// Returns the request under which the event is on record, so that it is not sent again after a crash. `number` is that of
/// the last report.
pub(super) fn key(run: &Run, number: u64) -> String {
    format!("ended/{number}/{}", run.plan.id)
}
