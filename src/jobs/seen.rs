//! Records of one job on disk, and their changes by an answer of Slurm.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use swarm_actors::jobs::{Found, Stage, Told};
use swarm_hosts::slurm::jobs::{Line, State};
use swarm_hosts::slurm::single::Cluster;
use swarm_model::{ExitRecord, Job, JobOrder, Spec, Wanted, WantedState};
use swarm_store::jobs;
use swarm_sys::files::is_absent;
use swarm_sys::paths::Paths;

use super::Key;
use crate::processes::pilot::claim;

/// One job: its directory, and what its contract says.
#[derive(Clone, Debug)]
pub struct Known {
    pub dir: PathBuf,
    pub order: JobOrder,
    pub cluster: Cluster,
    pub job: Job,
}

impl Known {
    /// Reads a job. `None` if its directory is gone, or if the worker is no job.
    ///
    /// # Errors
    /// Fails if the files cannot be read.
    pub fn read(paths: &Paths, key: &Key) -> io::Result<Option<Self>> {
        let dir = paths.worker(&key.0, key.1);
        for leaf in ["spec.json", "spec.pending", "spec.json"] {
            let text = match std::fs::read(dir.join(leaf)) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let spec: Spec = serde_json::from_slice(&text)?;
            return Self::of(paths, dir, &spec);
        }
        Ok(None)
    }

    /// Returns the job of a start.
    ///
    /// # Errors
    /// Fails if its file cannot be read.
    pub fn of(paths: &Paths, dir: PathBuf, spec: &Spec) -> io::Result<Option<Self>> {
        let (Some(order), Some(job)) = (spec.contract.job.clone(), jobs::read(&dir, spec, paths)?) else {
            return Ok(None);
        };
        Ok(Some(Self { dir, order, cluster: Cluster::of(&spec.contract.environment), job }))
    }

    /// Returns the time between two questions. `None`: the usual one.
    pub fn ask(&self) -> Option<Duration> {
        self.order.ask_ms.map(Duration::from_millis)
    }

    /// Returns what the directory says now.
    pub fn found(&self) -> Found {
        let record = read::<ExitRecord>(&self.dir.join("exit.json"));
        let wanted: Option<Wanted> = read(&self.dir.join("wanted.json"));
        let has = |leaf: &str| !is_absent(&self.dir.join(leaf));
        Found {
            has_record: record.is_some(),
            may_refine: record.as_ref().is_some_and(Job::may_refine),
            executed: jobs::is_executed(&self.dir),
            left: has(jobs::LEFT),
            failed: has(jobs::FAILED),
            stopped: wanted.is_some_and(|wanted| wanted.state == WantedState::Stopped),
        }
    }

    /// Returns what Slurm says about the job in an answer. The newest one of several with its name counts.
    pub fn line<'a>(&self, answer: &'a [Line]) -> Option<&'a Line> {
        answer.iter().filter(|line| line.name == self.job.name).max_by_key(|line| line.id)
    }

    /// Notes an answer, and writes what has changed.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn note(&mut self, line: &Line) -> io::Result<()> {
        let told = Job {
            number: Some(line.id),
            state: Some(line.word.clone()),
            reason: line.reason.clone(),
            node: line.node.clone().or_else(|| self.job.node.clone()),
            ..self.job.clone()
        };
        if told != self.job {
            jobs::write(&self.dir, &told)?;
            self.job = told;
        }
        Ok(())
    }

    /// Returns the node on which the job is or was, as Slurm or the job itself said.
    pub fn node(&self) -> Option<String> {
        let claimed = || claim::read(&self.dir).ok().flatten().map(|claim| claim.node);
        self.job.node.clone().or_else(claimed).filter(|node| !node.is_empty())
    }
}

/// Returns the stage of a job in an answer.
pub fn told(line: Option<&Line>) -> Told {
    line.map_or(Told::Absent, |line| {
        Told::Has(match line.state {
            State::Pending => Stage::Waits,
            State::Running | State::Suspended | State::Ending | State::Unknown => Stage::Works,
            State::Over => Stage::Over,
            State::Lost => Stage::Lost,
        })
    })
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}
