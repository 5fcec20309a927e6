//! git: worktrees that are never lost.
