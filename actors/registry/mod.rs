//! The registry: the only writer of `state.json`.
//!
//! ```text
//!            mutate                 commit ends, more waits
//!   idle ─────────────▶ committing ───────────────────────┐
//!    ▲                    │  ▲ └─────────────────────────▶│
//!    └── commit ends ─────┘  └── next batch ◀─────────────┘
//! ```
//!
//! Owns the file, its lock and its damage. Never holds the lock across
//! anything but reading and replacing the file; never starts or signals
//! anything; never decides about a worker beyond whether its row may change.

mod actor;
mod error;
mod machine;
mod message;
pub mod reconcile;
#[cfg(test)]
mod reconcile_tests;
pub mod store;
pub mod table;

use std::path::PathBuf;
use std::sync::Arc;

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};

pub use error::{Refused, RegistryError, StoreError};
pub use machine::{BATCH_MAX, Committer, Mutation, apply};
use message::RegistryMessage;

use swarm_model::Row;
use swarm_ports::Ports;

/// How long a request to the registry may take, in milliseconds: the wait for
/// its lock, and a slow disk.
const CALL_MS_MAX: u64 = 30_000;

/// The way to the registry.
#[derive(Clone)]
pub struct RegistryHandle {
    actor: ActorRef<RegistryMessage>,
}

impl RegistryHandle {
    /// Starts the actor under `parent`.
    ///
    /// # Errors
    /// When the runtime refuses to start it.
    pub async fn start(root: PathBuf, ports: Ports, parent: ActorCell) -> Result<Self, SpawnErr> {
        let arguments = actor::RegistryArguments { root, ports };
        let (actor, _) = actor::Registry::spawn_linked(None, actor::Registry, arguments, parent).await?;
        Ok(Self { actor })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Changes one row. When this returns `Ok` the change is durable.
    ///
    /// # Errors
    /// The row's own refusal, or why the file could not be written.
    pub async fn mutate(&self, mutation: Mutation) -> Result<(), RegistryError> {
        ractor::call_t!(self.actor, RegistryMessage::Mutate, CALL_MS_MAX, mutation)
            .unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    /// # Errors
    /// When the file cannot be read.
    pub async fn rows(&self) -> Result<Arc<Vec<Arc<Row>>>, StoreError> {
        ractor::call_t!(self.actor, RegistryMessage::Rows, CALL_MS_MAX).unwrap_or(Err(StoreError::Closed))
    }

    /// Whether another program wrote since this was last asked.
    pub async fn changed_by_others(&self) -> bool {
        ractor::call_t!(self.actor, RegistryMessage::ChangedByOthers, CALL_MS_MAX).unwrap_or(false)
    }

    /// # Errors
    /// When the file cannot be read.
    pub async fn find(&self, name: &str) -> Result<Option<Arc<Row>>, StoreError> {
        ractor::call_t!(self.actor, RegistryMessage::Find, CALL_MS_MAX, name.to_owned())
            .unwrap_or(Err(StoreError::Closed))
    }
}
