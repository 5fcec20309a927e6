//! A worker that is a job of a batch system: what was asked for, and what the system says about it.

use serde::{Deserialize, Serialize};

use super::limits::Limits;
use super::records::{Attributes, Contract, Ended, ExitRecord, Reason, Spec, Token};

/// Number of digits of a launch token that are in the name of a job.
const DIGITS: usize = 12;

/// Minutes that a job has in addition to the time limit of its worker, which its shim keeps.
const SPARE_MIN: u64 = 5;
/// Variables of the caller that commands of Slurm would obey: it may work in another job.
const SCRUBBED: [&str; 6] = ["SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SCANCEL_"];
/// Says where the cluster is.
const KEPT: &str = "SLURM_CONF";

/// Reports whether a variable with this name makes commands of Slurm do something else.
pub fn is_scrubbed(name: &str) -> bool {
    name != KEPT && SCRUBBED.iter().any(|start| name.starts_with(start))
}

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

impl JobOrder {
    /// Adds arguments for the submission. The last one of several counts.
    pub fn ask_for(&mut self, arguments: impl IntoIterator<Item = String>) {
        self.arguments.extend(arguments);
    }

    /// Adds the time limit of a worker. Its shim keeps it from the start of the command on, and ends before the job does.
    pub fn limit(&mut self, timeout_ms: Option<u64>) {
        let minutes = timeout_ms.map(|limit| limit.div_ceil(60_000) + SPARE_MIN);
        self.ask_for(minutes.map(|minutes| format!("--time={minutes}")));
    }

    /// Returns the path of `swarm` on the nodes as the first word of a command, which no shell reads.
    pub fn executable(&self, home: Option<&str>) -> String {
        match (self.program.strip_prefix("~/"), home) {
            (Some(rest), Some(home)) => format!("{}/{rest}", home.trim_end_matches('/')),
            _ => self.program.clone(),
        }
    }
}

impl Contract {
    /// Makes the worker a job. Nothing of the caller's process applies on a node, but its environment, without that of a job of
    /// its own.
    pub fn become_job(&mut self, order: JobOrder) {
        self.job = Some(order);
        let environment = self.environment.iter().filter(|(name, _)| !is_scrubbed(name)).cloned().collect::<Vec<_>>();
        self.environment = environment.into();
        (self.rlimits, self.nice, self.attributes) = (Vec::new(), 0, Attributes::default());
        self.limits = Limits::default();
    }
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

    /// Returns the last state with reason and node: `CANCELLED by 1000 (None) on n1`. `None` if nothing was said.
    pub fn said(&self) -> Option<String> {
        let state = self.state.as_deref()?;
        let reason = self.reason.as_ref().map(|reason| format!(" ({reason})"));
        let node = self.node.as_ref().map(|node| format!(" on {node}"));
        Some(format!("{state}{}{}", reason.unwrap_or_default(), node.unwrap_or_default()))
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
    fn a_job_has_the_time_of_its_worker_and_some_more() {
        let mut order = JobOrder { arguments: vec!["--time=480".to_owned()], ..JobOrder::default() };
        order.limit(None);
        assert_eq!(order.arguments, ["--time=480"]);
        order.limit(Some(90_000));
        assert_eq!(order.arguments, ["--time=480", "--time=7"]);
    }

    #[test]
    fn the_program_on_the_nodes_is_below_the_home_of_the_caller() {
        let at = |program: &str| {
            JobOrder { program: program.to_owned(), ..JobOrder::default() }.executable(Some("/home/a/"))
        };
        assert_eq!(at("~/.local/bin/swarm"), "/home/a/.local/bin/swarm");
        assert_eq!(at("/opt/swarm"), "/opt/swarm");
    }

    #[test]
    fn a_contract_that_becomes_a_job_has_nothing_of_the_callers_process_but_its_environment() {
        let pair = |name: &str| (name.to_owned(), "x".to_owned());
        let environment = ["PATH", "SLURM_CONF", "SLURM_JOB_ID", "SBATCH_PARTITION"].map(pair).to_vec();
        let mut contract = Contract { environment: environment.into(), nice: 5, ..Contract::default() };
        contract.become_job(JobOrder { host: "c".to_owned(), ..JobOrder::default() });
        let names: Vec<&str> = contract.environment.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((names, contract.nice), (vec!["PATH", "SLURM_CONF"], 0));
        assert_eq!(contract.job.map(|order| order.host).as_deref(), Some("c"));
    }

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
