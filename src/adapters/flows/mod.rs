//! The files of flows.

mod file;
mod make;
pub mod place;
pub mod sidecar;
pub mod store;
pub mod yaml;
mod yaml_write;

pub use file::read_text;
pub use make::Make;

#[cfg(test)]
mod cases_tests;
#[cfg(test)]
mod replay;
#[cfg(test)]
mod tables_tests;
#[cfg(test)]
mod traces_tests;
