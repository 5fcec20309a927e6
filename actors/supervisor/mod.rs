//! The supervisor: the root of the tree.
//!
//! ```text
//!   root ──┬── registry        restarted with all workers (rest for one)
//!          ├── worker × N      restarted alone; each adopts what is on disk
//!          ├── merge × N       restarted alone; each resumes from its journal
//!          ├── run × N         like a queue; uses the workers and queues beside it
//!          ├── loop × N        like a run
//!          ├── flow × N        like a run
//!          ├── nudges          restarted alone; resumes from what is on disk
//!          └── heartbeat       restarted alone; the workers report to it what lives
//! ```
//!
//! If one child fails more than five times within ten seconds, the process exits and the guard starts
//! a new one. The supervisor exits by itself when nothing is left to supervise. It owns no worker
//! process and no file: killing it at any moment loses nothing, because the next one adopts.

mod actor;
mod adopt;
mod agreed;
mod children;
mod client;
mod endings;
mod error;
mod flows;
mod loops;
pub mod machine;
mod merges;
mod message;
mod nudges;
mod openings;
mod others;
mod requests;
mod runs;
mod sessions;
mod state;
mod survey;

use std::path::PathBuf;

use ractor::{Actor as _, ActorRef, SpawnErr};
use tokio::sync::{mpsc, watch};

pub use error::SupervisorError;
use message::SupervisorMessage;
pub use message::{Exit, Request};

use swarm_model::run::progress::Run;
use swarm_model::{Answer, FlowRequest, LoopRequest, MergeRequest, NudgeRequest, QueueView, RunRequest};
use swarm_ports::Ports;

/// Maximum duration of a query about the supervisor itself, in milliseconds.
const CALL_MS_MAX: u64 = 5_000;
/// Maximum time until work is queued, in milliseconds. The longest part is the commit of a large
/// worktree.
const LAND_MS_MAX: u64 = 15 * 60 * 1000;

/// Handle to the supervisor.
#[derive(Clone)]
pub struct SupervisorHandle {
    actor: ActorRef<SupervisorMessage>,
    exit: watch::Receiver<Option<Exit>>,
}

impl SupervisorHandle {
    /// Starts the actor tree and adopts everything that is on disk.
    ///
    /// # Errors
    /// Fails if the registry cannot be read or the runtime cannot start an actor.
    pub async fn start(root: PathBuf, ports: Ports) -> Result<Self, SupervisorError> {
        let (sender, exit) = watch::channel(None);
        let arguments = actor::SupervisorArguments { root, ports, exit: sender };
        let started = actor::Supervisor::spawn(None, actor::Supervisor, arguments).await;
        let (actor, _) = started.map_err(|error| match error {
            // Only the cause itself, without the text that the runtime adds.
            SpawnErr::StartupFailed(cause) => SupervisorError::Startup(cause.to_string()),
            error => SupervisorError::Start("root", error.to_string()),
        })?;
        Ok(Self { actor, exit })
    }

    /// Carries out a request about workers. The last answer is `Done`. Dropping the receiver does not
    /// stop the work.
    pub fn request(&self, request: Request) -> mpsc::UnboundedReceiver<Answer> {
        let (answers, receiver) = mpsc::unbounded_channel();
        let _ = self.actor.cast(SupervisorMessage::Request(request, answers));
        receiver
    }

    /// Prevents the supervisor from exiting when it is idle.
    pub fn stay(&self) {
        let _ = self.actor.cast(SupervisorMessage::Stay);
    }

    /// Returns the number of workers that need this process.
    pub async fn live(&self) -> usize {
        ractor::call_t!(self.actor, SupervisorMessage::Live, CALL_MS_MAX).unwrap_or(0)
    }

    /// Carries out a request about merge queues, as [`Self::request`] does.
    pub fn merge(&self, request: MergeRequest) -> mpsc::UnboundedReceiver<Answer> {
        let (answers, receiver) = mpsc::unbounded_channel();
        let _ = self.actor.cast(SupervisorMessage::MergeRequest(Box::new(request), answers));
        receiver
    }

    /// Carries out a request about runs, as [`Self::request`] does.
    pub fn run(&self, request: RunRequest) -> mpsc::UnboundedReceiver<Answer> {
        let (answers, receiver) = mpsc::unbounded_channel();
        let _ = self.actor.cast(SupervisorMessage::RunRequest(Box::new(request), answers));
        receiver
    }

    /// Carries out a request about loops, as [`Self::request`] does.
    pub fn ralph(&self, request: LoopRequest) -> mpsc::UnboundedReceiver<Answer> {
        let (answers, receiver) = mpsc::unbounded_channel();
        let _ = self.actor.cast(SupervisorMessage::LoopRequest(Box::new(request), answers));
        receiver
    }

    /// Carries out a request about flows, as [`Self::request`] does.
    pub fn flow(&self, request: FlowRequest) -> mpsc::UnboundedReceiver<Answer> {
        let (answers, receiver) = mpsc::unbounded_channel();
        let _ = self.actor.cast(SupervisorMessage::FlowRequest(Box::new(request), answers));
        receiver
    }

    /// Carries out a request about nudges, as [`Self::request`] does.
    pub fn nudge(&self, request: NudgeRequest) -> mpsc::UnboundedReceiver<Answer> {
        let (answers, receiver) = mpsc::unbounded_channel();
        let _ = self.actor.cast(SupervisorMessage::NudgeRequest(Box::new(request), answers));
        receiver
    }

    /// Returns the current state of all runs that are not over. `None` if one of them could not be opened yet.
    pub async fn runs(&self) -> Option<Vec<Run>> {
        let runs = ractor::call_t!(self.actor, SupervisorMessage::Runs, CALL_MS_MAX).ok()?;
        let mut views = Vec::with_capacity(runs.len());
        for run in runs {
            views.extend(run.look().await.ok());
        }
        Some(views)
    }

    /// Returns the current state of all merge queues. `None` if one of them could not be opened yet.
    pub async fn queues(&self) -> Option<Vec<QueueView>> {
        let queues = ractor::call_t!(self.actor, SupervisorMessage::Queues, CALL_MS_MAX).ok()?;
        let mut views = Vec::with_capacity(queues.len());
        for queue in queues {
            views.extend(queue.look().await);
        }
        Some(views)
    }

    /// Ends the supervisor. Workers keep running.
    pub fn stop(&self, exit: Exit) {
        let _ = self.actor.cast(SupervisorMessage::Stop(exit));
    }

    /// Returns the root actor, so that tests can kill the whole tree at once, as the kernel would.
    #[cfg(feature = "testing")]
    pub fn cell(&self) -> ractor::ActorCell {
        self.actor.get_cell()
    }

    /// Waits until the supervisor must exit, and returns why. Also resolves if the root actor died.
    pub async fn ended(&self) -> Exit {
        let mut exit = self.exit.clone();
        let ended = exit.wait_for(Option::is_some).await.map(|exit| *exit);
        ended.ok().flatten().unwrap_or(Exit::GaveUp)
    }
}
