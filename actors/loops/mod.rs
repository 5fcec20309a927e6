//! A loop: one agent, started again and again with a fresh context, until it is done.
//!
//! ```text
//!             started          ready, typed             ends, or is ended
//!  starting ──────────▶ prompting ─────────▶ watching ─────────────────────┐
//!   ▲  ▲ │ fails            │ ends               │ said to be done,        │
//!   │  │ ▼                  │                    ▼ stuck, silent, full     │
//!   │ backing off ◀─────────┴── failed ──┐     ending ─────────────────────┤
//!   │  │ pause                           │                               ▼
//!   │  ▼                                 └──────────────── what comes next? ──▶ over
//!   └─ between ◀──────────────────────────────── paused ─────────┘
//! ```
//!
//! One actor for each loop that somebody has to look after. How far it is, is durable
//! before anything follows from it; workers are started under a request that names the
//! iteration, so that after a crash the one that is there is found. It never types into a
//! window that it did not start, and never ends a worker while it is paused.

mod actor;
mod attend;
mod error;
pub mod event;
pub mod machine;
mod message;
pub mod sight;
mod theirs;

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};

pub use actor::{Begin, LoopArguments};
pub use error::LoopError;
use machine::Event;
use message::LoopMessage;
pub use message::Told;
use swarm_model::loops::progress::Loop;

use swarm_model::{Refusal, RefusalKind, Spawned};

/// How long a request may take, in milliseconds: a slow disk is the longest part.
const CALL_MS_MAX: u64 = 30_000;
/// The same for the first start: a worktree of a large repository.
const START_MS_MAX: u64 = 15 * 60 * 1000;

/// The way to one loop.
#[derive(Clone, Debug)]
pub struct LoopHandle {
    actor: ActorRef<LoopMessage>,
}

impl LoopHandle {
    /// Starts the actor under `parent`: a loop that begins, or one that goes on as its
    /// records say.
    ///
    /// # Errors
    /// When its files cannot be read or written, or the runtime refuses.
    pub async fn start(arguments: LoopArguments, parent: ActorCell) -> Result<Self, SpawnErr> {
        let (actor, _) = actor::LoopActor::spawn_linked(None, actor::LoopActor, arguments, parent).await?;
        Ok(Self { actor })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Something happens to it. When this returns `Ok` it is durable.
    ///
    /// # Errors
    /// Why it is not; it is done all the same once its records can be written.
    pub async fn ask(&self, event: Event) -> Result<(), LoopError> {
        ractor::call_t!(self.actor, LoopMessage::Ask, CALL_MS_MAX, event).unwrap_or(Err(LoopError::Closed))
    }

    /// # Errors
    /// When the actor has ended.
    pub async fn look(&self) -> Result<Loop, LoopError> {
        ractor::call_t!(self.actor, LoopMessage::Look, CALL_MS_MAX).map_err(|_| LoopError::Closed)
    }

    /// Waits for the worker of its first iteration.
    ///
    /// # Errors
    /// Why there is none, and then no loop either.
    pub async fn begun(&self) -> Result<Spawned, Refusal> {
        let closed = || Refusal::new(RefusalKind::Stopping, "the loop ended before its worker was started");
        ractor::call_t!(self.actor, LoopMessage::Begun, START_MS_MAX).unwrap_or_else(|_| Err(closed()))
    }
}

/// Under which request the worker of an iteration is started: the same after a crash.
pub fn request_of(id: &str, iteration: u32) -> String {
    format!("{}{iteration}", request_prefix(id))
}

/// What the requests of all iterations of a loop begin with.
pub fn request_prefix(id: &str) -> String {
    format!("{REQUESTS}{id}/")
}

/// Whether a loop asks, not a person.
pub fn is_own_request(request: &str) -> bool {
    request.starts_with(REQUESTS)
}

const REQUESTS: &str = "loop/";

#[cfg(test)]
mod machine_tests;
