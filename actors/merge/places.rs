//! Places for resolvers of the work of runs, whose limits include them.

use std::any::Any;
use std::collections::BTreeMap;

use ractor::ActorRef;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::machine::Machine;
use super::message::MergeMessage;
use swarm_model::merge::queue::{Item, ItemId, Phase, State};
use swarm_ports::BoxFuture;

/// Place of a resolver, or its place in the line for one. Dropping it gives it up.
pub type Place = Box<dyn Any + Send + Sync>;

/// Answer to a resolver that asks for a place.
#[derive(Debug)]
pub struct Asked {
    pub place: Place,
    /// Resolves once the place is free, also by an error. `None`: it is free.
    pub turn: Option<oneshot::Receiver<()>>,
}

/// Places of runs.
pub trait Places: Send + Sync {
    /// Asks for a place for the resolver of an item. `None` if it needs none.
    fn ask<'a>(&'a self, item: &'a Item) -> BoxFuture<'a, Option<Asked>>;
}

/// Place of an item whose resolver does not run yet.
enum Seat {
    /// Task that waits for it.
    Awaited(AbortHandle),
    /// The item is being built again, because the base may have moved.
    Free(Place),
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Self::Awaited(task) = self {
            task.abort();
        }
    }
}

/// Places of items whose resolvers do not run yet.
#[derive(Default)]
pub(super) struct Seats(BTreeMap<ItemId, Seat>);

impl Seats {
    /// Waits for a place in a task, which sends [`MergeMessage::Placed`].
    pub(super) fn wait(&mut self, item: ItemId, place: Place, turn: oneshot::Receiver<()>, to: ActorRef<MergeMessage>) {
        let task = tokio::spawn(async move {
            // A run that has ended starts nothing else, so there is room.
            let _ = turn.await;
            let _ = to.cast(MergeMessage::Placed(item, place));
        });
        self.0.insert(item, Seat::Awaited(task.abort_handle()));
    }

    pub(super) fn keep(&mut self, item: ItemId, place: Place) {
        self.0.insert(item, Seat::Free(place));
    }

    /// Returns the place of an item whose resolver starts.
    pub(super) fn take(&mut self, item: ItemId) -> Option<Place> {
        match &mut self.0.remove(&item)? {
            Seat::Free(place) => Some(std::mem::replace(place, Box::new(()))),
            Seat::Awaited(_) => None,
        }
    }

    /// Gives up the places that no resolver will use soon: of items that were dropped, that do not conflict any more, or
    /// behind the resolver of another item.
    pub(super) fn prune(&mut self, queue: &Machine) {
        let is_being_built = |id| matches!(&queue.phase, Phase::Building { todo, .. } if todo.contains(&id));
        self.0.retain(|id, seat| match (seat, queue.item(*id)) {
            (_, None) => false,
            (Seat::Awaited(_), Some(_)) => queue.awaits_place(*id),
            (Seat::Free(_), Some(item)) => match item.state {
                State::Queued => !queue.paused && !item.held,
                State::Active => is_being_built(*id),
                _ => false,
            },
        });
    }
}
