//! Decisions of a run as a pure function: progress, event, time → progress, effects. Replaying the journaled events
//! leads to the same state and the same reports.

mod abandon;
mod asking;
mod fitness;
mod hosts;
mod landing;
mod left_out;
mod pauses;
mod skipped;

use std::ops::Deref;

use self::abandon::{to_reclaim, to_wait};
use self::hosts::has_worker;
pub use self::pauses::{LIMIT_MS_MAX, LIMITED_MAX, LOST_MAX, PASSING_MAX, PAUSE_MS, PAUSE_MS_MAX, is_last, refused_ms};
use self::pauses::{count, limit_pause_ms, pause_ms};
pub use self::skipped::ReportedEnd;
use super::next::next;
use super::place::{Place, Seating, room};
use swarm_model::run::progress::{Mode, Progress, Run, Spent, Stage, Verdict};
use swarm_model::run::words::Word;
use swarm_model::run::{Abandoned, Event, FaultKind, Merged, Outcome};

/// Effect of an event. Effects are carried out in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Start the worker of this attempt, or find it, and report how it ends.
    Attend { job: usize, attempt: u32 },
    /// End the worker of the job.
    Stop { job: usize },
    /// Add the work to the merge queue, or find it there, and report the result.
    Land { job: usize, attempt: u32 },
    /// Wait until the request is settled, and send [`Event::Answered`] or [`Event::Withdrawn`].
    Await { job: usize, attempt: u32, ask: u64 },
    /// Send [`Event::Due`] at this time, in Unix milliseconds.
    Arm { job: usize, attempt: u32, at_ms: u64 },
    /// Send [`Event::HostDue`] at this time, in Unix milliseconds; for a host out of reach also after a change of the network.
    ArmHost { host: String, at_ms: u64, is_away: bool },
    /// Send [`Event::LostDue`] at `at_ms`, in Unix milliseconds.
    ArmLost { host: String, since_ms: u64, at_ms: u64 },
    /// Send [`Event::FitDue`] at this time, in Unix milliseconds.
    ArmFit { host: String, at_ms: u64 },
    /// Remove the worker and the branch of a finished job.
    Tidy { job: usize },
    /// Remove what a failed job has left on its host. Its work is here.
    Forget { job: usize },
    /// Stop waiting for an attempt that was given up, end it on its host, and bring back its work.
    Reclaim(Abandoned),
    /// Write a report: its number, its job (`None` for the run), and its text.
    Tell(u64, Option<usize>, Word),
    /// End the run.
    End(Verdict),
}

impl Effect {
    /// Returns the job of the effect. `None` if the effect is about the run.
    pub fn job(&self) -> Option<usize> {
        match self {
            Self::Attend { job, .. }
            | Self::Stop { job }
            | Self::Land { job, .. }
            | Self::Await { job, .. }
            | Self::Arm { job, .. }
            | Self::Tidy { job }
            | Self::Forget { job } => Some(*job),
            Self::Tell(_, job, _) => *job,
            Self::ArmHost { .. } | Self::ArmLost { .. } | Self::ArmFit { .. } | Self::Reclaim(_) | Self::End(_) => None,
        }
    }
}

/// State of a run, which only events change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    run: Run,
}

impl Deref for Machine {
    type Target = Run;

    fn deref(&self) -> &Run {
        &self.run
    }
}

impl Machine {
    /// Creates the machine of a run that begins, or of a run as journaled.
    pub fn new(run: Run) -> Self {
        Self { run }
    }

    /// Applies one event at `now_ms`, in Unix milliseconds, and returns its effects.
    pub fn on(&mut self, event: &Event, now_ms: u64) -> Vec<Effect> {
        if let Event::Repaired { run } = event {
            self.run = Run::clone(run);
        }
        let mut turn = Turn { run: &mut self.run, now_ms, effects: Vec::new() };
        turn.take(event);
        turn.effects
    }

