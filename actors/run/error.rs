//! Why a run did not do what was asked.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// Somebody else has the run's lock, or its files say that it cannot be.
    #[error("{0}")]
    Open(String),
    #[error("the run's journal cannot be written: {0}")]
    Journal(String),
    #[error("the run ended before it could answer")]
    Closed,
}
