//! Attempts that are given up: their hosts are out of reach, and a person does not want to wait for them.

use swarm_model::run::progress::{Closed, ClosedKind, Mode, Run, Stage};
use swarm_model::run::words::Word;
use swarm_model::run::{Abandoned, Event, far_worker_name, worker_name};
use swarm_model::{Refusal, RefusalKind};

use super::{Effect, Machine, Turn};

impl Machine {
    /// Returns the event that gives up the present attempt of a job.
    ///
    /// # Errors
    /// Refuses it unless the attempt was sent to a host that is out of reach.
    pub fn giving_up(&self, id: &str) -> Result<Event, Refusal> {
        let refuse = |cause: String, remedy: &str| Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy));
        let Some(job) = self.plan.position(id) else {
            let refusal = Refusal::new(RefusalKind::NotFound, format!("workstream '{id}' not found"));
            return Err(refusal.remedy("run 'swarm run status' to see all"));
        };
        let progress = &self.jobs[job];
        let host = progress.host.as_ref().filter(|_| progress.sent && progress.stage == Stage::Working);
        let Some(host) = host else {
            let cause = format!("workstream '{id}' does not work on another host");
            return refuse(cause, "run 'swarm run status' to see where workstreams work");
        };
        if !self.is_out_of_reach(host) {
            let worker = far_worker_name(&worker_name(&self.plan.slug, id), &self.plan.id);
            let cause = format!("workstream '{id}' works on {host}, which answers");
            return refuse(cause, &format!("run 'swarm --host {host} kill {worker}' to end it"));
        }
        Ok(Event::Abandoned { job, attempt: progress.attempt, host: host.clone() })
    }

    fn is_out_of_reach(&self, host: &str) -> bool {
        self.closed.get(host).is_some_and(|closed| closed.kind != ClosedKind::Busy)
    }
}

impl Turn<'_> {
    pub(super) fn abandoned(&mut self, job: usize, attempt: u32, host: &str) {
        let is_meant = |turn: &Self| {
            let progress = &turn.run.jobs[job];
            progress.stage == Stage::Working && progress.sent && progress.host.as_deref() == Some(host)
        };
        if !self.is_present(job, attempt) || !is_meant(self) {
            return;
        }
        let abandoned = Abandoned::new(&self.run.plan.jobs[job].id, attempt, host);
        let since_ms = self.run.closed.get(host).map_or(self.now_ms, |closed| closed.since_ms);
        let away = lasting(self.now_ms.saturating_sub(since_ms));
        let progress = &mut self.run.jobs[job];
        (progress.sent, progress.carried, progress.pid) = (false, false, None);
        progress.stage = if self.run.mode == Mode::Stopping { Stage::Paused } else { Stage::Pending };
        progress.error = Some(format!("attempt {attempt} was given up: {host} was out of reach"));
        progress.given_up = Some(format!(
            "Attempt {attempt} at this task was sent to {host}, which has been out of reach for {away}, and was given up. \
             What it has done is not here. It may come back later, as {}.",
            abandoned.reference()
        ));
        if progress.tip.is_none() {
            // Nothing of the job is here, so that it may begin anywhere.
            (progress.begun, progress.host) = (None, None);
        }
        self.run.abandoned.push(abandoned.clone());
        self.effects.push(Effect::Reclaim(abandoned));
        self.tell(Some(job), Word::Abandoned { attempt, host: host.to_owned() });
    }

    /// Gives up all attempts at a host that is out of reach for too long.
    pub(super) fn lost_due(&mut self, host: &str, since_ms: u64) {
        let is_same = |closed: &Closed| closed.since_ms == since_ms && closed.kind != ClosedKind::Busy;
        if !self.run.closed.get(host).is_some_and(is_same) {
            return;
        }
        for job in 0..self.run.jobs.len() {
            let attempt = self.run.jobs[job].attempt;
            self.abandoned(job, attempt, host);
        }
    }

    pub(super) fn returned(&mut self, id: &str, attempt: u32, host: &str, reference: Option<&String>) {
        let is_it = |one: &&mut Abandoned| one.job == id && one.attempt == attempt && one.host == host && !one.is_back;
        let Some(abandoned) = self.run.abandoned.iter_mut().find(is_it) else { return };
        (abandoned.is_back, abandoned.found_at) = (true, reference.cloned());
        let word = Word::Returned { attempt, host: host.to_owned(), reference: reference.cloned() };
        self.tell(self.run.plan.position(id), word);
    }
}

/// Returns the effects for the attempts that are not back yet.
pub(super) fn to_reclaim(run: &Run) -> Vec<Effect> {
    run.abandoned.iter().filter(|one| !one.is_back).cloned().map(Effect::Reclaim).collect()
}

/// Returns the effect that ends the wait for a host. `None` if the run waits for a person.
pub(super) fn to_wait(run: &Run, host: &str, closed: &Closed) -> Option<Effect> {
    let lost_ms = run.plan.rules.lost_ms.filter(|_| closed.kind != ClosedKind::Busy)?;
    let (host, since_ms) = (host.to_owned(), closed.since_ms);
    Some(Effect::ArmLost { host, since_ms, at_ms: since_ms.saturating_add(lost_ms) })
}

/// Returns a time in words.
fn lasting(ms: u64) -> String {
    let minutes = ms / 60_000;
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{} s", ms / 1000),
        (0, minutes) => format!("{minutes} min"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}
