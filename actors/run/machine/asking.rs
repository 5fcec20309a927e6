//! Jobs whose agent asks a person: the attempt has ended, and the next one continues after the answer.

use swarm_model::NeedKind;
use swarm_model::run::progress::{Mode, Stage};
use swarm_model::run::words::Word;

use super::{Effect, Turn};

impl Turn<'_> {
    pub(super) fn parked(&mut self, job: usize, ask: u64, what: &str, kind: NeedKind) {
        let progress = &mut self.run.jobs[job];
        progress.stage = Stage::Asking { ask, what: what.to_owned(), kind };
        let attempt = progress.attempt;
        self.tell(Some(job), Word::Asking { attempt, ask, kind, what: what.to_owned() });
        // A run that is being stopped ends without the answer, and the next one waits for it.
        if self.run.mode != Mode::Stopping {
            self.effects.push(Effect::Await { job, attempt, ask });
        }
    }

    pub(super) fn answered(&mut self, job: usize, attempt: u32, ask: u64) {
        if !(self.is_present(job, attempt) && is_asking(&self.run.jobs[job].stage, Some(ask))) {
            return;
        }
        let progress = &mut self.run.jobs[job];
        (progress.stage, progress.answered) = (Stage::Pending, Some(ask));
        self.tell(Some(job), Word::Answered { attempt, ask });
    }

    /// Handles a request that nobody answers any more.
    pub(super) fn withdrawn(&mut self, job: usize, attempt: u32, why: &str) {
        if self.is_present(job, attempt) && is_asking(&self.run.jobs[job].stage, None) {
            self.give_up(job, why);
        }
    }
}

/// Reports whether a job waits for the answer to this request, or to any.
fn is_asking(stage: &Stage, number: Option<u64>) -> bool {
    matches!(stage, Stage::Asking { ask, .. } if number.is_none_or(|number| number == *ask))
}
