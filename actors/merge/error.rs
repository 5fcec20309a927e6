//! Why a queue did not do what was asked.

use swarm_model::merge::queue::ItemId;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    #[error("there is no item {0} in this queue")]
    Unknown(ItemId),
    #[error("item {0} is {1}, so it cannot be {2}")]
    State(ItemId, &'static str, &'static str),
    #[error("item {0} has no commit yet; `swarm merge add {1}` looks at the work again")]
    NoTip(ItemId, String),
    /// Nothing was changed.
    #[error("the merge queue's journal cannot be written: {0}")]
    Journal(String),
    #[error("the merge queue's journal cannot be read: {0}")]
    Unreadable(String),
    #[error("the merge queue ended before it could answer")]
    Closed,
}
