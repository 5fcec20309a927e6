//! The merge actor's whole protocol.

use ractor::RpcReplyPort;

use super::error::MergeError;
use super::machine::Event;
use swarm_model::QueueView;
use swarm_model::merge::queue::{Addition, Item, ItemId};

/// What a queue is asked and told.
#[derive(Debug)]
pub enum MergeMessage {
    /// From people and workers; answered when it is durable.
    Ask(Ask, RpcReplyPort<Result<Option<ItemId>, MergeError>>),
    /// The queue as it is now.
    Look(RpcReplyPort<QueueView>),
    /// The item that was made under this key.
    Item(String, RpcReplyPort<Option<Item>>),
    /// From the task that carried out an effect.
    Answered(Event),
    /// The journal could not be written; from the timer.
    SaveAgain,
}

/// What may be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Finished work: a worker or branch and the commit that is to land. Asked for
    /// again under the same key it is the same item.
    Add(Addition),
    Drop(ItemId),
    Retry(ItemId),
    Pause,
    Resume,
}

/// What the queue tells upwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Whether it needs this process.
    Busy(bool),
    /// A command of the user's runs now for the sake of these items.
    Begun(Step, Vec<Item>),
    /// An item reached its end for now.
    Settled(Box<Item>),
}

/// A step that may take long: it runs a command of the user's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// This commit is looked at.
    Verifying { commit: String },
    /// Somebody resolves the conflicts in these files.
    Resolving { files: Vec<String> },
}
