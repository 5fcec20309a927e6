//! Reason why a request to a merge queue failed.

use swarm_model::merge::queue::ItemId;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    #[error("item {0} not found in this queue")]
    Unknown(ItemId),
    /// The state of the item does not permit the request.
    #[error("item {0} is {1} and cannot be {2}")]
    State(ItemId, &'static str, &'static str),
    /// The item waits for a commit, so there is nothing to retry.
    #[error("item {0} has no commit yet; run 'swarm merge add {1}' to queue the work again")]
    NoTip(ItemId, String),
    /// The journal cannot be written. Nothing was changed.
    #[error("cannot write the journal of the merge queue: {0}")]
    Journal(String),
    #[error("cannot read the journal of the merge queue: {0}")]
    Unreadable(String),
    #[error("the merge queue ended before it could answer")]
    Closed,
}

impl MergeError {
    /// Returns what a person can do. `None` if the message says it.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::State(id, "active" | "resolving", done) => Some(format!(
                "run 'swarm merge wait {id}' until it has settled; if it did not land, it can be {done} then"
            )),
            _ => None,
        }
    }
}