    /// Returns the effects that continue what was under way when the process that hosted this run died.
    pub fn resume(&self) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (job, progress) in self.jobs.iter().enumerate() {
            let attempt = progress.attempt;
            let over = matches!(self.mode, Mode::Over(_));
            match progress.stage {
                Stage::Done => effects.push(Effect::Tidy { job }),
                // An attempt may have failed right before, or right before the end of the run.
                Stage::Failed if !progress.visited.is_empty() => effects.push(Effect::Forget { job }),
                _ if over => {}
                Stage::Working => {
                    effects.push(Effect::Attend { job, attempt });
                    if self.mode == Mode::Stopping {
                        effects.push(Effect::Stop { job });
                    }
                }
                Stage::Asking { ask, .. } if self.mode != Mode::Stopping => {
                    effects.push(Effect::Await { job, attempt, ask });
                }
                Stage::Finishing | Stage::Merging | Stage::Waiting => effects.push(Effect::Land { job, attempt }),
                Stage::BackingOff { until_ms } => effects.push(Effect::Arm { job, attempt, at_ms: until_ms }),
                Stage::Pending | Stage::Asking { .. } | Stage::Paused | Stage::Failed => {}
            }
        }
        effects.extend(to_reclaim(self));
        effects.extend(hosts::armed(self));
        effects.extend(self.jobs.iter().filter_map(|progress| to_wait(self, progress)));
        effects.extend(fitness::armed(self));
        effects
    }
}

/// One event and its effects.
struct Turn<'a> {
    run: &'a mut Run,
    now_ms: u64,
    effects: Vec<Effect>,
}

