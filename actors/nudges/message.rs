//! The protocol of the actor of all nudges.

use ractor::RpcReplyPort;

use super::machine::Event;
use swarm_model::nudges::Nudge;
use swarm_model::{NudgeLine, NudgeRequest, Refusal};

#[derive(Debug)]
pub enum NudgesMessage {
    /// What was on disk; from the actor itself.
    Found(Vec<Nudge>),
    /// From a person; answered when it is durable.
    Ask(Box<NudgeRequest>, RpcReplyPort<Result<NudgeLine, Refusal>>),
    /// From the alarm, with the number it was set under.
    Alarm(u64),
    /// From a task that carried out an effect.
    Happened(Event),
    /// Its worker was ended by a person; answered when its nudge is stopped.
    Killed(String, RpcReplyPort<()>),
    /// Its worker was cleaned; answered when its file is gone.
    Cleaned(String, RpcReplyPort<()>),
}

/// What nudges tell upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Some nudge may beat, or none any more.
    Live(bool),
}
