//! Jobs of single workers: one submission, one question about all of them, and their end. The commands are executed on this
//! machine, which shares the state directory with the nodes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use swarm_model::JobOrder;
use swarm_sys::commands::deadline::{self, Silence};
use swarm_sys::quoting::quoted;

use super::is_scrubbed;
use super::jobs::{FORMAT, Line, lines};
use super::look::Unanswered;
use super::over::is_reached;
use super::submit::{id_in, is_refusal};
use crate::fault::shown;

/// Time for sbatch. A controller that is busy answers after ten seconds or more, and has the job then.
const SUBMIT_MAX: Duration = Duration::from_secs(60);
/// Time for all other commands. A client waits up to 18 seconds for a controller that is gone.
const ANSWER_MAX: Duration = Duration::from_secs(30);
const BYTES_MAX: usize = 4 << 20;
/// Variables that commands of Slurm get from whoever asked for the worker.
const TAKEN: [&str; 8] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LD_LIBRARY_PATH", "SLURM_CONF"];
/// With a list of names in its place, the node would start a login shell for all other variables, which takes seconds.
const EXPORTED_ALL: &str = "--export=ALL";

/// Variables by which the commands of Slurm find the cluster, as the caller of a worker has them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cluster(BTreeMap<String, String>);

/// How a submission has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Slurm has the job.
    Job(u64),
    /// Slurm does not take it, in its words.
    Refused(String),
    /// Whether Slurm has the job is not known, for this reason.
    Unknown(String),
}

impl Cluster {
    /// Returns the cluster that a process with these variables reaches.
    pub fn of(environment: &[(String, String)]) -> Self {
        let is_taken = |name: &str| TAKEN.contains(&name);
        Self(environment.iter().filter(|(name, _)| is_taken(name)).cloned().collect())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_scrubbed)) {
            command.env_remove(name);
        }
        command.env_remove("SLURM_CONF").envs(&self.0);
        command
    }

    fn said(&self, command: &mut Command, input: Option<&[u8]>, limit: Duration) -> Result<String, Unanswered> {
        let said = deadline::run(command, input, limit, BYTES_MAX).map_err(|silence| match silence {
            Silence::Spawn(error) if error.kind() == std::io::ErrorKind::NotFound => Unanswered::Missing,
            Silence::Spawn(error) | Silence::System(error) => {
                Unanswered::Unknown(format!("cannot execute it: {error}"))
            }
            Silence::Timeout => Unanswered::Unknown(format!("no answer within {} seconds", limit.as_secs())),
            Silence::TooMuch => Unanswered::Unknown("it printed too much".to_owned()),
        })?;
        if said.success {
            return Ok(String::from_utf8_lossy(&said.stdout).into_owned());
        }
        let words = shown(&String::from_utf8_lossy(&said.stderr));
        Err(Unanswered::Failed(if words.is_empty() { "it failed without a reason".to_owned() } else { words }))
    }

    /// Submits a job of this name that starts the command in the directory of a generation.
    pub fn submit(&self, dir: &Path, order: &JobOrder, name: &str) -> Sent {
        self.submit_script(dir, &order.arguments, name, &script(dir, order))
    }

    /// Submits a job of this name that executes the script in a directory.
    pub fn submit_script(&self, dir: &Path, arguments: &[String], name: &str, script: &str) -> Sent {
        let mut command = self.command("sbatch");
        // The job gets these variables and no others.
        command.env_clear().envs(&self.0).args(words(arguments, name)).current_dir(dir);
        let unanswered = match self.said(&mut command, Some(script.as_bytes()), SUBMIT_MAX) {
            Ok(text) => match id_in(&text) {
                Some(id) => return Sent::Job(id),
                None => Unanswered::Unknown("sbatch printed no number of a job".to_owned()),
            },
            Err(Unanswered::Missing) => return Sent::Refused("there is no sbatch on this machine".to_owned()),
            Err(unanswered) => unanswered,
        };
        // Also a submission that fails may have arrived.
        if let Ok(all) = self.ask()
            && let Some(line) = all.iter().find(|line| line.name == name)
        {
            return Sent::Job(line.id);
        }
        match unanswered {
            Unanswered::Failed(words) if is_refusal(&words) => Sent::Refused(words),
            other => Sent::Unknown(other.words().to_owned()),
        }
    }

    /// Asks for all jobs of this user, in all states.
    ///
    /// # Errors
    /// Returns why there is no answer: nothing about any job follows from it.
    pub fn ask(&self) -> Result<Vec<Line>, String> {
        let mut command = self.command("squeue");
        command.args(["--noheader", "--me", "--states=all", &format!("--format={FORMAT}")]);
        command.env("SLURM_TIME_FORMAT", "%s");
        let said = self.said(&mut command, None, ANSWER_MAX);
        said.map(|text| lines(&text)).map_err(|unanswered| format!("squeue: {}", unanswered.words()))
    }

    /// Cancels the job of this name, or tells its shim to end the worker. Numbers of jobs are used again, names are not.
    ///
    /// # Errors
    /// Returns why it is not known whether that was done.
    pub fn cancel(&self, name: &str, at_once: bool) -> Result<(), String> {
        let mut command = self.command("scancel");
        if !at_once {
            command.args(["--batch", "--signal=TERM"]);
        }
        command.arg(format!("--name={name}"));
        let said = self.said(&mut command, None, ANSWER_MAX);
        said.map(drop).map_err(|unanswered| format!("scancel: {}", unanswered.words()))
    }

    /// Reports whether Slurm reaches a node; `None` if that is not known.
    pub fn reaches(&self, node: &str) -> Option<bool> {
        let mut command = self.command("sinfo");
        command.args(["--noheader", "--Node", &format!("--nodes={node}"), "--format=%T"]);
        is_reached(&self.said(&mut command, None, ANSWER_MAX).ok()?)
    }
}

