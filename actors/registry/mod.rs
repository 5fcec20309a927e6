//! The registry: the only writer of `state.json`.
//!
//! ```text
//!            mutate                 commit ends, more waits
//!   idle ─────────────▶ committing ───────────────────────┐
//!    ▲                    │  ▲ └─────────────────────────▶│
//!    └── commit ends ─────┘  └── next batch ◀─────────────┘
//! ```
//!
//! The registry owns the file, its lock and the handling of a damaged file. It holds the lock only
//! while it reads and replaces the file. It never starts or signals a process, and decides nothing
//! about a worker except whether its row may change.

mod actor;
mod durable;
mod error;
pub mod journal;
mod machine;
mod message;
pub mod reconcile;
#[cfg(test)]
mod reconcile_tests;
pub mod replay;
mod state_file;
pub mod store;
pub mod table;

use std::path::PathBuf;
use std::sync::Arc;

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};

pub use error::{Refused, RegistryError, StoreError};
pub use machine::{BATCH_MAX, Committer, Mutation, apply};
use message::RegistryMessage;
pub use table::Unjudged;

use swarm_model::Row;
use swarm_ports::Ports;

/// Maximum duration of a request to the registry, in milliseconds. Covers the wait for the lock and
/// a slow disk.
const CALL_MS_MAX: u64 = 30_000;
/// Maximum duration of closing the registry, in milliseconds.
const CLOSE_MS_MAX: u64 = 2000;

/// All readable rows in the order of the file.
pub type Rows = Arc<Vec<Arc<Row>>>;

/// All rows of one version of the file.
#[derive(Clone, Debug)]
pub struct Listing {
    pub rows: Rows,
    /// Names that may have a row that cannot be read.
    pub unjudged: Unjudged,
}

/// Handle to the registry actor.
#[derive(Clone)]
pub struct RegistryHandle {
    actor: ActorRef<RegistryMessage>,
}

impl RegistryHandle {
    /// Starts the actor under `parent`.
    ///
    /// # Errors
    /// Fails if the runtime cannot start the actor.
    pub async fn start(root: PathBuf, ports: Ports, parent: ActorCell) -> Result<Self, SpawnErr> {
        let arguments = actor::RegistryArguments { root, ports };
        let (actor, _) = actor::Registry::spawn_linked(None, actor::Registry, arguments, parent).await?;
        Ok(Self { actor })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Changes one row. If this returns `Ok`, the change is durable.
    ///
    /// # Errors
    /// Returns an error if the mutation is refused or the file cannot be written.
    pub async fn mutate(&self, mutation: Mutation) -> Result<(), RegistryError> {
        ractor::call_t!(self.actor, RegistryMessage::Mutate, CALL_MS_MAX, mutation)
            .unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    /// As [`mutate`](Self::mutate), for a change that nobody waits for: if no other one is near, it waits a moment for one, and
    /// shares its commit.
    ///
    /// # Errors
    /// As [`mutate`](Self::mutate).
    pub async fn mutate_patiently(&self, mutation: Mutation) -> Result<(), RegistryError> {
        ractor::call_t!(self.actor, RegistryMessage::MutatePatiently, CALL_MS_MAX, mutation)
            .unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    /// Returns all readable rows in the order of the file.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub async fn rows(&self) -> Result<Rows, StoreError> {
        self.list().await.map(|listing| listing.rows)
    }

    /// Returns all readable rows, and the names that may have another one.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub async fn list(&self) -> Result<Listing, StoreError> {
        ractor::call_t!(self.actor, RegistryMessage::List, CALL_MS_MAX).unwrap_or(Err(StoreError::Closed))
    }

    /// Reports whether another program has written the file since the previous call.
    pub async fn changed_by_others(&self) -> bool {
        ractor::call_t!(self.actor, RegistryMessage::ChangedByOthers, CALL_MS_MAX).unwrap_or(false)
    }

    /// Records that no more changes follow, so that a power cut does not bring back what other programs change from
    /// now on. If that fails, nothing else is affected.
    pub async fn close(&self) {
        let _ = ractor::call_t!(self.actor, RegistryMessage::Close, CLOSE_MS_MAX);
    }

    /// Returns the row of this name, or `None` if there is none.
    ///
    /// # Errors
    /// Fails if the file or that row cannot be read.
    pub async fn find(&self, name: &str) -> Result<Option<Arc<Row>>, StoreError> {
        ractor::call_t!(self.actor, RegistryMessage::Find, CALL_MS_MAX, name.to_owned())
            .unwrap_or(Err(StoreError::Closed))
    }
}
