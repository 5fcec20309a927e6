//! What a flow does beside its actor: it starts the workers of turns and waits for their
//! end. All of it may be done again after a crash, and finds what is there.

use std::sync::Arc;

use ractor::ActorRef;

use super::message::FlowMessage;
use crate::run::Fleet;
use crate::worker::{ended, tried};
use swarm_model::flows::{Ended, How, Turn};
use swarm_model::{Caller, Event, EventKind, FlowPlace};
use swarm_ports::Ports;

pub struct Attendant {
    pub place: FlowPlace,
    pub ports: Ports,
    pub fleet: Arc<dyn Fleet>,
    pub caller: Caller,
    pub actor: ActorRef<FlowMessage>,
}

impl Attendant {
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
        // It may just be starting, or have ended by itself: whoever attends it tells that.
        if let Err(refusal) = tried(|| self.fleet.kill(worker, &caller)).await {
            tracing::warn!(worker, cause = %refusal.cause, "it could not be stopped");
        }
    }

    /// Brings what the flow came to into the merge queue of its base, where that is asked
    /// for. Asked again after a crash, the queue finds it by its key.
    pub async fn land(&self) {
        let Some(wish) = self.ports.flows.wish(&self.place, &self.caller).await else { return };
        if self.fleet.item(&wish.key).await.is_some() {
            return;
        }
        if let Err(refusal) = tried(|| self.fleet.land(wish.clone())).await {
            let cause = format!("what flow {} came to: {}", self.place, refusal.cause);
            let (at_ms, kind) = (self.ports.clock.wall_ms(), EventKind::MergeRefused { cause });
            self.ports.events.emit(Event { at_ms, worker: Some(wish.worker), generation: None, request: None, kind });
        }
    }
}
