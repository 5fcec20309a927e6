//! Flows: starts and resumes them, and carries out requests about them.

use std::sync::Arc;

use ractor::ActorProcessingErr;
use tokio::sync::mpsc::UnboundedSender;

use super::children::not_started;
use super::client::SupervisorClient;
use super::machine::{Child, Event};
use super::message::SupervisorMessage;
use super::openings::{Opened, Started, Why, answer};
use super::state::State;
use crate::flow::{FlowArguments, FlowHandle, FlowReport};
use swarm_model::flow::Begin;
use swarm_model::{Answer, FlowLine, FlowOrder, FlowPlace, FlowRequest, Refusal, RefusalKind};
use swarm_ports::BoxFuture;

/// Maximum time that the workers of a stopped flow may take to end.
const STOP_MAX: std::time::Duration = std::time::Duration::from_secs(30);

impl State {
    pub(super) fn start_flow(&self, place: &FlowPlace, begin: Option<Begin>) -> BoxFuture<'static, Opened> {
        let (myself, about, place) = (self.myself.clone(), place.clone(), place.clone());
        let arguments = FlowArguments {
            place: place.clone(),
            begin,
            ports: self.ports.clone(),
            fleet: Arc::new(SupervisorClient(self.myself.clone())),
            tell: Arc::new(move |told| drop(myself.cast(SupervisorMessage::Flow(about.clone(), told)))),
        };
        let parent = self.myself.get_cell();
        Box::pin(async move {
            let started = FlowHandle::start(arguments, parent).await;
            let flow = started.map_err(|error| not_started(error, RefusalKind::Invalid))?;
            Ok(Some(Started::Flow(place, flow)))
        })
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
        let done = match (order, known) {
            (FlowOrder::Run(rules), Some(flow)) => {
                let myself = self.myself.clone();
                self.beside(async move {
                    if flow.run().await {
                        return answer(&answers, Ok(line(place, "running")));
                    }
                    // The actor is just leaving. Start the flow again after that.
                    let _ = flow.cell().wait(Some(STOP_MAX)).await;
                    let request = FlowRequest { caller, place, order: FlowOrder::Run(rules) };
                    let _ = myself.cast(SupervisorMessage::FlowRequest(Box::new(request), answers));
                });
                return Ok(());
            }
            (FlowOrder::Run(rules), None) => {
                let start = self.start_flow(&place, Some(Begin { rules, caller }));
                self.open(Child::Flow(place.clone()), Why::Asked, start, move |opened| {
                    answer(&answers, opened.map(|_| line(place, "running")));
                });
                return self.feed(Event::RequestEnded).await;
            }
            (FlowOrder::Wake, flow) => {
                // Without an actor: the next one that runs the flow reads its files anyway.
                flow.iter().for_each(FlowHandle::wake);
                "woken"
            }
            (order @ (FlowOrder::Stop { .. } | FlowOrder::Rest), None) => {
                let child = Child::Flow(place.clone());
                let Some(start) = self.resumption(&child) else {
                    answer(&answers, Err(not_running(&place)));
                    return self.feed(Event::RequestEnded).await;
                };
                self.open(child, Why::Resumed, start, move |opened| {
                    tokio::spawn(async move {
                        let done = match opened {
                            Ok(Some(Started::Flow(_, flow))) => carry_out(&flow, order).await,
                            Ok(_) => Err(not_running(&place)),
                            Err(refusal) => Err(refusal),
                        };
                        answer(&answers, done.map(|done| line(place, done)));
                    });
                });
                return self.feed(Event::RequestEnded).await;
            }
            (order, Some(flow)) => {
                self.beside(async move {
                    answer(&answers, carry_out(&flow, order).await.map(|done| line(place, done)));
                });
                return Ok(());
            }
        };
        answer(&answers, Ok(line(place, done)));
        self.feed(Event::RequestEnded).await
    }
}

fn line(place: FlowPlace, done: &str) -> Answer {
    Answer::Flow(FlowLine { place, done: done.to_owned() })
}

fn not_running(place: &FlowPlace) -> Refusal {
    let refusal = Refusal::new(RefusalKind::NotFound, format!("flow '{place}' is not running"));
    refusal.remedy(format!("run 'swarm flow run {place}'"))
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
