//! Progress of a run: plain values, one for each job of its plan.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::abandoned::Abandoned;
use super::beginning::Beginning;
use super::plan::{Job, Plan, Topic};
use crate::NeedKind;

/// Stage of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "stage")]
pub enum Stage {
    /// Waiting for its turn, or for its dependencies.
    #[default]
    Pending,
    /// The worker is being started, or runs.
    Working,
    /// The agent asks a person and has ended. The next attempt continues its conversation after the answer.
    Asking {
        /// Number of the request.
        ask: u64,
        /// What is asked, in one line.
        what: String,
        kind: NeedKind,
    },
    /// The next attempt is due at this time, in Unix milliseconds.
    BackingOff {
        until_ms: u64,
    },
    /// The work is done and is being added to the merge queue.
    Finishing,
    /// The work is in the merge queue.
    Merging,
    /// The work is in the merge queue, and something is in the way of its item.
    Waiting,
    /// Stopped while it was running. It continues when the run is resumed.
    Paused,
    Done,
    Failed,
}

impl Stage {
    /// Returns the name of the stage, on the screen and in JSON.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Working => "working",
            Self::Asking { .. } => "asking",
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

/// Progress of one job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    #[serde(flatten)]
    pub stage: Stage,
    /// Number of the present or last attempt, from 1. 0 before the first.
    #[serde(default)]
    pub attempt: u32,
    /// Number of failed attempts that count towards the limit of retries.
    #[serde(default)]
    pub failures: u32,
    /// Number of attempts that ended at the provider's usage limit. They do not count as failures at first.
    #[serde(default)]
    pub limited: u32,
    /// Number of attempts whose end is unknown. They do not count as failures at first.
    #[serde(default)]
    pub lost: u32,
    /// Number of attempts that a temporary failure outside the task ended. They do not count as failures at first.
    #[serde(default)]
    pub passing: u32,
    /// Pid of the worker. `None` if it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Whether the worker of the present attempt was started without a process here: it is a job.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub submitted: bool,
    /// Start of the first attempt in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    /// Time when the job was done or failed, in Unix milliseconds. `None` before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// The agent's own summary of its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Reason of the last failure, or what the job waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Result of the last attempt that the prompt of the next attempt includes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
    /// Commit of the work on the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Whether the work has waited for a person in the merge queue, so that there is something to land.
    #[serde(default)]
    pub waited: bool,
    /// Whether the queue's item had no commit when it waited, so that there may be nothing to land after all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waited_empty: bool,
    /// Dependency whose failure failed this job, without an attempt of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blames: Option<String>,
    /// Paths that keep the work from the base.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Uncommitted paths of the last attempt that do not land: files of kinds that tools generate, and the
    /// places of submodules and other repositories with uncommitted work (with a slash at the end).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Ignored files that the last attempt has made on its host. They go with the worktree there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
    /// Branch that an attempt of this job has created. A branch that is not recorded here belongs to somebody else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<Topic>,
    /// Whether the work has conflicted with the base, so that there is something to land.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub conflicted: bool,
    /// Commit of the work that conflicted. `None` if none did, or if an older version recorded the conflict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict_tip: Option<String>,
    /// Whether waiting work lands by itself when what is in the way is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continues: bool,
    /// Number of the request that was answered, for the attempt that continues with the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered: Option<u64>,
    /// Host of the present or last attempt. `None`: here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Whether the present attempt was sent to its host. Until it has ended, it belongs to that host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sent: bool,
    /// Time in Unix milliseconds since which the host, although it may take work, does not answer about the attempt sent there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away_ms: Option<u64>,
    /// What is in the way of the attempt that was sent, although its host answers: its work cannot be taken, for example.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
    /// Whether the attempt was sent by a run that was stopped before it knew the end of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub carried: bool,
    /// Hosts to which attempts were sent, which may have files of theirs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub visited: Vec<String>,
    /// Commit with the work of the last attempt on a host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tip: Option<String>,
    /// What the prompt of the next attempt says about the one before it, which was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<String>,
    /// Hosts that cannot execute this job, as far as they said.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unfit: BTreeMap<String, Unfit>,
    #[serde(default)]
    pub spent: Spent,
}

impl Progress {
    /// Reports whether the present attempt belongs to a host, and its end is not known.
    pub fn is_out(&self) -> bool {
        self.sent && self.host.is_some() && self.stage == Stage::Working
    }

    /// Returns the present attempt of the job `id`, if it is out on a host.
    pub fn out(&self, id: &str) -> Option<Abandoned> {
        let host = self.host.as_ref().filter(|_| self.sent)?;
        Some(Abandoned::new(id, self.attempt, host))
    }

    /// Reports whether there was something to land at some time: if nothing is left, somebody else has landed it.
    pub fn has_shown_work(&self) -> bool {
        self.conflicted || (self.waited && !self.waited_empty)
    }
}

/// Usage as agents report it, summed over all attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spent {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Price in US dollars. `None` if no attempt reported one.
    pub usd: Option<f64>,
    /// Whether an attempt did not report its price.
    pub unpriced: bool,
}

