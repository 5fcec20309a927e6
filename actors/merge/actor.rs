//! Actor around the [`machine`](super::machine): takes one event at a time, and journals it before its effects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::task::AbortHandle;

use super::error::MergeError;
use super::machine::{Effect, Event, Machine};
use super::message::{Ask, MergeMessage, MergeReport, Step};
use super::places::{Asked, Place, Places, Seats};
use swarm_model::merge::queue::{Item, ItemId, Obstacle, Phase, Queue, State as ItemState};
use swarm_model::{QueueView, Target};
use swarm_ports::{Clock, Landings, Verification};

/// Pause before another try to write the journal.
const SAVE_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of obstacles that are watched at once, since the kernel's watches are limited.
const OBSTACLES_MAX: usize = 16;
/// Time after which others are watched if there are more of them.
const WATCH_TURN: Duration = Duration::from_secs(60);
/// First pause before an obstacle is watched again if watching it failed. Each further pause is twice as long.
const WATCH_PAUSE: Duration = Duration::from_secs(1);
/// Longest such pause.
const WATCH_PAUSE_MAX: Duration = Duration::from_secs(300);

/// One queue. The keys of its journal are set once it has started.
pub struct Merge(pub(super) Arc<OnceLock<Vec<String>>>);

#[derive(Clone)]
pub struct MergeArguments {
    pub target: Target,
    pub landings: Arc<dyn Landings>,
    pub clock: Arc<dyn Clock>,
    pub places: Arc<dyn Places>,
    /// Reports to the supervisor without waiting.
    pub tell: Arc<dyn Fn(MergeReport) + Send + Sync>,
}

pub struct State {
    arguments: MergeArguments,
    myself: ActorRef<MergeMessage>,
    queue: Machine,
    /// Part of the queue that is journaled.
    kept: Queue,
    /// Why the journal could not be written, so that its content is unknown. `None` if the last write succeeded.
    stuck: Option<String>,
    /// Results that arrived while the journal could not be written.
    waiting: VecDeque<Event>,
    /// Tasks that carry out effects.
    tasks: Vec<AbortHandle>,
    seats: Seats,
    /// Tasks that wait until an obstacle is gone.
    obstacles: BTreeMap<Obstacle, AbortHandle>,
    /// Obstacles that have had their turn, if there are too many of them.
    had_turn: BTreeSet<Obstacle>,
    /// Task that ends the present turn.
    turn: Option<AbortHandle>,
    /// Time at which a paused item may be built, in Unix milliseconds, and the task that waits for it.
    alarm: Option<(u64, AbortHandle)>,
    /// Last reported value of [`MergeReport::Busy`].
    busy: bool,
}

impl Actor for Merge {
    type Msg = MergeMessage;
    type State = State;
    type Arguments = MergeArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<MergeMessage>,
        arguments: MergeArguments,
    ) -> Result<State, ActorProcessingErr> {
        let loaded = arguments.landings.load(&arguments.target).await;
        let loaded = loaded.map_err(|error| MergeError::Unreadable(error.to_string()))?;
        let queue = Machine::new(loaded.unwrap_or_default());
        let _ = self.0.set(queue.items.iter().filter_map(|item| item.key.clone()).collect());
        let (waiting, tasks, seats, kept) = (VecDeque::new(), Vec::new(), Seats::default(), Queue::clone(&queue));
        let (obstacles, had_turn, turn, alarm, stuck, busy) =
            (BTreeMap::new(), BTreeSet::new(), None, None, None, false);
        let mut state = State {
            arguments,
            myself,
            queue,
            kept,
            stuck,
            waiting,
            tasks,
            seats,
            obstacles,
            had_turn,
            turn,
            alarm,
            busy,
        };
        // Depends only on the journal, so a crash before the next write leads to the same state.
        let effects = state.queue.resume(state.arguments.clock.wall_ms());
        state.perform(effects).await;
        state.await_obstacles();
        state.set_alarm();
        state.tell_business();
        Ok(state)
    }

    async fn handle(
        &self,
        _: ActorRef<MergeMessage>,
        message: MergeMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            MergeMessage::Ask(ask, reply) => drop(reply.send(state.ask(ask).await)),
            MergeMessage::Look(reply) => drop(reply.send(state.view())),
            MergeMessage::Item(key, reply) => drop(reply.send(state.queue.of_key(&key).cloned())),
            MergeMessage::Answered(event) => {
                state.forget_task(&event);
                state.hear(event).await;
            }
            MergeMessage::Unplaced(item, place, turn) => {
                state.seats.wait(item, place, turn, state.myself.clone());
                state.hear(Event::Waits(item)).await;
            }
            MergeMessage::Placed(item, place) => {
                state.seats.keep(item, place);
                state.hear(Event::Placed(item)).await;
            }
            MergeMessage::TurnEnded => state.end_turn(),
            MergeMessage::SaveAgain => {
                state.take_waiting().await;
                state.save_again().await;
            }
        }
        if state.waiting.is_empty() {
            state.seats.prune(&state.queue);
        }
        state.await_obstacles();
        state.set_alarm();
        state.tell_business();
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<MergeMessage>, state: &mut State) -> Result<(), ActorProcessingErr> {
        state.tasks.drain(..).for_each(|task| task.abort());
        state.obstacles.values().chain(&state.turn).for_each(AbortHandle::abort);
        state.alarm.iter().for_each(|(_, task)| task.abort());
        Ok(())
    }
}

