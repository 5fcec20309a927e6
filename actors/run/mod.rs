//! A run: a folder of specs, or a file of jobs, becomes finished and landed work.
//!
//! ```text
//!            turn          ends well            queued           landed
//!  pending ───────▶ working ────────▶ finishing ────────▶ merging ──────▶ done
//!     ▲               │ │                                    │ │
//!     │  tries left   │ │ stopped                   rejected │ │ conflict
//!     ├───(retrying)──┘ └────▶ paused              ┌─────────┘ └─────────▶ failed
//!     └────────────────────────────────────────────┘
//! ```
//!
//! One actor for each run that is not over. What happens is journaled as it came
//! ([`machine::Event`]); the state is what the machine makes of it, so that a run
//! resumes where it was killed. No effect is carried out before its event is durable.
//! Workers are started under a request id that names the attempt, and work is queued
//! under a key that does: done again after a crash, either finds what is there.

mod actor;
mod attend;
mod error;
mod fleet;
pub mod machine;
mod message;
mod next;

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};

pub use actor::{Begin, RunArguments};
pub use error::RunError;
pub use fleet::Fleet;
use message::RunMessage;
pub use message::{Ask, Told};
use swarm_model::run::progress::Run;

use crate::merge::Step;
use swarm_model::merge::queue::Item;

/// How long a request may take, in milliseconds: a slow disk is the longest part.
const CALL_MS_MAX: u64 = 30_000;

/// The way to one run.
#[derive(Clone, Debug)]
pub struct RunHandle {
    actor: ActorRef<RunMessage>,
}

impl RunHandle {
    /// Starts the actor under `parent`: a run that begins, or one that goes on as its
    /// journal says.
    ///
    /// # Errors
    /// When its files cannot be read or locked, or the runtime refuses.
    pub async fn start(arguments: RunArguments, parent: ActorCell) -> Result<Self, SpawnErr> {
        let (actor, _) = actor::RunActor::spawn_linked(None, actor::RunActor, arguments, parent).await?;
        Ok(Self { actor })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Asks for a change. When this returns `Ok` it is durable.
    ///
    /// # Errors
    /// Why it is not; it is done all the same once the journal can be written.
    pub async fn ask(&self, ask: Ask) -> Result<(), RunError> {
        ractor::call_t!(self.actor, RunMessage::Ask, CALL_MS_MAX, ask).unwrap_or(Err(RunError::Closed))
    }

    /// # Errors
    /// When the actor has ended.
    pub async fn look(&self) -> Result<Run, RunError> {
        ractor::call_t!(self.actor, RunMessage::Look, CALL_MS_MAX).map_err(|_| RunError::Closed)
    }

    /// Tells it of a step of an item that began; returns at once.
    pub fn merging(&self, step: Step, item: Item) {
        let _ = self.actor.cast(RunMessage::Merging(step, Box::new(item)));
    }

    /// Tells it of an item that settled; returns at once.
    pub fn settled(&self, item: Item) {
        let _ = self.actor.cast(RunMessage::Settled(Box::new(item)));
    }
}

#[cfg(test)]
mod machine_tests;
