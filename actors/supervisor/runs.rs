//! Runs: starts and resumes them, informs them about their queue items, and carries out requests
//! about them.

use std::sync::Arc;

use ractor::ActorProcessingErr;
use tokio::sync::mpsc::UnboundedSender;

use super::children::not_started;
use super::client::SupervisorClient;
use super::machine::{Child, Event};
use super::message::SupervisorMessage;
use super::state::State;
use crate::merge::Step;
use crate::run::{Ask, Begin, RunArguments, RunHandle, RunReport};
use swarm_model::merge::queue::Item;
use swarm_model::{Answer, EventKind, Refusal, RefusalKind, RunLine, RunOrder, RunRequest};

impl State {
    /// Tells the run that queued this item that a merge step has started.
    pub(super) fn run_merging(&self, step: &Step, item: &Item) {
        if let Some(run) = self.run_of(item) {
            run.merging(step.clone(), item.clone());
        }
    }

    /// Tells the run that queued this item that it has settled.
    pub(super) fn run_settled(&self, item: &Item) {
        if let Some(run) = self.run_of(item) {
            run.settled(item.clone());
        }
    }

    /// Returns the run that queued the item, if that run is not over.
    fn run_of(&self, item: &Item) -> Option<&RunHandle> {
        let key = item.key.as_deref()?;
        self.runs.all().find(|run| run.has_queued(key))
    }

    /// Resumes every run that is not over. A run that cannot resume is logged; the others still start.
    pub(super) async fn resume_runs(&mut self) -> Result<(), ActorProcessingErr> {
        match self.ports.runs.active().await {
            Ok(homes) => {
                for home in homes {
                    self.resume_run(&home).await?;
                }
            }
            Err(error) => tracing::error!(%error, "cannot list the runs"),
        }
        Ok(())
    }

    pub(super) async fn resume_run(&mut self, home: &str) -> Result<(), ActorProcessingErr> {
        if let Err(refusal) = self.run(home, None).await? {
            tracing::error!(home, cause = %refusal.cause, "cannot resume a run");
        }
        Ok(())
    }

    async fn run(&mut self, home: &str, begin: Option<Begin>) -> Result<Result<(), Refusal>, ActorProcessingErr> {
        let (myself, about) = (self.myself.clone(), home.to_owned());
        let arguments = RunArguments {
            home: home.to_owned(),
            begin,
            ports: self.ports.clone(),
            fleet: Arc::new(SupervisorClient(self.myself.clone())),
            tell: Arc::new(move |told| drop(myself.cast(SupervisorMessage::Run(about.clone(), told)))),
        };
        let run = match RunHandle::start(arguments, self.myself.get_cell()).await {
            Ok(run) => run,
            Err(error) => return Ok(Err(not_started(error, RefusalKind::Invalid))),
        };
        let child = self.runs.insert(&home.to_owned(), run);
        self.feed(Event::Live { child, live: true }).await?;
        Ok(Ok(()))
    }

    pub(super) async fn run_told(&mut self, home: String, told: RunReport) -> Result<(), ActorProcessingErr> {
        match told {
            RunReport::Over => {
                self.runs.remove(&home);
                self.feed(Event::Live { child: Child::Run(home), live: false }).await
            }
        }
    }

    /// Carries out a request about a run.
    pub(super) async fn begin_run(
        &mut self,
        request: RunRequest,
        answers: UnboundedSender<Answer>,
    ) -> Result<(), ActorProcessingErr> {
        let RunRequest { caller, order } = request;
        let (home, ask, done) = match order {
            RunOrder::Begin { plan, retry_failed } => {
                let answer = self.start_run(Begin { plan: *plan, caller, retry_failed }).await?;
                let _ = answers.send(answer);
                let _ = answers.send(Answer::Done);
                return self.feed(Event::RequestEnded).await;
            }
            RunOrder::Stop { home } => (home, Ask::Stop, "stopping"),
            RunOrder::Hold { home } => (home, Ask::Hold, "paused"),
            RunOrder::Resume { home } => (home, Ask::Resume, "resumed"),
        };
        let run = self.runs.get(&home).cloned();
        self.beside(async move {
            let answer = match run {
                None => {
                    let refusal = Refusal::new(RefusalKind::NotFound, format!("no run is in progress in {home}"));
                    Err(refusal.remedy("run 'swarm run' to start or continue one"))
                }
                Some(run) => match run.ask(ask).await {
                    // A stopped run with nothing at work may be over by now.
                    Ok(()) => Ok(RunLine { run: run.id(), home, done: done.to_owned() }),
                    Err(error) => Err(Refusal::new(RefusalKind::Registry, error.to_string())),
                },
            };
            let _ = answers.send(answer.map_or_else(Answer::Refused, Answer::Run));
            let _ = answers.send(Answer::Done);
        });
        Ok(())
    }

    async fn start_run(&mut self, begin: Begin) -> Result<Answer, ActorProcessingErr> {
        let (run, home) = (begin.plan.id.clone(), begin.plan.home.clone());
        let repeated = begin.caller.repeated > 0;
        if repeated && self.ports.runs.began_by(&home, &begin.caller.request).await {
            // A repeated request whose first answer was lost; the run is in progress or already over.
            return Ok(Answer::Run(RunLine { run, home, done: "started".to_owned() }));
        }
        if self.runs.get(&home).is_some() {
            let refusal = Refusal::new(RefusalKind::Exists, format!("a run is in progress in {home}"));
            let remedy = "run 'swarm run attach' to watch it, or 'swarm run stop' to end it";
            return Ok(Answer::Refused(refusal.remedy(remedy)));
        }
        Ok(match self.run(&home, Some(begin)).await? {
            Ok(()) => {
                self.emit_of(None, EventKind::RunBegan { run: run.clone(), home: home.clone() });
                Answer::Run(RunLine { run, home, done: "started".to_owned() })
            }
            Err(refusal) => Answer::Refused(refusal),
        })
    }
}
