//! `swarm run --on CLUSTER`: each attempt is a job of Slurm (`engine = "slurm"`), and works with the files of this machine.

use std::collections::BTreeMap;
use std::path::Path;

use swarm_config::hosts::{Engine, HostConfig};
use swarm_hosts::slurm::single::Cluster;
use swarm_model::run::plan::{Job, Plan, Rules};
use swarm_model::run::progress::{Progress, Run, Stage};
use swarm_model::run::worker_name;
use swarm_model::{Caller, FineState, JobOrder, Over, Refusal, RefusalKind, WorkerView};
use swarm_store::views::{Detail, Pick, load_where};
use swarm_sys::lookup::{self, Place};
use swarm_sys::paths::Paths;

use crate::cli::error::Failure;
use crate::cli::jobs;
use crate::cli::render::{escape, long_state};
use crate::cli::screen::Screen;
use crate::cli::spawn::on;

/// Returns the orders of jobs of these names, if they are clusters. None if all of them are hosts.
///
/// # Errors
/// Refuses hosts beside clusters: an attempt on a host works with a copy of the files, and a job with the files themselves.
pub fn clusters(
    names: &[String],
    configured: &BTreeMap<String, HostConfig>,
) -> Result<BTreeMap<String, JobOrder>, Failure> {
    let is_cluster = |name: &&String| configured.get(*name).is_some_and(|config| config.engine == Some(Engine::Slurm));
    let (those, others): (Vec<&String>, Vec<&String>) = names.iter().partition(is_cluster);
    if let (Some(cluster), Some(other)) = (those.first(), others.first()) {
        let cause = format!("'--on' names '{cluster}', whose workers are jobs, and '{other}', which is a machine");
        let refusal = Refusal::new(RefusalKind::Invalid, cause);
        return Err(refusal.remedy("name either machines or clusters with engine = \"slurm\"").into());
    }
    those.into_iter().map(|name| Ok((name.clone(), on::order(name, configured)?))).collect()
}

/// Checks before anything is begun that jobs can be submitted here. A controller that does not answer may come back while the
/// run goes on.
///
/// # Errors
/// Refuses flags that do not apply to jobs, and a machine without Slurm.
pub fn check(plan: &Plan, caller: &Caller, screen: &mut Screen) -> Result<(), Failure> {
    let refuse = |cause: &str, remedy: &str| Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into());
    if plan.flags.lost.as_ref().is_some_and(|lost| lost != "wait") {
        return refuse(
            "--lost does not apply to workers that are jobs: an attempt waits until its node answers",
            "give '--lost wait'; 'swarm clean WORKER' gives up the job of a node that is gone",
        );
    }
    let none = BTreeMap::new();
    let path = lookup::path_of(&none, &caller.environment);
    if lookup::check("sbatch", path, &Place::Directory(Path::new(&caller.cwd))).is_err() {
        return refuse(
            "there is no sbatch on this machine",
            "run it on a login node of the cluster: swarm --host LOGIN run --on NAME",
        );
    }
    if let Err(cause) = Cluster::of(&caller.environment).ask() {
        screen.warning(&format!("Slurm does not answer now ({cause}); jobs are submitted when it does"));
    }
    Ok(())
}

/// Returns what a person should know about attempts that are jobs.
pub fn note(rules: &Rules) -> String {
    let names: Vec<&str> = rules.on.iter().map(|seat| seat.host.as_str()).collect();
    format!("each attempt is a job of Slurm ({}), at most {} at a time", names.join(", "), rules.limit)
}

/// Workers of a run's attempts that are jobs, by name.
#[derive(Default)]
pub struct Jobs(BTreeMap<String, WorkerView>);

