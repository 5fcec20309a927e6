//! Nudges (`swarm heartbeat`): text that is typed into workers' windows on a schedule.
//!
//! ```text
//!              start            due                free, counted
//!   (no file) ───────▶ active ───────▶ looking ───────────────────▶ typing
//!                       │  ▲ ▲            │ pending, unreachable       │
//!               pause   ▼  │ └────────────┴────────────────────────────┘
//!                     paused        worker gone ──▶ stopped   expiry ──▶ expired
//! ```
//!
//! A worker that nobody ended is away if the machine went down, its tmux server is gone, or its loop is
//! between two iterations. The beat then waits for it without an alarm, and all missed beats come as one
//! when it is back.
//!
//! There is one actor for all nudges, with one alarm for the next due time, and no alarm if nothing is
//! due. Reading and typing are tasks with timeouts, so that a tmux that hangs delays only its own worker.
//! A beat is counted on disk before it is typed. If the supervisor is killed in between, that beat is lost
//! and the next one follows, but no beat is typed twice.

mod actor;
mod attend;
pub mod machine;
mod message;
pub mod schedule;
mod steps;

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};

pub use actor::NudgesArguments;
pub use message::NudgeReport;
use message::NudgesMessage;

use swarm_model::{NudgeLine, NudgeRequest, Refusal, RefusalKind};

/// Timeout of a request in milliseconds. It covers the wait for the files' lock, and a slow disk.
const CALL_MS_MAX: u64 = 30_000;

/// Handle of the nudges' actor.
#[derive(Clone, Debug)]
pub struct NudgesHandle {
    actor: ActorRef<NudgesMessage>,
}

impl NudgesHandle {
    /// Starts the actor under `parent`. It resumes the nudges on disk.
    ///
    /// # Errors
    /// Fails if the actor runtime refuses to start it.
    pub async fn start(arguments: NudgesArguments, parent: ActorCell) -> Result<Self, SpawnErr> {
        let (actor, _) = actor::NudgesActor::spawn_linked(None, actor::NudgesActor, arguments, parent).await?;
        Ok(Self { actor })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Requests a change. `Ok` means that it is durable.
    ///
    /// # Errors
    /// Returns a refusal if nothing was changed.
    pub async fn ask(&self, request: NudgeRequest) -> Result<NudgeLine, Refusal> {
        ractor::call_t!(self.actor, NudgesMessage::Ask, CALL_MS_MAX, Box::new(request)).unwrap_or_else(|_| {
            let refusal = Refusal::new(RefusalKind::Stopping, "the nudge scheduler ended before it could answer");
            Err(refusal.remedy("try again, or run 'swarm supervisor status'"))
        })
    }

    /// Stops the nudge of a worker that a person ended. Returns once it is stopped.
    pub async fn killed(&self, worker: &str) {
        let told = ractor::call_t!(self.actor, NudgesMessage::Killed, CALL_MS_MAX, worker.to_owned());
        if told.is_err() {
            tracing::warn!(worker, "the nudge will stop when its next beat finds no worker");
        }
    }

    /// Removes the nudge of a worker that was cleaned. Returns once its file is removed.
    pub async fn cleaned(&self, worker: &str) {
        let told = ractor::call_t!(self.actor, NudgesMessage::Cleaned, CALL_MS_MAX, worker.to_owned());
        if told.is_err() {
            tracing::warn!(worker, "cannot remove the file of the nudge");
        }
    }

    /// Reports that a worker runs, perhaps again. Returns at once.
    pub fn returned(&self, worker: String) {
        let _ = self.actor.cast(NudgesMessage::Happened(machine::Event::Returned(worker)));
    }

    /// Reports that a worker may have ended. Returns at once.
    pub fn doubt(&self, worker: String) {
        let _ = self.actor.cast(NudgesMessage::Happened(machine::Event::Doubted(worker)));
    }
}
