//! How far a run has come: plain values, one for each job of its plan.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::plan::{Job, Plan, Work};

/// Where a job is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "stage")]
pub enum Stage {
    /// Its turn has not come.
    #[default]
    Pending,
    /// Its worker is being started, or is at work.
    Working,
    /// Its next attempt is due at this time, Unix milliseconds.
    BackingOff {
        until_ms: u64,
    },
    /// Its work is done and on its way into the merge queue.
    Finishing,
    /// Its work is in the merge queue.
    Merging,
    /// Its work is in the merge queue, which waits for a person.
    Waiting,
    /// Stopped while it was at work; it goes on where it was.
    Paused,
    Done,
    Failed,
}

impl Stage {
    /// The word for it, on the screen and in JSON.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Working => "working",
            Self::BackingOff { .. } => "retrying",
            Self::Finishing => "finishing",
            Self::Merging => "merging",
            Self::Waiting => "waiting",
            Self::Paused => "paused",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// What has become of one job so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    #[serde(flatten)]
    pub stage: Stage,
    /// Number of the attempt that is or was at work, from 1; 0 before the first.
    #[serde(default)]
    pub attempt: u32,
    /// Attempts that failed and count.
    #[serde(default)]
    pub failures: u32,
    /// Waits for a limit of the agent's provider, which do not count.
    #[serde(default)]
    pub limited: u32,
    /// Attempts of which nobody knows how they ended, which do not count at first.
    #[serde(default)]
    pub lost: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Of the first attempt, Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// What the agent says that it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Why it failed last, or what it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What the next attempt is to know of the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
    /// Where its work is on the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Its work has waited for a person: there is something to land.
    #[serde(default)]
    pub waited: bool,
    /// The job because of which it failed, without an attempt of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blames: Option<String>,
    /// Paths that keep it from the base.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    #[serde(default)]
    pub spent: Spent,
}

/// What agents say that they used, over all attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spent {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// None while a price is unknown.
    pub usd: Option<f64>,
    /// Some attempt did not tell its price.
    pub unpriced: bool,
}

impl Spent {
    /// Both together; a sum with an unknown price has the known part and says so.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let usd = match (self.usd, other.usd) {
            (None, None) => None,
            (one, two) => Some(one.unwrap_or(0.0) + two.unwrap_or(0.0)),
        };
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            usd,
            unpriced: self.unpriced || other.unpriced,
        }
    }
}

/// What a run is doing as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    #[default]
    Running,
    /// Nothing new is begun; what is at work goes on.
    Held,
    /// What is at work is being stopped.
    Stopping,
    Over(Verdict),
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Every job is done.
    Completed,
    /// Some are not.
    Failed,
    /// It was stopped, and can go on.
    Interrupted,
}

/// A run: what is to be done, and how far it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub plan: Arc<Plan>,
    /// One for each job of the plan, in its order.
    pub jobs: Vec<Progress>,
    #[serde(default)]
    pub mode: Mode,
    /// How many words it has told; the next one has this number.
    #[serde(default)]
    pub told: u64,
    /// How many attempts jobs had that are no longer in the plan: the numbers of one
    /// that comes back go on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub retired: BTreeMap<String, u32>,
    /// A job has failed since it began.
    #[serde(default)]
    pub has_failed: bool,
}