impl State {
    /// Handles a request. Returns the numbers of the added items, once they are journaled.
    async fn ask(&mut self, ask: Ask) -> Result<Vec<ItemId>, MergeError> {
        let mut added = Vec::new();
        let event = match ask {
            Ask::Add(additions) => {
                let (ids, new) = self.queue.number(additions);
                added = ids;
                if new.is_empty() {
                    return Ok(added);
                }
                Event::Added(new)
            }
            Ask::Drop(id) => {
                self.may(id, "dropped", ItemState::may_be_dropped)?;
                Event::Drop(id)
            }
            Ask::Retry { item, caller, accepts } => {
                self.may_be_retried(item, ItemState::may_be_retried)?;
                Event::Retry { item, caller, accepts }
            }
            Ask::Again(id, change) => {
                let may_be = if change.is_none() { ItemState::is_waiting } else { ItemState::is_open };
                self.may_be_retried(id, may_be)?;
                Event::Again(id, change)
            }
            Ask::Pause => Event::Pause,
            Ask::Resume => Event::Resume,
        };
        self.take(event).await?;
        Ok(added)
    }

    /// Checks that the item exists, and that its state permits the request `done`.
    fn may(&self, id: ItemId, done: &'static str, may_be: fn(&ItemState) -> bool) -> Result<(), MergeError> {
        let item = self.queue.item(id).ok_or(MergeError::Unknown(id))?;
        if may_be(&item.state) { Ok(()) } else { Err(MergeError::State(id, item.state.word(), done)) }
    }

    fn may_be_retried(&self, id: ItemId, may_be: fn(&ItemState) -> bool) -> Result<(), MergeError> {
        self.may(id, "retried", may_be)?;
        match self.queue.item(id).filter(|item| item.tip.is_empty()) {
            Some(item) => Err(MergeError::NoTip(id, item.name.clone())),
            None => Ok(()),
        }
    }

    async fn hear(&mut self, event: Event) {
        self.waiting.push_back(event);
        self.take_waiting().await;
    }

    /// Applies the waiting results in order, until the journal cannot be written.
    async fn take_waiting(&mut self) {
        while let Some(event) = self.waiting.front().cloned() {
            if self.take(event).await.is_err() {
                return;
            }
            self.waiting.pop_front();
        }
    }

    /// Writes the journal again if the last write failed.
    async fn save_again(&mut self) {
        if self.stuck.is_some() {
            // If this fails, it sets a timer for the next try.
            let _ = self.save(&self.kept.clone()).await;
        }
    }

    /// Writes the journal. If that fails, sets a timer for another try.
    async fn save(&mut self, kept: &Queue) -> Result<(), MergeError> {
        let branch = &self.arguments.target.branch;
        let Err(error) = self.arguments.landings.save(&self.arguments.target, kept).await else {
            if self.stuck.take().is_some() {
                tracing::info!(%branch, "the journal of the merge queue can be written again");
            }
            return Ok(());
        };
        let why = error.to_string();
        if self.stuck.as_ref() != Some(&why) {
            tracing::error!(%branch, error = %why, "cannot write the journal of the merge queue; retrying");
        }
        // The failed write may be on disk without being durable, so write the valid state again.
        self.stuck = Some(why.clone());
        self.myself.send_after(SAVE_PAUSE, || MergeMessage::SaveAgain);
        Err(MergeError::Journal(why))
    }

    fn view(&self) -> QueueView {
        let (target, queue) = (self.arguments.target.clone(), Queue::clone(&self.queue));
        QueueView { target, queue, stuck: self.stuck.clone() }
    }

