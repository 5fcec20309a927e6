//! Attempts whose workers are jobs of a batch system: when one has ended, and when the next may begin in its place.
//!
//! | job | the attempt |
//! |---|---|
//! | waits, works, or nothing is known | is at work |
//! | has an exit record | has ended, as for every worker |
//! | is over, its end is proven | is lost; the next one begins |
//! | is over, and may still work on a node | is at work until the node answers, its record appears, a person gives the worker up, or the run is stopped |
//! | was stopped by a person, without a record | was stopped |

use std::time::Duration;

use ractor::call_t;
use swarm_model::run::progress::{Mode, Now};
use swarm_model::run::{FaultKind, Outcome};
use swarm_model::{ExitRecord, Job, Over, Refusal, RefusalKind, SpawnRequest, Spawned, WantedState};
use swarm_ports::{DirFacts, MAY_WORK};

use super::CALL_MS_MAX;
use super::attend::{EffectRunner, not_started};
use super::message::RunMessage;
use crate::worker::{ended, tried};

/// Pause between two looks at the records of a job that may still work on a node. A network file system tells nobody of changes.
const LOOK: Duration = Duration::from_secs(5);
/// Number of looks between two questions to the batch system about its node.
const LOOKS: u32 = 6;

/// End of a worker, with what is known of its job.
#[derive(Debug, Default)]
pub(super) struct End {
    pub exit: Option<ExitRecord>,
    /// `None` if the worker was a process, or is forgotten.
    job: Option<Job>,
    /// Whether it was stopped on request.
    is_stopped: bool,
}

impl End {
    fn of(facts: Option<DirFacts>) -> Self {
        let Some(facts) = facts else { return Self::default() };
        let is_stopped = facts.wanted.state == WantedState::Stopped;
        Self { exit: facts.exit, job: facts.lease.job, is_stopped }
    }

    /// Reports whether the job may still work on a node.
    fn is_open(&self) -> bool {
        let is_unproven = self.job.as_ref().is_some_and(|job| job.over == Some(Over::Unproven));
        self.exit.is_none() && !self.is_stopped && is_unproven
    }

    /// Returns the outcome in view of what the batch system says about the job.
    pub(super) fn told(&self, outcome: Outcome) -> Outcome {
        let Some(job) = &self.job else { return outcome };
        let Outcome::Failure { fault: FaultKind::Lost, evidence, .. } = outcome else { return outcome };
        if self.exit.is_none() && self.is_stopped {
            return Outcome::Stopped;
        }
        let cause = match &self.exit {
            Some(_) => "its job was ended by a signal that swarm did not send",
            None => "its job ended without an exit record",
        };
        let said = job.said().map_or_else(String::new, |said| format!(": Slurm says {said}"));
        Outcome::Failure { cause: format!("{cause}{said}"), evidence, fault: FaultKind::Lost }
    }
}

/// Reports whether a start was refused because the job before it may still work.
fn waits_for_job(refusal: &Refusal) -> bool {
    refusal.kind == RefusalKind::Tool && refusal.passes && refusal.cause.ends_with(MAY_WORK)
}

impl EffectRunner {
    /// Starts the worker of an attempt. Waits while the job of an earlier one may still work in the same place.
    ///
    /// # Errors
    /// Returns the outcome of the attempt if its worker was not started.
    pub(super) async fn started(&self, request: &SpawnRequest) -> Result<Spawned, Outcome> {
        loop {
            match self.fleet.spawn(request.clone()).await {
                Ok(spawned) => return Ok(spawned),
                Err(refusal) if waits_for_job(&refusal) => {
                    tracing::info!(worker = %request.name, cause = %refusal.cause, "an attempt waits for an earlier job");
                }
                Err(_) => {
                    let spawned = tried(|| self.fleet.spawn(request.clone())).await;
                    match spawned {
                        Err(refusal) if waits_for_job(&refusal) => {}
                        spawned => return spawned.map_err(|refusal| not_started(&refusal)),
                    }
                }
            }
            for _ in 0..LOOKS {
                if self.is_stopping().await {
                    return Err(Outcome::Stopped);
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// Waits until the worker of an attempt has ended. A job that is over and may still work has not ended.
    pub(super) async fn end_here(&self, now: &Now, generation: u64) -> End {
        let name = now.worker();
        let exit = ended(&self.ports, &name, generation).await;
        if exit.is_some() && !self.is_job(&name, generation).await {
            return End { exit, ..End::default() };
        }
        let mut looks = 0;
        loop {
            let end = match self.ports.records.observe(&name, generation).await {
                Ok(facts) => End::of(facts),
                Err(error) => {
                    tracing::warn!(worker = %name, %error, "cannot read the records of a job yet");
                    if self.is_stopping().await {
                        return End::default();
                    }
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
            };
            if !end.is_open() || self.is_stopping().await {
                return end;
            }
            if looks % LOOKS == 0 && self.ports.jobs.check_gone(&name, generation).await.is_ok() {
                // Its record may have appeared meanwhile.
                let facts = self.ports.records.observe(&name, generation).await;
                return facts.map_or(end, End::of);
            }
            looks += 1;
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn is_job(&self, name: &str, generation: u64) -> bool {
        let facts = self.ports.records.observe(name, generation).await;
        facts.is_ok_and(|facts| facts.is_some_and(|facts| facts.lease.job.is_some()))
    }

    /// Reports whether the run is being stopped, or is over.
    async fn is_stopping(&self) -> bool {
        let run = call_t!(self.actor, RunMessage::Look, CALL_MS_MAX);
        run.map_or(true, |run| !matches!(run.mode, Mode::Running | Mode::Held))
    }
}
