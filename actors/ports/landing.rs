//! What a merge queue asks of git and of the disk. Every step looks before it
//! acts, because it may be asked for again after a crash.

use std::io;

use serde::{Deserialize, Serialize};

use super::BoxFuture;
use crate::merge::machine::{Build, Landing, Resolution, Verdict};
use crate::merge::queue::{Item, Queue};

/// Where a queue lands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Target {
    /// The repository's common directory, absolute.
    pub repository: String,
    /// Full name of the base branch, `refs/heads/…`.
    pub branch: String,
}

pub trait Landings: Send + Sync {
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

    /// Removes what only the way of this item needed.
    fn tidy<'a>(&'a self, target: &'a Target, item: &'a Item) -> BoxFuture<'a, ()>;
}
