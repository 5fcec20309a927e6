//! Protocol of the loop actor.

use ractor::RpcReplyPort;

use super::error::LoopError;
use super::machine::Event;
use swarm_model::loops::progress::Loop;
use swarm_model::{Refusal, Spawned};

#[derive(Debug)]
pub enum LoopMessage {
    /// From a person, or from a task that must wait until the event is durable.
    Ask(Event, RpcReplyPort<Result<(), LoopError>>),
    /// Returns the present state of the loop.
    Look(RpcReplyPort<Loop>),
    /// From a task that carries out an effect.
    Happened(Event),
    /// Result of the first iteration's start.
    First(Result<Spawned, Refusal>),
    /// Waits for the result of the first iteration's start.
    Begun(RpcReplyPort<Result<Spawned, Refusal>>),
    /// Makes pending events durable, then carries out their effects.
    Flush,
}

/// Reports of a loop to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopReport {
    /// The loop needs no supervision, for now or for good; everything is on disk.
    Over,
}
