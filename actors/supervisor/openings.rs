//! Actors that are started beside the supervisor's actor, because a start reads and locks files and may take long.
//! Until an actor has started, messages about it wait here in their order. All others are handled meanwhile.

use std::collections::BTreeMap;

use ractor::{ActorCell, ActorId, ActorProcessingErr};
use tokio::task::JoinSet;

use super::machine::{Child, Event, Kind};
use super::message::SupervisorMessage;
use super::state::State;
use crate::flow::FlowHandle;
use crate::loops::LoopHandle;
use crate::merge::{MergeHandle, Step};
use crate::run::RunHandle;
use swarm_model::merge::queue::Item;
use swarm_model::{Answer, FlowOrder, FlowPlace, Refusal, RefusalKind, RunOrder, Target};
use swarm_ports::BoxFuture;

/// Actor that has started, with its key.
#[derive(Clone, Debug)]
pub enum Started {
    Merge(Target, MergeHandle),
    Run(String, RunHandle),
    Loop(String, LoopHandle),
    Flow(FlowPlace, FlowHandle),
}

impl Started {
    fn cell(&self) -> ActorCell {
        match self {
            Self::Merge(_, queue) => queue.cell(),
            Self::Run(_, run) => run.cell(),
            Self::Loop(_, it) => it.cell(),
            Self::Flow(_, flow) => flow.cell(),
        }
    }
}

/// Result of a start. `Ok(None)` if there is nothing to start.
pub type Opened = Result<Option<Started>, Refusal>;

/// Reason of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Asked,
    /// The files say that the child is to run. If it cannot be started, the supervisor tries again.
    Resumed,
}

/// How an actor ended before its start was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Failed,
    Left,
}

/// Starts in progress.
#[derive(Default)]
pub struct Openings {
    /// Messages that wait, by the child that they are about.
    waiting: BTreeMap<Child, Vec<SupervisorMessage>>,
    ended: BTreeMap<ActorId, Ended>,
    /// Reports about queue items of runs whose ids are not known yet. The step is `None` if the item has settled.
    unclaimed: Vec<(Option<Step>, Item)>,
    /// Aborted with the supervisor's actor.
    tasks: JoinSet<()>,
}

impl Openings {
    pub fn has(&self, child: &Child) -> bool {
        self.waiting.contains_key(child)
    }

    pub fn children(&self) -> impl Iterator<Item = &Child> {
        self.waiting.keys()
    }

    /// Runs `work` beside the actor.
    pub fn spawn(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(work);
    }

    /// Keeps a report about a queue item for a run that is being started.
    pub fn keep_report(&mut self, step: Option<Step>, item: &Item) {
        let is_of_run = item.key.as_deref().is_some_and(|key| key.starts_with("run/"));
        if is_of_run && self.waiting.keys().any(|child| matches!(child, Child::Run(_))) {
            self.unclaimed.push((step, item.clone()));
        }
    }

    /// Notes the end of an actor that is no child yet.
    pub fn note_end(&mut self, actor: ActorId, has_failed: bool) {
        if !self.waiting.is_empty() {
            self.ended.insert(actor, if has_failed { Ended::Failed } else { Ended::Left });
        }
    }

    fn take_end(&mut self, actor: Option<ActorId>) -> Option<Ended> {
        let ended = actor.and_then(|actor| self.ended.remove(&actor));
        if self.waiting.is_empty() {
            self.ended.clear();
        }
        ended
    }

    fn take_reports(&mut self, run: &RunHandle) -> Vec<(Option<Step>, Item)> {
        let is_of = |(_, item): &mut (_, Item)| item.key.as_deref().is_some_and(|key| run.has_queued(key));
        self.unclaimed.extract_if(.., is_of).collect()
    }
}

impl State {
    /// Handles a message, or keeps it until the start of the child that it is about is over.
    pub(super) async fn take(&mut self, message: SupervisorMessage) -> Result<(), ActorProcessingErr> {
        let subject = self.subject(&message);
        match subject.and_then(|child| self.openings.waiting.get_mut(&child)) {
            Some(waiting) => {
                waiting.push(message);
                Ok(())
            }
            None => self.dispatch(message).await,
        }
    }

    /// Returns the child that a message is about, if that is one that is started beside this actor.
    fn subject(&self, message: &SupervisorMessage) -> Option<Child> {
        Some(match message {
            SupervisorMessage::Queue(target, _) | SupervisorMessage::Merge(target, _) => Child::Merge(target.clone()),
            // A queue that is being started may have the item.
            SupervisorMessage::QueueOf(key, _) => match self.queued.get(key) {
                Some(target) => Child::Merge(target.clone()),
                None => self.opening(Kind::Merges)?,
            },
            // A list would lack those that are being started.
            SupervisorMessage::Queues(_) => self.opening(Kind::Merges)?,
            SupervisorMessage::Runs(_) => self.opening(Kind::Runs)?,
            SupervisorMessage::RunOf(key, _) if self.run_of_key(key).is_none() => self.opening(Kind::Runs)?,
            SupervisorMessage::RunRequest(request, _) => Child::Run(match &request.order {
                RunOrder::Begin { plan, .. } => plan.home.clone(),
                RunOrder::Stop { home }
                | RunOrder::Hold { home }
                | RunOrder::Resume { home }
                | RunOrder::GiveUp { home, .. } => home.clone(),
            }),
            SupervisorMessage::Run(home, _) => Child::Run(home.clone()),
            SupervisorMessage::OpenLoop(name, ..) | SupervisorMessage::Loop(name, _) => Child::Loop(name.clone()),
            SupervisorMessage::FlowRequest(request, _) => Child::Flow(request.place.clone()),
            SupervisorMessage::Flow(place, _) => Child::Flow(place.clone()),
            _ => return None,
        })
    }

