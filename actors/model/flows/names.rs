//! Names that are stable across crashes: of a flow's workers, and of the requests that start them.

use super::{FlowPlace, Turn};
use crate::WorkerName;

/// Prefix of the tag of a worker that plays a role. The flow follows.
pub const TAG: &str = "flow:";

/// Returns the name of a role's worker: the last six characters of the flow id, which are random,
/// and the role.
pub fn worker_name(place: &FlowPlace, role: &str) -> String {
    let six = place.flow.rsplit('-').next().unwrap_or_default();
    let plain = format!("{six}-{role}");
    if WorkerName::parse(&plain).is_ok() { plain } else { crate::run::worker_name(&place.flow, role) }
}

/// Returns the request that starts the worker of a turn. Stable across crashes.
pub fn request_of(place: &FlowPlace, turn: &Turn) -> String {
    format!("{}{}", request_prefix(place, &turn.role), turn.number)
}

/// Returns the common prefix of the requests of all turns of a role.
pub fn request_prefix(place: &FlowPlace, role: &str) -> String {
    format!("flow/{place}/{role}/")
}
