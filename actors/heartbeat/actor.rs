//! The shell around [`machine`](super::machine). Writing is done beside it, so that a
//! slow disk delays a beat and nothing else.

use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::Teller;
use super::machine::{Effect, Event, Machine};
use super::message::{HeartbeatMessage, Told};
use crate::ports::Ports;

pub struct Heartbeat;

pub struct HeartbeatArguments {
    pub ports: Ports,
    pub tell: Teller,
}

pub struct State {
    ports: Ports,
    tell: Teller,
    myself: ActorRef<HeartbeatMessage>,
    machine: Machine,
    interval: Duration,
    /// When the last tick was due.
    ticked: Option<Instant>,
    timer: Option<AbortHandle>,
}

impl Actor for Heartbeat {
    type Msg = HeartbeatMessage;
    type State = State;
    type Arguments = HeartbeatArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<HeartbeatMessage>,
        arguments: HeartbeatArguments,
    ) -> Result<State, ActorProcessingErr> {
        let HeartbeatArguments { ports, tell } = arguments;
        let interval = Duration::from_millis(ports.sessions.interval_ms());
        Ok(State { ports, tell, myself, machine: Machine::default(), interval, ticked: None, timer: None })
    }

    async fn handle(
        &self,
        _: ActorRef<HeartbeatMessage>,
        message: HeartbeatMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let event = match message {
            HeartbeatMessage::Began(life) => Event::Began(life),
            HeartbeatMessage::Ended(life, end) => Event::Ended(life, end),
            HeartbeatMessage::Ran(life, ran) => {
                if let Err(error) = &ran {
                    tracing::warn!(worker = life.worker, %error, "a session could not be written");
                }
                Event::Ran(life, ran)
            }
            HeartbeatMessage::Tick => Event::Tick,
            HeartbeatMessage::Beaten(beaten) => Event::Beaten(beaten),
        };
        for effect in state.machine.on(event) {
            state.perform(effect);
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<HeartbeatMessage>, state: &mut State) -> Result<(), ActorProcessingErr> {
        if let Some(timer) = state.timer.take() {
            timer.abort();
        }
        Ok(())
    }
}

impl State {
    fn perform(&mut self, effect: Effect) {
        let (sessions, myself) = (Arc::clone(&self.ports.sessions), self.myself.clone());
        match effect {
            Effect::Run(life) => drop(tokio::spawn(async move {
                let ran = sessions.run(&life).await;
                let _ = myself.cast(HeartbeatMessage::Ran(life, ran));
            })),
            Effect::End(life, end) => drop(tokio::spawn(async move {
                if let Err(error) = sessions.end(&life, end).await {
                    tracing::warn!(worker = life.worker, %error, "the end of a session could not be written");
                }
            })),
            Effect::Beat(lives) => drop(tokio::spawn(async move {
                let beaten = sessions.beat(lives.clone()).await;
                let beaten = lives.into_iter().map(|(life, _)| life).zip(beaten).collect();
                let _ = myself.cast(HeartbeatMessage::Beaten(beaten));
            })),
            Effect::Arm => self.arm(),
            Effect::TellLost { worker, generation, found } => (self.tell)(Told::Lost { worker, generation, found }),
        }
    }

    /// An interval after the last tick, so that none is lost to the time that one takes;
    /// what was slept through is not made up for.
    fn arm(&mut self) {
        let now = Instant::now();
        let due = self.ticked.map_or(now + self.interval, |ticked| ticked + self.interval);
        let due = if due > now { due } else { now + self.interval };
        self.ticked = Some(due);
        let myself = self.myself.clone();
        let timer = tokio::spawn(async move {
            tokio::time::sleep_until(due).await;
            let _ = myself.cast(HeartbeatMessage::Tick);
        });
        self.timer = Some(timer.abort_handle());
    }
}
