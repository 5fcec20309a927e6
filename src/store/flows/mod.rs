//! Flows on disk: their files, the turns of their roles, and the flows that a supervisor runs.

pub mod active;
pub mod advance;
pub mod config;
pub mod feed;
mod file;
mod make;
mod origin;
pub mod place;
mod prompt;
pub mod registered;
pub mod scripts;
pub mod sidecar;
pub mod store;
pub mod turns;
mod workflow;
pub mod yaml;
mod yaml_write;

pub use file::{read_text, replace, replace_lightly};
pub use make::Make;

#[cfg(test)]
mod cases_tests;
#[cfg(test)]
mod replay;
#[cfg(test)]
mod tables_tests;
#[cfg(test)]
mod traces_tests;
