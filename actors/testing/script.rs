//! Which call meets which misfortune, and the list of all calls.
//!
//! A call is met twice: before its effect under its own name (`open`), and
//! after it under the name with `.after` (`open.after`), so that a test can cut
//! a supervisor off on either side of every step.

use std::sync::{Mutex, PoisonError};

/// What a call meets.
pub enum Fault {
    /// It fails with this cause.
    Error(&'static str),
    /// It panics.
    Panic,
    /// It never returns.
    Hang,
    /// The world changes under it; then it goes on.
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
    /// The next call of `step` that meets no earlier one meets this fault.
    pub fn at(&self, step: &str, fault: Fault) {
        self.with(|inner| inner.faults.push((step.to_owned(), fault)));
    }

    /// Every call so far: `step subject`.
    pub fn calls(&self) -> Vec<String> {
        self.with(|inner| inner.calls.clone())
    }

    /// Where a call stands among all of them.
    pub fn position(&self, call: &str) -> Option<usize> {
        self.with(|inner| inner.calls.iter().position(|made| made == call))
    }

    pub fn forget_calls(&self) {
        self.with(|inner| inner.calls.clear());
    }

    /// Faults that nothing met yet: a test whose fault never struck shows nothing.
    pub fn unmet(&self) -> Vec<String> {
        self.with(|inner| inner.faults.iter().map(|(step, _)| step.clone()).collect())
    }

    /// Whatever was not met is not to come any more.
    pub fn forget_faults(&self) {
        self.with(|inner| inner.faults.clear());
    }

    pub(super) fn note(&self, call: String) {
        self.with(|inner| inner.calls.push(call));
    }

    /// Before the effect of a call.
    pub(super) async fn before(&self, step: &str, subject: &str) -> Result<(), String> {
        self.note(format!("{step} {subject}"));
        self.meet(step).await
    }

    /// After the effect of a call. An error here means: done, but not told.
    pub(super) async fn after(&self, step: &str) -> Result<(), String> {
        self.meet(&format!("{step}.after")).await
    }

    /// For calls that cannot wait.
    pub(super) fn before_now(&self, step: &str, subject: &str) -> Result<(), String> {
        self.note(format!("{step} {subject}"));
        match self.take(step) {
            None => Ok(()),
            Some(fault) => strike(step, fault).unwrap_or_else(|| panic!("{step} cannot hang")),
        }
    }

    async fn meet(&self, step: &str) -> Result<(), String> {
        let Some(fault) = self.take(step) else { return Ok(()) };
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

/// `None` when the call is never to return.
fn strike(step: &str, fault: Fault) -> Option<Result<(), String>> {
    match fault {
        Fault::Error(cause) => Some(Err(cause.to_owned())),
        Fault::Panic => panic!("{step} was told to panic"),
        Fault::Hang => None,
        Fault::Run(change) => {
            change();
            Some(Ok(()))
        }
    }
}
