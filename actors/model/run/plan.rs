//! Plan of a run: its jobs, their order, and the rules for all of them.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::asks::judge::Consent;
use crate::asks::rules::AskRule;
use crate::{JobOrder, MergeSettings};

/// Plan of one run, as requested.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Id of the run: eight hex digits.
    pub id: String,
    /// Directory of the run's own files, absolute: `.arial` of a repository, or a directory below the state
    /// directory.
    pub home: String,
    /// Prefix of the names of its workers.
    pub slug: String,
    /// Root of the repository, or the directory in which plain commands run.
    pub root: String,
    /// Branch on which finished work lands. `None` if no job has a worktree.
    #[serde(default)]
    pub base: Option<String>,
    /// Folder of specs as typed. `None` for a file of jobs.
    #[serde(default)]
    pub specs: Option<String>,
    pub jobs: Vec<Job>,
    pub rules: Rules,
    #[serde(default)]
    pub flags: Flags,
}

/// Options of `swarm run`. They still hold when the run is resumed, so that an interruption never lets work land
/// unverified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Flags {
    pub limit: Option<u32>,
    pub agent: Option<String>,
    pub retries: Option<u32>,
    pub timeout_ms: Option<u64>,
    pub verify: Option<String>,
    /// Finished work stays on its branch.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_merge: bool,
    /// Work that an earlier run finished and left on its branch lands, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub merge: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consent: Option<Consent>,
    /// Hosts on which the work is done. Empty: here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<String>,
    /// Time for which attempts wait for a host that is out of reach, as typed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

/// Rules for all jobs of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    /// Maximum number of concurrent jobs. At least one job runs.
    pub limit: usize,
    /// Maximum number of concurrent jobs of each group. The default is one.
    pub groups: BTreeMap<String, usize>,
    /// Start nothing more once a job has failed.
    pub fail_fast: bool,
    /// How finished work lands. Settings that are `None` come from the repository's configuration.
    pub merge: MergeSettings,
    /// What agents may do without asking. `None`: everything; the sandbox of codex still applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consent: Option<Consent>,
    /// Rules of the repository at the beginning of the run, which deny and ask. They hold until its end, also if work that
    /// lands removes them from the repository.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub asks: Vec<AskRule>,
    /// Hosts on which the work is done, in the order in which they were named. Empty: here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<Seats>,
    /// Time in milliseconds for which attempts wait for a host that is out of reach, before they are given up. `None`: they wait
    /// for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_ms: Option<u64>,
    /// Those of these hosts to which the ignored files go that worktrees get.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Clusters among the names in `on`, each with the settings of a job. An attempt there is a job that is submitted from this
    /// machine and works on its files; in all else it is a local attempt. Older versions ignore this field, find no machine with
    /// the name, and start no new work.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub clusters: BTreeMap<String, JobOrder>,
}

impl Rules {
    /// Returns the order of the job that an attempt of this work is: that of the first cluster with its tags, or of the first
    /// one for work that was begun before it asked for them. `None` if the run has no clusters.
    pub fn order_of(&self, job: &Job) -> Option<&JobOrder> {
        let orders = || self.on.iter().filter_map(|seat| Some((seat, self.clusters.get(&seat.host)?)));
        let fitting = orders().find(|(seat, _)| seat.lacks(job).next().is_none());
        fitting.or_else(|| orders().next()).map(|(_, order)| order)
    }

    /// Returns the name of the place of an attempt on `host`, as it is in `on`.
    pub fn place_of<'a>(&'a self, job: &Job, host: Option<&'a str>) -> &'a str {
        host.or_else(|| self.order_of(job).map(|order| order.host.as_str())).unwrap_or(Seats::LOCAL)
    }
}

/// Places for attempts on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seats {
    /// Name of the host. `local` is this machine.
    pub host: String,
    /// Maximum number of concurrent attempts of this run there.
    pub cap: usize,
    /// What a person says of the host. A job may ask for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

impl Seats {
    /// Name of this machine.
    pub const LOCAL: &str = "local";

    /// Returns the tags that a job asks for and the host does not have.
    pub fn lacks<'a>(&self, job: &'a Job) -> impl Iterator<Item = &'a str> {
        job.on.iter().map(String::as_str).filter(|tag| self.tags.iter().all(|own| own != tag))
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            limit: usize::MAX,
            groups: BTreeMap::new(),
            fail_fast: false,
            merge: MergeSettings::default(),
            consent: None,
            asks: Vec::new(),
            on: Vec::new(),
            lost_ms: None,
            include: Vec::new(),
            clusters: BTreeMap::new(),
        }
    }
}

