//! The flow actor's whole protocol.

use ractor::RpcReplyPort;

use super::error::FlowError;
use swarm_model::flows::{Ended, Turn};

#[derive(Debug)]
pub enum FlowMessage {
    /// The file was changed by somebody else.
    Wake,
    /// From the timer, or from the actor itself: go by what the files say now.
    Advance,
    /// From the task that attends a turn.
    Started(Turn),
    Ended(Box<Ended>),
    /// The same, where that task itself failed.
    Unattended(Turn),
    StopNode(String, RpcReplyPort<Result<(), FlowError>>),
    Stop,
    /// Work on it: refused by one that is being left.
    Run(RpcReplyPort<bool>),
    /// Answered when nothing is at work: whether the flow is over.
    Rests(RpcReplyPort<bool>),
}

/// What a flow tells upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It has ended, and everything of it is on disk.
    Over,
}
