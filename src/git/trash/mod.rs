//! The trash: what forced removals save under `refs/swarm/trash/`, and how it is restored.

pub(crate) mod absent;
mod branch;
pub mod expiry;
pub(crate) mod gitlinks;
pub mod list;
pub(crate) mod metadata;
pub(crate) mod only_here;
mod place;
pub(crate) mod raw;
pub(crate) mod reflog;
pub mod restore;
pub(crate) mod save;
pub mod saved;
pub(crate) mod scratch;

#[cfg(test)]
mod reflog_tests;
#[cfg(test)]
mod restore_tests;
