//! Requests of workstreams that a new plan replaces or removes: no attempt of theirs goes on, so nobody waits for the answer.

use swarm_model::run::progress::Run;
use swarm_store::asks::Asks;
use swarm_store::runs::asking::withdraw;
use swarm_store::runs::wire::ArialState;
use swarm_sys::paths::Paths;

use crate::cli::error::Failure;
use crate::cli::screen::Screen;

/// Ends the requests of the workstreams of an earlier run that `state` begins anew or does not contain, and names them.
///
/// # Errors
/// Fails if the requests cannot be read or ended.
pub fn end(run: &Run, state: &ArialState, paths: &Paths, screen: &mut Screen) -> Result<(), Failure> {
    let asks = Asks::new(paths);
    for job in &run.plan.jobs {
        let why = match state.row(&job.id) {
            // An attempt goes on, or the work is done.
            Some(row) if row.started_at.is_some() => continue,
            Some(_) => format!("workstream '{}' was planned anew", job.id),
            None => format!("workstream '{}' is no longer planned", job.id),
        };
        let ended = withdraw(&asks, &run.plan.id, &job.id, &why);
        let ended = ended.map_err(|error| Failure::system("cannot end the requests of a workstream", &error))?;
        ended.iter().for_each(|number| screen.aside("note: ", &format!("request {number} is over: {why}")));
    }
    Ok(())
}
