//! Actor around the [`machine`](super::machine): journals events, and carries out their effects in tasks, so that it
//! answers meanwhile.

mod announce;
mod resolvers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, JoinHandle};

pub use self::resolvers::ResolverMessage;
use self::resolvers::Resolvers;
use super::attend::EffectRunner;
use super::error::RunError;
use super::fleet::Fleet;
use super::machine::Effect;
use super::machine::Machine;
use super::message::{Ask, RunMessage, RunReport};
use crate::merge::Step;
use swarm_model::merge::queue::Item;
use swarm_model::run::parse_key;
use swarm_model::run::plan::Plan;
use swarm_model::run::progress::{Mode, Run, Stage};
use swarm_model::run::words::Word;
use swarm_model::run::{Abandoned, Event};
use swarm_model::{Caller, Refusal};
use swarm_ports::{Journaled, Ports, Telling};

/// Pause before another try to write the journal.
const SAVE_PAUSE: Duration = Duration::from_secs(1);
/// Time for which the journal waits for more after an event that only completes what is known about an attempt.
const NOTE_PAUSE: Duration = Duration::from_millis(50);
/// Maximum time that the end of a run waits for the tidying of its jobs.
const TIDY_MAX: Duration = Duration::from_secs(60);

/// Time for the start of an attempt that is given up meanwhile.
const ATTEND_MAX: Duration = Duration::from_secs(30);
/// Maximum wait until the stops of an earlier run are withdrawn.
const WITHDRAWAL_MAX: Duration = Duration::from_secs(10);

/// One run. Its id is set once it has started.
pub struct RunActor(pub(super) Arc<OnceLock<String>>);

/// Start of a run, as a person asked for it.
#[derive(Clone)]
pub struct Begin {
    pub plan: Plan,
    pub caller: Caller,
    pub retry_failed: bool,
}

#[derive(Clone)]
pub struct RunArguments {
    pub home: String,
    /// Start of the run. `None` if a run on disk resumes.
    pub begin: Option<Begin>,
    pub ports: Ports,
    pub fleet: Arc<dyn Fleet>,
    /// Reports to the supervisor without waiting.
    pub tell: Arc<dyn Fn(RunReport) + Send + Sync>,
}

/// Task that attends an attempt.
struct Attending {
    attempt: u32,
    /// Ends the task once the attempt is given up.
    over: Arc<Notify>,
    task: JoinHandle<()>,
}

