//! Near ends of connections to other machines: `swarm __reach` for the calls of a run, `swarm __carry` for git.

mod carry;
mod reach;

use swarm_hosts::{Fault, FaultKind, Host};

pub use carry::main as carry;
pub use reach::main as reach;

/// Verb that carries git's bytes.
pub const CARRY: &str = "__carry";
/// Verb that passes calls on.
pub const REACH: &str = "__reach";

/// Returns the host with this name.
fn host(name: &str) -> Result<Host, Fault> {
    let refused = |cause: String, remedy| Fault { kind: FaultKind::Refused, cause, remedy };
    let configured = swarm_config::hosts().map_err(|cause| refused(cause, None))?;
    swarm_hosts::find(name, &configured).map_err(|refusal| refused(refusal.cause, refusal.remedy))
}
