//! Internal processes, one module each: the code behind `swarm __NAME`.

pub mod attempt;
pub mod far;
pub mod forkserver;
mod gate;
pub mod guard;
pub mod launcher;
mod memory;
pub mod near;
pub mod pilot;
pub mod shim;
pub mod supervisor;
mod title;
pub mod turn;
