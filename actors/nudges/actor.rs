//! Actor around [`machine`](super::machine): saves what it plans, sets the alarm, and runs tasks
//! that read and type into windows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::task::AbortHandle;

use super::attend::EffectRunner;
use super::machine::{Denied, Effect, Event, Machine, Plan, Then, Typed};
use super::message::{NudgeReport, NudgesMessage};
use crate::unread::{READ_PAUSE, UnreadPlaces};
use swarm_model::nudges::{Now, Nudge};
use swarm_model::{Event as Happening, NudgeLine, NudgeOrder, NudgeRequest, Refusal, RefusalKind};
use swarm_ports::{Alarm, Ports, Survey, Unread};

pub struct NudgesActor;

#[derive(Clone)]
pub struct NudgesArguments {
    pub ports: Ports,
    /// Reports to the supervisor without waiting.
    pub tell: Arc<dyn Fn(NudgeReport) + Send + Sync>,
}

pub struct State {
    arguments: NudgesArguments,
    myself: ActorRef<NudgesMessage>,
    machine: Machine,
    /// Running task of each worker.
    tasks: BTreeMap<String, AbortHandle>,
    /// Setting of the alarm, and its task.
    alarm: (Alarm, Option<AbortHandle>),
    alarms: u64,
    live: bool,
    /// Files that could not be read. One of them may be an active nudge.
    unread: UnreadPlaces,
}

impl Actor for NudgesActor {
    type Msg = NudgesMessage;
    type State = State;
    type Arguments = NudgesArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<NudgesMessage>,
        arguments: NudgesArguments,
    ) -> Result<State, ActorProcessingErr> {
        let mut state = State {
            arguments,
            myself,
            machine: Machine::default(),
            tasks: BTreeMap::new(),
            alarm: (Alarm::default(), None),
            alarms: 0,
            live: false,
            unread: UnreadPlaces::default(),
        };
        let nudges = state.load().await;
        let is_active = |nudge: &Nudge| nudge.status == swarm_model::nudges::Status::Active;
        state.live = nudges.iter().any(is_active) || !state.unread.is_empty();
        if state.live {
            (state.arguments.tell)(NudgeReport::Live(true));
        }
        if !nudges.is_empty() {
            // The caller waits for this start, and saving all nudges takes time.
            state.myself.cast(NudgesMessage::Found(nudges))?;
        }
        Ok(state)
    }

    async fn handle(
        &self,
        _: ActorRef<NudgesMessage>,
        message: NudgesMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            NudgesMessage::Found(nudges) => {
                for nudge in nudges {
                    state.feed(Event::Found(Box::new(nudge))).await;
                }
            }
            NudgesMessage::Load => {
                for nudge in state.load().await {
                    state.feed(Event::Found(Box::new(nudge))).await;
                }
            }
            NudgesMessage::Ask(request, reply) => {
                let answer = state.ask(*request).await;
                let _ = reply.send(answer);
            }
            NudgesMessage::Alarm(number) if number == state.alarms => {
                state.alarm = (Alarm::default(), None);
                state.feed(Event::Woken).await;
            }
            // The alarm was set again while this one fired.
            NudgesMessage::Alarm(_) => {}
            NudgesMessage::Happened(event) => state.feed(event).await,
            NudgesMessage::Killed(worker, reply) => {
                state.killed(&worker).await;
                let _ = reply.send(());
            }
            NudgesMessage::Cleaned(worker, reply) => {
                state.cleaned(&worker).await;
                let _ = reply.send(());
            }
        }
        state.settle();
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<NudgesMessage>, state: &mut State) -> Result<(), ActorProcessingErr> {
        std::mem::take(&mut state.tasks).into_values().for_each(|task| task.abort());
        if let Some(alarm) = state.alarm.1.take() {
            alarm.abort();
        }
        Ok(())
    }
}

impl State {
    fn ports(&self) -> &Ports {
        &self.arguments.ports
    }

    fn now(&self) -> Now {
        let clock = &self.ports().clock;
        Now { boot_ms: clock.boot_ms(), wall_ms: clock.wall_ms() }
    }

