//! The heartbeat: the one clock of all sessions.
//!
//! ```text
//!              its agent runs          written
//!   unknown ───────────────▶ beginning ───────▶ beating ──┐ each tick
//!                              │   ▲ not written     │ ▲──┘
//!                              └───┘ (next tick)     │
//!                                     ended ◀────────┤ its agent ends
//!                                      lost ◀────────┘ somebody else's session
//! ```
//!
//! Owns the files of sessions while their agents run, and the timer: one for the whole
//! fleet, none while nothing runs. A beat is written only while the agent's own process
//! exists. A session that another launch or program has taken is left to it, and ours
//! is stopped. Who stands still is found by what it writes, by its own word, and last by
//! its screen, and is helped by a ladder that ends. Never starts or signals a worker
//! itself.

mod actor;
mod ladder;
pub mod machine;
mod message;
pub mod recovery;
mod signals;

use std::sync::Arc;

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};

use message::SessionsMessage;
pub use message::Told;

use swarm_ports::{Life, LifeEnd, Ports};

/// How it tells the supervisor, upwards and without waiting.
pub type Teller = Arc<dyn Fn(Told) + Send + Sync>;

/// The way to the heartbeat.
#[derive(Clone)]
pub struct SessionsHandle {
    actor: ActorRef<SessionsMessage>,
}

impl SessionsHandle {
    /// Starts the actor under `parent`.
    ///
    /// # Errors
    /// When the runtime refuses to start it.
    pub async fn start(ports: Ports, tell: Teller, parent: ActorCell) -> Result<Self, SpawnErr> {
        let arguments = actor::SessionsArguments { ports, tell };
        let (actor, _) = actor::Heartbeat::spawn_linked(None, actor::Heartbeat, arguments, parent).await?;
        Ok(Self { actor })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// An agent runs: it was started, or found running.
    pub fn began(&self, life: Life) {
        let _ = self.actor.cast(SessionsMessage::Began(Arc::new(life)));
    }

    /// An agent has ended, perhaps long ago.
    pub fn ended(&self, life: Life, end: LifeEnd) {
        let _ = self.actor.cast(SessionsMessage::Ended(Arc::new(life), end));
    }
}
