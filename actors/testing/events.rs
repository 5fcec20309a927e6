//! Events and logs: recorded, nothing else.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::model::{Event, EventKind};
use crate::ports::{Events, Logs};

#[derive(Default)]
pub struct FakeEvents {
    all: Mutex<Vec<Event>>,
}

impl FakeEvents {
    /// What was told of `worker`, in order.
    pub fn of(&self, worker: &str) -> Vec<EventKind> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let of_it = all.iter().filter(|event| event.worker.as_deref() == Some(worker));
        of_it.map(|event| event.kind.clone()).collect()
    }

    /// The delays of its restarts, in milliseconds.
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

/// Which workers' logs are being kept within their limit.
#[derive(Default)]
pub struct FakeLogs {
    kept: Mutex<BTreeMap<String, Vec<String>>>,
}

impl FakeLogs {
    pub fn kept(&self, worker: &str) -> Option<Vec<String>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(worker).cloned()
    }
}

impl Logs for FakeLogs {
    fn keep(&self, worker: &str, files: &[String], _: u64) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(worker.to_owned(), files.to_vec());
    }

    fn release(&self, worker: &str) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(worker);
    }
}
