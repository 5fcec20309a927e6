//! Protocol of the flow actor.

use ractor::RpcReplyPort;

use super::error::FlowError;
use swarm_model::flow::{Ended, Turn};

#[derive(Debug)]
pub enum FlowMessage {
    /// Another process changed the files.
    Wake,
    /// From the timer or the actor itself: act on the current files.
    Advance,
    /// From the task that attends a turn: its worker runs.
    Started(Turn),
    Ended(Box<Ended>),
    /// The task that attended a turn failed.
    Unattended(Turn),
    StopNode(String, RpcReplyPort<Result<(), FlowError>>),
    Stop,
    /// Work on the flow. Answered with `false` by a flow that is being left.
    Run(RpcReplyPort<bool>),
    /// Answered once no turn is running: whether the flow is over.
    Rests(RpcReplyPort<bool>),
}

/// Reports of a flow to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowReport {
    /// The flow's actor ended; everything is on disk.
    Over,
}
