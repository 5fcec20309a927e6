//! Nudges: starts their actor and passes requests on to it.

use std::sync::Arc;

use ractor::{ActorProcessingErr, ActorRef};
use tokio::sync::mpsc::UnboundedSender;

use super::error::SupervisorError;
use super::machine::{Child, Event};
use super::message::SupervisorMessage;
use super::state::State;
use crate::nudges::{NudgeReport, NudgesArguments, NudgesHandle};
use crate::registry::RegistryHandle;
use crate::worker;
use swarm_model::{Answer, NudgeOrder, NudgeRequest, Refusal, RefusalKind};
use swarm_ports::Ports;

pub async fn start(ports: &Ports, supervisor: &ActorRef<SupervisorMessage>) -> Result<NudgesHandle, SupervisorError> {
    let upwards = supervisor.clone();
    let arguments = NudgesArguments {
        ports: ports.clone(),
        tell: Arc::new(move |told| drop(upwards.cast(SupervisorMessage::Nudges(told)))),
    };
    let started = NudgesHandle::start(arguments, supervisor.get_cell()).await;
    started.map_err(|error| SupervisorError::Start("nudges", error.to_string()))
}

impl State {
    pub(super) async fn restart_nudges(&mut self) -> Result<(), ActorProcessingErr> {
        self.nudges = start(&self.ports, &self.myself).await?;
        Ok(())
    }

    pub(super) async fn nudges_told(&mut self, told: NudgeReport) -> Result<(), ActorProcessingErr> {
        match told {
            NudgeReport::Live(live) => self.feed(Event::Live { child: Child::Nudges, live }).await,
        }
    }

    /// Carries out a request about nudges, in a separate task.
    pub(super) fn begin_nudge(&self, request: NudgeRequest, answers: UnboundedSender<Answer>) {
        let (registry, nudges) = (self.registry.clone(), self.nudges.clone());
        self.beside(async move {
            let answer = match check(&request, &registry).await {
                Ok(()) => nudges.ask(request).await,
                Err(refusal) => Err(refusal),
            };
            let _ = answers.send(answer.map_or_else(Answer::Refused, Answer::Nudge));
            let _ = answers.send(Answer::Done);
        });
    }
}

/// Refuses to start a nudge for a worker that does not exist or has no window to type into. An
/// existing nudge may be changed even if its worker is gone.
async fn check(request: &NudgeRequest, registry: &RegistryHandle) -> Result<(), Refusal> {
    let NudgeOrder::Start { .. } = &request.order else { return Ok(()) };
    let name = request.worker.as_str();
    let refuse = |kind, cause: String| Err(Refusal::new(kind, cause).of(name));
    match registry.find(name).await.map_err(|error| worker::of_store(&error))? {
        None => refuse(RefusalKind::NotFound, format!("worker '{name}' not found")),
        Some(row) if row.tmux.is_none() => refuse(RefusalKind::Invalid, "heartbeat requires tmux worker".to_owned()),
        Some(_) => Ok(()),
    }
}
