//! Things on disk that need a supervisor: read and resumed at the start. What cannot be read or resumed is tried again,
//! and keeps the supervisor until then.

use std::collections::{BTreeMap, BTreeSet};

use ractor::ActorProcessingErr;
use tokio::task::JoinSet;

use super::machine::{Child, Event, Kind};
use super::message::SupervisorMessage;
use super::openings::{Opened, Why};
use super::state::State;
use crate::unread::{READ_PAUSE, UnreadPlaces};
use swarm_model::{EventKind, Refusal, RefusalKind};
use swarm_ports::{BoxFuture, DamagedJournal, Ports, Survey, Unread};

/// What could not be read or resumed.
#[derive(Default)]
pub struct Owed {
    places: BTreeMap<Kind, UnreadPlaces>,
    /// Kinds that will be read again, or are being read.
    due: BTreeSet<Kind>,
    /// Children that could not be started while their kind is being read.
    failed: BTreeMap<Kind, BTreeSet<String>>,
}

impl State {
    /// Resumes everything of this kind that is on disk. The starts go on beside this actor.
    pub(super) async fn resume(&mut self, kind: Kind) -> Result<(), ActorProcessingErr> {
        let Survey { found, unread } = survey(&self.ports, kind).await;
        for child in found {
            self.reopen(child);
        }
        self.owe(kind, unread).await
    }

    /// Starts the actor of a child that is on disk, beside this actor.
    pub(super) fn reopen(&mut self, child: Child) {
        // It is being started already, on request.
        if self.openings.has(&child) {
            return;
        }
        let start = self.start_of(&child);
        self.open(child, Why::Resumed, start, drop);
    }

    /// Returns the start of a child whose kind could not be read completely, so that it may be on disk; `None` if
    /// it cannot be. The start returns `None` if the child is not on disk.
    pub(super) fn resumption(&self, child: &Child) -> Option<BoxFuture<'static, Opened>> {
        let kind = child.kind()?;
        if self.owed.places.get(&kind)?.is_empty() {
            return None;
        }
        let (ports, child, start) = (self.ports.clone(), child.clone(), self.start_of(child));
        Some(Box::pin(async move {
            let Survey { found, unread } = survey(&ports, kind).await;
            if found.contains(&child) {
                return start.await;
            }
            // Each of them may be this child.
            let Some(Unread { place: unread, cause }) = unread.into_iter().next() else { return Ok(None) };
            let cause =
                format!("cannot find out whether the {} {} is active: {unread}: {cause}", kind.noun(), place(&child));
            let refusal = Refusal::new(RefusalKind::Registry, cause);
            Err(refusal.remedy("make it readable, or remove it if it is damaged; the supervisor tries again every 5 s"))
        }))
    }

    fn start_of(&self, child: &Child) -> BoxFuture<'static, Opened> {
        match child {
            Child::Merge(target) => self.start_queue(target),
            Child::Run(home) => self.start_run(home, None),
            Child::Loop(name) => self.start_loop(name, None),
            Child::Flow(place) => self.start_flow(place, None),
            Child::Registry | Child::Worker(_) | Child::Heartbeat | Child::Nudges => {
                Box::pin(std::future::ready(Ok(None)))
            }
        }
    }

    /// Reads again what could not be read, beside this actor.
    pub(super) fn survey(&mut self, kind: Kind) {
        // What runs now may end before it is read.
        let children = [
            self.merges.keys().cloned().map(Child::Merge).collect::<Vec<_>>(),
            self.runs.keys().cloned().map(Child::Run).collect(),
            self.loops.keys().cloned().map(Child::Loop).collect(),
            self.flows.keys().cloned().map(Child::Flow).collect(),
        ];
        let known: BTreeSet<Child> = children.into_iter().flatten().chain(self.openings.children().cloned()).collect();
        self.owed.failed.insert(kind, BTreeSet::new());
        let (ports, myself) = (self.ports.clone(), self.myself.clone());
        self.openings.spawn(async move {
            let mut alone = JoinSet::new();
            alone.spawn(async move { survey(&ports, kind).await });
            let mut found = match alone.join_next().await {
                Some(Ok(found)) => found,
                Some(Err(_)) | None => missed(kind, "internal error"),
            };
            found.found.retain(|child| !known.contains(child));
            let _ = myself.cast(SupervisorMessage::Surveyed(kind, Box::new(found)));
        });
    }

    /// Resumes what was read at last.
    pub(super) async fn surveyed(&mut self, kind: Kind, survey: Survey<Child>) -> Result<(), ActorProcessingErr> {
        self.owed.due.remove(&kind);
        let Survey { mut found, mut unread } = survey;
        found.retain(|child| !self.has_actor(child));
        // A child that could not be started stays owed until it is.
        let failed = self.owed.failed.remove(&kind).unwrap_or_default();
        let places = self.owed.places.entry(kind).or_default();
        let opening = self.openings.children().filter(|child| child.kind() == Some(kind));
        let mut owed: BTreeSet<String> = found.iter().chain(opening).map(place).chain(failed).collect();
        owed.retain(|place| unread.iter().all(|one| one.place != *place));
        unread.extend(owed.iter().filter_map(|place| places.get(place)));
        for child in found {
            self.reopen(child);
        }
        self.owe(kind, unread).await
    }

    /// Notes that a child runs, or that there is nothing to run.
    pub(super) async fn is_resumed(&mut self, child: &Child) -> Result<(), ActorProcessingErr> {
        let Some(kind) = child.kind() else { return Ok(()) };
        let Some(places) = self.owed.places.get_mut(&kind) else { return Ok(()) };
        places.remove(&place(child));
        let owes = !places.is_empty();
        self.feed(Event::Owed { kind, owes }).await
    }

    /// Notes that a child cannot be resumed yet.
    pub(super) async fn cannot_resume(&mut self, child: &Child, cause: String) -> Result<(), ActorProcessingErr> {
        let Some(kind) = child.kind() else { return Ok(()) };
        let mut unread = self.owed.places.entry(kind).or_default().all();
        let place = place(child);
        if let Some(failed) = self.owed.failed.get_mut(&kind) {
            failed.insert(place.clone());
        }
        unread.retain(|one| one.place != place);
        unread.push(Unread { place, cause });
        self.owe(kind, unread).await
    }

    /// Sets what is owed of a kind. Logs what is new, and tries again after a pause.
    async fn owe(&mut self, kind: Kind, unread: Vec<Unread>) -> Result<(), ActorProcessingErr> {
        let places = self.owed.places.entry(kind).or_default();
        for Unread { place, cause } in places.replace(unread) {
            tracing::error!(place, cause, "cannot resume {} yet, trying again", kind.noun());
        }
        let owes = !places.is_empty();
        if owes && self.owed.due.insert(kind) {
            self.myself.send_after(READ_PAUSE, move || SupervisorMessage::Survey(kind));
        }
        self.feed(Event::Owed { kind, owes }).await
    }
}

