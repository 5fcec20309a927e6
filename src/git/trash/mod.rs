//! What removals by force save under `refs/swarm/trash/`, and how it comes back.

pub mod expiry;
pub mod list;
pub(crate) mod metadata;
pub(crate) mod raw;
pub mod restore;
pub(crate) mod save;
pub mod saved;

#[cfg(test)]
mod restore_tests;
