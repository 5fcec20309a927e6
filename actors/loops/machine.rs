//! Decisions of a loop, as a pure function: (progress, event, now) to (progress, effects).

use super::sight::{STUCK, Sight};
use std::ops::Deref;

use swarm_model::loops::progress::{
    BACKOFF_S_MAX, CONTEXT_GRACE, ExitReason, FAILURES_MAX, LOST_MAX, Loop, Stage, Status, Then, Wire,
};
use swarm_model::loops::words::{Code, Word};

pub use super::event::{Effect, Event, News};

/// A loop and its decisions. Only events change its state.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    it: Loop,
}

impl Deref for Machine {
    type Target = Loop;

    fn deref(&self) -> &Loop {
        &self.it
    }
}

impl Machine {
    /// Creates a machine for a new loop, or for one loaded from disk.
    pub fn new(it: Loop) -> Self {
        Self { it }
    }

    /// Takes one event at `now_ms` (Unix milliseconds) and returns its effects.
    pub fn on(&mut self, event: &Event, now_ms: u64) -> Vec<Effect> {
        let mut turn = Turn { it: &mut self.it, now_ms, effects: Vec::new() };
        turn.take(event);
        turn.effects
    }

    /// Returns the effects that continue the loop after a restart of the supervisor.
    pub fn resume(&self) -> Vec<Effect> {
        resume(&self.it)
    }

    /// Starts a new group of log lines at `log_length`, the length of the log in bytes.
    pub fn begin_lines(&mut self, log_length: u64) {
        self.it.lines.clear();
        self.it.lines_at = log_length;
    }

    /// Adds lines to the present group, and records the contents that `state.json` may have before the next write.
    pub fn record(&mut self, mut lines: Vec<(u64, Word)>, wires: &[Wire]) {
        self.it.told += lines.len() as u64;
        self.it.lines.append(&mut lines);
        self.it.wires_before = wires.to_vec();
    }

    /// Drops the files of an earlier loop, once this loop can no longer be withdrawn.
    pub fn forget_earlier(&mut self) {
        self.it.earlier = None;
    }
}

pub(super) fn resume(it: &Loop) -> Vec<Effect> {
    if let Some(cause) = &it.refused {
        return vec![Effect::Withdraw { cause: cause.clone() }];
    }
    if !it.is_active() {
        return Vec::new();
    }
    match &it.stage {
        Stage::Starting | Stage::Prompting { .. } | Stage::Typing { .. } | Stage::Watching { .. } => {
            vec![Effect::Attend]
        }
        Stage::Ending { .. } => vec![end(it)],
        Stage::BackingOff { until_ms, .. } => vec![Effect::Arm { at_ms: *until_ms }],
        Stage::Between { .. } | Stage::Over => Vec::new(),
    }
}

fn end(it: &Loop) -> Effect {
    Effect::End { drop: it.exit_reason == Some(ExitReason::PreflightFailed) }
}

/// Returns the pause after the nth failure in a row, in seconds.
fn backoff_s(failures: u32) -> u64 {
    (1_u64 << failures.saturating_sub(1).min(16)).min(BACKOFF_S_MAX)
}

/// Handling of one event, with its effects.
pub(super) struct Turn<'a> {
    pub(super) it: &'a mut Loop,
    pub(super) now_ms: u64,
    pub(super) effects: Vec<Effect>,
}

