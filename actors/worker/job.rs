//! Workers that are jobs of a batch system: they have no process on this machine.

use super::actor::{Life, State};
use super::message::WorkerMessage;
use swarm_model::{Over, Refusal};
use swarm_ports::DirFacts;

impl State {
    /// Reports whether the generation that this actor supervises is a job.
    pub(super) fn is_job(&self) -> bool {
        self.life.as_ref().is_some_and(|life: &Life| life.is_job)
    }

    /// Watches the job of the present generation.
    pub(super) fn watch_job(&mut self) {
        let Some(generation) = self.life.as_ref().map(|life| life.generation) else { return };
        let over = self.ports().jobs.over(self.name(), generation);
        let myself = self.myself.clone();
        self.task(async move {
            over.await;
            let _ = myself.cast(WorkerMessage::ShimGone { generation });
        });
    }

    /// Ends the job of a generation, and waits until it has ended.
    pub(super) async fn stop_job(&mut self, generation: u64) -> Result<(), Refusal> {
        let stopped = self.ports().jobs.stop(self.name(), generation).await;
        stopped.map_err(|refusal| refusal.of(self.name()))?;
        let facts = self.observe(generation).await?;
        self.life_over(generation, facts).await
    }

    /// Ends what an earlier generation without an exit record has left, before another start.
    ///
    /// # Errors
    /// Fails if something of it lives on, or may.
    pub(super) async fn end_earlier(&self, facts: &DirFacts) -> Result<(), Refusal> {
        self.check_job_gone(facts).await?;
        match (&facts.exit, &facts.lease.content) {
            (None, Some(lease)) => self.try_end_leftovers(lease).await,
            _ => Ok(()),
        }
    }

    /// Checks before another start that nothing of the earlier generation works any more, if it is a job.
    ///
    /// # Errors
    /// Refuses the start while that is not known.
    pub(super) async fn check_job_gone(&self, facts: &DirFacts) -> Result<(), Refusal> {
        let is_unproven =
            facts.exit.is_none() && facts.lease.job.as_ref().is_some_and(|job| job.over == Some(Over::Unproven));
        if !is_unproven {
            return Ok(());
        }
        let checked = self.ports().jobs.check_gone(self.name(), facts.generation).await;
        checked.map_err(|refusal| refusal.of(self.name()))
    }
}
