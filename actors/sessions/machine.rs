//! Decides for which sessions beats are written and when, and which workers make no progress: a pure
//! state machine.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use super::ladder::{Act, Ladder, Means, Step};
use super::signals::{self, Signal};
use super::sources::{is_at_work, is_mute, speaks_for_itself, stands_still};
use swarm_model::drafts::sentence;
use swarm_model::{EventKind, Fence, Reason, Rungs};
use swarm_ports::{Beaten, Life, LifeEnd, Mark, News, SessionError, Sight};

/// Minimum time between two reads of the same worker's screen, in milliseconds.
const LOOK_MS: u64 = 30_000;
/// What is shown of an agent whose dialog a person has dismissed.
const DISMISSED: &str = "its dialog was dismissed";
/// Time after their start in which agents without watch rules are checked, in milliseconds. Agents
/// ask their login and trust questions then.
const FIRST_MS: u64 = 60_000;

/// Maximum number of tries, one per tick, to write the end of a session. After that it is left to the
/// next supervisor, to which the end is reported again.
const END_TRIES_MAX: u32 = 60;

/// Event that the machine handles, and message of its actor: from the supervisor, from the timer, or from a task that
/// carries out an effect.
#[derive(Clone, Debug)]
pub enum Event {
    Began(Arc<Life>),
    Ended(Arc<Life>, LifeEnd),
    /// From the task that could not write the end of a session, with the number of tries.
    Unended(Arc<Life>, LifeEnd, u32),
    /// From the task that wrote that a session is running.
    Ran(Arc<Life>, Result<Fence, SessionError>),
    /// From the timer.
    Tick,
    /// From the task that wrote a beat.
    Beaten(Arc<Life>, Beaten, Option<Sight>),
    /// From the task that waits for news of an agent.
    News(Arc<Life>, News),
    /// From the task that read a worker's screen, before `Looked`: the text in the input line that nobody has submitted.
    Drafted(Arc<Life>, String),
    /// From the task that read a worker's screen: its text, `None` if it could not be read.
    Looked(Arc<Life>, Sight, Option<String>),
}

/// Action that the actor carries out.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Write that the session is running. A known fence is written again if the file is gone. `Ran`
    /// reports the result.
    Run(Arc<Life>, Option<Fence>),
    /// Write how the session ended, with the number of this try. `Unended` reports a failure.
    End(Arc<Life>, LifeEnd, u32),
    /// Write a beat if the worker has a session, and observe the worker. `Beaten` reports the result.
    Beat(Arc<Life>, Option<Fence>),
    /// Wait for news of the agent until it ends. `News` reports each.
    Listen(Arc<Life>),
    /// Stop that for the worker of this name.
    Unlisten(String),
    /// Fire `Tick` one interval after the last one, or from now.
    Arm,
    /// Read the worker's screen. `Looked` reports the result.
    Look(Arc<Life>, Sight),
    /// End the request whose dialog a person has answered in the window.
    Answered(Arc<Life>),
    Type {
        worker: String,
        text: String,
    },
    Interrupt {
        worker: String,
    },
    /// End the worker and start it again, so that it resumes its work.
    Renew {
        worker: String,
        generation: u64,
    },
    /// Set or clear the mark that listings show for a worker that makes no progress.
    Mark {
        worker: String,
        generation: u64,
        mark: Option<Mark>,
    },
    Tell(String, EventKind),
    /// Record the steps that were taken, for the supervisor after a crash.
    Note {
        worker: String,
        generation: u64,
        rungs: Rungs,
    },
    TellLost {
        worker: String,
        generation: u64,
        found: Fence,
    },
}

/// A generation that this machine tracks.
#[derive(Clone, Debug)]
struct Tracked {
    life: Arc<Life>,
    /// Known once the session's state was written.
    fence: Option<Fence>,
    /// Whether a `Run` or `Beat` has not returned. There is one at a time: its disk may not answer, and each further one
    /// would wait for that as well.
    is_out: bool,
    /// Whether its agent reported something meanwhile.
    is_missed: bool,
    began_ms: u64,
    /// Signal that its screen showed last.
    screen: Option<Signal>,
    /// Text in the input line of the screen that is looked at next.
    draft: Option<String>,
    /// Whether that screen showed an agent at work.
    works: bool,
    /// Whether the dialog that its screen showed is gone, although the agent still reports that it waits.
    closed: bool,
    /// Whether it was last reported as idle or waiting.
    rests: bool,
    /// When the screen was read last, and at which output.
    looked: Option<(u64, u64)>,
    /// Output at which the screen of an agent that reports nothing itself was read while it stood still.
    settled: Option<u64>,
}

