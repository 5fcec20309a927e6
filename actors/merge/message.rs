//! Protocol of the merge actor.

use ractor::RpcReplyPort;
use tokio::sync::oneshot;

use super::error::MergeError;
use super::machine::{Change, Event};
use super::places::Place;
use swarm_model::merge::queue::{Addition, Item, ItemId};
use swarm_model::{EventKind, QueueView};

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
    /// The resolver of an item was not started: it waits for this place.
    Unplaced(ItemId, Place, oneshot::Receiver<()>),
    /// There is a place for it.
    Placed(ItemId, Place),
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
    /// Retry the item, from now on for this caller if there is one. `accepts`: for a person, who accepts a base that was
    /// rewritten.
    Retry {
        item: ItemId,
        caller: Option<String>,
        accepts: bool,
    },
    /// Retry the item for a run that continues.
    Again(ItemId, Change),
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
    /// The queue was paused (`true`) or resumed.
    Paused(bool),
    /// An item has settled.
    Settled(Box<Item>),
}

/// Step of the items that have their turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The candidate is being built.
    Building,
    /// The base is being moved to this commit.
    Landing { commit: String },
    /// The verification runs on this commit.
    Verifying { commit: String },
    /// The resolver works on the conflicts in these files.
    Resolving { files: Vec<String> },
}

impl Step {
    /// Returns the event for this step of an item in the queue of `base`.
    pub fn event(self, item: ItemId, base: String) -> EventKind {
        match self {
            Self::Building => EventKind::MergeBuilding { item, base },
            Self::Landing { commit } => EventKind::MergeLanding { item, base, commit },
            Self::Verifying { commit } => EventKind::MergeVerifying { item, base, commit },
            Self::Resolving { files } => EventKind::MergeResolving { item, base, files },
        }
    }
}
