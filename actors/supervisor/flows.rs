//! Flows: starts and resumes them, and carries out requests about them.

use std::sync::Arc;

use ractor::ActorProcessingErr;
use tokio::sync::mpsc::UnboundedSender;

use super::children::not_started;
use super::client::SupervisorClient;
use super::machine::{Child, Event};
use super::message::SupervisorMessage;
use super::state::State;
use crate::flow::{FlowArguments, FlowHandle, FlowReport};
use swarm_model::flow::Begin;
use swarm_model::{Answer, FlowLine, FlowOrder, FlowPlace, FlowRequest, Refusal, RefusalKind};

/// Maximum time that the workers of a stopped flow may take to end.
const STOP_MAX: std::time::Duration = std::time::Duration::from_secs(30);

impl State {
    /// Resumes every flow that is active. A flow that cannot resume is logged; the others still start.
    pub(super) async fn resume_flows(&mut self) -> Result<(), ActorProcessingErr> {
        match self.ports.flows.active().await {
            Ok(places) => {
                for place in places {
                    self.resume_flow(&place).await?;
                }
            }
            Err(error) => tracing::error!(%error, "cannot list the flows"),
        }
        Ok(())
    }

    pub(super) async fn resume_flow(&mut self, place: &FlowPlace) -> Result<(), ActorProcessingErr> {
        if let Err(refusal) = self.open_flow(place, None).await? {
            tracing::error!(flow = %place, cause = %refusal.cause, "cannot resume a flow");
        }
        Ok(())
    }

    async fn open_flow(
        &mut self,
        place: &FlowPlace,
        begin: Option<Begin>,
    ) -> Result<Result<(), Refusal>, ActorProcessingErr> {
        let (myself, about) = (self.myself.clone(), place.clone());
        let arguments = FlowArguments {
            place: place.clone(),
            begin,
            ports: self.ports.clone(),
            fleet: Arc::new(SupervisorClient(self.myself.clone())),
            tell: Arc::new(move |told| drop(myself.cast(SupervisorMessage::Flow(about.clone(), told)))),
        };
        let flow = match FlowHandle::start(arguments, self.myself.get_cell()).await {
            Ok(flow) => flow,
            Err(error) => return Ok(Err(not_started(error, RefusalKind::Invalid))),
        };
        let child = self.flows.insert(place, flow);
        self.feed(Event::Live { child, live: true }).await?;
        Ok(Ok(()))
    }

    pub(super) async fn flow_told(&mut self, place: FlowPlace, told: FlowReport) -> Result<(), ActorProcessingErr> {
        match told {
            FlowReport::Over => {
                self.flows.remove(&place);
                self.feed(Event::Live { child: Child::Flow(place), live: false }).await
            }
        }
    }

    /// Carries out a request about a flow.
    pub(super) async fn begin_flow(
        &mut self,
        request: FlowRequest,
        answers: UnboundedSender<Answer>,
    ) -> Result<(), ActorProcessingErr> {
        let FlowRequest { caller, place, order } = request;
        let known = self.flows.get(&place).cloned();
        let answer = match (order, known) {
            (FlowOrder::Run(rules), Some(flow)) => {
                let myself = self.myself.clone();
                self.beside(async move {
                    if flow.run().await {
                        let _ = answers.send(Answer::Flow(FlowLine { place, done: "running".to_owned() }));
                        let _ = answers.send(Answer::Done);
                        return;
                    }
                    // The actor is just leaving. Start the flow again after that.
                    let _ = flow.cell().wait(Some(STOP_MAX)).await;
                    let request = FlowRequest { caller, place, order: FlowOrder::Run(rules) };
                    let _ = myself.cast(SupervisorMessage::FlowRequest(Box::new(request), answers));
                });
                return Ok(());
            }
            (FlowOrder::Run(rules), None) => {
                let opened = self.open_flow(&place, Some(Begin { rules, caller })).await?;
                opened.map(|()| "running")
            }
            (FlowOrder::Wake, Some(flow)) => {
                flow.wake();
                Ok("woken")
            }
            // The next actor that runs the flow reads its files anyway.
            (FlowOrder::Wake, None) => Ok("woken"),
            (FlowOrder::Stop { .. } | FlowOrder::Rest, None) => {
                let refusal = Refusal::new(RefusalKind::NotFound, format!("flow '{place}' is not running"));
                Err(refusal.remedy(format!("run 'swarm flow run {place}'")))
            }
            (order, Some(flow)) => {
                self.beside(async move {
                    let answer = match carry_out(&flow, order).await {
                        Ok(done) => Answer::Flow(FlowLine { place, done: done.to_owned() }),
                        Err(refusal) => Answer::Refused(refusal),
                    };
                    let _ = answers.send(answer);
                    let _ = answers.send(Answer::Done);
                });
                return Ok(());
            }
        };
        let answer = answer.map(|done| Answer::Flow(FlowLine { place, done: done.to_owned() }));
        let _ = answers.send(answer.unwrap_or_else(Answer::Refused));
        let _ = answers.send(Answer::Done);
        self.feed(Event::RequestEnded).await
    }
}

async fn carry_out(flow: &FlowHandle, order: FlowOrder) -> Result<&'static str, Refusal> {
    match order {
        FlowOrder::Stop { node: Some(node) } => {
            let stopped = flow.stop_node(node).await;
            stopped.map_err(|error| Refusal::new(RefusalKind::NotFound, error.to_string()))?;
            Ok("stopping")
        }
        FlowOrder::Stop { node: None } => {
            flow.stop();
            match flow.cell().wait(Some(STOP_MAX)).await {
                Ok(()) => Ok("stopped"),
                Err(_) => Ok("stopping"),
            }
        }
        FlowOrder::Rest => match flow.rests().await {
            Some(true) => Ok("over"),
            Some(false) => Ok("waiting"),
            None => Ok("stopped"),
        },
        FlowOrder::Run(_) | FlowOrder::Wake => {
            flow.wake();
            Ok("running")
        }
    }
}
