//! Files of runs: the journal, the parts of prompts, and the evidence that agents leave.

use std::io;

use super::{BoxFuture, Saved, Survey};
use swarm_model::merge::Agreed;
use swarm_model::merge::queue::{Item, Rules};
use swarm_model::run::plan::Plan;
use swarm_model::run::progress::{Now, Run, Spent};
use swarm_model::run::words::Word;
use swarm_model::run::{Event, Outcome};
use swarm_model::{Caller, ExitRecord, RowWorktree, SpawnRequest, Target};

/// Run as its journal has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Journaled {
    /// State when the journal began.
    pub run: Run,
    /// Events since then, each with its time in Unix milliseconds.
    pub events: Vec<(u64, Event)>,
    /// Caller, in whose environment workers and tools run.
    pub caller: Caller,
    /// Number of reports that are in `events.jsonl`.
    pub told: u64,
}

/// Report of a run that is to be written to `events.jsonl`.
#[derive(Clone, Debug, PartialEq)]
pub struct Telling {
    /// Time in Unix milliseconds.
    pub at_ms: u64,
    /// Number of the report. `None` for a report that a crash may lose.
    pub number: Option<u64>,
    /// Index of the job. `None` if the report is about the run.
    pub job: Option<usize>,
    pub word: Word,
}

/// What became of a request to a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Answered, or gone: then the agent asks again.
    Answered,
    /// Nobody waits for the answer any more.
    Over { why: String },
}

/// Files of runs.
pub trait Runs: Send + Sync {
    /// Returns the homes of runs that are not over, or whose end is not reported yet. Called when a supervisor starts,
    /// and again while something could not be read.
    ///
    /// # Errors
    /// Fails if the runs cannot be listed.
    fn active(&self) -> BoxFuture<'_, io::Result<Survey<String>>>;

    /// Locks the home of a run for this process until `close`, and returns the state that an earlier run left there.
    /// `None` if there is none.
    ///
    /// # Errors
    /// Returns a message if another process has the lock, or the files cannot be read.
    fn open<'a>(&'a self, home: &'a str) -> BoxFuture<'a, Result<Option<Run>, String>>;

    /// Writes a new run durably. From here on it is resumed after a crash.
    fn begin<'a>(&'a self, run: &'a Run, caller: &'a Caller) -> BoxFuture<'a, io::Result<()>>;

    /// Reports whether this request started the run whose journal is in `home`, over or not.
    ///
    /// # Errors
    /// Fails if there is a journal that cannot be read.
    fn began_by<'a>(&'a self, home: &'a str, request: &'a str) -> BoxFuture<'a, io::Result<bool>>;

    /// Locks the home of a run for this process until `close`, and returns the run as journaled.
    ///
    /// # Errors
    /// Returns a message if another process has the lock, or the journal cannot be read.
    fn resume<'a>(&'a self, home: &'a str) -> BoxFuture<'a, Result<Journaled, String>>;

    /// Appends events to the journal, durably. `run` is the resulting state.
    fn append<'a>(&'a self, run: &'a Run, events: &'a [(u64, Event)]) -> BoxFuture<'a, io::Result<()>>;

    /// Appends reports to `events.jsonl`. Errors are only logged.
    fn tell<'a>(&'a self, plan: &'a Plan, words: Vec<Telling>) -> BoxFuture<'a, ()>;

    /// Returns the request that starts the worker of the present attempt of a job.
    ///
    /// # Errors
    /// Returns the outcome of the attempt if it cannot be started.
    fn prepare<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, Result<SpawnRequest, Outcome>>;

    /// Reports whether the base contains the work of the job that conflicted last.
    fn has_landed<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, bool>;

    /// Reports whether a queue item is of this run's repository and base, and on the base if it has landed. A run in a
    /// copy of the repository, or an earlier one whose records are lost, may have made the same key.
    fn is_own<'a>(
        &'a self,
        now: &'a Now,
        target: &'a Target,
        item: &'a Item,
        caller: &'a Caller,
    ) -> BoxFuture<'a, bool>;

    /// Returns the rules by which the run would add the work of a queue item now, if they are not those of the item: the
    /// flags, the spec or the configuration have changed since. `None` also if that cannot be determined.
    fn changed_rules<'a>(&'a self, now: &'a Now, item: &'a Item, caller: &'a Caller) -> BoxFuture<'a, Option<Rules>>;

    /// Returns the rules by which a run lands the work on this branch. `None` if no run made the branch. Runs of specs are
    /// looked up in the checkout `root` (`None`: the caller's, or the main one).
    ///
    /// # Errors
    /// Returns a message if the records of the run cannot be read, or are not the user's own.
    fn agreed<'a>(
        &'a self,
        branch: &'a str,
        root: Option<&'a str>,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Option<Agreed>, String>>;

    /// Returns the worktree of a job that has begun, if its directory or its branch is there.
    fn place<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, Option<RowWorktree>>;

    /// Returns the outcome of the present attempt by all evidence, and the usage that the agent reported.
    fn outcome<'a>(&'a self, now: &'a Now, exit: Option<&'a ExitRecord>) -> BoxFuture<'a, (Outcome, Spent)>;

    /// Resolves once the request with this number is settled. Nothing runs until then.
    fn settled(&self, ask: u64) -> BoxFuture<'_, Settled>;

    /// Returns the usage of agents that resolved conflicts of the present attempt.
    fn resolutions<'a>(&'a self, now: &'a Now) -> BoxFuture<'a, Spent>;

    /// Moves the logs of a finished job to the run's home before its worker is cleaned, and reports texts of people
    /// that can no longer reach the agent.
    fn keep<'a>(&'a self, now: &'a Now) -> BoxFuture<'a, ()>;

    /// Reports whether the branch of a job has commits that are not on the base. True if that cannot be determined.
    fn has_work<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, bool>;

    /// Deletes the branch of a job that is done, if the base contains all its commits. Returns where commits are saved that
    /// only its reflog had.
    fn tidy<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, Option<Saved>>;

    /// Marks the run as over, and releases the lock of its home. Until [`Runs::forget`], `active` still returns it.
    fn close<'a>(&'a self, home: &'a str) -> BoxFuture<'a, ()>;

    /// Makes sure that no supervisor resumes a closed run any more, unless one of its reports is missing.
    fn forget<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, ()>;
}
