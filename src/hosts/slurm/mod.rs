//! Hosts that are allocations of Slurm. A job holds the state directory of the host for as long as it runs; a connection is
//! a step of this job. Commands of Slurm are executed on the login node, by ssh, or on this machine.
//!
//! ```text
//! Slurm (configuration) -> find (squeue, who holds the directory) -> Job -> words of srun
//!                       -> submit (sbatch), stop (scancel)
//! ```

pub mod jobs;
mod look;
mod over;
pub mod single;
mod submit;

use std::process::Command;

use swarm_config::hosts::{Engine, HostConfig};

use crate::fault::{Fault, FaultKind};
use crate::host::{Host, Way};
use crate::words;
use jobs::{Job, State};

pub use look::{Look, look, version};
pub use over::{Fate, fate_of};
pub use submit::{Asked, Submitted, cancel, submit};
pub use swarm_model::is_scrubbed;

/// Directories of the state directories of such hosts.
const STATES: &str = "~/.swarm/alloc";
/// Variables of the home that a job and its steps get. All others are those of a login shell there.
pub const EXPORTED: &str = "--export=HOME,USER,LOGNAME,SHELL,PATH,LANG";

/// How the allocations of a host are made and reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slurm {
    /// Destination for ssh of the login node. `None`: it is this machine.
    pub login: Option<String>,
    /// Arguments for sbatch of the configuration.
    pub(crate) arguments: Vec<String>,
    /// Allocation whose steps connections are, once it was found.
    pub(crate) job: Option<Box<Job>>,
    /// Whether each worker is a job of its own, so that there is no allocation to reach.
    pub(crate) by_worker: bool,
}

impl Slurm {
    pub(crate) fn of(config: &HostConfig) -> Self {
        let by_worker = config.engine == Some(Engine::Slurm);
        Self { login: config.ssh.clone(), arguments: submit::configured(config), job: None, by_worker }
    }
}

/// Returns the state directory of a host that has none in its configuration.
pub(crate) fn state_of(name: &str) -> String {
    format!("{STATES}/{name}")
}

/// Removes the variables that commands of Slurm would obey.
pub(crate) fn scrub(command: &mut Command) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_scrubbed)) {
        command.env_remove(name);
    }
}

/// Returns the words before those that a step of the job executes.
pub(crate) fn step(job: &Job, terminal: bool) -> Vec<String> {
    let mut words =
        ["srun", "--quiet", "--overlap", "--nodes=1", "--ntasks=1", "--chdir=/"].map(str::to_owned).to_vec();
    words.push(format!("--jobid={}", job.id));
    words.extend(match terminal {
        true => ["--pty".to_owned(), format!("{EXPORTED},TERM")],
        false => ["--unbuffered".to_owned(), EXPORTED.to_owned()],
    });
    words.extend(job.node.iter().map(|node| format!("--nodelist={node}")));
    words
}

/// Returns the words of `swarm` there that pass its other words on, if the job holds the directory.
pub(crate) fn entering<'a>(state: &'a str, job: &'a Job) -> [&'a str; 4] {
    ["__pilot", "enter", state, &job.token]
}

/// Returns the host with the allocation that its connections use. Other hosts are returned as they are.
///
/// # Errors
/// Returns why there is none: it waits, has ended, or Slurm does not answer.
pub(crate) fn reached(host: &Host) -> Result<Host, Fault> {
    match &host.way {
        Way::Slurm(slurm) if slurm.by_worker => Err(no_machine(host)),
        Way::Slurm(slurm) if slurm.job.is_none() => chosen(host, &look(host)?),
        _ => Ok(host.clone()),
    }
}

/// Returns the fault of a host that is no machine, but makes a job for each worker.
pub fn no_machine(host: &Host) -> Fault {
    let name = &host.name;
    let cause = format!("{name} is no machine: each worker there is a job of its own");
    let remedy = format!(
        "start a worker with 'swarm spawn --on {name}'; for verbs and runs, make an allocation a host with engine = \"slurm-pilot\""
    );
    Fault { kind: FaultKind::Refused, cause, remedy: Some(remedy) }
}