/// Reads everything of a kind that is on disk.
async fn survey(ports: &Ports, kind: Kind) -> Survey<Child> {
    let read = match kind {
        Kind::Merges => {
            set_damaged_aside(ports).await;
            ports.landings.targets().await.map(|survey| survey.map(Child::Merge))
        }
        Kind::Runs => ports.runs.active().await.map(|survey| survey.map(Child::Run)),
        Kind::Loops => ports.loops.active().await.map(|survey| survey.map(Child::Loop)),
        Kind::Flows => ports.flows.active().await.map(|survey| survey.map(Child::Flow)),
    };
    read.unwrap_or_else(|error| missed(kind, error))
}

/// A journal that cannot be set aside cannot be read either, and is then listed as unread.
async fn set_damaged_aside(ports: &Ports) {
    match ports.landings.set_damaged_aside().await {
        Ok(damaged) => {
            for DamagedJournal { base, file, cause } in damaged {
                tracing::error!(%cause, "the journal of a merge queue was damaged");
                super::actor::emit(ports, None, EventKind::MergeDamaged { base, file, cause });
            }
        }
        Err(error) => tracing::error!(%error, "cannot check the journals of the merge queues"),
    }
}

fn missed(kind: Kind, cause: impl ToString) -> Survey<Child> {
    let mut survey = Survey::default();
    survey.miss(format!("all {}s", kind.noun()), cause);
    survey
}

/// Returns the name of a child for messages.
fn place(child: &Child) -> String {
    match child {
        Child::Merge(target) => format!("{} of {}", target.base(), target.repository),
        Child::Run(home) => home.clone(),
        Child::Loop(name) => name.clone(),
        Child::Flow(place) => place.to_string(),
        Child::Registry | Child::Worker(_) | Child::Heartbeat | Child::Nudges => String::new(),
    }
}
