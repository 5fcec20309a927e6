//! The directories below `w/`: what was found in one.

use std::io;

use super::BoxFuture;
use swarm_model::{ExitRecord, Lease, Spec, Wanted};

/// How far the launch contract got.
#[derive(Clone, Debug, PartialEq)]
pub enum SpecFacts {
    /// No readable contract.
    Missing,
    /// `spec.pending`: the command was never executed.
    Pending(Box<Spec>),
    /// `spec.json`: the command was executed.
    Executed(Box<Spec>),
}

impl SpecFacts {
    pub fn spec(&self) -> Option<&Spec> {
        match self {
            Self::Missing => None,
            Self::Pending(spec) | Self::Executed(spec) => Some(spec),
        }
    }
}

/// What the lease says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseFacts {
    /// Somebody holds the lock: a start is under way or the shim lives.
    pub held: bool,
    pub content: Option<Lease>,
    /// The content names this boot.
    pub this_boot: bool,
    /// The worker's own process is alive, by identity.
    pub worker_alive: bool,
    /// The worker's process is stopped by a signal (state T).
    pub suspended: bool,
}

/// Everything about one generation.
#[derive(Clone, Debug, PartialEq)]
pub struct DirFacts {
    pub name: String,
    pub generation: u64,
    pub spec: SpecFacts,
    pub lease: LeaseFacts,
    pub exit: Option<ExitRecord>,
    pub wanted: Wanted,
}

pub trait Records: Send + Sync {
    /// As `scan`, on the caller's own thread: for code that may block.
    ///
    /// # Errors
    /// When `w/` cannot be read.
    fn scan_now(&self) -> io::Result<Vec<DirFacts>>;

    /// All generations on disk, in order of name and generation.
    fn scan(&self) -> BoxFuture<'_, io::Result<Vec<DirFacts>>>;

    /// One generation; `None` when its directory is not there.
    fn observe<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, io::Result<Option<DirFacts>>>;

    /// The first generation above `above` that has no directory yet.
    ///
    /// # Errors
    /// When `w/` cannot be read.
    fn next_free(&self, name: &str, above: u64) -> io::Result<u64>;

    /// Removes half-written files. Only for a supervisor that just started: by
    /// its lock nobody else writes here.
    fn tidy(&self) -> BoxFuture<'_, io::Result<()>>;

    /// Removes generations of this name other than `keep` that were executed
    /// and have ended: what an earlier removal that failed left behind.
    fn remove_leftovers<'a>(&'a self, name: &'a str, keep: Option<u64>) -> BoxFuture<'a, io::Result<()>>;

    /// Waits until nobody holds the lease of this generation, at most a few
    /// seconds; false when it is still held then.
    fn lease_is_let_go<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, bool>;

    /// Replaces `wanted.json`, durably.
    fn write_wanted<'a>(&'a self, name: &'a str, generation: u64, wanted: &'a Wanted) -> BoxFuture<'a, io::Result<()>>;

    /// Whether the end of a generation was told of.
    fn is_end_told<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, bool>;

    /// Notes that it was. Not worth failing for: at worst it is told of twice.
    fn set_end_told<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, ()>;

    /// Marks a generation as stuck, or takes the mark away. Not worth failing for.
    fn mark<'a>(&'a self, name: &'a str, generation: u64, stuck: Option<&'a str>) -> BoxFuture<'a, ()>;

    /// Removes a generation's directory. Only when its lease is free.
    fn remove<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, io::Result<()>>;

    /// Removes the logs of a worker that was cleaned.
    fn remove_logs<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<()>>;

    /// Puts the logs of an earlier life aside before a respawn writes new ones.
    fn rotate_logs<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<()>>;
}
