//! The loop actor's whole protocol.

use ractor::RpcReplyPort;

use super::error::LoopError;
use super::machine::Event;
use swarm_model::loops::progress::Loop;
use swarm_model::{Refusal, Spawned};

#[derive(Debug)]
pub enum LoopMessage {
    /// From a person, or from a task that goes on only when it is durable.
    Ask(Event, RpcReplyPort<Result<(), LoopError>>),
    /// The loop as it is now.
    Look(RpcReplyPort<Loop>),
    /// From the task that carries out an effect.
    Happened(Event),
    /// The worker of the first iteration runs, as its start was answered; or does not.
    First(Result<Spawned, Refusal>),
    /// Whoever began it wants to know of that.
    Begun(RpcReplyPort<Result<Spawned, Refusal>>),
    /// What has come up to now is to be made durable, and then carried out.
    Flush,
}

/// What a loop tells upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Nobody has to look after it any more, for now or for good; all of it is on disk.
    Over,
}
