//! The whole protocol of the heartbeat.

use std::sync::Arc;

use super::machine::Round;
use swarm_model::{EventKind, Fence, Rungs};
use swarm_ports::{Beaten, Life, LifeEnd, SessionError, Sight};

#[derive(Debug)]
pub enum SessionsMessage {
    Began(Arc<Life>),
    Ended(Arc<Life>, LifeEnd),
    /// From the task that could not write its end, with how often that was tried.
    Unended(Arc<Life>, LifeEnd, u32),
    /// From the task that wrote that it runs.
    Ran(Arc<Life>, Result<Fence, SessionError>),
    /// From the timer.
    Tick,
    /// From the task that beat for these.
    Beaten(Vec<(Arc<Life>, Beaten, Sight)>, Round),
    /// From the task that looked at its screen.
    Looked(Arc<Life>, Sight, Option<String>),
}

/// What the supervisor is told, by cast.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// The session of this worker is somebody else's: it has to stop.
    Lost { worker: String, generation: u64, found: Fence },
    /// It stands still: it has to be ended and started again.
    Renew { worker: String, generation: u64 },
    /// So much was done about it, as whoever comes after a crash has to know.
    Climbed { worker: String, generation: u64, rungs: Rungs },
    /// For the history.
    Happened { worker: String, kind: EventKind },
}
