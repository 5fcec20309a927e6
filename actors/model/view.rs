//! Worker as people see it: its row, and the present state of its records.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::activity::{Activity, Doing, Needs, TurnEnd};
use super::job::Job;
use super::limits::Held;
use super::records::{ExitRecord, Reason, RestartPolicy, TmuxPane};
use super::row::Row;

/// State of a worker, in more detail than the `running` and `stopped` of `state.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FineState {
    /// The row is written, the command is not executed yet.
    Starting,
    /// The batch system has accepted the job of the worker and not started it yet.
    Queued,
    Running,
    /// Alive, but suspended by a signal.
    Suspended,
    /// Alive, but its shim is gone, so that its exit code will be unknown.
    Unsupervised,
    /// The exit is recorded, and the remaining processes are being ended; or they could not be ended.
    Stopping,
    /// Ended by itself or by a signal.
    Exited,
    /// Killed by the kernel for lack of memory.
    #[serde(rename = "out-of-memory")]
    OutOfMemory,
    /// Ended on request.
    Stopped,
    /// Ended; a restart is due.
    Backoff,
    /// Given up: the limit of restarts is reached.
    Failed,
    /// Ended without an exit record.
    Lost,
    /// The machine went down while the worker ran.
    Interrupted,
    /// Started on another machine that shares the state directory, with no recorded end. Whether it runs is only known
    /// there.
    Elsewhere,
}

impl FineState {
    /// Reports whether the status in `state.json` is `running`. A worker of another machine counts as running.
    pub fn is_running(self) -> bool {
        match self {
            Self::Starting
            | Self::Queued
            | Self::Running
            | Self::Suspended
            | Self::Unsupervised
            | Self::Stopping
            | Self::Elsewhere => true,
            Self::Exited
            | Self::OutOfMemory
            | Self::Stopped
            | Self::Backoff
            | Self::Failed
            | Self::Lost
            | Self::Interrupted => false,
        }
    }
}

/// Everything that a reading verb shows of one worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerView {
    pub row: Arc<Row>,
    pub state: FineState,
    /// Pid of the worker's own process, with or without tmux. `None` if it is not alive.
    pub pid: Option<i32>,
    /// Process to wait for: the shim, or the worker if it has no shim, or one that the shim could not end. `None` if none
    /// is alive.
    pub watch: Option<super::records::ProcessId>,
    pub pane: Option<TmuxPane>,
    pub exit: Option<ExitRecord>,
    pub restart: RestartPolicy,
    /// Restarts since the worker last ran for ten minutes.
    pub restarts: u32,
    /// Time of the next start in Unix milliseconds. `None` if none is due.
    pub next_start_ms: Option<u64>,
    /// What its agent does. `None` if that is unknown, or if the worker does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<Activity>,
    /// What its agent asks for in a request that is open. The agent may have no process meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<Needs>,
    /// Evidence that the worker is stuck. `None` while it makes progress, waits for a person or its next task, or while
    /// steps against that are under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
    /// Resource limits, and what enforces each. `None` if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Held>,
    /// Name of the other machine on which the worker is. `None` for every state but `Elsewhere`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<String>,
    /// Job that the worker is. `None` if it is a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Job>,
    /// Pids of living processes that the worker's shim could not end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub survivors: Vec<i32>,
    /// Why the run of this worker has given up its workstream, although the worker ended with success: for example because
    /// its work was rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<String>,
    /// When its run starts the next attempt at the work by itself, although this one failed, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_ms: Option<u64>,
    /// Name of the directory below `w/`. `None` for a worker that the original `swarm` started.
    pub dir: Option<String>,
}

impl WorkerView {
    /// Reports whether the worker runs, and not only processes of it that its shim could not end after its command had
    /// ended. Nothing is started or removed beside these, but nobody waits for what they do.
    pub fn is_at_work(&self) -> bool {
        self.state.is_running() && self.left().is_empty()
    }

    /// Returns the processes that live on after the end of the worker's command.
    pub fn left(&self) -> &[i32] {
        if self.exit.is_some() { &self.survivors } else { &[] }
    }

    /// Returns what the worker's agent does, if it was told so.
    pub fn doing(&self) -> Option<Doing> {
        self.activity.as_ref().map(|activity| activity.doing)
    }

    /// Returns how the last turn of an agent that is idle ended, unless it ended by itself.
    pub fn broken_turn(&self) -> Option<TurnEnd> {
        self.activity.as_ref().filter(|_| self.state.is_running()).and_then(|activity| activity.turn)
    }

    /// Returns what the worker needs from a person. `None` if nothing.
    pub fn needs(&self) -> Option<Needs> {
        self.ask.clone().or_else(|| self.activity.as_ref()?.needs(&self.row.name, self.row.tmux.is_some()))
    }

    /// Reports whether the worker's agent asks a person and has ended. It is started again after the answer.
    pub fn is_parked(&self) -> bool {
        self.state == FineState::Exited && self.ask.is_some()
    }

    /// Returns the state for listings: between two attempts of a run that of a worker between two starts.
    pub fn shown_state(&self) -> FineState {
        if self.state == FineState::Exited && self.retry_ms.is_some() { FineState::Backoff } else { self.state }
    }

    /// Reports whether the worker has ended without success and stays so: with a code other than zero, by a signal, at a
    /// limit, with its window, or without a record of how; or whether its run has given up what it did. What a person
    /// stopped has not failed, and neither has a worker whose restart is due, or whose agent ended because it asks a person.
    pub fn has_failed(&self) -> bool {
        match self.state {
            FineState::Exited if self.is_parked() => false,
            FineState::Exited if self.retry_ms.is_some() => false,
            FineState::Exited if self.given_up.is_some() => true,
            FineState::Exited => self.exit.as_ref().is_none_or(|exit| {
                !exit.ended.is_success()
                    || matches!(exit.reason, Reason::Timeout | Reason::Output | Reason::OutOfMemory | Reason::Closed)
            }),
            FineState::OutOfMemory | FineState::Failed | FineState::Lost | FineState::Interrupted => true,
            FineState::Starting
            | FineState::Queued
            | FineState::Running
            | FineState::Suspended
            | FineState::Unsupervised
            | FineState::Stopping
            | FineState::Stopped
            | FineState::Backoff
            | FineState::Elsewhere => false,
        }
    }
}
