//! Records of workers: the directories below `w/`.

use std::io;

use super::BoxFuture;
use swarm_model::{ExitRecord, Job, Lease, ProcessId, Spec, Wanted};

/// Mark of a running worker that makes no progress, with the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The worker stands still.
    Stuck(String),
    /// The worker waits for a person.
    Waits(String),
    /// The worker's turn is over; it waits for its next task.
    Idle(String),
    /// The worker's screen shows that it works, although it reported last that it waits.
    Works,
}

/// What is done once after the end of a generation, and then noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// The event of its end was emitted.
    EndTold,
    /// Its work was added to a merge queue. The queue may have dropped the item since.
    WorkQueued,
    /// Its work was refused by its merge queue, for a reason that the event says. The next supervisor tries it again.
    WorkRefused,
}

/// State of the launch contract of a generation.
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
    /// Returns the contract. `None` if it is missing or unreadable.
    pub fn spec(&self) -> Option<&Spec> {
        match self {
            Self::Missing => None,
            Self::Pending(spec) | Self::Executed(spec) => Some(spec),
        }
    }
}

/// State of the lease of a generation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseFacts {
    /// Whether a process holds the lock: a start is under way, or the shim is alive.
    pub held: bool,
    /// Content of the file. `None` if it is missing or unreadable.
    pub content: Option<Lease>,
    /// Whether the content names the present boot.
    pub this_boot: bool,
    /// Whether the worker's own process is alive, by its identity.
    pub worker_alive: bool,
    /// Whether the worker's process is stopped by a signal (state T).
    pub suspended: bool,
    /// Name of the other machine that wrote the records. `None` if this machine did, or if it is unknown.
    pub elsewhere: Option<String>,
    /// Processes that the shim could not end and that are still alive.
    pub survivors: Vec<ProcessId>,
    /// Job that the worker is. It stands in for the lock, which means nothing on some file systems that nodes share: `held`
    /// says that it has neither a record of its end nor is known to be over. `None` if the worker is a process.
    pub job: Option<Job>,
}

/// Everything that is on record for one generation.
#[derive(Clone, Debug, PartialEq)]
pub struct DirFacts {
    pub name: String,
    pub generation: u64,
    pub spec: SpecFacts,
    pub lease: LeaseFacts,
    pub exit: Option<ExitRecord>,
    pub wanted: Wanted,
}

/// Generation whose records exist and cannot be read. Its worker may be alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub name: String,
    pub generation: u64,
    pub cause: String,
}

/// All generations on disk, ordered by name and generation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scan {
    pub dirs: Vec<DirFacts>,
    /// A damaged directory must not keep the other workers from being supervised, so it is listed here.
    pub unreadable: Vec<Unreadable>,
}

impl Scan {
    /// Returns the records if all of them could be read.
    ///
    /// # Errors
    /// Fails with the first directory that could not be read.
    pub fn complete(self) -> io::Result<Vec<DirFacts>> {
        match self.unreadable.first() {
            None => Ok(self.dirs),
            Some(Unreadable { name, generation, cause }) => {
                Err(io::Error::other(format!("cannot read the records in w/{name}.{generation}: {cause}")))
            }
        }
    }
}

/// Records of workers: the directories below `w/`.
pub trait Records: Send + Sync {
    /// Does the same as `scan` on the caller's thread, for code that may block.
    ///
    /// # Errors
    /// Fails if `w/` cannot be read, or if the system lacks the resources to read a directory in it.
    fn scan_now(&self) -> io::Result<Scan>;

    /// Returns all generations on disk.
    fn scan(&self) -> BoxFuture<'_, io::Result<Scan>>;

    /// Returns one generation. `None` if it has no directory.
    fn observe<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, io::Result<Option<DirFacts>>>;

    /// Returns the number of a start that no earlier one had, as far as it is recorded: it is above `above` and above that
    /// of each generation of this name that was removed, and has no directory.
    ///
    /// # Errors
    /// Fails if the records cannot be read.
    fn next_free(&self, name: &str, above: u64) -> io::Result<u64>;

    /// Assigns a slot for the exit record to a start that is about to reserve its directory. The removal of the directory
    /// frees it. `None` if there is none.
    fn exit_slot<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, Option<u32>>;

    /// Removes temporary files of interrupted writes. Only for a supervisor that has just started, because its lock
    /// guarantees that no other process writes here.
    fn tidy(&self) -> BoxFuture<'_, io::Result<()>>;

    /// Removes generations of this name, other than `keep`, that were executed and have ended. They are left behind
    /// if an earlier removal failed. A start that was never executed is kept, because it may have to be rolled back, unless
    /// its row was committed: those up to `committed` were. Continues after an error and returns the first one.
    fn remove_leftovers<'a>(
        &'a self,
        name: &'a str,
        keep: Option<u64>,
        committed: Option<u64>,
    ) -> BoxFuture<'a, io::Result<()>>;

    /// Waits for at most a few seconds until no process holds the lease of this generation. Returns `false` if it is
    /// still held then.
    fn lease_is_let_go<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, bool>;

    /// Replaces `wanted.json`, durably.
    fn write_wanted<'a>(&'a self, name: &'a str, generation: u64, wanted: &'a Wanted) -> BoxFuture<'a, io::Result<()>>;

    /// Reports whether something is noted about a generation.
    fn is_noted<'a>(&'a self, name: &'a str, generation: u64, note: Note) -> BoxFuture<'a, bool>;

    /// Notes something about a generation. Errors are ignored: an event is then emitted twice, and work is queued again if
    /// its queue has dropped the item.
    fn note<'a>(&'a self, name: &'a str, generation: u64, note: Note) -> BoxFuture<'a, ()>;

    /// Returns how the last turn of a generation's agent ended, in words, if it failed or was interrupted. `None` also if its
    /// agent reports no turns.
    fn broken_turn<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, Option<String>>;

    /// Marks a generation that makes no progress, or removes its mark if `mark` is `None`. Errors are ignored.
    fn mark<'a>(&'a self, name: &'a str, generation: u64, mark: Option<&'a Mark>) -> BoxFuture<'a, ()>;

    /// Removes a generation's directory and its control groups. Fails if the lease is held.
    fn remove<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, io::Result<()>>;

    /// Deletes the logs of a worker that was cleaned.
    fn remove_logs<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<()>>;

    /// Moves the logs of an earlier generation aside, before a respawn writes new ones.
    fn rotate_logs<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<()>>;
}
