//! The shell around [`machine`](super::machine): journals what happens, carries out
//! what follows, and goes on listening meanwhile.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::task::{AbortHandle, JoinHandle};

use super::attend::Attendant;
use super::error::RunError;
use super::fleet::Fleet;
use super::machine::Effect;
use super::machine::Machine;
use super::message::{Ask, RunMessage, Told};
use crate::merge::Step;
use swarm_model::Caller;
use swarm_model::merge::queue::Item;
use swarm_model::run::Event;
use swarm_model::run::plan::Plan;
use swarm_model::run::progress::{Run, Stage};
use swarm_model::run::words::Word;
use swarm_ports::{Journaled, Ports, Telling};

/// How long a journal that could not be written is left alone.
const SAVE_PAUSE: Duration = Duration::from_secs(1);
/// How long the end of a run may wait for what tidies up after its jobs.
const TIDY_MAX: Duration = Duration::from_secs(60);

/// One run. Its id is set once it has started.
pub struct RunActor(pub(super) Arc<OnceLock<String>>);

/// A run that begins, as a person asked for it.
#[derive(Clone)]
pub struct Begin {
    pub plan: Plan,
    pub caller: Caller,
    pub retry_failed: bool,
}

#[derive(Clone)]
pub struct RunArguments {
    pub home: String,
    /// None where a run that is on disk goes on.
    pub begin: Option<Begin>,
    pub ports: Ports,
    pub fleet: Arc<dyn Fleet>,
    /// Upwards, without waiting.
    pub tell: Arc<dyn Fn(Told) + Send + Sync>,
}

pub struct State {
    arguments: RunArguments,
    myself: ActorRef<RunMessage>,
    caller: Caller,
    run: Machine,
    /// What happened and is not journaled yet, with its time.
    pending: Vec<(u64, Event)>,
    /// What follows from it.
    held: Vec<Effect>,
    /// Who waits until it is.
    replies: Vec<RpcReplyPort<Result<(), RunError>>>,
    flushing: bool,
    /// Steps of the merge queue that are not told yet.
    steps: Vec<(usize, Word)>,
    tasks: Vec<AbortHandle>,
    /// Those that remove what is left of jobs that are done.
    tidying: Vec<JoinHandle<()>>,
}

impl Actor for RunActor {
    type Msg = RunMessage;
    type State = State;
    type Arguments = RunArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<RunMessage>,
        arguments: RunArguments,
    ) -> Result<State, ActorProcessingErr> {
        let state = match arguments.begin.clone() {
            Some(begin) => State::begin(myself, arguments, begin).await,
            None => State::resume(myself, arguments).await,
        }?;
        let _ = self.0.set(state.run.plan.id.clone());
        Ok(state)
    }

    async fn handle(
        &self,
        _: ActorRef<RunMessage>,
        message: RunMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RunMessage::Ask(ask, reply) => {
                state.replies.push(reply);
                state.take(match ask {
                    Ask::Stop => Event::Stop,
                    Ask::Hold => Event::Hold,
                    Ask::Resume => Event::Resume,
                });
            }
            RunMessage::Look(reply) => drop(reply.send(Run::clone(&state.run))),
            RunMessage::Happened(event) => state.take(event),
            RunMessage::Merging(step, item) => state.merging(step, &item).await,
            RunMessage::Settled(item) => state.settled(*item),
            RunMessage::Flush => state.flush().await,
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<RunMessage>, state: &mut State) -> Result<(), ActorProcessingErr> {
        state.tasks.drain(..).for_each(|task| task.abort());
        state.tidying.drain(..).for_each(|task| task.abort());
        Ok(())
    }
}

