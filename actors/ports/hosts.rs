//! Other machines on which attempts of a run work.

use super::BoxFuture;
use swarm_model::run::progress::Now;
use swarm_model::{Caller, ExitRecord, SpawnRequest};

/// Why a host did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostFault {
    /// There is no connection, or it was cut. It is not known what was done.
    Away { cause: String },
    /// The host cannot be used until a person changes something. Nothing was done.
    Refused { cause: String },
    /// The host has no room at the moment. Nothing was done.
    Busy { cause: String },
}

/// End of an attempt on a host. Its work is in the repository here, and the files that it left are in the home of the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FarEnd {
    /// `None` if the end is unknown.
    pub exit: Option<ExitRecord>,
    /// Commit with the work, which is pinned. `None` if there is none.
    pub tip: Option<String>,
    /// Uncommitted paths that the commit does not contain.
    pub left_out: Vec<String>,
    /// Why uncommitted work is not in the commit.
    pub waits: Option<String>,
}

/// Other machines. Every call may be repeated, and then finds what the first one did. None waits for a host that is out of
/// reach longer than a connection takes.
pub trait Hosts: Send + Sync {
    /// Sends the base and the work of earlier attempts to the host. Starts nothing.
    fn bring<'a>(&'a self, now: &'a Now, host: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), HostFault>>;

    /// Starts the attempt on the host, as `request` would start it here, or finds the worker that it has started.
    fn start<'a>(
        &'a self,
        now: &'a Now,
        host: &'a str,
        request: &'a SpawnRequest,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<(), HostFault>>;

    /// Makes sure that the host answers.
    fn hail<'a>(&'a self, now: &'a Now, host: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), HostFault>>;

    /// Resolves once the attempt has ended and its work is here.
    fn end<'a>(&'a self, now: &'a Now, host: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<FarEnd, HostFault>>;

    /// Ends the attempt on the host.
    fn stop<'a>(&'a self, now: &'a Now, host: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), HostFault>>;

    /// Removes what the attempts of a finished job have left on the host. If the host is out of reach, that is done at the
    /// next contact with it.
    fn forget<'a>(&'a self, now: &'a Now, host: &'a str, caller: &'a Caller) -> BoxFuture<'a, ()>;

    /// Moves the branch of the job here to the work of its last attempt.
    ///
    /// # Errors
    /// Returns a message if that fails, or if somebody else has moved the branch.
    fn take<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, Result<(), String>>;

    /// Closes the connections of a run.
    fn release<'a>(&'a self, run: &'a str) -> BoxFuture<'a, ()>;
}
