//! Access of a run to workers and merge queues.

use crate::merge::Change;
use crate::worker::Workers;
use swarm_model::merge::queue::Item;
use swarm_model::run::Wish;
use swarm_model::{Refusal, Target};
use swarm_ports::BoxFuture;

/// Access to workers and merge queues.
pub trait Fleet: Workers {
    /// Returns the queue item with this key, and its queue. `None` if there is none.
    fn item<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Option<(Target, Item)>>;

    /// Returns the newest item of the same worker that was added after the item with this key, in the same queue. `None`
    /// if there is none.
    fn later<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Option<Item>>;

    /// Returns the item that landed the same commit as the item with this key, in the same queue. `None` if there is none.
    fn lander<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Option<Item>>;

    /// Retries the waiting queue item with this key, by what has changed since it was added. A queued item only gets the
    /// change.
    ///
    /// # Errors
    /// Returns a refusal if a retry would be in vain.
    fn retry<'a>(&'a self, key: &'a str, change: Change) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Adds the work of a worker to the merge queue of its base.
    fn land(&self, wish: Wish) -> BoxFuture<'_, Result<(), Refusal>>;
}
