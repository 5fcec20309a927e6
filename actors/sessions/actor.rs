//! Actor around [`machine`](super::machine). Files are written in separate tasks, so that a slow
//! disk delays only the beats of the sessions on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::task::AbortHandle;

use super::Reporter;
use super::machine::{Effect, Machine};
use super::message::{SessionReport, SessionsMessage};
use swarm_ports::{Alarm, Ports, Typing};

pub struct Heartbeat;

pub struct SessionsArguments {
    pub ports: Ports,
    pub tell: Reporter,
}

pub struct State {
    ports: Ports,
    tell: Reporter,
    myself: ActorRef<SessionsMessage>,
    machine: Machine,
    interval_ms: u64,
    /// When the last tick was due, in milliseconds since boot.
    ticked_ms: Option<u64>,
    timer: Option<AbortHandle>,
    /// Tasks that wait for reports of agents, by worker.
    listeners: BTreeMap<String, AbortHandle>,
}

impl Actor for Heartbeat {
    type Msg = SessionsMessage;
    type State = State;
    type Arguments = SessionsArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<SessionsMessage>,
        arguments: SessionsArguments,
    ) -> Result<State, ActorProcessingErr> {
        let SessionsArguments { ports, tell } = arguments;
        let interval_ms = ports.sessions.interval_ms();
        let machine = Machine::new(interval_ms);
        Ok(State {
            ports,
            tell,
            myself,
            machine,
            interval_ms,
            ticked_ms: None,
            timer: None,
            listeners: BTreeMap::new(),
        })
    }

    async fn handle(
        &self,
        _: ActorRef<SessionsMessage>,
        message: SessionsMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        if let SessionsMessage::Ran(life, Err(error)) = &message {
            tracing::warn!(worker = life.worker, %error, "cannot write a session");
        }
        for effect in state.machine.on(message) {
            state.perform(effect);
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<SessionsMessage>, state: &mut State) -> Result<(), ActorProcessingErr> {
        if let Some(timer) = state.timer.take() {
            timer.abort();
        }
        state.listeners.values().for_each(AbortHandle::abort);
        Ok(())
    }
}

impl State {
    fn perform(&mut self, effect: Effect) {
        let (sessions, myself) = (Arc::clone(&self.ports.sessions), self.myself.clone());
        let terminals = Arc::clone(&self.ports.terminals);
        match effect {
            Effect::Run(life, known) => drop(tokio::spawn(async move {
                let ran = sessions.run(&life, known).await;
                let _ = myself.cast(SessionsMessage::Ran(life, ran));
            })),
            Effect::End(life, end, tried) => drop(tokio::spawn(async move {
                if let Err(error) = sessions.end(&life, end).await {
                    tracing::warn!(worker = life.worker, %error, "cannot write the end of a session");
                    let _ = myself.cast(SessionsMessage::Unended(life, end, tried));
                }
            })),
            Effect::Beat(life, fence) => drop(tokio::spawn(async move {
                let (beaten, sight) = sessions.beat(Arc::clone(&life), fence).await;
                let _ = myself.cast(SessionsMessage::Beaten(life, beaten, sight));
            })),
            Effect::Listen(life) => {
                let worker = life.worker.clone();
                let task = tokio::spawn(async move {
                    loop {
                        let news = sessions.news(&life).await;
                        let _ = myself.cast(SessionsMessage::News(Arc::clone(&life), news));
                    }
                });
                if let Some(earlier) = self.listeners.insert(worker, task.abort_handle()) {
                    earlier.abort();
                }
            }
            Effect::Unlisten(worker) => {
                if let Some(task) = self.listeners.remove(&worker) {
                    task.abort();
                }
            }
            Effect::Arm => self.arm(),
            Effect::Look(life, sight) => drop(tokio::spawn(async move {
                let screen = terminals.screen(&life.worker, 0).await.ok();
                // Only steps of the watch rules must leave a draft alone.
                if life.watch.is_some()
                    && let Ok(Some(draft)) = terminals.draft(&life.worker).await
                {
                    let _ = myself.cast(SessionsMessage::Drafted(Arc::clone(&life), draft));
                }
                let _ = myself.cast(SessionsMessage::Looked(life, sight, screen));
            })),
            Effect::Answered(life) => drop(tokio::spawn(async move { sessions.answered(&life).await })),
            Effect::Type { worker, text } => drop(tokio::spawn(async move {
                let typing = Typing { clear: false, enter: true };
                if let Err(error) = terminals.type_text(&worker, &text, typing).await {
                    tracing::warn!(worker, %error, "cannot nudge a worker that makes no progress");
                }
            })),
            Effect::Interrupt { worker } => drop(tokio::spawn(async move {
                if let Err(error) = terminals.interrupt(&worker).await {
                    tracing::warn!(worker, %error, "cannot interrupt a worker that makes no progress");
                }
            })),
            Effect::Mark { worker, generation, mark } => {
                let records = Arc::clone(&self.ports.records);
                tokio::spawn(async move { records.mark(&worker, generation, mark.as_ref()).await });
            }
            Effect::Renew { worker, generation } => (self.tell)(SessionReport::Renew { worker, generation }),
            Effect::Tell(worker, kind) => (self.tell)(SessionReport::Happened { worker, kind }),
            Effect::Note { worker, generation, rungs } => {
                (self.tell)(SessionReport::Escalated { worker, generation, rungs })
            }
            Effect::TellLost { worker, generation, found } => {
                (self.tell)(SessionReport::Lost { worker, generation, found })
            }
        }
    }

    /// Arms the timer for one interval after the last tick was due, so that the duration of a tick does
    /// not delay the next one. Ticks that were missed while the machine slept are not made up for.
    fn arm(&mut self) {
        let now_ms = self.ports.clock.boot_ms();
        let due_ms = self.ticked_ms.map_or(0, |ticked_ms| ticked_ms + self.interval_ms);
        let due_ms = if due_ms > now_ms { due_ms } else { now_ms + self.interval_ms };
        self.ticked_ms = Some(due_ms);
        let (myself, clock) = (self.myself.clone(), Arc::clone(&self.ports.clock));
        let timer = tokio::spawn(async move {
            clock.alarm(Alarm { boot_ms: Some(due_ms), wall_ms: None }).await;
            let _ = myself.cast(SessionsMessage::Tick);
        });
        self.timer = Some(timer.abort_handle());
    }
}
