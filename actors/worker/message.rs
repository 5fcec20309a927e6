//! Messages of a worker's actor, and its reports to the supervisor.

use ractor::RpcReplyPort;

use swarm_model::{Caller, Refusal, Rungs, SpawnRequest, Spawned, WorkerLine};
use swarm_ports::{Completion, DirFacts, Life, LifeEnd};

/// What to do with the worktree of a worker that is killed, cleaned or respawned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    pub rm_worktree: bool,
    pub force_dirty: bool,
    /// Whether a branch that was made for the worker is deleted if its base contains it.
    pub drop_branch: bool,
}

/// Life that a request is about. Another one is left alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meant {
    /// Request that has started it. `None`: any request.
    pub started_by: Option<String>,
    /// `None`: any generation.
    pub generation: Option<u64>,
}

/// Message to a worker's actor.
#[derive(Debug)]
pub enum WorkerMessage {
    /// Start a new worker of this name.
    Spawn(Box<SpawnRequest>, RpcReplyPort<Result<Spawned, Refusal>>),
    /// Adopt the worker of this name that is on disk (when the supervisor starts).
    Adopt,
    /// Sent after a pause: try again to record a stop.
    RecordStop,
    /// Sent after a pause: try again to record that the worker is given up.
    RecordFailure,
    /// Roll back this start of an earlier supervisor, which was never committed.
    RollBack(Box<DirFacts>),
    /// Give this generation its row back if another program dropped it, and adopt it.
    Restore {
        generation: u64,
    },
    /// Report the running generation again, because the heartbeat actor was restarted.
    TellLife,
    Kill(Box<Caller>, Removal, Meant, RpcReplyPort<Result<WorkerLine, Refusal>>),
    Clean(Box<Caller>, Removal, Meant, RpcReplyPort<Result<WorkerLine, Refusal>>),
    /// Stop and start again. `rm_worktree` of the removal stands for `--clean-first`.
    Respawn(Box<Caller>, Removal, Meant, RpcReplyPort<Result<Spawned, Refusal>>),
    /// Start a lost worker again, so that it resumes its work.
    Recover(Box<Caller>, RpcReplyPort<Result<Spawned, Refusal>>),
    /// End this generation and start the next one, which resumes its work.
    Renew(u64, RpcReplyPort<Result<Spawned, Refusal>>),
    /// Record the steps that were taken for this generation, which makes no progress.
    Escalated {
        generation: u64,
        rungs: Rungs,
    },
    /// End this generation, because another launch or program has taken its session.
    Abandon(u64, RpcReplyPort<Result<(), Refusal>>),
    /// Sent by the watch: the shim of this generation is gone.
    ShimGone {
        generation: u64,
    },
    /// Sent by the watch: the process of an unsupervised worker is gone.
    WorkerGone {
        generation: u64,
    },
    /// Sent by the timer: an unsupervised worker has reached its time limit.
    TimeIsUp {
        generation: u64,
    },
    /// Sent by the log keeper: this generation has exceeded its output limit.
    OutputSpent {
        generation: u64,
    },
    /// Sent by the timer: a restart is due.
    RestartDue {
        generation: u64,
    },
}

/// Report of a worker to the supervisor, sent by cast.
#[derive(Clone, Debug)]
pub enum Report {
    /// Whether the worker needs the supervisor: it is `live` if it runs or a restart is due, and `owes` if a stop must
    /// still be recorded.
    Live { name: String, live: bool, owes: bool },
    /// The worker was cleaned.
    Cleaned { name: String },
    /// The worker ended successfully and its work must land. Reported again after each adoption, until it is noted that
    /// the work was queued. The key is the launch token.
    Finished { key: String, generation: u64, completion: Box<Completion> },
    /// The worker runs and needs the heartbeat actor, which keeps its session or watches it.
    Began(Box<Life>),
    /// A worker that was reported as `Began` has ended.
    Ended(Box<Life>, LifeEnd),
}
