//! Work of a flow outside its actor: starting the workers of turns and waiting for their end. Every
//! step can be repeated after a crash and finds what already exists.

use std::sync::Arc;

use ractor::ActorRef;

use super::message::FlowMessage;
use crate::run::Fleet;
use crate::worker::{ended, tried};
use swarm_model::flow::{Ended, How, Turn};
use swarm_model::run::Wish;
use swarm_model::{Caller, Event, EventKind, FlowPlace};
use swarm_ports::Ports;

pub struct EffectRunner {
    pub place: FlowPlace,
    pub ports: Ports,
    pub fleet: Arc<dyn Fleet>,
    pub caller: Caller,
    pub actor: ActorRef<FlowMessage>,
}

impl EffectRunner {
    pub async fn attend(&self, turn: Turn) {
        let how = match self.run(&turn).await {
            Ok(how) => how,
            Err(cause) => How::NotStarted(cause),
        };
        let _ = self.actor.cast(FlowMessage::Ended(Box::new(Ended { turn, how })));
    }

    async fn run(&self, turn: &Turn) -> Result<How, String> {
        let request = self.ports.flows.prepare(&self.place, turn, &self.caller).await?;
        let name = request.name.clone();
        let spawned = tried(|| self.fleet.spawn(request.clone())).await.map_err(|refusal| match refusal.remedy {
            Some(remedy) => format!("{} ({remedy})", refusal.cause),
            None => refusal.cause,
        })?;
        let _ = self.actor.cast(FlowMessage::Started(turn.clone()));
        Ok(How::Exit(ended(&self.ports, &name, spawned.generation).await))
    }

    pub async fn kill(&self, worker: &str) {
        let caller = Caller { request: self.ports.clock.token(), ..self.caller.clone() };
        // The worker may still be starting, or have ended by itself. Its attendant reports either.
        if let Err(refusal) = tried(|| self.fleet.kill(worker, &caller)).await {
            tracing::warn!(worker, cause = %refusal.cause, "cannot stop the worker of a turn");
        }
    }

    /// Adds the flow's result to the merge queue of its base, if its plan asks for that, and records a refusal with the
    /// flow. Safe to repeat after a crash: the queue knows the item by its key.
    pub async fn land(&self) {
        let (worker, cause) = match self.ports.flows.wish(&self.place, &self.caller).await {
            Ok(None) => return,
            Ok(Some(wish)) => (Some(wish.worker.clone()), self.queue(wish).await.err()),
            Err(cause) => (None, Some(cause)),
        };
        self.ports.flows.keep_refusal(&self.place, cause.as_deref()).await;
        if let Some(cause) = cause {
            let cause = format!("result of flow {}: {cause}", self.place);
            let (at_ms, kind) = (self.ports.clock.wall_ms(), EventKind::MergeRefused { cause });
            self.ports.events.emit(Event { at_ms, worker, generation: None, request: None, kind });
        }
    }

    async fn queue(&self, wish: Wish) -> Result<(), String> {
        if self.fleet.item(&wish.key).await.is_some() {
            return Ok(());
        }
        tried(|| self.fleet.land(wish.clone())).await.map_err(|refusal| refusal.cause)
    }
}
