//! Flow actors: each runs the turns of one flow as workers.
//!
//! ```text
//!            claimed                 handed over, asked, suspended
//!  (file) ───────────▶ turn running ───────────────────────────────▶ (file)
//!                        │      ▲
//!                        │ ends without a result: repeated up to the repair limit
//!                        ▼      │
//!                     (the file says whom it waits for)
//! ```
//!
//! There is one actor for each flow that was run. All progress is in the flow's own files, which people,
//! agents and the original runtime write too; the actor only remembers which workers it waits for. After
//! a crash it finds the running turns in the files, and the worker of each turn by its request, so that
//! each worker is started once. A turn's own process writes its result into the file, so that no result
//! is lost while no supervisor runs.

mod actor;
mod attend;
mod error;
pub mod machine;
mod message;
pub mod rules;

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};

pub use actor::FlowArguments;
pub use error::FlowError;
use message::FlowMessage;
pub use message::FlowReport;

/// Timeout of a call to the actor, in milliseconds.
const CALL_MS_MAX: u64 = 30_000;

/// Handle of one flow actor.
#[derive(Clone, Debug)]
pub struct FlowHandle {
    actor: ActorRef<FlowMessage>,
}

impl FlowHandle {
    /// Starts the actor under `parent`, for a new run or to resume an earlier one.
    ///
    /// # Errors
    /// Fails if the flow cannot be opened, another process runs it, or the actor runtime refuses.
    pub async fn start(arguments: FlowArguments, parent: ActorCell) -> Result<Self, SpawnErr> {
        let (actor, _) = actor::FlowActor::spawn_linked(None, actor::FlowActor, arguments, parent).await?;
        Ok(Self { actor })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Makes the actor work on the flow. Returns `false` if the flow is being left and starts
    /// nothing more.
    pub async fn run(&self) -> bool {
        ractor::call_t!(self.actor, FlowMessage::Run, CALL_MS_MAX).unwrap_or(false)
    }

    /// Reports a change of the flow's files. Returns at once.
    pub fn wake(&self) {
        let _ = self.actor.cast(FlowMessage::Wake);
    }

    /// Ends the turn at a node.
    ///
    /// # Errors
    /// Fails if no turn is running there, or the actor has ended.
    pub async fn stop_node(&self, node: String) -> Result<(), FlowError> {
        ractor::call_t!(self.actor, FlowMessage::StopNode, CALL_MS_MAX, node).unwrap_or(Err(FlowError::Closed))
    }

    /// Ends all turns, then the actor. Unfinished turns are kept for a later run.
    pub fn stop(&self) {
        let _ = self.actor.cast(FlowMessage::Stop);
    }

    /// Waits until no turn is running, and returns whether the flow is over. `None` if the actor
    /// ended first.
    pub async fn rests(&self) -> Option<bool> {
        ractor::call!(self.actor, FlowMessage::Rests).ok()
    }
}

#[cfg(test)]
mod machine_tests;
