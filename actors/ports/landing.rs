//! What a merge queue asks of git and of the disk. Every step looks before it
//! acts, because it may be asked for again after a crash.

use std::io;

use super::BoxFuture;
use swarm_model::merge::queue::{Item, Queue, Rules};
use swarm_model::merge::{Build, Landing, Resolution, Verdict};
use swarm_model::{BaseRef, Caller, MergeSettings, Refusal, RowWorktree, Target};

/// Work that is said to be finished.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Worker or branch.
    pub name: String,
    /// The worker's worktree and recorded base; none for a branch.
    pub worker: Option<(RowWorktree, Option<BaseRef>)>,
    /// The base branch that was asked for.
    pub base: Option<String>,
    pub settings: MergeSettings,
    /// First line of the commit of what was left uncommitted; the name by default.
    pub subject: Option<String>,
    pub caller: Caller,
}

/// What of it is to land, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    pub target: Target,
    /// Pinned, so that nothing collects it; empty when it waits.
    pub tip: String,
    /// None where it waits: those before stay.
    pub rules: Option<Rules>,
    /// What a person has to do before there is a commit to land.
    pub waits: Option<String>,
    /// Untracked paths of a kind that is not landed.
    pub left_out: Vec<String>,
}

pub trait Landings: Send + Sync {
    /// The queues that have a journal.
    fn targets(&self) -> BoxFuture<'_, io::Result<Vec<Target>>>;

    /// Turns what a worker left into a commit, finds out where it is to land and
    /// by which rules, and remembers the caller, as whom git will run.
    fn complete(&self, completion: Completion) -> BoxFuture<'_, Result<Completed, Refusal>>;

    /// The queue as it was journaled last; none when there never was one.
    fn load<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, io::Result<Option<Queue>>>;

    /// Makes the queue durable. When this returns `Ok`, a crash finds it so.
    fn save<'a>(&'a self, target: &'a Target, queue: &'a Queue) -> BoxFuture<'a, io::Result<()>>;

    /// The commit that the base is at.
    fn read_base<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<String, String>>;

    /// Puts the item's tip on top of `onto`. Moves nothing and checks out nothing.
    fn build<'a>(&'a self, target: &'a Target, item: &'a Item, onto: &'a str) -> BoxFuture<'a, Build>;

    /// Runs the verification on a commit, in a directory of the queue's own.
    fn verify<'a>(&'a self, target: &'a Target, item: &'a Item, commit: &'a str) -> BoxFuture<'a, Verdict>;

    /// Moves the base from one commit to the other, unless it is elsewhere. A
    /// base that holds `to` already counts as done.
    fn land<'a>(&'a self, target: &'a Target, from: &'a str, to: &'a str) -> BoxFuture<'a, Landing>;

    /// Has the conflict resolved, in a directory of the queue's own.
    fn resolve<'a>(
        &'a self,
        target: &'a Target,
        item: &'a Item,
        onto: &'a str,
        files: &'a [String],
    ) -> BoxFuture<'a, Resolution>;

    /// Removes what only the way of these items needed.
    fn tidy<'a>(&'a self, target: &'a Target, items: &'a [Item]) -> BoxFuture<'a, ()>;
}
