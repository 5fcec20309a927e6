//! Running commands: with a deadline, and through a runner that ends whatever a command leaves behind.

pub mod deadline;
pub mod runner;