pub struct State {
    arguments: RunArguments,
    myself: ActorRef<RunMessage>,
    caller: Caller,
    run: Machine,
    /// Events that are not journaled yet, each with its time in Unix milliseconds.
    pending: Vec<(u64, Event)>,
    /// Effects of these events.
    held: Vec<Effect>,
    /// Requests to answer once these events are journaled.
    replies: Vec<RpcReplyPort<Result<(), RunError>>>,
    /// Whether [`RunMessage::Flush`] is on its way.
    flushing: bool,
    /// Whether [`RunMessage::Note`] is on its way.
    noting: bool,
    /// Steps of the merge queue that are not reported yet, each with its job.
    steps: Vec<(usize, Word)>,
    resolvers: Resolvers,
    /// Tasks that carry out effects.
    tasks: Vec<AbortHandle>,
    /// Tasks that attend attempts, by job.
    attending: BTreeMap<usize, Attending>,
    /// Tasks that remove workers and branches of finished jobs.
    tidying: Vec<JoinHandle<()>>,
    /// Whether an earlier supervisor hosted this run, and may have reported its end.
    is_resumed: bool,
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
            RunMessage::Ask(ask, reply) => match state.asked(&ask) {
                Ok(events) => {
                    state.replies.push(reply);
                    events.into_iter().for_each(|event| state.take(event));
                    state.ask_for_flush();
                }
                Err(refusal) => drop(reply.send(Err(RunError::Refused(refusal)))),
            },
            RunMessage::Look(reply) => drop(reply.send(Run::clone(&state.run))),
            RunMessage::Happened(event) => state.take(event),
            RunMessage::Record(event, reply) => {
                state.replies.push(reply);
                state.take(event);
            }
            RunMessage::Merging(step, item) => state.merging(step, &item).await,
            RunMessage::Settled(item) => state.settled(*item),
            RunMessage::Flush => state.flush().await,
            RunMessage::Note => state.note(),
            RunMessage::Resolver(message) => state.resolver(message),
        }
        state.place_resolvers();
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
        if tokio::time::timeout(WITHDRAWAL_MAX, arguments.ports.hosts.go_on(&run.plan.id)).await.is_err() {
            tracing::warn!(run = run.plan.id, "the stops of an earlier run could not be withdrawn in time");
        }
        arguments.ports.hosts.admit(&run.plan.id);
        let mut state = Self::new(myself, arguments, begin.caller, Machine::new(run));
        state.take(Event::Began);
        Ok(state)
    }

    async fn resume(myself: ActorRef<RunMessage>, arguments: RunArguments) -> Result<Self, ActorProcessingErr> {
        let journaled = arguments.ports.runs.resume(&arguments.home).await.map_err(RunError::Open)?;
        let Journaled { run, events, caller, told } = journaled;
        arguments.ports.hosts.admit(&run.plan.id);
        let mut run = Machine::new(run);
        let (mut last, unbegun) = (Vec::new(), events.is_empty());
        for (at_ms, event) in &events {
            let mut words = Vec::new();
            for effect in run.on(event, *at_ms) {
                match effect {
                    // Only once the rest is done.
                    Effect::End(_) | Effect::Tell(_, _, Word::RunCompleted { .. }) => last.push(effect),
                    // Write only reports that are not on record.
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
        // A journal that was written anew may begin after the end.
        if let Mode::Over(verdict) = run.mode
            && !effects.iter().any(|effect| matches!(effect, Effect::End(_)))
        {
            effects.push(Effect::End(verdict));
        }
        let mut state = Self::new(myself, arguments, caller, run);
        (state.held, state.is_resumed) = (effects, true);
        if unbegun {
            state.take(Event::Began);
        }
        // Those of an earlier supervisor have ended with it.
        state.count_resolvers();
        state.ask_for_flush();
        Ok(state)
    }

    fn new(myself: ActorRef<RunMessage>, arguments: RunArguments, caller: Caller, run: Machine) -> Self {
        let (pending, held, replies) = (Vec::new(), Vec::new(), Vec::new());
        let (tasks, tidying, steps) = (Vec::new(), Vec::new(), Vec::new());
        let (flushing, noting, is_resumed, attending) = (false, false, false, BTreeMap::new());
        Self {
            arguments,
            myself,
            caller,
            run,
            pending,
            held,
            replies,
            flushing,
            noting,
            steps,
            resolvers: Resolvers::default(),
            tasks,
            attending,
            tidying,
            is_resumed,
        }
    }

    /// Returns the events that carry out a request.
    fn asked(&self, ask: &Ask) -> Result<Vec<Event>, Refusal> {
        Ok(match ask {
            Ask::Stop => vec![Event::Stop],
            Ask::Hold => vec![Event::Hold],
            Ask::Resume => vec![Event::Resume],
            Ask::GiveUp(jobs) => {
                let jobs = jobs.iter().collect::<BTreeSet<_>>();
                jobs.into_iter().map(|job| self.run.giving_up(job)).collect::<Result<_, _>>()?
            }
        })
    }

    /// Applies one event at once. Its effects are carried out once it is durable.
    fn take(&mut self, event: Event) {
        let now_ms = self.arguments.ports.clock.wall_ms();
        let effects = self.run.on(&event, now_ms);
        // Nothing waits for it, and the next event is often near: its write, and its sync, then serve both.
        let may_wait = effects.is_empty() && matches!(event, Event::Started { .. });
        self.held.extend(effects);
        self.pending.push((now_ms, event));
        if may_wait { self.note_later() } else { self.ask_for_flush() }
    }

    /// Requests a write within [`NOTE_PAUSE`].
    fn note_later(&mut self) {
        if !self.flushing && !self.noting {
            self.noting = true;
            self.myself.send_after(NOTE_PAUSE, || RunMessage::Note);
        }
    }

    fn note(&mut self) {
        self.noting = false;
        if !self.pending.is_empty() {
            self.ask_for_flush();
        }
    }

    /// Requests a write, which will include all events that are in the mailbox by then.
    fn ask_for_flush(&mut self) {
        if !self.flushing {
            self.flushing = true;
            let _ = self.myself.cast(RunMessage::Flush);
        }
    }

    async fn flush(&mut self) {
        let runs = Arc::clone(&self.arguments.ports.runs);
        if let Err(error) = runs.append(&self.run, &self.pending).await {
            tracing::error!(home = %self.arguments.home, %error, "cannot write the journal of the run; retrying");
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
            // Tidy first: whoever hears that the run is over must find nothing of it running.
            let tidied = async {
                for task in &mut self.tidying {
                    let _ = task.await;
                }
            };
            let _ = tokio::time::timeout(TIDY_MAX, tidied).await;
            // What is not done by now is owed. The next run may begin once this one is closed.
            self.tidying.drain(..).for_each(|task| task.abort());
            self.arguments.ports.hosts.release(&self.run.plan.id).await;
            runs.close(&self.arguments.home).await;
            last.iter().for_each(|last| self.announce_end(last));
            (self.arguments.tell)(RunReport::Over);
            // Report last: whoever reads this report may start the next run.
            if let Some(last) = last {
                runs.tell(&self.run.plan, vec![last]).await;
            }
            runs.forget(&self.run).await;
            self.myself.stop(None);
        }
    }

    fn attendant(&self) -> EffectRunner {
        EffectRunner {
            ports: self.arguments.ports.clone(),
            fleet: Arc::clone(&self.arguments.fleet),
            caller: self.caller.clone(),
            actor: self.myself.clone(),
            over: Arc::default(),
        }
    }

    /// Carries out one effect in a task.
    fn begin_effect(&mut self, effect: Effect) {
        let attendant = self.attendant();
        if let Effect::ArmHost { host, at_ms, is_away } = effect {
            let task = tokio::spawn(async move { attendant.arm_host(host, at_ms, is_away).await });
            return self.tasks.push(task.abort_handle());
        }
        if let Effect::ArmLost { host, since_ms, at_ms } = effect {
            let task = tokio::spawn(async move { attendant.arm(Event::LostDue { host, since_ms }, at_ms).await });
            return self.tasks.push(task.abort_handle());
        }
        if let Effect::Reclaim(abandoned) = effect {
            return self.reclaim(abandoned);
        }
        if let Effect::ArmFit { host, at_ms } = effect {
            let task = tokio::spawn(async move { attendant.arm(Event::FitDue { host, at_ms }, at_ms).await });
            return self.tasks.push(task.abort_handle());
        }
        let Some(job) = effect.job() else { return };
        // Take a snapshot now, because the job may change before the task runs.
        let now = self.run.now(job);
        let tidies = matches!(effect, Effect::Tidy { .. } | Effect::Forget { .. });
        let (attends, over) = (matches!(effect, Effect::Attend { .. }), Arc::clone(&attendant.over));
        let attempt = now.progress.attempt;
        let task = tokio::spawn(async move { attendant.carry_out(&now, effect).await });
        if attends {
            self.tasks.retain(|task| !task.is_finished());
            self.tasks.push(task.abort_handle());
            self.attending.insert(job, Attending { attempt, over, task });
        } else if tidies {
            self.tidying.retain(|task| !task.is_finished());
            self.tidying.push(task);
        } else {
            self.tasks.retain(|task| !task.is_finished());
            self.tasks.push(task.abort_handle());
        }
    }

    /// Ends the task that attends an attempt which was given up, and brings back its work. Nothing is owed to the host before
    /// that task has ended: a start that is under way would come after the stop. It is on record before the run may end.
    fn reclaim(&mut self, abandoned: Abandoned) {
        let job = self.run.plan.position(&abandoned.job);
        let is_its = |attending: &Attending| attending.attempt == abandoned.attempt;
        let attending = job.filter(|job| self.attending.get(job).is_some_and(is_its));
        let attending = attending.and_then(|job| self.attending.remove(&job));
        attending.iter().for_each(|attending| attending.over.notify_one());
        let (runner, plan, of) = (self.attendant(), Arc::clone(&self.run.plan), abandoned.clone());
        let (done, owed) = oneshot::channel();
        self.tidying.push(tokio::spawn(async move {
            if let Some(Attending { mut task, .. }) = attending
                && tokio::time::timeout(ATTEND_MAX, &mut task).await.is_err()
            {
                task.abort();
            }
            if runner.owe(&plan, &of).await {
                let _ = done.send(());
            }
        }));
        let (runner, plan) = (self.attendant(), Arc::clone(&self.run.plan));
        let task = tokio::spawn(async move {
            if owed.await.is_ok() {
                runner.reclaim(&plan, &abandoned).await;
            }
        });
        self.tasks.push(task.abort_handle());
    }

    fn settled(&mut self, item: Item) {
        let Some((job, attempt)) = self.own(&item) else { return self.settled_later(&item) };
        let (attendant, now) = (self.attendant(), self.run.now(job));
        let task = tokio::spawn(async move { attendant.settled(&now, attempt, &item).await });
        self.tasks.push(task.abort_handle());
    }

    /// Handles the end of an item that somebody else added, perhaps in place of one of this run.
    fn settled_later(&mut self, item: &Item) {
        let is_in_queue = |stage: &Stage| matches!(stage, Stage::Merging | Stage::Waiting);
        let all = (0..self.run.jobs.len()).filter(|job| is_in_queue(&self.run.jobs[*job].stage));
        for now in all.map(|job| self.run.now(job)).filter(|now| now.worker() == item.name).collect::<Vec<_>>() {
            let (attendant, item) = (self.attendant(), item.clone());
            let task = tokio::spawn(async move { attendant.settled_later(&now, now.progress.attempt, &item).await });
            self.tasks.push(task.abort_handle());
        }
    }

    /// Returns the job and the attempt of a queue item. `None` if the item is not of this run.
    fn own(&self, item: &Item) -> Option<(usize, u32)> {
        let (job, attempt) = parse_key(&self.run.plan.id, item.key.as_deref()?)?;
        Some((self.run.plan.position(job)?, attempt))
    }

    /// Reports a step of the merge queue. Steps are not journaled.
    async fn merging(&mut self, step: Step, item: &Item) {
        let Some((job, attempt)) = self.own(item) else { return };
        if self.run.jobs[job].attempt != attempt {
            return;
        }
        let word = match step {
            Step::Verifying { commit } => Word::MergeVerifying { commit },
            Step::Resolving { files } => Word::MergeResolving { files },
            Step::Building | Step::Landing { .. } => return,
        };
        self.steps.push((job, word));
        if !self.flushing {
            self.tell_steps().await;
        }
    }

    /// Reports steps of jobs that are known to be in the merge queue. A step may arrive before the event that the job
    /// is queued; it is then reported after that event.
    async fn tell_steps(&mut self) {
        let at_ms = self.arguments.ports.clock.wall_ms();
        let mut words = Vec::new();
        for (job, word) in std::mem::take(&mut self.steps) {
            match self.run.jobs[job].stage {
                // A waiting item is verified again when a person retries it.
                Stage::Merging | Stage::Waiting => words.push(Telling { at_ms, number: None, job: Some(job), word }),
                Stage::Finishing => self.steps.push((job, word)),
                Stage::Pending
                | Stage::Working
                | Stage::Asking { .. }
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
