//! Ports: what the actors need from the world outside, as traits and their errors. The binary implements them with
//! real tools, `testing` in memory.
//!
//! Methods that may block or take long return a future; the implementation moves blocking work off the actors'
//! thread.

mod flows;
mod hosts;
mod jobs;
mod landing;
mod launch;
mod loops;
mod nudges;
mod process;
mod records;
mod runs;
mod session;
mod survey;
mod terminal;
mod worktree;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub use flows::{Flows, Opened};
pub use hosts::{FarEnd, HostFault, Hosts, Reclaimed};
pub use jobs::{Jobs, MAY_WORK};
pub use landing::{Completed, Completion, DamagedJournal, Landings, Unfinished, Verification};
pub use launch::{LaunchError, Launcher, Prepared, StopOrder};
pub use loops::{Filed, Found, Loops};
pub use nudges::Nudges;
pub use process::{Gone, ProcessError, Processes, WindowTarget, pid_list};
pub use records::{DirFacts, LeaseFacts, Mark, Note, Records, Scan, SpecFacts, Unreadable};
pub use runs::{Journaled, Runs, Settled, Telling};
pub use session::{Beaten, Life, LifeEnd, News, Opening, SessionError, Sessions, Sight};
pub use survey::{Survey, Unread};
pub use terminal::{TerminalError, Terminals, Typing};
pub use worktree::{DroppedBranch, Expired, Force, Kept, Saved, WorktreeError, Worktrees};

use swarm_model::{Event, Machine};

/// Future that a port returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Time to wake: the earlier of the two. Without both, never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alarm {
    /// Milliseconds since boot, suspend included.
    pub boot_ms: Option<u64>,
    /// Unix milliseconds. If the wall clock is set, the alarm also fires at once.
    pub wall_ms: Option<u64>,
}

/// Time, and other values that differ at every call.
pub trait Clock: Send + Sync {
    /// Returns the milliseconds since the Unix epoch, for display and for dates on disk.
    fn wall_ms(&self) -> u64;
    /// Returns the milliseconds since boot, suspend included, for durations.
    fn boot_ms(&self) -> u64;
    /// Resolves when the alarm is due, never before. Uses a timer of the kernel, so that nothing wakes until then.
    fn alarm(&self, alarm: Alarm) -> BoxFuture<'_, ()>;
    /// Returns the naive local time with microseconds, as in `started` of a row.
    fn started(&self) -> String;
    /// Returns a new random token.
    fn token(&self) -> String;
    /// Returns the name of this machine.
    fn host(&self) -> String;
    /// Returns the identity of this machine and its boot.
    fn machine(&self) -> Machine;
}

/// Destination of events: `events.jsonl`, and clients that listen.
pub trait Events: Send + Sync {
    /// Records an event, and sends it to all listeners.
    fn emit(&self, event: Event);
    /// Reports whether an event of this request is on record. Called for repeated requests only.
    fn seen(&self, request: &str) -> bool;
}

/// Limit of the output of one generation of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLimit {
    pub generation: u64,
    pub max_bytes: u64,
    /// Size of the worker's logs before the start.
    pub before_bytes: u64,
}

/// Log files of running workers, kept within their size limit.
pub trait Logs: Send + Sync {
    /// Watches the files (names below `logs/`), and rotates each at `limit_bytes`.
    fn keep(&self, worker: &str, files: &[String], limit_bytes: u64, output: Option<OutputLimit>);
    /// Stops watching the files of this worker.
    fn release(&self, worker: &str);

    /// Resolves once a watched worker has exceeded its output limit. Never resolves without such a limit.
    fn spent(&self, worker: &str) -> BoxFuture<'static, ()>;

    /// Resolves at the next write to a watched log of this worker, or when its logs are no longer watched. Writes in
    /// quick succession count as one.
    fn written(&self, worker: &str) -> BoxFuture<'static, ()>;
}

/// All ports. Cheap to clone.
#[derive(Clone)]
pub struct Ports {
    pub clock: Arc<dyn Clock>,
    pub events: Arc<dyn Events>,
    pub flows: Arc<dyn Flows>,
    pub hosts: Arc<dyn Hosts>,
    pub jobs: Arc<dyn Jobs>,
    pub landings: Arc<dyn Landings>,
    pub launcher: Arc<dyn Launcher>,
    pub logs: Arc<dyn Logs>,
    pub loops: Arc<dyn Loops>,
    pub nudges: Arc<dyn Nudges>,
    pub processes: Arc<dyn Processes>,
    pub records: Arc<dyn Records>,
    pub runs: Arc<dyn Runs>,
    pub sessions: Arc<dyn Sessions>,
    pub terminals: Arc<dyn Terminals>,
    pub worktrees: Arc<dyn Worktrees>,
}
