//! Recorders for events and logs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use swarm_model::{Event, EventKind};
use swarm_ports::{BoxFuture, Events, Logs, OutputLimit};

#[derive(Default)]
pub struct FakeEvents {
    all: Mutex<Vec<Event>>,
}

impl FakeEvents {
    /// Returns all events, in order.
    pub fn all(&self) -> Vec<Event> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the events of `worker`, in order.
    pub fn of(&self, worker: &str) -> Vec<EventKind> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let of_it = all.iter().filter(|event| event.worker.as_deref() == Some(worker));
        of_it.map(|event| event.kind.clone()).collect()
    }

    /// Returns the delays of the worker's restarts, in milliseconds.
    pub fn restart_delays_ms(&self, worker: &str) -> Vec<u64> {
        let delay = |kind| match kind {
            EventKind::WorkerRestarting { in_ms, .. } => Some(in_ms),
            _ => None,
        };
        self.of(worker).into_iter().filter_map(delay).collect()
    }
}

impl Events for FakeEvents {
    fn emit(&self, event: Event) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    fn seen(&self, request: &str) -> bool {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|event| event.request.as_deref() == Some(request))
    }
}

/// Workers whose logs are kept within their limits.
#[derive(Default)]
pub struct FakeLogs {
    kept: Mutex<BTreeMap<String, Vec<String>>>,
    written: Mutex<BTreeMap<String, Arc<Notify>>>,
}

impl FakeLogs {
    /// Notifies the watchers that the worker wrote something.
    pub fn write(&self, worker: &str) {
        self.notify(worker).notify_waiters();
    }

    fn notify(&self, worker: &str) -> Arc<Notify> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(written.entry(worker.to_owned()).or_default())
    }

    /// Notifies the watchers that the worker exceeded its output limit.
    pub fn spend(&self, worker: &str) {
        self.notify(&spent_of(worker)).notify_waiters();
    }

    pub fn kept(&self, worker: &str) -> Option<Vec<String>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(worker).cloned()
    }
}

impl Logs for FakeLogs {
    fn keep(&self, worker: &str, files: &[String], _: u64, _: Option<OutputLimit>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(worker.to_owned(), files.to_vec());
    }

    fn release(&self, worker: &str) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(worker);
        self.write(worker);
    }

    fn written(&self, worker: &str) -> BoxFuture<'static, ()> {
        let next = self.notify(worker).notified_owned();
        Box::pin(next)
    }

    fn spent(&self, worker: &str) -> BoxFuture<'static, ()> {
        Box::pin(self.notify(&spent_of(worker)).notified_owned())
    }
}

/// Returns the key of the output limit's watchers. It is not a valid worker name.
fn spent_of(worker: &str) -> String {
    format!("{worker} spent")
}
