//! Progress of a loop: plain values, stored in `loop.json`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::words::Word;
use crate::{Caller, Contract, ProcessId, WorktreeRequest};

/// Number of consecutive failures that ends a loop.
pub const FAILURES_MAX: u32 = 5;
/// Maximum restarts of a lost iteration. The next loss counts as a failure.
pub const LOST_MAX: u32 = 3;
/// Longest pause after a failure, in seconds.
pub const BACKOFF_S_MAX: u64 = 300;
/// Percentage points above `max_context` at which an agent is ended.
pub const CONTEXT_GRACE: u32 = 15;

/// Plan of a loop, fixed when it starts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Request that started the loop.
    pub id: String,
    pub name: String,
    /// Absolute path. Read again before each iteration.
    pub prompt_file: String,
    pub max_iterations: u32,
    pub inactivity_timeout_s: u64,
    #[serde(default)]
    pub done_pattern: Option<String>,
    /// Search for the done pattern all the time, not only at the end of an iteration.
    #[serde(default)]
    pub check_done_continuous: bool,
    /// Context limit in percent.
    #[serde(default)]
    pub max_context: Option<u32>,
    /// Leave the loop unsupervised once the first prompt is typed, until it is asked for (`--no-run`).
    #[serde(default)]
    pub no_run: bool,
    pub contract: Contract,
    #[serde(default)]
    pub worktree: Option<WorktreeRequest>,
    /// Without environment, which is in the contract.
    pub caller: Caller,
}

/// Status in the words of `state.json`.
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

/// Reason for the end of a loop or of its last iteration.
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

/// Stage of the present iteration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "stage")]
pub enum Stage {
    /// The worker is being started.
    #[default]
    Starting,
    /// The worker runs. The prompt is typed once the agent is ready.
    Prompting {
        generation: u64,
    },
    /// The prompt is being typed, or was when the supervisor died.
    Typing {
        generation: u64,
    },
    Watching {
        generation: u64,
    },
    /// The worker is being ended; `then` follows.
    Ending {
        then: Then,
    },
    /// The next start is due at this time, in Unix milliseconds.
    BackingOff {
        until_ms: u64,
        again: bool,
    },
    /// Paused after the iteration. `again`: the same iteration is to be repeated.
    Between {
        again: bool,
    },
    Over,
}

impl Stage {
    /// Reports whether this iteration has, or may have, a worker.
    pub fn is_at_work(&self) -> bool {
        match self {
            Self::Starting | Self::Prompting { .. } | Self::Typing { .. } | Self::Watching { .. } => true,
            Self::Ending { .. } | Self::BackingOff { .. } | Self::Between { .. } | Self::Over => false,
        }
    }

    /// Returns the generation of this iteration's worker, once it runs.
    pub fn generation(&self) -> Option<u64> {
        match self {
            Self::Prompting { generation } | Self::Typing { generation } | Self::Watching { generation } => {
                Some(*generation)
            }
            Self::Starting | Self::Ending { .. } | Self::BackingOff { .. } | Self::Between { .. } | Self::Over => None,
        }
    }
}

/// Next step after the end of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Then {
    /// The next iteration.
    Next,
    /// The next iteration, and this one counts as a failure.
    Failed,
    /// Nothing: the loop is over.
    Over,
}

/// Part of `state.json` that another program may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wire {
    pub status: Status,
    pub max_iterations: u32,
}

/// Files of an earlier loop of the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Earlier {
    pub record: Option<String>,
    pub state: Option<String>,
    pub log_length: u64,
}

/// Worker that an adopted loop had when it was adopted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Theirs {
    /// Start time that identifies its row.
    pub started: String,
    /// Process in its window, if the other program started it and it was still running.
    #[serde(default)]
    pub process: Option<ProcessId>,
}

