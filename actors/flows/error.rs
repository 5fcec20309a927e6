//! Reason why a request to a flow failed.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// The flow cannot be opened, or another process runs it.
    #[error("{0}")]
    Open(String),
    #[error("no turn is running at node '{0}'")]
    NotAtWork(String),
    #[error("the flow ended before it could answer")]
    Closed,
}
