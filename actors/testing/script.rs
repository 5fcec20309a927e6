//! Faults of calls, and the list of all calls.
//!
//! Each call has two steps: one before its effect, under its own name (`open`), and one after it,
//! under the name with `.after` (`open.after`). A test can thus cut a supervisor off on either side
//! of every effect.

use std::io;
use std::sync::{Mutex, PoisonError};

use swarm_ports::Survey;
use tokio::sync::oneshot;

/// Fault of a call.
pub enum Fault {
    /// The call fails with this cause.
    Error(&'static str),
    /// The call panics.
    Panic,
    /// The call never returns.
    Hang,
    /// The call continues once this resolves.
    Wait(oneshot::Receiver<()>),
    /// The world changes during the call, which then continues.
    Run(Box<dyn FnOnce() + Send>),
}

#[derive(Default)]
pub struct Script {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    faults: Vec<(String, Fault)>,
    calls: Vec<String>,
}

impl Script {
    /// Adds a fault for the next call of `step` that no earlier fault claims.
    pub fn at(&self, step: &str, fault: Fault) {
        self.with(|inner| inner.faults.push((step.to_owned(), fault)));
    }

    /// Returns all calls so far, as `step subject`.
    pub fn calls(&self) -> Vec<String> {
        self.with(|inner| inner.calls.clone())
    }

    /// Returns the position of a call in the list of calls.
    pub fn position(&self, call: &str) -> Option<usize> {
        self.with(|inner| inner.calls.iter().position(|made| made == call))
    }

    /// Returns how often a call was made.
    pub fn count(&self, call: &str) -> usize {
        self.with(|inner| inner.calls.iter().filter(|made| *made == call).count())
    }

    pub fn forget_calls(&self) {
        self.with(|inner| inner.calls.clear());
    }

    /// Returns the faults that did not occur yet. A test whose fault never occurs proves nothing.
    pub fn unmet(&self) -> Vec<String> {
        self.with(|inner| inner.faults.iter().map(|(step, _)| step.clone()).collect())
    }

    /// Removes the faults that did not occur yet, and reports whether all had occurred.
    #[must_use = "a test whose fault never occurs proves nothing"]
    pub fn forget_faults(&self) -> bool {
        self.with(|inner| std::mem::take(&mut inner.faults).is_empty())
    }

    pub(super) fn note(&self, call: String) {
        self.with(|inner| inner.calls.push(call));
    }

    /// Called before the effect of a call.
    pub(super) async fn before(&self, step: &str, subject: &str) -> Result<(), String> {
        self.note(format!("{step} {subject}"));
        self.meet(step).await
    }

    /// Returns the result of reading these things, with a step `NAME` for their list and a step `NAME.one` for each.
    pub(super) async fn survey<T>(
        &self,
        name: &str,
        all: Vec<T>,
        subject: impl Fn(&T) -> String,
    ) -> io::Result<Survey<T>> {
        self.before(name, "all").await.map_err(io::Error::other)?;
        let mut survey = Survey::default();
        for one in all {
            match self.before(&format!("{name}.one"), &subject(&one)).await {
                Ok(()) => survey.found.push(one),
                Err(cause) => survey.miss(subject(&one), cause),
            }
        }
        Ok(survey)
    }

    /// Called after the effect of a call. An error here means that the effect happened but was not
    /// reported.
    pub(super) async fn after(&self, step: &str) -> Result<(), String> {
        self.meet(&format!("{step}.after")).await
    }

    /// Like `before`, for synchronous calls.
    pub(super) fn before_now(&self, step: &str, subject: &str) -> Result<(), String> {
        self.note(format!("{step} {subject}"));
        match self.take(step) {
            None => Ok(()),
            Some(fault) => strike(step, fault).unwrap_or_else(|| panic!("{step} cannot hang")),
        }
    }

    async fn meet(&self, step: &str) -> Result<(), String> {
        let Some(fault) = self.take(step) else { return Ok(()) };
        if let Fault::Wait(until) = fault {
            let _ = until.await;
            return Ok(());
        }
        match strike(step, fault) {
            Some(struck) => struck,
            None => std::future::pending().await,
        }
    }

    fn take(&self, step: &str) -> Option<Fault> {
        self.with(|inner| {
            let at = inner.faults.iter().position(|(name, _)| name == step)?;
            Some(inner.faults.remove(at).1)
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Applies a fault. `None` if the call must never return.
fn strike(step: &str, fault: Fault) -> Option<Result<(), String>> {
    match fault {
        Fault::Error(cause) => Some(Err(cause.to_owned())),
        Fault::Panic => panic!("{step} was told to panic"),
        Fault::Hang | Fault::Wait(_) => None,
        Fault::Run(change) => {
            change();
            Some(Ok(()))
        }
    }
}
