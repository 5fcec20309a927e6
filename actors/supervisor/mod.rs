//! The supervisor: the root of the tree.
//!
//! ```text
//!   root ──┬── registry        restarted with all workers (rest for one)
//!          ├── worker × N      restarted alone; each adopts what is on disk
//!          ├── merge × N       restarted alone; each resumes its journal
//!          ├── run × N         as a queue; asks the workers and queues beside it
//!          ├── loop × N        as a run
//!          ├── flow × N        as a run
//!          ├── nudges          restarted alone; goes on with what is on disk
//!          └── heartbeat       restarted alone; the workers tell it what lives
//! ```
//!
//! More than five failures of one child in ten seconds end the process, and the
//! guard starts a fresh one. It ends by itself when nothing is left to
//! supervise. Owns no worker and no file: killing it at any instant loses
//! nothing, the next one adopts.

mod actor;
mod adopt;
mod below;
mod children;
mod endings;
mod error;
mod flows;
mod loops;
pub mod machine;
mod merges;
mod message;
mod nudges;
mod others;
mod requests;
mod runs;
mod sessions;

use std::path::PathBuf;

use ractor::{Actor as _, ActorRef, SpawnErr};
use tokio::sync::{mpsc, watch};

pub use error::SupervisorError;
use message::SupervisorMessage;
pub use message::{Exit, Request};

use swarm_model::run::progress::Run;
use swarm_model::{Answer, FlowRequest, LoopRequest, MergeRequest, NudgeRequest, QueueView, RunRequest};
use swarm_ports::Ports;

/// How long a question about the supervisor itself may take, in milliseconds.
const CALL_MS_MAX: u64 = 5_000;
/// How long work may take on its way into a queue, in milliseconds: a commit of a
/// large worktree is the longest part.
const LAND_MS_MAX: u64 = 15 * 60 * 1000;

/// The way to the supervisor.
#[derive(Clone)]
pub struct SupervisorHandle {
    actor: ActorRef<SupervisorMessage>,
    exit: watch::Receiver<Option<Exit>>,
}

impl SupervisorHandle {
    /// Starts the tree and adopts everything.
    ///
    /// # Errors
    /// When the registry cannot be read or the runtime refuses.
    pub async fn start(root: PathBuf, ports: Ports) -> Result<Self, SupervisorError> {
        let (sender, exit) = watch::channel(None);
        let arguments = actor::SupervisorArguments { root, ports, exit: sender };
        let started = actor::Supervisor::spawn(None, actor::Supervisor, arguments).await;
        let (actor, _) = started.map_err(|error| match error {
            // Its own sentence, without the runtime's words about it.
            SpawnErr::StartupFailed(cause) => SupervisorError::Startup(cause.to_string()),
            error => SupervisorError::Start("root", error.to_string()),
        })?;
        Ok(Self { actor, exit })
    }

    /// Carries out a request. The last answer is `Done`; dropping the receiver
    /// does not stop the work.
    pub fn request(&self, request: Request) -> mpsc::UnboundedReceiver<Answer> {
        let (answers, receiver) = mpsc::unbounded_channel();
        let _ = self.actor.cast(SupervisorMessage::Request(request, answers));
        receiver
    }

    /// Keeps it from ending when there is nothing to do.
    pub fn stay(&self) {
        let _ = self.actor.cast(SupervisorMessage::Stay);
    }

    /// How many workers need this process.
    pub async fn live(&self) -> usize {
        ractor::call_t!(self.actor, SupervisorMessage::Live, CALL_MS_MAX).unwrap_or(0)
    }

    /// The same for a request about merge queues.
    pub fn merge(&self, request: MergeRequest) -> mpsc::UnboundedReceiver<Answer> {
        let (answers, receiver) = mpsc::unbounded_channel();
        let _ = self.actor.cast(SupervisorMessage::MergeRequest(Box::new(request), answers));
        receiver
    }

    /// The same for a request about runs.
    pub fn run(&self, request: RunRequest) -> mpsc::UnboundedReceiver<Answer> {
        let (answers, receiver) = mpsc::unbounded_channel();
        let _ = self.actor.cast(SupervisorMessage::RunRequest(Box::new(request), answers));
        receiver
    }

    /// The same for a request about loops.
    pub fn ralph(&self, request: LoopRequest) -> mpsc::UnboundedReceiver<Answer> {
        let (answers, receiver) = mpsc::unbounded_channel();
        let _ = self.actor.cast(SupervisorMessage::LoopRequest(Box::new(request), answers));
        receiver
    }

    /// The same for a request about flows.
    pub fn flow(&self, request: FlowRequest) -> mpsc::UnboundedReceiver<Answer> {
        let (answers, receiver) = mpsc::unbounded_channel();
        let _ = self.actor.cast(SupervisorMessage::FlowRequest(Box::new(request), answers));
        receiver
    }

    /// The same for a request about nudges.
    pub fn nudge(&self, request: NudgeRequest) -> mpsc::UnboundedReceiver<Answer> {
        let (answers, receiver) = mpsc::unbounded_channel();
        let _ = self.actor.cast(SupervisorMessage::NudgeRequest(Box::new(request), answers));
        receiver
    }

    /// All runs that are not over, as they are now.
    pub async fn runs(&self) -> Vec<Run> {
        let runs = ractor::call_t!(self.actor, SupervisorMessage::Runs, CALL_MS_MAX).unwrap_or_default();
        let mut views = Vec::with_capacity(runs.len());
        for run in runs {
            views.extend(run.look().await.ok());
        }
        views
    }

    /// All merge queues as they are now.
    pub async fn queues(&self) -> Vec<QueueView> {
        let queues = ractor::call_t!(self.actor, SupervisorMessage::Queues, CALL_MS_MAX).unwrap_or_default();
        let mut views = Vec::with_capacity(queues.len());
        for queue in queues {
            views.extend(queue.look().await);
        }
        views
    }

    /// Ends the supervisor; workers go on.
    pub fn stop(&self, exit: Exit) {
        let _ = self.actor.cast(SupervisorMessage::Stop(exit));
    }

    /// The actor itself, to end the whole tree at once as the kernel would.
    #[cfg(feature = "testing")]
    pub fn cell(&self) -> ractor::ActorCell {
        self.actor.get_cell()
    }

    /// Resolves when the supervisor is to end, also when its root died.
    pub async fn ended(&self) -> Exit {
        let mut exit = self.exit.clone();
        let ended = exit.wait_for(Option::is_some).await.map(|exit| *exit);
        ended.ok().flatten().unwrap_or(Exit::GaveUp)
    }
}
