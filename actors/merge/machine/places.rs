//! Items whose resolvers wait for a place in their run. They do not hold up the queue: they can be dropped, others land, and the
//! conflicts of others are resolved. Once there is a place, the item is built again, because the base may have moved.

use super::Machine;
use swarm_model::merge::queue::{ItemId, PAUSE_MS_MAX, Queue, State};

/// Why an item is paused whose resolver waits for a place.
const NO_PLACE: &str = "its resolver waits until an agent of the run ends ('-j')";

impl Machine {
    /// Reports whether the resolver of the item waits for a place.
    pub fn awaits_place(&self, id: ItemId) -> bool {
        self.unplaced.contains(&id)
    }

    /// Returns the part of the queue that must survive a crash. The next supervisor asks again for a place.
    #[must_use]
    pub fn kept(&self) -> Queue {
        let mut kept = self.queue.kept();
        kept.items.iter_mut().filter(|item| self.unplaced.contains(&item.id)).for_each(|item| item.later_ms = None);
        kept
    }

    /// Pauses an item whose resolver cannot start yet.
    pub(super) fn waits(&mut self, id: ItemId) {
        let Some(item) = self.queue.item_mut(id).filter(|item| item.state == State::Resolving) else { return };
        item.state = State::Queued;
        item.onto = None;
        item.why_later = Some(NO_PLACE.to_owned());
        self.unplaced.insert(id);
        self.release_held(id);
    }

    /// Queues an item again whose resolver has a place.
    pub(super) fn placed(&mut self, id: ItemId) {
        if self.unplaced.remove(&id)
            && let Some(item) = self.queue.item_mut(id)
        {
            (item.later_ms, item.why_later) = (None, None);
        }
    }

    /// Keeps the items paused that wait for a place.
    pub(super) fn go_on_waiting(&mut self, now_ms: u64) {
        let queue = &mut self.queue;
        self.unplaced.retain(|id| match queue.item_mut(*id).filter(|item| item.state == State::Queued) {
            Some(item) => {
                item.later_ms = Some(now_ms + PAUSE_MS_MAX);
                true
            }
            None => false,
        });
    }
}
