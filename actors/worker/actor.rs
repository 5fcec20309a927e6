//! Actor around [`machine`](super::machine). Each message is handled completely before the next, so
//! that nothing can interleave with a start, a stop or a removal of the same worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::task::AbortHandle;

use super::adopt::OwedStop;
use super::launch::{self, Start, Started, caller_of};
use super::machine::{Effect, End, Event, Machine, Phase};
use super::message::{Report, WorkerMessage};
use super::record::WorkerRecord;
use super::sites::Sites;
use super::{Reporter, error};
use crate::registry::{RegistryHandle, reconcile};
use swarm_model::{EventKind, FineState, Lease, Refusal, RefusalKind, Rungs, Spec, Wanted, WantedState};
use swarm_ports::{DirFacts, Ports, StopOrder};

/// Maximum duration of a stop: the shim's five seconds of grace, its five seconds of repeated kills,
/// and a slow disk.
const STOP_MAX: Duration = Duration::from_secs(20);

/// Actor of one worker. The flag is set once the worker is cleaned; then it takes no more messages.
pub struct Worker(pub(super) Arc<AtomicBool>);

#[derive(Clone)]
pub struct WorkerArguments {
    pub name: String,
    pub ports: Ports,
    pub registry: RegistryHandle,
    pub sites: Sites,
    pub reporter: Reporter,
}

/// The generation that this actor supervises.
pub(super) struct Life {
    pub generation: u64,
    pub lease: Lease,
    pub timeout_ms: Option<u64>,
    /// File names of its logs in the log directory.
    pub logs: Vec<String>,
    pub log_limit_bytes: u64,
    /// Whether its work must land once it has finished.
    pub merges: bool,
    /// What the heartbeat actor needs to know. `None` if it has nothing to do for this worker.
    pub session: Option<swarm_ports::Life>,
    pub is_job: bool,
}

impl Life {
    pub(super) fn of(spec: &Spec, lease: Lease, rungs: Rungs) -> Self {
        let plan = spec.session();
        let window = spec.contract.tmux.is_some();
        let watch = spec.contract.watch.clone();
        // A plain program without watch rules needs no heartbeat.
        let has_reason = plan.is_some() || watch.is_some() || (window && spec.is_agent());
        let looked_after = has_reason && spec.contract.job.is_none();
        let session = looked_after.then(|| swarm_ports::Life {
            worker: spec.name.clone(),
            generation: spec.generation,
            session_id: spec.session_id(),
            process: lease.worker.clone(),
            plan,
            logs: spec.logs.clone(),
            watch,
            window,
            agent: spec.is_agent(),
            rungs,
        });
        Self {
            generation: spec.generation,
            lease,
            timeout_ms: spec.contract.timeout_ms,
            logs: spec.logs.clone(),
            log_limit_bytes: spec.contract.log_limit_bytes,
            merges: spec.contract.merge,
            session,
            is_job: spec.contract.job.is_some(),
        }
    }
}

pub struct State {
    pub(super) arguments: WorkerArguments,
    pub(super) myself: ActorRef<WorkerMessage>,
    pub(super) machine: Machine,
    pub(super) life: Option<Life>,
    /// The start of a worker that is not watched yet.
    begun: Option<Event>,
    /// Stop that must still be recorded.
    pub(super) owed: Option<OwedStop>,
    tasks: Vec<AbortHandle>,
    /// What was last reported to the supervisor: liveness, generation, and whether a stop must still be recorded.
    told: (bool, Option<u64>, bool),
    cleaned: Arc<AtomicBool>,
}

impl Actor for Worker {
    type Msg = WorkerMessage;
    type State = State;
    type Arguments = WorkerArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<WorkerMessage>,
        arguments: WorkerArguments,
    ) -> Result<State, ActorProcessingErr> {
        Ok(State {
            arguments,
            myself,
            machine: Machine::default(),
            life: None,
            begun: None,
            owed: None,
            tasks: Vec::new(),
            told: (false, None, false),
            cleaned: Arc::clone(&self.0),
        })
    }

    async fn handle(
        &self,
        _: ActorRef<WorkerMessage>,
        message: WorkerMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        // Boxed: an actor reserves memory for its largest future for its whole life, and there is
        // one actor per worker.
        Box::pin(state.receive(message)).await;
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<WorkerMessage>, state: &mut State) -> Result<(), ActorProcessingErr> {
        state.abort_tasks();
        Ok(())
    }
}

