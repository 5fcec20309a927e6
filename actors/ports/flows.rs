//! Files of flows, which other programs also write.

use std::io;

use super::{BoxFuture, Survey};
use swarm_model::flow::{Begin, Ended, Standing, Turn};
use swarm_model::run::Wish;
use swarm_model::{Caller, FlowPlace, FlowRules, SpawnRequest};

/// Caller and rules of a flow that was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Opened {
    pub caller: Caller,
    pub rules: FlowRules,
}

/// Files of flows.
pub trait Flows: Send + Sync {
    /// Returns the flows that were started and not closed. Called when a supervisor starts, and again while something
    /// could not be read.
    ///
    /// # Errors
    /// Fails if the flows cannot be listed.
    fn active(&self) -> BoxFuture<'_, io::Result<Survey<FlowPlace>>>;

    /// Takes the exclusive right to run the flow for this process, until `close`. With `begin`, the flow is resumed
    /// after a crash from here on.
    ///
    /// # Errors
    /// Returns a message if another process runs the flow, or its files cannot be read.
    fn open<'a>(&'a self, place: &'a FlowPlace, begin: Option<&'a Begin>) -> BoxFuture<'a, Result<Opened, String>>;

    /// Records turns that have ended, claims nodes that are ready if `claim` is set, and returns the resulting state.
    /// Changes nothing more if it is repeated after a crash.
    ///
    /// # Errors
    /// Returns a message if the files cannot be read or written.
    fn advance<'a>(
        &'a self,
        place: &'a FlowPlace,
        ended: &'a [Ended],
        claim: bool,
    ) -> BoxFuture<'a, Result<Standing, String>>;

    /// Resolves once another process has changed the flow's file since the last call.
    fn changed<'a>(&'a self, place: &'a FlowPlace) -> BoxFuture<'static, ()>;

    /// Returns the request that starts the worker of a turn.
    ///
    /// # Errors
    /// Returns the reason why the turn cannot be started.
    fn prepare<'a>(
        &'a self,
        place: &'a FlowPlace,
        turn: &'a Turn,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<SpawnRequest, String>>;

    /// Returns the work to land when the flow is over. `None` if there is none.
    ///
    /// # Errors
    /// Returns a message if the files or the configuration cannot be read.
    fn wish<'a>(&'a self, place: &'a FlowPlace, caller: &'a Caller) -> BoxFuture<'a, Result<Option<Wish>, String>>;

    /// Records why the work to land is in no merge queue, or that it is (`None`).
    fn keep_refusal<'a>(&'a self, place: &'a FlowPlace, cause: Option<&'a str>) -> BoxFuture<'a, ()>;

    /// Gives up the right to run the flow. No supervisor resumes it. With `unfinished`, the running turns are marked
    /// so that the next run of the flow starts them again.
    fn close<'a>(&'a self, place: &'a FlowPlace, unfinished: bool) -> BoxFuture<'a, ()>;
}
