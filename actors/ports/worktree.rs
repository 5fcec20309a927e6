//! Worktrees: made by one `git worktree add`, and removed only when that
//! destroys nothing.

use super::BoxFuture;
use swarm_model::{Caller, WorktreePlan, WorktreeRequest};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorktreeError {
    /// Uncommitted changes: N lines of `git status --porcelain`.
    #[error("worktree has {0} uncommitted change(s)")]
    Dirty(usize),
    /// HEAD is a commit that no branch or tag reaches.
    #[error("worktree is at commit {0}, which no branch or tag contains")]
    Unreachable(String),
    /// It could not be found out, or it holds what a save cannot keep.
    #[error("{0}")]
    Unknown(String),
    /// git refused or is not there.
    #[error("failed to create worktree: {cause}")]
    Create { cause: String, remedy: Option<String> },
    #[error("{0}")]
    Tool(String),
}

/// Whether a worktree with work in it may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Refuse, with the reason.
    No,
    /// Save everything under `refs/swarm/trash/` first.
    SaveFirst,
}

/// Work that was put under a reference before its worktree went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    pub reference: String,
    pub commit: String,
}

/// Work that had been put aside, and whose reference is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    pub reference: String,
    pub commit: String,
    pub name: String,
    pub why: String,
}

pub trait Worktrees: Send + Sync {
    /// Finds the repository and settles path, branch and base. Makes nothing.
    fn plan<'a>(
        &'a self,
        name: &'a str,
        asked: &'a WorktreeRequest,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<WorktreePlan, WorktreeError>>;

    /// Makes the worktree of `plan` under the repository's creation lock. On
    /// failure what this call made is undone.
    fn make<'a>(&'a self, plan: &'a WorktreePlan, caller: &'a Caller) -> BoxFuture<'a, Result<(), WorktreeError>>;

    /// Takes back what a start that never executed made: the directory and the
    /// branch, when they are as they were made; otherwise they are saved first.
    fn undo<'a>(&'a self, plan: &'a WorktreePlan, caller: &'a Caller) -> BoxFuture<'a, Result<(), WorktreeError>>;

    /// A port for whoever works there: the same one each time, unless it is one of `taken`
    /// or in use.
    fn port<'a>(
        &'a self,
        plan: &'a WorktreePlan,
        taken: &'a [u16],
    ) -> BoxFuture<'a, Result<Option<u16>, WorktreeError>>;

    /// Forgets what the repository's settings say is too old or too much of what was saved.
    fn expire<'a>(
        &'a self,
        base_repo: &'a str,
        now_ms: u64,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Vec<Expired>, WorktreeError>>;

    /// Whether `remove` would go ahead, without doing it.
    fn check<'a>(
        &'a self,
        path: &'a str,
        base_repo: &'a str,
        force: Force,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<(), WorktreeError>>;

    /// Removes a worktree, never its branch. A path that is not there counts as
    /// removed. `name` goes into the trash reference.
    fn remove<'a>(
        &'a self,
        name: &'a str,
        path: &'a str,
        base_repo: &'a str,
        force: Force,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Option<Saved>, WorktreeError>>;
}
