//! What follows from the start of an iteration's worker, and from a start that fails.

use swarm_model::loops::progress::{ExitReason, Stage, Status};
use swarm_model::loops::words::Word;

use super::event::Effect;
use super::machine::Turn;
use crate::worker::backoff::PASSING_MS;

impl Turn<'_> {
    pub(super) fn started(&mut self, iteration: u32, generation: u64) {
        if self.it.iteration == iteration && self.it.stage == Stage::Starting {
            self.it.stage = Stage::Prompting { generation };
            self.it.has_run = true;
            self.it.held_back = None;
            self.it.earlier = None;
            self.it.theirs = None;
        }
    }

    pub(super) fn not_started(&mut self, cause: &str, passes: bool) {
        if !self.it.has_run {
            self.it.stage = Stage::Over;
            self.it.status = Status::Failed;
            self.it.refused = Some(cause.to_owned());
            self.effects.push(Effect::Withdraw { cause: cause.to_owned() });
            return;
        }
        if passes {
            return self.held_back(cause);
        }
        self.warn(&format!("failed to spawn worker: {cause}"));
        self.failed(Some(1), true);
    }

    /// Tries the same iteration again after a pause, however long it takes: the cause says nothing about the agent. Warns
    /// once.
    fn held_back(&mut self, cause: &str) {
        if self.it.held_back.as_deref() != Some(cause) {
            self.warn(&format!("worker not started yet: {cause}"));
            self.it.held_back = Some(cause.to_owned());
        }
        if self.it.status == Status::Paused {
            return self.rest(true);
        }
        let until_ms = self.now_ms + PASSING_MS;
        self.it.stage = Stage::BackingOff { until_ms, again: true };
        self.effects.push(Effect::Arm { at_ms: until_ms });
    }

    pub(super) fn no_prompt(&mut self, cause: &str) {
        if !self.it.has_run {
            return self.not_started(cause, false);
        }
        self.tell(Word::Error { text: cause.to_owned() });
        match self.it.status {
            Status::Paused => self.rest(true),
            Status::Running | Status::Stopped | Status::Failed => self.finish(ExitReason::Failed),
        }
    }
}
