//! Values shared by all crates of `swarm`: names, rows, records, requests and events, with their JSON forms. Nothing
//! here touches a file, a clock or a process.

mod activity;
pub mod asks;
pub mod clearing;
pub mod dialog;
pub mod drafts;
mod event;
pub mod flow;
mod job;
pub mod json;
mod limits;
pub mod loops;
pub mod merge;
mod metadata;
mod name;
pub mod nudges;
mod origin;
mod records;
mod recovery;
mod request;
mod route;
mod row;
pub mod run;
pub mod screen;
mod session;
mod session_plan;
mod view;

pub use crate::flow::{FlowLine, FlowOrder, FlowPlace, FlowRequest, FlowRules};
pub use activity::{Activity, Doing, NeedKind, Needs, TurnEnd};
pub use event::{Event, EventKind};
pub use job::{Job, JobOrder, Over, Place, SLURM, is_scrubbed};
pub use limits::{By, Held, Hits, Limits, LimitsText, Typed, parse_cores, parse_memory, parse_pids, parse_size};
pub use loops::{LoopLine, LoopOrder, LoopRequest};
pub use merge::{MergeLine, MergeOrder, MergeRequest, MergeSettings, QueueView, Target};
pub use metadata::Metadata;
pub use name::{NameError, WorkerName, nearest};
pub use nudges::{Every, NudgeLine, NudgeOrder, NudgeRequest, NudgeSettings};
pub use origin::{Origin, RunWork};
pub use records::{
    Attributes, BaseRef, Contract, Ended, Environment, ExitRecord, Lease, Machine, Policy, ProcessId, Reason,
    RestartPolicy, Resume, Rlimit, Rungs, Spec, TmuxPane, TmuxPlace, Token, Usage, Wanted, WantedState, WorktreePlan,
    worker_dir_name,
};
pub use recovery::Recovery;
pub use request::{
    Answer, Below, Build, Caller, CleanRequest, Hello, KillRequest, Namespaces, RecoverRequest, Refusal, RefusalKind,
    RespawnRequest, Scope, SpawnRequest, Spawned, WorkerLine, WorktreeRequest,
};
pub use route::{LoopAnswer, Reply, Route};
pub use row::{Row, RowError, RowKey, RowTmux, RowWorktree, SwarmMeta, Wire, WireStatus};
pub use run::{RunLine, RunOrder, RunRequest};
pub use session::{Fence, SESSION_BYTES_MAX, Session, SessionOwner, SessionStatus, session_fault};
pub use session_plan::{
    SESSION_FILES, SESSION_FOLDER, SessionPlan, SessionRules, WORK_TYPES, WatchRules, is_session_file, launch_id,
};
pub use view::{FineState, WorkerView};
