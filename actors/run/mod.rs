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

use std::sync::{Arc, OnceLock};

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
    /// Set once it has started.
    id: Arc<OnceLock<String>>,
}

impl RunHandle {
    /// Starts the actor under `parent`: a run that begins, or one that goes on as its
    /// journal says.
    ///
    /// # Errors
    /// When its files cannot be read or locked, or the runtime refuses.
    pub async fn start(arguments: RunArguments, parent: ActorCell) -> Result<Self, SpawnErr> {
        let id = Arc::<OnceLock<String>>::default();
        let run = actor::RunActor(Arc::clone(&id));
        let (actor, _) = actor::RunActor::spawn_linked(None, run, arguments, parent).await?;
        Ok(Self { actor, id })
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

    /// Reports whether an item with this key was queued by this run.
    pub fn has_queued(&self, key: &str) -> bool {
        let of_run = self.id.get().and_then(|id| key.strip_prefix("run/")?.strip_prefix(id.as_str()));
        of_run.is_some_and(|attempt| attempt.starts_with('/'))
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
