//! Actor around [`machine`](super::machine): makes each decision durable, then carries out its
//! effects, and stays responsive meanwhile.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::task::AbortHandle;

use super::attend::EffectRunner;
use super::error::LoopError;
use super::machine::{Effect, Event, Machine, News};
use super::message::{LoopMessage, LoopReport};
use crate::worker::Workers;
use swarm_model::loops::progress::{Loop, Plan, Wire};
use swarm_model::loops::words::Word;
use swarm_model::{EventKind, Refusal, RefusalKind, Spawned};
use swarm_ports::{Filed, Ports};

/// Pause before files that could not be written are written again.
const SAVE_PAUSE: Duration = Duration::from_secs(1);
/// Minimum interval between notes that the window changes, in milliseconds.
const NOTE_MS: u64 = 15_000;

pub struct LoopActor;

/// Origin of a loop.
#[derive(Clone, Debug)]
pub enum Begin {
    /// A new loop. It is not begun if its asker is gone by then.
    Plan(Box<Plan>, Weak<()>),
    /// A loop that another program started and left. It rests until something happens to it.
    Adopt(Box<Loop>),
}

#[derive(Clone)]
pub struct LoopArguments {
    pub name: String,
    /// `None` resumes the loop that is on disk.
    pub begin: Option<Begin>,
    pub ports: Ports,
    pub workers: Arc<dyn Workers>,
    /// Reports to the supervisor without waiting.
    pub tell: Arc<dyn Fn(LoopReport) + Send + Sync>,
}

pub struct State {
    arguments: LoopArguments,
    myself: ActorRef<LoopMessage>,
    it: Machine,
    /// Effects of decisions that are not durable yet.
    held: Vec<Effect>,
    /// Log lines that are not part of the loop's state yet, each with its Unix time in
    /// milliseconds.
    words: Vec<(u64, Word)>,
    /// Whether the lines in the loop's state belong to a write that has not succeeded yet.
    lines_open: bool,
    replies: Vec<RpcReplyPort<Result<(), LoopError>>>,
    flushing: bool,
    /// Contents that `state.json` may have if no other program wrote to it.
    known: Vec<Wire>,
    attendant: Option<AbortHandle>,
    tasks: Vec<AbortHandle>,
    first: Option<Result<Spawned, Refusal>>,
    waiting: Vec<RpcReplyPort<Result<Spawned, Refusal>>>,
    noted_ms: u64,
}

impl Actor for LoopActor {
    type Msg = LoopMessage;
    type State = State;
    type Arguments = LoopArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<LoopMessage>,
        arguments: LoopArguments,
    ) -> Result<State, ActorProcessingErr> {
        match arguments.begin.clone() {
            Some(Begin::Plan(plan, asker)) => State::begin(myself, arguments, *plan, &asker).await,
            Some(Begin::Adopt(it)) => State::adopt(myself, arguments, *it).await,
            None => State::resume(myself, arguments).await,
        }
    }

    async fn handle(
        &self,
        _: ActorRef<LoopMessage>,
        message: LoopMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            LoopMessage::Ask(event, reply) => {
                state.notice_others().await;
                state.replies.push(reply);
                state.take(&event);
                state.ask_for_flush();
            }
            LoopMessage::Look(reply) => drop(reply.send(Loop::clone(&state.it))),
            LoopMessage::Happened(event) => {
                state.notice_others().await;
                state.take(&event);
                state.note(&event).await;
            }
            LoopMessage::First(first) => {
                if first.is_ok() {
                    state.waiting.drain(..).for_each(|reply| drop(reply.send(first.clone())));
                }
                state.first = Some(first);
            }
            LoopMessage::Begun(reply) => match &state.first {
                Some(Ok(spawned)) => drop(reply.send(Ok(spawned.clone()))),
                // No worker of the loop will ever run.
                Some(Err(_)) | None if !state.it.is_active() && !state.flushing => {
                    drop(reply);
                    state.leave();
                }
                Some(Err(_)) | None => state.waiting.push(reply),
            },
            LoopMessage::Flush => state.flush().await,
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<LoopMessage>, state: &mut State) -> Result<(), ActorProcessingErr> {
        state.abandon();
        state.tasks.drain(..).for_each(|task| task.abort());
        Ok(())
    }
}

