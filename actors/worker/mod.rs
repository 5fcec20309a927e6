//! The worker: one actor per worker that is asked about or watched.
//!
//! ```text
//!            start            started              ends, no restart
//!   ended ───────────▶ starting ─────▶ running ───────────────────▶ ended
//!     ▲                  ▲   │ failed    │ │ shim dies                ▲
//!     └──────────────────┼───┘           │ └────▶ unsupervised ───────┤
//!                        │ due           │ ends, restart due           │
//!                     backing off ◀──────┘                            │
//!                        │  │ stop asked ─────────────────────────────┘
//!                        └──┴─ too many ──▶ failed
//! ```
//!
//! Owns the life of its worker: the two-phase start, what is wanted, restarts,
//! the stop and the removal. Never writes `state.json` itself, never signals a
//! bare pid, never removes a worktree that holds work.

mod actor;
mod adopt;
pub mod backoff;
mod error;
pub mod fate;
#[cfg(test)]
mod history_tests;
mod launch;
pub mod machine;
#[cfg(test)]
mod machine_tests;
mod message;
mod output;
mod recover;
mod remove;
mod subject;
mod tell;
mod verbs;
mod workers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};

pub use actor::{WorkerArguments, caller_of};
pub use error::of_store;
pub use launch::Started;
use message::WorkerMessage;
pub use message::{Removal, Report};
pub use subject::LOG_LIMIT_BYTES;
pub(crate) use subject::Subject;
pub use workers::{Workers, ended, is_final, tried};

use swarm_model::{Caller, Refusal, RefusalKind, Rungs, SpawnRequest, Spawned, WorkerLine};

/// How a worker tells the supervisor, upwards and without waiting.
pub type Reporter = Arc<dyn Fn(Report) + Send + Sync>;

/// How long one request may take, in milliseconds: a worktree of a large
/// repository on a slow disk is the longest part.
const CALL_MS_MAX: u64 = 15 * 60 * 1000;

/// The way to one worker.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    actor: ActorRef<WorkerMessage>,
    cleaned: Arc<AtomicBool>,
}

impl WorkerHandle {
    /// Starts the actor under `parent`. It does nothing before its first message.
    ///
    /// # Errors
    /// When the runtime refuses to start it.
    pub async fn start(arguments: WorkerArguments, parent: ActorCell) -> Result<Self, SpawnErr> {
        let cleaned = Arc::<AtomicBool>::default();
        let worker = actor::Worker(Arc::clone(&cleaned));
        let (actor, _) = actor::Worker::spawn_linked(None, worker, arguments, parent).await?;
        Ok(Self { actor, cleaned })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Whether it was cleaned and takes nothing more: who asks next asks another one.
    pub fn is_cleaned(&self) -> bool {
        self.cleaned.load(Ordering::Acquire)
    }

    /// Takes over what is on disk; returns at once.
    pub fn adopt(&self) {
        let _ = self.actor.cast(WorkerMessage::Adopt);
    }

    /// Tells of its life again, when it has one.
    pub fn tell_life(&self) {
        let _ = self.actor.cast(WorkerMessage::TellLife);
    }

    /// # Errors
    /// Why nothing runs.
    pub async fn spawn(&self, request: SpawnRequest) -> Result<Spawned, Refusal> {
        ractor::call_t!(self.actor, WorkerMessage::Spawn, CALL_MS_MAX, Box::new(request))
            .unwrap_or_else(|_| Err(closed()))
    }

    /// # Errors
    /// Why it was not ended.
    pub async fn kill(&self, caller: Caller, removal: Removal) -> Result<WorkerLine, Refusal> {
        ractor::call_t!(self.actor, WorkerMessage::Kill, CALL_MS_MAX, Box::new(caller), removal)
            .unwrap_or_else(|_| Err(closed()))
    }

    /// # Errors
    /// Why it stays.
    pub async fn clean(&self, caller: Caller, removal: Removal) -> Result<WorkerLine, Refusal> {
        ractor::call_t!(self.actor, WorkerMessage::Clean, CALL_MS_MAX, Box::new(caller), removal)
            .unwrap_or_else(|_| Err(closed()))
    }

    /// Ends this generation and starts the next one, which goes on with what it left.
    ///
    /// # Errors
    /// Why it was not started again.
    pub async fn renew(&self, generation: u64) -> Result<Spawned, Refusal> {
        ractor::call_t!(self.actor, WorkerMessage::Renew, CALL_MS_MAX, generation).unwrap_or_else(|_| Err(closed()))
    }

    /// Notes how far the ladder for this generation was climbed; returns at once.
    pub fn climbed(&self, generation: u64, rungs: Rungs) {
        let _ = self.actor.cast(WorkerMessage::Climbed { generation, rungs });
    }

    /// Ends this generation, and no other one.
    ///
    /// # Errors
    /// Why it goes on.
    pub async fn forsake(&self, generation: u64) -> Result<(), Refusal> {
        ractor::call_t!(self.actor, WorkerMessage::Forsake, CALL_MS_MAX, generation).unwrap_or_else(|_| Err(closed()))
    }

    /// # Errors
    /// Why it is left as it is, or could not be started.
    pub async fn recover(&self, caller: Caller) -> Result<Spawned, Refusal> {
        ractor::call_t!(self.actor, WorkerMessage::Recover, CALL_MS_MAX, Box::new(caller))
            .unwrap_or_else(|_| Err(closed()))
    }

    /// # Errors
    /// Why it was not started again; a refusal before the stop leaves it running.
    pub async fn respawn(&self, caller: Caller, removal: Removal) -> Result<Spawned, Refusal> {
        ractor::call_t!(self.actor, WorkerMessage::Respawn, CALL_MS_MAX, Box::new(caller), removal)
            .unwrap_or_else(|_| Err(closed()))
    }
}

fn closed() -> Refusal {
    Refusal::new(RefusalKind::Stopping, "the worker's actor ended before it could answer")
        .remedy("try again; swarm supervisor status tells more")
}
