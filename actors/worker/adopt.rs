//! Adoption of a worker that an earlier supervisor started, or that ended while no supervisor ran.
//! The records become one event, and the machine decides as if the worker had been watched all
//! along.

use super::actor::{Life, State};
use super::machine::{Adoption, End, Event as Happening, Phase};
use super::message::WorkerMessage;
use super::record::WorkerRecord;
use super::{WorkerArguments, error, remove};
use crate::registry::{Mutation, RegistryError, reconcile};
use crate::unread::READ_PAUSE;
use swarm_model::{Event, EventKind, FineState, Refusal, RefusalKind, Row, Wanted, WantedState, WireStatus};
use swarm_ports::{DirFacts, Ports, SpecFacts};

/// Stop of a generation that could not be recorded.
#[derive(Clone, Copy)]
pub(super) struct OwedStop {
    pub generation: u64,
    /// Whether it is not even recorded beside the worker, so that a recovery after a reboot would start the worker.
    pub keeps: bool,
}

/// Reports whether the window of a worker was closed, so that it is about to end. If it has no row, another program
/// killed and cleaned it: that program closes the window and does not wait.
pub fn is_closing(ports: &Ports, facts: &DirFacts) -> bool {
    let in_window = facts.spec.spec().is_some_and(|spec| spec.contract.tmux.is_some());
    let shim = facts.lease.content.as_ref().map(|lease| &lease.shim).filter(|_| in_window && facts.lease.held);
    shim.is_some_and(|shim| ports.processes.has_hung_up(shim))
}

