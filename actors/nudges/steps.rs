//! Events of nudges and their effects: the vocabulary between the [`machine`](super::machine) and
//! its actor.

use swarm_model::EventKind;
use swarm_model::nudges::{Nudge, Status};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The nudge was on disk when this process started.
    Found(Box<Nudge>),
    /// The alarm fired, or something else may be due.
    Woken,
    /// The worker may be gone.
    Doubted(String),
    /// The worker runs, perhaps again.
    Returned(String),
    /// Result of reading the window without a beat. `None` if the task failed.
    Checked {
        worker: String,
        turn: u64,
        seen: Option<Seen>,
    },
    /// Result of reading the window for a beat, and the nudge as it was on disk then.
    Seen {
        worker: String,
        turn: u64,
        disk: Option<Box<Nudge>>,
        seen: Seen,
    },
    Typed {
        worker: String,
        turn: u64,
        typed: Typed,
    },
    /// The planned nudge is on disk.
    Saved {
        nudge: Box<Nudge>,
        then: Then,
    },
    /// The nudge could not be saved.
    Unsaved {
        worker: String,
    },
    /// The worker was cleaned, and the nudge's file is gone.
    Removed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Free,
    /// The message of an earlier beat is still in the last line.
    Pending,
    /// The window shows a dialog of its agent, which text would answer.
    Asks(String),
    /// The worker has ended, or has no window.
    Gone(String),
    /// The worker does not run, but will come back.
    Away,
    /// The window could not be reached until the next beat was due.
    Unreachable(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Typed {
    Sent,
    /// Nothing was typed.
    Refused(String),
    Failed(String),
    Gone(String),
}

/// Next step after a change, once it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    Nothing,
    Type,
    /// Press Enter after a text that was typed without it.
    Finish,
    Missed(String),
    Stopped(String),
    Expired,
    /// Answer the person. Running tasks become void.
    Ordered,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Save {
        nudge: Box<Nudge>,
        then: Then,
    },
    /// Read the window for a beat. Retry for `reach_ms` milliseconds until it can be reached.
    Look {
        worker: String,
        turn: u64,
        message: String,
        reach_ms: u64,
    },
    Check {
        worker: String,
        turn: u64,
        message: String,
    },
    Type {
        worker: String,
        turn: u64,
        message: String,
    },
    Tell(String, EventKind),
    /// Abort the running task of the worker.
    Abort(String),
}

/// Reason why an order was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// A nudge is already active.
    Active,
    /// The worker has no nudge.
    Unknown,
    /// The nudge's status does not allow the order.
    State(Status),
    Over,
}

/// Decision about an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Save this nudge; then the order is done.
    Save(Box<Nudge>),
    /// An earlier attempt of the same request already did it.
    Done,
    /// There was nothing to stop.
    Inactive,
}
