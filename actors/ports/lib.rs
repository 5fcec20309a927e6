//! What the rooms ask of the world: traits and their errors, nothing else. The
//! binary implements them over real tools, `testing` over memory.
//!
//! All of it may block or take long, so each method returns a future; an
//! implementation moves blocking work off the actors' thread.

mod flows;
mod landing;
mod launch;
mod loops;
mod nudges;
mod process;
mod records;
mod runs;
mod session;
mod terminal;
mod worktree;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub use flows::{Flows, Opened};
pub use landing::{Completed, Completion, Landings};
pub use launch::{LaunchError, Launcher, Prepared, StopOrder};
pub use loops::{Filed, Found, Loops};
pub use nudges::Nudges;
pub use process::{Gone, ProcessError, Processes, WindowTarget};
pub use records::{DirFacts, LeaseFacts, Records, SpecFacts};
pub use runs::{Journaled, Runs, Telling};
pub use session::{Beaten, Life, LifeEnd, Opening, SessionError, Sessions, Sight};
pub use terminal::{TerminalError, Terminals, Typing};
pub use worktree::{Expired, Force, Saved, WorktreeError, Worktrees};

use swarm_model::Event;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// When to wake: at whichever comes first. Without either, never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alarm {
    /// On the clock that counts from the boot, suspend included.
    pub boot_ms: Option<u64>,
    /// On the wall clock; also as soon as somebody sets that.
    pub wall_ms: Option<u64>,
}

/// Time, and what else differs at every call.
pub trait Clock: Send + Sync {
    /// Milliseconds since the Unix epoch, for display and for dates on disk.
    fn wall_ms(&self) -> u64;
    /// Milliseconds since boot, suspend included: for durations.
    fn boot_ms(&self) -> u64;
    /// Resolves when it is time, never before, by the kernel's own timer: nothing wakes
    /// until then.
    fn alarm(&self, alarm: Alarm) -> BoxFuture<'_, ()>;
    /// Naive local time with microseconds, as a row's `started`.
    fn started(&self) -> String;
    /// A fresh random token.
    fn token(&self) -> String;
    /// This machine's name.
    fn host(&self) -> String;
}

/// Where events go: the file, and whoever listens.
pub trait Events: Send + Sync {
    fn emit(&self, event: Event);
    /// Whether an event of this request is on record (asked for repeated requests only).
    fn seen(&self, request: &str) -> bool;
}

/// How much one life of a worker may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLimit {
    pub generation: u64,
    pub max_bytes: u64,
    /// What its logs held before.
    pub before_bytes: u64,
}

/// Logs of running workers, kept within their limit.
pub trait Logs: Send + Sync {
    /// Watches the files (names below `logs/`) and rotates each at `limit_bytes`.
    fn keep(&self, worker: &str, files: &[String], limit_bytes: u64, output: Option<OutputLimit>);
    fn release(&self, worker: &str);

    /// Resolves when a kept worker has written more than its limit of output; never for one
    /// without such a limit.
    fn spent(&self, worker: &str) -> BoxFuture<'static, ()>;

    /// Resolves at the next write to a kept log of this worker, or when it is kept no
    /// longer. Writes in quick succession are told once.
    fn written(&self, worker: &str) -> BoxFuture<'static, ()>;
}

/// All ports in one place, cheap to clone.
#[derive(Clone)]
pub struct Ports {
    pub clock: Arc<dyn Clock>,
    pub events: Arc<dyn Events>,
    pub flows: Arc<dyn Flows>,
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
