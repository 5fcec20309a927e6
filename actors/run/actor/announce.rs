//! Event of the end of a run.

use super::State;
use crate::run::ended;
use swarm_model::Event as Announcement;
use swarm_ports::Telling;

impl State {
    /// Sends the event of the end, once. Its report in the run's own events follows it, so that a crash between the two
    /// leaves the event on record.
    pub(super) fn announce_end(&self, last: &Telling) {
        let (Some(kind), Some(number)) = (ended::event(&self.run, &last.word), last.number) else { return };
        let (request, events) = (ended::key(&self.run, number), &self.arguments.ports.events);
        if self.is_resumed && events.seen(&request) {
            return;
        }
        events.emit(Announcement { at_ms: last.at_ms, worker: None, generation: None, request: Some(request), kind });
    }
}