impl State {
    async fn begin(
        myself: ActorRef<RunMessage>,
        arguments: RunArguments,
        begin: Begin,
    ) -> Result<Self, ActorProcessingErr> {
        let runs = Arc::clone(&arguments.ports.runs);
        let earlier = runs.open(&arguments.home).await.map_err(RunError::Open)?;
        let run = Run::begin(begin.plan, earlier.as_ref(), begin.retry_failed);
        if let Err(error) = runs.begin(&run, &begin.caller).await {
            runs.close(&arguments.home).await;
            return Err(RunError::Journal(error.to_string()).into());
        }
        let mut state = Self::new(myself, arguments, begin.caller, Machine::new(run));
        state.take(Event::Began);
        Ok(state)
    }

    async fn resume(myself: ActorRef<RunMessage>, arguments: RunArguments) -> Result<Self, ActorProcessingErr> {
        let journaled = arguments.ports.runs.resume(&arguments.home).await.map_err(RunError::Open)?;
        let Journaled { run, events, caller, told } = journaled;
        let mut run = Machine::new(run);
        let (mut last, unbegun) = (Vec::new(), events.is_empty());
        for (at_ms, event) in &events {
            let mut words = Vec::new();
            for effect in run.on(event, *at_ms) {
                match effect {
                    // Only when the rest is done.
                    Effect::End(_) | Effect::Tell(_, _, Word::RunCompleted { .. }) => last.push(effect),
                    // What was said is not said again, and what was to be said is.
                    Effect::Tell(number, job, word) if number >= told => {
                        words.push(Telling { at_ms: *at_ms, number: Some(number), job, word });
                    }
                    _ => {}
                }
            }
            if !words.is_empty() {
                arguments.ports.runs.tell(&run.plan, words).await;
            }
        }
        let mut effects = run.resume();
        last.retain(|effect| !matches!(effect, Effect::Tell(number, ..) if *number < told));
        effects.extend(last);
        let mut state = Self::new(myself, arguments, caller, run);
        state.held = effects;
        if unbegun {
            state.take(Event::Began);
        }
        state.ask_for_flush();
        Ok(state)
    }

    fn new(myself: ActorRef<RunMessage>, arguments: RunArguments, caller: Caller, run: Machine) -> Self {
        let (pending, held, replies) = (Vec::new(), Vec::new(), Vec::new());
        let (tasks, tidying, steps) = (Vec::new(), Vec::new(), Vec::new());
        Self { arguments, myself, caller, run, pending, held, replies, flushing: false, steps, tasks, tidying }
    }

    /// One event: decided at once, and carried out when it is durable.
    fn take(&mut self, event: Event) {
        let now_ms = self.arguments.ports.clock.wall_ms();
        self.held.extend(self.run.on(&event, now_ms));
        self.pending.push((now_ms, event));
        self.ask_for_flush();
    }

    /// Everything that is in the mailbox by then goes into the same write.
    fn ask_for_flush(&mut self) {
        if !self.flushing {
            self.flushing = true;
            let _ = self.myself.cast(RunMessage::Flush);
        }
    }

    async fn flush(&mut self) {
        let runs = Arc::clone(&self.arguments.ports.runs);
        if let Err(error) = runs.append(&self.run, &self.pending).await {
            tracing::error!(home = %self.arguments.home, %error, "the run waits for its journal");
            let told = RunError::Journal(error.to_string());
            self.replies.drain(..).for_each(|reply| drop(reply.send(Err(told.clone()))));
            self.myself.send_after(SAVE_PAUSE, || RunMessage::Flush);
            return;
        }
        self.flushing = false;
        let now_ms = self.arguments.ports.clock.wall_ms();
        let at_ms = self.pending.last().map_or(now_ms, |(at_ms, _)| *at_ms);
        self.pending.clear();
        self.replies.drain(..).for_each(|reply| drop(reply.send(Ok(()))));
        self.perform(at_ms).await;
    }

