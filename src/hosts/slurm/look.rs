//! One question to Slurm: which allocations a host has, and which of them holds its directory.

use std::time::Duration;

use serde::Deserialize;
use swarm_sys::commands::deadline::{self, Silence};

use super::jobs::{FORMAT, Job, jobs, present};
use super::{Slurm, no_machine, on_login};
use crate::fault::{Fault, FaultKind, shown};
use crate::host::{Host, Way};

/// Time for an answer. A client waits up to 18 seconds for a controller that is gone.
const ANSWER_MAX: Duration = Duration::from_secs(30);
const BYTES_MAX: usize = 4 << 20;
/// Line before each part of the answer, behind whatever the login shell prints.
const MARK: &str = "swarm-slurm";
/// File of the holder in the state directory.
const CLAIM: &str = "claim";
/// File with the token of an allocation that has ended, and why.
const LAST: &str = "last";

/// What Slurm and the directory say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Allocations that Slurm still knows.
    pub jobs: Vec<Job>,
    /// Token of the allocation that holds the directory.
    pub holder: Option<String>,
    /// Token of the last one that ended by itself, and why.
    pub last: Option<String>,
}

#[derive(Deserialize)]
struct Holder {
    token: String,
}

impl Look {
    /// Returns the allocation that is the host.
    pub fn present(&self) -> Option<&Job> {
        present(&self.jobs, self.holder.as_deref())
    }

    /// Returns why the allocation has ended, if it said so.
    pub fn last_of(&self, job: &Job) -> Option<&str> {
        self.last.as_deref()?.strip_prefix(job.token.as_str())?.strip_prefix(' ')
    }

    fn parse(text: &str, host: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split(&format!("{MARK}\n")).collect();
        let [_, listed, claim, last] = parts.as_slice() else { return None };
        let holder = serde_json::from_str(claim.trim()).ok().map(|holder: Holder| holder.token);
        let last = last.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty());
        Some(Self { jobs: jobs(listed, host), holder, last })
    }
}

/// Why a command of Slurm has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// The program is not there.
    Missing,
    /// The command failed, with this message.
    Failed(String),
    /// The command did not end in time, or could not be executed.
    Unknown(String),
}

impl Unanswered {
    /// Returns the words for a person.
    pub(super) fn words(&self) -> &str {
        match self {
            Self::Missing => "the program is not there",
            Self::Failed(words) | Self::Unknown(words) => words,
        }
    }
}

/// Returns the part of a script that fails unless the program is there.
pub(super) fn needs(program: &str) -> String {
    format!("command -v {program} >/dev/null || exec echo {MARK}-missing; cd;")
}

/// Executes a script on the login node, and returns what it printed.
pub(super) fn said(
    host: &Host,
    slurm: &Slurm,
    script: &str,
    input: Option<&[u8]>,
    limit: Duration,
) -> Result<String, Unanswered> {
    let said = deadline::run(&mut on_login(host, slurm, script), input, limit, BYTES_MAX);
    let said = said.map_err(|silence| {
        Unanswered::Unknown(match silence {
            Silence::Spawn(error) | Silence::System(error) => format!("cannot execute it: {error}"),
            Silence::Timeout => format!("no answer within {} seconds", limit.as_secs()),
            Silence::TooMuch => "it printed too much".to_owned(),
        })
    })?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    if text.contains(&format!("{MARK}-missing")) {
        return Err(Unanswered::Missing);
    }
    if said.success {
        return Ok(text);
    }
    let words = shown(&String::from_utf8_lossy(&said.stderr));
    Err(Unanswered::Failed(if words.is_empty() { "it failed without a reason".to_owned() } else { words }))
}

/// Returns the fault of a login node without the program.
pub(super) fn missing(host: &Host, slurm: &Slurm, program: &str) -> Fault {
    let place = slurm.login.as_deref().unwrap_or("this machine");
    let cause = format!("{}: there is no {program} on {place}", host.name);
    let remedy = format!("set [hosts.{}] ssh to a login node of the cluster", host.name);
    Fault { kind: FaultKind::Refused, cause, remedy: Some(remedy) }
}

