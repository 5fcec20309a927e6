//! How far a loop has come: plain values.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::words::Word;
use crate::{Caller, Contract, ProcessId, WorktreeRequest};

/// So many failures in a row end a loop.
pub const FAILURES_MAX: u32 = 5;
/// So often an iteration that was lost is begun again; the next time it has failed.
pub const LOST_MAX: u32 = 3;
/// Longest pause after a failure, in seconds.
pub const BACKOFF_S_MAX: u64 = 300;
/// How much fuller than `max_context` an agent may get before it is ended, in percent.
pub const CONTEXT_GRACE: u32 = 15;

/// What is to be repeated: fixed when the loop begins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The request that it began by.
    pub id: String,
    pub name: String,
    /// Absolute; read anew before each iteration.
    pub prompt_file: String,
    pub max_iterations: u32,
    pub inactivity_timeout_s: u64,
    #[serde(default)]
    pub done_pattern: Option<String>,
    /// Look for it all the time, not only at the end of an iteration.
    #[serde(default)]
    pub check_done_continuous: bool,
    /// How full a context may be, in percent.
    #[serde(default)]
    pub max_context: Option<u32>,
    /// Nobody looks after it once the first prompt is typed, until somebody asks for that.
    #[serde(default)]
    pub no_run: bool,
    pub contract: Contract,
    #[serde(default)]
    pub worktree: Option<WorktreeRequest>,
    /// Without environment: the contract has it.
    pub caller: Caller,
}

/// The original's word for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    #[default]
    Running,
    Paused,
    Stopped,
    Failed,
}

impl Status {
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// Why a loop, or its last iteration, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    DonePattern,
    MaxIterations,
    Killed,
    Failed,
    MonitorDisconnected,
    Compaction,
    ContextThreshold,
    PreflightFailed,
}

impl ExitReason {
    pub fn word(self) -> &'static str {
        match self {
            Self::DonePattern => "done_pattern",
            Self::MaxIterations => "max_iterations",
            Self::Killed => "killed",
            Self::Failed => "failed",
            Self::MonitorDisconnected => "monitor_disconnected",
            Self::Compaction => "compaction",
            Self::ContextThreshold => "context_threshold",
            Self::PreflightFailed => "preflight_failed",
        }
    }
}

/// Where the present iteration is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "stage")]
pub enum Stage {
    /// Its worker is being started.
    #[default]
    Starting,
    /// Its worker runs; the prompt is typed when it is ready.
    Prompting {
        generation: u64,
    },
    /// The prompt is being typed, or was when everything died.
    Typing {
        generation: u64,
    },
    Watching {
        generation: u64,
    },
    /// Its worker is being ended; what is to come then.
    Ending {
        then: Then,
    },
    /// The next one is due at this time, Unix milliseconds.
    BackingOff {
        until_ms: u64,
        again: bool,
    },
    /// Paused behind it; `again` where it is to be tried again.
    Between {
        again: bool,
    },
    Over,
}

impl Stage {
    /// Whether there is, or may be, a worker of this iteration.
    pub fn is_at_work(&self) -> bool {
        match self {
            Self::Starting | Self::Prompting { .. } | Self::Typing { .. } | Self::Watching { .. } => true,
            Self::Ending { .. } | Self::BackingOff { .. } | Self::Between { .. } | Self::Over => false,
        }
    }

    /// The worker of this iteration, once it runs.
    pub fn generation(&self) -> Option<u64> {
        match self {
            Self::Prompting { generation } | Self::Typing { generation } | Self::Watching { generation } => {
                Some(*generation)
            }
            Self::Starting | Self::Ending { .. } | Self::BackingOff { .. } | Self::Between { .. } | Self::Over => None,
        }
    }
}

/// What follows when a worker was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Then {
    /// The next iteration.
    Next,
    /// The same, and this one counts as a failure.
    Failed,
    /// Nothing: the loop is over.
    Over,
}

/// What the original's file says that another program may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wire {
    pub status: Status,
    pub max_iterations: u32,
}

/// What an earlier loop of the same name left, as its files have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Earlier {
    pub record: Option<String>,
    pub state: Option<String>,
    pub log_length: u64,
}

/// The worker that a loop had when it was taken over from another program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Theirs {
    /// By this its row is known.
    pub started: String,
    /// What runs in its window, where that program started it and it was still at work.
    #[serde(default)]
    pub process: Option<ProcessId>,
}

