//! Runs the user's commands around the life of a worktree. Each has a time limit and writes its
//! output to a file; processes that it leaves behind are killed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use swarm_ports::WorktreeError;

use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use swarm_sys::commands::runner::{Order, Outcome, Runner};
use swarm_sys::files::make_dir;

/// Maximum length of the last output line in an error message, in characters.
const SAID_BYTES_MAX: usize = 200;
/// Exit codes of a shell that cannot execute a command, or does not find it.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Environment for running the user's commands.
#[derive(Clone, Debug)]
pub struct Home {
    /// Path of the swarm program, which runs the commands through `__runner`.
    pub executable: PathBuf,
    /// State directory on whose behalf the worktrees are created.
    pub state_dir: PathBuf,
    pub logs: PathBuf,
    /// Asked right before a worktree is removed.
    pub strangers: Strangers,
}

/// Fails if a worker of another state directory, or an agent of another program, uses a worktree. Takes the worktree, git's
/// entry of it, and this state directory.
pub type Strangers = fn(tree: &Path, entry: &Path, state_dir: &Path) -> Result<(), WorktreeError>;

pub(crate) struct Hook<'a> {
    /// Name of the setting, without the section.
    pub(crate) key: &'static str,
    pub(crate) command: &'a str,
    pub(crate) limit: Duration,
    pub(crate) tree: &'a Path,
    pub(crate) base_repo: &'a Path,
}

/// Runs a command to completion.
///
/// # Errors
/// Fails unless the command succeeds. Says how it ended, its last output line, and where the log is.
pub(crate) fn run(home: Option<&Home>, cli: &Cli, hook: &Hook<'_>) -> Result<(), Fault> {
    let Some(home) = home else { return Err(Fault::new(format!("cannot run worktree.{} here", hook.key))) };
    let leaf = hook.tree.file_name().unwrap_or_default().to_string_lossy();
    let log = home.logs.join(format!("{leaf}.{}.log", hook.key));
    let ready = match make_dir(&home.logs) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    };
    ready.and_then(|()| truncate_log(&log)).map_err(Fault::at(&log))?;
    let failed = |error: io::Error| Fault::new(format!("cannot run worktree.{}: {error}", hook.key));
    let ended = start(home, cli, hook, &log).and_then(Runner::wait).map_err(failed)?;
    let outcome = ended.map_or_else(|| Outcome::Unknown("its runner was killed".to_owned()), |ended| ended.outcome);
    let how = match &outcome {
        Outcome::Code(0) => return Ok(()),
        Outcome::Code(code) => format!("exited with code {code}"),
        Outcome::Signal(signal) => format!("was killed by signal {signal}"),
        Outcome::Timeout => format!("timed out after {} s", hook.limit.as_secs()),
        Outcome::Unknown(why) => format!("ended with an unknown result: {why}"),
    };
    let said = last_line(&log).map_or_else(String::new, |line| format!(": {line}"));
    let remedy = format!("see its output in {}", log.display());
    // Such as a registry of packages that does not answer.
    let passes = !matches!(outcome, Outcome::Code(NOT_EXECUTABLE | NOT_FOUND));
    Err(Fault { passes, ..Fault::new(format!("worktree.{} {how}{said}", hook.key)) }.remedy(remedy))
}

/// Creates or truncates the log.
fn truncate_log(log: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(log).map(drop)
}

fn start(home: &Home, cli: &Cli, hook: &Hook<'_>, log: &Path) -> io::Result<Runner> {
    let order = Order {
        dir: hook.tree,
        log,
        limit: hook.limit,
        umask: cli.umask_of_files(),
        command: hook.command,
        input: None,
    };
    order.start(&home.executable, |command| {
        command.env_clear().envs(cli.environment().iter().map(|(key, value)| (key, value)));
        command.env("SWARM_WORKTREE", hook.tree).env("SWARM_BASE_REPO", hook.base_repo);
    })
}

fn last_line(log: &Path) -> Option<String> {
    let mut text = Vec::new();
    File::open(log).and_then(|mut file| file.read_to_end(&mut text)).ok()?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(SAID_BYTES_MAX).collect())
}

/// Removes the logs of a worktree's hooks.
pub(crate) fn remove_logs(home: Option<&Home>, tree: &Path) {
    let Some(home) = home else { return };
    let leaf = tree.file_name().unwrap_or_default().to_string_lossy();
    for key in ["post_create", "pre_remove"] {
        let _ = fs::remove_file(home.logs.join(format!("{leaf}.{key}.log")));
    }
}
