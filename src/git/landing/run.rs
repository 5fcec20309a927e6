//! Runs a command of the user through our runner process, which kills whatever the command leaves
//! behind.

use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use super::desk::Workspace;
use crate::repository::cli::UNSET;
use crate::repository::fault::Fault;
use swarm_sys::commands::runner::{Ended, Outcome};
use swarm_sys::readable::Readable;
use swarm_sys::{processes, procfs};

/// Environment variable that marks processes started for a directory, so that a later supervisor finds them.
const MARK: &str = "SWARM_SCRATCH";

/// A command to run.
pub(crate) struct Order<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) log: &'a Path,
    pub(crate) limit_ms: u64,
    pub(crate) command: &'a str,
    /// Variables in addition to the caller's environment.
    pub(crate) variables: &'a [(&'a str, String)],
}

/// Runs a command to completion. Dropping the future kills the command.
pub(crate) async fn run(workspace: &Workspace, order: &Order<'_>) -> Result<Ended, Fault> {
    let failed = |error: io::Error| Fault::new(format!("cannot run '{}': {error}", order.command));
    let mut runner = start(workspace, order).map_err(failed)?;
    let Some(output) = runner.stdout.take() else { return Err(Fault::new("the command has no output pipe")) };
    let output = OwnedFd::from(output);
    let waiting = output.try_clone().and_then(Readable::new).map_err(failed)?;
    waiting.wait().await.map_err(failed)?;
    let read = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        let read = std::fs::File::from(output).read_to_string(&mut text);
        let _ = runner.wait();
        read.map(|_| text)
    });
    let text = read.await.map_err(io::Error::other).and_then(|text| text).map_err(failed)?;
    let lost = || Outcome::Unknown(format!("the runner of '{}' was killed", order.command));
    Ok(Ended::read(&text).unwrap_or_else(|| Ended { outcome: lost(), unwritten: None }))
}

/// Returns the part of a message that says where the output is.
pub(crate) fn output(ended: &Ended, log: &Path) -> String {
    let all = format!("its output is in {}", log.display());
    ended.unwritten.as_ref().map_or(all.clone(), |why| format!("{all}, which is incomplete ({why})"))
}

fn start(workspace: &Workspace, order: &Order<'_>) -> io::Result<std::process::Child> {
    Command::new(&workspace.executable)
        .arg("__runner")
        .args([order.dir, order.log])
        .args([&order.limit_ms.to_string(), &format!("{:o}", workspace.caller.umask), order.command])
        .env_clear()
        .envs(workspace.caller.environment.iter().filter(|(key, _)| !UNSET.contains(&key.as_str())).cloned())
        .envs(order.variables.iter().map(|(key, value)| (key, value)))
        .env(MARK, order.dir)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}

/// Kills processes that an earlier run in this directory left behind when even its runner was killed.
pub(crate) fn end_leftovers(dir: &Path) -> Result<(), Fault> {
    let mark = [MARK.as_bytes(), b"=", dir.as_os_str().as_encoded_bytes()].concat();
    let marked = || {
        let is_marked = |pid: &i32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let found = environment.split(|byte| *byte == 0).any(|pair| pair == mark.as_slice());
            found && procfs::stat(*pid).is_some_and(|stat| stat.is_alive())
        };
        procfs::all().unwrap_or_default().into_iter().filter(is_marked).collect()
    };
    let failed = |error| Fault::new(format!("cannot end the processes left in {}: {error}", dir.display()));
    processes::end_set(&marked).map_err(failed)
}
