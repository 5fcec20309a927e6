//! Merge queue actors: each lands finished work on a base branch, one verified step at a time.
//!
//! There is one actor for each repository and base branch. Its [`queue`](swarm_model::merge::queue) is journaled, and
//! its decisions are a pure function ([`machine`]). Results of git and requests of people arrive as events, and no
//! effect is carried out before the queue is durable. After a kill at any moment, the next actor resumes from the
//! journal and from the state of the repository.

mod actor;
mod error;
pub mod machine;
mod message;
mod places;

use std::sync::{Arc, OnceLock};

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};

pub use actor::MergeArguments;
pub use error::MergeError;
pub use machine::Change;
use message::MergeMessage;
pub use message::{Ask, MergeReport, Step};
pub use places::{Asked, Place, Places};
use swarm_model::merge::queue::{Item, ItemId};

use swarm_model::{QueueView, Target};

/// Timeout of a request in milliseconds. A slow disk takes the longest.
const CALL_MS_MAX: u64 = 30_000;

/// Handle of one merge actor.
#[derive(Clone, Debug)]
pub struct MergeHandle {
    actor: ActorRef<MergeMessage>,
    target: Arc<Target>,
    /// Set once it has started.
    keys: Arc<OnceLock<Vec<String>>>,
}

impl MergeHandle {
    /// Starts the actor under `parent`. It resumes the queue from its journal.
    ///
    /// # Errors
    /// Fails if the journal cannot be read, or the actor runtime refuses.
    pub async fn start(arguments: MergeArguments, parent: ActorCell) -> Result<Self, SpawnErr> {
        let keys = Arc::<OnceLock<Vec<String>>>::default();
        let merge = actor::Merge(Arc::clone(&keys));
        let target = Arc::new(arguments.target.clone());
        let (actor, _) = actor::Merge::spawn_linked(None, merge, arguments, parent).await?;
        Ok(Self { actor, target, keys })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Returns the repository and base of the queue.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Requests a change. `Ok` means that it is durable. Returns the numbers of the items that were added.
    ///
    /// # Errors
    /// Returns the reason why nothing was changed.
    pub async fn ask(&self, ask: Ask) -> Result<Vec<ItemId>, MergeError> {
        ractor::call_t!(self.actor, MergeMessage::Ask, CALL_MS_MAX, ask).unwrap_or(Err(MergeError::Closed))
    }

    /// Returns the present state of the queue.
    ///
    /// # Errors
    /// Fails if the actor has ended.
    pub async fn look(&self) -> Result<QueueView, MergeError> {
        ractor::call_t!(self.actor, MergeMessage::Look, CALL_MS_MAX).map_err(|_| MergeError::Closed)
    }

    /// Keys of the items that its journal had when it started.
    pub fn journaled_keys(&self) -> &[String] {
        self.keys.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the item that was made under this key. `None` if there is none, or if the actor
    /// has ended.
    pub async fn item(&self, key: &str) -> Option<Item> {
        ractor::call_t!(self.actor, MergeMessage::Item, CALL_MS_MAX, key.to_owned()).ok()?
    }
}
