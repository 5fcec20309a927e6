//! git: worktrees that are never lost.
//!
//! This room owns the worktrees of workers: it plans, makes, takes back, judges
//! and removes them, and saves what is in them under `refs/swarm/trash/`. It
//! never changes a configuration, never deletes a branch that a start did not
//! make, and never removes work that was not saved.
//!
//! `plan` → `make` → (`undo` when it never executed | `check`, `remove`)

pub mod landing;
pub mod repository;
pub mod trash;
pub mod worktrees;

#[cfg(any(test, feature = "testing"))]
pub mod fixture;

pub use worktrees::Git;
