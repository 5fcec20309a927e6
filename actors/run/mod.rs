//! Run actors: each turns a folder of specs, or a file of jobs, into finished and landed work.
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
//! There is one actor for each run that is not over. Events are journaled in order
//! ([`swarm_model::run::Event`]), and the state is their replay, so that a run resumes where it was killed. No effect
//! is carried out before its event is durable. Workers are started under a request that names the attempt, and work
//! is queued under a key that does the same, so that both are found again after a crash.

mod actor;
mod attend;
mod batch;
mod ended;
mod error;
mod fleet;
pub mod machine;
mod message;
mod next;
pub mod place;
mod remote;
mod tries;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};
use tokio::sync::oneshot;

use actor::ResolverMessage;
pub use actor::{Begin, RunArguments};
pub use error::RunError;
pub use fleet::Fleet;
use message::RunMessage;
pub use message::{Ask, RunReport};
use swarm_model::run::progress::Run;

use crate::merge::Step;
use swarm_model::merge::queue::Item;

/// Timeout of a request in milliseconds. A slow disk takes the longest.
const CALL_MS_MAX: u64 = 30_000;

/// Place of a run that a resolver has or waits for. Dropping it frees the place.
#[derive(Debug)]
pub struct Place {
    actor: ActorRef<RunMessage>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.actor.cast(RunMessage::Resolver(ResolverMessage::Left(self.number)));
    }
}

/// Handle of one run actor.
#[derive(Clone, Debug)]
pub struct RunHandle {
    actor: ActorRef<RunMessage>,
    /// Set once it has started.
    id: Arc<OnceLock<String>>,
}

impl RunHandle {
    /// Starts the actor under `parent`, for a new run or for one that resumes from its journal.
    ///
    /// # Errors
    /// Fails if the files of the run cannot be read or locked, or the actor runtime refuses.
    pub async fn start(arguments: RunArguments, parent: ActorCell) -> Result<Self, SpawnErr> {
        let id = Arc::<OnceLock<String>>::default();
        let run = actor::RunActor(Arc::clone(&id));
        let (actor, _) = actor::RunActor::spawn_linked(None, run, arguments, parent).await?;
        Ok(Self { actor, id })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Returns the id of the run, also after its end.
    pub fn id(&self) -> String {
        self.id.get().cloned().unwrap_or_default()
    }

    /// Requests a change. `Ok` means that it is durable.
    ///
    /// # Errors
    /// Fails if the change is not durable yet. It still takes effect once the journal can be written.
    pub async fn ask(&self, ask: Ask) -> Result<(), RunError> {
        ractor::call_t!(self.actor, RunMessage::Ask, CALL_MS_MAX, ask).unwrap_or(Err(RunError::Closed))
    }

    /// Returns the present state of the run.
    ///
    /// # Errors
    /// Fails if the actor has ended.
    pub async fn look(&self) -> Result<Run, RunError> {
        ractor::call_t!(self.actor, RunMessage::Look, CALL_MS_MAX).map_err(|_| RunError::Closed)
    }

    /// Reports whether an item with this key was queued by this run.
    pub fn has_queued(&self, key: &str) -> bool {
        let of_run = self.id.get().and_then(|id| key.strip_prefix("run/")?.strip_prefix(id.as_str()));
        of_run.is_some_and(|attempt| attempt.starts_with('/'))
    }

    /// Asks for a place for a resolver. Returns its place in the line, and its turn if that has not come yet. The turn
    /// fails once the run has ended, which then starts nothing else.
    pub async fn place(&self) -> (Place, Option<oneshot::Receiver<()>>) {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        // Whoever stops waiting drops it.
        let place = Place { actor: self.actor.clone(), number };
        let asks = |reply| RunMessage::Resolver(ResolverMessage::Asks(number, reply));
        let turn = ractor::call_t!(self.actor, asks, CALL_MS_MAX);
        (place, turn.ok().flatten())
    }

    /// Reports that a step of a queue item has started. Returns at once.
    pub fn merging(&self, step: Step, item: Item) {
        let _ = self.actor.cast(RunMessage::Merging(step, Box::new(item)));
    }

    /// Reports that a queue item has settled. Returns at once.
    pub fn settled(&self, item: Item) {
        let _ = self.actor.cast(RunMessage::Settled(Box::new(item)));
    }
}

#[cfg(test)]
mod abandon_tests;
#[cfg(test)]
mod machine_tests;
#[cfg(test)]
mod merged_tests;
#[cfg(test)]
mod resolvers_tests;