impl Spent {
    /// Returns the sum. If one of the prices is unknown, the sum has the known one, and `unpriced` stays set.
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

/// State of a run as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    #[default]
    Running,
    /// No job starts; running jobs continue.
    Held,
    /// Running jobs are being stopped.
    Stopping,
    Over(Verdict),
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Every job is done.
    Completed,
    /// At least one job is not done.
    Failed,
    /// The run was stopped and can be resumed.
    Interrupted,
}

/// Why nothing can be started on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    pub kind: ClosedKind,
    pub cause: String,
    /// Number of tries in a row that failed.
    pub tries: u32,
    /// Number of them that the host refused.
    #[serde(default)]
    pub refusals: u32,
    /// Time of the first of them in Unix milliseconds. 0 in journals of older programs.
    #[serde(default)]
    pub since_ms: u64,
    /// Time of the next try in Unix milliseconds. `None`: it is being tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

/// Why a host does not execute a job. It may execute others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfit {
    /// Program that is missing there. `None`: something else is in the way of this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    pub cause: String,
    /// Number of tries in a row that failed.
    pub tries: u32,
    /// Time of the next try in Unix milliseconds. `None`: it may be tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClosedKind {
    /// Out of reach.
    Away,
    /// A person has to change something first.
    Refused,
    /// No room.
    Busy,
}

impl ClosedKind {
    /// Returns the kind as the end of a sentence about the host.
    pub fn word(self) -> &'static str {
        match self {
            Self::Away => "out of reach",
            Self::Refused => "not usable",
            Self::Busy => "busy",
        }
    }

    /// Returns the name of the kind in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Refused => "refused",
            Self::Busy => "busy",
        }
    }
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

/// State of a run: its plan, and the progress of each job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub plan: Arc<Plan>,
    /// Progress of each job of the plan, in its order.
    pub jobs: Vec<Progress>,
    #[serde(default)]
    pub mode: Mode,
    /// Number of reports so far, which is the number of the next one.
    #[serde(default)]
    pub told: u64,
    /// Number of attempts of each job that is no longer in the plan. If the job returns, its attempts are counted
    /// from there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub retired: BTreeMap<String, u32>,
    /// Whether a job has failed since the run began.
    #[serde(default)]
    pub has_failed: bool,
    /// Hosts on which nothing can be started at the moment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub closed: BTreeMap<String, Closed>,
    /// Attempts that were given up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub abandoned: Vec<Abandoned>,
    /// Load that hosts have reported, in halves per processor.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub loads: BTreeMap<String, u32>,
    /// Number of resolvers of the run's work that are running or wait for a place.
    #[serde(default, skip_serializing_if = "is_none")]
    pub resolvers: usize,
    /// Whether the run records the branches that its jobs have begun. Runs of older programs do not.
    #[serde(default)]
    pub records_topics: bool,
}

impl Run {
    /// Creates the state of a run that begins, with the progress of the same jobs from an earlier run. Jobs that were
    /// running then are resumed. Failed jobs stay failed, except with `retry_failed`.
    pub fn begin(mut plan: Plan, earlier: Option<&Self>, retry_failed: bool) -> Self {
        let beginning = Beginning::new(&plan, earlier, retry_failed);
        let mut retired = earlier.map(|run| run.retired.clone()).unwrap_or_default();
        let attempts = earlier.iter().flat_map(|run| run.plan.jobs.iter().zip(&run.jobs));
        retired.extend(attempts.map(|(job, progress)| (job.id.clone(), progress.attempt)));
        let begun = |job: &Job| {
            let progress = resumed(beginning.continued(job).map(|(_, progress)| progress), retry_failed);
            let attempt = progress.attempt.max(retired.get(&job.id).copied().unwrap_or(0));
            if plan.flags.merge && job.merge && beginning.is_left(job) {
                // A person may have landed it, so that nothing is left to land.
                return Progress { stage: Stage::Finishing, attempt, waited: true, ended_ms: None, ..progress };
            }
            Progress { attempt, ..progress }
        };
        let mut jobs: Vec<Progress> = plan.jobs.iter().map(begun).collect();
        for job in &mut plan.jobs {
            // Only a person's word lands what was left; until then it stays known as such.
            job.merge &= plan.flags.merge || !beginning.is_left(job);
            if let Some(branch) = beginning.branch(job) {
                job.branch = Some(branch.to_owned());
            }
        }
        revive(&plan, &mut jobs);
        retired.retain(|id, _| plan.position(id).is_none());
        let told = earlier.filter(|run| run.plan.id == plan.id).map_or(0, |run| run.told);
        let mut abandoned = earlier.map(|run| run.abandoned.clone()).unwrap_or_default();
        abandoned.retain(|one| !one.is_back || one.found_at.is_some());
        abandoned.extend(earlier.into_iter().flat_map(|run| run.left_out_there(&plan, &beginning)));
        let (plan, mode, closed) = (Arc::new(plan), Mode::Running, BTreeMap::new());
        Self {
            plan,
            jobs,
            mode,
            told,
            retired,
            has_failed: false,
            closed,
            abandoned,
            records_topics: true,
            ..Self::default()
        }
    }

