//! Runs: starts and resumes them, informs them about their queue items, and carries out requests
//! about them.

use std::sync::{Arc, OnceLock};

use ractor::ActorProcessingErr;
use tokio::sync::mpsc::UnboundedSender;

use super::actor::emit;
use super::children::not_started;
use super::client::SupervisorClient;
use super::machine::{Child, Event};
use super::message::SupervisorMessage;
use super::openings::{Opened, Started, Why, answer};
use super::state::State;
use crate::merge::Step;
use crate::run::{Ask, Begin, RunArguments, RunError, RunHandle, RunReport};
use swarm_model::merge::queue::Item;
use swarm_model::{Answer, Caller, EventKind, Refusal, RefusalKind, RunLine, RunOrder, RunRequest};
use swarm_ports::{BoxFuture, Ports};

impl State {
    /// Tells the run that queued this item that a merge step has started.
    pub(super) fn run_merging(&mut self, step: &Step, item: &Item) {
        if matches!(step, Step::Building | Step::Landing { .. }) {
            // They take a moment, and a run does not report them.
            return;
        }
        match self.run_of(item) {
            Some(run) => run.merging(step.clone(), item.clone()),
            None => self.openings.keep_report(Some(step.clone()), item),
        }
    }

    /// Tells the run that queued this item that it has settled; all runs, if none of them did.
    pub(super) fn run_settled(&mut self, item: &Item) {
        match self.run_of(item) {
            Some(run) => run.settled(item.clone()),
            None => {
                self.openings.keep_report(None, item);
                // A person may have added work of a run again, under another key.
                self.runs.all().for_each(|run| run.settled(item.clone()));
            }
        }
    }

    /// Returns the run that queued the item, if that run is not over.
    fn run_of(&self, item: &Item) -> Option<&RunHandle> {
        self.run_of_key(item.key.as_deref()?)
    }

    pub(super) fn run_of_key(&self, key: &str) -> Option<&RunHandle> {
        self.runs.all().find(|run| run.has_queued(key))
    }

    pub(super) fn start_run(&self, home: &str, begin: Option<Begin>) -> BoxFuture<'static, Opened> {
        let (myself, about, home) = (self.myself.clone(), home.to_owned(), home.to_owned());
        let mut arguments = RunArguments {
            home: home.clone(),
            begin: None,
            ports: self.ports.clone(),
            fleet: Arc::new(SupervisorClient(self.myself.clone())),
            tell: Arc::new(move |told| drop(myself.cast(SupervisorMessage::Run(about.clone(), told)))),
        };
        let (parent, desk) = (self.myself.get_cell(), self.desk());
        Box::pin(async move {
            if let Some(begin) = begin {
                arguments.begin = Some(desk.vetted(begin).await?);
            }
            let started = RunHandle::start(arguments, parent).await;
            let run = started.map_err(|error| not_started(error, RefusalKind::Invalid))?;
            Ok(Some(Started::Run(home, run)))
        })
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
                self.begin_new_run(Begin { plan: *plan, caller, retry_failed }, answers);
                return self.feed(Event::RequestEnded).await;
            }
            RunOrder::Stop { home } => (home, Ask::Stop, "stopping"),
            RunOrder::Hold { home } => (home, Ask::Hold, "paused"),
            RunOrder::Resume { home } => (home, Ask::Resume, "resumed"),
            RunOrder::GiveUp { home, jobs } => (home, Ask::GiveUp(jobs), "given up"),
        };
        let child = Child::Run(home.clone());
        match (self.runs.get(&home).cloned(), self.resumption(&child)) {
            (None, Some(start)) => {
                self.open(child, Why::Resumed, start, move |opened| {
                    tokio::spawn(async move {
                        let asked = match opened {
                            Ok(Some(Started::Run(_, run))) => ask_run(Some(run), ask, home, done).await,
                            Ok(_) => ask_run(None, ask, home, done).await,
                            Err(refusal) => Err(refusal),
                        };
                        answer(&answers, asked);
                    });
                });
                self.feed(Event::RequestEnded).await
            }
            (run, _) => {
                self.beside(async move { answer(&answers, ask_run(run, ask, home, done).await) });
                Ok(())
            }
        }
    }

    /// Starts a run beside this actor, and answers.
    fn begin_new_run(&mut self, begin: Begin, answers: UnboundedSender<Answer>) {
        let (run, home) = (begin.plan.id.clone(), begin.plan.home.clone());
        let began = began(self.ports.clone(), home.clone(), &begin.caller);
        let line = RunLine { run: run.clone(), home: home.clone(), done: "started".to_owned() };
        if self.runs.get(&home).is_some() {
            self.request_began();
            self.beside(async move {
                answer(
                    &answers,
                    match began.await {
                        Ok(true) => Ok(Answer::Run(line)),
                        Ok(false) => Err(in_progress(&home)),
                        Err(refusal) => Err(refusal),
                    },
                );
            });
            return;
        }
        let (new, ports) = (self.start_run(&home, Some(begin)), self.ports.clone());
        let (child, is_old) = (Child::Run(home.clone()), Arc::new(OnceLock::new()));
        let (resumption, found_old) = (self.resumption(&child), Arc::clone(&is_old));
        let start = async move {
            if began.await? {
                return Ok(None);
            }
            match resumption {
                Some(resumption) => match resumption.await? {
                    Some(old) => {
                        let _ = found_old.set(());
                        Ok(Some(old))
                    }
                    None => new.await,
                },
                None => new.await,
            }
        };
        self.open(child, Why::Asked, Box::pin(start), move |opened| {
            let opened = if is_old.get().is_some() { Err(in_progress(&home)) } else { opened };
            if matches!(opened, Ok(Some(_))) {
                emit(&ports, None, EventKind::RunBegan { run, home });
            }
            answer(&answers, opened.map(|_| Answer::Run(line)));
        });
    }
}

/// Reports whether an earlier attempt of the same request, whose answer was lost, started the run. The run is in progress
/// or already over.
fn began(ports: Ports, home: String, caller: &Caller) -> BoxFuture<'static, Result<bool, Refusal>> {
    let (is_repeated, request) = (caller.repeated > 0, caller.request.clone());
    Box::pin(async move {
        if !is_repeated {
            return Ok(false);
        }
        let unreadable = |error: std::io::Error| {
            let cause = format!("cannot find out whether the run in {home} was started: {error}");
            Refusal::new(RefusalKind::Registry, cause)
        };
        ports.runs.began_by(&home, &request).await.map_err(unreadable)
    })
}

/// Asks a run for something, and returns the answer to the request.
async fn ask_run(run: Option<RunHandle>, ask: Ask, home: String, done: &str) -> Result<Answer, Refusal> {
    let Some(run) = run else {
        let refusal = Refusal::new(RefusalKind::NotFound, format!("no run is in progress in {home}"));
        return Err(refusal.remedy("run 'swarm run' to start or continue one"));
    };
    match run.ask(ask).await {
        // A stopped run with nothing at work may be over by now.
        Ok(()) => Ok(Answer::Run(RunLine { run: run.id(), home, done: done.to_owned() })),
        Err(RunError::Refused(refusal)) => Err(refusal),
        Err(error) => Err(Refusal::new(RefusalKind::Registry, error.to_string())),
    }
}

fn in_progress(home: &str) -> Refusal {
    let refusal = Refusal::new(RefusalKind::Exists, format!("a run is in progress in {home}"));
    refusal.remedy("run 'swarm run attach' to watch it, or 'swarm run stop' to end it")
}