impl State {
    async fn begin(
        myself: ActorRef<LoopMessage>,
        arguments: LoopArguments,
        plan: Plan,
        asker: &Weak<()>,
    ) -> Result<Self, ActorProcessingErr> {
        let mut it = Loop::new(plan, arguments.ports.clock.wall_ms());
        let earlier = arguments.ports.loops.earlier(it.name()).await;
        it.earlier = earlier.map_err(|error| LoopError::Open(error.to_string()))?;
        let mut state = Self::new(myself, arguments, Machine::new(it));
        state.take(&Event::Began);
        // Durable before the start is reported and before anything runs.
        if let Err(error) = state.save().await {
            // No other process may start a half-written loop.
            state.take_back().await;
            return Err(LoopError::Save(error.to_string()).into());
        }
        if asker.strong_count() == 0 {
            state.take_back().await;
            return Err(LoopError::Open("it took too long, and nobody waits for the loop any more".to_owned()).into());
        }
        state.ask_for_flush();
        Ok(state)
    }

    async fn adopt(
        myself: ActorRef<LoopMessage>,
        arguments: LoopArguments,
        mut it: Loop,
    ) -> Result<Self, ActorProcessingErr> {
        let earlier = arguments.ports.loops.earlier(it.name()).await;
        it.earlier = earlier.map_err(|error| LoopError::Open(error.to_string()))?;
        let mut state = Self::new(myself, arguments, Machine::new(it));
        state.known = vec![state.it.wire()];
        state.take(&Event::Adopted);
        // The adoption must be durable before anything depends on it.
        loop {
            match state.save().await {
                Ok(None) => break,
                Ok(Some(wire)) => state.hear(wire),
                Err(error) => {
                    state.take_back().await;
                    return Err(LoopError::Save(error.to_string()).into());
                }
            }
        }
        state.it.forget_earlier();
        Ok(state)
    }

    async fn resume(myself: ActorRef<LoopMessage>, arguments: LoopArguments) -> Result<Self, ActorProcessingErr> {
        let loaded = arguments.ports.loops.load(&arguments.name).await.map_err(LoopError::Open)?;
        let absent = || LoopError::Open(format!("no ralph state found for worker '{}'", arguments.name));
        let it = Machine::new(loaded.ok_or_else(absent)?);
        let effects = it.resume();
        let known = it.wires_before.iter().copied().chain([it.wire()]).collect();
        let mut state = Self::new(myself, arguments, it);
        state.known = known;
        // The last lines may not be in the log yet.
        state.lines_open = true;
        state.held = effects;
        state.notice_others().await;
        if state.it.is_active() || !state.held.is_empty() {
            state.ask_for_flush();
        }
        Ok(state)
    }

    fn new(myself: ActorRef<LoopMessage>, arguments: LoopArguments, it: Machine) -> Self {
        Self {
            arguments,
            myself,
            it,
            held: Vec::new(),
            words: Vec::new(),
            lines_open: false,
            replies: Vec::new(),
            flushing: false,
            known: Vec::new(),
            attendant: None,
            tasks: Vec::new(),
            first: None,
            waiting: Vec::new(),
            noted_ms: 0,
        }
    }

    fn ports(&self) -> &Ports {
        &self.arguments.ports
    }

    /// Applies a change of `state.json` by a person or another program.
    async fn notice_others(&mut self) {
        let Some(wire) = self.ports().loops.wire(self.it.name()).await else { return };
        if !self.known.is_empty() && !self.known.contains(&wire) {
            self.hear(wire);
        }
    }

    fn hear(&mut self, wire: Wire) {
        tracing::info!(worker = self.it.name(), ?wire, "another program changed the loop");
        self.known = vec![wire];
        self.take(&Event::Others(wire));
    }

    /// Takes one event: decides at once, and holds the effects until the decision is durable.
    fn take(&mut self, event: &Event) {
        let now_ms = self.ports().clock.wall_ms();
        let effects = self.it.on(event, now_ms);
        // The content of a window is not worth a write unless it has effects.
        if !effects.is_empty() || !matches!(event, Event::Seen { .. }) {
            self.ask_for_flush();
        }
        for effect in effects {
            match effect {
                Effect::Tell(word) => self.words.push((now_ms, word)),
                effect => self.held.push(effect),
            }
        }
    }

    async fn note(&mut self, event: &Event) {
        let changed_ms = self.it.screen_changed_ms.unwrap_or(0);
        if matches!(event, Event::Seen { .. }) && !self.flushing && changed_ms >= self.noted_ms + NOTE_MS {
            self.noted_ms = changed_ms;
            self.ports().loops.note(&self.it).await;
        }
    }

    /// Schedules one write for everything that is in the mailbox until then.
    fn ask_for_flush(&mut self) {
        if !self.flushing {
            self.flushing = true;
            let _ = self.myself.cast(LoopMessage::Flush);
        }
    }

