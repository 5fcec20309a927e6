//! Runs a command of the user through our runner process, which kills whatever the command leaves
//! behind.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::Duration;

use crate::landing::workspace::Workspace;
use crate::repository::cli::UNSET;
use crate::repository::fault::Fault;
use swarm_model::merge::OUTPUT_AT;
use swarm_sys::commands::runner::{self, Ended, Outcome, Runner};
use swarm_sys::readable::Readable;
use swarm_sys::strip_ansi::Plain;
use swarm_sys::{processes, procfs};

/// Environment variable that marks processes started for a directory, so that a later supervisor finds them.
const MARK: &str = "SWARM_SCRATCH";

/// Number of bytes at the end of a log in which its last line is looked for.
const LAST_BYTES: u64 = 4 << 10;
/// Maximum number of characters of that line.
const LAST_CHARS: usize = 120;

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
    let runner = start(workspace, order).map_err(failed)?;
    let waiting = runner.report().and_then(Readable::new).map_err(failed)?;
    waiting.wait().await.map_err(failed)?;
    let read = tokio::task::spawn_blocking(move || runner.wait());
    let ended = read.await.map_err(io::Error::other).and_then(|ended| ended).map_err(failed)?;
    let lost = || Outcome::Unknown(format!("the runner of '{}' was killed", order.command));
    Ok(ended.unwrap_or_else(|| Ended { outcome: lost(), unwritten: None }))
}

/// Returns the part of a message that says where the output is.
pub(crate) fn output(ended: &Ended, log: &Path) -> String {
    let all = format!("{}{}", OUTPUT_AT.trim_start_matches("; "), log.display());
    ended.unwritten.as_ref().map_or(all.clone(), |why| format!("{all}, which is incomplete ({why})"))
}

/// Returns the last line of a command's output that is not blank, without control sequences, after a colon. Empty if
/// there is none.
pub(crate) fn last_line(log: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LAST_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let mut plain = Vec::new();
    Plain::new().feed(&read().unwrap_or_default(), &mut plain);
    let text = String::from_utf8_lossy(&plain);
    let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let mut short: String = last.chars().take(LAST_CHARS).collect();
    if short.len() < last.len() {
        short.push('…');
    }
    if short.is_empty() { short } else { format!(": {short}") }
}

fn start(workspace: &Workspace, order: &Order<'_>) -> io::Result<Runner> {
    let caller = &workspace.caller;
    let runner = runner::Order {
        dir: order.dir,
        log: order.log,
        limit: Duration::from_millis(order.limit_ms),
        umask: caller.umask,
        command: order.command,
        input: None,
    };
    runner.start(&workspace.executable, |command| {
        let environment = caller.environment.iter().filter(|(key, _)| !UNSET.contains(&key.as_str())).cloned();
        let variables = order.variables.iter().map(|(key, value)| (key, value));
        command.env_clear().envs(environment).envs(variables).env(MARK, order.dir);
    })
}

/// Reports whether a process belongs to a worker that the run has started, which outlives it. Earlier versions passed the
/// mark on to it. If this process runs below a shim itself, as in a swarm within another, that one proves nothing.
fn is_of_a_worker(pid: i32) -> io::Result<bool> {
    let mut above = pid;
    while let Some(stat) = procfs::living(above)?.filter(|stat| stat.parent > 1) {
        above = stat.parent;
        if procfs::is_shim(above)? {
            let own = i32::try_from(std::process::id()).unwrap_or_default();
            return Ok(!procfs::descendants(above)?.contains(&own));
        }
    }
    Ok(false)
}

/// Kills processes that an earlier run in this directory left behind when even its runner was killed.
pub(crate) fn end_leftovers(dir: &Path) -> Result<(), Fault> {
    let mark = [MARK.as_bytes(), b"=", dir.as_os_str().as_encoded_bytes()].concat();
    let is_marked = |pid: i32| -> io::Result<bool> {
        Ok(procfs::has_variable(pid, &mark)? && procfs::living(pid)?.is_some() && !is_of_a_worker(pid)?)
    };
    let marked = || {
        let mut marked = Vec::new();
        for pid in procfs::all()? {
            if is_marked(pid)? {
                marked.push(pid);
            }
        }
        Ok(marked)
    };
    let failed = |error| Fault::new(format!("cannot end the processes left in {}: {error}", dir.display()));
    processes::end_set(&marked).map_err(failed)
}
