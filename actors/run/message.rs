//! Protocol of the run actor.

use ractor::RpcReplyPort;

use super::actor::ResolverMessage;
use super::error::RunError;
use crate::merge::Step;
use swarm_model::merge::queue::Item;
use swarm_model::run::Event;
use swarm_model::run::progress::Run;

#[derive(Debug)]
pub enum RunMessage {
    /// Request of a person. Answered once it is durable.
    Ask(Ask, RpcReplyPort<Result<(), RunError>>),
    /// Asks for the present state of the run.
    Look(RpcReplyPort<Run>),
    /// Event from the task that carries out an effect.
    Happened(Event),
    /// Such an event, answered once it is durable.
    Record(Event, RpcReplyPort<Result<(), RunError>>),
    /// A step of a queue item, perhaps of this run, has started.
    Merging(Step, Box<Item>),
    /// A queue item, perhaps of this run, has settled.
    Settled(Box<Item>),
    /// Journal all events so far, and then carry out their effects.
    Flush,
    /// Journal the events that waited for others.
    Note,
    /// About the place of a resolver.
    Resolver(ResolverMessage),
}

/// Request of a person to a run that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    Stop,
    Hold,
    Resume,
    /// Give up the present attempts of these jobs, whose hosts are out of reach: all of them, or none.
    GiveUp(Vec<String>),
}

/// Report of a run to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunReport {
    /// The run has ended, and all its files are written.
    Over,
}
