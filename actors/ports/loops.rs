//! What a loop asks of the disk: its records, its prompt, and what its worker wrote.

use std::io;

use super::BoxFuture;
use swarm_model::loops::progress::{Earlier, Loop, Plan, Wire};

/// What became of the original's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filed {
    /// It says what the loop is.
    Current,
    /// It could not be written.
    Behind,
    /// Another program wrote this into it, which stays.
    Others(Wire),
}

/// A loop that another program began.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// As its file has it, with a plan that has no contract. Nobody looks after it, and
    /// where its worker is has to be found out.
    pub it: Loop,
    /// The process of that program that does look after it.
    pub keeper: Option<i32>,
}

pub trait Loops: Send + Sync {
    /// The names of loops that somebody has to look after, and of those that rest and of
    /// which another program's file says something else by now.
    fn active(&self) -> BoxFuture<'_, io::Result<Vec<String>>>;

    /// The loop of this name as it is on record; `None` where there is none of ours.
    fn load<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Loop>, String>>;

    /// The loop of this name where it is not on record, but another program's file is there.
    fn found<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Found>, String>>;

    /// Makes it durable, with the lines that it tells. The original's file follows, unless
    /// it says by now what the loop does not know of.
    fn save<'a>(&'a self, it: &'a Loop) -> BoxFuture<'a, io::Result<Filed>>;

    /// Tells the original's file when the window changed last. Not worth failing for.
    fn note<'a>(&'a self, it: &'a Loop) -> BoxFuture<'a, ()>;

    /// What the original's file says now; `None` where it says nothing that can be read.
    fn wire<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<Wire>>;

    /// How long the log is to which its next line will be appended.
    fn log_length<'a>(&'a self, name: &'a str) -> BoxFuture<'a, u64>;

    /// What there is of an earlier loop of this name; `None` where there is nothing.
    fn earlier<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Option<Earlier>>>;

    /// Takes back a loop of which nothing ever ran: what was there before it is there again.
    fn withdraw<'a>(&'a self, it: &'a Loop) -> BoxFuture<'a, io::Result<()>>;

    /// Forgets everything of it; whether there was anything.
    fn forget<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<bool>>;

    /// The prompt as it is now.
    ///
    /// # Errors
    /// A sentence for the log.
    fn prompt<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Result<String, String>>;

    /// How much the worker of this name has written so far, in bytes.
    fn written<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, u64>;

    /// What it has written since then, as plain text; the last part of it where it is much.
    fn output<'a>(&'a self, worker: &'a str, from: u64) -> BoxFuture<'a, String>;
}
