//! What nudges ask of the disk and of the calendar.

use std::io;

use super::BoxFuture;
use swarm_model::nudges::Nudge;

pub trait Nudges: Send + Sync {
    /// All nudges on disk. A file that cannot be read is put aside and told of.
    fn load(&self) -> BoxFuture<'_, io::Result<Vec<Nudge>>>;

    /// The nudge of this worker as it is on disk now.
    fn read<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, io::Result<Option<Nudge>>>;

    /// Makes it durable, and keeps what others put into its file.
    fn save<'a>(&'a self, nudge: &'a Nudge) -> BoxFuture<'a, io::Result<()>>;

    fn remove<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, io::Result<()>>;

    /// The first date of a cron expression after this moment of the wall clock.
    ///
    /// # Errors
    /// A sentence about an expression that is none, or that has no such date.
    fn date_after(&self, expression: &str, wall_ms: u64) -> Result<u64, String>;
}
