//! Submits the job of an allocation, and cancels it.

use std::time::Duration;

use swarm_config::hosts::{HostConfig, time_limit};
use swarm_model::{Refusal, RefusalKind};

use super::jobs::{Job, State, name};
use super::look::{Unanswered, look, missing, needs, no_engine, said};
use super::{EXPORTED, Slurm, no_machine};
use crate::host::{Host, Way};

/// Time for sbatch. A controller that is busy answers after ten seconds or more, and has the job then.
const SUBMIT_MAX: Duration = Duration::from_secs(60);
const CANCEL_MAX: Duration = Duration::from_secs(60);
/// Time before its limit at which the job gets a signal. It may come a minute earlier.
const WARNING: &str = "--signal=B:USR1@600";

/// Options of `swarm hosts start`, which override the configuration.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Time limit as sbatch takes it.
    pub time: Option<String>,
    pub cpus: Option<u32>,
    pub partition: Option<String>,
    /// Further arguments for sbatch.
    pub arguments: Vec<String>,
    /// Whether an allocation that has ended, and whose node does not answer, is over.
    pub gone: bool,
}

impl Asked {
    fn words(&self) -> Vec<String> {
        let named = [
            self.partition.as_ref().map(|partition| format!("--partition={partition}")),
            self.time.as_ref().map(|time| format!("--time={time}")),
            self.cpus.map(|cpus| format!("--cpus-per-task={cpus}")),
        ];
        named.into_iter().flatten().chain(self.arguments.iter().cloned()).collect()
    }
}

/// How a submission has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// Slurm has the job.
    Job(u64),
    /// It is not known whether Slurm has it, for this reason.
    Unknown(String),
}

/// Returns the arguments for sbatch of the configuration.
pub(super) fn configured(config: &HostConfig) -> Vec<String> {
    let time = config.time.as_ref().and_then(|time| time_limit(time).ok());
    let (cpus, partition) = (config.cpus, config.partition.clone());
    let memory = config.memory.iter().map(|memory| format!("--mem={memory}"));
    let arguments = memory.chain(config.arguments.iter().cloned()).collect();
    Asked { time, cpus, partition, arguments, gone: false }.words()
}

/// Quotes a word for `/bin/sh`, without a single quote. Words with characters that need one are refused before.
fn quoted(word: &str) -> String {
    let mut text = String::from("\"");
    for character in word.chars() {
        if matches!(character, '"' | '\\' | '$' | '`') {
            text.push('\\');
        }
        text.push(character);
    }
    text + "\""
}

/// Returns the script that submits the job, and the one that the job executes.
fn scripts(host: &Host, slurm: &Slurm, asked: &Asked, token: &str) -> (String, String) {
    let state = host.state.as_deref().unwrap_or_default();
    let job_name = format!("--job-name={}", name(&host.name, token));
    let own = ["--parsable", "--no-requeue", "--nodes=1", "--ntasks=1", WARNING, EXPORTED, &job_name];
    let output = ["--output=job-%j.log", "--open-mode=append"];
    let words = own.into_iter().chain(output).map(str::to_owned);
    // The last one of several counts.
    let all: Vec<String> = words.chain(slurm.arguments.iter().cloned()).chain(asked.words()).collect();
    let words: Vec<String> = all.iter().map(|word| quoted(word)).collect();
    let submit =
        format!("{} umask 077; mkdir -p {state} && cd {state} && exec sbatch {}", needs("sbatch"), words.join(" "));
    let gone = if asked.gone { " gone" } else { "" };
    (submit, format!("#!/bin/sh\nexec {} __pilot hold {state} {token} {}{gone}\n", host.program, host.name))
}

