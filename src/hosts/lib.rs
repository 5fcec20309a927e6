//! Other machines. `swarm __stdio` on the other machine is the far end; its standard streams are connected to this
//! machine by `ssh`, or by another command that the user configured.
//!
//! ```text
//! Host (words of a person, user's configuration) -> master (one connection per host, shared) -> Pipe (hello, frames)
//! ```

mod carrier;
mod fault;
pub mod frames;
mod host;
mod master;
mod pipe;
mod resolved;
pub mod slurm;
mod words;

pub use carrier::{Carrier, Program, Service};
pub use fault::{Fault, FaultKind};
pub use host::{Host, LOCAL, find, known};
pub use pipe::{Input, Next, Pipe};
pub use words::{attach, script};