impl Run {
    /// A run that begins, with what an earlier one left of the same jobs. What was
    /// at work then goes on; what failed stays so unless it is to be tried again.
    pub fn begin(plan: Plan, earlier: Option<&Self>, retry_failed: bool) -> Self {
        let known: BTreeMap<&str, &Progress> = earlier
            .map(|run| run.plan.jobs.iter().map(|job| job.id.as_str()).zip(&run.jobs).collect())
            .unwrap_or_default();
        // A file of jobs that is through is meant to run again, a folder of specs is done.
        let is_through = earlier.is_some_and(|run| run.mode == Mode::Over(Verdict::Completed));
        let anew = plan.specs.is_none() && is_through && !retry_failed;
        let go_on = |earlier: Option<&Progress>, is_changed: bool| match earlier {
            Some(job) if anew || is_changed => Progress { attempt: job.attempt, ..Progress::default() },
            earlier => resumed(earlier, retry_failed),
        };
        // What a command did is not what another one does; a spec that changed is planned again.
        let is_changed = |job: &Job| {
            let before = earlier.and_then(|run| run.plan.jobs.get(run.plan.position(&job.id)?));
            matches!(job.work, Work::Command(_)) && before.is_some_and(|before| before.work != job.work)
        };
        let mut retired = earlier.map(|run| run.retired.clone()).unwrap_or_default();
        let attempts = earlier.iter().flat_map(|run| run.plan.jobs.iter().zip(&run.jobs));
        retired.extend(attempts.map(|(job, progress)| (job.id.clone(), progress.attempt)));
        let begun = |job: &Job| {
            let progress = go_on(known.get(job.id.as_str()).copied(), is_changed(job));
            let attempt = progress.attempt.max(retired.get(&job.id).copied().unwrap_or(0));
            Progress { attempt, ..progress }
        };
        let mut jobs: Vec<Progress> = plan.jobs.iter().map(begun).collect();
        revive(&plan, &mut jobs);
        retired.retain(|id, _| plan.position(id).is_none());
        let told = earlier.filter(|run| run.plan.id == plan.id).map_or(0, |run| run.told);
        Self { plan: Arc::new(plan), jobs, mode: Mode::Running, told, retired, has_failed: false }
    }

    /// How many jobs are in such a stage.
    pub fn count(&self, is: impl Fn(&Stage) -> bool) -> usize {
        self.jobs.iter().filter(|job| is(&job.stage)).count()
    }

    /// One job as it is now, on its own: a run may have a thousand.
    pub fn now(&self, job: usize) -> Now {
        Now { plan: Arc::clone(&self.plan), at: job, progress: self.jobs[job].clone() }
    }
}

/// One job of a run at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Now {
    pub plan: Arc<Plan>,
    /// Where it stands in the plan.
    pub at: usize,
    pub progress: Progress,
}

impl Now {
    pub fn job(&self) -> &Job {
        &self.plan.jobs[self.at]
    }

    /// The name of its worker.
    pub fn worker(&self) -> String {
        super::worker_name(&self.plan.slug, &self.job().id)
    }
}

/// What failed only because another one had has its turn when that one has.
fn revive(plan: &Plan, jobs: &mut [Progress]) {
    let is_revived = |jobs: &[Progress], at: usize| {
        let blamed = jobs[at].blames.as_deref().and_then(|id| plan.position(id));
        jobs[at].stage == Stage::Failed && blamed.is_some_and(|other| jobs[other].stage != Stage::Failed)
    };
    while let Some(at) = (0..jobs.len()).find(|at| is_revived(jobs, *at)) {
        jobs[at] = Progress { attempt: jobs[at].attempt, spent: jobs[at].spent, ..Progress::default() };
    }
}

fn resumed(earlier: Option<&Progress>, retry_failed: bool) -> Progress {
    let mut job = earlier.cloned().unwrap_or_default();
    match job.stage {
        // Failures are counted anew, and the numbers of attempts go on.
        Stage::Failed if retry_failed => {
            Progress { attempt: job.attempt, spent: job.spent, evidence: job.evidence, ..Progress::default() }
        }
        // The queue knows what became of the work of this attempt.
        Stage::Waiting | Stage::Merging | Stage::Finishing => {
            job.stage = Stage::Finishing;
            job
        }
        Stage::BackingOff { .. } | Stage::Working => {
            job.stage = Stage::Paused;
            job
        }
        Stage::Pending | Stage::Paused | Stage::Done | Stage::Failed => job,
    }
}
