//! What a run asks of the disk and of agents: its journal, what its prompts are made
//! of, and what an agent left as evidence.

use std::io;

use super::BoxFuture;
use swarm_model::run::plan::Plan;
use swarm_model::run::progress::{Now, Run, Spent};
use swarm_model::run::words::Word;
use swarm_model::run::{Event, Outcome};
use swarm_model::{Caller, ExitRecord, SpawnRequest};

/// A run as its journal has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Journaled {
    /// As it was when the journal began.
    pub run: Run,
    /// What has happened since, each with its time in Unix milliseconds.
    pub events: Vec<(u64, Event)>,
    /// As whom it runs.
    pub caller: Caller,
    /// How many of its words are on record.
    pub told: u64,
}

/// A word on its way to `events.jsonl`.
#[derive(Clone, Debug, PartialEq)]
pub struct Telling {
    pub at_ms: u64,
    /// None for news that a crash may lose.
    pub number: Option<u64>,
    pub job: Option<usize>,
    pub word: Word,
}

pub trait Runs: Send + Sync {
    /// The homes of runs that are not over.
    fn active(&self) -> BoxFuture<'_, io::Result<Vec<String>>>;

    /// Takes the lock of a run's home for this process, and reads what an earlier run
    /// left there. The lock stays until `close`.
    fn open<'a>(&'a self, home: &'a str) -> BoxFuture<'a, Result<Option<Run>, String>>;

    /// Makes a run that begins durable: from here on a crash resumes it.
    fn begin<'a>(&'a self, run: &'a Run, caller: &'a Caller) -> BoxFuture<'a, io::Result<()>>;

    /// Whether the run whose journal is there, over or not, began by this request.
    fn began_by<'a>(&'a self, home: &'a str, request: &'a str) -> BoxFuture<'a, bool>;

    /// The same lock, and the run as it was journaled last.
    fn resume<'a>(&'a self, home: &'a str) -> BoxFuture<'a, Result<Journaled, String>>;

    /// Makes what happened durable; `run` is what the machine made of it.
    fn append<'a>(&'a self, run: &'a Run, events: &'a [(u64, Event)]) -> BoxFuture<'a, io::Result<()>>;

    /// History is worth having and not worth failing for.
    fn tell<'a>(&'a self, plan: &'a Plan, words: Vec<Telling>) -> BoxFuture<'a, ()>;

    /// The request that starts the worker of the present attempt of a job.
    ///
    /// # Errors
    /// Why there is nothing to start, as the end of that attempt.
    fn prepare<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, Result<SpawnRequest, Outcome>>;

    /// What became of the present attempt, by all evidence there is.
    fn outcome<'a>(&'a self, now: &'a Now, exit: Option<&'a ExitRecord>) -> BoxFuture<'a, (Outcome, Spent)>;

    /// What agents used to resolve the conflicts of the present attempt.
    fn resolutions<'a>(&'a self, now: &'a Now) -> BoxFuture<'a, Spent>;

    /// Keeps what a worker's records have of a job that is done, before they are cleaned,
    /// and reports what people said that its agent will not hear any more.
    fn keep<'a>(&'a self, now: &'a Now) -> BoxFuture<'a, ()>;

    /// Removes the branch of a job that has landed, when nothing else is on it.
    fn tidy<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, ()>;

    /// The run is over: no supervisor is to resume it.
    fn close<'a>(&'a self, home: &'a str) -> BoxFuture<'a, ()>;
}