    /// Returns the attempts that are out on hosts, and with which no job of the next plan goes on.
    fn left_out_there(&self, next: &Plan, beginning: &Beginning) -> Vec<Abandoned> {
        let goes_on = |job: &Job| next.jobs.iter().any(|next| next.id == job.id && beginning.continued(next).is_some());
        let out = self.plan.jobs.iter().zip(&self.jobs).filter(|(job, progress)| progress.sent && !goes_on(job));
        out.filter_map(|(job, progress)| progress.out(&job.id)).collect()
    }

    /// Assumes that jobs which were started by an older program, which recorded no branches, have begun their branch.
    pub fn record_topics(&mut self) {
        if self.records_topics {
            return;
        }
        for (job, progress) in self.plan.jobs.iter().zip(&mut self.jobs) {
            if progress.begun.is_none() && progress.started_ms.is_some() {
                progress.begun = self.plan.topic_of(job);
            }
        }
        self.records_topics = true;
    }

    /// Returns the number of jobs whose stage satisfies `is`.
    pub fn count(&self, is: impl Fn(&Stage) -> bool) -> usize {
        self.jobs.iter().filter(|job| is(&job.stage)).count()
    }

    /// Reports whether the host has an attempt of the job that was given up. The next one would take its place there. Another
    /// machine under its name does not have it.
    pub fn avoids(&self, job: usize, host: &str) -> bool {
        let is_of = |one: &Abandoned| one.host == host && self.plan.jobs.get(job).is_some_and(|job| job.id == one.job);
        self.abandoned.iter().any(|one| !one.is_back && !one.is_gone && is_of(one))
    }

    /// Returns the present state of one job on its own, because a run may have a thousand jobs.
    pub fn now(&self, job: usize) -> Now {
        let commit = |id: &String| {
            let commit = self.plan.position(id).and_then(|at| self.jobs[at].commit.clone())?;
            Some((id.clone(), commit))
        };
        let landed = self.plan.jobs[job].after.iter().filter_map(commit).collect();
        Now { plan: Arc::clone(&self.plan), at: job, progress: self.jobs[job].clone(), landed }
    }
}

/// State of one job of a run at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Now {
    pub plan: Arc<Plan>,
    /// Index of the job in the plan.
    pub at: usize,
    pub progress: Progress,
    /// Jobs after which it comes whose work has landed, each with the commit on the base.
    pub landed: Vec<(String, String)>,
}

impl Now {
    pub fn job(&self) -> &Job {
        &self.plan.jobs[self.at]
    }

    /// Reports whether an attempt of this job has created its branch.
    pub fn has_begun(&self) -> bool {
        self.progress.begun.is_some() && self.progress.begun == self.plan.topic_of(self.job())
    }

    /// Returns the name of the job's worker.
    pub fn worker(&self) -> String {
        super::worker_name(&self.plan.slug, &self.job().id)
    }
}

/// Resets jobs that failed only because of a dependency, if that dependency has not failed any more.
fn revive(plan: &Plan, jobs: &mut [Progress]) {
    let is_revived = |jobs: &[Progress], at: usize| {
        let blamed = jobs[at].blames.as_deref().and_then(|id| plan.position(id));
        jobs[at].stage == Stage::Failed && blamed.is_some_and(|other| jobs[other].stage != Stage::Failed)
    };
    while let Some(at) = (0..jobs.len()).find(|at| is_revived(jobs, *at)) {
        let Progress { attempt, spent, begun, host, tip, visited, .. } = std::mem::take(&mut jobs[at]);
        jobs[at] = Progress { attempt, spent, begun, host, tip, visited, ..Progress::default() };
    }
}

/// Returns the progress with which a job of an earlier run begins.
fn resumed(earlier: Option<&Progress>, retry_failed: bool) -> Progress {
    let mut job = earlier.cloned().unwrap_or_default();
    // A person may have installed what was missing.
    job.unfit.clear();
    // Its host is asked anew.
    (job.away_ms, job.stuck) = (None, None);
    match job.stage {
        // Failures are counted from 0 again; the numbers of attempts continue.
        Stage::Failed if retry_failed => {
            let Progress { attempt, spent, evidence, begun, conflicted, conflict_tip, host, tip, visited, .. } = job;
            let base = Progress { attempt, spent, evidence, begun, ..Progress::default() };
            Progress { conflicted, conflict_tip, host, tip, visited, ..base }
        }
        // The merge queue knows the result of this attempt's work.
        Stage::Waiting | Stage::Merging | Stage::Finishing => {
            job.stage = Stage::Finishing;
            job
        }
        Stage::BackingOff { .. } | Stage::Working => {
            job.stage = Stage::Paused;
            job
        }
        Stage::Pending | Stage::Asking { .. } | Stage::Paused | Stage::Done | Stage::Failed => job,
    }
}