    /// Returns a child of this kind that is being started.
    fn opening(&self, kind: Kind) -> Option<Child> {
        self.openings.children().find(|child| child.kind() == Some(kind)).cloned()
    }

    /// Starts an actor beside this one. `then` gets the result, after the actor became a child. The start counts as a
    /// request.
    pub(super) fn open(
        &mut self,
        child: Child,
        why: Why,
        start: BoxFuture<'static, Opened>,
        then: impl FnOnce(Opened) + Send + 'static,
    ) {
        self.request_began();
        self.openings.waiting.insert(child.clone(), Vec::new());
        let myself = self.myself.clone();
        self.openings.spawn(async move {
            // A panic must not leave the child reserved.
            let mut alone = JoinSet::new();
            alone.spawn(start);
            let opened = match alone.join_next().await {
                Some(Ok(opened)) => opened,
                Some(Err(_)) | None => {
                    Err(Refusal::new(RefusalKind::Internal, "the start failed inside the supervisor"))
                }
            };
            let _ = myself.cast(SupervisorMessage::Opened(child, why, Box::new(opened.clone())));
            then(opened);
        });
    }

    /// Makes a started actor a child, and handles the messages that waited for it.
    pub(super) async fn opened(&mut self, child: Child, why: Why, opened: Opened) -> Result<(), ActorProcessingErr> {
        let waiting = self.openings.waiting.remove(&child).unwrap_or_default();
        let actor = opened.as_ref().ok().and_then(Option::as_ref).map(|started| started.cell().get_id());
        let ended = self.openings.take_end(actor);
        match opened {
            Ok(started) => {
                self.is_resumed(&child).await?;
                if let Some(started) = started {
                    self.admit(started).await?;
                }
            }
            Err(refusal) if why == Why::Resumed => self.cannot_resume(&child, refusal.cause).await?,
            Err(_) => {}
        }
        for message in waiting.into_iter().filter(|message| !is_abandoned(message)) {
            Box::pin(self.take(message)).await?;
        }
        match (ended, actor) {
            (Some(Ended::Failed), Some(actor)) => self.child_failed(actor, "it failed right after its start").await?,
            (Some(Ended::Left), Some(actor)) => self.left(actor),
            _ => {}
        }
        self.feed(Event::RequestEnded).await
    }

    /// Makes a started actor a child.
    pub(super) async fn admit(&mut self, started: Started) -> Result<(), ActorProcessingErr> {
        let child = match started {
            Started::Merge(target, queue) => {
                self.queued.extend(queue.journaled_keys().iter().map(|key| (key.clone(), target.clone())));
                self.merges.insert(&target, queue);
                // The queue itself reports whether the supervisor must stay.
                return Ok(());
            }
            Started::Run(home, run) => {
                for (step, item) in self.openings.take_reports(&run) {
                    match step {
                        Some(step) => run.merging(step, item),
                        None => run.settled(item),
                    }
                }
                self.runs.insert(&home, run)
            }
            Started::Loop(name, it) => self.loops.insert(&name, it),
            Started::Flow(place, flow) => self.flows.insert(&place, flow),
        };
        self.feed(Event::Live { child, live: true }).await
    }

    /// Reports whether an actor of this child runs, is being started, or is just leaving.
    pub(super) fn has_actor(&self, child: &Child) -> bool {
        self.openings.has(child)
            || match child {
                Child::Merge(target) => self.merges.has_actor(target),
                Child::Run(home) => self.runs.has_actor(home),
                Child::Loop(name) => self.loops.has_actor(name),
                Child::Flow(place) => self.flows.has_actor(place),
                Child::Registry | Child::Worker(_) | Child::Heartbeat | Child::Nudges => true,
            }
    }
}

/// Reports whether a message would begin something for a caller that was refused meanwhile.
fn is_abandoned(message: &SupervisorMessage) -> bool {
    match message {
        SupervisorMessage::OpenLoop(_, _, reply) => reply.is_closed(),
        SupervisorMessage::Queue(_, reply) => reply.is_closed(),
        SupervisorMessage::RunRequest(request, answers) => {
            matches!(request.order, RunOrder::Begin { .. }) && answers.is_closed()
        }
        SupervisorMessage::FlowRequest(request, answers) => {
            matches!(request.order, FlowOrder::Run(_)) && answers.is_closed()
        }
        _ => false,
    }
}

/// Returns the last two answers to a request.
pub fn answer(answers: &tokio::sync::mpsc::UnboundedSender<Answer>, answer: Result<Answer, Refusal>) {
    let _ = answers.send(answer.unwrap_or_else(Answer::Refused));
    let _ = answers.send(Answer::Done);
}
