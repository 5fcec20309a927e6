//! Actor around [`machine`](super::machine): owns the children, dispatches requests, and carries out
//! restarts and the orderly shutdown.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::{mpsc::UnboundedSender, watch};

use super::adopt;
use super::children::Children;
use super::endings::Ending;
use super::error::SupervisorError;
use super::machine::{Child, Effect, Event, Kind, Machine};
use super::message::{Exit, Request, SupervisorMessage};
use super::openings::Openings;
use super::state::State;
use super::survey::Owed;
use super::{nudges, requests};
use crate::flow::FlowHandle;
use crate::loops::LoopHandle;
use crate::merge::MergeHandle;
use crate::registry::RegistryHandle;
use crate::run::RunHandle;
use crate::worker::{Report, Reporter, Sites, WorkerArguments, WorkerHandle};
use swarm_model::{Answer, EventKind, Refusal, RefusalKind};
use swarm_ports::Ports;

pub struct Supervisor;

pub struct SupervisorArguments {
    pub root: PathBuf,
    pub ports: Ports,
    /// Set once, when the supervisor must exit.
    pub exit: watch::Sender<Option<Exit>>,
}

impl Actor for Supervisor {
    type Msg = SupervisorMessage;
    type State = State;
    type Arguments = SupervisorArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<SupervisorMessage>,
        arguments: SupervisorArguments,
    ) -> Result<State, ActorProcessingErr> {
        let SupervisorArguments { root, ports, exit } = arguments;
        let registry = start_registry(&root, &ports, myself.get_cell()).await?;
        let heartbeat = super::sessions::start(&ports, &myself).await?;
        let nudges = nudges::start(&ports, &myself).await?;
        let mut state = State {
            root,
            ports,
            exit,
            myself,
            machine: Machine::default(),
            registry,
            sites: Sites::default(),
            workers: Children::new(Child::Worker, WorkerHandle::cell),
            merges: Children::new(Child::Merge, MergeHandle::cell),
            queued: BTreeMap::new(),
            runs: Children::new(Child::Run, RunHandle::cell),
            loops: Children::new(Child::Loop, LoopHandle::cell),
            flows: Children::new(Child::Flow, FlowHandle::cell),
            heartbeat,
            nudges,
            openings: Openings::default(),
            owed: Owed::default(),
            idle: None,
        };
        // Only possible here: later, other parts of this process write records concurrently.
        state.ports.records.tidy().await.map_err(SupervisorError::Records)?;
        // Before the workers, because a finished worker is added to its queue.
        state.resume(Kind::Merges).await?;
        state.adopt_all().await?;
        // After both, because a run asks them for the state of its work.
        for kind in [Kind::Runs, Kind::Loops, Kind::Flows] {
            state.resume(kind).await?;
        }
        let effects = state.machine.arm_when_idle();
        state.perform(effects).await?;
        Ok(state)
    }

    async fn handle(
        &self,
        _: ActorRef<SupervisorMessage>,
        message: SupervisorMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        state.take(message).await
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<SupervisorMessage>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(cell, error) => {
                state.child_failed(cell.get_id(), &error.to_string()).await?;
            }
            SupervisionEvent::ActorTerminated(cell, _, _) => {
                state.left(cell.get_id());
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl State {
    pub(super) async fn dispatch(&mut self, message: SupervisorMessage) -> Result<(), ActorProcessingErr> {
        match message {
            SupervisorMessage::Request(request, answers) => self.begin(request, answers).await?,
            SupervisorMessage::MergeRequest(request, answers) => {
                self.feed(Event::RequestBegan).await?;
                self.begin_merge(*request, answers);
            }
            SupervisorMessage::RunRequest(request, answers) => {
                self.feed(Event::RequestBegan).await?;
                self.begin_run(*request, answers).await?;
            }
            SupervisorMessage::NudgeRequest(request, answers) => {
                self.feed(Event::RequestBegan).await?;
                self.begin_nudge(*request, answers);
            }
            SupervisorMessage::Nudges(told) => self.nudges_told(told).await?,
            SupervisorMessage::Run(home, told) => self.run_told(home, told).await?,
            SupervisorMessage::LoopRequest(request, answers) => {
                self.feed(Event::RequestBegan).await?;
                self.begin_loop_request(*request, answers);
            }
            SupervisorMessage::OpenLoop(name, begin, reply) => self.open_loop(&name, begin, reply),
            SupervisorMessage::Loop(name, told) => self.loop_told(name, told).await?,
            SupervisorMessage::FlowRequest(request, answers) => {
                self.feed(Event::RequestBegan).await?;
                self.begin_flow(*request, answers).await?;
            }
            SupervisorMessage::Flow(place, told) => self.flow_told(place, told).await?,
            SupervisorMessage::Land(wish, reply) => {
                self.feed(Event::RequestBegan).await?;
                self.land(*wish, reply);
            }
            SupervisorMessage::Worker(name, reply) => drop(reply.send(self.worker(&name).await?)),
            SupervisorMessage::Runs(reply) => drop(reply.send(self.runs.all().cloned().collect())),
            SupervisorMessage::RunOf(key, reply) => drop(reply.send(self.run_of_key(&key).cloned())),
            SupervisorMessage::RequestEnded => {
                self.feed(Event::RequestEnded).await?;
                self.notice_others().await?;
            }
            SupervisorMessage::Report(report) => self.reported(report).await?,
            SupervisorMessage::Heartbeat(told) => self.heartbeat_told(told),
            SupervisorMessage::Merge(target, told) => self.merge_told(target, told).await?,
            SupervisorMessage::Queue(target, reply) => self.queue(&target, reply),
            SupervisorMessage::Queues(reply) => drop(reply.send(self.merges.all().cloned().collect())),
            SupervisorMessage::Queued(key, target) => drop(self.queued.insert(key, target)),
            SupervisorMessage::QueueOf(key, reply) => drop(reply.send(self.queue_of(&key))),
            SupervisorMessage::Opened(child, why, opened) => self.opened(child, why, *opened).await?,
            SupervisorMessage::Survey(kind) => self.survey(kind),
            SupervisorMessage::Surveyed(kind, survey) => self.surveyed(kind, *survey).await?,
            // Counted as a request that is never answered.
            SupervisorMessage::Stay => self.feed(Event::RequestBegan).await?,
            SupervisorMessage::IdleTimer(number) => self.feed(Event::IdleTimer(number)).await?,
            SupervisorMessage::Stop(exit) => self.feed(Event::Stop(exit)).await?,
            SupervisorMessage::Live(reply) => drop(reply.send(self.machine.live())),
        }
        Ok(())
    }

    async fn reported(&mut self, report: Report) -> Result<(), ActorProcessingErr> {
        match report {
            Report::Live { name, live, owes } => {
                match live {
                    true => self.nudges.returned(name.clone()),
                    false => self.nudges.doubt(name.clone()),
                }
                self.feed(Event::Live { child: Child::Worker(name), live: live || owes }).await
            }
            Report::Cleaned { name } => {
                self.workers.remove(&name);
                self.feed(Event::Live { child: Child::Worker(name), live: false }).await
            }
            Report::Finished { key, generation, completion } => {
                self.feed(Event::RequestBegan).await?;
                self.enqueue(key, generation, *completion);
                Ok(())
            }
            Report::Began(life) => {
                self.heartbeat.began(*life);
                Ok(())
            }
            Report::Ended(life, end) => {
                self.heartbeat.ended(*life, end);
                Ok(())
            }
        }
    }

    pub(super) async fn feed(&mut self, event: Event) -> Result<(), ActorProcessingErr> {
        let effects = self.machine.on(event);
        if !self.machine.is_idle() {
            self.disarm();
        }
        self.perform(effects).await
    }

    /// Handles rows that another program has removed since the last call. Returns the names of the workers that get
    /// their row back.
    async fn notice_others(&mut self) -> Result<Vec<String>, ActorProcessingErr> {
        if !self.registry.changed_by_others().await {
            return Ok(Vec::new());
        }
        let mut names = Vec::new();
        match adopt::settle_dropped(&self.ports, &self.registry).await {
            Ok(lost) => {
                for (name, generation) in lost {
                    self.worker(&name).await?.restore(generation);
                    names.push(name);
                }
            }
            Err(error) => tracing::warn!(%error, "cannot check the workers whose rows another program removed"),
        }
        Ok(names)
    }

    /// Counts work beside this actor as a request, until it feeds [`Event::RequestEnded`].
    pub(super) fn request_began(&mut self) {
        self.machine.on(Event::RequestBegan);
        self.disarm();
    }

    /// Aborts the idle timer, so that it does not wake a process that has work.
    fn disarm(&mut self) {
        if let Some(timer) = self.idle.take() {
            timer.abort();
        }
    }

    async fn perform(&mut self, effects: Vec<Effect>) -> Result<(), ActorProcessingErr> {
        for effect in effects {
            match effect {
                Effect::ArmIdle(number) => {
                    let delay = Duration::from_millis(super::machine::IDLE_MS_MAX);
                    let armed = self.myself.send_after(delay, move || SupervisorMessage::IdleTimer(number));
                    self.disarm();
                    self.idle = Some(armed.abort_handle());
                }
                Effect::Restart(child) => Box::pin(self.restart(child)).await?,
                Effect::End(exit) => {
                    let reason = format!("{exit:?}").to_lowercase();
                    self.emit(EventKind::SupervisorStopped { reason });
                    self.registry.close().await;
                    let _ = self.exit.send(Some(exit));
                }
            }
        }
        Ok(())
    }

    async fn restart(&mut self, child: Child) -> Result<(), ActorProcessingErr> {
        match child {
            Child::Registry => self.restart_all().await,
            Child::Worker(name) => self.restart_worker(&name).await,
            Child::Heartbeat => self.restart_heartbeat().await,
            Child::Nudges => self.restart_nudges().await,
            Child::Merge(_) | Child::Run(_) | Child::Loop(_) | Child::Flow(_) => {
                self.reopen(child);
                Ok(())
            }
        }
    }

    async fn restart_worker(&mut self, name: &str) -> Result<(), ActorProcessingErr> {
        // Roll back or complete a start that the failed actor was carrying out.
        match adopt::sweep(&self.ports, &self.registry, &|other| other == name).await {
            Ok(tasks) => self.assign(tasks).await?,
            Err(error) => tracing::error!(worker = name, %error, "cannot check what a failed worker actor left"),
        }
        self.worker(name).await?.adopt();
        Ok(())
    }

    /// Restarts the registry and all workers. The old worker actors are killed first, so that they do
    /// not run beside the new ones; their work is adopted or rolled back, as after a supervisor crash.
    async fn restart_all(&mut self) -> Result<(), ActorProcessingErr> {
        for worker in self.workers.take() {
            worker.cell().kill_and_wait(None).await?;
        }
        self.registry = start_registry(&self.root, &self.ports, self.myself.get_cell()).await?;
        self.adopt_all().await
    }

    async fn adopt_all(&mut self) -> Result<(), ActorProcessingErr> {
        let tasks = adopt::sweep(&self.ports, &self.registry, &|_| true).await?;
        self.assign(tasks).await
    }

    async fn assign(&mut self, tasks: Vec<adopt::Task>) -> Result<(), ActorProcessingErr> {
        for task in tasks {
            match task {
                adopt::Task::Adopt(name) => self.worker(&name).await?.adopt(),
                adopt::Task::RollBack(facts) => self.worker(&facts.name).await?.roll_back(facts),
            }
        }
        Ok(())
    }

    /// Returns the worker actor of this name. Starts it if it is not running.
    async fn worker(&mut self, name: &str) -> Result<WorkerHandle, ActorProcessingErr> {
        if let Some(worker) = self.workers.get(&name.to_owned()) {
            return Ok(worker.clone());
        }
        let myself = self.myself.clone();
        let reporter: Reporter = Arc::new(move |report| drop(myself.cast(SupervisorMessage::Report(report))));
        let arguments = WorkerArguments {
            name: name.to_owned(),
            ports: self.ports.clone(),
            registry: self.registry.clone(),
            sites: self.sites.clone(),
            reporter,
        };
        let worker = WorkerHandle::start(arguments, self.myself.get_cell()).await;
        let worker = worker.map_err(|error| SupervisorError::Start("worker", error.to_string()))?;
        self.workers.insert(&name.to_owned(), worker.clone());
        Ok(worker)
    }

    pub(super) async fn child_failed(&mut self, actor: ActorId, error: &str) -> Result<(), ActorProcessingErr> {
        let Some(child) = self.failed(actor) else {
            self.openings.note_end(actor, true);
            return Ok(());
        };
        tracing::error!(?child, error, "a child failed");
        let now_ms = self.ports.clock.boot_ms();
        self.feed(Event::ChildFailed { child, now_ms }).await
    }

    /// Forgets an actor that failed. Returns which child it was, or `None` if it is not a child.
    fn failed(&mut self, actor: ActorId) -> Option<Child> {
        let single = [
            (self.registry.cell(), Child::Registry),
            (self.heartbeat.cell(), Child::Heartbeat),
            (self.nudges.cell(), Child::Nudges),
        ];
        if let Some((_, child)) = single.into_iter().find(|(cell, _)| cell.get_id() == actor) {
            return Some(child);
        }
        (self.workers.failed(actor))
            .or_else(|| self.merges.failed(actor))
            .or_else(|| self.runs.failed(actor))
            .or_else(|| self.loops.failed(actor))
            .or_else(|| self.flows.failed(actor))
    }

    /// Forgets an actor that has left. It may not be a child yet.
    pub(super) fn left(&mut self, actor: ActorId) {
        let was_child = self.workers.left(actor)
            || self.merges.left(actor)
            || self.runs.left(actor)
            || self.loops.left(actor)
            || self.flows.left(actor);
        if !was_child {
            self.openings.note_end(actor, false);
        }
    }

    /// Dispatches a request to the workers that it names. A separate task waits for them.
    async fn begin(&mut self, request: Request, answers: UnboundedSender<Answer>) -> Result<(), ActorProcessingErr> {
        self.feed(Event::RequestBegan).await?;
        let listed = match requests::names(&request, &self.registry, self.workers.keys()).await {
            Ok(_) if request.is_about_all() => {
                // The list was just read, so a row that is missing in it is noticed now. Another notice may have given
                // it back since, so the list is read again.
                let restored = self.notice_others().await?;
                let names = requests::names(&request, &self.registry, self.workers.keys()).await;
                names.map(|names| (names, restored))
            }
            listed => listed.map(|names| (names, Vec::new())),
        };
        let (mut names, restored) = match listed {
            Ok(listed) => listed,
            Err(refusal) => {
                requests::refuse(refusal, &answers);
                return self.feed(Event::RequestEnded).await;
            }
        };
        names.extend(restored.into_iter().filter(|name| !names.contains(name)).collect::<Vec<_>>());
        let ending = self.ending(&request, &names);
        let mut workers = Vec::with_capacity(names.len());
        for name in names {
            workers.push((self.worker(&name).await?, name));
        }
        let myself = self.myself.clone();
        let nudges = ending.as_ref().map(Ending::nudges);
        let (desk, merges) =
            (requests::Desk { supervisor: myself.clone(), ports: self.ports.clone(), nudges }, self.desk());
        let replies = answers.clone();
        let carried_out = async move {
            match merges.traced(request).await {
                Ok(request) => requests::carry_out(request, workers, desk, replies).await,
                Err(refusal) => requests::refuse(refusal, &replies),
            }
        };
        let work = match ending {
            Some(ending) => tokio::spawn(ending.around(carried_out)),
            None => tokio::spawn(carried_out),
        };
        tokio::spawn(async move {
            if work.await.is_err() {
                let refusal = Refusal::new(RefusalKind::Internal, "the request failed inside the supervisor");
                requests::refuse(refusal, &answers);
            }
            let _ = myself.cast(SupervisorMessage::RequestEnded);
        });
        Ok(())
    }

    fn emit(&self, kind: EventKind) {
        self.emit_of(None, kind);
    }

    pub(super) fn emit_of(&self, worker: Option<String>, kind: EventKind) {
        emit(&self.ports, worker, kind);
    }
}

/// Emits an event that is not about a generation.
pub fn emit(ports: &Ports, worker: Option<String>, kind: EventKind) {
    let at_ms = ports.clock.wall_ms();
    ports.events.emit(swarm_model::Event { at_ms, worker, generation: None, request: None, kind });
}

async fn start_registry(
    root: &std::path::Path,
    ports: &Ports,
    parent: ActorCell,
) -> Result<RegistryHandle, SupervisorError> {
    let started = RegistryHandle::start(root.to_owned(), ports.clone(), parent).await;
    started.map_err(|error| SupervisorError::Start("registry", error.to_string()))
}
