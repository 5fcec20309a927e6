//! Settings files of agents in a repository whose work goes to other hosts: nothing there agrees to them.

use std::path::Path;

use swarm_agents::{Agent, consent};
use swarm_config::defaults;
use swarm_config::trust::agent_places;
use swarm_model::run::plan::{Plan, Work};
use swarm_model::run::progress::Run;
use swarm_model::{Caller, Refusal, RefusalKind};
use swarm_store::repositories::lines;
use swarm_store::runs::before_the_next;
use swarm_store::runs::home::Home;

use super::tags::is_placed_anew;
use crate::cli::error::Failure;

/// Refuses work of agents that load settings from their worktree on another host, because they cannot be kept from it, if the
/// base has any. Their attempts would fail there. A workstream that needs no place any more is not asked about.
///
/// # Errors
/// Names the first such workstream.
pub fn check(plan: &Plan, retry_failed: bool, caller: &Caller) -> Result<(), Failure> {
    let root = Path::new(&plan.root);
    let invalid = |cause: String| Failure::new(RefusalKind::Invalid, cause);
    let configured = swarm_config::as_written(Some(root)).map_err(invalid)?.agents;
    let base = format!("refs/heads/{}", plan.base.as_deref().unwrap_or("HEAD"));
    let earlier = before_the_next(&Home::new(&plan.home)).ok().flatten();
    let run = Run::begin(plan.clone(), earlier.as_ref(), retry_failed);
    for (job, _) in run.plan.jobs.iter().zip(&run.jobs).filter(|(_, progress)| is_placed_anew(progress)) {
        let Work::Spec(work) = &job.work else { continue };
        let name = work.adapter.as_deref().unwrap_or(defaults::AGENT);
        // An agent that is not known is refused elsewhere.
        let Ok(agent) = Agent::find(name, &configured) else { continue };
        let Some(section) = consent::loads(&agent) else { continue };
        if consent::own_settings_only(consent::loader(&agent), root).is_some() {
            continue;
        }
        let mut words = vec!["ls-tree", "--name-only", base.as_str(), "--"];
        agent_places(section).for_each(|place| words.push(place));
        let Some(file) = lines(root, &words, caller).and_then(|files| files.into_iter().next()) else { continue };
        let cause = format!(
            "workstream '{}': {name} would load {file} of {}, which counts on no other host",
            job.id,
            plan.base.as_deref().unwrap_or("HEAD")
        );
        let remedy = "run it without --on, or name another agent, such as claude or codex, in its spec";
        return Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into());
    }
    Ok(())
}