/// One entry of a run: a spec for an agent, or a command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub id: String,
    pub work: Work,
    /// Ids of jobs that must be done, and landed if they land, before this one starts.
    #[serde(default)]
    pub after: Vec<String>,
    /// Jobs with a higher priority start first.
    #[serde(default)]
    pub priority: i32,
    /// Group of the job. [`Rules::groups`] limits how many jobs of a group run concurrently.
    #[serde(default)]
    pub group: Option<String>,
    /// Maximum number of attempts after the first.
    #[serde(default)]
    pub retries: u32,
    /// Time limit of one attempt in milliseconds. `None`: no limit.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Branch of the job's own worktree. `None` if the job runs in the root.
    #[serde(default)]
    pub branch: Option<String>,
    /// Whether the work lands on the base.
    #[serde(default)]
    pub merge: bool,
    /// Whether the spec or the file leaves the work on its branch, so that no flag of a run lands it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stays: bool,
    /// Command that verifies the work before it lands. `None`: the command for all jobs.
    #[serde(default)]
    pub verify: Option<String>,
    /// Tags that a host must have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<String>,
}

/// Work of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    Spec(SpecWork),
    Command(CommandWork),
}

impl Work {
    /// Reports whether both need the same program.
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Spec(one), Self::Spec(two)) => one.adapter == two.adapter,
            (Self::Command(one), Self::Command(two)) => {
                (one.argv.first(), one.env.get("PATH")) == (two.argv.first(), two.env.get("PATH"))
            }
            (Self::Spec(_), Self::Command(_)) | (Self::Command(_), Self::Spec(_)) => false,
        }
    }
}

impl Default for Work {
    fn default() -> Self {
        Self::Command(CommandWork::default())
    }
}

/// Spec that an agent carries out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpecWork {
    /// Path of the spec, relative to the root.
    pub file: String,
    /// Digest of the text when the run started. A later attempt may find another text.
    #[serde(default)]
    pub digest: String,
    /// First heading of the spec.
    pub title: String,
    /// Name of the agent adapter. `None`: the default adapter.
    #[serde(default)]
    pub adapter: Option<String>,
    /// Capabilities that the agent must have.
    #[serde(default)]
    pub capabilities: Vec<String>,
}

/// Command from a file of jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CommandWork {
    pub argv: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory. `None`: the job's worktree if it has one, else the root.
    #[serde(default)]
    pub cwd: Option<String>,
}

/// Branch that a job has begun, and the base from which it started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    pub branch: String,
    pub base: String,
}

impl Job {
    /// Returns the name of the directory of the job's worktree: the id, with the number of the branch if the branch
    /// named after the id was taken.
    pub fn leaf(&self) -> &str {
        let own = self.branch.as_deref().and_then(|branch| branch.strip_prefix("arial/"));
        let own = own.and_then(|own| own.rsplit('/').next());
        let number = |leaf: &str| leaf.strip_prefix(self.id.as_str())?.strip_prefix('-')?.parse::<u32>().ok();
        own.filter(|leaf| number(leaf).is_some()).unwrap_or(&self.id)
    }
}

/// Returns what the names of the branches of a file of jobs begin with. No other run makes branches of such names: job files
/// and jobs often have the same names as others, but `slug` contains the id of the run.
pub fn branches_of_file(slug: &str) -> String {
    format!("arial/{slug}/")
}

impl Plan {
    /// Returns the branch and the base of a job, by which its work is recognized later. `None` if it has no branch.
    pub fn topic_of(&self, job: &Job) -> Option<Topic> {
        let (branch, base) = (job.branch.clone()?, self.base.clone()?);
        Some(Topic { branch, base })
    }

    /// Returns the settings with which the work of a job is added to the merge queue.
    pub fn settings_of(&self, job: &Job) -> MergeSettings {
        MergeSettings { verify: self.verification_of(job), ..self.rules.merge.clone() }
    }

    /// Returns the command that verifies the work of a job before it lands. `None`: that of the configuration.
    pub fn verification_of(&self, job: &Job) -> Option<String> {
        job.verify.clone().or_else(|| self.rules.merge.verify.clone())
    }

    /// Returns the directory in which a command without a worktree is executed, relative to the root. `None` if it is not
    /// below the root.
    pub fn directory_of(&self, work: &CommandWork) -> Option<String> {
        let root = Path::new(&self.root);
        let mut plain = PathBuf::new();
        for part in root.join(work.cwd.as_deref().unwrap_or_default()).components() {
            match part {
                Component::ParentDir => drop(plain.pop()),
                Component::CurDir => {}
                part => plain.push(part),
            }
        }
        plain.strip_prefix(root).ok()?.to_str().map(str::to_owned)
    }

