//! Attempts of runs that have ended because their agent asks a person, as events tell.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Ended, Event, EventKind, Reason};

/// Open requests of the attempts of runs, by the events so far.
#[derive(Clone, Debug, Default)]
pub struct Parking {
    /// Numbers of the open requests, by worker.
    asking: BTreeMap<String, BTreeSet<u64>>,
}

impl Parking {
    /// Takes the next event. Returns the first open request of a worker whose end this event is, and which is started again
    /// after the answer.
    pub fn take(&mut self, event: &Event) -> Option<u64> {
        let worker = event.worker.as_ref()?;
        match &event.kind {
            // A request with a generation is over at the end of its worker.
            EventKind::ApprovalRequested { ask, .. } if event.generation.is_none() => {
                self.asking.entry(worker.clone()).or_default().insert(*ask);
            }
            EventKind::ApprovalAnswered { ask, .. } => {
                if let Some(asks) = self.asking.get_mut(worker) {
                    asks.remove(ask);
                }
                self.asking.retain(|_, asks| !asks.is_empty());
            }
            // The next attempt asks for itself.
            EventKind::WorkerStarted { .. } | EventKind::WorkerCleaned => drop(self.asking.remove(worker)),
            EventKind::WorkerExited { ended: Some(Ended::Code(_)), reason: Some(Reason::Exited), .. } => {
                return self.asking.get(worker)?.first().copied();
            }
            _ => {}
        }
        None
    }
}