impl Tracked {
    /// Returns what is due at a tick: its session is written before its first beat.
    fn next(&mut self) -> Effect {
        if self.life.plan.is_none() || self.fence.is_some() {
            return self.beat();
        }
        self.is_out = true;
        Effect::Run(Arc::clone(&self.life), None)
    }

    fn beat(&mut self) -> Effect {
        self.is_out = true;
        Effect::Beat(Arc::clone(&self.life), self.fence.clone())
    }
}

/// State of the heartbeat. Only events change it.
#[derive(Clone, Debug)]
pub struct Machine {
    interval_ms: u64,
    /// Time counted in ticks, in milliseconds. It does not advance while the machine sleeps.
    now_ms: u64,
    lives: BTreeMap<String, Tracked>,
    /// Ladders by worker name, across all generations.
    ladders: BTreeMap<String, Ladder>,
    /// Workers that are being ended in order to be started again.
    renewed: BTreeSet<String>,
    armed: bool,
    /// Ends that could not be written, each with its number of tries.
    unended: Vec<(Arc<Life>, LifeEnd, u32)>,
}

impl Machine {
    pub fn new(interval_ms: u64) -> Self {
        Self {
            interval_ms,
            now_ms: 0,
            lives: BTreeMap::new(),
            ladders: BTreeMap::new(),
            renewed: BTreeSet::new(),
            unended: Vec::new(),
            armed: false,
        }
    }