/// Submits a job that makes the host, under this token.
///
/// # Errors
/// Fails if Slurm refuses it, with its words.
pub fn submit(host: &Host, asked: &Asked, token: &str) -> Result<Submitted, Refusal> {
    let Way::Slurm(slurm) = &host.way else { return Err(no_engine(host).into()) };
    if slurm.by_worker {
        return Err(no_machine(host).into());
    }
    let (script, batch) = scripts(host, slurm, asked, token);
    let unanswered = match said(host, slurm, &script, Some(batch.as_bytes()), SUBMIT_MAX) {
        Ok(text) => match id_in(&text) {
            Some(id) => return Ok(Submitted::Job(id)),
            None => Unanswered::Unknown("sbatch printed no number of a job".to_owned()),
        },
        Err(Unanswered::Missing) => return Err(missing(host, slurm, "sbatch").into()),
        Err(unanswered) => unanswered,
    };
    // Also a submission that fails may have arrived.
    let looked = look(host);
    if let Ok(looked) = &looked
        && let Some(job) = looked.jobs.iter().find(|job| job.token == token)
    {
        return Ok(Submitted::Job(job.id));
    }
    match unanswered {
        Unanswered::Failed(words) if is_refusal(&words) => {
            let cause = format!("Slurm refuses an allocation for {}: {words}", host.name);
            Err(Refusal::new(RefusalKind::Tool, cause))
        }
        other => Ok(Submitted::Unknown(other.words().to_owned())),
    }
}

/// Reports whether these words of sbatch say that the job was not taken. A controller that does not answer may have taken it.
pub(super) fn is_refusal(words: &str) -> bool {
    let silent =
        ["Unable to contact", "timed out", "Connection refused", "Zero Bytes", "Communication", "Transport", "ssh:"];
    words.contains("sbatch:") && !silent.iter().any(|silent| words.contains(silent))
}

/// Returns the number of the job in what `sbatch --parsable` prints: `12`, or `12;cluster`.
pub(super) fn id_in(text: &str) -> Option<u64> {
    text.lines().rev().find_map(|line| line.trim().split(';').next()?.parse().ok())
}

/// Cancels a job, or tells one that works to end by itself.
///
/// # Errors
/// Fails if Slurm refuses it or does not answer.
pub fn cancel(host: &Host, job: &Job, at_once: bool) -> Result<(), Refusal> {
    let Way::Slurm(slurm) = &host.way else { return Err(no_engine(host).into()) };
    let how = if job.state == State::Running && !at_once { "--batch --signal=TERM " } else { "" };
    let script = format!("{} exec scancel {how}{}", needs("scancel"), job.id);
    match said(host, slurm, &script, None, CANCEL_MAX) {
        Ok(_) => Ok(()),
        Err(Unanswered::Missing) => Err(missing(host, slurm, "scancel").into()),
        Err(unanswered) => {
            let cause = format!("cannot cancel allocation {} of {}: {}", job.id, host.name, unanswered.words());
            Err(Refusal::new(RefusalKind::Tool, cause))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::tests::host;

    #[test]
    fn a_job_is_submitted_with_the_configuration_and_then_what_was_asked() {
        let host = host(HostConfig {
            time: Some("8h".into()),
            cpus: Some(4),
            partition: Some("cpu".into()),
            memory: Some("8G".into()),
            arguments: vec!["--constraint=a|$b".into()],
            ..HostConfig::default()
        });
        let Way::Slurm(slurm) = &host.way else { panic!("it has an engine") };
        let asked = Asked { cpus: Some(2), ..Asked::default() };
        let (script, batch) = scripts(&host, slurm, &asked, "0123456789ab");
        let words = "\"--partition=cpu\" \"--time=480\" \"--cpus-per-task=4\" \"--mem=8G\" \"--constraint=a|\\$b\" \
                     \"--cpus-per-task=2\"";
        assert!(script.ends_with(words), "{script}");
        assert!(script.contains("cd ~/.swarm/alloc/cluster &&") && script.contains("\"--no-requeue\""), "{script}");
        assert!(!script.contains(['\'', '!', '\n']), "login shells read this differently: {script}");
        let first = "#!/bin/sh\nexec ~/.local/bin/swarm __pilot hold ~/.swarm/alloc/cluster 0123456789ab cluster\n";
        assert_eq!(batch, first);
    }

    #[test]
    fn only_words_of_sbatch_that_say_no_are_a_refusal() {
        for (words, expected) in [
            ("sbatch: error: Batch job submission failed: Invalid partition name specified", true),
            ("sbatch: error: QOSMaxSubmitJobPerUserLimit; sbatch: error: Batch job submission failed", true),
            ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", false),
            ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", false),
            ("ssh: connect to host login1 port 22: Connection refused", false),
            ("it failed without a reason", false),
        ] {
            assert_eq!(is_refusal(words), expected, "{words}");
        }
        assert_eq!((id_in("Welcome\n12;cluster\n"), id_in("13\n"), id_in("x")), (Some(12), Some(13), None));
    }
}