/// Returns the host with the allocation of `look` that its connections use.
///
/// # Errors
/// Returns why there is none.
pub fn chosen(host: &Host, look: &Look) -> Result<Host, Fault> {
    let Way::Slurm(slurm) = &host.way else { return Ok(host.clone()) };
    let job = usable(host, look)?.clone();
    Ok(host.by(Way::Slurm(Slurm { job: Some(Box::new(job)), ..slurm.clone() })))
}

/// Returns the allocation, if a connection can be made to it.
fn usable<'a>(host: &Host, look: &'a Look) -> Result<&'a Job, Fault> {
    let name = &host.name;
    let away = |cause: String, remedy: Option<String>| Fault { kind: FaultKind::Away, cause, remedy };
    let start = || Some(format!("run 'swarm hosts start {name}'"));
    let Some(job) = look.present() else {
        return Err(away(format!("{name} has no allocation"), start()));
    };
    let told = job.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
    let id = job.id;
    match job.state {
        State::Running => Ok(job),
        State::Pending => Err(away(format!("allocation {id} of {name} is pending{told}"), None)),
        State::Suspended => Err(away(format!("allocation {id} of {name} is suspended"), None)),
        State::Ending => Err(away(format!("allocation {id} of {name} is ending"), None)),
        State::Over | State::Lost => {
            let why = look.last_of(job).map_or_else(String::new, |why| format!(": {why}"));
            Err(away(format!("allocation {id} of {name} has ended, as {}{told}{why}", job.word), start()))
        }
        State::Unknown => {
            Err(away(format!("allocation {id} of {name} is {}, which is not known here", job.word), None))
        }
    }
}

/// Returns the command that executes a script of `/bin/sh` on the login node.
pub(crate) fn on_login(host: &Host, slurm: &Slurm, script: &str) -> Command {
    let mut command = words::on(host, slurm.login.as_deref(), script);
    scrub(&mut command);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a host with an engine and this configuration.
    pub fn host(config: HostConfig) -> Host {
        let config = HostConfig { engine: Some(Engine::SlurmPilot), ..config };
        crate::find("cluster", &[("cluster".to_owned(), config)].into()).expect("configured")
    }

    #[test]
    fn an_allocation_that_cannot_be_used_is_named_with_the_reason() {
        for (word, reason, last, cause) in [
            ("PENDING", "Resources", "", "allocation 12 of cluster is pending (Resources)"),
            ("SUSPENDED", "None", "", "allocation 12 of cluster is suspended"),
            ("TIMEOUT", "TimeLimit", "", "allocation 12 of cluster has ended, as TIMEOUT (TimeLimit)"),
            (
                "FAILED",
                "NonZeroExitCode",
                "0123456789ab allocation 11 holds it",
                "allocation 12 of cluster has ended, as FAILED (NonZeroExitCode): allocation 11 holds it",
            ),
            ("COMPLETED", "None", "000000000000 of another", "allocation 12 of cluster has ended, as COMPLETED"),
            ("NEW_ONE", "None", "", "allocation 12 of cluster is NEW_ONE, which is not known here"),
        ] {
            let text = format!("12|{word}|{reason}|n1|1|2|swarm.cluster.0123456789ab\n");
            let look = Look { jobs: jobs::jobs(&text, "cluster"), holder: None, last: Some(last.to_owned()) };
            let fault = usable(&host(HostConfig::default()), &look).expect_err(word);
            assert_eq!((fault.kind, fault.cause.as_str()), (FaultKind::Away, cause));
        }
        let fault = usable(&host(HostConfig::default()), &Look::default()).expect_err("none");
        assert_eq!(fault.remedy.as_deref(), Some("run 'swarm hosts start cluster'"));
    }

    #[test]
    fn variables_of_another_job_are_scrubbed_and_the_place_of_the_cluster_is_not() {
        for (name, expected) in [
            ("SLURM_JOB_ID", true),
            ("SBATCH_TIMELIMIT", true),
            ("SLURM_CONF", false),
            ("SLURMX", false),
            ("PATH", false),
        ] {
            assert_eq!(is_scrubbed(name), expected, "{name}");
        }
    }
}
