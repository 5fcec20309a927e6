//! Replay of a journal with lines that cannot be read. What the lost events did is inferred from those that follow, and
//! from the reports that were written after them, so that nothing that is on record as done is done again.

use swarm_model::run::Event;
use swarm_model::run::progress::{Mode, Run, Stage};

use super::Machine;

/// End of a job by its last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportedEnd {
    /// Done, with the commit of its work on the base.
    Done(Option<String>),
    /// Failed, with the reason.
    Failed(String),
}

impl Machine {
    /// Brings a job to the stage in which `event` happened, if events before it were lost. Never goes back.
    pub fn catch_up(&mut self, event: &Event, now_ms: u64) {
        let (job, attempt, stage) = match event {
            Event::Started { job, attempt, .. }
            | Event::Sent { job, attempt, .. }
            | Event::Unplaced { job, attempt, .. }
            | Event::Unfit { job, attempt, .. }
            | Event::Unreached { job, attempt }
            | Event::Abandoned { job, attempt, .. }
            | Event::Stuck { job, attempt, .. }
            | Event::Fetched { job, attempt, .. }
            | Event::Ended { job, attempt, .. } => (*job, *attempt, Stage::Working),
            Event::Queued { job, attempt, .. } => (*job, *attempt, Stage::Finishing),
            Event::Retried { job, attempt } => (*job, *attempt, Stage::Waiting),
            Event::Merged { job, attempt, .. } => (*job, *attempt, Stage::Merging),
            Event::Due { job, attempt, .. } => (*job, *attempt, Stage::BackingOff { until_ms: now_ms }),
            Event::Answered { job, attempt, ask } => {
                let (what, kind) = (String::new(), swarm_model::NeedKind::default());
                (*job, *attempt, Stage::Asking { ask: *ask, what, kind })
            }
            Event::Withdrawn { job, attempt, .. } => {
                let (what, kind) = (String::new(), swarm_model::NeedKind::default());
                (*job, *attempt, Stage::Asking { ask: 0, what, kind })
            }
            Event::Lost { .. }
            | Event::Found { .. }
            | Event::HostDue { .. }
            | Event::LostDue { .. }
            | Event::Returned { .. }
            | Event::Gone { .. }
            | Event::Held { .. }
            | Event::Loaded { .. }
            | Event::FitDue { .. } => return,
            Event::Began | Event::Stop | Event::Hold | Event::Resume | Event::Repaired { .. } => return,
        };
        let Some(progress) = self.run.jobs.get_mut(job) else { return };
        let is_ahead = match (rank(&progress.stage), rank(&stage)) {
            _ if attempt != progress.attempt => attempt > progress.attempt,
            (Some(present), Some(wanted)) => wanted > present,
            // What ended, waits for its turn or was stopped is beyond every event of its attempt.
            (None, _) | (_, None) => false,
        };
        if is_ahead {
            if attempt > progress.attempt {
                (progress.waited, progress.waited_empty) = (false, false);
                progress.left_out.clear();
                progress.ended_ms = None;
            }
            (progress.attempt, progress.stage) = (attempt, stage);
            progress.started_ms.get_or_insert(now_ms);
            if let Event::Abandoned { host, .. } = event {
                (progress.sent, progress.host) = (true, Some(host.clone()));
            }
            self.finish_before(job, now_ms);
            // It went on, so it cannot have been over.
            if matches!(self.run.mode, Mode::Over(_)) {
                self.run.mode = Mode::Running;
            }
        }
    }

    /// Ends the jobs on which a job depends that has been started.
    fn finish_before(&mut self, job: usize, now_ms: u64) {
        let mut open = vec![job];
        while let Some(job) = open.pop() {
            let before = self.run.plan.jobs[job].after.iter().filter_map(|id| self.run.plan.position(id));
            for at in before.collect::<Vec<_>>() {
                let progress = &mut self.run.jobs[at];
                if progress.stage != Stage::Done {
                    progress.stage = Stage::Done;
                    progress.ended_ms.get_or_insert(now_ms);
                    open.push(at);
                }
            }
        }
    }

    /// Ends jobs that were reported as ended, and returns the state with which the run continues. `told` is the number
    /// of its reports that are on record.
    #[must_use]
    pub fn repaired(mut self, ends: &[(usize, ReportedEnd)], told: u64, now_ms: u64) -> Run {
        for (job, end) in ends {
            let Some(progress) = self.run.jobs.get_mut(*job) else { continue };
            if matches!(progress.stage, Stage::Done | Stage::Failed) {
                continue;
            }
            (progress.pid, progress.submitted) = (None, false);
            progress.ended_ms = Some(now_ms);
            match end {
                ReportedEnd::Done(commit) => {
                    (progress.stage, progress.error) = (Stage::Done, None);
                    progress.commit.clone_from(commit);
                }
                ReportedEnd::Failed(error) => {
                    (progress.stage, progress.error) = (Stage::Failed, Some(error.clone()));
                    self.run.has_failed = true;
                }
            }
        }
        self.run.told = self.run.told.max(told);
        // The event that brings this state in ends the run again, if nothing is left.
        self.run.mode = match self.run.mode {
            Mode::Over(swarm_model::run::progress::Verdict::Interrupted) => Mode::Stopping,
            Mode::Over(_) => Mode::Running,
            mode => mode,
        };
        self.run
    }
}

/// Returns the order of a stage among those that an attempt goes through. `None` for the others.
fn rank(stage: &Stage) -> Option<u32> {
    match stage {
        Stage::Working => Some(1),
        Stage::Finishing => Some(2),
        Stage::Merging | Stage::Waiting => Some(3),
        Stage::BackingOff { .. } | Stage::Asking { .. } => Some(4),
        Stage::Pending | Stage::Paused | Stage::Done | Stage::Failed => None,
    }
}
