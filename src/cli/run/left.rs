//! Work that a run has finished and left on its branch: how it lands.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use swarm_model::run::beginning::Beginning;
use swarm_model::run::plan::{Job, Plan};
use swarm_model::run::progress::{Progress, Run, Stage};
use swarm_model::run::worker_name;
use swarm_model::{BaseRef, Refusal, RefusalKind, RowWorktree, WorkerView};
use swarm_store::repositories::branch_tip;
use swarm_store::repositories::topic::{Shape, Topic, topic, topic_of_branch};
use swarm_store::runs::home::Home;
use swarm_store::runs::{before_the_next, journal};
use swarm_sys::paths::Paths;
use swarm_sys::quoting::command_line;

use super::queue::RunQueue;
use crate::cli::caller;
use crate::cli::error::Failure;
use crate::cli::screen::Screen;

/// Reports whether the run has finished a job and left its work on its branch or in its worktree.
pub fn is_left(run: &Run, job: &Job, progress: &Progress, queue: &RunQueue) -> bool {
    if job.merge || progress.stage != Stage::Done || progress.commit.is_some() {
        return false;
    }
    let (Some(branch), Ok(collected)) = (job.branch.clone(), caller::collect()) else { return false };
    let path = Home::new(&run.plan.home).worktrees().join(job.leaf()).to_string_lossy().into_owned();
    let tree = RowWorktree { path, branch, base_repo: run.plan.root.clone() };
    let base = BaseRef { branch: run.plan.base.clone(), commit: "HEAD".to_owned() };
    // A person may have landed it: then nothing is left.
    let has_more =
        |topic: Topic| topic.without_landed(queue.items())?.diff(Shape::Names).map(|names| !names.is_empty());
    let caller = &collected.caller;
    if let Ok(is_left) = topic(caller, &tree, Some(&base)).and_then(has_more) {
        return is_left;
    }
    // Another branch may be checked out for a review, or the project was moved. What git cannot tell has not landed.
    match branch_tip(Path::new(&tree.base_repo), &tree.branch, caller) {
        Ok(None) => false,
        Ok(Some(_)) => topic_of_branch(caller, &tree, Some(&base)).and_then(has_more).unwrap_or(true),
        Err(_) => true,
    }
}

/// Returns what a person does with finished work that the run has left, if its records count. `None` if there is none.
pub fn advice(run: &Run, job: &Job, progress: &Progress, queue: &RunQueue, counts: bool) -> Option<String> {
    let next = || if counts { to_land(run, job) } else { "first run 'swarm trust --run'".to_owned() };
    is_left(run, job, progress, queue).then(|| format!("not landed; {}", next()))
}

/// Returns the name by which the work of a job is added to the merge queue: its worker, or its branch if the worker was on
/// another host.
fn name_of(run: &Run, job: &Job) -> String {
    let progress = run.plan.position(&job.id).and_then(|at| run.jobs.get(at));
    let branch = job.branch.clone().filter(|_| progress.is_some_and(|progress| progress.host.is_some()));
    branch.unwrap_or_else(|| worker_name(&run.plan.slug, &job.id))
}

/// Returns the commands that land the work of a job.
pub fn to_land(run: &Run, job: &Job) -> String {
    let name = name_of(run, job);
    let file = if run.plan.specs.is_none() { " FILE" } else { "" };
    // No run lands what its spec or file leaves on the branch.
    let all = if job.stays { String::new() } else { format!(" or 'swarm run{file} --merge'") };
    format!("run 'swarm merge add {name}'{all}")
}

/// Returns the workers of runs whose work is finished and has not landed: a person reviews it, and lands it by the name of the
/// worker.
pub fn reviewed<'a>(views: impl IntoIterator<Item = &'a WorkerView>, paths: &Paths) -> BTreeSet<String> {
    let (mut runs, mut reviewed) = (BTreeMap::new(), BTreeSet::new());
    for row in views.into_iter().map(|view| &view.row) {
        // The worktrees of a run are in its home.
        let home = row.worktree.as_ref().and_then(|tree| Path::new(&tree.path).parent()?.parent());
        let (Some(home), Some(id)) = (home, row.tags.iter().find_map(|tag| tag.strip_prefix("run:"))) else { continue };
        let read = || {
            let run = journal::replay(&Home::new(home)).ok().flatten()?;
            let queue = RunQueue::of(&run.plan, paths);
            Some((run, queue))
        };
        let Some((run, queue)) = runs.entry(home.to_owned()).or_insert_with(read) else { continue };
        let mut jobs = run.plan.jobs.iter().zip(&run.jobs);
        let own = jobs.find(|(job, _)| run.plan.id == id && worker_name(&run.plan.slug, &job.id) == row.name);
        if own.is_some_and(|(job, progress)| is_left(run, job, progress, queue)) {
            reviewed.insert(row.name.clone());
        }
    }
    reviewed
}

/// Says of each job whose work an earlier run has left that `--merge` does not land it either, because its spec or file leaves
/// it on its branch.
///
/// # Errors
/// Refuses to execute all jobs of a completed file again: whoever types `--merge` wants to land what is there.
pub fn before(
    plan: &Plan,
    file: Option<&Path>,
    retry_failed: bool,
    paths: &Paths,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let earlier = before_the_next(&Home::new(&plan.home)).ok().flatten();
    let Some(run) = earlier.filter(|_| plan.flags.merge) else { return Ok(()) };
    let queue = RunQueue::of(&run.plan, paths);
    let stays = |job: &Job| plan.jobs.iter().any(|next| next.id == job.id && next.work == job.work && next.stays);
    let jobs = run.plan.jobs.iter().zip(&run.jobs);
    let left: Vec<&Job> =
        jobs.filter(|(job, progress)| stays(job) && is_left(&run, job, progress, &queue)).map(|(job, _)| job).collect();
    let key = if file.is_some() { "merge = true is not set" } else { "merge: false" };
    if let (Some(file), [first, ..]) = (file, left.as_slice())
        && Beginning::new(plan, Some(&run), retry_failed).is_anew()
    {
        let ids = left.iter().map(|job| format!("'{}'", job.id)).collect::<Vec<_>>().join(", ");
        let cause =
            format!("--merge lands nothing of {}: the work of {ids} stays on its branch ({key})", file.display());
        let again = command_line(["swarm", "run", &file.to_string_lossy()]);
        let add = format!("swarm merge add {}", name_of(&run, first));
        let remedy = format!("run '{add}' to land it, or '{again}' to execute every job again");
        return Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into());
    }
    for job in left {
        let land = format!("run 'swarm merge add {}' to land it", name_of(&run, job));
        screen.aside("note: ", &format!("the work of '{}' stays on its branch ({key}); {land}", job.id));
    }
    Ok(())
}
