//! Whether a session can be resumed.

use crate::SessionStatus;

/// Whether a session can be resumed, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovery {
    NoState,
    InvalidState,
    IdentifierMismatch { found: String },
    AgentAlive,
    Finished { status: SessionStatus },
    MaxAttempts { attempts: i64 },
    Recoverable { attempts: i64 },
}

impl Recovery {
    /// Returns the stable name of the result.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NoState => "no_state",
            Self::InvalidState => "invalid_state",
            Self::IdentifierMismatch { .. } => "identifier_mismatch",
            Self::AgentAlive => "agent_alive",
            Self::Finished { .. } => "finished",
            Self::MaxAttempts { .. } => "max_attempts",
            Self::Recoverable { .. } => "recoverable",
        }
    }
}
