//! Events and reports of a worker's actor: events for the history, reports for the supervisor.

use super::actor::State;
use super::fate;
use super::launch::caller_of;
use super::machine::End;
use super::message::Report;
use super::record::WorkerRecord;
use swarm_model::{Below, EventKind, Reason};
use swarm_ports::{Completion, Note};

impl State {
    /// Reports a worker that ended successfully for good, if its work must land.
    pub(super) async fn report_finished(&self) {
        let Some(life) = self.life.as_ref().filter(|life| life.merges) else { return };
        let Ok(WorkerRecord::Ours { row, facts }) = self.subject().await else { return };
        let spec = facts.spec.spec().filter(|spec| spec.generation == life.generation);
        let (Some(spec), Some(worktree)) = (spec, row.worktree.clone()) else { return };
        if self.ports().records.is_noted(self.name(), spec.generation, Note::WorkQueued).await {
            return;
        }
        let mut caller = caller_of(&spec.contract, &spec.request);
        // If an agent started the worker, its work lands on behalf of that agent.
        caller.below = spec.contract.origin.as_ref().map(|_| Below::Worker(self.name().to_owned()));
        let worker = Some((worktree, row.swarm().and_then(|meta| meta.base.clone())));
        let completion = Box::new(Completion { worker, ..Completion::new(self.name(), caller) });
        self.report(Report::Finished { key: spec.token.clone(), generation: spec.generation, completion });
    }

    /// Emits the end of a generation, once per generation, even if no supervisor ran when it ended.
    pub(super) async fn report_end(&self, end: &End) {
        let Some(life) = &self.life else { return };
        let records = &self.ports().records;
        if records.is_noted(self.name(), life.generation, Note::EndTold).await {
            return;
        }
        let End { ended, reason, up_ms, hits, server_lost, .. } = *end;
        self.emit(EventKind::WorkerExited { ended, reason, duration_ms: up_ms, hits });
        let is_lost = match (reason, server_lost, &life.lease.pane) {
            (Some(Reason::Closed), Some(is_lost), _) => is_lost,
            (Some(Reason::Closed), None, Some(pane)) => !self.ports().terminals.has_server(pane).await,
            _ => false,
        };
        if is_lost {
            self.emit(EventKind::WorkerFailed { cause: fate::Lost::Server.words().to_owned() });
        }
        records.note(self.name(), life.generation, Note::EndTold).await;
    }

    pub(super) fn emit(&self, kind: EventKind) {
        self.ports().events.emit(swarm_model::Event {
            at_ms: self.ports().clock.wall_ms(),
            worker: Some(self.name().to_owned()),
            generation: self.life.as_ref().map(|life| life.generation),
            request: None,
            kind,
        });
    }

    pub(super) fn report(&self, report: Report) {
        (self.arguments.reporter)(report);
    }

    /// Reports to the supervisor that the worker runs, if the heartbeat actor looks after it.
    pub(super) fn tell_life(&self) {
        if let Some(session) = self.life.as_ref().and_then(|life| life.session.clone()) {
            self.report(Report::Began(Box::new(session)));
        }
    }

    /// Reports to the supervisor that such a worker has ended. Reported again after each adoption.
    pub(super) fn tell_end(&self, end: &End) {
        if let Some(session) = self.life.as_ref().and_then(|life| life.session.clone()) {
            // An interrupted session counts as lost, as after a power cut: nobody cancelled it.
            let end = end.ended.zip(end.reason).filter(|_| !end.interrupted);
            self.report(Report::Ended(Box::new(session), end));
        }
    }
}
