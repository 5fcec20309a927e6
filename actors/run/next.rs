//! Choice of the next job.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use swarm_model::run::progress::{Run, Stage};

/// Returns the job to start next: of those that may start and have a place, the first by priority and then by the order of the plan.
/// Those that continue with an answer go before new work.
pub(super) fn next(run: &Run, is_placed: impl Fn(usize) -> bool) -> Option<usize> {
    let (plan, jobs) = (&run.plan, &run.jobs);
    ready(run)
        .filter(|at| is_placed(*at))
        .max_by_key(|at| (jobs[*at].answered.is_some(), plan.jobs[*at].priority, std::cmp::Reverse(*at)))
}

/// Returns the jobs that may start as soon as they have a place.
pub(super) fn ready(run: &Run) -> impl Iterator<Item = usize> {
    let (plan, jobs) = (&run.plan, &run.jobs);
    // Computed only if a job has dependencies.
    let done = OnceCell::new();
    let is_done = move |id: &String| {
        let named = || plan.jobs.iter().zip(jobs).filter(|(_, job)| job.stage == Stage::Done);
        done.get_or_init(|| named().map(|(job, _)| job.id.as_str()).collect::<BTreeSet<_>>()).contains(id.as_str())
    };
    let working = OnceCell::new();
    let is_full = move |group: &str| {
        let count = || {
            let mut count = BTreeMap::<&str, usize>::new();
            // A job that waits for an answer has begun what no other of its group may do meanwhile.
            let is_begun = |stage: &Stage| matches!(stage, Stage::Working | Stage::Asking { .. });
            let at_work = plan.jobs.iter().zip(jobs).filter(|(_, job)| is_begun(&job.stage));
            let groups = at_work.filter_map(|(job, _)| job.group.as_deref());
            groups.for_each(|group| *count.entry(group).or_default() += 1);
            count
        };
        let limit = plan.rules.groups.get(group).copied().unwrap_or(1).max(1);
        working.get_or_init(count).get(group).is_some_and(|working| *working >= limit)
    };
    let may = move |at: &usize| {
        let job = &plan.jobs[*at];
        jobs[*at].stage == Stage::Pending
            && job.after.iter().all(&is_done)
            && !job.group.as_deref().is_some_and(&is_full)
    };
    (0..jobs.len()).filter(may)
}
