//! The whole protocol of the heartbeat.

use std::sync::Arc;

use crate::model::Fence;
use crate::ports::{Beaten, Life, LifeEnd, SessionError};

#[derive(Debug)]
pub enum HeartbeatMessage {
    Began(Arc<Life>),
    Ended(Arc<Life>, LifeEnd),
    /// From the task that wrote that it runs.
    Ran(Arc<Life>, Result<Fence, SessionError>),
    /// From the timer.
    Tick,
    /// From the task that beat for these.
    Beaten(Vec<(Arc<Life>, Beaten)>),
}

/// What the supervisor is told, by cast.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// The session of this worker is somebody else's: it has to stop.
    Lost { worker: String, generation: u64, found: Fence },
}