impl State {
    async fn receive(&mut self, message: WorkerMessage) {
        match message {
            WorkerMessage::Spawn(request, reply) => {
                let spawned = self.spawn(*request).await;
                let is_begun = self.begun.is_some();
                drop(reply.send(spawned));
                if is_begun {
                    // The answer goes out first.
                    tokio::task::yield_now().await;
                }
            }
            WorkerMessage::Kill(caller, removal, meant, reply) => {
                let killed = self.kill(&caller, removal, &meant).await;
                self.leave_if(self.is_unknown(&killed), || drop(reply.send(killed)));
            }
            WorkerMessage::Respawn(caller, removal, meant, reply) => {
                let respawned = self.respawn(&caller, removal, &meant).await;
                self.leave_if(self.is_unknown(&respawned), || drop(reply.send(respawned)));
            }
            WorkerMessage::Recover(caller, reply) => {
                let recovered = self.recover(&caller).await;
                self.leave_if(self.is_unknown(&recovered), || drop(reply.send(recovered)));
            }
            WorkerMessage::Renew(generation, reply) => drop(reply.send(self.renew(generation).await)),
            WorkerMessage::Clean(caller, removal, meant, reply) => {
                let cleaned = self.clean(&caller, removal, &meant).await;
                self.leave_if(cleaned.is_ok() || self.is_unknown(&cleaned), || drop(reply.send(cleaned)));
            }
            WorkerMessage::Adopt => self.adopt().await,
            WorkerMessage::RecordStop => self.record_owed_stop().await,
            WorkerMessage::RecordFailure => self.record_failure().await,
            WorkerMessage::RollBack(facts) => self.roll_back(*facts).await,
            WorkerMessage::Restore { generation } => self.restore(generation).await,
            WorkerMessage::TellLife => {
                if self.machine.phase().has_process() {
                    self.tell_life();
                }
            }
            WorkerMessage::Escalated { generation, rungs } => self.record_escalation(generation, rungs).await,
            WorkerMessage::Abandon(generation, reply) => drop(reply.send(self.abandon(generation).await)),
            WorkerMessage::ShimGone { generation } => self.shim_gone(generation).await,
            WorkerMessage::WorkerGone { generation } => self.worker_gone(generation).await,
            WorkerMessage::TimeIsUp { generation } => self.time_is_up(generation).await,
            WorkerMessage::OutputSpent { generation } => self.output_spent(generation).await,
            WorkerMessage::RestartDue { generation } => {
                if self.life.as_ref().is_none_or(|life| life.generation == generation) {
                    let _ = self.feed(Event::RestartDue).await;
                }
            }
        }
        self.watch_begun().await;
        self.tell_liveness();
    }

    /// Reports whether a request was refused because there is no worker of this name, so that this actor is not needed:
    /// each name that anybody asks for has one.
    fn is_unknown<T>(&self, answer: &Result<T, Refusal>) -> bool {
        let is_unknown = answer.as_ref().is_err_and(|refusal| refusal.kind == RefusalKind::NotFound);
        is_unknown && !self.machine.is_live()
    }

    /// Answers a request. With `leaves`, this actor then ends; the next request for its name goes to a new one.
    fn leave_if(&self, leaves: bool, answer: impl FnOnce()) {
        self.cleaned.store(leaves, Ordering::Release);
        answer();
        if leaves {
            self.report(Report::Cleaned { name: self.arguments.name.clone() });
            self.myself.stop(None);
        }
    }

    pub(super) fn ports(&self) -> &Ports {
        &self.arguments.ports
    }

    pub(super) fn name(&self) -> &str {
        &self.arguments.name
    }

