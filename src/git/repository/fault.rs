//! Error of an internal step, before it is mapped to one of the port's errors.

use std::io;
use std::path::{Path, PathBuf};

use swarm_ports::WorktreeError;

use super::lock::LockError;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub(crate) struct Fault {
    pub(crate) cause: String,
    pub(crate) remedy: Option<String>,
    /// A tool or the system failed; this says nothing about the worktree.
    pub(crate) is_tool_failure: bool,
    /// Transient: a retry may succeed, because git was killed or the system was out of resources.
    pub(crate) transient: bool,
    /// A git that we ran was killed by a signal and may have left its locks.
    pub(crate) killed: bool,
    /// The worker itself can fix it in its worktree.
    pub(crate) is_mendable: bool,
    /// A later try may succeed although nobody changes anything: a lock is held, a quota is full, or a command of the user
    /// failed, for example because the network was down.
    pub(crate) passes: bool,
}

impl Fault {
    pub(crate) fn new(cause: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
            remedy: None,
            is_tool_failure: false,
            transient: false,
            killed: false,
            is_mendable: false,
            passes: false,
        }
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Returns a constructor for failed system calls on `path`.
    pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> Self {
        move |error| Self {
            is_tool_failure: true,
            transient: true,
            ..Self::new(format!("{}: {error}", path.display()))
        }
    }

    /// Converts into the error of a worktree that cannot be created.
    pub(crate) fn create(self) -> WorktreeError {
        WorktreeError::Create { cause: self.cause, remedy: self.remedy, passes: self.passes }
    }

    /// Converts into the error of a worktree that cannot be checked, saved or removed.
    pub(crate) fn unknown(self) -> WorktreeError {
        let cause = match self.remedy {
            Some(remedy) => format!("{} ({remedy})", self.cause),
            None => self.cause,
        };
        if self.is_tool_failure { WorktreeError::Tool(cause) } else { WorktreeError::Unknown(cause) }
    }
}

impl From<CliError> for Fault {
    fn from(error: CliError) -> Self {
        if let CliError::Record(fault) = error {
            return fault;
        }
        // Who owns the worktree can permit it; anything else is a failure of the system.
        let is_mendable = match &error {
            CliError::Unseen(what) => what.ends_with("Permission denied"),
            CliError::Pipe(_) => true,
            _ => false,
        };
        let is_tool_failure = !matches!(error, CliError::Exit { .. }) && !is_mendable;
        let transient = matches!(error, CliError::Signal(_) | CliError::Run(_) | CliError::Unseen(_) | CliError::Held)
            && !is_mendable;
        let killed = matches!(error, CliError::Signal(_));
        let passes = match &error {
            CliError::Exit { message, .. } => is_of_lock(message),
            CliError::Signal(_) | CliError::Timeout(_) | CliError::Silent(_) | CliError::Held => true,
            _ => false,
        };
        let cause = error.to_string();
        Self { remedy: error.remedy(), is_tool_failure, transient, killed, is_mendable, passes, ..Self::new(cause) }
    }
}

/// Reports whether git says that somebody holds a lock. A git that worked on something else at that moment lets it go soon.
fn is_of_lock(message: &str) -> bool {
    (message.contains(".lock'") && message.contains("File exists")) || message.contains("could not lock config file")
}

impl From<git2::Error> for Fault {
    fn from(error: git2::Error) -> Self {
        Self { is_tool_failure: true, transient: true, ..Self::new(error.message()) }
    }
}

impl From<LockError> for Fault {
    fn from(error: LockError) -> Self {
        let passes = matches!(error, LockError::Busy { .. });
        let remedy = passes.then(|| "run the command again later".to_owned());
        Self { remedy, passes, is_tool_failure: true, ..Self::new(error.to_string()) }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error("git is not installed or not in PATH")]
    Missing,
    #[error("cannot run git: {0}")]
    Run(#[from] io::Error),
    #[error("{message}")]
    Exit { code: i32, message: String },
    #[error("git was killed by signal {0}")]
    Signal(i32),
    #[error("git {0} is too old")]
    Old(String),
    #[error("git does not answer: 'git version' timed out after {0} s")]
    Silent(u64),
    #[error("git timed out after {0} s and was killed")]
    Timeout(u64),
    #[error("git cannot see all files: {0}")]
    Unseen(String),
    #[error("git cannot read {}, which is a named pipe", .0.display())]
    Pipe(PathBuf),
    #[error("git was held up by a named pipe")]
    Held,
    /// The record of a worktree, with which git was to work.
    #[error("{}", .0.cause)]
    Record(Fault),
    #[error("git printed more than {} MiB", super::cli::STDOUT_BYTES_MAX >> 20)]
    TooMuch,
}

impl CliError {
    /// Reports whether git ended without a chance to clean up after itself.
    pub(crate) fn was_cut_off(&self) -> bool {
        matches!(self, Self::Signal(_) | Self::Timeout(_) | Self::Pipe(_) | Self::Held)
    }

    pub(crate) fn remedy(&self) -> Option<String> {
        match self {
            Self::Missing | Self::Old(_) => Some("install git 2.38 or newer, or put it into PATH".to_owned()),
            Self::Silent(_) => Some("run 'git version' and check why it hangs".to_owned()),
            Self::Signal(_) | Self::Held => Some("run the command again".to_owned()),
            Self::Timeout(_) => Some("check for a hook or filter that hangs, then run the command again".to_owned()),
            Self::Unseen(what) if what.ends_with("Permission denied") => {
                Some("permit it with 'chmod u+rwx', or delete it, then run the command again".to_owned())
            }
            Self::Unseen(_) => Some("run the command again".to_owned()),
            Self::Pipe(_) => Some("remove it, then run the command again".to_owned()),
            Self::Record(fault) => fault.remedy.clone(),
            Self::Run(_) | Self::Exit { .. } | Self::TooMuch => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_another_git_passes() {
        let passes = |message: &str| Fault::from(CliError::Exit { code: 128, message: message.to_owned() }).passes;
        assert!(passes("Unable to create '/r/.git/packed-refs.lock': File exists."));
        assert!(passes("error: could not lock config file .git/config: File exists"));
        assert!(!passes("fatal: '/r-worktrees/w' already exists"));
        assert!(Fault::from(CliError::Signal(9)).passes);
    }
}
