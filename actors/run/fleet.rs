//! What a run asks of the rooms below it: workers and merge queues.

use crate::worker::Workers;
use swarm_model::Refusal;
use swarm_model::merge::queue::Item;
use swarm_model::run::Wish;
use swarm_ports::BoxFuture;

pub trait Fleet: Workers {
    /// The item that was queued under this key.
    fn item<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Option<Item>>;

    /// Has the item of this key, which waits, looked at again; says why not where that
    /// would be in vain.
    fn retry<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Puts what a worker left into the merge queue of its base.
    fn land(&self, wish: Wish) -> BoxFuture<'_, Result<(), Refusal>>;
}
