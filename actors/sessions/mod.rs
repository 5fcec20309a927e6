//! Heartbeat: one timer that writes the beats of all sessions and detects workers that make no
//! progress.
//!
//! ```text
//!              its agent runs          written
//!   unknown ───────────────▶ beginning ───────▶ beating ──┐ each tick
//!                              │   ▲ not written     │ ▲──┘
//!                              └───┘ (next tick)     │
//!                                     ended ◀────────┤ its agent ends
//!                                      lost ◀────────┘ session taken
//! ```
//!
//! The actor owns the files of sessions while their agents run, and the timer: one for the whole
//! fleet, none while nothing runs. A beat is written only while the agent's own process exists. A
//! session that another launch or program has taken is left to it, and our worker is stopped. A
//! worker that makes no progress is detected by its output, by what it reports itself, and last by
//! its screen; a ladder of finite length is then applied to it. The actor never starts or signals a
//! worker itself.

mod actor;
mod ladder;
pub mod machine;
mod message;
pub mod recovery;
mod signals;
mod sources;

use std::sync::Arc;

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};

pub use message::SessionReport;
use message::SessionsMessage;
pub use signals::kind_of;

use swarm_ports::{Life, LifeEnd, Ports};

/// Callback through which the actor reports to the supervisor without waiting.
pub type Reporter = Arc<dyn Fn(SessionReport) + Send + Sync>;

/// Handle to the heartbeat actor.
#[derive(Clone)]
pub struct SessionsHandle {
    actor: ActorRef<SessionsMessage>,
}

impl SessionsHandle {
    /// Starts the actor under `parent`.
    ///
    /// # Errors
    /// Fails if the runtime cannot start the actor.
    pub async fn start(ports: Ports, tell: Reporter, parent: ActorCell) -> Result<Self, SpawnErr> {
        let arguments = actor::SessionsArguments { ports, tell };
        let (actor, _) = actor::Heartbeat::spawn_linked(None, actor::Heartbeat, arguments, parent).await?;
        Ok(Self { actor })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Reports that a worker was started or adopted while running.
    pub fn began(&self, life: Life) {
        let _ = self.actor.cast(SessionsMessage::Began(Arc::new(life)));
    }

    /// Reports that a worker has ended, perhaps long ago.
    pub fn ended(&self, life: Life, end: LifeEnd) {
        let _ = self.actor.cast(SessionsMessage::Ended(Arc::new(life), end));
    }
}