impl Turn<'_> {
    fn take(&mut self, event: &Event) {
        if matches!(self.run.mode, Mode::Over(_)) {
            return;
        }
        match event {
            Event::Began => self.began(),
            Event::Started { job, attempt, pid } => {
                if self.is_present(*job, *attempt) {
                    self.started(*job, *pid);
                }
            }
            Event::Sent { job, attempt, host } => self.sent(*job, *attempt, host),
            Event::Unplaced { job, attempt, host, kind, cause } => self.unplaced(*job, *attempt, host, *kind, cause),
            Event::Unfit { job, attempt, host, program, cause } => {
                self.unfit(*job, *attempt, host, program.as_deref(), cause);
            }
            Event::FitDue { host, at_ms } => self.fit_due(host, *at_ms),
            Event::Lost { host, cause, of } => self.lost(host, cause, *of),
            Event::Stuck { job, attempt, cause } => self.stuck(*job, *attempt, cause),
            Event::Found { host, of } => self.found(host, *of),
            Event::HostDue { host } => self.host_due(host),
            Event::LostDue { host, since_ms } => self.lost_due(host, *since_ms),
            Event::Loaded { host, level } => drop(self.run.loads.insert(host.clone(), *level)),
            Event::Unreached { job, attempt } => self.unreached(*job, *attempt),
            Event::Abandoned { job, attempt, host } => self.abandoned(*job, *attempt, host),
            Event::Returned { .. } | Event::Gone { .. } | Event::Held { .. } => self.heard_of_given_up(event),
            Event::Fetched { job, attempt, .. } => self.fetched(*job, *attempt, event),
            Event::Ended { job, attempt, outcome, spent } => {
                if self.is_present(*job, *attempt) && self.run.jobs[*job].stage == Stage::Working {
                    self.ended(*job, outcome, *spent);
                }
            }
            Event::Queued { job, attempt, left_out } => {
                if self.is_present(*job, *attempt) && self.run.jobs[*job].stage == Stage::Finishing {
                    self.run.jobs[*job].left_out.clone_from(left_out);
                    self.queued(*job);
                }
            }
            Event::Retried { job, attempt } => {
                let waits = |stage: &Stage| matches!(stage, Stage::Finishing | Stage::Waiting);
                if self.is_present(*job, *attempt) && waits(&self.run.jobs[*job].stage) {
                    self.queued(*job);
                }
            }
            Event::Merged { job, attempt, merged, spent } => {
                let merging = |stage: &Stage| matches!(stage, Stage::Finishing | Stage::Merging | Stage::Waiting);
                if self.is_present(*job, *attempt) && merging(&self.run.jobs[*job].stage) {
                    // Each report has the whole usage, so it counts only when the item leaves the queue.
                    if !matches!(merged, Merged::Waiting { .. }) {
                        let progress = &mut self.run.jobs[*job];
                        progress.spent = progress.spent.plus(*spent);
                    }
                    self.merged(*job, merged);
                }
            }
            Event::Due { resolvers: Some(count), .. } => self.run.resolvers = *count,
            Event::Due { job, attempt, .. } => {
                if self.is_present(*job, *attempt) && matches!(self.run.jobs[*job].stage, Stage::BackingOff { .. }) {
                    self.run.jobs[*job].stage = Stage::Pending;
                }
            }
            Event::Answered { job, attempt, ask } => self.answered(*job, *attempt, *ask),
            Event::Withdrawn { job, attempt, why } => self.withdrawn(*job, *attempt, why),
            Event::Stop => self.stop(),
            Event::Hold if self.run.mode == Mode::Running => {
                self.run.mode = Mode::Held;
                self.tell(None, Word::RunPaused);
            }
            Event::Resume if self.run.mode == Mode::Held => {
                self.run.mode = Mode::Running;
                self.tell(None, Word::RunResumed);
            }
            Event::Hold | Event::Resume | Event::Repaired { .. } => {}
        }
        self.schedule();
        self.end_if_over();
    }

    fn is_present(&self, job: usize, attempt: u32) -> bool {
        let is_given_up = |one: &Abandoned| one.attempt == attempt && one.job == self.run.plan.jobs[job].id;
        self.run.jobs.get(job).is_some_and(|progress| progress.attempt == attempt)
            && !self.run.abandoned.iter().any(is_given_up)
    }

    fn tell(&mut self, job: Option<usize>, word: Word) {
        self.effects.push(Effect::Tell(self.run.told, job, word));
        self.run.told += 1;
    }

    fn began(&mut self) {
        let pending = self.run.count(|stage| !matches!(stage, Stage::Done | Stage::Failed));
        let (workstreams, failed) = (self.run.jobs.len(), self.run.count(|stage| *stage == Stage::Failed));
        self.tell(None, Word::RunStarted { workstreams, pending, failed });
        for job in 0..self.run.jobs.len() {
            match self.run.jobs[job].stage {
                Stage::Finishing => {
                    let attempt = self.run.jobs[job].attempt;
                    self.effects.push(Effect::Land { job, attempt });
                }
                Stage::Asking { ask, .. } => {
                    let attempt = self.run.jobs[job].attempt;
                    self.effects.push(Effect::Await { job, attempt, ask });
                }
                // It may have gone on at its host, or ended there.
                Stage::Paused if self.run.jobs[job].sent => {
                    let attempt = self.run.jobs[job].attempt;
                    (self.run.jobs[job].stage, self.run.jobs[job].carried) = (Stage::Working, true);
                    self.effects.push(Effect::Attend { job, attempt });
                }
                Stage::Paused => self.run.jobs[job].stage = Stage::Pending,
                _ => {}
            }
        }
        for job in 0..self.run.jobs.len() {
            if self.run.jobs[job].stage == Stage::Failed {
                self.fail_those_behind(job);
            }
        }
        self.effects.extend(to_reclaim(self.run));
        // Failures of an earlier run do not count.
        self.run.has_failed = false;
    }

    fn ended(&mut self, job: usize, outcome: &Outcome, spent: Spent) {
        // A worker whose shim is gone is stopped like the others, but leaves no exit record.
        let lost = matches!(outcome, Outcome::Failure { fault: FaultKind::Lost, .. });
        let outcome = if lost && self.run.mode == Mode::Stopping { &Outcome::Stopped } else { outcome };
        let progress = &mut self.run.jobs[job];
        (progress.pid, progress.sent, progress.submitted) = (None, false, false);
        (progress.away_ms, progress.stuck) = (None, None);
        progress.spent = progress.spent.plus(spent);
        (progress.answered, progress.given_up) = (None, None);
        let is_carried = std::mem::take(&mut progress.carried);
        match outcome {
            Outcome::Parked { ask, what, kind } => self.parked(job, *ask, what, *kind),
            Outcome::Success { summary } => {
                progress.summary.clone_from(summary);
                progress.error = None;
                let (attempt, spent) = (progress.attempt, progress.spent);
                self.tell(Some(job), Word::Completed { attempt, summary: summary.clone(), spent });
                if self.run.plan.jobs[job].merge {
                    self.run.jobs[job].stage = Stage::Finishing;
                    self.effects.push(Effect::Land { job, attempt });
                } else {
                    self.done(job, None, false);
                }
            }
            Outcome::Failure { cause, evidence, fault } => self.failed(job, cause, evidence.clone(), *fault),
            Outcome::Stopped if self.run.mode == Mode::Stopping => {
                progress.stage = Stage::Paused;
                let attempt = progress.attempt;
                self.tell(Some(job), Word::Paused { attempt });
            }
            // It was stopped with the run that sent it.
            Outcome::Stopped if is_carried => {
                progress.stage = Stage::Pending;
                let (attempt, error) = (progress.attempt, "stopped with its run".to_owned());
                self.tell(Some(job), Word::Retrying { attempt, error, in_ms: 0 });
            }
            Outcome::Stopped => self.give_up(job, "stopped by a person"),
        }
    }

    /// Ends a job. `on_base`: the base had all of its work already.
    fn done(&mut self, job: usize, commit: Option<String>, on_base: bool) {
        self.done_as(job, commit.clone(), Word::Done { commit, on_base, item: None, verified_by: None });
    }

    fn done_as(&mut self, job: usize, commit: Option<String>, word: Word) {
        let progress = &mut self.run.jobs[job];
        progress.stage = Stage::Done;
        progress.ended_ms = Some(self.now_ms);
        progress.commit = commit;
        (progress.error, progress.evidence) = (None, None);
        (progress.conflicted, progress.conflict_tip) = (false, None);
        progress.files.clear();
        self.tell_ignored(job);
        self.tell(Some(job), word);
        self.effects.push(Effect::Tidy { job });
    }

    fn failed(&mut self, job: usize, cause: &str, evidence: Option<String>, fault: FaultKind) {
        let retries = self.run.plan.jobs[job].retries;
        let progress = &mut self.run.jobs[job];
        progress.error = Some(cause.to_owned());
        // The next attempt need not know about failures outside the task.
        if matches!(fault, FaultKind::Task | FaultKind::Lasting) {
            let mut evidence = evidence.unwrap_or_else(|| cause.to_owned());
            evidence.push_str(&left_out::told(&progress.left_out));
            progress.evidence = Some(evidence);
        }
        let spent = count(progress, fault, retries);
        if spent {
            return self.give_up(job, cause);
        }
        let in_ms = match fault {
            FaultKind::Task | FaultKind::Lost | FaultKind::Lasting => 0,
            FaultKind::Passing => pause_ms(progress.passing),
            FaultKind::Limit { until_ms } => limit_pause_ms(until_ms, self.now_ms, progress.limited),
        };
        let attempt = progress.attempt;
        if self.run.mode == Mode::Stopping {
            progress.stage = Stage::Paused;
        } else if in_ms == 0 {
            progress.stage = Stage::Pending;
        } else {
            let at_ms = self.now_ms.saturating_add(in_ms);
            progress.stage = Stage::BackingOff { until_ms: at_ms };
            self.effects.push(Effect::Arm { job, attempt, at_ms });
        }
        self.tell(Some(job), Word::Retrying { attempt, error: cause.to_owned(), in_ms });
    }

    fn give_up(&mut self, job: usize, cause: &str) {
        self.run.has_failed = true;
        let progress = &mut self.run.jobs[job];
        progress.stage = Stage::Failed;
        progress.ended_ms = Some(self.now_ms);
        progress.error = Some(cause.to_owned());
        let attempt = progress.attempt;
        self.tell(Some(job), Word::Failed { attempt, error: cause.to_owned() });
        if !self.run.jobs[job].visited.is_empty() {
            self.tell_ignored(job);
            self.effects.push(Effect::Forget { job });
        }
        self.fail_those_behind(job);
    }

    fn stop(&mut self) {
        if self.run.mode != Mode::Stopping {
            self.run.mode = Mode::Stopping;
            self.tell(None, Word::RunStopping);
        }
        for job in 0..self.run.jobs.len() {
            match self.run.jobs[job].stage {
                // A job that is being started is stopped once its worker runs. Until then, a worker of that name may
                // belong to another caller.
                Stage::Working if self.run.jobs[job].host.is_some() && !self.run.jobs[job].sent => self.withhold(job),
                Stage::Working if has_worker(&self.run.jobs[job]) => self.effects.push(Effect::Stop { job }),
                Stage::BackingOff { .. } => self.run.jobs[job].stage = Stage::Paused,
                _ => {}
            }
        }
    }

    /// Starts jobs up to the limit, by priority and then in the order of the plan.
    fn schedule(&mut self) {
        if self.run.mode != Mode::Running {
            return;
        }
        if self.run.plan.rules.fail_fast && self.run.has_failed {
            return;
        }
        for _ in 0..room(self.run) {
            let seating = Seating::of(self.run);
            let Some(job) = next(self.run, |job| seating.place(job).is_some()) else { return };
            let Some(place) = seating.place(job) else { return };
            self.start(job, place);
        }
    }

    /// Reports whether a job may start, but has no place on any host, or none beside the resolvers.
    fn waits_for_place(&self) -> bool {
        let rules = &self.run.plan.rules;
        self.run.mode == Mode::Running
            && !(rules.fail_fast && self.run.has_failed)
            && next(self.run, |job| self.run.resolvers > 0 || Seating::of(self.run).place(job).is_none()).is_some()
    }

    fn start(&mut self, job: usize, place: Place) {
        let now_ms = self.now_ms;
        let progress = &mut self.run.jobs[job];
        progress.stage = Stage::Working;
        progress.attempt += 1;
        (progress.waited, progress.waited_empty) = (false, false);
        progress.left_out.clear();
        progress.started_ms.get_or_insert(now_ms);
        progress.ended_ms = None;
        let attempt = progress.attempt;
        progress.host = match place {
            Place::Here => None,
            // It is reported once it belongs to the host.
            Place::On(host) => Some(host),
        };
        if progress.host.is_none() {
            let worker = swarm_model::run::worker_name(&self.run.plan.slug, &self.run.plan.jobs[job].id);
            self.tell(Some(job), Word::Started { attempt, worker, host: None });
        }
        self.effects.push(Effect::Attend { job, attempt });
    }

    /// Fails all jobs that depend on a failed job, directly or indirectly.
    fn fail_those_behind(&mut self, failed: usize) {
        let id = self.run.plan.jobs[failed].id.clone();
        for at in 0..self.run.jobs.len() {
            let waits = matches!(self.run.jobs[at].stage, Stage::Pending | Stage::Paused);
            if waits && self.run.plan.jobs[at].after.contains(&id) {
                self.run.jobs[at].blames = Some(id.clone());
                self.give_up(at, &format!("dependency '{id}' failed"));
            }
        }
    }

    /// Reports the work that lands after the end of the run. Whoever stops a run may want to stop that, too.
    fn tell_what_lands(&mut self) {
        let base = self.run.plan.base.clone().unwrap_or_default();
        for job in 0..self.run.jobs.len() {
            let progress = &self.run.jobs[job];
            if progress.stage == Stage::Merging || (progress.stage == Stage::Waiting && progress.continues) {
                self.tell(Some(job), Word::MergeContinues { base: base.clone() });
            }
        }
    }

    fn end_if_over(&mut self) {
        let active = |job: &Progress| match job.stage {
            Stage::Working | Stage::Finishing => true,
            Stage::Asking { .. } => self.run.mode != Mode::Stopping,
            // The merge queue continues by itself, and a resumed run finds its result.
            Stage::Merging | Stage::BackingOff { .. } => self.run.mode != Mode::Stopping,
            // Otherwise work would land after the end of the run, and what depends on it would never start.
            Stage::Waiting => job.continues && self.run.mode != Mode::Stopping,
            Stage::Pending | Stage::Paused | Stage::Done | Stage::Failed => false,
        };
        let held = self.run.mode == Mode::Held && self.run.count(|stage| *stage == Stage::Pending) > 0;
        if held || self.run.jobs.iter().any(active) || self.waits_for_place() {
            return;
        }
        let done = self.run.count(|stage| *stage == Stage::Done);
        let failed = self.run.count(|stage| *stage == Stage::Failed);
        let pending = self.run.jobs.len() - done - failed;
        let verdict = match self.run.mode {
            Mode::Stopping => Verdict::Interrupted,
            _ if done == self.run.jobs.len() => Verdict::Completed,
            _ => Verdict::Failed,
        };
        let status = match verdict {
            Verdict::Completed => "completed",
            Verdict::Failed => "failed",
            Verdict::Interrupted => "interrupted",
        };
        if verdict == Verdict::Interrupted {
            self.tell_what_lands();
        }
        self.tell(None, Word::RunCompleted { status: status.to_owned(), done, failed, pending });
        self.run.mode = Mode::Over(verdict);
        self.effects.push(Effect::End(verdict));
    }
}
