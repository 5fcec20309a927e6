//! Reason why a request to a run failed.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// Another process has the lock of the run, or its files are invalid.
    #[error("{0}")]
    Open(String),
    /// The journal cannot be written.
    #[error("cannot write the journal of the run: {0}")]
    Journal(String),
    #[error("the run ended before it could answer")]
    Closed,
    /// The request makes no sense for the present state of the run.
    #[error("{}", .0.cause)]
    Refused(swarm_model::Refusal),
}
