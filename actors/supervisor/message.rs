//! Messages of the supervisor.

use ractor::RpcReplyPort;
use tokio::sync::mpsc::UnboundedSender;

use super::machine::{Child, Kind};
use super::openings::{Opened, Why};
use crate::loops::{Begin, LoopHandle};
use crate::merge::{MergeHandle, MergeReport};
use crate::run::RunHandle;
use crate::worker::{Report, WorkerHandle};
use swarm_model::run::Wish;
use swarm_model::{
    Answer, CleanRequest, FlowPlace, FlowRequest, KillRequest, LoopRequest, MergeRequest, NudgeRequest, RecoverRequest,
    Refusal, RespawnRequest, RunRequest, Scope, SpawnRequest, Target,
};
use swarm_ports::Survey;

/// Request about workers, from a person or a script.
#[derive(Clone, Debug)]
pub enum Request {
    Spawn(Box<SpawnRequest>),
    Kill(Box<KillRequest>),
    Clean(Box<CleanRequest>),
    Respawn(Box<RespawnRequest>),
    Recover(Box<RecoverRequest>),
}

impl Request {
    /// Reports whether the request is about all workers instead of named ones.
    pub fn is_about_all(&self) -> bool {
        match self {
            Self::Kill(kill) => kill.scope == Scope::All,
            Self::Clean(clean) => clean.scope == Scope::All,
            Self::Spawn(_) | Self::Respawn(_) | Self::Recover(_) => false,
        }
    }
}

/// Reason why the supervisor exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Nothing was left to supervise.
    Idle,
    /// A person asked for it.
    Asked,
    /// Another supervisor takes over at once.
    Replaced,
    /// The state directory is gone.
    Abandoned,
    /// A child failed too often. The guard starts a new process.
    GaveUp,
}

/// Message to the supervisor.
#[derive(Debug)]
pub enum SupervisorMessage {
    /// Carry out a request about workers. Answers go to the sender; `Done` is the last. The work is
    /// done even if the receiver is gone.
    Request(Request, UnboundedSender<Answer>),
    /// Carry out a request about merge queues; answers as for `Request`.
    MergeRequest(Box<MergeRequest>, UnboundedSender<Answer>),
    /// Carry out a request about runs; answers as for `Request`.
    RunRequest(Box<RunRequest>, UnboundedSender<Answer>),
    /// Carry out a request about loops; answers as for `Request`.
    LoopRequest(Box<LoopRequest>, UnboundedSender<Answer>),
    /// Return the loop of this name. Starts or resumes it if it has no actor; `None` if there is no
    /// such loop.
    OpenLoop(String, Option<Begin>, RpcReplyPort<Result<Option<LoopHandle>, Refusal>>),
    /// Report of a loop.
    Loop(String, crate::loops::LoopReport),
    /// Carry out a request about flows; answers as for `Request`.
    FlowRequest(Box<FlowRequest>, UnboundedSender<Answer>),
    /// Report of a flow.
    Flow(FlowPlace, crate::flow::FlowReport),
    /// Carry out a request about nudges; answers as for `Request`.
    NudgeRequest(Box<NudgeRequest>, UnboundedSender<Answer>),
    /// Return the run that queued the item with this key, if it is not over.
    RunOf(String, RpcReplyPort<Option<RunHandle>>),
    /// Sent by the task that carried out a request.
    RequestEnded,
    /// Report of a worker.
    Report(Report),
    /// Report of the heartbeat.
    Heartbeat(crate::sessions::SessionReport),
    /// Report of a merge queue.
    Merge(Target, MergeReport),
    /// Report of a run.
    Run(String, crate::run::RunReport),
    /// Report of the nudges.
    Nudges(crate::nudges::NudgeReport),
    /// Sent by a run: queue the work of a worker.
    Land(Box<Wish>, RpcReplyPort<Result<(), Refusal>>),
    /// Return the worker actor of this name. Starts it if it is not running.
    Worker(String, RpcReplyPort<WorkerHandle>),
    /// Return all runs that are not over.
    Runs(RpcReplyPort<Vec<RunHandle>>),
    /// Return the queue of this base. Starts it if it is not running.
    Queue(Target, RpcReplyPort<Result<MergeHandle, Refusal>>),
    /// Return all running queues.
    Queues(RpcReplyPort<Vec<MergeHandle>>),
    /// An item was queued under this key.
    Queued(String, Target),
    /// Return the queue that contains the item with this key.
    QueueOf(String, RpcReplyPort<Option<MergeHandle>>),
    /// The start of a child is over.
    Opened(Child, Why, Box<Opened>),
    /// Read again what could not be read. From the actor itself, after a pause.
    Survey(Kind),
    /// Result of [`Self::Survey`].
    Surveyed(Kind, Box<Survey<Child>>),
    /// Do not exit when idle.
    Stay,
    /// Sent by the idle timer, with the number under which it was armed.
    IdleTimer(u64),
    Stop(Exit),
    /// Return the number of workers that need this process.
    Live(RpcReplyPort<usize>),
}
