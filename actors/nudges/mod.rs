//! Nudges (`swarm heartbeat`): text that is typed into windows of workers on a schedule.
//!
//! ```text
//!              start            due              free, and counted
//!   (no file) ───────▶ active ───────▶ looking ───────────────────▶ typing
//!                       │  ▲ ▲            │ still there, unreachable   │
//!               pause   ▼  │ └────────────┴────────────────────────────┘
//!                     paused        worker gone ──▶ stopped   time over ──▶ expired
//! ```
//!
//! A worker that nobody ended (the machine went down, its tmux server is gone, its loop
//! is between two iterations) is away: the beat waits for it, without an alarm, and all
//! that were missed come as one when it is back.
//!
//! One actor for all of them, with one alarm for whatever is due next, and none when
//! nothing is. Looking and typing are tasks with limits, so that a tmux that hangs
//! delays its own worker only. A beat is counted on disk before it is typed: killed in
//! between, it is lost and the next one follows, but nothing is ever typed twice.

mod actor;
mod attend;
pub mod machine;
mod message;
pub mod schedule;
mod steps;

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};

pub use actor::NudgesArguments;
use message::NudgesMessage;
pub use message::Told;

use swarm_model::{NudgeLine, NudgeRequest, Refusal, RefusalKind};

/// How long a request may take, in milliseconds: the wait for the lock of the files,
/// and a slow disk.
const CALL_MS_MAX: u64 = 30_000;

/// The way to the nudges.
#[derive(Clone, Debug)]
pub struct NudgesHandle {
    actor: ActorRef<NudgesMessage>,
}

impl NudgesHandle {
    /// Starts the actor under `parent`; it goes on with what is on disk.
    ///
    /// # Errors
    /// When the runtime refuses to start it.
    pub async fn start(arguments: NudgesArguments, parent: ActorCell) -> Result<Self, SpawnErr> {
        let (actor, _) = actor::NudgesActor::spawn_linked(None, actor::NudgesActor, arguments, parent).await?;
        Ok(Self { actor })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Asks for a change. When this returns `Ok` it is durable.
    ///
    /// # Errors
    /// Why nothing was changed.
    pub async fn ask(&self, request: NudgeRequest) -> Result<NudgeLine, Refusal> {
        ractor::call_t!(self.actor, NudgesMessage::Ask, CALL_MS_MAX, Box::new(request)).unwrap_or_else(|_| {
            let refusal = Refusal::new(RefusalKind::Stopping, "the nudges' actor ended before it could answer");
            Err(refusal.remedy("try again; swarm supervisor status tells more"))
        })
    }

    /// A worker was ended by a person. Returns when its nudge is stopped.
    pub async fn killed(&self, worker: &str) {
        let told = ractor::call_t!(self.actor, NudgesMessage::Killed, CALL_MS_MAX, worker.to_owned());
        if told.is_err() {
            tracing::warn!(worker, "its nudge will end when the next beat finds nobody");
        }
    }

    /// A worker was cleaned. Returns when the file of its nudge is gone.
    pub async fn cleaned(&self, worker: &str) {
        let told = ractor::call_t!(self.actor, NudgesMessage::Cleaned, CALL_MS_MAX, worker.to_owned());
        if told.is_err() {
            tracing::warn!(worker, "the file of its nudge stays");
        }
    }

    /// A worker runs, perhaps again; returns at once.
    pub fn returned(&self, worker: String) {
        let _ = self.actor.cast(NudgesMessage::Happened(machine::Event::Returned(worker)));
    }

    /// A worker may have ended; returns at once.
    pub fn doubt(&self, worker: String) {
        let _ = self.actor.cast(NudgesMessage::Happened(machine::Event::Doubted(worker)));
    }
}
