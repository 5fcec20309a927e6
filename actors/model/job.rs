//! A worker that is a job of a batch system: what was asked for, and what the system says about it.

use serde::{Deserialize, Serialize};

use super::records::{Ended, ExitRecord, Reason, Spec, Token};

/// Number of digits of a launch token that are in the name of a job.
const DIGITS: usize = 12;

/// Part of the launch contract of a worker that is a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOrder {
    /// Name in the configuration, as in `--on`.
    pub host: String,
    /// Path of `swarm` on the nodes.
    pub program: String,
    /// Arguments for the submission: partition, time limit, CPUs, memory.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Time between two questions to the batch system, in milliseconds. `None`: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask_ms: Option<u64>,
}

/// Place in `metadata.swarm` of a row, by which readers know that the worker has no process on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub engine: String,
    /// Name in the configuration.
    pub host: String,
    /// Name of the job, with digits of the launch token.
    pub name: String,
}

/// Batch system of places.
pub const SLURM: &str = "slurm";

/// Whether anything of a job that has ended may still work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// All of its processes have ended.
    Proven,
    /// The batch system does not reach its node, or has forgotten the job.
    Unproven,
}

/// `job.json`: what is known about the job of one generation. Written by the supervisor only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub token: Token,
    /// Start time in the row.
    pub started: String,
    pub host: String,
    pub name: String,
    /// Number in the batch system. `None` if it has not told one.
    #[serde(default)]
    pub number: Option<u64>,
    /// Last state, in the word of the batch system.
    #[serde(default)]
    pub state: Option<String>,
    /// Why the job waits or has ended.
    #[serde(default)]
    pub reason: Option<String>,
    #[serde(default)]
    pub node: Option<String>,
    /// Number of submissions.
    #[serde(default)]
    pub submissions: u32,
    /// Set once the job has ended without an exit record.
    #[serde(default)]
    pub over: Option<Over>,
    /// Time of the last answer of the batch system, in Unix milliseconds. Not in the file: one answer is about all jobs.
    #[serde(skip)]
    pub asked_ms: Option<u64>,
}

impl Job {
    /// Returns the job of a start, before it is submitted. `None` if the worker is no job.
    pub fn of(spec: &Spec) -> Option<Self> {
        let order = spec.contract.job.as_ref()?;
        Some(Self {
            token: spec.token.clone(),
            started: spec.started.clone(),
            host: order.host.clone(),
            name: spec.job_name(),
            ..Self::default()
        })
    }

    /// Returns the first word of the state: later releases append others with `+`, and a user behind a space.
    fn word(&self) -> &str {
        self.state.as_deref().and_then(|state| state.split(['+', ' ']).next()).unwrap_or_default()
    }

    pub fn is_suspended(&self) -> bool {
        matches!(self.word(), "SUSPENDED" | "STOPPED")
    }

    pub fn is_cancelled(&self) -> bool {
        self.word() == "CANCELLED"
    }

    /// Reports whether a record says only that a signal ended the worker, so that the batch system may say why.
    pub fn may_refine(exit: &ExitRecord) -> bool {
        exit.interrupted || matches!((exit.reason, exit.ended), (Reason::Exited, Ended::Signal(_)))
    }

    /// Replaces the reason of an end by a signal with that of the batch system. Neither code nor signal changes.
    pub fn refine(&self, exit: &mut ExitRecord) {
        let reason = match self.word() {
            "TIMEOUT" | "DEADLINE" => Reason::Timeout,
            "OUT_OF_MEMORY" => Reason::OutOfMemory,
            _ => return,
        };
        if Self::may_refine(exit) {
            (exit.reason, exit.interrupted) = (reason, false);
        }
    }
}

impl Spec {
    /// Returns the name of the job of this start.
    pub fn job_name(&self) -> String {
        format!("{}.{}", self.name, self.token.get(..DIGITS).unwrap_or(&self.token))
    }

    /// Returns the place of this start in its row. `None` if the worker is no job.
    pub fn place(&self) -> Option<Place> {
        let order = self.contract.job.as_ref()?;
        Some(Place { engine: SLURM.to_owned(), host: order.host.clone(), name: self.job_name() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Usage;

    #[test]
    fn the_batch_system_says_why_a_signal_came_and_nothing_else() {
        let exit = |ended, reason, interrupted| ExitRecord {
            token: "t".to_owned(),
            started: String::new(),
            pid: 7,
            ended,
            reason,
            ended_at_ms: 0,
            duration_ms: 0,
            usage: Usage::default(),
            survivors: Vec::new(),
            hits: crate::Hits::default(),
            interrupted,
            server_lost: None,
        };
        let stopped = exit(Ended::Signal(15), Reason::Stopped, true);
        let killed = exit(Ended::Signal(9), Reason::Exited, false);
        for (word, record, reason) in [
            ("TIMEOUT", &stopped, Reason::Timeout),
            ("OUT_OF_MEMORY", &killed, Reason::OutOfMemory),
            ("CANCELLED by 0", &stopped, Reason::Stopped),
            ("FAILED", &killed, Reason::Exited),
            ("TIMEOUT", &exit(Ended::Code(0), Reason::Exited, false), Reason::Exited),
            ("TIMEOUT", &exit(Ended::Signal(15), Reason::Stopped, false), Reason::Stopped),
        ] {
            let mut refined = record.clone();
            Job { state: Some(word.to_owned()), ..Job::default() }.refine(&mut refined);
            assert_eq!((refined.reason, refined.ended), (reason, record.ended), "{word}");
        }
    }
}
