//! Conversion of specs and job files to the jobs of a plan.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use swarm_model::run::plan::{CommandWork, Job, SpecWork, Work};

use crate::cli::duration;
use swarm_config::defaults;
use swarm_config::sections::RunConfig;
use swarm_store::runs::specs::{OneOrMany, Spec};
use swarm_sys::duration::NumberOrText;

/// Values from the command line. They override the configuration; a spec or job overrides them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Typed {
    pub agent: Option<String>,
    pub retries: Option<u32>,
    pub timeout: Option<Duration>,
}

/// Returns the job of a spec.
///
/// # Errors
/// Fails if the timeout in the front matter or in the configuration is invalid.
pub fn job_of(spec: &Spec, root: &Path, config: &RunConfig, typed: &Typed) -> Result<Job, String> {
    let front = &spec.front;
    let limit = match &front.timeout {
        Some(text) => Some(text.text()),
        None if typed.timeout.is_some() => None,
        None => config.timeout.as_ref().map(NumberOrText::text),
    };
    let limit = limit.map(|text| duration::parse_positive(&text)).transpose();
    let limit = limit.map_err(|cause| format!("{}: timeout: {cause}", spec.path.display()))?.or(typed.timeout);
    Ok(Job {
        id: spec.id.clone(),
        work: Work::Spec(SpecWork {
            digest: spec.digest.clone(),
            file: file_of(spec, root),
            title: spec.title.clone(),
            adapter: front.adapter.clone().or_else(|| typed.agent.clone()).or_else(|| config.agent.clone()),
            capabilities: front.required_capabilities.clone(),
        }),
        after: front.after.list(),
        priority: front.priority,
        group: front.group.clone(),
        retries: front.retries.or(typed.retries).or(config.retries).unwrap_or(defaults::RUN_RETRIES),
        timeout_ms: limit.map(milliseconds),
        branch: Some(format!("arial/{}", spec.id)),
        merge: front.merge.unwrap_or(true),
        stays: front.merge == Some(false),
        verify: front.verify.clone(),
        on: front.on.list(),
    })
}

/// Returns the path of a spec, relative to the root if it is below it.
pub fn file_of(spec: &Spec, root: &Path) -> String {
    let file = spec.path.canonicalize().unwrap_or_else(|_| spec.path.clone());
    file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned()
}

pub fn milliseconds(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)
}

/// Job file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobFile {
    /// Maximum number of jobs that run at the same time.
    pub limit: Option<usize>,
    /// Maximum number of running jobs per group, by name of the group.
    pub groups: BTreeMap<String, usize>,
    pub fail_fast: Option<bool>,
    pub retries: Option<u32>,
    pub timeout: Option<NumberOrText>,
    pub base: Option<String>,
    pub verify: Option<String>,
    pub job: Vec<JobEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobEntry {
    /// Name of the job; its number in the file by default.
    pub name: Option<String>,
    pub command: Command,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    #[serde(default)]
    pub worktree: bool,
    #[serde(default)]
    pub after: OneOrMany,
    #[serde(default)]
    pub priority: i32,
    pub group: Option<String>,
    pub retries: Option<u32>,
    pub timeout: Option<NumberOrText>,
    #[serde(default)]
    pub merge: bool,
    pub verify: Option<String>,
    /// Tags that a host must have.
    #[serde(default)]
    pub on: OneOrMany,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Command {
    /// Command line for `sh -c`.
    Text(String),
    Words(Vec<String>),
}

/// Parses a job file.
///
/// # Errors
/// Fails if the file is not valid TOML or has an unknown key, or if a limit is 0. The message continues the name of the
/// file: `, line N: …` or `: …`.
pub fn parse(text: &str) -> Result<JobFile, String> {
    let file: JobFile = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        format!(", line {line}: {}", error.message())
    })?;
    match file.limit == Some(0) || file.groups.values().any(|limit| *limit == 0) {
        true => Err(": limits must be at least 1".to_owned()),
        false => Ok(file),
    }
}

/// Sets the directory of jobs without a worktree, which run in that of the file and not at the root of its repository.
pub fn run_in(jobs: &mut [Job], dir: &Path) {
    for job in jobs.iter_mut().filter(|job| job.branch.is_none()) {
        if let Work::Command(work) = &mut job.work {
            let cwd = work.cwd.as_deref().map_or_else(|| dir.to_owned(), |cwd| dir.join(cwd));
            work.cwd = Some(cwd.to_string_lossy().into_owned());
        }
    }
}

