//! Jobs whose work is in the merge queue.

use swarm_model::run::progress::Stage;
use swarm_model::run::words::Word;
use swarm_model::run::{FaultKind, Merged};

use super::{Turn, left_out};

impl Turn<'_> {
    pub(super) fn merged(&mut self, job: usize, merged: &Merged) {
        match merged {
            Merged::Landed { commit } => {
                self.tell(Some(job), Word::MergeCompleted { commit: commit.clone() });
                self.done(job, Some(commit.clone()), false);
            }
            Merged::Elsewhere { item, commit, verified_by } => {
                let (item, verified_by) = (Some(*item), verified_by.clone());
                let word = Word::Done { commit: Some(commit.clone()), on_base: false, item, verified_by };
                self.done_as(job, Some(commit.clone()), word);
            }
            Merged::Contained => self.done(job, None, true),
            Merged::Nothing if self.run.jobs[job].has_shown_work() => self.done(job, None, true),
            Merged::Nothing if !self.run.jobs[job].left_out.is_empty() => {
                let files = left_out::listed(&self.run.jobs[job].left_out);
                let cause = format!("ended with success but left only files that are not committed: {files}");
                self.failed(job, &cause, Some(cause.clone()), FaultKind::Task);
            }
            Merged::Nothing => {
                let cause = "ended with success but left nothing to land";
                self.failed(job, cause, Some(cause.to_owned()), FaultKind::Task);
            }
            Merged::Rejected { reason } => {
                self.tell(Some(job), Word::MergeRejected { error: reason.clone() });
                let cause = format!("verification failed: {reason}");
                self.failed(job, &cause, Some(reason.clone()), FaultKind::Task);
            }
            Merged::Conflict { files, tip } => {
                let branch = self.run.plan.jobs[job].branch.clone().unwrap_or_default();
                self.tell(Some(job), Word::MergeConflict { files: files.clone(), branch });
                self.run.jobs[job].files.clone_from(files);
                self.run.jobs[job].conflicted = true;
                self.run.jobs[job].conflict_tip.clone_from(tip);
                let base = self.run.plan.base.clone().unwrap_or_default();
                let named = files.join(", ");
                self.run.jobs[job].evidence = Some(format!(
                    "Your branch conflicts with {base} in {named}. Merge {base} into it and resolve the conflicts."
                ));
                let evidence = self.run.jobs[job].evidence.take();
                self.failed(job, &format!("conflicts with the base: {named}"), evidence, FaultKind::Task);
            }
            Merged::Waiting { reason, files, continues, is_empty } => {
                let progress = &mut self.run.jobs[job];
                (progress.continues, progress.waited_empty) = (*continues, *is_empty);
                // Both the merge queue's report and the answer to our own question may bring this state.
                if progress.stage == Stage::Waiting
                    && progress.error.as_ref() == Some(reason)
                    && progress.files == *files
                {
                    return;
                }
                (progress.stage, progress.waited) = (Stage::Waiting, true);
                progress.error = Some(reason.clone());
                progress.files.clone_from(files);
                self.tell(Some(job), Word::MergeWaiting { error: reason.clone() });
            }
            Merged::Dropped => self.give_up(job, "dropped from the merge queue by a person"),
            Merged::Refused { cause, is_mendable: true } => {
                self.failed(job, cause, Some(cause.clone()), FaultKind::Task);
            }
            Merged::Refused { cause, is_mendable: false } => self.give_up(job, cause),
        }
    }

    pub(super) fn queued(&mut self, job: usize) {
        self.run.jobs[job].stage = Stage::Merging;
        let base = self.run.plan.base.clone().unwrap_or_default();
        let left_out = self.run.jobs[job].left_out.clone();
        self.tell(Some(job), Word::MergeStarted { base, left_out });
    }
}
