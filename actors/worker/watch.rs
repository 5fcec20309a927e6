//! Watches of a worker's processes, and what is read once one of them is gone.

use std::time::Duration;

use super::actor::State;
use super::error;
use super::machine::Event;
use super::message::WorkerMessage;
use swarm_model::{Lease, Reason, Refusal, RefusalKind};
use swarm_ports::DirFacts;

/// Pause before another try to read the records of a worker whose process is gone.
const OBSERVE_PAUSE: Duration = Duration::from_secs(1);

impl State {
    pub(super) fn watch_shim(&mut self) {
        if self.is_job() {
            return self.watch_job();
        }
        let Some(life) = &self.life else { return };
        let (generation, myself) = (life.generation, self.myself.clone());
        let gone = self.ports().processes.gone(life.lease.shim.clone());
        self.task(async move {
            gone.await;
            let _ = myself.cast(WorkerMessage::ShimGone { generation });
        });
    }

    pub(super) fn watch_worker(&mut self) {
        let Some(life) = &self.life else { return };
        let (generation, myself) = (life.generation, self.myself.clone());
        let gone = self.ports().processes.gone(life.lease.worker.clone());
        // Normally the shim enforces the time limit. Without a shim, this actor does.
        let limit = life.timeout_ms.map(|limit| {
            let up_ms = self.up_ms(&life.lease);
            Duration::from_millis(limit.saturating_sub(up_ms))
        });
        let timer = self.myself.clone();
        self.task(async move {
            gone.await;
            let _ = myself.cast(WorkerMessage::WorkerGone { generation });
        });
        if let Some(limit) = limit {
            self.task(async move {
                tokio::time::sleep(limit).await;
                let _ = timer.cast(WorkerMessage::TimeIsUp { generation });
            });
        }
    }

    /// Reads the records of a generation. `None` if it has none.
    ///
    /// # Errors
    /// Fails if the records cannot be read, which does not mean that the worker has ended.
    pub(super) async fn observe(&self, generation: u64) -> Result<Option<DirFacts>, Refusal> {
        let observed = self.ports().records.observe(self.name(), generation).await;
        observed.map_err(|error| error::of_io("read the worker's records", &error).of(self.name()))
    }

    /// Reads the records of a generation whose process is gone. If that fails, sends `again` after a pause. So it does if
    /// the lease is held: then its shim lives in a process namespace that is not visible from here.
    async fn observe_end(&self, generation: u64, again: WorkerMessage) -> Option<Option<DirFacts>> {
        match self.observe(generation).await {
            Ok(Some(facts)) if facts.lease.held => {
                tracing::debug!(worker = self.name(), "the shim is not visible, but its lease is held");
                self.myself.send_after(OBSERVE_PAUSE, move || again);
                None
            }
            Ok(facts) => Some(facts),
            Err(refusal) => {
                tracing::warn!(worker = self.name(), cause = %refusal.cause, "cannot handle an end yet, trying again");
                self.myself.send_after(OBSERVE_PAUSE, move || again);
                None
            }
        }
    }

    /// Checks that a generation whose shim is not visible has really ended.
    ///
    /// # Errors
    /// Fails if another process holds its lease, or its records cannot be read.
    pub(super) async fn check_ended(&self, generation: u64) -> Result<(), Refusal> {
        let is_held = self.observe(generation).await?.is_some_and(|facts| facts.lease.held);
        if !is_held || self.ports().records.lease_is_let_go(self.name(), generation).await {
            return Ok(());
        }
        let cause = format!("worker '{}' runs in a process namespace that its supervisor cannot see", self.name());
        let remedy =
            "stop this supervisor, and run the command where the worker was started, such as outside of the container";
        Err(Refusal::new(RefusalKind::Running, cause).remedy(remedy).of(self.name()))
    }

    /// Reports whether processes of the present generation live that its shim could not end.
    pub(super) async fn has_survivors(&self) -> bool {
        let Some(life) = &self.life else { return false };
        let facts = self.observe(life.generation).await.ok().flatten();
        facts.is_some_and(|facts| !facts.lease.survivors.is_empty())
    }

    pub(super) fn up_ms(&self, lease: &Lease) -> u64 {
        // The kernel counts start times in hundredths of a second since boot, hence the factor.
        self.ports().clock.boot_ms().saturating_sub(lease.worker.start_ticks.saturating_mul(10))
    }

    pub(super) async fn is_stop_recorded(&self) -> bool {
        let Some(life) = &self.life else { return false };
        let facts = self.observe(life.generation).await.ok().flatten();
        facts.and_then(|facts| facts.exit).is_some_and(|exit| exit.reason == Reason::Stopped && !exit.interrupted)
    }

    pub(super) async fn shim_gone(&mut self, generation: u64) {
        let Some(life) = self.life.as_ref().filter(|life| life.generation == generation) else { return };
        let lease = life.lease.clone();
        let again = WorkerMessage::ShimGone { generation };
        let Some(facts) = self.observe_end(generation, again).await else { return };
        let recorded = facts.as_ref().is_some_and(|facts| facts.exit.is_some());
        if !recorded && self.ports().processes.is_alive(&lease.worker) {
            tracing::warn!(worker = self.name(), "the shim is gone; the worker keeps running without it");
            let _ = self.feed(Event::ShimLost).await;
        } else {
            self.end_watched_life(generation, facts).await;
        }
    }

    pub(super) async fn worker_gone(&mut self, generation: u64) {
        if self.life.as_ref().is_none_or(|life| life.generation != generation) {
            return;
        }
        let again = WorkerMessage::WorkerGone { generation };
        let Some(facts) = self.observe_end(generation, again).await else { return };
        self.end_watched_life(generation, facts).await;
    }

    /// Handles an end that nobody waits for, so that a failure can only be logged.
    async fn end_watched_life(&mut self, generation: u64, facts: Option<DirFacts>) {
        if let Err(refusal) = self.life_over(generation, facts).await {
            tracing::error!(worker = self.name(), cause = %refusal.cause, "cannot handle the end of a worker");
        }
    }

    pub(super) async fn end_leftovers_of_life(&self) {
        if let Some(life) = &self.life {
            self.end_leftovers(&life.lease).await;
        }
    }

    /// Ends the processes that the command left behind. Needed if the shim was killed before it could
    /// do so.
    pub(super) async fn end_leftovers(&self, lease: &Lease) {
        if let Err(refusal) = self.try_end_leftovers(lease).await {
            let error = refusal.cause;
            tracing::error!(worker = self.name(), %error, "cannot end the processes that a worker left behind");
        }
    }

    /// Does the same before another start: no process of the previous generation may run beside it.
    pub(super) async fn try_end_leftovers(&self, lease: &Lease) -> Result<(), Refusal> {
        if lease.worker.pid == 0 {
            // It had no process here.
            return Ok(());
        }
        let ended = self.ports().processes.stop_unsupervised(lease).await;
        ended.map_err(|error| error::of_process(&error).of(self.name()))
    }
}
