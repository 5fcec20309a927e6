//! The supervisor's whole protocol.

use ractor::RpcReplyPort;
use tokio::sync::mpsc::UnboundedSender;

use crate::loops::{Begin, LoopHandle};
use crate::merge::{MergeHandle, Told};
use crate::run::RunHandle;
use crate::worker::{Report, WorkerHandle};
use swarm_model::run::Wish;
use swarm_model::{
    Answer, CleanRequest, FlowPlace, FlowRequest, KillRequest, LoopRequest, MergeRequest, NudgeRequest, RecoverRequest,
    Refusal, RespawnRequest, RunRequest, SpawnRequest, Target,
};

/// What a person or a script asks for.
#[derive(Clone, Debug)]
pub enum Request {
    Spawn(Box<SpawnRequest>),
    Kill(Box<KillRequest>),
    Clean(Box<CleanRequest>),
    Respawn(Box<RespawnRequest>),
    Recover(Box<RecoverRequest>),
}

/// Why the supervisor ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Nothing was left to supervise.
    Idle,
    /// A person asked for it.
    Asked,
    /// Another one takes over at once.
    Replaced,
    /// The state directory is gone.
    Abandoned,
    /// A child failed too often: the guard starts a fresh process.
    GaveUp,
}

#[derive(Debug)]
pub enum SupervisorMessage {
    /// Answers go to the sender, `Done` is the last. Its receiver may be gone:
    /// the work is done all the same.
    Request(Request, UnboundedSender<Answer>),
    /// The same about merge queues.
    MergeRequest(Box<MergeRequest>, UnboundedSender<Answer>),
    /// The same about runs.
    RunRequest(Box<RunRequest>, UnboundedSender<Answer>),
    /// The same about loops.
    LoopRequest(Box<LoopRequest>, UnboundedSender<Answer>),
    /// The loop of this name, begun or gone on with where nobody looks after it; `None`
    /// where there is none.
    OpenLoop(String, Option<Begin>, RpcReplyPort<Result<Option<LoopHandle>, Refusal>>),
    /// From a loop.
    Loop(String, crate::loops::Told),
    /// The same about flows.
    FlowRequest(Box<FlowRequest>, UnboundedSender<Answer>),
    /// From a flow.
    Flow(FlowPlace, crate::flow::Told),
    /// The same about nudges.
    NudgeRequest(Box<NudgeRequest>, UnboundedSender<Answer>),
    /// From the task that carried out a request.
    RequestEnded,
    /// From a worker.
    Report(Report),
    /// From the heartbeat.
    Heartbeat(crate::sessions::Told),
    /// From a merge queue.
    Merge(Target, Told),
    /// From a run.
    Run(String, crate::run::Told),
    /// From the nudges.
    Nudges(crate::nudges::Told),
    /// From a run: a worker's work is to be queued.
    Land(Box<Wish>, RpcReplyPort<Result<(), Refusal>>),
    /// The worker of this name, started when there is none.
    Worker(String, RpcReplyPort<WorkerHandle>),
    /// All runs that are not over.
    Runs(RpcReplyPort<Vec<RunHandle>>),
    /// The queue of this base, started when there is none.
    Queue(Target, RpcReplyPort<Result<MergeHandle, Refusal>>),
    /// All queues that there are.
    Queues(RpcReplyPort<Vec<MergeHandle>>),
    /// An item was made under this key.
    Queued(String, Target),
    /// The queue in which an item was made under this key.
    QueueOf(String, RpcReplyPort<Option<MergeHandle>>),
    /// It is not to end for want of work.
    Stay,
    /// From the timer, with the number it was armed under.
    IdleTimer(u64),
    Stop(Exit),
    /// How many workers need this process.
    Live(RpcReplyPort<usize>),
}