    /// Returns the index of the job with this id.
    pub fn position(&self, id: &str) -> Option<usize> {
        self.jobs.iter().position(|job| job.id == id)
    }

    /// Checks that the dependencies of the jobs exist and have no cycle.
    ///
    /// # Errors
    /// Returns a message about the first unknown dependency, or about a cycle.
    pub fn check_order(&self) -> Result<(), String> {
        let at: BTreeMap<&str, usize> = self.jobs.iter().enumerate().map(|(at, job)| (job.id.as_str(), at)).collect();
        for job in &self.jobs {
            if let Some(unknown) = job.after.iter().find(|id| !at.contains_key(id.as_str())) {
                let others = at.keys().copied().filter(|id| *id != job.id);
                let meant = crate::nearest(unknown, others).map(|id| format!(" (did you mean '{id}'?)"));
                return Err(format!("job '{}': unknown dependency '{unknown}'{}", job.id, meant.unwrap_or_default()));
            }
        }
        // Kahn's algorithm: a job that never becomes free is in a cycle, or depends on one.
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
        Err(format!("jobs depend on each other: {}", circle.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_a_directory_below_the_root_or_none() {
        let plan = Plan { root: "/r/p".to_owned(), ..Plan::default() };
        let of = |cwd: Option<&str>| {
            plan.directory_of(&CommandWork { cwd: cwd.map(str::to_owned), ..CommandWork::default() })
        };
        for (cwd, expected) in [
            (None, Some("")),
            (Some("a/./b"), Some("a/b")),
            (Some("a/../b"), Some("b")),
            (Some("/r/p/ci/../x"), Some("x")),
            (Some("../p"), Some("")),
            (Some(".."), None),
            (Some("../../../.."), None),
            (Some("../other"), None),
            (Some("/r/pq"), None),
        ] {
            assert_eq!(of(cwd).as_deref(), expected, "{cwd:?}");
        }
    }

    #[test]
    fn an_attempt_is_a_job_of_the_first_cluster_with_its_tags() {
        let named = |host: &str| JobOrder { host: host.to_owned(), ..JobOrder::default() };
        let seat = |host: &str, tags: &[&str]| Seats {
            host: host.to_owned(),
            cap: 9,
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        };
        let asks = |tags: &[&str]| Job { on: tags.iter().map(|tag| (*tag).to_owned()).collect(), ..Job::default() };
        let rules = Rules {
            on: vec![seat("cpu", &[]), seat("gpu", &["gpu"])],
            clusters: ["cpu", "gpu"].map(|host| (host.to_owned(), named(host))).into(),
            ..Rules::default()
        };
        let of = |rules: &Rules, job: &Job| rules.order_of(job).map(|order| order.host.clone());
        assert_eq!(of(&rules, &asks(&[])).as_deref(), Some("cpu"));
        assert_eq!(of(&rules, &asks(&["gpu"])).as_deref(), Some("gpu"));
        assert_eq!(of(&rules, &asks(&["big"])).as_deref(), Some("cpu"), "never on the login node");
        assert_eq!(rules.place_of(&asks(&["gpu"]), None), "gpu");
        let hosts = Rules { on: vec![seat("box", &[])], ..Rules::default() };
        assert_eq!(of(&hosts, &asks(&[])), None);
        assert_eq!((hosts.place_of(&asks(&[]), Some("box")), hosts.place_of(&asks(&[]), None)), ("box", Seats::LOCAL));
        // An older version has no such member.
        let text = serde_json::to_value(&rules).expect("is JSON");
        assert_eq!(serde_json::from_value::<Rules>(text).expect("a round trip"), rules);
        assert!(!serde_json::to_string(&hosts).expect("is JSON").contains("clusters"));
    }

    #[test]
    fn a_worktree_has_the_number_of_its_branch() {
        let leaf = |branch: &str| {
            Job { id: "t".to_owned(), branch: Some(branch.to_owned()), ..Job::default() }.leaf().to_owned()
        };
        for (branch, expected) in [
            ("arial/t", "t"),
            ("arial/t-2", "t-2"),
            ("arial/f-1/t", "t"),
            ("arial/f-1/t-2", "t-2"),
            ("arial/t-1a2b3c4d", "t"),
        ] {
            assert_eq!(leaf(branch), expected, "{branch}");
        }
    }
}
