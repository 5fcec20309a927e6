//! Protocol of the nudges' actor.

use ractor::RpcReplyPort;

use super::machine::Event;
use swarm_model::nudges::Nudge;
use swarm_model::{NudgeLine, NudgeRequest, Refusal};

#[derive(Debug)]
pub enum NudgesMessage {
    /// Nudges found on disk. From the actor itself.
    Found(Vec<Nudge>),
    /// Read again what could not be read. From the actor itself.
    Load,
    /// From a person. Answered once the change is durable.
    Ask(Box<NudgeRequest>, RpcReplyPort<Result<NudgeLine, Refusal>>),
    /// From the alarm, with the number it was set with.
    Alarm(u64),
    /// From a task that carried out an effect.
    Happened(Event),
    /// A person ended the worker. Answered once its nudge is stopped.
    Killed(String, RpcReplyPort<()>),
    /// The worker was cleaned. Answered once its nudge's file is removed.
    Cleaned(String, RpcReplyPort<()>),
}

/// Reports of the nudges to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NudgeReport {
    /// Whether any nudge is active, or could not be read.
    Live(bool),
}