    /// Returns what the name denotes now. A worker of this actor that has the row of an earlier generation, or none
    /// although it runs, is the victim of a lost update: it gets its row back first.
    pub(super) async fn subject(&self) -> Result<WorkerRecord, Refusal> {
        let read = || WorkerRecord::read(self.ports(), &self.arguments.registry, self.name());
        match (read().await?, &self.life) {
            (WorkerRecord::None | WorkerRecord::Foreign { .. }, Some(life))
                if self.restore_row(life.generation).await? =>
            {
                read().await
            }
            (WorkerRecord::Ours { row, facts }, _) if reconcile::fine_state(facts.as_ref()) == FineState::Elsewhere => {
                Err(error::elsewhere(&row.name, facts.lease.elsewhere.as_deref().unwrap_or_default()))
            }
            (subject, _) => Ok(subject),
        }
    }

    /// Feeds one event to the machine and carries out its effects. Stops at the first failure; the
    /// remaining effects are skipped. Only a stop continues if it cannot be recorded, because a
    /// worker that has filled the disk must be stoppable; the exit record then proves the stop,
    /// and recording it is tried again.
    pub(super) async fn feed(&mut self, event: Event) -> Result<(), Refusal> {
        let effects = self.machine.on(event, self.ports().clock.wall_ms());
        let mut unwritten = None;
        for effect in effects {
            let is_stop = matches!(&effect, Effect::WriteWanted(wanted) if wanted.state == WantedState::Stopped);
            let is_write = matches!(&effect, Effect::WriteWanted(_));
            match self.perform(effect).await {
                Err(refusal) if is_stop => {
                    if let Some(generation) = self.life.as_ref().map(|life| life.generation) {
                        self.owe_stop(OwedStop { generation, keeps: true });
                    }
                    unwritten = Some(refusal);
                }
                // It is told all the same.
                Err(refusal) if is_write && self.machine.phase() == Phase::Failed => {
                    self.record_failure_later(&refusal)
                }
                done => done?,
            }
        }
        match unwritten {
            Some(refusal) if !self.is_stop_recorded().await => Err(refusal),
            _ => Ok(()),
        }
    }

    async fn perform(&mut self, effect: Effect) -> Result<(), Refusal> {
        match effect {
            Effect::WriteWanted(wanted) => self.write_wanted("record the wanted state", &wanted).await?,
            Effect::WriteRenewal(wanted) => self.write_wanted("record the restart", &wanted).await?,
            Effect::ForgetRenewal(wanted) => {
                if let Err(refusal) = self.write_wanted("record the wanted state", &wanted).await {
                    let error = refusal.cause;
                    tracing::warn!(worker = self.name(), %error, "cannot delete the record of an interrupted renewal");
                }
            }
            Effect::KeepLogs => self.keep_logs(),
            Effect::TellLife => self.tell_life(),
            Effect::TellEnd(end) => self.tell_end(&end),
            Effect::WatchShim => self.watch_shim(),
            Effect::WatchWorker => self.watch_worker(),
            Effect::ReportEnd(end) => self.report_end(&end).await,
            Effect::ReportFinished => self.report_finished().await,
            Effect::EndLeftovers => self.end_leftovers_of_life().await,
            Effect::SettleEnd => Box::pin(self.settle_end()).await,
            Effect::ArmRestart { delay_ms, restarts } => {
                self.emit(EventKind::WorkerRestarting { in_ms: delay_ms, restarts });
                self.arm_restart(delay_ms);
            }
            Effect::RearmRestart { delay_ms } => self.arm_restart(delay_ms),
            Effect::CancelRestart => self.abort_tasks(),
            Effect::StartAgain => Box::pin(self.start_again()).await,
            Effect::StopTree => Box::pin(self.stop_tree()).await?,
            Effect::ReportGivenUp => {
                let cause = format!("ended {} times within 10 minutes", super::backoff::RESTARTS_MAX + 1);
                self.emit(EventKind::WorkerFailed { cause });
            }
        }
        Ok(())
    }

    pub(super) async fn write_wanted(&self, step: &str, wanted: &Wanted) -> Result<(), Refusal> {
        let Some(life) = &self.life else { return Ok(()) };
        let written = self.ports().records.write_wanted(self.name(), life.generation, wanted).await;
        written.map_err(|error| error::of_io(step, &error).of(self.name()))
    }