    /// Writes the loop. Returns `Some` if another program wrote to `state.json` meanwhile; that
    /// change must be applied first.
    async fn save(&mut self) -> std::io::Result<Option<Wire>> {
        let loops = Arc::clone(&self.ports().loops);
        if !self.lines_open && !self.words.is_empty() {
            self.it.begin_lines(loops.log_length(self.it.name()).await);
        }
        self.it.record(std::mem::take(&mut self.words), &self.known);
        self.lines_open = true;
        let filed = loops.save(&self.it).await?;
        self.lines_open = false;
        match filed {
            Filed::Current => self.known = vec![self.it.wire()],
            Filed::Behind => self.known.push(self.it.wire()),
            Filed::Others(wire) => return Ok(Some(wire)),
        }
        Ok(None)
    }

    async fn flush(&mut self) {
        match self.save().await {
            Ok(None) => {}
            Ok(Some(wire)) => {
                // Effects wait until this change is durable too.
                self.hear(wire);
                let _ = self.myself.cast(LoopMessage::Flush);
                return;
            }
            Err(error) => {
                tracing::error!(worker = self.it.name(), %error, "cannot write the loop's files; retrying");
                let told = LoopError::Save(error.to_string());
                self.replies.drain(..).for_each(|reply| drop(reply.send(Err(told.clone()))));
                self.myself.send_after(SAVE_PAUSE, || LoopMessage::Flush);
                return;
            }
        }
        self.flushing = false;
        self.replies.drain(..).for_each(|reply| drop(reply.send(Ok(()))));
        for effect in std::mem::take(&mut self.held) {
            self.perform(effect).await;
        }
        if self.known.len() == 1 && self.known != self.it.wires_before && self.it.goes_on() {
            // Record that the former contents are superseded: if one of them reappears, another
            // program wrote it.
            self.ask_for_flush();
        }
        if !self.it.is_active() && !self.flushing {
            self.leave();
        }
    }

    fn leave(&self) {
        (self.arguments.tell)(LoopReport::Over);
        self.myself.stop(None);
    }

    fn attendant(&self) -> EffectRunner {
        EffectRunner {
            ports: self.ports().clone(),
            workers: Arc::clone(&self.arguments.workers),
            actor: self.myself.clone(),
            it: Loop::clone(&self.it),
        }
    }

    async fn perform(&mut self, effect: Effect) {
        let attendant = self.attendant();
        match effect {
            Effect::Attend => {
                self.abandon();
                self.attendant = Some(tokio::spawn(async move { attendant.attend().await }).abort_handle());
            }
            Effect::Abandon => {
                self.abandon();
                if self.it.theirs.is_some() {
                    self.ports().logs.release(self.it.name());
                }
            }
            Effect::End { drop } => self.task(async move { attendant.end(drop).await }),
            Effect::Type { text } => self.task(async move { attendant.nudge(&text).await }),
            Effect::Arm { at_ms } => self.task(async move { attendant.wait_until(at_ms).await }),
            Effect::Announce(news) => self.announce(news),
            Effect::Withdraw { cause } => self.withdraw(cause).await,
            Effect::Tell(_) => {}
        }
    }

    fn task(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.retain(|task| !task.is_finished());
        self.tasks.push(tokio::spawn(work).abort_handle());
    }

    fn abandon(&mut self) {
        if let Some(attendant) = self.attendant.take() {
            attendant.abort();
        }
    }

    async fn take_back(&self) {
        if let Err(error) = self.ports().loops.withdraw(&self.it).await {
            tracing::error!(worker = self.it.name(), %error, "cannot remove the files of a loop that did not start");
        }
    }

    /// Removes the loop's files and tells the caller that started it why.
    async fn withdraw(&mut self, cause: String) {
        self.take_back().await;
        let refusal = match self.first.take() {
            Some(Err(refusal)) => refusal,
            Some(Ok(_)) | None => Refusal::new(RefusalKind::Start, cause),
        };
        self.waiting.drain(..).for_each(|reply| drop(reply.send(Err(refusal.clone()))));
    }

    fn announce(&self, news: News) {
        let (iteration, max) = (self.it.iteration, self.it.max_iterations);
        let kind = match news {
            News::Started => EventKind::LoopStarted { iteration, max },
            News::Iteration => EventKind::LoopIteration { iteration, max },
            News::Paused { reason } => EventKind::LoopPaused { reason },
            News::Resumed => EventKind::LoopResumed,
            News::Ended { reason } => EventKind::LoopEnded { reason: reason.word().to_owned(), iterations: iteration },
            News::Warning { text } => EventKind::LoopWarning { text },
        };
        self.ports().events.emit(swarm_model::Event {
            at_ms: self.ports().clock.wall_ms(),
            worker: Some(self.it.name().to_owned()),
            generation: self.it.stage.generation(),
            request: None,
            kind,
        });
    }
}
