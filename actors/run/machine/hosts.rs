//! Jobs whose attempts work on other hosts.

use swarm_model::run::Event;
use swarm_model::run::progress::{Closed, ClosedKind, Mode, Progress, Run, Stage};
use swarm_model::run::words::Word;

use super::abandon::to_wait;
use super::pauses::refused_ms;
use super::{Effect, Turn};

/// First pause before a host is tried again that is out of reach, in milliseconds. Each further one is twice as long.
const AWAY_MS: u64 = 1_000;
/// First pause before a host is tried again that is full.
const BUSY_MS: u64 = 10_000;
/// Longest pause before a host is tried again.
const PAUSE_MS_MAX: u64 = 60_000;

/// Reports whether the present attempt has a worker that may run: here, as a job or on a host.
pub(super) fn has_worker(progress: &Progress) -> bool {
    progress.pid.is_some() || progress.submitted || progress.sent
}

impl Turn<'_> {
    /// The worker of the attempt runs, here or on its host.
    pub(super) fn started(&mut self, job: usize, pid: i32) {
        self.run.jobs[job].pid = Some(pid).filter(|pid| *pid != 0);
        self.run.jobs[job].submitted = pid == 0 && self.run.jobs[job].host.is_none();
        self.run.jobs[job].begun = self.run.plan.topic_of(&self.run.plan.jobs[job]);
        // From here on, an attempt that leaves nothing to land has failed.
        (self.run.jobs[job].conflicted, self.run.jobs[job].conflict_tip) = (false, None);
        self.run.jobs[job].stuck = None;
        match self.run.jobs[job].host.clone() {
            Some(host) => {
                self.found(&host, Some((job, self.run.jobs[job].attempt)));
                self.fits(job, &host);
            }
            // Its worktree has the work that was done on hosts, and goes on from there.
            None => self.run.jobs[job].tip = None,
        }
        // A stop that came during the start found no worker to end.
        if self.run.mode == Mode::Stopping && self.run.jobs[job].stage == Stage::Working {
            self.effects.push(Effect::Stop { job });
        }
    }

    /// The attempt belongs to its host from here on.
    pub(super) fn sent(&mut self, job: usize, attempt: u32, host: &str) {
        if !self.is_present(job, attempt) || self.run.jobs[job].stage != Stage::Working || self.run.jobs[job].sent {
            return;
        }
        let progress = &mut self.run.jobs[job];
        (progress.sent, progress.host) = (true, Some(host.to_owned()));
        (progress.away_ms, progress.stuck) = (None, None);
        if !progress.visited.iter().any(|known| known == host) {
            progress.visited.push(host.to_owned());
        }
        let worker = swarm_model::run::worker_name(&self.run.plan.slug, &self.run.plan.jobs[job].id);
        self.tell(Some(job), Word::Started { attempt, worker, host: Some(host.to_owned()) });
    }

    /// The attempt was not started. The same number is started elsewhere, or later.
    pub(super) fn unplaced(&mut self, job: usize, attempt: u32, host: &str, kind: ClosedKind, cause: &str) {
        if self.take_back(job, attempt) {
            self.close(host, kind, cause);
        }
    }

    /// Stops an attempt that is being sent: it is not started.
    pub(super) fn withhold(&mut self, job: usize) {
        let progress = &mut self.run.jobs[job];
        progress.stage = Stage::Paused;
        progress.attempt -= 1;
    }

    /// Starts nothing on the host until a later time.
    fn close(&mut self, host: &str, kind: ClosedKind, cause: &str) {
        let earlier = self.run.closed.get(host);
        if earlier.is_some_and(|closed| closed.until_ms.is_some()) {
            // Several attempts found the same.
            return;
        }
        let is_new = earlier.is_none_or(|closed| (closed.kind, closed.cause.as_str()) != (kind, cause));
        let tries = earlier.map_or(1, |closed| closed.tries + 1);
        // The same outage, although the host may say something else now.
        let before = earlier.filter(|closed| (closed.kind == ClosedKind::Busy) == (kind == ClosedKind::Busy));
        let since_ms = before.map_or(self.now_ms, |closed| closed.since_ms);
        let refusals = earlier.map_or(0, |closed| closed.refusals) + u32::from(kind == ClosedKind::Refused);
        let at_ms = self.now_ms.saturating_add(pause_ms(kind, tries, refusals));
        self.effects.push(Effect::ArmHost { host: host.to_owned(), at_ms, is_away: kind == ClosedKind::Away });
        let closed = Closed { kind, cause: cause.to_owned(), tries, refusals, since_ms, until_ms: Some(at_ms) };
        self.run.closed.insert(host.to_owned(), closed);
        if is_new {
            self.tell(None, Word::HostAway { host: host.to_owned(), error: cause.to_owned() });
        }
    }

    pub(super) fn lost(&mut self, host: &str, cause: &str, of: Option<(usize, u32)>) {
        self.close(host, ClosedKind::Away, cause);
        let of = of.filter(|(job, attempt)| self.is_present(*job, *attempt) && self.run.jobs[*job].is_out());
        if let Some((job, _)) = of
            && self.run.jobs[job].away_ms.is_none()
        {
            self.run.jobs[job].away_ms = Some(self.now_ms);
            self.effects.extend(to_wait(self.run, &self.run.jobs[job]));
        }
    }

    pub(super) fn stuck(&mut self, job: usize, attempt: u32, cause: &str) {
        if self.is_present(job, attempt) && self.run.jobs[job].is_out() {
            self.run.jobs[job].stuck = Some(cause.to_owned());
        }
    }

    /// The host answers, about this attempt if there is one.
    pub(super) fn found(&mut self, host: &str, of: Option<(usize, u32)>) {
        if let Some((job, _)) = of.filter(|(job, attempt)| self.is_present(*job, *attempt)) {
            self.run.jobs[job].away_ms = None;
        }
        if self.run.closed.remove(host).is_some() {
            self.tell(None, Word::HostBack { host: host.to_owned() });
        }
    }

    pub(super) fn host_due(&mut self, host: &str) {
        if let Some(closed) = self.run.closed.get_mut(host) {
            closed.until_ms = None;
        }
    }

    /// The run ends although an attempt goes on at its host. The next run finds it there.
    pub(super) fn unreached(&mut self, job: usize, attempt: u32) {
        if self.is_present(job, attempt) && self.run.mode == Mode::Stopping {
            let progress = &mut self.run.jobs[job];
            if progress.stage == Stage::Working {
                progress.stage = Stage::Paused;
                self.tell(Some(job), Word::Paused { attempt });
            }
        }
    }

    pub(super) fn fetched(&mut self, job: usize, attempt: u32, event: &Event) {
        let Event::Fetched { tip, left_out, ignored, kept, .. } = event else { return };
        if self.is_present(job, attempt) && self.run.jobs[job].stage == Stage::Working {
            let progress = &mut self.run.jobs[job];
            // What an earlier attempt has left stays, if this one was lost with its worktree.
            progress.tip = tip.clone().or(progress.tip.take());
            progress.left_out.clone_from(left_out);
            progress.ignored.clone_from(ignored);
            progress.stuck = None;
            let host = progress.host.clone().filter(|_| !kept.is_empty());
            if let Some(host) = host {
                self.tell(Some(job), Word::Kept { attempt, host, references: kept.clone() });
            }
        }
    }

    /// Reports the ignored files that go with the worktree of a job on its host.
    pub(super) fn tell_ignored(&mut self, job: usize) {
        let files = std::mem::take(&mut self.run.jobs[job].ignored);
        let host = self.run.jobs[job].host.clone();
        if host.is_some() && !files.is_empty() {
            self.tell(Some(job), Word::Ignored { files, host });
        }
    }
}

/// Returns the effects that wait for hosts that are closed.
pub fn armed(run: &Run) -> impl Iterator<Item = Effect> {
    run.closed.iter().filter_map(|(host, closed)| {
        let is_away = closed.kind == ClosedKind::Away;
        Some(Effect::ArmHost { host: host.clone(), at_ms: closed.until_ms?, is_away })
    })
}

/// Returns the pause before the next try of a host.
fn pause_ms(kind: ClosedKind, tries: u32, refusals: u32) -> u64 {
    let first = match kind {
        ClosedKind::Away => AWAY_MS,
        ClosedKind::Busy => BUSY_MS,
        ClosedKind::Refused => return refused_ms(refusals),
    };
    (first << tries.saturating_sub(1).min(16)).min(PAUSE_MS_MAX)
}
