//! Events: lines of `events.jsonl` and of `GET /v1/events`.

use serde::{Deserialize, Serialize};

use super::activity::NeedKind;
use super::limits::Hits;
use super::records::{Ended, Reason};

/// Event of a worker, or of the supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Request that caused the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    #[serde(flatten)]
    pub kind: EventKind,
}

/// Kind of an event. The values of `type` are stable.
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
    /// Saved work of `worker` was deleted: its reference and commit, and why.
    #[serde(rename = "save.expired")]
    SaveExpired { reference: String, commit: String, why: String },
    #[serde(rename = "start.aborted")]
    StartAborted { cause: String },
    /// Finished work of `worker`, or of a branch, was added to a merge queue.
    #[serde(rename = "merge.queued")]
    MergeQueued {
        item: u64,
        base: String,
        /// Uncommitted paths that do not land: files of kinds that tools generate, and the
        /// places of submodules and other repositories with uncommitted work (with a slash at the end).
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left_out: Vec<String>,
        /// Pids of processes of the worker that live on after the end of its command, because nobody could end them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        survivors: Vec<i32>,
    },
    /// A candidate with the work of the item is being built.
    #[serde(rename = "merge.building")]
    MergeBuilding { item: u64, base: String },
    /// The base is being moved to `commit`, which contains the item.
    #[serde(rename = "merge.landing")]
    MergeLanding { item: u64, base: String, commit: String },
    /// A person paused the merge queue of this base, or resumed it.
    #[serde(rename = "merge.paused")]
    MergePaused { base: String },
    #[serde(rename = "merge.resumed")]
    MergeResumed { base: String },
    /// The verification runs on `commit`, which contains the item.
    #[serde(rename = "merge.verifying")]
    MergeVerifying { item: u64, base: String, commit: String },
    /// The resolver works on the conflicts of the item in `files`.
    #[serde(rename = "merge.resolving")]
    MergeResolving { item: u64, base: String, files: Vec<String> },
    /// A queue item settled: nothing more happens to it unless a person acts. `state` has the words of `merge ls`.
    #[serde(rename = "merge.settled")]
    MergeSettled {
        item: u64,
        base: String,
        state: String,
        commit: Option<String>,
        cause: Option<String>,
        files: Vec<String>,
    },
    /// Finished work could not be added to a merge queue.
    #[serde(rename = "merge.refused")]
    MergeRefused { cause: String },
    /// The journal of a merge queue was damaged and moved aside to `file`. Its items are lost; `cause` names the work
    /// that can be added again.
    #[serde(rename = "merge.damaged")]
    MergeDamaged { base: Option<String>, file: String, cause: String },
    /// `worker` is stuck: the evidence, and the step taken (`told`, `nudged`, `interrupted`, `restarted`, `given-up`).
    #[serde(rename = "worker.stuck")]
    WorkerStuck { signal: String, evidence: String, step: String },
    /// `worker` makes progress again by itself.
    #[serde(rename = "worker.unstuck")]
    WorkerUnstuck,
    /// The agent of `worker` cannot go on before a person does what `text` says.
    #[serde(rename = "worker.waiting")]
    WorkerWaiting { kind: NeedKind, text: String },
    /// The agent of `worker` asks a person for the permission to use `tool`, or something that it wants to know. `ask` is the number
    /// of the request. What exactly it asks is not part of the event, which notifications pass on.
    #[serde(rename = "approval.requested")]
    ApprovalRequested { ask: u64, kind: NeedKind, tool: String },
    /// A request is still open: people are reminded of it.
    #[serde(rename = "approval.reminded")]
    ApprovalReminded { ask: u64, kind: NeedKind, tool: String },
    /// A request was answered: `allow`, `deny` or `answer`, and the user who did, unless it was a rule or a time limit.
    #[serde(rename = "approval.answered")]
    ApprovalAnswered { ask: u64, verdict: String, by: Option<String> },
    /// The turn of the agent of `worker` is over; it waits for its next task.
    #[serde(rename = "worker.idle")]
    WorkerIdle { text: String },
    /// The agent of `worker` works again after it was idle or waited.
    #[serde(rename = "worker.working")]
    WorkerWorking,
    /// The session of `worker` now belongs to another launch or program, so the worker is stopped.
    #[serde(rename = "session.lost")]
    SessionLost { found: String },
    /// Beat number `beat` of a nudge was typed into the window of `worker`.
    #[serde(rename = "nudge.sent")]
    NudgeSent { beat: u64 },
    /// A beat of a nudge was not typed, or it is unknown whether it was.
    #[serde(rename = "nudge.missed")]
    NudgeMissed { cause: String },
    #[serde(rename = "nudge.expired")]
    NudgeExpired,
    /// A nudge stopped because its worker ended.
    #[serde(rename = "nudge.stopped")]
    NudgeStopped { cause: String },
    /// A run started or resumed. The events of the run itself are in its `home`.
    #[serde(rename = "run.began")]
    RunBegan { run: String, home: String },
    /// A run ended. `name` is the prefix of its workers, and `status` has the words of `run.completed` in its own events.
    /// `failures` and `waits` name workstreams that failed and that wait for a person, the first ones if there are many.
    #[serde(rename = "run.ended")]
    RunEnded {
        run: String,
        name: String,
        home: String,
        status: String,
        done: usize,
        failed: usize,
        pending: usize,
        failures: Vec<String>,
        waits: Vec<String>,
    },
    /// A node or role of a flow now waits for a person. `node` is empty if the flow itself waits.
    #[serde(rename = "flow.waiting")]
    FlowWaiting { flow: String, node: String, role: String, reason: String, text: String },
    /// `worker` is being started for a turn of `role`.
    #[serde(rename = "flow.turn")]
    FlowTurn { flow: String, node: Option<String>, role: String, number: u64 },
    #[serde(rename = "flow.ended")]
    FlowEnded { flow: String },
    /// A loop of `worker` started, or was taken over from another process.
    #[serde(rename = "loop.started")]
    LoopStarted { iteration: u32, max: u32 },
    #[serde(rename = "loop.iteration")]
    LoopIteration { iteration: u32, max: u32 },
    #[serde(rename = "loop.paused")]
    LoopPaused { reason: String },
    #[serde(rename = "loop.resumed")]
    LoopResumed,
    /// A loop ended. `reason` has the words of `ralph status`.
    #[serde(rename = "loop.ended")]
    LoopEnded { reason: String, iterations: u32 },
    #[serde(rename = "loop.warning")]
    LoopWarning { text: String },
}
