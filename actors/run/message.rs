//! The run actor's whole protocol.

use ractor::RpcReplyPort;

use super::error::RunError;
use crate::merge::Step;
use swarm_model::merge::queue::Item;
use swarm_model::run::Event;
use swarm_model::run::progress::Run;

#[derive(Debug)]
pub enum RunMessage {
    /// From a person; answered when it is durable.
    Ask(Ask, RpcReplyPort<Result<(), RunError>>),
    /// The run as it is now.
    Look(RpcReplyPort<Run>),
    /// From the task that carries out an effect.
    Happened(Event),
    /// A step of an item of a merge queue, perhaps one of ours, has begun.
    Merging(Step, Box<Item>),
    /// An item of a merge queue, perhaps one of ours, has settled.
    Settled(Box<Item>),
    /// What has come up to now is to be journaled, and then carried out.
    Flush,
}

/// What a person may ask of a run that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Stop,
    Hold,
    Resume,
}

/// What a run tells upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It has ended, and everything of it is on disk.
    Over,
}