    fn arm_restart(&mut self, delay_ms: u64) {
        let generation = self.life.as_ref().map_or(0, |life| life.generation);
        let myself = self.myself.clone();
        self.task(async move {
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            let _ = myself.cast(WorkerMessage::RestartDue { generation });
        });
    }

    pub(super) fn task(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.retain(|task| !task.is_finished());
        self.tasks.push(tokio::spawn(work).abort_handle());
    }

    pub(super) fn abort_tasks(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
    }

    /// Starts supervising a worker that was just started.
    pub(super) fn begin_life(&mut self, started: Started) {
        self.abort_tasks();
        let (generation, policy) = (started.generation, started.spec.contract.restart);
        self.life = Some(Life::of(&started.spec, started.lease.clone(), self.machine.wanted().rungs));
        self.tell_life();
        self.emit(EventKind::WorkerStarted { pid: started.lease.worker.pid });
        self.keep_logs();
        self.begun = Some(Event::Started { generation, policy });
    }

    /// Watches a worker that was just started, after whoever asked for it was answered.
    async fn watch_begun(&mut self) {
        let Some(started) = self.begun.take() else { return };
        // The watch is the only effect of a start, and it cannot fail.
        let _ = self.feed(started).await;
    }

    async fn start_again(&mut self) {
        if let Err(refusal) = self.try_start_again().await {
            tracing::warn!(worker = self.name(), cause = %refusal.cause, "a restart failed");
            let passes = error::is_of_system(&refusal) || self.has_survivors().await;
            let event = Event::StartFailed { passes };
            if let Err(refusal) = self.feed(event).await {
                tracing::error!(worker = self.name(), cause = %refusal.cause, "cannot record the failed restart");
            }
        }
    }

    async fn try_start_again(&mut self) -> Result<(), Refusal> {
        let subject = self.subject().await?;
        let tree = subject.tree();
        let WorkerRecord::Ours { row, facts } = subject else {
            // Cleaned, or taken over by another program: nothing to restart.
            return self.feed(Event::Forgotten).await;
        };
        let Some(spec) = facts.spec.spec() else {
            return Err(error::no_contract(self.name()));
        };
        self.end_earlier(&facts).await?;
        if !facts.lease.survivors.is_empty() {
            return Err(error::survivors(self.name(), &facts.lease.survivors));
        }
        let caller = caller_of(&spec.contract, &spec.request);
        let wanted = Wanted { next_start_ms: None, ..self.machine.wanted().clone() };
        let start = Start {
            name: self.name().to_owned(),
            contract: spec.contract.clone(),
            tree,
            caller,
            previous: Some(row),
            wanted: Some(wanted),
            fresh_logs: false,
            // A worker that has finished starts from scratch.
            recovers: !facts.exit.as_ref().is_some_and(|exit| exit.ended.is_success() && !exit.interrupted),
            counts: false,
        };
        let started = launch::launch(self.ports(), &self.arguments.registry, &self.arguments.sites, start).await?;
        let generation = started.generation;
        self.begin_life(started);
        // The row of the new generation ends the previous one, whether it was executed or only committed.
        if let Err(error) = self.ports().records.remove(self.name(), facts.generation).await {
            tracing::warn!(worker = self.name(), %error, "cannot delete the records of the previous generation");
        }
        self.remove_leftovers(Some(generation), Some(generation)).await;
        Ok(())
    }

    /// Deletes the records of earlier generations. Retries once; records that remain are deleted by
    /// the next verb on this name, or by the next supervisor.
    pub(super) async fn remove_leftovers(&self, keep: Option<u64>, committed: Option<u64>) {
        for _ in 0..2 {
            match self.ports().records.remove_leftovers(self.name(), keep, committed).await {
                Ok(()) => return,
                Err(error) => tracing::warn!(worker = self.name(), %error, "cannot delete records of old generations"),
            }
        }
    }

