//! The whole protocol of one worker's actor.

use ractor::RpcReplyPort;

use swarm_model::{Caller, Refusal, Rungs, SpawnRequest, Spawned, WorkerLine};
use swarm_ports::{Completion, Life, LifeEnd};

/// What is to become of the worktree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    pub rm_worktree: bool,
    pub force_dirty: bool,
}

#[derive(Debug)]
pub enum WorkerMessage {
    /// Start a new worker of this name.
    Spawn(Box<SpawnRequest>, RpcReplyPort<Result<Spawned, Refusal>>),
    /// Take over whatever is on disk of this name (supervisor's start).
    Adopt,
    /// Whoever beats for sessions was started anew.
    TellLife,
    Kill(Box<Caller>, Removal, RpcReplyPort<Result<WorkerLine, Refusal>>),
    Clean(Box<Caller>, Removal, RpcReplyPort<Result<WorkerLine, Refusal>>),
    /// `clean_first` is `rm_worktree` of the removal.
    Respawn(Box<Caller>, Removal, RpcReplyPort<Result<Spawned, Refusal>>),
    /// Start it again where nobody ended it, going on with what it left.
    Recover(Box<Caller>, RpcReplyPort<Result<Spawned, Refusal>>),
    /// End this generation and start the next one, going on with what it left.
    Renew(u64, RpcReplyPort<Result<Spawned, Refusal>>),
    /// So much was done about this generation, which stands still.
    Climbed {
        generation: u64,
        rungs: Rungs,
    },
    /// End this generation, whose session is somebody else's.
    Forsake(u64, RpcReplyPort<Result<(), Refusal>>),
    /// From the watch: the shim of this generation is gone.
    ShimGone {
        generation: u64,
    },
    /// From the watch: the process of an unsupervised worker is gone.
    WorkerGone {
        generation: u64,
    },
    /// From the timer: the time limit of an unsupervised worker is over.
    TimeIsUp {
        generation: u64,
    },
    /// From the logs: this generation has written more than it may.
    OutputSpent {
        generation: u64,
    },
    /// From the timer: a restart is due.
    RestartDue {
        generation: u64,
    },
}

/// What the supervisor is told, by cast.
#[derive(Clone, Debug)]
pub enum Report {
    /// The worker needs the supervisor (it runs, or a restart is due), or not any more.
    Live { name: String, live: bool },
    /// It is gone for good.
    Cleaned { name: String },
    /// It ended with success and is to land. Told again by whoever adopts it; the
    /// key is that of its start.
    Finished { key: String, completion: Box<Completion> },
    /// Its agent runs, in a session that is to be beaten for.
    Began(Box<Life>),
    /// It does not any more.
    Ended(Box<Life>, LifeEnd),
}
