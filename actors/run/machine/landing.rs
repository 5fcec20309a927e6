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
                let said = self.run.jobs[job].summary.as_deref().and_then(last_words);
                let cause = "ended with success but left nothing to land".to_owned();
                // It may have asked a person. The agent itself knows what it has said.
                let told = said.map_or_else(|| cause.clone(), |said| format!("{cause}; the agent said last: {said}"));
                self.failed(job, &told, Some(cause), FaultKind::Task);
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

/// Maximum number of characters of an agent's last message that are repeated.
const SAID_CHARS_MAX: usize = 120;

/// Returns the end of a message, where a question is, in one line. `None` if it is empty.
fn last_words(message: &str) -> Option<String> {
    let words = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let left_out = words.chars().count().saturating_sub(SAID_CHARS_MAX);
    let end: String = words.chars().skip(left_out).collect();
    (!words.is_empty()).then(|| if left_out > 0 { format!("…{end}") } else { end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_message_is_repeated_in_one_line() {
        assert_eq!(last_words(" \n"), None);
        assert_eq!(last_words("Two ways.\n\nWhich one?\n").as_deref(), Some("Two ways. Which one?"));
        let long = last_words(&format!("{} Which one?", "é".repeat(400))).expect("a text");
        assert!(long.starts_with('…') && long.ends_with("é Which one?") && long.chars().count() == 121, "{long}");
    }
}