    /// Ends the process tree and waits until it is gone.
    pub(super) async fn stop_tree(&mut self) -> Result<(), Refusal> {
        let Some(life) = &self.life else { return Ok(()) };
        let (lease, generation) = (life.lease.clone(), life.generation);
        if life.is_job {
            return self.stop_job(generation).await;
        }
        let processes = self.ports().processes.clone();
        if processes.is_alive(&lease.shim) {
            let ordered = processes.stop_by_shim(&lease, StopOrder::Stop);
            ordered.map_err(|error| error::of_process(&error).of(self.name()))?;
            if tokio::time::timeout(STOP_MAX, processes.gone(lease.shim.clone())).await.is_err() {
                let cause = format!("worker '{}' did not end within {} s", self.name(), STOP_MAX.as_secs());
                return Err(Refusal::new(RefusalKind::Running, cause).of(self.name()));
            }
        } else {
            self.check_ended(generation).await?;
        }
        let mut facts = self.observe(generation).await?;
        let survivors = facts.as_ref().map_or_else(Vec::new, |facts| facts.lease.survivors.clone());
        if facts.as_ref().is_none_or(|facts| facts.exit.is_none()) {
            if !survivors.is_empty() {
                // Its shim has tried to end them, and one of them may be the worker itself.
                return Err(error::survivors(self.name(), &survivors));
            }
            let stopped = processes.stop_unsupervised(&lease).await;
            stopped.map_err(|error| error::of_process(&error).of(self.name()))?;
            facts = self.observe(generation).await?;
        }
        self.life_over(generation, facts).await?;
        if survivors.is_empty() { Ok(()) } else { Err(error::survivors(self.name(), &survivors)) }
    }

    /// Handles the end of a generation whose processes are all gone: feeds its exit record to the
    /// machine.
    ///
    /// # Errors
    /// Fails if what follows from the end could not be recorded, such as a stop that no exit record
    /// proves.
    pub(super) async fn life_over(&mut self, generation: u64, facts: Option<DirFacts>) -> Result<(), Refusal> {
        let Some(life) = self.life.as_ref().filter(|life| life.generation == generation) else { return Ok(()) };
        let (up_ms, lease) = (self.up_ms(&life.lease), life.lease.clone());
        let exit = facts.as_ref().and_then(|facts| facts.exit.clone());
        if exit.is_none() {
            self.end_leftovers(&lease).await;
        }
        let end = End::of(exit.as_ref(), Some(up_ms));
        self.tell_end(&end);
        self.ports().logs.release(self.name());
        let handled = self.feed(Event::LifeEnded(end)).await;
        if !self.has_row_of(generation).await && matches!(self.subject().await, Ok(WorkerRecord::None)) {
            // Another program deleted the row: the worker is cleaned, and only the records are left.
            self.remove_leftovers(None, Some(generation)).await;
        }
        handled
    }

    /// Reports whether the registry certainly has the row of this generation, so that nothing has to be read about it.
    async fn has_row_of(&self, generation: u64) -> bool {
        let found = self.arguments.registry.find(self.name()).await.ok().flatten();
        found.and_then(|row| row.swarm().map(|meta| meta.generation)) == Some(generation)
    }

    async fn settle_end(&mut self) {
        let Some(generation) = self.life.as_ref().map(|life| life.generation) else { return };
        self.worker_gone(generation).await;
    }

    async fn time_is_up(&mut self, generation: u64) {
        let Some(life) = self.life.as_ref().filter(|life| life.generation == generation) else { return };
        if self.machine.phase() != Phase::Unsupervised {
            return;
        }
        let lease = life.lease.clone();
        if let Err(error) = self.ports().processes.stop_unsupervised(&lease).await {
            tracing::error!(worker = self.name(), %error, "cannot end a worker that reached its time limit");
        }
    }

    fn tell_liveness(&mut self) {
        let live = self.machine.is_live();
        let owes = self.owed.is_some_and(|owed| owed.keeps);
        let told = (live, self.life.as_ref().filter(|_| live).map(|life| life.generation), owes);
        // A new generation is reported too: the nudges may wait for the worker to return.
        if told != self.told {
            self.told = told;
            self.report(Report::Live { name: self.arguments.name.clone(), live, owes });
        }
    }
}