    /// Applies one event: decides, journals the part that must survive a crash, and only then carries out the
    /// effects. If the journal cannot be written, nothing has changed.
    async fn take(&mut self, event: Event) -> Result<(), MergeError> {
        let mut decided = self.queue.clone();
        let effects = decided.on(event, self.arguments.clock.wall_ms());
        let kept = decided.kept();
        if kept != self.kept || self.stuck.is_some() {
            self.save(&kept).await?;
            self.kept = kept;
        }
        let has_changed = decided.paused != self.queue.paused;
        self.queue = decided;
        if has_changed {
            (self.arguments.tell)(MergeReport::Paused(self.queue.paused));
        }
        self.perform(effects).await;
        Ok(())
    }

    async fn perform(&mut self, effects: Vec<Effect>) {
        let mut settled = Vec::new();
        for effect in effects {
            match effect {
                Effect::Settled(id) => settled.extend(self.queue.item(id).cloned()),
                effect => {
                    // A resolver may have to wait.
                    if !matches!(effect, Effect::Resolve { .. }) {
                        tell_step(&self.arguments, &self.queue, &effect);
                    }
                    self.begin(effect);
                }
            }
        }
        if settled.is_empty() {
            return;
        }
        self.arguments.landings.tidy(&self.arguments.target, &settled).await;
        for item in settled {
            (self.arguments.tell)(MergeReport::Settled(Box::new(item)));
        }
    }

    /// Carries out one effect in a task, so that the actor can answer meanwhile.
    fn begin(&mut self, effect: Effect) {
        let (arguments, myself, queue) = (self.arguments.clone(), self.myself.clone(), self.queue.clone());
        let seat = if let Effect::Resolve { item, .. } = effect { self.seats.take(item) } else { None };
        let task = tokio::spawn(async move {
            let mut place = None;
            if let Effect::Resolve { item, .. } = effect {
                match place_of(&arguments, &queue, item, seat).await {
                    Ok(free) => place = free,
                    Err(unplaced) => return drop(myself.cast(unplaced)),
                }
                tell_step(&arguments, &queue, &effect);
            }
            if let Some(event) = carry_out(&arguments, &queue, effect).await {
                let _ = myself.cast(MergeMessage::Answered(event));
            }
            drop(place);
        });
        self.tasks.retain(|task| !task.is_finished());
        self.tasks.push(task.abort_handle());
    }

    /// Starts a task for each obstacle for which an item waits, and ends the tasks of the others.
    fn await_obstacles(&mut self) {
        let wanted: BTreeSet<Obstacle> = self.queue.items.iter().filter_map(Item::obstacle).cloned().collect();
        self.obstacles.retain(|obstacle, task| {
            let is_wanted = wanted.contains(obstacle);
            if !is_wanted {
                task.abort();
            }
            is_wanted
        });
        self.set_turn(wanted.len() > OBSTACLES_MAX);
        let waiting = wanted.into_iter().filter(|obstacle| !self.obstacles.contains_key(obstacle));
        let (later, first): (Vec<_>, Vec<_>) = waiting.partition(|obstacle| self.had_turn.contains(obstacle));
        let free = OBSTACLES_MAX.saturating_sub(self.obstacles.len());
        if first.len() <= free {
            // A new round.
            self.had_turn.clear();
        }
        for obstacle in first.into_iter().chain(later).take(free) {
            let (arguments, myself, about) = (self.arguments.clone(), self.myself.clone(), obstacle.clone());
            let task = tokio::spawn(async move {
                let mut pause = WATCH_PAUSE;
                while let Err(cause) = arguments.landings.cleared(&arguments.target, &about).await {
                    tracing::warn!(%cause, "an item cannot continue yet; trying again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(WATCH_PAUSE_MAX);
                }
                let _ = myself.cast(MergeMessage::Answered(Event::Cleared(about)));
            });
            self.obstacles.insert(obstacle, task.abort_handle());
        }
    }

    /// Starts the timer of a turn, or ends it if all obstacles can be watched.
    fn set_turn(&mut self, has_turns: bool) {
        if !has_turns {
            self.turn.take().iter().for_each(AbortHandle::abort);
        } else if self.turn.is_none() {
            let timer = self.myself.send_after(WATCH_TURN, || MergeMessage::TurnEnded);
            self.turn = Some(timer.abort_handle());
        }
    }

    /// Stops watching, so that others have their turn.
    fn end_turn(&mut self) {
        self.turn = None;
        for (obstacle, task) in std::mem::take(&mut self.obstacles) {
            task.abort();
            self.had_turn.insert(obstacle);
        }
    }

    /// Forgets the task that reported this event, so that it can be started again.
    fn forget_task(&mut self, event: &Event) {
        match event {
            Event::Woke => self.alarm = None,
            Event::Cleared(obstacle) => drop(self.obstacles.remove(obstacle)),
            _ => {}
        }
    }

    /// Starts a task that wakes the queue when its next paused item may be built. The pause may have ended while the
    /// journal was written.
    fn set_alarm(&mut self) {
        let now_ms = self.arguments.clock.wall_ms();
        // A result that waits for the disk is applied first, and sets the alarm again.
        let next = if self.waiting.is_empty() { self.queue.wake_ms(now_ms) } else { None };
        if next == self.alarm.as_ref().map(|(at_ms, _)| *at_ms) {
            return;
        }
        if let Some((_, task)) = self.alarm.take() {
            task.abort();
        }
        let Some(at_ms) = next else { return };
        let myself = self.myself.clone();
        let task = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(at_ms - now_ms)).await;
            let _ = myself.cast(MergeMessage::Answered(Event::Woke));
        });
        self.alarm = Some((at_ms, task.abort_handle()));
    }

    fn tell_business(&mut self) {
        let busy = self.queue.is_busy() || !self.waiting.is_empty() || self.stuck.is_some();
        if busy != self.busy {
            self.busy = busy;
            (self.arguments.tell)(MergeReport::Busy(busy));
        }
    }
}

