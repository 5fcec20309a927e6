//! Errors for which the supervisor cannot start or continue.

#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    #[error("cannot start the {0} actor: {1}")]
    Start(&'static str, String),
    #[error("{0}")]
    Startup(String),
    #[error(transparent)]
    Store(#[from] crate::registry::StoreError),
    #[error("cannot read the workers' records: {0}")]
    Records(std::io::Error),
}
