//! A flow at work: turns of its roles, each a worker's.
//!
//! ```text
//!            claimed                 handed over, asked, suspended
//!  (file) ───────────▶ turn at work ───────────────────────────────▶ (file)
//!                        │      ▲
//!                        │ ends without a result: again, so often as is allowed
//!                        ▼      │
//!                     (the file says for whom it waits)
//! ```
//!
//! One actor for each flow that somebody has run. All that has happened is in the
//! flow's own files, which people, agents and another program write as well; the actor
//! keeps in memory whose worker it waits for, and nothing else. After a crash it finds
//! by the files which turns are at work, and by the request of a turn its worker: each
//! is started once. A turn's own process brings its result into the file, so that none
//! is lost when there is no supervisor.

mod actor;
mod attend;
mod error;
pub mod machine;
mod message;

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};

pub use actor::FlowArguments;
pub use error::FlowError;
use message::FlowMessage;
pub use message::Told;

/// How long a question may take, in milliseconds.
const CALL_MS_MAX: u64 = 30_000;

/// The way to one flow.
#[derive(Clone, Debug)]
pub struct FlowHandle {
    actor: ActorRef<FlowMessage>,
}

impl FlowHandle {
    /// Starts the actor under `parent`: a flow that is run now, or one that goes on.
    ///
    /// # Errors
    /// When it cannot be opened, somebody else runs it, or the runtime refuses.
    pub async fn start(arguments: FlowArguments, parent: ActorCell) -> Result<Self, SpawnErr> {
        let (actor, _) = actor::FlowActor::spawn_linked(None, actor::FlowActor, arguments, parent).await?;
        Ok(Self { actor })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Has it work on what there is. False where it is being left, and begins nothing more.
    pub async fn run(&self) -> bool {
        ractor::call_t!(self.actor, FlowMessage::Run, CALL_MS_MAX).unwrap_or(false)
    }

    /// The file was changed; returns at once.
    pub fn wake(&self) {
        let _ = self.actor.cast(FlowMessage::Wake);
    }

    /// Ends the turn at a node.
    ///
    /// # Errors
    /// When none is at work there, or the actor has ended.
    pub async fn stop_node(&self, node: String) -> Result<(), FlowError> {
        ractor::call_t!(self.actor, FlowMessage::StopNode, CALL_MS_MAX, node).unwrap_or(Err(FlowError::Closed))
    }

    /// Ends all turns, and then the actor. What they were at is kept for later.
    pub fn stop(&self) {
        let _ = self.actor.cast(FlowMessage::Stop);
    }

    /// Returns when nothing of the flow is at work: whether it is over. None when the
    /// actor has ended before.
    pub async fn rests(&self) -> Option<bool> {
        ractor::call!(self.actor, FlowMessage::Rests).ok()
    }
}

#[cfg(test)]
mod machine_tests;
