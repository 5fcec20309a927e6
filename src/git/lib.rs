//! git for swarm: worktrees whose work is never lost.
//!
//! This crate owns the worktrees of workers. It plans, creates, rolls back,
//! checks and removes them, and saves their content under `refs/swarm/trash/`. It
//! never changes a configuration, never deletes a branch that a start did not
//! create, and never removes work that was not saved.
//!
//! `plan` → `make` → (`undo` if the worker never executed | `check`, `remove`)

pub mod carry;
pub mod clones;
pub mod landing;
pub mod repository;
pub mod trash;
pub mod worktrees;

#[cfg(any(test, feature = "testing"))]
pub mod fixture;

pub use worktrees::Git;
