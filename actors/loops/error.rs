//! Reason why a request to a loop failed.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoopError {
    /// The loop's files are absent, unreadable or invalid.
    #[error("{0}")]
    Open(String),
    #[error("cannot write the loop's files: {0}")]
    Save(String),
    #[error("the loop ended before it could answer")]
    Closed,
}