    async fn perform(&mut self, at_ms: u64) {
        let (mut words, mut last, mut over) = (Vec::new(), None, false);
        for effect in std::mem::take(&mut self.held) {
            match effect {
                Effect::Tell(number, job, word @ Word::RunCompleted { .. }) => {
                    last = Some(Telling { at_ms, number: Some(number), job, word });
                }
                Effect::Tell(number, job, word) => words.push(Telling { at_ms, number: Some(number), job, word }),
                Effect::End(_) => over = true,
                effect => self.begin_effect(effect),
            }
        }
        let runs = Arc::clone(&self.arguments.ports.runs);
        if !words.is_empty() {
            runs.tell(&self.run.plan, words).await;
        }
        self.tell_steps().await;
        if over {
            // Whoever hears that it is over finds nothing of it at work.
            let tidied = async {
                for task in self.tidying.drain(..) {
                    let _ = task.await;
                }
            };
            let _ = tokio::time::timeout(TIDY_MAX, tidied).await;
            runs.close(&self.arguments.home).await;
            (self.arguments.tell)(Told::Over);
            // And may begin the next one.
            if let Some(last) = last {
                runs.tell(&self.run.plan, vec![last]).await;
            }
            self.myself.stop(None);
        }
    }

    fn attendant(&self) -> Attendant {
        Attendant {
            ports: self.arguments.ports.clone(),
            fleet: Arc::clone(&self.arguments.fleet),
            caller: self.caller.clone(),
            actor: self.myself.clone(),
        }
    }

    /// Carries out one effect beside this actor.
    fn begin_effect(&mut self, effect: Effect) {
        let attendant = self.attendant();
        let Some(job) = effect.job() else { return };
        // Of this moment: what belongs to an attempt is asked of the job as it was.
        let now = self.run.now(job);
        let tidies = matches!(effect, Effect::Tidy { .. });
        let task = tokio::spawn(async move { attendant.carry_out(&now, effect).await });
        if tidies {
            self.tidying.retain(|task| !task.is_finished());
            self.tidying.push(task);
        } else {
            self.tasks.retain(|task| !task.is_finished());
            self.tasks.push(task.abort_handle());
        }
    }

    fn settled(&mut self, item: Item) {
        let Some((job, attempt)) = self.own(&item) else { return };
        let (attendant, now) = (self.attendant(), self.run.now(job));
        let task = tokio::spawn(async move { attendant.settled(&now, attempt, &item).await });
        self.tasks.push(task.abort_handle());
    }

    /// The job and the attempt that the item is of, where it is of this run.
    fn own(&self, item: &Item) -> Option<(usize, u32)> {
        let of_run = item.key.as_deref()?.strip_prefix(&format!("run/{}/", self.run.plan.id))?;
        let (job, attempt) = of_run.rsplit_once('/')?;
        Some((self.run.plan.position(job)?, attempt.parse().ok()?))
    }

    /// News, and nothing but news: it is not journaled.
    async fn merging(&mut self, step: Step, item: &Item) {
        let Some((job, attempt)) = self.own(item) else { return };
        if self.run.jobs[job].attempt != attempt {
            return;
        }
        self.steps.push((
            job,
            match step {
                Step::Verifying { commit } => Word::MergeVerifying { commit },
                Step::Resolving { files } => Word::MergeResolving { files },
            },
        ));
        if !self.flushing {
            self.tell_steps().await;
        }
    }

    /// Tells of the steps of those that are known to be in the queue. The queue may be
    /// faster than the word that they are, and then that is told first.
    async fn tell_steps(&mut self) {
        let at_ms = self.arguments.ports.clock.wall_ms();
        let mut words = Vec::new();
        for (job, word) in std::mem::take(&mut self.steps) {
            match self.run.jobs[job].stage {
                // What waited for a person is looked at again when the person says so.
                Stage::Merging | Stage::Waiting => words.push(Telling { at_ms, number: None, job: Some(job), word }),
                Stage::Finishing => self.steps.push((job, word)),
                Stage::Pending
                | Stage::Working
                | Stage::BackingOff { .. }
                | Stage::Paused
                | Stage::Done
                | Stage::Failed => {}
            }
        }
        if !words.is_empty() {
            self.arguments.ports.runs.tell(&self.run.plan, words).await;
        }
    }
}
