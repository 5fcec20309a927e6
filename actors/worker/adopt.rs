//! Adoption of a worker that an earlier supervisor started, or that ended while no supervisor ran.
//! The records become one event, and the machine decides as if the worker had been watched all
//! along.

use std::time::Duration;

use super::actor::{Life, State};
use super::machine::{Adoption, End, Event};
use super::message::WorkerMessage;
use super::record::WorkerRecord;
use crate::registry::reconcile;
use swarm_model::{EventKind, Refusal, RefusalKind, WantedState};
use swarm_ports::{DirFacts, SpecFacts};

/// Pause before another try to read the records of a worker that must be adopted.
const ADOPT_PAUSE: Duration = Duration::from_secs(5);

impl State {
    /// Adopts the generation that is on disk, unless this actor already knows it.
    pub(super) async fn sync(&mut self, facts: &DirFacts) {
        let (Some(spec), Some(lease)) = (facts.spec.spec(), facts.lease.content.clone()) else { return };
        if self.machine.knows(facts.generation) {
            return;
        }
        self.abort_tasks();
        self.life = Some(Life::of(spec, lease, facts.wanted.rungs));
        let adoption = Adoption {
            generation: facts.generation,
            policy: spec.contract.restart,
            wanted: facts.wanted.clone(),
            state: reconcile::fine_state(facts),
            end: End::of(facts.exit.as_ref(), None),
        };
        // No effect of this event can fail.
        let _ = self.feed(Event::Adopted(adoption)).await;
    }

    /// Adopts the worker of this name that an earlier supervisor left. Failures are logged.
    pub(super) async fn adopt(&mut self) {
        match self.subject().await {
            Ok(WorkerRecord::Ours { facts, .. }) => self.adopt_ours(&facts).await,
            Ok(WorkerRecord::None | WorkerRecord::Foreign { .. }) => {}
            // The process of a worker of another program could not be queried. Every verb on it asks again.
            Err(refusal) if refusal.kind == RefusalKind::Tool => {
                tracing::error!(worker = self.name(), cause = %refusal.cause, "cannot adopt a worker");
            }
            Err(refusal) => self.adopt_later(&refusal),
        }
    }

    /// Adopts the worker after a pause, because its records could not be read.
    fn adopt_later(&self, refusal: &Refusal) {
        tracing::error!(worker = self.name(), cause = %refusal.cause, "cannot adopt a worker yet, trying again");
        self.myself.send_after(ADOPT_PAUSE, || WorkerMessage::Adopt);
    }

    async fn adopt_ours(&mut self, facts: &DirFacts) {
        if matches!(facts.spec, SpecFacts::Pending(_)) {
            // The supervisor that committed this start is gone. Its shim, now alone, reads the row
            // and decides whether to execute the command.
            self.ports().records.lease_is_let_go(self.name(), facts.generation).await;
        }
        let facts = match self.observe(facts.generation).await {
            Ok(Some(facts)) => facts,
            Ok(None) => return,
            Err(refusal) => return self.adopt_later(&refusal),
        };
        if self.machine.knows(facts.generation) {
            return;
        }
        if let (SpecFacts::Pending(spec), false) = (&facts.spec, facts.lease.held)
            && facts.wanted.state != WantedState::Stopped
        {
            tracing::warn!(worker = self.name(), "a committed start was never executed; starting it again");
            self.life = None;
            let (policy, wanted) = (spec.contract.restart, facts.wanted.clone());
            let _ = self.feed(Event::PromiseFound { policy, wanted }).await;
            return;
        }
        self.sync(&facts).await;
        if self.machine.phase().has_process()
            && let Some(life) = &self.life
        {
            self.emit(EventKind::WorkerAdopted { pid: life.lease.worker.pid });
        }
    }
}
