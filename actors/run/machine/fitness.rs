//! Hosts that cannot execute some of the jobs.

use std::collections::BTreeSet;

use swarm_model::run::progress::{Mode, Run, Stage, Unfit};
use swarm_model::run::words::Word;

use super::{Effect, Turn};

/// Pause before a host is tried again that lacks a program, in milliseconds.
const LACKING_MS: u64 = 300_000;
/// First pause before a host is tried again where something else was in the way. Each further one is twice as long.
const PAUSE_MS: u64 = 10_000;
/// Longest such pause.
const PAUSE_MS_MAX: u64 = 60_000;

impl Turn<'_> {
    /// The attempt was not started. The same number is started elsewhere, or later. If the host lacks a program, that
    /// counts for all jobs that need it.
    pub(super) fn unfit(&mut self, job: usize, attempt: u32, host: &str, program: Option<&str>, cause: &str) {
        if !self.take_back(job, attempt) {
            return;
        }
        let alike = if program.is_some() { self.alike(job) } else { vec![job] };
        let known = |at: &usize| self.run.jobs[*at].unfit.get(host).is_some_and(|unfit| unfit.cause == cause);
        let is_new = !alike.iter().any(known);
        let tries = self.run.jobs[job].unfit.get(host).map_or(1, |unfit| unfit.tries + 1);
        let at_ms = self.now_ms.saturating_add(pause_ms(program.is_some(), tries));
        for at in alike {
            let (program, cause) = (program.map(str::to_owned), cause.to_owned());
            let unfit = Unfit { program, cause, tries, until_ms: Some(at_ms) };
            self.run.jobs[at].unfit.insert(host.to_owned(), unfit);
        }
        self.effects.push(Effect::ArmFit { host: host.to_owned(), at_ms });
        if is_new {
            self.tell(Some(job), Word::HostUnfit { host: host.to_owned(), error: cause.to_owned() });
        }
    }

    /// Takes back an attempt that no host has. Returns false if it is not being started.
    pub(super) fn take_back(&mut self, job: usize, attempt: u32) -> bool {
        if !self.is_present(job, attempt) || self.run.jobs[job].stage != Stage::Working {
            return false;
        }
        let progress = &mut self.run.jobs[job];
        (progress.sent, progress.pid) = (false, None);
        progress.attempt -= 1;
        progress.stage = if self.run.mode == Mode::Stopping { Stage::Paused } else { Stage::Pending };
        true
    }

    pub(super) fn fit_due(&mut self, host: &str, at_ms: u64) {
        let marks = self.run.jobs.iter_mut().filter_map(|progress| progress.unfit.get_mut(host));
        marks.filter(|unfit| unfit.until_ms.is_some_and(|until_ms| until_ms <= at_ms)).for_each(|unfit| {
            unfit.until_ms = None;
        });
    }

    /// The host executes the job, and so has what the job needs.
    pub(super) fn fits(&mut self, job: usize, host: &str) {
        self.run.jobs[job].unfit.remove(host);
        for at in self.alike(job) {
            let unfit = &mut self.run.jobs[at].unfit;
            if unfit.get(host).is_some_and(|unfit| unfit.program.is_some()) {
                unfit.remove(host);
            }
        }
    }

    /// Returns the jobs that need the same program as this one.
    fn alike(&self, job: usize) -> Vec<usize> {
        let jobs = &self.run.plan.jobs;
        (0..jobs.len()).filter(|at| jobs[*at].work.is_like(&jobs[job].work)).collect()
    }
}

/// Returns the pauses that are under way.
pub(super) fn armed(run: &Run) -> impl Iterator<Item = Effect> {
    let marks = run.jobs.iter().flat_map(|progress| &progress.unfit);
    let due: BTreeSet<(String, u64)> =
        marks.filter_map(|(host, unfit)| Some((host.clone(), unfit.until_ms?))).collect();
    due.into_iter().map(|(host, at_ms)| Effect::ArmFit { host, at_ms })
}

/// Returns the pause before the next try.
fn pause_ms(is_lacking: bool, tries: u32) -> u64 {
    if is_lacking { LACKING_MS } else { (PAUSE_MS << tries.saturating_sub(1).min(16)).min(PAUSE_MS_MAX) }
}
