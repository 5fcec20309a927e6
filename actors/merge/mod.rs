//! Landing: finished work reaches the base branch one verified step at a time.
//!
//! One actor for each repository and base branch. Its [`queue`] lies in a journal,
//! its decisions are a pure function ([`machine`]); what git and people do arrives
//! as events, and no effect is carried out before the queue is durable. Killed at
//! any moment, the next one resumes from the journal and from what git says.

mod actor;
mod error;
pub mod machine;
mod message;

use std::sync::{Arc, OnceLock};

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};

pub use actor::MergeArguments;
pub use error::MergeError;
use message::MergeMessage;
pub use message::{Ask, Step, Told};
use swarm_model::merge::queue::{Item, ItemId};

use swarm_model::QueueView;

/// How long a request may take, in milliseconds: a slow disk is the longest part.
const CALL_MS_MAX: u64 = 30_000;

/// The way to one queue.
#[derive(Clone, Debug)]
pub struct MergeHandle {
    actor: ActorRef<MergeMessage>,
    /// Set once it has started.
    keys: Arc<OnceLock<Vec<String>>>,
}

impl MergeHandle {
    /// Starts the actor under `parent`. It resumes what its journal says.
    ///
    /// # Errors
    /// When the journal cannot be read, or the runtime refuses.
    pub async fn start(arguments: MergeArguments, parent: ActorCell) -> Result<Self, SpawnErr> {
        let keys = Arc::<OnceLock<Vec<String>>>::default();
        let merge = actor::Merge(Arc::clone(&keys));
        let (actor, _) = actor::Merge::spawn_linked(None, merge, arguments, parent).await?;
        Ok(Self { actor, keys })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Asks for a change. When this returns `Ok` it is durable; the number is that
    /// of an item that was added.
    ///
    /// # Errors
    /// Why nothing was changed.
    pub async fn ask(&self, ask: Ask) -> Result<Option<ItemId>, MergeError> {
        ractor::call_t!(self.actor, MergeMessage::Ask, CALL_MS_MAX, ask).unwrap_or(Err(MergeError::Closed))
    }

    /// # Errors
    /// When the actor has ended.
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
