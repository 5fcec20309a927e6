//! What kept a step from being done, before it is known which of the port's
//! errors that is.

use std::io;
use std::path::Path;

use swarm_ports::WorktreeError;

use super::lock::LockError;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub(crate) struct Fault {
    pub(crate) cause: String,
    pub(crate) remedy: Option<String>,
    /// A tool or the system failed, so it says nothing about the worktree.
    pub(crate) broken: bool,
    /// It may be otherwise in a moment: a git was killed, or the system had no room.
    pub(crate) passing: bool,
    /// A git of ours was ended by a signal, and may have left its locks.
    pub(crate) killed: bool,
}

impl Fault {
    pub(crate) fn new(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), remedy: None, broken: false, passing: false, killed: false }
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// A system call about `path` failed.
    pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> Self {
        move |error| Self { broken: true, passing: true, ..Self::new(format!("{}: {error}", path.display())) }
    }

    /// It kept a worktree from being made.
    pub(crate) fn create(self) -> WorktreeError {
        WorktreeError::Create { cause: self.cause, remedy: self.remedy }
    }

    /// It kept a worktree from being judged, saved or removed.
    pub(crate) fn unknown(self) -> WorktreeError {
        let cause = match self.remedy {
            Some(remedy) => format!("{} ({remedy})", self.cause),
            None => self.cause,
        };
        if self.broken { WorktreeError::Tool(cause) } else { WorktreeError::Unknown(cause) }
    }
}

impl From<CliError> for Fault {
    fn from(error: CliError) -> Self {
        let broken = !matches!(error, CliError::Exit { .. });
        let passing = matches!(error, CliError::Signal(_) | CliError::Run(_));
        let killed = matches!(error, CliError::Signal(_));
        Self { cause: error.to_string(), remedy: error.remedy(), broken, passing, killed }
    }
}

impl From<git2::Error> for Fault {
    fn from(error: git2::Error) -> Self {
        Self { broken: true, passing: true, ..Self::new(error.message()) }
    }
}

impl From<LockError> for Fault {
    fn from(error: LockError) -> Self {
        let remedy = matches!(error, LockError::Busy { .. }).then(|| "run the command again later".to_owned());
        Self { cause: error.to_string(), remedy, broken: true, passing: false, killed: false }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error("git is not installed or not in PATH")]
    Missing,
    #[error("git could not be run: {0}")]
    Run(#[from] io::Error),
    #[error("{message}")]
    Exit { code: i32, message: String },
    #[error("git was ended by signal {0}")]
    Signal(i32),
    #[error("git {0} is too old")]
    Old(String),
    #[error("git does not answer: it was asked for its version, {0} s ago")]
    Silent(u64),
    #[error("git took longer than {0} s and was ended")]
    Timeout(u64),
    #[error("git printed more than {} MiB", super::cli::STDOUT_BYTES_MAX >> 20)]
    TooMuch,
}

impl CliError {
    /// Whether git ended without a chance to tidy up behind itself.
    pub(crate) fn was_cut_off(&self) -> bool {
        matches!(self, Self::Signal(_) | Self::Timeout(_))
    }

    pub(crate) fn remedy(&self) -> Option<String> {
        match self {
            Self::Missing | Self::Old(_) => Some("install git 2.38 or newer, or put it into PATH".to_owned()),
            Self::Silent(_) => Some("look at what `git version` does there".to_owned()),
            Self::Signal(_) => Some("run the command again".to_owned()),
            Self::Timeout(_) => Some("look for a hook or filter that hangs, then run the command again".to_owned()),
            Self::Run(_) | Self::Exit { .. } | Self::TooMuch => None,
        }
    }
}
