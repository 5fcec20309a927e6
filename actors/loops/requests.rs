//! Requests of people and of the original program, as the machine takes them.

use swarm_model::loops::progress::{ExitReason, Stage, Status, Then, Wire};
use swarm_model::loops::words::Word;

use super::event::{Effect, News};
use super::machine::{Turn, resume};

impl Turn<'_> {
    pub(super) fn pause(&mut self, reason: &str) {
        if self.it.status != Status::Running {
            return;
        }
        self.it.status = Status::Paused;
        self.tell(Word::Pause { reason: reason.to_owned() });
        self.announce(News::Paused { reason: reason.to_owned() });
        if let Stage::BackingOff { again, .. } = self.it.stage {
            self.rest(again);
        }
    }

    pub(super) fn resume(&mut self) {
        if self.it.status != Status::Paused && !self.it.is_disconnected() {
            return;
        }
        // A task that is still typing the prompt keeps running: a second one would type it too.
        let is_prompting = self.it.is_active() && !self.it.entered;
        self.it.status = Status::Running;
        self.it.exit_reason = None;
        self.it.detached = false;
        self.announce(News::Resumed);
        if self.it.blocked.take().is_some()
            && let Some(generation) = self.it.stage.generation()
        {
            // The agent has not worked on the prompt yet.
            self.it.entered = false;
            self.it.stage = Stage::Prompting { generation };
            return self.effects.push(Effect::Attend);
        }
        match self.it.stage {
            Stage::Between { again } => self.next(again),
            Stage::Over => self.next(false),
            // Restarts the inactivity timeout.
            _ if self.it.stage.is_at_work() && !is_prompting => self.effects.push(Effect::Attend),
            _ => {}
        }
    }

    pub(super) fn attend(&mut self) {
        if self.it.status == Status::Running && self.it.detached {
            let is_attended = self.it.is_active();
            self.it.detached = false;
            self.announce(News::Started);
            if let Stage::Between { again } = self.it.stage {
                self.next(again);
            } else if !is_attended {
                let effects = resume(self.it);
                self.effects.extend(effects);
            }
        }
    }

    pub(super) fn killed(&mut self) {
        if !self.it.may_go_on() {
            return;
        }
        let may_come_up = self.it.stage == Stage::Starting;
        self.conclude(ExitReason::Killed);
        self.effects.push(Effect::Abandon);
        if may_come_up {
            // The kill may have come before the worker existed.
            self.end_worker(Then::Over);
        } else {
            if self.it.stage.is_at_work() {
                self.close_iteration();
            }
            self.over();
        }
    }

    /// Applies a change by another program. `state.json` wins, because people and the original program write to it.
    pub(super) fn others(&mut self, wire: Wire) {
        self.it.max_iterations = wire.max_iterations;
        match (self.it.status, wire.status) {
            (Status::Running, Status::Paused) => self.pause("file"),
            (Status::Paused, Status::Running) => self.resume(),
            (Status::Running | Status::Paused, Status::Stopped | Status::Failed) => self.killed(),
            _ => {}
        }
    }
}
