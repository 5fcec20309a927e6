//! Messages of the heartbeat actor, and its reports to the supervisor.

use swarm_model::{EventKind, Fence, Rungs};

/// Message to the heartbeat actor. Every message is an event of its machine, unchanged.
pub(super) use super::machine::Event as SessionsMessage;

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
