//! How a run lands the work on one of its branches. A person who lands that work must not lose the verification, and an
//! agent cannot replace it.

use std::path::PathBuf;
use std::{io, iter};

use swarm_git::repository;
use swarm_model::Caller;
use swarm_model::merge::Agreed;
use swarm_model::run::plan::{Job, Plan};
use swarm_sys::files::list_if_present;
use swarm_sys::paths::Paths;

use super::home::Home;
use super::journal;
use super::origin::{JOURNAL, brought_along, foreign};

/// Prefix of the branches of runs.
const PREFIX: &str = "arial/";

/// Returns the rules by which the work on this branch lands, by the plan of the run that made it. `None` if no run made it.
/// The run of specs is that in the checkout `root`, or in the caller's or the main one.
///
/// # Errors
/// Returns a message if the journal cannot be read, came with the repository, or may be that of an agent.
pub fn agreed(paths: &Paths, branch: &str, root: Option<&str>, caller: &Caller) -> Result<Option<Agreed>, String> {
    let branch = branch.strip_prefix("refs/heads/").unwrap_or(branch);
    let Some(own) = branch.strip_prefix(PREFIX) else { return Ok(None) };
    let plan = match own.split_once('/') {
        Some((slug, _)) => of_file(paths, slug)?,
        None => of_specs(paths, root, caller)?,
    };
    let Some(plan) = plan else { return Ok(None) };
    let leaf = own.rsplit('/').next().unwrap_or(own);
    let job = plan.jobs.iter().find(|job| job.branch.as_deref() == Some(branch));
    // What an earlier attempt left is on a branch with a lower number.
    let job = job.or_else(|| plan.jobs.iter().find(|job| job.id == id_of(leaf, job)));
    let settings = job.map_or_else(|| plan.rules.merge.clone(), |job| plan.settings_of(job));
    let lands = job.map_or(!plan.flags.no_merge, |job| job.merge);
    Ok(Some(Agreed { settings, base: plan.base, lands, is_of_work: true }))
}

/// Returns the id in the last part of a branch's name: without the number, if the name is that of the job.
fn id_of<'a>(leaf: &'a str, job: &Job) -> &'a str {
    let number = leaf.strip_prefix(job.id.as_str()).and_then(|rest| rest.strip_prefix('-'));
    let is_number = number.is_some_and(|number| number.parse::<u32>().is_ok());
    if is_number { &leaf[..job.id.len()] } else { leaf }
}

fn of_specs(paths: &Paths, root: Option<&str>, caller: &Caller) -> Result<Option<Plan>, String> {
    let roots = match root {
        Some(root) => vec![PathBuf::from(root)],
        None => {
            let here = repository::root(caller).map_err(|refusal| refusal.cause)?;
            let main = repository::main_tree(&here).filter(|main| *main != here);
            iter::once(here).chain(main).collect()
        }
    };
    for home in roots.iter().map(|root| Home::of(root)) {
        let Some(plan) = begun(&home)?.filter(|plan| plan.specs.is_some()) else { continue };
        if let Some(journal) = foreign(paths, &home) {
            return Err(format!(
                "{} is in a worktree, and swarm began no run there ('swarm trust --run' if you did)",
                journal.display()
            ));
        }
        return match brought_along(&home, &JOURNAL, caller)? {
            None => Ok(Some(plan)),
            Some(path) => Err(format!("{} is tracked by git", path.display())),
        };
    }
    Ok(None)
}

/// Returns the plan of the file of jobs whose workers have this prefix.
fn of_file(paths: &Paths, slug: &str) -> Result<Option<Plan>, String> {
    // The home's name begins as that of its workers, and ends with the digest of the file's path.
    let Some((file, _)) = slug.rsplit_once('-') else { return Ok(None) };
    let homes = list_if_present(&paths.runs()).map_err(|error| format!("{}: {error}", paths.runs().display()))?;
    let is_alike = |name: &str| name.rsplit_once('-').is_some_and(|(own, _)| own == file);
    for home in homes.iter().filter(|home| home.file_name().to_str().is_some_and(is_alike)) {
        let plan = begun(&Home::new(home.path()))?;
        if let Some(plan) = plan.filter(|plan| plan.slug == slug) {
            return Ok(Some(plan));
        }
    }
    Ok(None)
}

/// Returns the latest plan in a home. `None` if nothing has begun there.
fn begun(home: &Home) -> Result<Option<Plan>, String> {
    match journal::begun(home) {
        Ok(run) => Ok(Some(Plan::clone(&run.plan))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", home.journal().display())),
    }
}