/// A loop: what is to be done, and how far it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loop {
    pub plan: Arc<Plan>,
    /// The plan's, until somebody writes another one into the original's file.
    pub max_iterations: u32,
    pub status: Status,
    #[serde(default)]
    pub exit_reason: Option<ExitReason>,
    /// Number of the present iteration, from 1.
    pub iteration: u32,
    #[serde(flatten)]
    pub stage: Stage,
    /// Nobody is to look after it.
    #[serde(default)]
    pub detached: bool,
    /// A worker of it has run.
    #[serde(default)]
    pub has_run: bool,
    #[serde(default)]
    pub started_ms: u64,
    #[serde(default)]
    pub iteration_started_ms: u64,
    #[serde(default)]
    pub iteration_ended_ms: Option<u64>,
    /// In seconds.
    #[serde(default)]
    pub durations: Vec<u64>,
    #[serde(default)]
    pub consecutive_failures: u32,
    #[serde(default)]
    pub total_failures: u32,
    /// How often the present iteration was lost with its machine or its tmux server.
    #[serde(default)]
    pub lost: u32,
    /// What the window showed when the prompt was typed, and not sent off yet.
    #[serde(default)]
    pub baseline: String,
    /// Enter was pressed behind it.
    #[serde(default)]
    pub entered: bool,
    /// How long the worker's log was then.
    #[serde(default)]
    pub log_from: u64,
    #[serde(default)]
    pub screen_changed_ms: Option<u64>,
    #[serde(default)]
    pub nudged: bool,
    /// Numbers of the stuck screens that were warned of.
    #[serde(default)]
    pub warned: Vec<usize>,
    /// The first look that may end the loop was taken.
    #[serde(default)]
    pub preflown: bool,
    /// It said that it is done while it was paused.
    #[serde(default)]
    pub done_seen: bool,
    /// How many lines it has told.
    #[serde(default)]
    pub told: u64,
    /// The last of them, of one write, and where in the log they begin.
    #[serde(default)]
    pub lines: Vec<(u64, Word)>,
    #[serde(default)]
    pub lines_at: u64,
    /// What the original's file may have said before the last write.
    #[serde(default)]
    pub wires_before: Vec<Wire>,
    /// What was there before it, until a worker of it has run.
    #[serde(default)]
    pub earlier: Option<Earlier>,
    /// Until a worker of ours has run.
    #[serde(default)]
    pub theirs: Option<Theirs>,
    /// Why its first worker could not be started.
    #[serde(default)]
    pub refused: Option<String>,
}

impl Loop {
    pub fn new(plan: Plan, now_ms: u64) -> Self {
        Self {
            max_iterations: plan.max_iterations,
            iteration: 1,
            started_ms: now_ms,
            iteration_started_ms: now_ms,
            detached: plan.no_run,
            plan: Arc::new(plan),
            ..Self::default()
        }
    }

    pub fn name(&self) -> &str {
        &self.plan.name
    }

    /// Another program lost it from its eyes, and nobody has looked after it since.
    pub fn is_disconnected(&self) -> bool {
        self.status == Status::Stopped && self.exit_reason == Some(ExitReason::MonitorDisconnected)
    }

    /// Whether somebody may yet go on with it.
    pub fn may_go_on(&self) -> bool {
        matches!(self.status, Status::Running | Status::Paused) || self.is_disconnected()
    }

    /// The process of the present iteration, where another program started it.
    pub fn follows(&self) -> Option<&ProcessId> {
        let is_at_work = matches!(self.stage, Stage::Watching { .. });
        self.theirs.as_ref().filter(|_| is_at_work).and_then(|theirs| theirs.process.as_ref())
    }

    /// Whether it may begin another worker, at once or when it is resumed.
    pub fn goes_on(&self) -> bool {
        !matches!(self.stage, Stage::Over | Stage::Ending { then: Then::Over })
    }

    /// Whether a process has to look after it.
    pub fn is_active(&self) -> bool {
        match &self.stage {
            Stage::Over | Stage::Between { .. } => false,
            Stage::Watching { .. } => !(self.detached && self.entered),
            Stage::Starting
            | Stage::Prompting { .. }
            | Stage::Typing { .. }
            | Stage::Ending { .. }
            | Stage::BackingOff { .. } => true,
        }
    }

    pub fn wire(&self) -> Wire {
        Wire { status: self.status, max_iterations: self.max_iterations }
    }

    /// Whether this was put into the original's file by somebody else.
    pub fn is_anothers(&self, wire: Wire) -> bool {
        !self.wires_before.is_empty() && !self.wires_before.contains(&wire) && wire != self.wire()
    }
}
