//! Files of loops: their records, their prompts, and the output of their workers.

use std::io;

use super::{BoxFuture, Survey};
use swarm_model::loops::progress::{Earlier, Loop, Plan, Wire};

/// Result of writing `state.json` of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filed {
    /// The file has the present state.
    Current,
    /// The file could not be written.
    Behind,
    /// Another program has written these values to the file, and they remain.
    Others(Wire),
}

/// Loop that another program started.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// State of the loop according to its file. The plan has no contract, the loop is unsupervised, and its worker is
    /// still to be found.
    pub it: Loop,
    /// Pid of the process of the other program that supervises the loop. `None` if there is none.
    pub keeper: Option<i32>,
}

/// Files of loops.
pub trait Loops: Send + Sync {
    /// Returns the names of loops that need supervision, and of resting loops whose `state.json` another program has
    /// changed. Called when a supervisor starts, and again while something could not be read.
    ///
    /// # Errors
    /// Fails if the loops cannot be listed.
    fn active(&self) -> BoxFuture<'_, io::Result<Survey<String>>>;

    /// Returns the loop of this name from its `loop.json`. `None` if there is no such file.
    ///
    /// # Errors
    /// Returns a message if the file cannot be read.
    fn load<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Loop>, String>>;

    /// Returns the loop of this name if it has a `state.json` of another program, but no `loop.json`. `None`
    /// otherwise.
    ///
    /// # Errors
    /// Returns a message if the file cannot be read.
    fn found<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Found>, String>>;

    /// Writes the loop durably, with its new lines of the log. Then updates `state.json`, unless another program has
    /// changed it.
    fn save<'a>(&'a self, it: &'a Loop) -> BoxFuture<'a, io::Result<Filed>>;

    /// Writes to `state.json` when the window last changed. Errors are ignored.
    fn note<'a>(&'a self, it: &'a Loop) -> BoxFuture<'a, ()>;

    /// Returns what `state.json` says now. `None` if it cannot be read.
    fn wire<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<Wire>>;

    /// Returns the length in bytes of the log to which the next line is appended.
    fn log_length<'a>(&'a self, name: &'a str) -> BoxFuture<'a, u64>;

    /// Returns the files of an earlier loop of this name. `None` if there are none.
    fn earlier<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Option<Earlier>>>;

    /// Withdraws a loop of which nothing ever ran, and restores the files of an earlier loop.
    fn withdraw<'a>(&'a self, it: &'a Loop) -> BoxFuture<'a, io::Result<()>>;

    /// Deletes all files of the loop. Returns whether there were any.
    fn forget<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<bool>>;

    /// Returns the present text of the prompt.
    ///
    /// # Errors
    /// Returns a message for the log if the prompt cannot be used.
    fn prompt<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Result<String, String>>;

    /// Returns how many bytes the worker of this name has written so far.
    fn written<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, u64>;

    /// Returns what the worker has written after byte `from`, as plain text. Long output is cut to its last part.
    fn output<'a>(&'a self, worker: &'a str, from: u64) -> BoxFuture<'a, String>;
}