    pub fn on(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::Began(life) => self.began(life),
            Event::Ended(life, end) => self.ended(life, end),
            Event::Unended(life, end, tried) => {
                self.unended.extend((tried < END_TRIES_MAX).then_some((life, end, tried)));
                self.arm().into_iter().collect()
            }
            Event::Ran(life, ran) => self.ran(&life, ran),
            Event::Tick => self.tick(),
            Event::Beaten(life, beaten, sight) => {
                let effects = self.beaten(&life, beaten, sight);
                effects.into_iter().chain(self.catch_up(&life)).collect()
            }
            Event::News(life, News::Reported) => self.reported(life),
            Event::News(life, News::Drawn) => self.drawn(life),
            Event::Drafted(life, draft) => {
                let tracked = self.tracked(&life);
                tracked.into_iter().for_each(|tracked| tracked.draft = Some(draft.clone()));
                Vec::new()
            }
            Event::Looked(life, sight, screen) => self.looked(&life, &sight, screen.as_deref()),
        }
    }

    fn tracked(&mut self, life: &Life) -> Option<&mut Tracked> {
        self.lives.get_mut(&life.worker).filter(|tracked| tracked.life.generation == life.generation)
    }

    fn began(&mut self, life: Arc<Life>) -> Vec<Effect> {
        let newer = self.lives.get(&life.worker).is_some_and(|tracked| tracked.life.generation > life.generation);
        if newer {
            return Vec::new();
        }
        let began_ms = self.now_ms;
        let was_out = self.tracked(&life).is_some_and(|tracked| tracked.is_out);
        let tracked = Tracked {
            life: Arc::clone(&life),
            fence: None,
            is_out: was_out || life.plan.is_some(),
            is_missed: false,
            began_ms,
            screen: None,
            draft: None,
            works: false,
            closed: false,
            rests: false,
            looked: None,
            settled: None,
        };
        self.lives.insert(life.worker.clone(), tracked);
        if !life.rungs.is_foot() {
            let resumed = || Ladder::resumed(life.rungs, began_ms);
            self.ladders.entry(life.worker.clone()).or_insert_with(resumed);
        }
        // A mark of an earlier supervisor is outdated, unless the worker was given up.
        let mark = Effect::Mark { worker: life.worker.clone(), generation: life.generation, mark: None };
        let mark = ((life.watch.is_some() || life.agent) && !life.rungs.given_up).then_some(mark);
        let listen = life.agent.then(|| Effect::Listen(Arc::clone(&life)));
        let run = (life.plan.is_some() && !was_out).then_some(Effect::Run(life, None));
        run.into_iter().chain(mark).chain(listen).chain(self.arm()).collect()
    }

    fn ended(&mut self, life: Arc<Life>, end: LifeEnd) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.tracked(&life).is_some() {
            self.lives.remove(&life.worker);
            effects.extend(life.agent.then(|| Effect::Unlisten(life.worker.clone())));
            let failed = end.is_some_and(|(ended, reason)| reason == Reason::Exited && !ended.is_success());
            let ladder = self.ladders.get_mut(&life.worker).filter(|_| failed);
            if let Some(ladder) = ladder.filter(|ladder| ladder.is_ended_by_us(self.now_ms)) {
                ladder.restart(self.now_ms);
                let (worker, generation, rungs) = (life.worker.clone(), life.generation, ladder.rungs());
                effects.push(Effect::Note { worker: worker.clone(), generation, rungs });
                let told = EventKind::WorkerStuck {
                    signal: "interrupted".to_owned(),
                    evidence: "the interrupt has ended it".to_owned(),
                    step: Step::Restarted.word().to_owned(),
                };
                effects.extend([Effect::Tell(worker.clone(), told), Effect::Renew { worker, generation }]);
            } else if !self.renewed.remove(&life.worker) {
                self.ladders.remove(&life.worker);
            }
        }
        effects.extend(life.plan.is_some().then_some(Effect::End(life, end, 1)));
        effects
    }

    fn ran(&mut self, life: &Arc<Life>, ran: Result<Fence, SessionError>) -> Vec<Effect> {
        let Some(tracked) = self.tracked(life) else { return Vec::new() };
        tracked.is_out = false;
        match ran {
            Ok(fence) => {
                tracked.fence = Some(fence);
                // Write the first beat at once.
                vec![tracked.beat()]
            }
            Err(SessionError::Taken { found, .. }) => self.lost(life, found),
            // The next tick tries again.
            Err(_) => Vec::new(),
        }
    }

    fn tick(&mut self) -> Vec<Effect> {
        self.armed = false;
        self.now_ms += self.interval_ms;
        let mut effects: Vec<Effect> = self.arm().into_iter().collect();
        // A disk that was full may have space again.
        effects.extend(
            mem::take(&mut self.unended).into_iter().map(|(life, end, tried)| Effect::End(life, end, tried + 1)),
        );
        // A disk that takes longer than one interval gets fewer beats, not a queue of them, and delays no other one.
        effects.extend(self.lives.values_mut().filter(|tracked| !tracked.is_out).map(Tracked::next));
        effects
    }

    /// Observes an agent at once that reports a change. What its screen showed before may be over, such as a dialog that was
    /// answered, so it does not count any more.
    fn reported(&mut self, life: Arc<Life>) -> Vec<Effect> {
        let Some(tracked) = self.tracked(&life) else { return Vec::new() };
        (tracked.screen, tracked.works, tracked.closed) = (None, false, false);
        Self::observe(tracked).into_iter().collect()
    }

    /// Observes an agent that waits and has drawn something, and its screen.
    fn drawn(&mut self, life: Arc<Life>) -> Vec<Effect> {
        let Some(tracked) = self.tracked(&life) else { return Vec::new() };
        tracked.looked = None;
        Self::observe(tracked).into_iter().collect()
    }

    fn observe(tracked: &mut Tracked) -> Option<Effect> {
        // A session that is not written yet is observed at the tick that writes it.
        if tracked.life.plan.is_some() && tracked.fence.is_none() {
            return None;
        }
        if tracked.is_out {
            tracked.is_missed = true;
            return None;
        }
        Some(tracked.beat())
    }

    /// Observes an agent that reported a change while it was being observed.
    fn catch_up(&mut self, life: &Arc<Life>) -> Option<Effect> {
        let tracked = self.tracked(life).filter(|tracked| !tracked.is_out)?;
        mem::take(&mut tracked.is_missed).then(|| tracked.beat())
    }

    fn beaten(&mut self, life: &Arc<Life>, beaten: Beaten, sight: Option<Sight>) -> Vec<Effect> {
        let now_ms = self.now_ms;
        // The generation may have ended in the meantime, and the next one may have its session.
        let Some(tracked) = self.tracked(life) else { return Vec::new() };
        tracked.is_out = beaten == Beaten::Missing;
        match beaten {
            Beaten::Lost { found } => return self.lost(life, found),
            Beaten::Missing => return vec![Effect::Run(Arc::clone(life), tracked.fence.clone())],
            Beaten::Done => {}
        }
        // What could not be observed is neither progress nor silence.
        let Some(sight) = sight else { return Vec::new() };
        let young = now_ms.saturating_sub(tracked.began_ms) <= FIRST_MS;
        let seen = tracked
            .looked
            .is_some_and(|(at_ms, output)| output == sight.output || now_ms.saturating_sub(at_ms) < LOOK_MS);
        // A screen that stands still after a change may show the end of a turn. If one was reported, any change may be
        // the beginning of the next one.
        let (is_quiet, unsettled) = (stands_still(&sight), tracked.settled != Some(sight.output));
        let changed = tracked.looked.is_none_or(|(_, output)| output != sight.output);
        let screen = tracked.screen.clone();
        let ladder = self.ladders.get(&life.worker);
        // Keep checking until the reported signal is gone.
        let told = ladder.is_some_and(Ladder::is_told);
        let says = sight.waiting.is_some() && speaks_for_itself(life);
        let watched = life.watch.is_some() || (life.agent && young);
        let mute = is_mute(life, &sight) || is_quiet && is_at_work(life, &sight);
        if !(watched || told || says || mute) {
            return Vec::new();
        }
        // Never type into a screen that was not read just before.
        let due = self.is_due(life, &sight);
        let rests = mute && (is_quiet && unsettled || told && changed);
        let fresh = due || rests || !(seen || sight.held && told);
        if life.window && fresh {
            if let Some(tracked) = self.tracked(life) {
                tracked.looked = Some((now_ms, sight.output));
                tracked.settled = is_quiet.then_some(sight.output).or(tracked.settled);
            }
            return vec![Effect::Look(Arc::clone(life), sight)];
        }
        self.judge(life, &sight, screen)
    }

    /// Reports whether the next check of a worker may take a step.
    fn is_due(&self, life: &Life, sight: &Sight) -> bool {
        let would_act = |rules| self.ladders.get(&life.worker).is_some_and(|it| it.is_due(sight, rules, self.now_ms));
        life.watch.as_ref().is_some_and(would_act)
    }

    fn looked(&mut self, life: &Arc<Life>, sight: &Sight, screen: Option<&str>) -> Vec<Effect> {
        let is_due = self.is_due(life, sight);
        let Some(tracked) = self.tracked(life) else { return Vec::new() };
        let Some(screen) = screen else {
            // The screen is unknown, so no step is taken.
            (tracked.looked, tracked.settled) = (None, None);
            return Vec::new();
        };
        // An agent that is drawing may leave out for a moment that it works. One that was idle stays so until it works.
        let rests = match sight.reports {
            true => is_at_work(life, sight) && matches!(tracked.screen, Some(Signal::Idle { .. })),
            false => tracked.rests,
        };
        let signal = match sight.reports {
            _ if !(rests || stands_still(sight)) => signals::of_screen,
            true if is_at_work(life, sight) => signals::of_unfinished_screen,
            false if is_mute(life, sight) => signals::of_silent_screen,
            true | false => signals::of_screen,
        };
        let had_dialog = matches!(tracked.screen, Some(Signal::Asks { .. }));
        (tracked.screen, tracked.works) = (signal(screen), signals::is_at_work(screen));
        if sight.waiting.is_some() && !sight.idle && had_dialog && signals::is_over(screen) {
            tracked.closed = true;
        }
        if tracked.closed {
            // The agent reports nothing about a dialog that a person dismissed.
            tracked.screen = signals::is_over(screen).then(|| Signal::Idle { what: DISMISSED.to_owned() });
        }
        let draft = mem::take(&mut tracked.draft).filter(|_| is_due);
        let screen = match (tracked.screen.clone(), draft) {
            // A step would submit or delete what somebody has typed.
            (screen, Some(draft)) if !screen.as_ref().is_some_and(Signal::is_rest) => {
                Some(Signal::Asks { what: sentence(&draft) })
            }
            (screen, _) => screen,
        };
        // The agent carries out what it asked about, and reports nothing before it has done so.
        let is_answered = had_dialog && tracked.works && sight.waiting.is_some() && !sight.held;
        let ended = is_answered.then(|| Effect::Answered(Arc::clone(life)));
        self.judge(life, sight, screen).into_iter().chain(ended).collect()
    }

    fn judge(&mut self, life: &Arc<Life>, sight: &Sight, screen: Option<Signal>) -> Vec<Effect> {
        let means = Means { rules: life.watch.as_ref(), window: life.window };
        // An agent does not report that its question was answered until it has completed the step
        // that it asked about.
        let shows_end = |tracked: &Tracked| tracked.closed || (tracked.works && !(sight.held && tracked.rests));
        let answered = life.window && self.lives.get(&life.worker).is_some_and(shows_end);
        let waiting = sight.waiting.clone().filter(|_| !answered);
        let sight = &Sight { waiting, ..sight.clone() };
        let ladder = self.ladders.entry(life.worker.clone()).or_default();
        let before = ladder.rungs();
        let acts = ladder.look(sight, screen, means, self.now_ms);
        let rungs = ladder.rungs();
        let (worker, generation) = (life.worker.clone(), life.generation);
        let note = (rungs != before).then_some(Effect::Note { worker, generation, rungs });
        note.into_iter().chain(acts.into_iter().flat_map(|act| self.act(life, act))).collect()
    }

    fn act(&mut self, life: &Arc<Life>, act: Act) -> Vec<Effect> {
        let (worker, generation) = (life.worker.clone(), life.generation);
        let mark = |mark| Effect::Mark { worker: worker.clone(), generation, mark };
        let (step, signal) = match act {
            Act::Unstuck => {
                let tracked = self.lives.get_mut(&life.worker);
                let (rested, works) =
                    tracked.map_or((false, false), |tracked| (mem::take(&mut tracked.rests), tracked.works));
                let told = if rested { EventKind::WorkerWorking } else { EventKind::WorkerUnstuck };
                return vec![Effect::Tell(worker.clone(), told), mark((rested && works).then_some(Mark::Works))];
            }
            Act::Take(step, signal) => (step, signal),
        };
        let evidence = signal.evidence();
        let told = match step {
            Step::Told => signal.event(step.word()),
            Step::Nudged | Step::Interrupted | Step::Restarted | Step::GivenUp => EventKind::WorkerStuck {
                signal: signal.word().to_owned(),
                evidence: evidence.clone(),
                step: step.word().to_owned(),
            },
        };
        if let Some(tracked) = self.tracked(life) {
            tracked.rests = step == Step::Told && signal.is_rest();
        }
        let done = match step {
            Step::Told => mark(Some(signal.mark())),
            Step::GivenUp => mark(Some(Mark::Stuck(evidence))),
            Step::Nudged => {
                let text = life.watch.as_ref().map(|rules| rules.message.clone()).unwrap_or_default();
                Effect::Type { worker: worker.clone(), text }
            }
            Step::Interrupted => Effect::Interrupt { worker: worker.clone() },
            Step::Restarted => {
                self.renewed.insert(worker.clone());
                Effect::Renew { worker: worker.clone(), generation }
            }
        };
        vec![Effect::Tell(worker.clone(), told), done]
    }

    fn lost(&mut self, life: &Arc<Life>, found: Fence) -> Vec<Effect> {
        self.lives.remove(&life.worker);
        self.ladders.remove(&life.worker);
        vec![Effect::TellLost { worker: life.worker.clone(), generation: life.generation, found }]
    }

    /// Arms the timer if it is not armed and anything is tracked or an end is still to be written.
    fn arm(&mut self) -> Option<Effect> {
        if self.armed || (self.lives.is_empty() && self.unended.is_empty()) {
            return None;
        }
        self.armed = true;
        Some(Effect::Arm)
    }
}

#[cfg(test)]
#[path = "unfinished_tests.rs"]
mod unfinished_tests;

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
