//! Attempts that are given up: their hosts are out of reach, or their work cannot be taken, and a person does not want to wait.

use swarm_model::run::progress::{Mode, Progress, Run, Stage};
use swarm_model::run::words::Word;
use swarm_model::run::{Abandoned, Event, far_worker_name, worker_name};
use swarm_model::{Refusal, RefusalKind};

use super::{Effect, Machine, Turn};

impl Machine {
    /// Returns the event that gives up the present attempt of a job.
    ///
    /// # Errors
    /// Refuses it unless the attempt was sent to a host that is out of reach, or from where its work cannot be taken.
    pub fn giving_up(&self, id: &str) -> Result<Event, Refusal> {
        let refuse = |cause: String, remedy: &str| Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy));
        let Some(job) = self.plan.position(id) else {
            let refusal = Refusal::new(RefusalKind::NotFound, format!("workstream '{id}' not found"));
            return Err(refusal.remedy("run 'swarm run status' to see all"));
        };
        let progress = &self.jobs[job];
        let host = progress.host.as_ref().filter(|_| progress.is_out());
        let Some(host) = host else {
            let cause = format!("workstream '{id}' does not work on another host");
            return refuse(cause, "run 'swarm run status' to see where workstreams work");
        };
        if progress.away_ms.is_none() && progress.stuck.is_none() {
            let worker = far_worker_name(&worker_name(&self.plan.slug, id), &self.plan.id);
            let cause = format!("workstream '{id}' works on {host}, which answers");
            return refuse(cause, &format!("run 'swarm --host {host} kill {worker}' to end it"));
        }
        Ok(Event::Abandoned { job, attempt: progress.attempt, host: host.clone() })
    }
}

impl Turn<'_> {
    pub(super) fn abandoned(&mut self, job: usize, attempt: u32, host: &str) {
        let is_meant = |progress: &Progress| progress.is_out() && progress.host.as_deref() == Some(host);
        if !self.is_present(job, attempt) || !is_meant(&self.run.jobs[job]) {
            return;
        }
        let abandoned = Abandoned::new(&self.run.plan.jobs[job].id, attempt, host);
        let progress = &mut self.run.jobs[job];
        let (away_ms, stuck) = (progress.away_ms.take(), progress.stuck.take());
        let (why, told) = match stuck.filter(|_| away_ms.is_none()) {
            Some(cause) => {
                let told = format!("{host}, from where its work could not be taken ({cause})");
                (cause, told)
            }
            None => {
                let away = lasting(self.now_ms.saturating_sub(away_ms.unwrap_or(self.now_ms)));
                (format!("{host} was out of reach"), format!("{host}, which has been out of reach for {away}"))
            }
        };
        (progress.sent, progress.carried, progress.pid) = (false, false, None);
        progress.stage = if self.run.mode == Mode::Stopping { Stage::Paused } else { Stage::Pending };
        progress.error = Some(format!("attempt {attempt} was given up: {why}"));
        progress.given_up = Some(format!(
            "Attempt {attempt} at this task was sent to {told}, and was given up. \
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

    /// Gives up the attempts at a host that cannot be reached since this time, which is too long.
    pub(super) fn lost_due(&mut self, host: &str, since_ms: u64) {
        for job in 0..self.run.jobs.len() {
            let Progress { attempt, away_ms, .. } = self.run.jobs[job];
            if away_ms == Some(since_ms) {
                self.abandoned(job, attempt, host);
            }
        }
    }

    /// Handles what was heard of an attempt that was given up. Its job need not be in the plan.
    pub(super) fn heard_of_given_up(&mut self, event: &Event) {
        let (Event::Returned { id, attempt, host, .. }
        | Event::Gone { id, attempt, host }
        | Event::Held { id, attempt, host, .. }) = event
        else {
            return;
        };
        let is_it =
            |one: &&mut Abandoned| one.job == *id && one.attempt == *attempt && one.host == *host && !one.is_back;
        let Some(abandoned) = self.run.abandoned.iter_mut().find(is_it) else { return };
        let (attempt, host, job) = (*attempt, host.clone(), self.run.plan.position(id));
        match event {
            Event::Returned { reference, more, .. } => {
                (abandoned.is_back, abandoned.found_at, abandoned.waits) = (true, reference.clone(), None);
                self.tell(job, Word::Returned { attempt, host: host.clone(), reference: reference.clone() });
                if !more.is_empty() {
                    self.tell(job, Word::Kept { attempt, host, references: more.clone() });
                }
            }
            Event::Held { cause, .. } => abandoned.waits = Some(cause.clone()),
            _ if abandoned.is_gone => {}
            _ => {
                (abandoned.is_gone, abandoned.waits) = (true, None);
                self.tell(job, Word::Gone { attempt, host });
            }
        }
    }
}

/// Returns the effects for the attempts that are not back yet.
pub(super) fn to_reclaim(run: &Run) -> Vec<Effect> {
    run.abandoned.iter().filter(|one| !one.is_back).cloned().map(Effect::Reclaim).collect()
}

/// Returns the effect that ends the wait for an attempt. `None` if its host answers, or if the run waits for a person.
pub(super) fn to_wait(run: &Run, progress: &Progress) -> Option<Effect> {
    let (lost_ms, since_ms) = (run.plan.rules.lost_ms?, progress.away_ms?);
    let host = progress.host.clone()?;
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
