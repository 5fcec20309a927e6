//! Why a loop did not do what was asked.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoopError {
    /// Its records are not there, or say that it cannot be.
    #[error("{0}")]
    Open(String),
    #[error("the records of the loop cannot be written: {0}")]
    Save(String),
    #[error("the loop ended before it could answer")]
    Closed,
}