impl Turn<'_> {
    fn take(&mut self, event: &Event) {
        let at_work = |this: &Self, iteration: u32| this.it.iteration == iteration && this.it.stage.is_at_work();
        match event {
            Event::Began => self.begin(),
            Event::Adopted => self.adopted(),
            Event::Started { iteration, generation } => self.started(*iteration, *generation),
            Event::NotStarted { iteration, cause, passes } => {
                if self.it.iteration == *iteration && self.it.stage == Stage::Starting {
                    self.not_started(cause, *passes);
                }
            }
            Event::NoPrompt { iteration, cause } => {
                if self.it.iteration == *iteration && self.it.stage == Stage::Starting {
                    self.no_prompt(cause);
                }
            }
            Event::Typing { iteration } => {
                if let (true, Stage::Prompting { generation }) = (self.it.iteration == *iteration, &self.it.stage) {
                    self.it.stage = Stage::Typing { generation: *generation };
                }
            }
            Event::Prompted { iteration, baseline, log_from } => {
                let generation = self.it.stage.generation().filter(|_| at_work(self, *iteration));
                if let Some(generation) = generation {
                    self.prompted(generation, baseline, *log_from);
                }
            }
            Event::Entered { iteration } => {
                if self.it.iteration == *iteration && matches!(self.it.stage, Stage::Watching { .. }) {
                    self.entered();
                }
            }
            Event::NotPrompted { iteration, cause } => {
                if at_work(self, *iteration) {
                    self.warn(&format!("cannot type the prompt: {cause}"));
                    self.end_worker(Then::Failed);
                }
            }
            Event::Blocked { iteration, cause } => {
                if at_work(self, *iteration) {
                    self.blocked(cause);
                }
            }
            Event::Seen { iteration, sight } => {
                if self.it.iteration == *iteration && matches!(self.it.stage, Stage::Watching { .. }) {
                    self.seen(sight);
                }
            }
            Event::Ended { iteration, asked: false, .. } if self.it.detached && at_work(self, *iteration) => {
                self.ended_unattended();
            }
            Event::Ended { iteration, code, asked, done } => {
                if at_work(self, *iteration) {
                    self.ended(*code, *asked, *done);
                }
            }
            Event::Lost { iteration } if at_work(self, *iteration) => self.lost(),
            Event::Lost { .. } => {}
            Event::Gone { iteration, done } => {
                if let (true, Stage::Ending { then }) = (self.it.iteration == *iteration, &self.it.stage) {
                    let then = *then;
                    self.gone(then, *done);
                }
            }
            Event::Due { iteration } => {
                if let (true, Stage::BackingOff { again, .. }) = (self.it.iteration == *iteration, &self.it.stage) {
                    let again = *again;
                    self.next(again);
                }
            }
            Event::Pause { reason } => self.pause(reason),
            Event::Resume => self.resume(),
            Event::Attend => self.attend(),
            Event::Killed => self.killed(),
            Event::Others(wire) => self.others(*wire),
        }
    }

    pub(super) fn tell(&mut self, word: Word) {
        self.effects.push(Effect::Tell(word));
    }

    pub(super) fn announce(&mut self, news: News) {
        self.effects.push(Effect::Announce(news));
    }

    pub(super) fn warn(&mut self, text: &str) {
        self.tell(Word::Warn { iteration: self.it.iteration, text: text.to_owned() });
        self.announce(News::Warning { text: text.to_owned() });
    }

    fn begin(&mut self) {
        self.announce(News::Started);
        self.tell(Word::Start { iteration: self.it.iteration, max: self.it.max_iterations });
        self.effects.push(Effect::Attend);
    }

    fn adopted(&mut self) {
        let has_ended = self.it.iteration_ended_ms.is_some_and(|at_ms| at_ms >= self.it.iteration_started_ms);
        let unseen = matches!(self.it.stage, Stage::Between { .. }) && !has_ended;
        let aside = if unseen { "; the exit code of its worker is unknown" } else { "" };
        self.warn(&format!("loop adopted from another program{aside}"));
    }

    /// Starts the next iteration, or the same one again if `again`. Ends the loop if it is done or
    /// this was the last iteration.
    pub(super) fn next(&mut self, again: bool) {
        let it = &mut *self.it;
        if it.done_seen {
            return self.finish(ExitReason::DonePattern);
        }
        if !again && it.iteration >= it.max_iterations {
            return self.finish(ExitReason::MaxIterations);
        }
        it.stage = Stage::Starting;
        it.iteration_started_ms = self.now_ms;
        it.baseline = String::new();
        it.entered = false;
        it.blocked = None;
        it.shown_done = false;
        it.nudged = false;
        it.warned.clear();
        if !again {
            it.iteration += 1;
            it.lost = 0;
            it.turned_away = 0;
            let (iteration, max) = (it.iteration, it.max_iterations);
            self.announce(News::Iteration);
            self.tell(Word::Start { iteration, max });
        }
        self.effects.push(Effect::Attend);
    }

    /// Decides what follows an iteration whose worker is gone.
    fn onward(&mut self) {
        match self.it.status {
            Status::Running => self.next(false),
            Status::Paused => self.rest(false),
            Status::Stopped | Status::Failed => self.over(),
        }
    }

    /// Rests until the loop is resumed.
    pub(super) fn rest(&mut self, again: bool) {
        self.it.stage = Stage::Between { again };
    }

    pub(super) fn over(&mut self) {
        self.it.stage = Stage::Over;
    }

    /// Ends the loop for this reason. Its worker must be gone.
    pub(super) fn finish(&mut self, reason: ExitReason) {
        self.conclude(reason);
        self.over();
    }

    pub(super) fn conclude(&mut self, reason: ExitReason) {
        let failed = matches!(reason, ExitReason::Failed | ExitReason::PreflightFailed);
        self.it.status = if failed { Status::Failed } else { Status::Stopped };
        self.it.exit_reason = Some(reason);
        self.tell(Word::Done { iterations: self.it.iteration, reason });
        self.announce(News::Ended { reason });
    }

    pub(super) fn end_worker(&mut self, then: Then) {
        self.close_iteration();
        self.it.stage = Stage::Ending { then };
        let end = end(self.it);
        self.effects.push(end);
    }

    /// Closes the present iteration and returns its duration in seconds.
    pub(super) fn close_iteration(&mut self) -> u64 {
        let seconds = self.now_ms.saturating_sub(self.it.iteration_started_ms) / 1000;
        self.it.iteration_ended_ms = Some(self.now_ms);
        self.it.durations.push(seconds);
        seconds
    }

    /// Counts a failure. After a pause, the next iteration follows, or the same one if `again`.
    pub(super) fn failed(&mut self, code: Code, again: bool) {
        self.it.consecutive_failures += 1;
        self.it.total_failures += 1;
        let attempt = self.it.consecutive_failures;
        let (iteration, is_last) = (self.it.iteration, self.it.iteration >= self.it.max_iterations);
        if self.it.status == Status::Paused {
            return self.rest(again);
        }
        if attempt >= FAILURES_MAX {
            return self.finish(ExitReason::Failed);
        }
        if is_last && !again {
            return self.finish(ExitReason::MaxIterations);
        }
        let backoff = backoff_s(attempt);
        self.tell(Word::Fail { iteration, code, attempt, backoff });
        let until_ms = self.now_ms + backoff * 1000;
        self.it.stage = Stage::BackingOff { until_ms, again };
        self.effects.push(Effect::Arm { at_ms: until_ms });
    }

    /// Pauses the loop because its agent cannot work. The window stays, so that a person can answer; the same iteration
    /// then goes on.
    fn blocked(&mut self, cause: &str) {
        if self.it.blocked.as_deref() == Some(cause) {
            return;
        }
        self.it.blocked = Some(cause.to_owned());
        let iteration = self.it.iteration;
        self.tell(Word::Error { text: format!("iteration {iteration}: the agent {cause}") });
        self.pause(&format!("the agent {cause}"));
    }

    fn prompted(&mut self, generation: u64, baseline: &str, log_from: u64) {
        baseline.clone_into(&mut self.it.baseline);
        self.it.log_from = log_from;
        self.it.screen_changed_ms = Some(self.now_ms);
        self.it.stage = Stage::Watching { generation };
    }

    fn entered(&mut self) {
        self.it.entered = true;
        if self.it.detached {
            self.effects.push(Effect::Abandon);
        }
    }

    /// Handles a worker that ended before Enter was recorded. The task that attends the loop later handles its end.
    fn ended_unattended(&mut self) {
        if let Some(generation) = self.it.stage.generation() {
            self.it.stage = Stage::Watching { generation };
            self.entered();
        }
    }

    fn seen(&mut self, sight: &Sight) {
        if let Some(cause) = &sight.obstacle {
            return self.blocked(cause);
        }
        self.it.shown_done = sight.done;
        if sight.quiet_ms == 0 {
            self.it.screen_changed_ms = Some(self.now_ms);
        }
        for at in &sight.stuck {
            if !self.it.warned.contains(at) {
                self.it.warned.push(*at);
                self.warn(STUCK[*at].1);
            }
        }
        if self.it.status != Status::Running {
            return;
        }
        let iteration = self.it.iteration;
        if sight.preflight
            && !std::mem::replace(&mut self.it.preflown, true)
            && let Some(at) = sight.stuck.first()
        {
            self.tell(Word::Error {
                text: format!("iteration {iteration}: pre-flight check failed — {}", STUCK[*at].1),
            });
            self.conclude(ExitReason::PreflightFailed);
            return self.end_worker(Then::Over);
        }
        if sight.done && self.it.plan.check_done_continuous {
            self.conclude(ExitReason::DonePattern);
            return self.end_worker(Then::Over);
        }
        if sight.fatal {
            self.it.exit_reason = Some(ExitReason::Compaction);
            self.tell(Word::Fatal { iteration, text: "compaction detected, killing".to_owned() });
            return self.end_worker(Then::Next);
        }
        if let (Some(limit), Some(context)) = (self.it.plan.max_context, sight.context) {
            if context >= limit.saturating_add(CONTEXT_GRACE) {
                self.it.exit_reason = Some(ExitReason::ContextThreshold);
                self.tell(Word::Fatal { iteration, text: "context threshold exceeded, killing".to_owned() });
                return self.end_worker(Then::Next);
            }
            if context >= limit && !self.it.nudged {
                self.it.nudged = true;
                self.tell(Word::Warn { iteration, text: format!("context nudge sent at {limit}%") });
                let text = format!("You're at {limit}% context. Commit WIP and /exit NOW.");
                self.effects.push(Effect::Type { text });
            }
        }
        let seconds = self.it.plan.inactivity_timeout_s;
        if seconds > 0 && sight.quiet_ms >= seconds * 1000 {
            self.tell(Word::Timeout { iteration, seconds });
            self.end_worker(Then::Next);
        }
    }

    fn ended(&mut self, code: Code, asked: bool, done: bool) {
        if self.it.blocked.is_some() && !asked && !done {
            // The agent did no work, so the iteration does not count.
            self.it.turned_away += 1;
            return self.rest(true);
        }
        let is_theirs = self.it.follows().is_some();
        let (iteration, seconds) = (self.it.iteration, self.close_iteration());
        self.tell(Word::End { iteration, code, seconds });
        if asked {
            return self.finish(ExitReason::Killed);
        }
        if code == Some(0) {
            self.it.consecutive_failures = 0;
        }
        if done {
            self.it.done_seen = true;
            return self.onward();
        }
        match code {
            Some(0) => self.onward(),
            // For a worker of another program, only its end is known, not its exit code.
            None if is_theirs => self.onward(),
            code => self.failed(code, false),
        }
    }

    /// Starts the same iteration again, since losing the worker is no failure of the agent.
    fn lost(&mut self) {
        if self.it.lost >= LOST_MAX {
            return self.ended(None, false, false);
        }
        self.it.lost += 1;
        self.warn("worker lost with its machine or tmux server, restarting it");
        match self.it.status {
            Status::Running => {
                let until_ms = self.now_ms + backoff_s(self.it.lost) * 1000;
                self.it.stage = Stage::BackingOff { until_ms, again: true };
                self.effects.push(Effect::Arm { at_ms: until_ms });
            }
            Status::Paused => self.rest(true),
            Status::Stopped | Status::Failed => self.over(),
        }
    }

    fn gone(&mut self, then: Then, done: bool) {
        match then {
            // The output counts whatever the reason for ending the worker was.
            Then::Next => {
                self.it.done_seen |= done;
                self.onward();
            }
            Then::Failed => self.failed(None, false),
            Then::Over => self.over(),
        }
    }
}
