//! How the jobs of a plan begin, in view of an earlier run: each goes on, or starts over.

use std::collections::BTreeMap;

use super::plan::{Job, Plan, Work};
use super::progress::{Mode, Progress, Run, Stage, Verdict};

/// An earlier run, as far as it decides how the jobs of a new plan begin.
pub struct Beginning<'a> {
    /// Jobs of the earlier run, by id.
    known: BTreeMap<&'a str, (&'a Job, &'a Progress)>,
    /// Whether the plan is a file of jobs. Only `plan` decides about the branches of specs.
    is_file: bool,
    /// Whether every job starts over.
    is_anew: bool,
    /// Whether the file names another base than before. What a branch has is of the base for which it was started.
    is_moved: bool,
}

impl<'a> Beginning<'a> {
    pub fn new(plan: &Plan, earlier: Option<&'a Run>, retry_failed: bool) -> Self {
        let jobs = earlier.into_iter().flat_map(|run| run.plan.jobs.iter().zip(&run.jobs));
        let known = jobs.map(|(job, progress)| (job.id.as_str(), (job, progress))).collect();
        let is_file = plan.specs.is_none();
        let before = earlier.and_then(|run| run.plan.base.as_ref());
        let is_moved = is_file && before.is_some() && before != plan.base.as_ref();
        let mut beginning = Self { known, is_file, is_anew: false, is_moved };
        // A completed file of jobs runs again; a completed folder of specs stays done. A person who asks for what was left
        // to land gets that, and not a second execution.
        let is_through = earlier.is_some_and(|run| run.mode == Mode::Over(Verdict::Completed));
        let lands = plan.flags.merge && plan.jobs.iter().any(|job| job.merge && beginning.is_left(job));
        beginning.is_anew = beginning.is_file && is_through && !retry_failed && !lands;
        beginning
    }

    /// Reports whether every job starts over.
    pub fn is_anew(&self) -> bool {
        self.is_anew
    }

    /// Returns the job of this id in the earlier run, and its progress.
    pub fn earlier(&self, id: &str) -> Option<(&'a Job, &'a Progress)> {
        self.known.get(id).copied()
    }

    /// Returns what the job goes on from. `None` if it is new or starts over: what an earlier attempt left is not its work.
    pub fn continued(&self, job: &Job) -> Option<(&'a Job, &'a Progress)> {
        // A changed command starts over. A changed spec does not, because `plan` handles that.
        let is_changed = |before: &Job| matches!(job.work, Work::Command(_)) && before.work != job.work;
        let is_moved = self.is_moved && job.branch.is_some();
        self.earlier(&job.id).filter(|(before, _)| !self.is_anew && !is_moved && !is_changed(before))
    }

