//! What a run asks of the rooms below it: workers and merge queues.

use crate::merge::queue::Item;
use crate::model::{Caller, MergeSettings, Refusal};
use crate::ports::BoxFuture;
use crate::worker::Workers;

/// Work that is to land.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// It is asked for once under the same key.
    pub key: String,
    pub worker: String,
    pub base: Option<String>,
    pub priority: i32,
    pub settings: MergeSettings,
    /// What its commit is to be called.
    pub subject: Option<String>,
    pub caller: Caller,
}

pub trait Fleet: Workers {
    /// The item that was queued under this key.
    fn item<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Option<Item>>;

    /// Has the item of this key, which waits, looked at again; says why not where that
    /// would be in vain.
    fn retry<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Puts what a worker left into the merge queue of its base.
    fn land(&self, wish: Wish) -> BoxFuture<'_, Result<(), Refusal>>;
}
