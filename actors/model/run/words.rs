//! Reports of a run: one JSON object per line, in a stable and documented form.

use serde::{Deserialize, Serialize};

use super::progress::Spent;
use crate::NeedKind;

/// One line of `events.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Time in ISO 8601, UTC.
    pub time: String,
    pub run: String,
    /// Number of the report in this run, from 0. `None` for reports of agents while they work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workstream: Option<String>,
    #[serde(flatten)]
    pub word: Word,
}

/// Report of a run. The values of `event` are stable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event")]
pub enum Word {
    #[serde(rename = "run.started")]
    RunStarted {
        workstreams: usize,
        pending: usize,
        #[serde(default)]
        failed: usize,
    },
    #[serde(rename = "run.paused")]
    RunPaused,
    #[serde(rename = "run.resumed")]
    RunResumed,
    #[serde(rename = "run.stopping")]
    RunStopping,
    /// A line of the run's journal cannot be read. The run continues with what the other lines and reports say.
    #[serde(rename = "run.journal_damaged")]
    JournalDamaged { file: String, line: usize, error: String },
    /// Nothing can be started on the host: it is out of reach, refuses, or has no room. What works there goes on.
    #[serde(rename = "host.away")]
    HostAway { host: String, error: String },
    #[serde(rename = "host.back")]
    HostBack { host: String },
    /// The host cannot execute the workstream. It may execute others.
    #[serde(rename = "host.unfit")]
    HostUnfit { host: String, error: String },
    /// Last report of a run. `status` is `completed`, `failed` or `interrupted`.
    #[serde(rename = "run.completed")]
    RunCompleted { status: String, done: usize, failed: usize, pending: usize },
    #[serde(rename = "workstream.started")]
    Started {
        attempt: u32,
        worker: String,
        /// Host on which it works. `None`: here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
    },
    /// The attempt is given up, because its host is out of reach. Another one follows.
    #[serde(rename = "workstream.abandoned")]
    Abandoned { attempt: u32, host: String },
    /// An attempt that was given up is ended on its host. Its work is here, under `reference`, if it has left any.
    #[serde(rename = "workstream.returned")]
    Returned {
        attempt: u32,
        host: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
    },
    /// Another machine or state directory is under the name of the host, which never had this attempt that was given up.
    #[serde(rename = "workstream.gone")]
    Gone { attempt: u32, host: String },
    /// The agent has finished. Its work has not landed yet.
    #[serde(rename = "workstream.completed")]
    Completed {
        attempt: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        summary: Option<String>,
        #[serde(default)]
        spent: Spent,
    },
    /// The workstream has failed, and no attempt follows.
    #[serde(rename = "workstream.failed")]
    Failed { attempt: u32, error: String },
    /// An attempt failed, and another one follows in `in_ms` milliseconds.
    #[serde(rename = "workstream.retrying")]
    Retrying { attempt: u32, error: String, in_ms: u64 },
    /// The agent asks a person and has ended. The workstream continues after the answer.
    #[serde(rename = "workstream.asking")]
    Asking {
        attempt: u32,
        /// Number of the request.
        ask: u64,
        kind: NeedKind,
        what: String,
    },
    /// A person has answered; the next attempt continues with the answer.
    #[serde(rename = "workstream.answered")]
    Answered { attempt: u32, ask: u64 },
    /// The workstream was stopped and can be resumed.
    #[serde(rename = "workstream.paused")]
    Paused { attempt: u32 },
    /// The workstream is done, and its work has landed if it had to.
    #[serde(rename = "workstream.done")]
    Done {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        commit: Option<String>,
        /// Whether the base had all of the work already, so that nothing was left to land.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        on_base: bool,
        /// Item of the merge queue that landed the work, if the run did not add it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        item: Option<u64>,
        /// Command that verified that item. `None` if none did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        verified_by: Option<String>,
    },
    /// The spec has changed since the run began. This attempt uses the new text.
    #[serde(rename = "workstream.spec_changed")]
    SpecChanged { attempt: u32, file: String },
    /// The branch was made before the work of these jobs landed, after which the workstream comes. This attempt continues
    /// without it in `worktree`, or has begun anew from the base if it had no work of its own.
    #[serde(rename = "workstream.behind")]
    Behind {
        attempt: u32,
        after: Vec<String>,
        base: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worktree: Option<String>,
    },
    /// Present activity of an agent.
    #[serde(rename = "workstream.activity")]
    Activity { text: String },
    /// The workstream is stuck and needs a person.
    #[serde(rename = "workstream.waiting")]
    NeedsInput { cause: String },
    /// A text from `swarm run context` has reached the agent, or can no longer reach it.
    #[serde(rename = "workstream.context")]
    Context { delivered: bool, text: String },
    /// Ignored files that the workstream left in its worktree, which is removed. They do not land.
    #[serde(rename = "workstream.ignored")]
    Ignored {
        files: Vec<String>,
        /// Host of the worktree. `None`: this machine.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
    },
    /// What an attempt has left on its host apart from its work is here, under these references.
    #[serde(rename = "workstream.kept")]
    Kept { attempt: u32, host: String, references: Vec<String> },
    #[serde(rename = "merge.started")]
    MergeStarted {
        base: String,
        /// Uncommitted paths that do not land: files of kinds that tools generate, and the
        /// places of submodules and other repositories with uncommitted work (with a slash at the end).
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left_out: Vec<String>,
    },
    /// The verification runs on a commit that contains the work.
    #[serde(rename = "merge.verifying")]
    MergeVerifying { commit: String },
    /// The conflict agent works on these files.
    #[serde(rename = "merge.resolving")]
    MergeResolving { files: Vec<String> },
    /// The run ends, and the work goes on to its base.
    #[serde(rename = "merge.continues")]
    MergeContinues { base: String },
    #[serde(rename = "merge.completed")]
    MergeCompleted { commit: String },
    #[serde(rename = "merge.conflict")]
    MergeConflict { files: Vec<String>, branch: String },
    #[serde(rename = "merge.rejected")]
    MergeRejected { error: String },
    /// Something other than the work itself keeps it from landing.
    #[serde(rename = "merge.waiting")]
    MergeWaiting { error: String },
}
