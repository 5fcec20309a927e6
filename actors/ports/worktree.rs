//! Worktrees: created by one `git worktree add`, and removed only if that destroys no work.

use super::BoxFuture;
use swarm_model::{BaseRef, Caller, RowWorktree, WorktreePlan, WorktreeRequest};

/// Reason why a worktree cannot be created or removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorktreeError {
    /// The worktree has uncommitted changes: this many lines of `git status --porcelain`.
    #[error("worktree has {0} uncommitted change(s)")]
    Dirty(usize),
    /// HEAD is at a commit that no branch or tag contains.
    #[error("worktree is at commit {0}, which no branch or tag contains")]
    Unreachable(String),
    /// Another worktree of the repository, with this path, lies inside. A save would not hold its work.
    #[error("worktree contains the worktree {0}")]
    Contains(String),
    /// A worker of this name runs in the worktree, is being started there, or will be restarted.
    #[error("worktree is used by running worker '{0}'")]
    Used(String),
    /// A worker of another state directory, or an agent that another program runs, uses the worktree.
    #[error("worktree is used by {0}")]
    InUse(String),
    /// The state of the worktree is unknown, or it contains something that a save cannot keep.
    #[error("{0}")]
    Unknown(String),
    /// git refused, or is not installed.
    #[error("failed to create worktree: {cause}")]
    Create {
        cause: String,
        remedy: Option<String>,
        /// A later try may succeed without a change by a person: a lock, a quota, or a command of the user failed.
        passes: bool,
    },
    /// Another tool or the system failed.
    #[error("{0}")]
    Tool(String),
}

/// Whether a worktree that contains work may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// No. The removal is refused, with the reason.
    No,
    /// Yes, after everything is saved under `refs/swarm/trash/`.
    SaveFirst,
}

/// Work that was saved before its worktree was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Full name of the reference under `refs/swarm/trash/`.
    pub reference: String,
    pub commit: String,
}

/// Result of a request to delete a branch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DroppedBranch {
    pub is_deleted: bool,
    /// Commits that only its reflog had.
    pub saved: Option<Saved>,
}

/// Saved work whose reference was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    pub reference: String,
    pub commit: String,
    /// Worker whose work it was.
    pub name: String,
    /// Why the reference was deleted.
    pub why: String,
}

/// Worktree that stayed when its worker was forgotten, or that was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub tree: RowWorktree,
    /// Base from which its work started. `None` if unknown.
    pub base: Option<BaseRef>,
    /// Whether a later worker of the name has left another worktree since, which is gone.
    pub is_superseded: bool,
}

/// Worktrees of workers.
pub trait Worktrees: Send + Sync {
    /// Finds the repository, and determines path, branch and base of the worktree. Creates nothing.
    fn plan<'a>(
        &'a self,
        name: &'a str,
        asked: &'a WorktreeRequest,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<WorktreePlan, WorktreeError>>;

    /// Creates the worktree of `plan` under the repository's creation lock. If it fails, undoes what it created.
    fn make<'a>(&'a self, plan: &'a WorktreePlan, caller: &'a Caller) -> BoxFuture<'a, Result<(), WorktreeError>>;

    /// Removes the directory and the branch that a start created whose command was never executed. If they have
    /// changed since, they are saved first.
    fn undo<'a>(&'a self, plan: &'a WorktreePlan, caller: &'a Caller) -> BoxFuture<'a, Result<(), WorktreeError>>;

    /// Returns a port for the worker in this worktree: the same one each time, unless it is one of `taken` or in use.
    /// `None` if no port is free.
    fn port<'a>(
        &'a self,
        plan: &'a WorktreePlan,
        taken: &'a [u16],
    ) -> BoxFuture<'a, Result<Option<u16>, WorktreeError>>;

    /// Deletes saved work that is too old, or too large in total, by the settings of the repository. Returns what was
    /// deleted.
    fn expire<'a>(
        &'a self,
        base_repo: &'a str,
        now_ms: u64,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Vec<Expired>, WorktreeError>>;

    /// Checks whether `remove` would succeed, without removing anything.
    fn check<'a>(
        &'a self,
        path: &'a str,
        base_repo: &'a str,
        force: Force,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<(), WorktreeError>>;

    /// Removes a worktree, but never its branch. A path that does not exist counts as removed, unless git's record of the
    /// worktree holds work that exists nowhere else. `name` becomes part of the trash reference. Returns what was saved;
    /// `None` if there was nothing to save.
    fn remove<'a>(
        &'a self,
        name: &'a str,
        path: &'a str,
        base_repo: &'a str,
        force: Force,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Option<Saved>, WorktreeError>>;

    /// Returns the ignored files that somebody made in a worktree and that go with it, apart from those in directories that
    /// are ignored as a whole. Empty if git cannot tell.
    fn ignored<'a>(&'a self, _: &'a RowWorktree, _: &'a Caller) -> BoxFuture<'a, Vec<String>> {
        Box::pin(std::future::ready(Vec::new()))
    }

    /// Deletes the branch of this plan if it was made for it or for an earlier start, its base contains it, and no worktree
    /// has it checked out. Commits that only its reflog has are saved first.
    fn drop_branch<'a>(
        &'a self,
        plan: &'a WorktreePlan,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<DroppedBranch, WorktreeError>>;

    /// Records that a worktree stays although its worker is forgotten, so that `kept` finds it. Earlier worktrees of
    /// that name are superseded. `base` is the one that the worker's row has.
    fn keep<'a>(
        &'a self,
        name: &'a str,
        tree: &'a RowWorktree,
        base: Option<&'a BaseRef>,
    ) -> BoxFuture<'a, Result<(), WorktreeError>>;

    /// Returns the worktree in the caller's repository that stayed last when a worker of this name was forgotten.
    fn kept<'a>(&'a self, name: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<Option<Kept>, WorktreeError>>;
}
