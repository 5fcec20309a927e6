//! Loop actors: each restarts one agent with a fresh context until its task is done.
//!
//! ```text
//!             started          ready, typed             ends, or is ended
//!  starting ──────────▶ prompting ─────────▶ watching ─────────────────────┐
//!   ▲  ▲ │ fails            │ ends               │ done, compacting,       │
//!   │  │ ▼                  │                    ▼ stuck, silent, full     │
//!   │ backing off ◀─────────┴── failed ──┐     ending ─────────────────────┤
//!   │  │ pause                           │                               ▼
//!   │  ▼                                 └──────────────── what comes next? ──▶ over
//!   └─ between ◀──────────────────────────────── paused ─────────┘
//! ```
//!
//! There is one actor for each loop that needs supervision. Its progress is durable before its effects
//! are carried out. Workers are started under a request that names the iteration, so that the worker is
//! found again after a crash. A loop never types a prompt into a window that it did not start, and never
//! ends a worker while it is paused.

mod actor;
mod attend;
mod error;
pub mod event;
pub mod machine;
mod message;
mod requests;
mod said;
pub mod sight;
mod starting;
mod theirs;

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};

pub use actor::{Begin, LoopArguments};
pub use error::LoopError;
use machine::Event;
use message::LoopMessage;
pub use message::LoopReport;
use swarm_model::loops::progress::Loop;

use swarm_model::{Refusal, RefusalKind, Spawned};

/// Timeout of a request in milliseconds. A slow disk takes the longest.
const CALL_MS_MAX: u64 = 30_000;
/// Timeout of the first start in milliseconds. A worktree of a large repository takes the longest.
const START_MS_MAX: u64 = 15 * 60 * 1000;

/// Handle of one loop actor.
#[derive(Clone, Debug)]
pub struct LoopHandle {
    actor: ActorRef<LoopMessage>,
}

impl LoopHandle {
    /// Starts the actor under `parent`, for a new loop or for one that resumes from its files.
    ///
    /// # Errors
    /// Fails if the loop's files cannot be read or written, or the actor runtime refuses.
    pub async fn start(arguments: LoopArguments, parent: ActorCell) -> Result<Self, SpawnErr> {
        let (actor, _) = actor::LoopActor::spawn_linked(None, actor::LoopActor, arguments, parent).await?;
        Ok(Self { actor })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Sends an event. `Ok` means that it is durable.
    ///
    /// # Errors
    /// Fails if the event is not durable yet. It still takes effect once the files can be written.
    pub async fn ask(&self, event: Event) -> Result<(), LoopError> {
        ractor::call_t!(self.actor, LoopMessage::Ask, CALL_MS_MAX, event).unwrap_or(Err(LoopError::Closed))
    }

    /// Returns the present state of the loop.
    ///
    /// # Errors
    /// Fails if the actor has ended.
    pub async fn look(&self) -> Result<Loop, LoopError> {
        ractor::call_t!(self.actor, LoopMessage::Look, CALL_MS_MAX).map_err(|_| LoopError::Closed)
    }

    /// Waits for the worker of the first iteration.
    ///
    /// # Errors
    /// Returns the reason why there is no worker. The loop then does not exist either.
    pub async fn begun(&self) -> Result<Spawned, Refusal> {
        let closed = || Refusal::new(RefusalKind::Stopping, "the loop ended before its worker was started");
        ractor::call_t!(self.actor, LoopMessage::Begun, START_MS_MAX).unwrap_or_else(|_| Err(closed()))
    }
}

/// Returns the request that starts the worker of an iteration. Stable across crashes.
pub fn request_of(id: &str, iteration: u32) -> String {
    format!("{}{iteration}", request_prefix(id))
}

/// Returns the common prefix of the requests of all iterations of a loop.
pub fn request_prefix(id: &str) -> String {
    format!("{REQUESTS}{id}/")
}

/// Reports whether the request is a loop's, not a person's.
pub fn is_own_request(request: &str) -> bool {
    request.starts_with(REQUESTS)
}

const REQUESTS: &str = "loop/";

#[cfg(test)]
mod machine_tests;
