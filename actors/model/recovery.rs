//! Whether a session that was left can be resumed.

use crate::SessionStatus;

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
    /// The stable name.
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