/// Returns the arguments for sbatch. The last one of several counts, and none of a person is one of these.
fn words(arguments: &[String], name: &str) -> Vec<String> {
    let own = ["--parsable", "--no-requeue", "--nodes=1", "--ntasks=1", EXPORTED_ALL, "--output=job.log"];
    let name = [format!("--job-name={name}"), "--open-mode=append".to_owned()];
    own.into_iter().map(str::to_owned).chain(name).chain(arguments.iter().cloned()).collect()
}

fn script(dir: &Path, order: &JobOrder) -> String {
    let program = program_word(&order.program);
    format!("#!/bin/sh\nexec {program} __shim --alone {}\n", quoted(&dir.display().to_string()))
}

/// Returns the path of a program as a word of a script. Only a shell on the node knows the home there.
pub fn program_word(program: &str) -> String {
    match program.strip_prefix("~/") {
        Some(rest) => format!("~/{}", quoted(rest)),
        None => quoted(program),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_known_by_its_name_and_has_nothing_of_its_worker_on_its_command_line() {
        let order = JobOrder {
            host: "cluster".to_owned(),
            program: "~/.local/bin/swarm".to_owned(),
            arguments: vec!["--mem=2G".to_owned()],
            ask_ms: None,
        };
        let words = words(&order.arguments, "fix.0123456789ab");
        assert!(words.contains(&"--job-name=fix.0123456789ab".to_owned()) && words.contains(&EXPORTED_ALL.to_owned()));
        assert!(words.contains(&"--no-requeue".to_owned()), "{words:?}");
        assert_eq!(words.last().map(String::as_str), Some("--mem=2G"));
        let text = script(Path::new("/home/it's/w/fix.1"), &order);
        assert_eq!(text, "#!/bin/sh\nexec ~/'.local/bin/swarm' __shim --alone '/home/it'\\''s/w/fix.1'\n");
    }

    #[test]
    fn commands_of_slurm_get_only_what_they_need() {
        let pair = |name: &str| (name.to_owned(), "x".to_owned());
        let cluster = Cluster::of(&["PATH", "SLURM_CONF", "SLURM_JOB_ID", "SECRET"].map(pair));
        assert_eq!(cluster.0.keys().collect::<Vec<_>>(), ["PATH", "SLURM_CONF"]);
    }
}