    /// Returns the nudges on disk that are not known yet. If something cannot be read, tries again after a pause.
    async fn load(&mut self) -> Vec<Nudge> {
        let survey = self.ports().nudges.load().await.unwrap_or_else(|error| {
            let mut survey = Survey::default();
            survey.miss("the nudges on disk", error);
            survey
        });
        for Unread { place, cause } in self.unread.replace(survey.unread) {
            tracing::error!(place, cause, "cannot read a nudge yet, trying again");
        }
        if !self.unread.is_empty() {
            self.myself.send_after(READ_PAUSE, || NudgesMessage::Load);
        }
        survey.found.into_iter().filter(|nudge| self.machine.get(&nudge.worker).is_none()).collect()
    }

    /// Handles an event, carries out its effects, and handles the events that follow.
    async fn feed(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let (now, nudges) = (self.now(), Arc::clone(&self.ports().nudges));
            let dates = |expression: &str, after: u64| nudges.date_after(expression, after).ok();
            for effect in self.machine.on(event, now, &dates) {
                events.extend(self.perform(effect).await);
            }
        }
    }

    async fn perform(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Save { nudge, then } => {
                let worker = nudge.worker.clone();
                return Some(match self.ports().nudges.save(&nudge).await {
                    Ok(()) => Event::Saved { nudge, then },
                    Err(error) => {
                        tracing::error!(worker, %error, "cannot save the nudge");
                        Event::Unsaved { worker }
                    }
                });
            }
            Effect::Look { worker, turn, message, reach_ms } => {
                let (attendant, about) = (self.attendant(), worker.clone());
                let broken = Event::Unsaved { worker };
                self.begin(about.clone(), broken, async move { attendant.look(about, turn, message, reach_ms).await });
            }
            Effect::Check { worker, turn, message } => {
                let (attendant, about) = (self.attendant(), worker.clone());
                let broken = Event::Checked { worker, turn, seen: None };
                self.begin(about.clone(), broken, async move { attendant.check(about, turn, message).await });
            }
            Effect::Type { worker, turn, message } => {
                let (attendant, about) = (self.attendant(), worker.clone());
                let broken =
                    Event::Typed { worker, turn, typed: Typed::Failed("internal error while typing".to_owned()) };
                self.begin(about.clone(), broken, async move { attendant.type_text(about, turn, message).await });
            }
            Effect::Tell(worker, kind) => {
                let at_ms = self.ports().clock.wall_ms();
                let worker = Some(worker);
                self.ports().events.emit(Happening { at_ms, worker, generation: None, request: None, kind });
            }
            Effect::Abort(worker) => {
                if let Some(task) = self.tasks.remove(&worker) {
                    task.abort();
                }
            }
        }
        None
    }

    fn attendant(&self) -> EffectRunner {
        EffectRunner { ports: self.ports().clone(), actor: self.myself.clone() }
    }

    /// Runs a task for the worker, replacing its present one. If it panics, the actor gets
    /// `broken`.
    fn begin(&mut self, worker: String, broken: Event, work: impl Future<Output = ()> + Send + 'static) {
        let (task, myself) = (tokio::spawn(work), self.myself.clone());
        if let Some(before) = self.tasks.insert(worker, task.abort_handle()) {
            before.abort();
        }
        tokio::spawn(async move {
            if task.await.is_err_and(|error| error.is_panic()) {
                let _ = myself.cast(NudgesMessage::Happened(broken));
            }
        });
    }

    async fn ask(&mut self, request: NudgeRequest) -> Result<NudgeLine, Refusal> {
        let NudgeRequest { caller, worker, order } = request;
        if let NudgeOrder::Start { settings, .. } = &order
            && let swarm_model::Every::Cron { expression } = &settings.every
        {
            let after = self.ports().clock.wall_ms();
            let date = self.ports().nudges.date_after(expression, after);
            date.map_err(|cause| Refusal::new(RefusalKind::Invalid, cause).of(&worker))?;
        }
        self.look_up(&worker).await.map_err(|error| unreadable(&worker, &error))?;
        let plan = self.machine.plan(&worker, &order, &caller.request, caller.repeated > 0, self.now());
        let plan = plan.map_err(|denied| refused(&worker, &order, &denied))?;
        let done = match (&plan, &order) {
            (Plan::Inactive, _) => "inactive",
            (Plan::Save(_) | Plan::Done, NudgeOrder::Start { .. }) => "started",
            (Plan::Save(_) | Plan::Done, NudgeOrder::Stop) => "stopped",
            (Plan::Save(_) | Plan::Done, NudgeOrder::Pause) => "paused",
            (Plan::Save(_) | Plan::Done, NudgeOrder::Resume) => "resumed",
        };
        if let Plan::Save(nudge) = plan {
            let saved = self.ports().nudges.save(&nudge).await;
            saved.map_err(|error| {
                let cause = format!("cannot save the heartbeat of '{worker}': {error}");
                Refusal::new(RefusalKind::Registry, cause).of(&worker)
            })?;
            self.feed(Event::Saved { nudge, then: Then::Ordered }).await;
        }
        Ok(NudgeLine { worker, done: done.to_owned() })
    }

    /// Synchronizes the machine with the file of a nudge, which may have another writer.
    async fn look_up(&mut self, worker: &str) -> std::io::Result<Option<Nudge>> {
        let disk = self.ports().nudges.read(worker).await?;
        for effect in self.machine.sync(worker, disk.clone()) {
            self.perform(effect).await;
        }
        Ok(disk)
    }

    async fn killed(&mut self, worker: &str) {
        if let Some(nudge) = self.machine.killed(worker) {
            let then = Then::Stopped("its worker was killed".to_owned());
            if let Some(event) = self.perform(Effect::Save { nudge, then }).await {
                self.feed(event).await;
            }
        }
    }

    async fn cleaned(&mut self, worker: &str) {
        if let Err(error) = self.ports().nudges.remove(worker).await {
            tracing::warn!(worker, %error, "cannot remove the file of the nudge");
        }
        self.feed(Event::Removed(worker.to_owned())).await;
    }

    /// Sets the alarm to the next due time, and reports whether any nudge is active or could not be read.
    fn settle(&mut self) {
        let (now, nudges) = (self.now(), Arc::clone(&self.ports().nudges));
        let dates = |expression: &str, after: u64| nudges.date_after(expression, after).ok();
        let alarm = self.machine.alarm(now, &dates);
        if alarm != self.alarm.0 {
            if let Some(before) = self.alarm.1.take() {
                before.abort();
            }
            self.alarms += 1;
            let (number, myself) = (self.alarms, self.myself.clone());
            let is_set = alarm != Alarm::default();
            let ring = is_set.then(|| {
                let clock = Arc::clone(&self.ports().clock);
                tokio::spawn(async move {
                    clock.alarm(alarm).await;
                    let _ = myself.cast(NudgesMessage::Alarm(number));
                })
            });
            self.alarm = (alarm, ring.map(|ring| ring.abort_handle()));
        }
        let live = self.machine.is_live() || !self.unread.is_empty();
        if live != self.live {
            self.live = live;
            (self.arguments.tell)(NudgeReport::Live(live));
        }
    }
}

fn unreadable(worker: &str, error: &std::io::Error) -> Refusal {
    let cause = format!("cannot read the heartbeat of '{worker}': {error}");
    Refusal::new(RefusalKind::Registry, cause).of(worker)
}

fn refused(worker: &str, order: &NudgeOrder, denied: &Denied) -> Refusal {
    let wanted = if matches!(order, NudgeOrder::Resume) { "paused" } else { "active" };
    let (kind, cause) = match denied {
        Denied::Active => {
            (RefusalKind::Exists, format!("heartbeat already active for '{worker}' (use --force to replace)"))
        }
        Denied::Unknown => (RefusalKind::NotFound, format!("No heartbeat found for {worker}")),
        Denied::State(status) => {
            (RefusalKind::Invalid, format!("heartbeat for '{worker}' is not {wanted} (status: {})", status.word()))
        }
        Denied::Over => (RefusalKind::Invalid, format!("heartbeat for '{worker}' has expired (start it again)")),
    };
    Refusal::new(kind, cause).of(worker)
}
