//! What a run is to do: its jobs, in what order, and the rules for all of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::MergeSettings;

/// One run, as it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Of this run among all, eight hex digits.
    pub id: String,
    /// Directory of the run's own files, absolute: `.arial` of a repository, or one
    /// below the state directory.
    pub home: String,
    /// What names of its workers begin with.
    pub slug: String,
    /// The repository's root, or the directory in which plain commands run.
    pub root: String,
    /// The branch on which finished work lands; none when no job has a worktree.
    #[serde(default)]
    pub base: Option<String>,
    /// The folder of specs as it was typed; none for a file of jobs.
    #[serde(default)]
    pub specs: Option<String>,
    pub jobs: Vec<Job>,
    pub rules: Rules,
    #[serde(default)]
    pub flags: Flags,
}

/// What was typed when it was begun, and holds when it goes on: what is to land is not
/// to land unverified because somebody had to stop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Flags {
    pub limit: Option<u32>,
    pub agent: Option<String>,
    pub retries: Option<u32>,
    pub timeout_ms: Option<u64>,
    pub verify: Option<String>,
}

/// What holds for all jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    /// Jobs that are at work at the same time; at least one.
    pub limit: usize,
    /// The same of a group's jobs; one where nothing is said.
    pub groups: BTreeMap<String, usize>,
    /// Begin nothing more once a job has failed.
    pub fail_fast: bool,
    /// How finished work lands, where the repository's configuration says nothing.
    pub merge: MergeSettings,
}

impl Default for Rules {
    fn default() -> Self {
        Self { limit: usize::MAX, groups: BTreeMap::new(), fail_fast: false, merge: MergeSettings::default() }
    }
}

/// One thing to do: a spec for an agent, or a command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub id: String,
    pub work: Work,
    /// Jobs that must be done, and landed, before.
    #[serde(default)]
    pub after: Vec<String>,
    /// Higher goes first.
    #[serde(default)]
    pub priority: i32,
    /// Of the jobs of one group so many are at work at a time as [`Rules::groups`] says.
    #[serde(default)]
    pub group: Option<String>,
    /// Attempts after the first.
    #[serde(default)]
    pub retries: u32,
    /// Longest time of one attempt, in milliseconds.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// The branch of its own worktree; none when it works in the root.
    #[serde(default)]
    pub branch: Option<String>,
    /// What it leaves lands on the base.
    #[serde(default)]
    pub merge: bool,
    /// The command that says whether it may land, where it has one of its own.
    #[serde(default)]
    pub verify: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    Spec(SpecWork),
    Command(CommandWork),
}

impl Default for Work {
    fn default() -> Self {
        Self::Command(CommandWork::default())
    }
}

/// A spec that an agent carries out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpecWork {
    /// Its file, relative to the root.
    pub file: String,
    /// Of its text when the run began; what a later attempt finds may be another one.
    #[serde(default)]
    pub digest: String,
    /// First heading.
    pub title: String,
    /// Name of the agent adapter; none for the default one.
    #[serde(default)]
    pub adapter: Option<String>,
    /// What the agent must be able to do.
    #[serde(default)]
    pub capabilities: Vec<String>,
}

/// A command of a file of jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CommandWork {
    pub argv: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Where it runs; the root by default, its worktree where it has one.
    #[serde(default)]
    pub cwd: Option<String>,
}

impl Plan {
    /// Where the job of this name stands.
    pub fn position(&self, id: &str) -> Option<usize> {
        self.jobs.iter().position(|job| job.id == id)
    }

    /// What is wrong with the order that the jobs ask for: an unknown name, or a circle.
    ///
    /// # Errors
    /// The first mistake, as a sentence.
    pub fn check_order(&self) -> Result<(), String> {
        let at: BTreeMap<&str, usize> = self.jobs.iter().enumerate().map(|(at, job)| (job.id.as_str(), at)).collect();
        for job in &self.jobs {
            if let Some(unknown) = job.after.iter().find(|id| !at.contains_key(id.as_str())) {
                return Err(format!("'{}' is to run after '{unknown}', which there is not", job.id));
            }
        }
        // Kahn: what never becomes free is in a circle, or behind one.
        let mut open: Vec<usize> = self.jobs.iter().map(|job| job.after.len()).collect();
        let mut free: Vec<usize> = (0..open.len()).filter(|job| open[*job] == 0).collect();
        let mut followers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (follower, job) in self.jobs.iter().enumerate() {
            job.after.iter().for_each(|id| followers.entry(id).or_default().push(follower));
        }
        let mut met = 0;
        while let Some(job) = free.pop() {
            met += 1;
            for follower in followers.get(self.jobs[job].id.as_str()).into_iter().flatten() {
                open[*follower] -= 1;
                if open[*follower] == 0 {
                    free.push(*follower);
                }
            }
        }
        if met == self.jobs.len() {
            return Ok(());
        }
        let circle: Vec<&str> =
            self.jobs.iter().zip(&open).filter(|(_, open)| **open > 0).map(|(job, _)| job.id.as_str()).collect();
        Err(format!("these wait for each other: {}", circle.join(", ")))
    }
}
