//! What holds for runs where neither a flag nor `[run]` says anything.

/// The agent of specs that name none.
pub const AGENT: &str = "claude";
/// Jobs that are at work at the same time.
pub const LIMIT: usize = 20;
/// Attempts after the first.
pub const RETRIES: u32 = 1;