/// Returns the fault of a host that is no allocation.
pub(super) fn no_engine(host: &Host) -> Fault {
    let cause = format!("{} has no engine that makes allocations", host.name);
    let remedy = Some(format!("set [hosts.{}] engine = \"slurm-pilot\" in your configuration", host.name));
    Fault { kind: FaultKind::Refused, cause, remedy }
}

/// Returns the version of Slurm on the login node.
///
/// # Errors
/// Returns the fault if a command of Slurm is missing there, or if it does not answer.
pub fn version(host: &Host) -> Result<String, Fault> {
    let Way::Slurm(slurm) = &host.way else { return Err(no_engine(host)) };
    for program in ["squeue", "scancel", "srun", "sinfo", "sbatch"] {
        let script = format!("{} echo {MARK}; exec {program} --version", needs(program));
        match said(host, slurm, &script, None, ANSWER_MAX) {
            Ok(text) if program == "sbatch" => {
                let version = text.split(&format!("{MARK}\n")).nth(1).unwrap_or_default();
                return Ok(shown(version));
            }
            Ok(_) => {}
            Err(Unanswered::Missing) => return Err(missing(host, slurm, program)),
            Err(unanswered) => {
                let cause = format!("{}: {program}: {}", host.name, unanswered.words());
                return Err(Fault { kind: FaultKind::Away, cause, remedy: None });
            }
        }
    }
    unreachable!("sbatch is the last one")
}

/// Asks Slurm for the allocations of a host.
///
/// # Errors
/// Returns why it is not known: nothing about the allocations follows from it.
pub fn look(host: &Host) -> Result<Look, Fault> {
    let Way::Slurm(slurm) = &host.way else { return Err(no_engine(host)) };
    if slurm.by_worker {
        return Err(no_machine(host));
    }
    let state = host.state.as_deref().unwrap_or_default();
    let script = format!(
        "{} echo {MARK}; SLURM_TIME_FORMAT=%s squeue --noheader --me --states=all --format=\"{FORMAT}\" || exit 9; \
         echo {MARK}; cat {state}/{CLAIM} 2>/dev/null; echo; echo {MARK}; cat {state}/{LAST} 2>/dev/null; exit 0",
        needs("squeue")
    );
    let away = |cause: &str| {
        let cause = format!("cannot ask Slurm for the allocations of {}: {cause}", host.name);
        Fault { kind: FaultKind::Away, cause, remedy: None }
    };
    match said(host, slurm, &script, None, ANSWER_MAX) {
        Ok(text) => Look::parse(&text, &host.name).ok_or_else(|| away("it printed something else")),
        Err(Unanswered::Missing) => Err(missing(host, slurm, "squeue")),
        Err(unanswered) => Err(away(unanswered.words())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_holder_and_last_words_are_read_behind_what_a_login_shell_prints() {
        let job = "12|RUNNING|None|n1|1|2|swarm.cluster.0123456789ab\n";
        let claim = "{\"token\":\"0123456789ab\",\"job\":12}";
        let text = format!("Welcome\n{MARK}\n{job}{MARK}\n{claim}\n{MARK}\n0123456789aa drained\n");
        let look = Look::parse(&text, "cluster").expect("complete");
        assert_eq!((look.jobs.len(), look.holder.as_deref()), (1, Some("0123456789ab")));
        assert_eq!(look.last_of(&look.jobs[0]), None, "of another allocation");
        let empty = Look::parse(&format!("{MARK}\n{MARK}\n\n{MARK}\n"), "cluster").expect("complete");
        assert_eq!(empty, Look::default());
        assert_eq!(Look::parse(&format!("{MARK}\n{job}"), "cluster"), None, "half an answer is none");
    }
}
