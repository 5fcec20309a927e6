//! Heartbeat: starts its actor, and ends or renews workers on its report.

use std::sync::Arc;

use ractor::{ActorProcessingErr, ActorRef};

use super::error::SupervisorError;
use super::message::SupervisorMessage;
use super::state::State;
use crate::sessions::{SessionReport, SessionsHandle};
use crate::worker::tried;
use swarm_model::{EventKind, Refusal, RefusalKind};
use swarm_ports::Ports;

pub async fn start(ports: &Ports, supervisor: &ActorRef<SupervisorMessage>) -> Result<SessionsHandle, SupervisorError> {
    let myself = supervisor.clone();
    let tell = Arc::new(move |told| drop(myself.cast(SupervisorMessage::Heartbeat(told))));
    let started = SessionsHandle::start(ports.clone(), tell, supervisor.get_cell()).await;
    started.map_err(|error| SupervisorError::Start("heartbeat", error.to_string()))
}

impl State {
    pub(super) async fn restart_heartbeat(&mut self) -> Result<(), ActorProcessingErr> {
        self.heartbeat = start(&self.ports, &self.myself).await?;
        self.workers.all().for_each(crate::worker::WorkerHandle::tell_life);
        Ok(())
    }

    pub(super) fn heartbeat_told(&self, told: SessionReport) {
        let (worker, generation, found) = match told {
            SessionReport::Happened { worker, kind } => return self.emit_of(Some(worker), kind),
            SessionReport::Renew { worker, generation } => return self.renew(worker, generation),
            SessionReport::Escalated { worker, generation, rungs } => {
                return self.workers.get(&worker).map_or((), |handle| handle.record_escalation(generation, rungs));
            }
            SessionReport::Lost { worker, generation, found } => (worker, generation, found),
        };
        self.emit_of(Some(worker.clone()), EventKind::SessionLost { found: found.session });
        // Another launch or program owns the session now, so nothing in it is written or deleted.
        let Some(handle) = self.workers.get(&worker).cloned() else { return };
        tokio::spawn(async move {
            if let Err(refusal) = tried(|| handle.abandon(generation)).await {
                tracing::error!(worker, cause = %refusal.cause, "cannot stop a worker that lost its session");
            }
        });
    }

    /// Ends a worker that makes no progress, and starts it again.
    fn renew(&self, worker: String, generation: u64) {
        let Some(handle) = self.workers.get(&worker).cloned() else { return };
        let myself = self.myself.clone();
        tokio::spawn(async move {
            let refused = handle.renew(generation).await.err();
            // If another request was faster, there is nothing to report.
            let meant = |refusal: &Refusal| !matches!(refusal.kind, RefusalKind::Running | RefusalKind::Invalid);
            if let Some(refusal) = refused.filter(meant) {
                tracing::error!(worker, cause = %refusal.cause, "cannot restart a worker that makes no progress");
                let _ = myself.cast(SupervisorMessage::Heartbeat(SessionReport::Happened {
                    worker,
                    kind: EventKind::WorkerFailed { cause: refusal.cause },
                }));
            }
        });
    }
}
