//! Names that are the same before and after a crash: of the workers of a flow, and of the requests that start them.

use super::{FlowPlace, Turn};
use crate::WorkerName;

/// How the tag of a worker that plays a role begins; its flow follows.
pub const TAG: &str = "flow:";

/// The name of the worker that plays a role: the last six characters of the flow's id,
/// which are random, and the role.
pub fn worker_name(place: &FlowPlace, role: &str) -> String {
    let six = place.flow.rsplit('-').next().unwrap_or_default();
    let plain = format!("{six}-{role}");
    if WorkerName::parse(&plain).is_ok() { plain } else { crate::run::worker_name(&place.flow, role) }
}

/// Under which request the worker of a turn is started: the same after a crash.
pub fn request_of(place: &FlowPlace, turn: &Turn) -> String {
    format!("{}{}", request_prefix(place, &turn.role), turn.number)
}

/// What the requests of all turns of a role begin with.
pub fn request_prefix(place: &FlowPlace, role: &str) -> String {
    format!("flow/{place}/{role}/")
}
