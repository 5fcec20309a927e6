//! Actor around [`machine`](super::machine): reads and advances the flow's files, has the turns
//! attended, and stays responsive meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::task::{AbortHandle, JoinSet};

use super::attend::EffectRunner;
use super::error::FlowError;
use super::machine::{Effect, Event, Machine};
use super::message::{FlowMessage, FlowReport};
use crate::run::Fleet;
use swarm_model::flow::Begin;
use swarm_model::flow::worker_name;
use swarm_model::flow::{News, Standing, Turn};
use swarm_model::{Caller, EventKind, FlowPlace};
use swarm_ports::Ports;

pub struct FlowActor;

#[derive(Clone)]
pub struct FlowArguments {
    pub place: FlowPlace,
    /// `None` resumes a flow that was run before.
    pub begin: Option<Begin>,
    pub ports: Ports,
    pub fleet: Arc<dyn Fleet>,
    /// Reports to the supervisor without waiting.
    pub tell: Arc<dyn Fn(FlowReport) + Send + Sync>,
}

pub struct State {
    arguments: FlowArguments,
    myself: ActorRef<FlowMessage>,
    caller: Caller,
    machine: Machine,
    /// Waits for people that were already announced.
    waits: BTreeSet<News>,
    resting: Vec<RpcReplyPort<bool>>,
    tasks: Vec<AbortHandle>,
}

impl Actor for FlowActor {
    type Msg = FlowMessage;
    type State = State;
    type Arguments = FlowArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<FlowMessage>,
        arguments: FlowArguments,
    ) -> Result<State, ActorProcessingErr> {
        let flows = Arc::clone(&arguments.ports.flows);
        let opened = flows.open(&arguments.place, arguments.begin.as_ref()).await.map_err(FlowError::Open)?;
        let _ = myself.cast(FlowMessage::Wake);
        let (listener, place) = (myself.clone(), arguments.place.clone());
        // People and other programs write to the flow's files too.
        let watch = tokio::spawn(async move {
            loop {
                flows.changed(&place).await;
                if listener.cast(FlowMessage::Wake).is_err() {
                    return;
                }
            }
        });
        let (machine, caller) = (Machine::new(opened.rules), opened.caller);
        let (waits, resting, tasks) = (BTreeSet::new(), Vec::new(), vec![watch.abort_handle()]);
        Ok(State { arguments, myself, caller, machine, waits, resting, tasks })
    }

    async fn handle(
        &self,
        _: ActorRef<FlowMessage>,
        message: FlowMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            FlowMessage::Wake | FlowMessage::Advance => state.feed(Event::Changed).await,
            FlowMessage::Ended(ended) => state.feed(Event::Ended(*ended)).await,
            FlowMessage::Started(turn) => state.feed(Event::Started(turn)).await,
            FlowMessage::Run(reply) => {
                let goes_on = !state.machine.is_leaving();
                let _ = reply.send(goes_on);
                if goes_on {
                    state.feed(Event::Changed).await;
                }
            }
            FlowMessage::Unattended(turn) => state.feed(Event::Unattended(turn)).await,
            FlowMessage::StopNode(node, reply) => drop(reply.send(state.stop_node(node).await)),
            FlowMessage::Stop => state.feed(Event::Stop).await,
            FlowMessage::Rests(reply) if state.machine.rests() => drop(reply.send(state.machine.is_over())),
            FlowMessage::Rests(reply) => state.resting.push(reply),
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<FlowMessage>, state: &mut State) -> Result<(), ActorProcessingErr> {
        state.tasks.drain(..).for_each(|task| task.abort());
        Ok(())
    }
}

impl State {
    async fn feed(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for effect in self.machine.on(event) {
                events.extend(self.perform(effect).await);
            }
        }
    }

    async fn perform(&mut self, effect: Effect) -> Option<Event> {
        let (flows, place) = (Arc::clone(&self.arguments.ports.flows), self.arguments.place.clone());
        match effect {
            Effect::Advance { ended, claim } => match flows.advance(&place, &ended, claim).await {
                Ok(standing) => {
                    self.announce(&standing);
                    return Some(Event::Advanced(standing));
                }
                Err(error) => {
                    tracing::error!(flow = %place, error, "cannot read or write the flow's files; retrying");
                    return Some(Event::Failed(ended));
                }
            },
            Effect::Attend(turn) => {
                let Turn { role, number, node } = turn.clone();
                let worker = Some(worker_name(&place, &role));
                self.emit(worker, EventKind::FlowTurn { flow: place.to_string(), node, role, number });
                let (attendant, myself, attended) = (self.attendant(), self.myself.clone(), turn.clone());
                self.task(async move {
                    // Aborted with this task.
                    let mut alone = JoinSet::new();
                    alone.spawn(async move { attendant.attend(attended).await });
                    if alone.join_next().await.is_some_and(|ended| ended.is_err()) {
                        let _ = myself.cast(FlowMessage::Unattended(turn));
                    }
                });
            }
            Effect::Kill(turn) => {
                let attendant = self.attendant();
                self.task(async move { attendant.kill(&worker_name(&attendant.place, &turn.role)).await });
            }
            Effect::Arm(ms) => drop(self.myself.send_after(Duration::from_millis(ms), || FlowMessage::Advance)),
            Effect::Rested => {
                let over = self.machine.is_over();
                self.resting.drain(..).for_each(|reply| drop(reply.send(over)));
            }
            Effect::Finish => {
                let attendant = self.attendant();
                attendant.land().await;
                self.emit(None, EventKind::FlowEnded { flow: place.to_string() });
                self.leave(false).await;
            }
            Effect::Leave => self.leave(true).await,
        }
        None
    }

    /// Closes the flow and stops the actor. `unfinished` keeps the running turns in the files, so
    /// that a later run resumes them.
    async fn leave(&mut self, unfinished: bool) {
        self.arguments.ports.flows.close(&self.arguments.place, unfinished).await;
        (self.arguments.tell)(FlowReport::Over);
        self.myself.stop(None);
    }

    async fn stop_node(&mut self, node: String) -> Result<(), FlowError> {
        let found = self.machine.turns().find(|turn| turn.node.as_ref().unwrap_or(&turn.role) == &node).cloned();
        let turn = found.ok_or(FlowError::NotAtWork(node))?;
        self.feed(Event::StopTurn(turn)).await;
        Ok(())
    }

    /// Emits an event for each new wait for a person.
    fn announce(&mut self, standing: &Standing) {
        let waits: BTreeSet<News> = standing.waits.iter().cloned().collect();
        for news in waits.difference(&self.waits) {
            let News { who, role, reason, text } = news.clone();
            let place = &self.arguments.place;
            let worker = (!role.is_empty()).then(|| worker_name(place, &role));
            let flow = place.to_string();
            self.emit(worker, EventKind::FlowWaiting { flow, node: who, role, reason, text });
        }
        self.waits = waits;
    }

    fn emit(&self, worker: Option<String>, kind: EventKind) {
        let at_ms = self.arguments.ports.clock.wall_ms();
        let event = swarm_model::Event { at_ms, worker, generation: None, request: None, kind };
        self.arguments.ports.events.emit(event);
    }

    fn attendant(&self) -> EffectRunner {
        EffectRunner {
            place: self.arguments.place.clone(),
            ports: self.arguments.ports.clone(),
            fleet: Arc::clone(&self.arguments.fleet),
            caller: self.caller.clone(),
            actor: self.myself.clone(),
        }
    }

    fn task(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.retain(|task| !task.is_finished());
        self.tasks.push(tokio::spawn(work).abort_handle());
    }
}
