//! Why the registry could not do what was asked.

use std::path::PathBuf;

/// Why one mutation was refused. Nothing was changed for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("worker '{0}' already exists")]
    Exists(String),
    #[error("worker '{0}' not found")]
    Missing(String),
    /// Another program replaced the row meanwhile.
    #[error("worker '{0}' was changed by another program meanwhile")]
    Changed(String),
}

/// Why the file could not be read or written. Cloned to every mutation of the
/// commit that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("the registry lock {} was not free for {waited_s} s, held by {holder}", path.display())]
    Locked { path: PathBuf, waited_s: u64, holder: String },
    #[error("{} is {what}, not a regular file", path.display())]
    NotAFile { path: PathBuf, what: &'static str },
    #[error("{} is larger than the limit of {limit_bytes} bytes", path.display())]
    TooLarge { path: PathBuf, limit_bytes: u64 },
    #[error("{} was written by a newer swarm (schema version {version}); this one may only read it", path.display())]
    NewerSchema { path: PathBuf, version: u64 },
    #[error("cannot {step} {}: {cause}", path.display())]
    Io { step: &'static str, path: PathBuf, cause: String },
    /// The actor is gone: the supervisor is ending.
    #[error("the registry is shutting down")]
    Closed,
}

impl StoreError {
    /// What a person can do about it.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Locked { .. } => Some("end or continue that process, then try again".to_owned()),
            Self::NotAFile { path, .. } => Some(format!("move it away: mv '{0}' '{0}.aside'", path.display())),
            Self::TooLarge { path, .. } => {
                Some(format!("look at it and move it away: mv '{0}' '{0}.aside'", path.display()))
            }
            Self::NewerSchema { .. } => Some("use the newer swarm".to_owned()),
            Self::Io { .. } | Self::Closed => None,
        }
    }
}

/// Either of the two.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    Store(#[from] StoreError),
}
