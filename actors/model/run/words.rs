//! What a run tells as it goes: one JSON object a line, stable and documented.

use serde::{Deserialize, Serialize};

use super::progress::Spent;

/// One line of `events.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// ISO 8601, UTC.
    pub time: String,
    pub run: String,
    /// Counts what this run has told, from 0; none for what agents report while they work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workstream: Option<String>,
    #[serde(flatten)]
    pub word: Word,
}

/// The stable names are the values of `event`.
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
    /// The last of a run. `status` is `completed`, `failed` or `interrupted`.
    #[serde(rename = "run.completed")]
    RunCompleted { status: String, done: usize, failed: usize, pending: usize },
    #[serde(rename = "workstream.started")]
    Started { attempt: u32, worker: String },
    /// The agent has finished; its work is not landed yet.
    #[serde(rename = "workstream.completed")]
    Completed {
        attempt: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        summary: Option<String>,
        #[serde(default)]
        spent: Spent,
    },
    /// It is given up.
    #[serde(rename = "workstream.failed")]
    Failed { attempt: u32, error: String },
    /// An attempt failed and another one follows.
    #[serde(rename = "workstream.retrying")]
    Retrying { attempt: u32, error: String, in_ms: u64 },
    /// It was stopped and can go on.
    #[serde(rename = "workstream.paused")]
    Paused { attempt: u32 },
    /// It is done, and landed where it was to land.
    #[serde(rename = "workstream.done")]
    Done {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        commit: Option<String>,
    },
    /// Its spec is not as it was when the run began; this attempt takes it as it is now.
    #[serde(rename = "workstream.spec_changed")]
    SpecChanged { attempt: u32, file: String },
    /// What an agent is at.
    #[serde(rename = "workstream.activity")]
    Activity { text: String },
    /// It stands still and needs a person.
    #[serde(rename = "workstream.waiting")]
    NeedsInput { cause: String },
    /// What `swarm run context` gave has reached the agent, or cannot any more.
    #[serde(rename = "workstream.context")]
    Context { delivered: bool, text: String },
    #[serde(rename = "merge.started")]
    MergeStarted { base: String },
    /// The verification runs on a commit that holds its work.
    #[serde(rename = "merge.verifying")]
    MergeVerifying { commit: String },
    /// The conflict agent is at these files.
    #[serde(rename = "merge.resolving")]
    MergeResolving { files: Vec<String> },
    #[serde(rename = "merge.completed")]
    MergeCompleted { commit: String },
    #[serde(rename = "merge.conflict")]
    MergeConflict { files: Vec<String>, branch: String },
    #[serde(rename = "merge.rejected")]
    MergeRejected { error: String },
    /// Something outside keeps it from landing.
    #[serde(rename = "merge.waiting")]
    MergeWaiting { error: String },
}
