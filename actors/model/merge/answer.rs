//! Results of git and of the user's commands for a merge queue.

/// Result of building a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Build {
    /// Candidate: the item's tip on top of the given commit.
    Made(String),
    /// There is nothing to land: the item has no change of its own.
    Nothing,
    /// The item has changes of its own, and the given commit has all of them already.
    Contained,
    /// The item conflicts with the given commit, in these paths.
    Conflict(Vec<String>),
    /// No result, for this reason. The item waits.
    Failed(String),
}

/// Beginning of the reason why an item waits whose base fails.
pub const BASE_FAILS: &str = "the base itself does not pass";

/// Words in the reason of a failed verification whose command the shell could not find or execute.
pub const NOT_EXECUTED: [&str; 2] = ["exited with code 126", "exited with code 127"];

/// Result of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Green,
    /// The verification failed, for this reason.
    Red(String),
    /// The command could not be started, or was ended by a signal that the queue did not send. That says nothing
    /// about the commit.
    Unknown(String),
}

/// Result of moving the base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Landing {
    /// The base contains the chain. Lists commits that landed under another id, for example because they were signed:
    /// the candidate and the landed commit.
    Done(Vec<(String, String)>),
    /// The base is no longer at the commit on which the chain was built.
    Moved,
    /// Uncommitted edits of a person are in the way, in these paths.
    Overlap(Vec<String>),
    /// A git of a person is at work in a directory that has the base checked out, until this file of it is gone.
    Busy { reason: String, file: String },
    /// The base was not moved, for this reason.
    Failed(String),
    /// The base was not moved, for this reason, and what the landing had done could not be undone.
    Stuck(String),
}

/// Exit code of a resolver that could not work now and is to be started again later (`EX_TEMPFAIL`).
pub const RESOLVER_LATER: i32 = 75;

/// Result of a resolver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Commit that replaces the item's tip.
    Done(String),
    /// The conflicts are not resolved, for this reason.
    Failed(String),
    /// The resolver could not work now, for example because of a usage limit of its provider. That is no try.
    Later(String),
}
