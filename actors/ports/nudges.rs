//! Files of nudges, and the dates of their cron expressions.

use std::io;

use super::{BoxFuture, Survey};
use swarm_model::nudges::Nudge;

/// Files of nudges.
pub trait Nudges: Send + Sync {
    /// Returns all nudges on disk. Does not wait for the lock of the files. A malformed file is moved aside and logged
    /// if the lock is free, because its writer may be at work otherwise; it is then listed as unread.
    ///
    /// # Errors
    /// Fails if the directory exists and cannot be read.
    fn load(&self) -> BoxFuture<'_, io::Result<Survey<Nudge>>>;

    /// Returns the nudge of this worker as it is on disk now. `None` if there is none.
    fn read<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, io::Result<Option<Nudge>>>;

    /// Writes the nudge durably, and keeps entries of other programs in its file.
    fn save<'a>(&'a self, nudge: &'a Nudge) -> BoxFuture<'a, io::Result<()>>;

    /// Deletes the nudge of this worker.
    fn remove<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, io::Result<()>>;

    /// Returns the first date of a cron expression after `wall_ms`. Both are Unix milliseconds.
    ///
    /// # Errors
    /// Returns a message if the expression is invalid, or has no such date.
    fn date_after(&self, expression: &str, wall_ms: u64) -> Result<u64, String>;
}