/// Returns the jobs of a job file, whose branches have names that begin with `branches`.
///
/// # Errors
/// Fails with the name of the job that has an invalid name, command, timeout or combination of keys.
pub fn jobs_of(file: &JobFile, branches: &str, typed: &Typed) -> Result<Vec<Job>, String> {
    let mut jobs: Vec<Job> = Vec::with_capacity(file.job.len());
    for (at, entry) in file.job.iter().enumerate() {
        let id = entry.name.clone().unwrap_or_else(|| (at + 1).to_string());
        let wrong = |cause: &str| Err(format!("job '{id}': {cause}"));
        if !swarm_store::repositories::is_branch_name(&format!("arial/{id}")) || id.contains('/') {
            return wrong("invalid name: must be valid in a branch name and must not contain '/'");
        }
        if jobs.iter().any(|job| job.id == id) {
            return wrong("duplicate name");
        }
        if entry.merge && !entry.worktree {
            return wrong("merge = true requires worktree = true");
        }
        if entry.worktree && entry.cwd.is_some() {
            return wrong("cwd is for jobs without a worktree; begin the command with 'cd DIR &&' instead");
        }
        let argv = match &entry.command {
            Command::Text(text) if text.trim().is_empty() => return wrong("empty command"),
            Command::Text(text) => vec!["/bin/sh".to_owned(), "-c".to_owned(), text.clone()],
            Command::Words(words) if words.first().is_none_or(String::is_empty) => return wrong("empty command"),
            Command::Words(words) => words.clone(),
        };
        let limit = entry.timeout.as_ref().or(file.timeout.as_ref());
        let limit = limit.map(|limit| duration::parse_positive(&limit.text())).transpose();
        let limit = match limit {
            Ok(limit) => limit.or(typed.timeout),
            Err(cause) => return wrong(&format!("timeout: {cause}")),
        };
        jobs.push(Job {
            work: Work::Command(CommandWork { argv, env: entry.env.clone(), cwd: entry.cwd.clone() }),
            after: entry.after.list(),
            priority: entry.priority,
            group: entry.group.clone(),
            retries: entry.retries.or(typed.retries).or(file.retries).unwrap_or(0),
            timeout_ms: limit.map(milliseconds),
            branch: entry.worktree.then(|| format!("{branches}{id}")),
            merge: entry.merge,
            stays: entry.worktree && !entry.merge,
            verify: entry.verify.clone(),
            on: entry.on.list(),
            id,
        });
    }
    Ok(jobs)
}

/// Returns the keys of `swarm.toml` that a file of jobs replaces: its verification, or that of a job.
pub fn rules_of(verify: Option<&str>, jobs: &[Job]) -> &'static [&'static str] {
    if verify.is_some() || jobs.iter().any(|job| job.verify.is_some()) { &["merge.verify"] } else { &[] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(text: &str) -> Result<Vec<Job>, String> {
        jobs_of(&parse(text)?, "arial/file-1/", &Typed::default())
    }

    #[test]
    fn a_job_file_becomes_ordered_commands() {
        let text = "limit = 4\nretries = 2\n[[job]]\ncommand = 'make'\n[[job]]\nname = 'test'\ncommand = ['make', 'test']\nafter = '1'\non = 'gpu'\ntimeout = '10m'\nworktree = true\nmerge = true\n";
        let jobs = jobs(text).expect("they are read");
        let Work::Command(first) = &jobs[0].work else { panic!("it is a command") };
        assert_eq!((jobs[0].id.as_str(), first.argv.join(" ").as_str()), ("1", "/bin/sh -c make"));
        let second = &jobs[1];
        assert_eq!(
            (second.after.as_slice(), second.retries, second.timeout_ms),
            (["1".to_owned()].as_slice(), 2, Some(600_000))
        );
        assert_eq!(
            (second.branch.as_deref(), second.on.as_slice()),
            (Some("arial/file-1/test"), ["gpu".to_owned()].as_slice())
        );
    }

    #[test]
    fn invalid_jobs_are_refused_by_name() {
        let cases = [
            ("[[job]]\ncommand = []\n", "job '1': empty command"),
            ("[[job]]\ncommand = ''\n", "job '1': empty command"),
            ("[[job]]\ncommand = ['']\n", "job '1': empty command"),
            ("[[job]]\ncommand = 'x'\nmerge = true\n", "job '1': merge = true requires worktree = true"),
            (
                "[[job]]\ncommand = 'x'\nworktree = true\ncwd = 'a'\n",
                "job '1': cwd is for jobs without a worktree; begin the command with 'cd DIR &&' instead",
            ),
            ("[[job]]\nname = 'a'\ncommand = 'x'\n[[job]]\nname = 'a'\ncommand = 'y'\n", "job 'a': duplicate name"),
            (
                "[[job]]\nname = 'a b'\ncommand = 'x'\n",
                "job 'a b': invalid name: must be valid in a branch name and must not contain '/'",
            ),
        ];
        for (text, cause) in cases {
            assert_eq!(jobs(text), Err(cause.to_owned()));
        }
        assert!(
            jobs("[[job]]\nname = 'a'\n").expect_err("no command").starts_with(", line 1: missing field `command`")
        );
        assert_eq!(jobs("limit = 0\n[[job]]\ncommand = 'x'\n"), Err(": limits must be at least 1".to_owned()));
        assert!(jobs("[[jobs]]\n").expect_err("unknown key").starts_with(", line 1: unknown field `jobs`"));
    }
}
