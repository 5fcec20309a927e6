//! Other machines on which attempts of a run work.

use super::BoxFuture;
use swarm_model::run::Abandoned;
use swarm_model::run::plan::Plan;
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
    /// The host cannot execute this job, or something here is in the way of it. Nothing was done. Other jobs may be
    /// executed there, unless they need the same program.
    Unfit { program: Option<String>, cause: String },
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
    /// Whether the host was restarted during the attempt, which ended it.
    pub is_restarted: bool,
    /// References here to what else the attempt has left: what the worktree has in that case, and commits on the base branch
    /// there.
    pub kept: Vec<String>,
    /// Ignored files that it has made in the worktree. They go with it.
    pub ignored: Vec<String>,
}

/// End of an attempt that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reclaimed {
    /// The attempt is ended, and its work is kept here under these references; none if it has left nothing.
    Back(Vec<String>),
    /// Another machine or state directory answers, which never had the attempt. What is owed to the first one stays on record.
    Gone,
}

/// Other machines. Every call may be repeated, and then finds what the first one did. None waits for a host that is out of
/// reach longer than a connection takes.
pub trait Hosts: Send + Sync {
    /// Sends the base and the work of earlier attempts to the host. Starts nothing.
    fn bring<'a>(&'a self, now: &'a Now, host: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), HostFault>>;

    /// Starts the attempt on the host, as `request` would start it here, or finds the worker that it has started. Returns
    /// the load of the host in halves per processor, if it is known.
    fn start<'a>(
        &'a self,
        now: &'a Now,
        host: &'a str,
        request: &'a SpawnRequest,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Option<u32>, HostFault>>;

    /// Resolves when the network of this machine changes after this call, or when this machine has slept: hosts that were
    /// out of reach may answer. If the kernel cannot tell, never.
    fn network_changed(&self) -> BoxFuture<'static, ()>;

    /// Makes sure that the host answers.
    fn hail<'a>(&'a self, now: &'a Now, host: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), HostFault>>;

    /// Resolves once the attempt has ended and its work is here.
    fn end<'a>(&'a self, now: &'a Now, host: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<FarEnd, HostFault>>;

    /// Ends the attempt on the host. If the host is out of reach, that is done before anything else at the next contact with it,
    /// unless the run goes on before ([`go_on`](Self::go_on)).
    fn stop<'a>(&'a self, now: &'a Now, host: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), HostFault>>;

    /// Removes what the attempts of a finished job have left on the host. If the host is out of reach, that is done at the
    /// next contact with it.
    fn forget<'a>(&'a self, now: &'a Now, host: &'a str, caller: &'a Caller) -> BoxFuture<'a, ()>;

    /// Records durably that an attempt was given up: at the next contact with its host it is ended, its work is brought back,
    /// and it is forgotten there, also if its run is over by then.
    ///
    /// # Errors
    /// Returns a message if that cannot be recorded.
    fn owe<'a>(
        &'a self,
        plan: &'a Plan,
        abandoned: &'a Abandoned,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<(), String>>;

    /// Does what is owed to the attempt.
    fn reclaim<'a>(
        &'a self,
        plan: &'a Plan,
        abandoned: &'a Abandoned,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Reclaimed, HostFault>>;

    /// Moves the branch of the job here to the work of its last attempt.
    ///
    /// # Errors
    /// Returns a message if that fails, or if somebody else has moved the branch.
    fn take<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, Result<(), String>>;

    /// Withdraws the stops of a run that hosts have not got: it is begun again, and goes on with these attempts.
    fn go_on<'a>(&'a self, run: &'a str) -> BoxFuture<'a, ()>;

    /// Allows connections of a run that begins or resumes.
    fn admit(&self, run: &str);

    /// Closes the connections of a run, once what comes back over them is here; waits for that only for a short time. None is
    /// opened until it is admitted again.
    fn release<'a>(&'a self, run: &'a str) -> BoxFuture<'a, ()>;
}
