//! Messages of the heartbeat actor, and its reports to the supervisor.

use std::sync::Arc;

use super::machine::Round;
use swarm_model::{EventKind, Fence, Rungs};
use swarm_ports::{Beaten, Life, LifeEnd, SessionError, Sight};

/// Message to the heartbeat actor.
#[derive(Debug)]
pub enum SessionsMessage {
    Began(Arc<Life>),
    Ended(Arc<Life>, LifeEnd),
    /// Sent by the task that could not write the end of a session, with the number of tries.
    Unended(Arc<Life>, LifeEnd, u32),
    /// Sent by the task that wrote that a session is running.
    Ran(Arc<Life>, Result<Fence, SessionError>),
    /// Sent by the timer.
    Tick,
    /// Sent by the task that wrote the beats.
    Beaten(Vec<(Arc<Life>, Beaten, Sight)>, Round),
    /// Sent by the task that read a worker's screen.
    Looked(Arc<Life>, Sight, Option<String>),
}

/// Report of the heartbeat to the supervisor, sent by cast.
#[derive(Clone, Debug, PartialEq)]
pub enum SessionReport {
    /// Another launch or program has taken the session of this worker, which must be stopped.
    Lost { worker: String, generation: u64, found: Fence },
    /// The worker makes no progress and must be ended and started again.
    Renew { worker: String, generation: u64 },
    /// Steps that were taken for a worker. Must be recorded for the supervisor after a crash.
    Escalated { worker: String, generation: u64, rungs: Rungs },
    /// Event for the history.
    Happened { worker: String, kind: EventKind },
}
