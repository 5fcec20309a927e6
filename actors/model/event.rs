//! What happened, as one line of `events.jsonl` and of `GET /v1/events`.

use serde::{Deserialize, Serialize};

use super::limits::Hits;
use super::records::{Ended, Reason};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The request that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    #[serde(flatten)]
    pub kind: EventKind,
}

/// The stable names are the values of `type`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum EventKind {
    #[serde(rename = "supervisor.started")]
    SupervisorStarted { pid: i32 },
    #[serde(rename = "supervisor.stopped")]
    SupervisorStopped { reason: String },
    #[serde(rename = "worker.started")]
    WorkerStarted { pid: i32 },
    #[serde(rename = "worker.adopted")]
    WorkerAdopted { pid: i32 },
    #[serde(rename = "worker.exited")]
    WorkerExited {
        ended: Option<Ended>,
        reason: Option<Reason>,
        duration_ms: Option<u64>,
        #[serde(default, skip_serializing_if = "Hits::is_none")]
        hits: Hits,
    },
    #[serde(rename = "worker.restarting")]
    WorkerRestarting { in_ms: u64, restarts: u32 },
    #[serde(rename = "worker.failed")]
    WorkerFailed { cause: String },
    #[serde(rename = "worker.killed")]
    WorkerKilled,
    #[serde(rename = "worker.cleaning")]
    WorkerCleaning,
    #[serde(rename = "worker.cleaned")]
    WorkerCleaned,
    #[serde(rename = "worktree.saved")]
    WorktreeSaved { reference: String, commit: String },
    /// What had been saved of `worker` is gone: why, and which commit it was.
    #[serde(rename = "save.expired")]
    SaveExpired { reference: String, commit: String, why: String },
    #[serde(rename = "start.aborted")]
    StartAborted { cause: String },
    /// Finished work of `worker` (or of a branch) waits to land.
    #[serde(rename = "merge.queued")]
    MergeQueued {
        item: u64,
        base: String,
        /// Untracked paths of a kind that is not landed.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left_out: Vec<String>,
    },
    /// The verification runs on this commit, which holds the item.
    #[serde(rename = "merge.verifying")]
    MergeVerifying { item: u64, base: String, commit: String },
    /// The resolver is at the conflicts that the item has in these files.
    #[serde(rename = "merge.resolving")]
    MergeResolving { item: u64, base: String, files: Vec<String> },
    /// An item came to its end for now; `state` as in `merge ls`.
    #[serde(rename = "merge.settled")]
    MergeSettled {
        item: u64,
        base: String,
        state: String,
        commit: Option<String>,
        cause: Option<String>,
        files: Vec<String>,
    },
    /// Finished work could not even be queued.
    #[serde(rename = "merge.refused")]
    MergeRefused { cause: String },
    /// `worker` stands still: what is seen of it, and what is done about it (`told`,
    /// `nudged`, `interrupted`, `restarted`, `given-up`).
    #[serde(rename = "worker.stuck")]
    WorkerStuck { signal: String, evidence: String, step: String },
    /// `worker` goes on by itself again.
    #[serde(rename = "worker.unstuck")]
    WorkerUnstuck,
    /// The session of `worker` belongs to another launch or program by now, so it is stopped.
    #[serde(rename = "session.lost")]
    SessionLost { found: String },
    /// A beat of a nudge was typed into the window of `worker`; its number.
    #[serde(rename = "nudge.sent")]
    NudgeSent { beat: u64 },
    /// A beat did not arrive, or nobody knows.
    #[serde(rename = "nudge.missed")]
    NudgeMissed { cause: String },
    #[serde(rename = "nudge.expired")]
    NudgeExpired,
    /// It ended because its worker did.
    #[serde(rename = "nudge.stopped")]
    NudgeStopped { cause: String },
    /// A run began, or goes on that was stopped; what it tells is in its own home.
    #[serde(rename = "run.began")]
    RunBegan { run: String, home: String },
    /// A node or role of a flow waits for a person from now on; `node` is empty where the
    /// flow itself does.
    #[serde(rename = "flow.waiting")]
    FlowWaiting { flow: String, node: String, role: String, reason: String, text: String },
    /// `worker` is started for a turn of its role.
    #[serde(rename = "flow.turn")]
    FlowTurn { flow: String, node: Option<String>, role: String, number: u64 },
    #[serde(rename = "flow.ended")]
    FlowEnded { flow: String },
    /// A loop of `worker` begins, or goes on that another process looked after.
    #[serde(rename = "loop.started")]
    LoopStarted { iteration: u32, max: u32 },
    #[serde(rename = "loop.iteration")]
    LoopIteration { iteration: u32, max: u32 },
    #[serde(rename = "loop.paused")]
    LoopPaused { reason: String },
    #[serde(rename = "loop.resumed")]
    LoopResumed,
    /// `reason` as in `ralph status`.
    #[serde(rename = "loop.ended")]
    LoopEnded { reason: String, iterations: u32 },
    #[serde(rename = "loop.warning")]
    LoopWarning { text: String },
}
