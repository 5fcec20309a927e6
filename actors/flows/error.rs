//! Why a flow did not do what was asked.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// It cannot be opened, or somebody else runs it.
    #[error("{0}")]
    Open(String),
    #[error("no turn is at work at node '{0}'")]
    NotAtWork(String),
    #[error("the flow ended before it could answer")]
    Closed,
}
