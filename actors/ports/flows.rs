//! What a flow asks of the disk: its files, which are not its alone.

use std::io;

use super::BoxFuture;
use swarm_model::flows::{Begin, Ended, Standing, Turn};
use swarm_model::run::Wish;
use swarm_model::{Caller, FlowPlace, FlowRules, SpawnRequest};

/// As whom a flow is run, and by what rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Opened {
    pub caller: Caller,
    pub rules: FlowRules,
}

pub trait Flows: Send + Sync {
    /// The flows that somebody has run and nobody has stopped.
    fn active(&self) -> BoxFuture<'_, io::Result<Vec<FlowPlace>>>;

    /// Takes the right to run the flow for this process, until `close`. With `begin` a
    /// crash resumes it from here on.
    fn open<'a>(&'a self, place: &'a FlowPlace, begin: Option<&'a Begin>) -> BoxFuture<'a, Result<Opened, String>>;

    /// Brings into the files what has ended, claims what may be worked on where that is
    /// asked for, and says what is at work then. Done again after a crash, it changes
    /// nothing more.
    fn advance<'a>(
        &'a self,
        place: &'a FlowPlace,
        ended: &'a [Ended],
        claim: bool,
    ) -> BoxFuture<'a, Result<Standing, String>>;

    /// Resolves when somebody has changed the flow's file since this was asked last.
    fn changed<'a>(&'a self, place: &'a FlowPlace) -> BoxFuture<'static, ()>;

    /// The request that starts the worker of a turn.
    ///
    /// # Errors
    /// Why there is nothing to start.
    fn prepare<'a>(
        &'a self,
        place: &'a FlowPlace,
        turn: &'a Turn,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<SpawnRequest, String>>;

    /// What is to land when the flow is over; none where nothing is.
    fn wish<'a>(&'a self, place: &'a FlowPlace, caller: &'a Caller) -> BoxFuture<'a, Option<Wish>>;

    /// No supervisor is to resume it. What was at work when it was left is begun anew by
    /// whoever runs it next.
    fn close<'a>(&'a self, place: &'a FlowPlace, unfinished: bool) -> BoxFuture<'a, ()>;
}