/// State of a loop: its plan and its progress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loop {
    pub plan: Arc<Plan>,
    /// Iteration limit: the plan's, until another program writes a different one to `state.json`.
    pub max_iterations: u32,
    pub status: Status,
    #[serde(default)]
    pub exit_reason: Option<ExitReason>,
    /// Number of the present iteration, from 1.
    pub iteration: u32,
    #[serde(flatten)]
    pub stage: Stage,
    /// Whether the loop is left unsupervised.
    #[serde(default)]
    pub detached: bool,
    /// Whether a worker of the loop has ever run.
    #[serde(default)]
    pub has_run: bool,
    #[serde(default)]
    pub started_ms: u64,
    #[serde(default)]
    pub iteration_started_ms: u64,
    #[serde(default)]
    pub iteration_ended_ms: Option<u64>,
    /// Duration of each iteration in seconds.
    #[serde(default)]
    pub durations: Vec<u64>,
    #[serde(default)]
    pub consecutive_failures: u32,
    #[serde(default)]
    pub total_failures: u32,
    /// Number of times that the present iteration was lost with its machine or its tmux server.
    #[serde(default)]
    pub lost: u32,
    /// Content of the window with the prompt typed but not entered.
    #[serde(default)]
    pub baseline: String,
    /// Whether Enter was pressed after it.
    #[serde(default)]
    pub entered: bool,
    /// Length of the worker's log at that time, in bytes.
    #[serde(default)]
    pub log_from: u64,
    #[serde(default)]
    pub screen_changed_ms: Option<u64>,
    #[serde(default)]
    pub nudged: bool,
    /// Indexes of the stuck screens that were already warned of.
    #[serde(default)]
    pub warned: Vec<usize>,
    /// Why the agent of this iteration cannot work before a person acts: it asks for trust or a login. The loop is
    /// then paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// Why the worker of this iteration cannot be started yet, if the cause is outside of the loop. It was told of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_back: Option<String>,
    /// Whether the pre-flight check was made.
    #[serde(default)]
    pub preflown: bool,
    /// Number of times that the present iteration's agent ended before it could work.
    #[serde(default)]
    pub turned_away: u32,
    /// Whether the window showed at last that the agent is done.
    #[serde(default)]
    pub shown_done: bool,
    /// Whether the agent reported that it is done, possibly while paused.
    #[serde(default)]
    pub done_seen: bool,
    /// Number of log lines so far.
    #[serde(default)]
    pub told: u64,
    /// Log lines of the last write, each with its Unix time in milliseconds.
    #[serde(default)]
    pub lines: Vec<(u64, Word)>,
    #[serde(default)]
    pub lines_at: u64,
    /// Contents that `state.json` may have had before the last write.
    #[serde(default)]
    pub wires_before: Vec<Wire>,
    /// Files of an earlier loop, kept until a worker of this loop has run.
    #[serde(default)]
    pub earlier: Option<Earlier>,
    /// Worker of an adopted loop, until a worker of this program has run.
    #[serde(default)]
    pub theirs: Option<Theirs>,
    /// Reason why the first worker could not be started.
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

    /// Reports whether the original program lost sight of the loop and nothing has supervised it since.
    pub fn is_disconnected(&self) -> bool {
        self.status == Status::Stopped && self.exit_reason == Some(ExitReason::MonitorDisconnected)
    }

    /// Reports whether the loop can be resumed.
    pub fn may_go_on(&self) -> bool {
        matches!(self.status, Status::Running | Status::Paused) || self.is_disconnected()
    }

    /// Returns the process of the present iteration if another program started it.
    pub fn follows(&self) -> Option<&ProcessId> {
        let is_at_work = matches!(self.stage, Stage::Watching { .. });
        self.theirs.as_ref().filter(|_| is_at_work).and_then(|theirs| theirs.process.as_ref())
    }

    /// Reports whether the loop may start another worker, at once or after a resume.
    pub fn goes_on(&self) -> bool {
        !matches!(self.stage, Stage::Over | Stage::Ending { then: Then::Over })
    }

    /// Reports whether the loop needs supervision.
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

    /// Reports whether another program wrote these values to `state.json`.
    pub fn is_anothers(&self, wire: Wire) -> bool {
        !self.wires_before.is_empty() && !self.wires_before.contains(&wire) && wire != self.wire()
    }
}
