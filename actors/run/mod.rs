//! A run: a folder of specs, or a file of jobs, becomes finished and landed work.
//!
//! ```text
//!            turn          ends well            queued           landed
//!  pending ───────▶ working ────────▶ finishing ────────▶ merging ──────▶ done
//!     ▲               │ │                                    │ │
//!     │  tries left   │ │ stopped                   rejected │ │ conflict
//!     ├───(retrying)──┘ └────▶ paused              ┌─────────┘ └─────────▶ failed
//!     └────────────────────────────────────────────┘
//! ```
//!
//! One actor for each run that is not over. What happens is journaled as it came
//! ([`machine::Event`]); the state is what the machine makes of it, so that a run
//! resumes where it was killed. No effect is carried out before its event is durable.
//! Workers are started under a request id that names the attempt, and work is queued
//! under a key that does: done again after a crash, either finds what is there.

mod actor;
mod attend;
mod error;
mod fleet;
pub mod machine;
mod message;
mod next;
mod outcome;
pub mod plan;
pub mod progress;
pub mod words;

use ractor::{Actor as _, ActorCell, ActorRef, SpawnErr};

pub use actor::{Begin, RunArguments};
pub use error::RunError;
pub use fleet::{Fleet, Wish};
use message::RunMessage;
pub use message::{Ask, Told};
use progress::Run;

use crate::merge::Step;
use crate::merge::queue::Item;
use crate::model::WorkerName;

/// How long a request may take, in milliseconds: a slow disk is the longest part.
const CALL_MS_MAX: u64 = 30_000;

/// The way to one run.
#[derive(Clone, Debug)]
pub struct RunHandle {
    actor: ActorRef<RunMessage>,
}

impl RunHandle {
    /// Starts the actor under `parent`: a run that begins, or one that goes on as its
    /// journal says.
    ///
    /// # Errors
    /// When its files cannot be read or locked, or the runtime refuses.
    pub async fn start(arguments: RunArguments, parent: ActorCell) -> Result<Self, SpawnErr> {
        let (actor, _) = actor::RunActor::spawn_linked(None, actor::RunActor, arguments, parent).await?;
        Ok(Self { actor })
    }

    pub fn cell(&self) -> ActorCell {
        self.actor.get_cell()
    }

    /// Asks for a change. When this returns `Ok` it is durable.
    ///
    /// # Errors
    /// Why it is not; it is done all the same once the journal can be written.
    pub async fn ask(&self, ask: Ask) -> Result<(), RunError> {
        ractor::call_t!(self.actor, RunMessage::Ask, CALL_MS_MAX, ask).unwrap_or(Err(RunError::Closed))
    }

    /// # Errors
    /// When the actor has ended.
    pub async fn look(&self) -> Result<Run, RunError> {
        ractor::call_t!(self.actor, RunMessage::Look, CALL_MS_MAX).map_err(|_| RunError::Closed)
    }

    /// Tells it of a step of an item that began; returns at once.
    pub fn merging(&self, step: Step, item: Item) {
        let _ = self.actor.cast(RunMessage::Merging(step, Box::new(item)));
    }

    /// Tells it of an item that settled; returns at once.
    pub fn settled(&self, item: Item) {
        let _ = self.actor.cast(RunMessage::Settled(Box::new(item)));
    }
}

/// Under which request the worker of an attempt is started: the same after a crash.
pub fn request_of(run: &str, job: &str, attempt: u32) -> String {
    format!("{}{attempt}", request_prefix(run, job))
}

/// What the requests of all attempts of a job begin with.
pub fn request_prefix(run: &str, job: &str) -> String {
    format!("run/{run}/{job}/")
}

/// `<slug>.<id>`, where that is a name that a worker may have; otherwise what of it
/// may stay, and a hash of the whole.
pub fn worker_name(slug: &str, id: &str) -> String {
    let plain = format!("{slug}.{id}");
    if WorkerName::parse(&plain).is_ok() {
        return plain;
    }
    let keep = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let kept: String = plain.chars().map(keep).skip_while(|c| !c.is_ascii_alphanumeric()).collect();
    let kept: String = kept.chars().take(WorkerName::LENGTH_MAX - 9).collect();
    format!("{}-{:08x}", if kept.is_empty() { "w" } else { &kept }, fnv(&plain))
}

/// FNV-1a of 32 bits: the same in every build, which the standard library's is not.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod machine_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_workers_are_names_that_workers_may_have() {
        assert_eq!(worker_name("project", "auth-system"), "project.auth-system");
        for id in ["a/b", "ünïcode", "x".repeat(80).as_str(), "a..b", "end.lock", ""] {
            let name = worker_name("project", id);
            assert!(WorkerName::parse(&name).is_ok(), "{id} → {name}");
        }
        assert_ne!(worker_name("p", "a/b"), worker_name("p", "a:b"), "they are told apart by the hash");
    }
}
