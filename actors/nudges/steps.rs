//! What may happen to nudges, and what is to be done about it: the words between the
//! [`machine`](super::machine) and its shell.

use swarm_model::EventKind;
use swarm_model::nudges::{Nudge, Status};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was on disk when this process began.
    Found(Box<Nudge>),
    /// The alarm rang, or something else may be due.
    Woken,
    /// Its worker may be gone.
    Doubted(String),
    /// Its worker runs, perhaps again.
    Returned(String),
    /// What a look at its worker, without a beat, has found.
    Checked {
        worker: String,
        turn: u64,
        seen: Option<Seen>,
    },
    /// What was found where a beat is to go, and the nudge as it was on disk then.
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
    /// The nudge is on disk as it was planned.
    Saved {
        nudge: Box<Nudge>,
        then: Then,
    },
    /// It is not.
    Unsaved {
        worker: String,
    },
    /// Its worker was cleaned, and its file is gone.
    Removed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Free,
    /// The message of an earlier beat still stands in the last line.
    Pending,
    /// The worker has ended, or has no window.
    Gone(String),
    /// The worker does not run, and comes back.
    Away,
    /// It could not be reached until the next beat was due.
    Unreachable(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Typed {
    Sent,
    Failed(String),
    Gone(String),
}

/// What follows from a change once it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    Nothing,
    Type,
    /// Enter, after a text that stands there without.
    Finish,
    Missed(String),
    Stopped(String),
    Expired,
    /// A person is told; whatever was under way is void.
    Ordered,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Save {
        nudge: Box<Nudge>,
        then: Then,
    },
    /// Look where a beat is to go, again and again for so long, until it is reached.
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
    /// Whatever is under way for it is void.
    Abort(String),
}

/// Why an order was not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// There is one already.
    Active,
    /// There is none.
    Unknown,
    /// It is not what it would have to be.
    State(Status),
    Over,
}

/// What becomes of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// This is to be saved, and then it is done.
    Save(Box<Nudge>),
    /// It was done by an earlier attempt of the same request.
    Done,
    /// There was nothing to stop.
    Inactive,
}
