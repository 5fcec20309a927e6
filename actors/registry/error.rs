//! Errors of the registry.

use std::path::PathBuf;

/// Reason why one mutation was refused. A refused mutation changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("worker '{0}' already exists")]
    Exists(String),
    #[error("worker '{0}' not found")]
    Missing(String),
    #[error("the row of '{0}' in state.json cannot be read")]
    Unreadable(String),
    /// Another program replaced the row in the meantime.
    #[error("worker '{0}' was changed by another program in the meantime")]
    Changed(String),
    #[error(
        "the registry has no room for worker '{name}': with it, state.json would have {bytes} bytes, and the limit for \
         starts is {limit_bytes}"
    )]
    Full { name: String, bytes: u64, limit_bytes: u64 },
}

impl Refused {
    /// Returns the hint for the user, if there is a remedy.
    pub fn remedy(&self) -> Option<String> {
        let is_full = matches!(self, Self::Full { .. });
        is_full.then(|| {
            "run 'swarm clean --all' to forget the workers that have ended, or put long arguments into files".to_owned()
        })
    }
}

/// Reason why the file could not be read or written. Every mutation of the failed commit gets a
/// clone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("{} is locked by {holder} (waited {waited_s} s)", path.display())]
    Locked { path: PathBuf, waited_s: u64, holder: String },
    #[error("{} is {what}, not a regular file", path.display())]
    NotAFile { path: PathBuf, what: &'static str },
    #[error("{} is larger than the limit of {limit_bytes} bytes", path.display())]
    TooLarge { path: PathBuf, limit_bytes: u64 },
    #[error(
        "{} was written by a newer swarm (schema version {version}), so this version can only read it",
        path.display()
    )]
    NewerSchema { path: PathBuf, version: u64 },
    #[error("cannot {step} {}: {cause}", path.display())]
    Io {
        step: &'static str,
        path: PathBuf,
        cause: String,
        /// Whether the disk is full or the quota of the user is exceeded.
        is_full: bool,
        /// Error number of the system call that failed, if it was one.
        errno: Option<i32>,
    },
    #[error("the row of '{name}' in {} cannot be read: {cause}", path.display())]
    Row { name: String, path: PathBuf, cause: String },
    /// The actor is gone because the supervisor is shutting down.
    #[error("the registry is shutting down")]
    Closed,
}

impl StoreError {
    /// Returns the error number of the system call that failed, if it was one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Io { errno, .. } => *errno,
            _ => None,
        }
    }

    /// Returns the hint for the user, if there is a remedy.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Locked { .. } => Some("end or resume that process, then try again".to_owned()),
            Self::NotAFile { path, .. } => Some(format!("move it away: mv '{0}' '{0}.aside'", path.display())),
            Self::TooLarge { path, .. } => {
                let path = path.display();
                Some(format!(
                    "move it away: mv '{path}' '{path}.aside'; the workers of swarm are then found by their own records"
                ))
            }
            Self::Row { path, .. } => Some(format!("correct that row in {}", path.display())),
            Self::NewerSchema { .. } => Some("use the newer version of swarm".to_owned()),
            Self::Io { .. } | Self::Closed => None,
        }
    }
}

/// Error of a mutation: a refusal, or a failure of the store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    Store(#[from] StoreError),
}