impl State {
    /// Adopts the generation that is on disk, unless this actor already knows it.
    pub(super) async fn sync(&mut self, facts: &DirFacts) {
        let (Some(spec), Some(lease)) = (facts.spec.spec(), facts.lease.content.clone()) else { return };
        if self.machine.knows(facts.generation) || facts.lease.elsewhere.is_some() {
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
        let _ = self.feed(Happening::Adopted(adoption)).await;
    }

    /// Adopts the worker of this name that an earlier supervisor left. Failures are logged.
    pub(super) async fn adopt(&mut self) {
        match self.subject().await {
            Ok(WorkerRecord::Ours { row, facts }) => {
                self.record_found_stop(&row, &facts).await;
                self.adopt_ours(&facts).await;
            }
            Ok(WorkerRecord::None | WorkerRecord::Foreign { .. }) => {}
            // The process of a worker of another program could not be queried. Every verb on it asks again.
            Err(refusal) if refusal.kind == RefusalKind::Tool => {
                tracing::error!(worker = self.name(), cause = %refusal.cause, "cannot adopt a worker");
            }
            // Running on another machine, which supervises it.
            Err(refusal) if refusal.kind == RefusalKind::Running => {}
            Err(refusal) => self.adopt_later(&refusal),
        }
    }

    /// Gives a generation its row back if another program dropped it, and adopts the generation.
    pub(super) async fn restore(&mut self, generation: u64) {
        match self.restore_row(generation).await {
            Ok(true) => self.adopt().await,
            Ok(false) => {}
            Err(refusal) => {
                tracing::error!(worker = self.name(), cause = %refusal.cause, "cannot restore the row of a worker");
            }
        }
    }

    /// Inserts the row of a generation if the name has the row of an earlier start, or none although the
    /// generation runs. Reports whether it did. Nobody does that to a row on purpose: another program saved a list that
    /// it had read before the start. A worker that does not run and has no row was cleaned.
    pub(super) async fn restore_row(&self, generation: u64) -> Result<bool, Refusal> {
        let Some(facts) = self.observe(generation).await? else { return Ok(false) };
        let Some(mut row) = reconcile::row_now(&facts, &self.ports().clock.host()) else { return Ok(false) };
        let present = WorkerRecord::read(self.ports(), &self.arguments.registry, self.name()).await?;
        let has_records = matches!(present, WorkerRecord::Ours { .. });
        let mutation = match present.row() {
            None if is_closing(self.ports(), &facts) => return Ok(false),
            None if reconcile::runs(&facts) => Mutation::Insert(Box::new(row)),
            // Records without a row may be what is left of a worker that was cleaned.
            Some(present) if reconcile::is_earlier(present, &facts) && (!has_records || reconcile::runs(&facts)) => {
                row.metadata = row.metadata.inherit(&present.metadata);
                Mutation::Replace { expect: present.key(), row: Box::new(row) }
            }
            None | Some(_) => return Ok(false),
        };
        match self.arguments.registry.mutate(mutation).await {
            Ok(()) => {
                tracing::warn!(worker = self.name(), generation, "another program dropped a row; inserted it again");
                Ok(true)
            }
            Err(RegistryError::Refused(_)) => Ok(false),
            Err(error) => Err(error::of_registry(&error).of(self.name())),
        }
    }

    /// Rolls back a start that was never committed, once its shim has noticed that and released the lease. If the shim
    /// still holds the lease or the row was committed after all, adopts the worker instead.
    pub(super) async fn roll_back(&mut self, facts: DirFacts) {
        match self.try_roll_back(&facts).await {
            Ok(true) => {}
            Ok(false) => self.adopt().await,
            // The system failed, and not git.
            Err(refusal) if matches!(refusal.kind, RefusalKind::Internal | RefusalKind::Registry) => {
                tracing::error!(worker = self.name(), cause = %refusal.cause, "cannot roll back a start yet, trying again");
                self.myself.send_after(READ_PAUSE, move || WorkerMessage::RollBack(Box::new(facts)));
            }
            Err(refusal) => {
                tracing::error!(worker = self.name(), cause = %refusal.cause, "cannot roll back an interrupted start");
            }
        }
    }

    async fn try_roll_back(&self, facts: &DirFacts) -> Result<bool, Refusal> {
        let ports = self.ports();
        if !ports.records.lease_is_let_go(self.name(), facts.generation).await {
            return Ok(false);
        }
        let row = self.arguments.registry.find(self.name()).await.map_err(|error| error::of_store(&error))?;
        match (self.observe(facts.generation).await?, row) {
            // A request that came first has rolled it back.
            (None, _) => return Ok(true),
            (Some(now), Some(row)) if reconcile::belongs(&row, &now) => return Ok(false),
            // A later start was committed, and may use the same worktree. So was this one then, before it.
            (Some(_), Some(row)) if row.swarm().is_some_and(|meta| meta.generation > facts.generation) => {
                let removed = ports.records.remove(self.name(), facts.generation).await;
                return removed.map(|()| true).map_err(|error| error::of_io("delete the records", &error));
            }
            (Some(_), _) => {}
        }
        if let Some(spec) = facts.spec.spec() {
            if let Some(plan) = &spec.worktree {
                let caller = super::caller_of(&spec.contract, &spec.request);
                let WorkerArguments { registry, sites, .. } = &self.arguments;
                let undone = remove::undo(ports, registry, sites, self.name(), plan, &caller).await;
                undone.map_err(|error| error::of_worktree(&error))?;
            }
            ports.events.emit(Event {
                at_ms: ports.clock.wall_ms(),
                worker: Some(facts.name.clone()),
                generation: Some(facts.generation),
                request: Some(spec.request.clone()),
                kind: EventKind::StartAborted { cause: "interrupted before the command was executed".to_owned() },
            });
        }
        let removed = ports.records.remove(self.name(), facts.generation).await;
        removed.map_err(|error| error::of_io("delete the records", &error))?;
        Ok(true)
    }

    /// Adopts the worker after a pause, because its records could not be read.
    fn adopt_later(&self, refusal: &Refusal) {
        tracing::error!(worker = self.name(), cause = %refusal.cause, "cannot adopt a worker yet, trying again");
        self.myself.send_after(READ_PAUSE, || WorkerMessage::Adopt);
    }

    /// Records the stop of a worker whose row still says that it runs: it was stopped while the disk was full, or
    /// another program saved an old row.
    async fn record_found_stop(&mut self, row: &Row, facts: &DirFacts) {
        let is_stopped = facts.lease.this_boot && reconcile::fine_state(facts) == FineState::Stopped;
        if is_stopped && row.status == WireStatus::Running {
            self.record_stop(row, facts).await;
        }
    }

    /// Tries again to record a stop that could not be recorded. Does nothing if another generation is current.
    pub(super) async fn record_owed_stop(&mut self) {
        let Some(owed) = self.owed.take() else { return };
        match self.subject().await {
            Ok(WorkerRecord::Ours { row, facts }) if facts.generation == owed.generation => {
                self.record_stop(&row, &facts).await;
            }
            Ok(_) => {}
            Err(refusal) if refusal.kind == RefusalKind::Running => {}
            Err(_) => self.owe_stop(owed),
        }
    }

    /// Records beside the worker and in its row that it was stopped. After the next boot, only this tells it from a
    /// worker that the shutdown ended. Logs a failure, and tries again after a pause.
    async fn record_stop(&mut self, row: &Row, facts: &DirFacts) {
        let (generation, mut recorded) = (facts.generation, Ok(()));
        if facts.wanted.state != WantedState::Stopped {
            let wanted = Wanted { state: WantedState::Stopped, next_start_ms: None, ..facts.wanted.clone() };
            let written = self.ports().records.write_wanted(self.name(), generation, &wanted).await;
            recorded = written.map_err(|error| error::of_io("record what is wanted", &error));
        }
        if recorded.is_err() {
            self.owe_stop(OwedStop { generation, keeps: true });
        }
        if row.status == WireStatus::Running && !reconcile::fine_state(facts).is_running() {
            recorded = recorded.and(self.set_stopped(row).await);
        }
        if let Err(refusal) = recorded {
            tracing::warn!(worker = self.name(), cause = %refusal.cause, "cannot record the stop of a worker yet");
        }
    }

    /// Notes that a stop must still be recorded, and tries again after a pause. The supervisor stays until the stop is
    /// recorded beside the worker; the next one repairs the row as well.
    pub(super) fn owe_stop(&mut self, owed: OwedStop) {
        let keeps = owed.keeps || self.owed.is_some_and(|owed| owed.keeps);
        if self.owed.replace(OwedStop { keeps, ..owed }).is_none() {
            self.myself.send_after(READ_PAUSE, || WorkerMessage::RecordStop);
        }
    }

    /// Tries again after a pause to record that the worker is given up.
    pub(super) fn record_failure_later(&self, refusal: &Refusal) {
        tracing::warn!(worker = self.name(), cause = %refusal.cause, "cannot record yet that a worker is given up");
        self.myself.send_after(READ_PAUSE, || WorkerMessage::RecordFailure);
    }

    pub(super) async fn record_failure(&self) {
        if self.machine.phase() == Phase::Failed
            && let Err(refusal) = self.write_wanted("record the wanted state", self.machine.wanted()).await
        {
            self.record_failure_later(&refusal);
        }
    }

    async fn adopt_ours(&mut self, facts: &DirFacts) {
        let is_job = facts.lease.job.is_some();
        if matches!(facts.spec, SpecFacts::Pending(_)) && !is_job {
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
        let is_of_this_boot = facts.lease.content.is_none() || facts.lease.this_boot;
        if let (SpecFacts::Pending(spec), false, true) = (&facts.spec, facts.lease.held, is_of_this_boot)
            && facts.wanted.state != WantedState::Stopped
            && !is_job
        {
            tracing::warn!(worker = self.name(), "a committed start was never executed; starting it again");
            self.life = None;
            let (policy, wanted) = (spec.contract.restart, facts.wanted.clone());
            let _ = self.feed(Happening::PromiseFound { policy, wanted }).await;
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
