//! Workers: one actor for each worker that a request names or that is under supervision.
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
//! The actor owns the life of its worker: the two-phase start, the wanted state, restarts, the stop
//! and the removal. It never writes `state.json` itself, never signals a bare pid, and never
//! deletes a worktree that contains unsaved work.

mod actor;
mod adopt;
pub mod backoff;
mod error;
pub mod fate;
#[cfg(test)]
mod history_tests;
mod job;
#[cfg(test)]
mod kill_tests;
mod launch;
pub mod machine;
#[cfg(test)]
mod machine_tests;
mod message;
mod output;
mod record;
mod recover;
mod remove;
mod sites;
mod tell;
mod verbs;
mod watch;
mod workers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};

pub use actor::WorkerArguments;
pub use adopt::is_closing;
pub use error::{elsewhere, is_of_system, of_store, of_worktree};
pub use launch::{Started, caller_of};
use message::WorkerMessage;
pub use message::{Meant, Removal, Report};
pub use record::LOG_LIMIT_BYTES;
pub(crate) use record::WorkerRecord;
pub use sites::Sites;
pub use workers::{Workers, ended, ended_of, is_final, tried};

use swarm_ports::DirFacts;

use swarm_model::{Caller, Refusal, RefusalKind, Rungs, SpawnRequest, Spawned, WorkerLine};

/// Callback through which a worker reports to the supervisor without waiting.
pub type Reporter = Arc<dyn Fn(Report) + Send + Sync>;

/// Maximum duration of one request, in milliseconds. The longest part is the worktree of a large
/// repository on a slow disk.
const CALL_MS_MAX: u64 = 15 * 60 * 1000;

/// Handle to the actor of one worker.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    actor: ActorRef<WorkerMessage>,
    cleaned: Arc<AtomicBool>,
}

impl WorkerHandle {
    /// Starts the actor under `parent`. The actor does nothing before its first message.
    ///
    /// # Errors
    /// Fails if the runtime cannot start the actor.
    pub async fn start(arguments: WorkerArguments, parent: ActorCell) -> Result<Self, SpawnErr> {
        let cleaned = Arc::<AtomicBool>::default();
        let worker = actor::Worker(Arc::clone(&cleaned));
        let (actor, _) = actor::Worker::spawn_linked(None, worker, arguments, parent).await?;
        Ok(Self { actor, cleaned })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Reports whether the worker was cleaned. Its actor then takes no more messages; the next
    /// request for this name goes to a new actor.
    pub fn is_cleaned(&self) -> bool {
        self.cleaned.load(Ordering::Acquire)
    }

    /// Adopts the worker that is on disk. Returns at once.
    pub fn adopt(&self) {
        let _ = self.actor.cast(WorkerMessage::Adopt);
    }

    /// Rolls back a start that an earlier supervisor did not commit. Returns at once.
    pub fn roll_back(&self, facts: Box<DirFacts>) {
        let _ = self.actor.cast(WorkerMessage::RollBack(facts));
    }

    /// Gives a generation its row back, which another program dropped. Returns at once.
    pub fn restore(&self, generation: u64) {
        let _ = self.actor.cast(WorkerMessage::Restore { generation });
    }

    /// Makes the actor report its running generation again, if it has one. Returns at once.
    pub fn tell_life(&self) {
        let _ = self.actor.cast(WorkerMessage::TellLife);
    }

    /// Starts a new worker of this name.
    ///
    /// # Errors
    /// Returns why no worker was started.
    pub async fn spawn(&self, request: SpawnRequest) -> Result<Spawned, Refusal> {
        ractor::call_t!(self.actor, WorkerMessage::Spawn, CALL_MS_MAX, Box::new(request))
            .unwrap_or_else(|_| Err(closed()))
    }

    /// Stops the worker, and removes its worktree if `removal` says so.
    ///
    /// # Errors
    /// Returns why the worker was not stopped.
    pub async fn kill(&self, caller: Caller, removal: Removal, meant: Meant) -> Result<WorkerLine, Refusal> {
        ractor::call_t!(self.actor, WorkerMessage::Kill, CALL_MS_MAX, Box::new(caller), removal, meant)
            .unwrap_or_else(|_| Err(closed()))
    }

    /// Removes the worker's row, logs and records, and its worktree if `removal` says so.
    ///
    /// # Errors
    /// Returns why the worker was not cleaned.
    pub async fn clean(&self, caller: Caller, removal: Removal, meant: Meant) -> Result<WorkerLine, Refusal> {
        ractor::call_t!(self.actor, WorkerMessage::Clean, CALL_MS_MAX, Box::new(caller), removal, meant)
            .unwrap_or_else(|_| Err(closed()))
    }

    /// Ends this generation and starts the next one, which resumes its work.
    ///
    /// # Errors
    /// Returns why the next generation was not started.
    pub async fn renew(&self, generation: u64) -> Result<Spawned, Refusal> {
        ractor::call_t!(self.actor, WorkerMessage::Renew, CALL_MS_MAX, generation).unwrap_or_else(|_| Err(closed()))
    }

    /// Records how far the escalation ladder was climbed for this generation. Returns at once.
    pub fn record_escalation(&self, generation: u64, rungs: Rungs) {
        let _ = self.actor.cast(WorkerMessage::Escalated { generation, rungs });
    }

    /// Ends this generation. Does nothing if another generation is current.
    ///
    /// # Errors
    /// Returns why the worker could not be stopped.
    pub async fn abandon(&self, generation: u64) -> Result<(), Refusal> {
        ractor::call_t!(self.actor, WorkerMessage::Abandon, CALL_MS_MAX, generation).unwrap_or_else(|_| Err(closed()))
    }

    /// Starts a worker again that was lost, so that it resumes its work.
    ///
    /// # Errors
    /// Returns why the worker is not recovered or could not be started.
    pub async fn recover(&self, caller: Caller) -> Result<Spawned, Refusal> {
        ractor::call_t!(self.actor, WorkerMessage::Recover, CALL_MS_MAX, Box::new(caller))
            .unwrap_or_else(|_| Err(closed()))
    }

    /// Stops the worker if it runs, and starts it again from its launch contract.
    ///
    /// # Errors
    /// Returns why the worker was not started again. A refusal before the stop leaves it running.
    pub async fn respawn(&self, caller: Caller, removal: Removal, meant: Meant) -> Result<Spawned, Refusal> {
        ractor::call_t!(self.actor, WorkerMessage::Respawn, CALL_MS_MAX, Box::new(caller), removal, meant)
            .unwrap_or_else(|_| Err(closed()))
    }
}

fn closed() -> Refusal {
    Refusal::new(RefusalKind::Stopping, "the worker's actor ended before it could answer")
        .remedy("try again, or run 'swarm supervisor status'")
}
