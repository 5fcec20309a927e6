//! Defaults that more than one reader of the configuration uses.

/// Agent of specs and roles that name none.
pub const AGENT: &str = "claude";
/// Maximum number of jobs of a run that work at the same time.
pub const RUN_LIMIT: usize = 20;
/// Attempts of a job after the first.
pub const RUN_RETRIES: u32 = 1;
/// Maximum number of times that a turn of a flow is sent back to its agent for repair.
pub const FLOW_REPAIRS: u32 = 3;
