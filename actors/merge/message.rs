//! Protocol of the merge actor.

use ractor::RpcReplyPort;

use super::error::MergeError;
use super::machine::Event;
use swarm_model::QueueView;
use swarm_model::merge::queue::{Addition, Item, ItemId, Rules};

/// Message to the actor of a merge queue.
#[derive(Debug)]
pub enum MergeMessage {
    /// Request of a person or worker. Answered once it is durable.
    Ask(Ask, RpcReplyPort<Result<Vec<ItemId>, MergeError>>),
    /// Asks for the present state of the queue.
    Look(RpcReplyPort<QueueView>),
    /// Asks for the item that was added under this key.
    Item(String, RpcReplyPort<Option<Item>>),
    /// Result from the task that carried out an effect.
    Answered(Event),
    /// From the timer: watch other obstacles.
    TurnEnded,
    /// From the timer: try again to write the journal.
    SaveAgain,
}

/// Request of a person or worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Add finished work of workers or branches. A repeated request with the same key returns the same item.
    Add(Vec<Addition>),
    Drop(ItemId),
    /// Retry the item for a person, who accepts a base that was rewritten.
    Retry(ItemId),
    /// Retry the item for a run that continues, by these rules if they have changed since it was added. A queued item only
    /// gets the rules.
    Again(ItemId, Option<Box<Rules>>),
    Pause,
    Resume,
}

/// Report of a merge queue to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeReport {
    /// Whether the queue needs this process.
    Busy(bool),
    /// A step for these items has started.
    Begun(Step, Vec<Item>),
    /// An item has settled.
    Settled(Box<Item>),
}

/// Step that may take long, because it runs a command of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The verification runs on this commit.
    Verifying { commit: String },
    /// The resolver works on the conflicts in these files.
    Resolving { files: Vec<String> },
}