    /// Returns the branch on which a job of a file goes on, whatever name an older program has chosen. `None` if none of
    /// its attempts has begun one.
    pub fn branch(&self, job: &Job) -> Option<&'a str> {
        let (before, progress) = self.continued(job).filter(|_| self.is_file && job.branch.is_some())?;
        // The worker of an attempt that has not ended may have begun it.
        let has_begun = progress.begun.is_some() || !matches!(progress.stage, Stage::Pending | Stage::Failed);
        before.branch.as_deref().filter(|_| has_begun)
    }

    /// Reports whether the earlier run has finished this job and left its work on its branch, and the job stays done.
    pub fn is_left(&self, job: &Job) -> bool {
        self.continued(job)
            .is_some_and(|(before, progress)| !before.merge && before.branch.is_some() && progress.stage == Stage::Done)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::run::plan::{CommandWork, Flags, Topic};

    fn job(command: &str) -> Job {
        let work = Work::Command(CommandWork { argv: vec![command.to_owned()], ..CommandWork::default() });
        Job { id: "t".to_owned(), work, branch: Some("arial/f-1/t".to_owned()), merge: true, ..Job::default() }
    }

    fn plan(command: &str) -> Plan {
        Plan { jobs: vec![job(command)], ..Plan::default() }
    }

    /// A run of an older program, whose job has this progress.
    fn earlier(stage: Stage, has_begun: bool, verdict: Verdict) -> Run {
        let mut plan = plan("make");
        plan.jobs[0].branch = Some("arial/t".to_owned());
        let topic = Topic { branch: "arial/t".to_owned(), base: "main".to_owned() };
        let progress = Progress { stage, begun: has_begun.then_some(topic), attempt: 1, ..Progress::default() };
        Run { plan: Arc::new(plan), jobs: vec![progress], mode: Mode::Over(verdict), ..Run::default() }
    }

    #[test]
    fn a_job_keeps_its_branch_only_while_it_goes_on() {
        let cases = [
            ("make", Stage::Failed, true, Verdict::Failed, Some("arial/t")),
            ("make", Stage::Failed, false, Verdict::Failed, None),
            ("make", Stage::Paused, false, Verdict::Interrupted, Some("arial/t")),
            ("make", Stage::Pending, true, Verdict::Interrupted, Some("arial/t")),
            ("make", Stage::Pending, false, Verdict::Interrupted, None),
            ("make", Stage::Done, true, Verdict::Failed, Some("arial/t")),
            ("make", Stage::Done, true, Verdict::Completed, None),
            ("other", Stage::Failed, true, Verdict::Failed, None),
            ("other", Stage::Done, true, Verdict::Failed, None),
        ];
        for (command, stage, has_begun, verdict, branch) in cases {
            let earlier = earlier(stage.clone(), has_begun, verdict);
            let begun = Run::begin(plan(command), Some(&earlier), true);
            let expected = if verdict == Verdict::Completed { Some("arial/t") } else { branch };
            let expected = expected.unwrap_or("arial/f-1/t");
            assert_eq!(begun.plan.jobs[0].branch.as_deref(), Some(expected), "{command} {stage:?} {has_begun}");
            let anew = Beginning::new(&plan(command), Some(&earlier), false);
            assert_eq!(anew.branch(&job(command)), branch, "{command} {stage:?} {has_begun}");
        }
    }

    #[test]
    fn a_job_with_a_branch_starts_over_for_another_base() {
        let with_base = |base: &str, branch: bool| {
            let mut plan = Plan { base: Some(base.to_owned()), ..plan("make") };
            plan.jobs[0].branch.take_if(|_| !branch);
            plan
        };
        for (base, branch, goes_on) in [("main", true, true), ("release", true, false), ("release", false, true)] {
            let plan = with_base("main", branch);
            let jobs = vec![Progress { stage: Stage::Done, attempt: 2, ..Progress::default() }];
            let earlier = Run { plan: Arc::new(plan), jobs, mode: Mode::Over(Verdict::Failed), ..Run::default() };
            let run = Run::begin(with_base(base, branch), Some(&earlier), false);
            let stage = if goes_on { Stage::Done } else { Stage::Pending };
            assert_eq!((&run.jobs[0].stage, run.jobs[0].attempt), (&stage, 2), "{base} {branch}");
        }
    }

    #[test]
    fn only_work_of_a_job_that_stays_done_is_left_and_it_lands_instead_of_another_execution() {
        let mut earlier = earlier(Stage::Done, true, Verdict::Completed);
        Arc::make_mut(&mut earlier.plan).jobs[0].merge = false;
        let merge = |command: &str, merge: bool| {
            let flags = Flags { merge, ..Flags::default() };
            let run = Run::begin(Plan { flags, ..plan(command) }, Some(&earlier), false);
            (run.plan.jobs[0].merge, run.jobs[0].stage.clone())
        };
        assert_eq!(merge("make", false), (true, Stage::Pending), "it starts over, and lands");
        assert_eq!(merge("make", true), (true, Stage::Finishing));
        assert_eq!(merge("other", true), (true, Stage::Pending));
        earlier.mode = Mode::Over(Verdict::Failed);
        let run = Run::begin(plan("make"), Some(&earlier), false);
        assert_eq!((run.plan.jobs[0].merge, run.jobs[0].stage.clone()), (false, Stage::Done), "it stays known as left");
    }
}