/// Returns the place of the item's resolver: the one that was kept for it, or another. `None` if it needs none.
async fn place_of(
    arguments: &MergeArguments,
    queue: &Queue,
    id: ItemId,
    seat: Option<Place>,
) -> Result<Option<Place>, MergeMessage> {
    let Some(item) = queue.item(id).filter(|_| seat.is_none()) else { return Ok(seat) };
    match arguments.places.ask(item).await {
        None => Ok(None),
        Some(Asked { place, turn: None }) => Ok(Some(place)),
        Some(Asked { place, turn: Some(turn) }) => Err(MergeMessage::Unplaced(id, place, turn)),
    }
}

/// Reports the step that an effect starts.
fn tell_step(arguments: &MergeArguments, queue: &Queue, effect: &Effect) {
    if let Some((step, items)) = step(queue, effect) {
        (arguments.tell)(MergeReport::Begun(step, items));
    }
}

/// Returns the step that an effect starts, and its items. `None` if the effect is not reported.
fn step(queue: &Queue, effect: &Effect) -> Option<(Step, Vec<Item>)> {
    match effect {
        Effect::Verify { commit, of, .. } => {
            let Phase::Verifying { chain, .. } = &queue.phase else { return None };
            // A commit contains all links up to its own.
            let last = chain.iter().position(|link| link.item == *of)?;
            let items = chain[..=last].iter().filter_map(|link| queue.item(link.item).cloned());
            Some((Step::Verifying { commit: commit.clone() }, items.collect()))
        }
        Effect::Resolve { item, files, .. } => {
            Some((Step::Resolving { files: files.clone() }, vec![queue.item(*item)?.clone()]))
        }
        Effect::Build { item, .. } => Some((Step::Building, vec![queue.item(*item)?.clone()])),
        Effect::Land { to, .. } => {
            let Phase::Landing { chain, .. } = &queue.phase else { return None };
            let items = chain.iter().filter_map(|link| queue.item(link.item).cloned());
            Some((Step::Landing { commit: to.clone() }, items.collect()))
        }
        Effect::ReadBase | Effect::Settled(_) => None,
    }
}

async fn carry_out(arguments: &MergeArguments, queue: &Queue, effect: Effect) -> Option<Event> {
    let (landings, target) = (&arguments.landings, &arguments.target);
    Some(match effect {
        Effect::ReadBase => Event::BaseRead(landings.read_base(target).await),
        Effect::Build { item, onto } => Event::Built(landings.build(target, queue.item(item)?, &onto).await),
        Effect::Verify { commit, of, fresh } => {
            let is_of_base = matches!(&queue.phase, Phase::Verifying { search, .. } if search.of_base);
            let kind = match fresh {
                _ if is_of_base => Verification::Base,
                true => Verification::Again,
                false => Verification::First,
            };
            Event::Verified(landings.verify(target, queue.item(of)?, &commit, kind).await)
        }
        Effect::Land { from, to, of } => Event::Landed(landings.land(target, queue.item(of)?, &from, &to).await),
        Effect::Resolve { item, onto, files } => {
            Event::Resolved(item, landings.resolve(target, queue.item(item)?, &onto, &files).await)
        }
        Effect::Settled(_) => return None,
    })
}
