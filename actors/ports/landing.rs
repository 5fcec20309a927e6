//! Git operations and journal of a merge queue. Every step first checks how far it got before, because it may be
//! repeated after a crash.

use std::io;

use super::{BoxFuture, Survey};
use swarm_model::merge::queue::{Item, Obstacle, Queue, Rules};
use swarm_model::merge::{Agreed, Build, Landing, Resolution, Verdict};
use swarm_model::{BaseRef, Caller, MergeSettings, Refusal, RowWorktree, Target};

/// Work of a worker that still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// Only what is committed lands. Uncommitted changes are refused, because the worker may be writing them.
    Committed,
    /// Uncommitted changes are committed first, as they are.
    Everything,
}

/// Work that was reported as finished.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Name of the worker or branch.
    pub name: String,
    /// Worktree and recorded base of the worker. `None` for a branch.
    pub worker: Option<(RowWorktree, Option<BaseRef>)>,
    /// Requested base branch. `None`: the recorded base, or for a branch without one the branch that is checked out.
    pub base: Option<String>,
    pub settings: MergeSettings,
    /// A person asked for it and reads the answer, so a wrong base or configuration is refused. Otherwise the item is
    /// queued and waits.
    pub attended: bool,
    /// Subject of the commit for uncommitted work. `None`: the name.
    pub subject: Option<String>,
    /// The worker is forgotten, and its worktree is still there or was restored. Without a recorded base, the branch that
    /// is checked out in the repository is the base if the work certainly started on it.
    pub is_kept: bool,
    /// What lands of a worker that still runs. `None`: it has ended.
    pub unfinished: Option<Unfinished>,
    /// Processes of the worker that live on after the end of its command, because nobody could end them. They may use
    /// its worktree.
    pub survivors: Vec<i32>,
    pub caller: Caller,
    /// Rules of a run that the caller cannot replace if it is below a worker. `None` if no run is concerned.
    pub agreed: Option<Agreed>,
}

impl Completion {
    /// Returns the committed work of a branch, for the base and by the rules that are configured.
    pub fn new(name: impl Into<String>, caller: Caller) -> Self {
        Self {
            name: name.into(),
            worker: None,
            base: None,
            settings: MergeSettings::default(),
            attended: false,
            subject: None,
            is_kept: false,
            unfinished: None,
            survivors: Vec::new(),
            caller,
            agreed: None,
        }
    }
}

/// What is to land, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    pub target: Target,
    /// Commit to land. Pinned, so that garbage collection keeps it. Empty if the work waits.
    pub tip: String,
    /// Rules for the item. `None` if the work waits: the rules of the previous item remain.
    pub rules: Option<Rules>,
    /// What a person must do before there is a commit to land. `None` if nothing.
    pub waits: Option<String>,
    /// Whether the worker itself could fix what the work waits for, in its worktree.
    pub is_mendable: bool,
    /// Commit of the base from which the work started. `None` if unknown.
    pub fork: Option<String>,
    /// Key under which the caller is stored.
    pub caller: Option<String>,
    /// Uncommitted paths that do not land: files of kinds that tools generate, and the
    /// places of submodules and other repositories with uncommitted work (with a slash at the end).
    pub left_out: Vec<String>,
}

/// A damaged journal of a queue that was moved aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedJournal {
    /// Base of the queue. `None` if unknown.
    pub base: Option<String>,
    /// New path of the journal.
    pub file: String,
    /// What is wrong with it, and what can be added again.
    pub cause: String,
}

/// What a verification checks, and in which directory. Each kind but `First` runs without the ignored files that earlier
/// verifications left, because a failure decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    First,
    Again,
    /// The base on which the item failed. Its output does not replace that of the item.
    Base,
}

/// Git operations and journals of merge queues.
pub trait Landings: Send + Sync {
    /// Returns the queues that have a journal. Called when a supervisor starts, and again while something could not be
    /// read.
    ///
    /// # Errors
    /// Fails if the queues cannot be listed.
    fn targets(&self) -> BoxFuture<'_, io::Result<Survey<Target>>>;

    /// Moves damaged journals aside, under names that were not in use, and returns them. Called before each `targets`.
    fn set_damaged_aside(&self) -> BoxFuture<'_, io::Result<Vec<DamagedJournal>>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Commits what a worker left, determines where and by which rules it lands, and stores the caller, in whose
    /// environment git and the commands for the item run.
    ///
    /// # Errors
    /// Returns a refusal if the work cannot land, for example because it has no base.
    fn complete(&self, completion: Completion) -> BoxFuture<'_, Result<Completed, Refusal>>;

    /// Returns the rules of the configuration to which a person agreed, of the main checkout of the repository around `root`.
    ///
    /// # Errors
    /// Fails if the repository cannot be found, or its configuration cannot be read.
    fn rules_of<'a>(&'a self, root: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<MergeSettings, Refusal>>;

    /// Completes several branches, in this order.
    fn complete_all(&self, completions: Vec<Completion>) -> BoxFuture<'_, Vec<Result<Completed, Refusal>>> {
        Box::pin(async move {
            let mut completed = Vec::new();
            for completion in completions {
                completed.push(self.complete(completion).await);
            }
            completed
        })
    }

    /// Stores a caller in whose environment git and the commands for an item run from now on. Returns its key.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    fn remember<'a>(&'a self, target: &'a Target, caller: &'a Caller) -> BoxFuture<'a, io::Result<String>>;

    /// Returns the queue as last journaled. `None` if there is no journal.
    fn load<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, io::Result<Option<Queue>>>;

    /// Writes the queue to its journal. Once this returns `Ok`, the queue survives a crash.
    fn save<'a>(&'a self, target: &'a Target, queue: &'a Queue) -> BoxFuture<'a, io::Result<()>>;

    /// Returns the commit of the base.
    ///
    /// # Errors
    /// Returns a message if the base does not exist or cannot be read.
    fn read_base<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<String, String>>;

    /// Builds the candidate: the item's tip on top of `onto`. Moves no branch and checks out nothing.
    fn build<'a>(&'a self, target: &'a Target, item: &'a Item, onto: &'a str) -> BoxFuture<'a, Build>;

    /// Runs the verification of an item on a commit, in a worktree of the queue's own.
    fn verify<'a>(
        &'a self,
        target: &'a Target,
        item: &'a Item,
        commit: &'a str,
        kind: Verification,
    ) -> BoxFuture<'a, Verdict>;

    /// Moves the base from `from` to `to`, unless it is at another commit. A base that contains `to` already counts
    /// as done. `item` is the last of those that land.
    fn land<'a>(&'a self, target: &'a Target, item: &'a Item, from: &'a str, to: &'a str) -> BoxFuture<'a, Landing>;

    /// Runs the resolver on the conflicts in `files`, in a worktree of the queue's own.
    fn resolve<'a>(
        &'a self,
        target: &'a Target,
        item: &'a Item,
        onto: &'a str,
        files: &'a [String],
    ) -> BoxFuture<'a, Resolution>;

    /// Resolves once the obstacle is gone, at once if it is gone already.
    ///
    /// # Errors
    /// Returns a message if that cannot be determined.
    fn cleared<'a>(&'a self, target: &'a Target, obstacle: &'a Obstacle) -> BoxFuture<'a, Result<(), String>>;

    /// Removes references and files that only the landing of these items needed.
    fn tidy<'a>(&'a self, target: &'a Target, items: &'a [Item]) -> BoxFuture<'a, ()>;
}