impl Jobs {
    /// Reads the workers of attempts that are at work. Those that cannot be read are left out.
    pub fn of(run: &Run, paths: &Paths) -> Self {
        if run.plan.rules.clusters.is_empty() {
            return Self::default();
        }
        let at_work = run.plan.jobs.iter().zip(&run.jobs).filter(|(_, progress)| progress.stage == Stage::Working);
        let names: Vec<String> = at_work.map(|(job, _)| worker_name(&run.plan.slug, &job.id)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let registry = load_where(paths, Detail::Fine, Pick::Named(&names));
        let views = registry.map(|registry| registry.workers).unwrap_or_default();
        Self(views.into_iter().map(|view| (view.row.name.clone(), view)).collect())
    }

    /// Returns where the present attempt of a workstream is, or what it waits for. `None` if it is no job at work.
    pub fn words(&self, run: &Run, job: &Job, progress: &Progress) -> Option<String> {
        if progress.stage != Stage::Working {
            return None;
        }
        said(self.0.get(&worker_name(&run.plan.slug, &job.id))?)
    }

    /// Returns what the job of the present attempt waits for in the queue. `None` if it is not there.
    pub fn queued(&self, run: &Run, job: &Job, progress: &Progress) -> Option<String> {
        let view = self.0.get(&worker_name(&run.plan.slug, &job.id))?;
        (progress.stage == Stage::Working && view.state == FineState::Queued).then(|| long_state(view))
    }
}

fn said(view: &WorkerView) -> Option<String> {
    let job = view.job.as_ref()?;
    let place = jobs::place(job);
    Some(match view.state {
        FineState::Queued => format!("{}, {place}", long_state(view)),
        FineState::Lost if job.over == Some(Over::Unproven) => format!(
            "{place} was lost and may still work there: waits until Slurm reaches the node ('swarm clean {}' gives it up)",
            escape(&view.row.name)
        ),
        FineState::Running if jobs::said(view, job).is_none() => place,
        FineState::Running | FineState::Suspended => format!("{place}, {}", long_state(view)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use swarm_model::Job as SlurmJob;

    use super::*;
    use crate::cli::sample;

    fn configured(text: &str) -> BTreeMap<String, HostConfig> {
        toml::from_str(text).expect("valid")
    }

    #[test]
    fn a_run_has_machines_or_clusters() {
        let all = configured("[jobs]\nengine = 'slurm'\npartition = 'cpu'\n[gpu]\nengine = 'slurm'\n[box]\nssh = 'b'");
        let of = |names: &[&str]| clusters(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), &all);
        let both = of(&["jobs", "gpu"]).expect("two clusters");
        assert_eq!(both["jobs"].arguments, ["--partition=cpu"]);
        assert_eq!(both.keys().map(String::as_str).collect::<Vec<_>>(), ["gpu", "jobs"]);
        assert!(of(&["box", "local", "other"]).expect("hosts").is_empty());
        for names in [["box", "jobs"], ["jobs", "local"]] {
            let Err(Failure::Refused { refusal, .. }) = of(&names) else { panic!("{names:?}") };
            assert!(refusal.cause.contains("whose workers are jobs"), "{}", refusal.cause);
        }
    }

    #[test]
    fn where_a_job_is_and_what_it_waits_for_is_said() {
        let view = |state, word: &str, over| {
            let (node, number) = (Some("n1".to_owned()), Some(7));
            let reason = (state == FineState::Queued).then(|| "Resources".to_owned());
            let asked_ms = Some(swarm_sys::clock::wall_ms());
            let job =
                SlurmJob { state: Some(word.to_owned()), reason, node, number, over, asked_ms, ..SlurmJob::default() };
            WorkerView { state, job: Some(job), pid: None, ..sample::process("x") }
        };
        let words = |state, word: &str, over| said(&view(state, word, over));
        assert_eq!(words(FineState::Queued, "PENDING", None).as_deref(), Some("queued: Resources, job 7 on n1"));
        assert_eq!(words(FineState::Running, "RUNNING", None).as_deref(), Some("job 7 on n1"));
        let lost = words(FineState::Lost, "NODE_FAIL", Some(Over::Unproven)).expect("said");
        assert!(lost.contains("may still work") && lost.contains("swarm clean x"), "{lost}");
        assert_eq!(words(FineState::Lost, "FAILED", Some(Over::Proven)), None);
        assert_eq!(words(FineState::Exited, "COMPLETED", None), None);
    }
}
