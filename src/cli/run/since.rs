//! Specs that were added or changed since they were planned.

use std::collections::BTreeSet;

use swarm_model::Caller;
use swarm_model::run::plan::{Plan, Work};
use swarm_model::run::progress::Run;
use swarm_store::runs::home::Home;
use swarm_store::runs::specs::{self, Spec};
use swarm_store::runs::wire::ArialState;
use swarm_store::runs::{journal, order};
use swarm_sys::quoting::command_line;

use super::own_spec;
use super::plan::changed;
use crate::cli::screen::Screen;

/// Names specs beside the planned ones that are not planned.
pub fn note_unplanned(planned: &[Spec], screen: &mut Screen) {
    if let Some(folder) = planned.first().and_then(|spec| spec.path.parent()) {
        let known: BTreeSet<&str> = planned.iter().map(|spec| spec.id.as_str()).collect();
        for new in specs::names(folder).iter().filter(|name| !known.contains(name.as_str())) {
            screen.aside("note: ", &format!("spec '{new}' is not planned; run 'swarm plan' to add it"));
        }
    }
}

/// Warns of specs that changed since they were planned, and says whether this run executes the new version. Returns how to
/// execute those of workstreams that are done, which no run does. `None` if there are none.
pub fn warn_changed(
    state: &ArialState,
    planned: &[Spec],
    home: &Home,
    retry_failed: bool,
    caller: &Caller,
    screen: &mut Screen,
) -> Option<String> {
    let changed = changed(home, planned);
    let stale = stale(state, planned, &changed, home, caller);
    for id in &changed {
        let what = match state.row(id).map(|row| row.status.as_str()) {
            Some("done") if stale.contains(id) => "after it was done; this run does not do it again",
            // This version of the spec is the one that was executed.
            Some("done") => continue,
            Some("failed") if !retry_failed => "after it has failed; --retry-failed uses the new version",
            _ => "after it was planned; using the new version",
        };
        screen.warning(&format!("spec '{id}' changed {what}"));
    }
    let plan = command_line(["swarm", "plan", "--specs", &state.specs_dir]);
    let which = if stale.len() > 1 { "them" } else { "it" };
    (!stale.is_empty()).then(|| format!("run '{plan}', then 'swarm run' to do {which} again"))
}

/// Returns those of the changed specs whose workstreams are done with an earlier version, and which `swarm plan` would plan
/// again. A spec that was only changed by the landed work of its own workstream is not among them.
fn stale(state: &ArialState, planned: &[Spec], changed: &[String], home: &Home, caller: &Caller) -> Vec<String> {
    let is_done = |id: &&String| state.row(id).is_some_and(|row| row.status == "done");
    let mut done: Vec<String> = changed.iter().filter(is_done).cloned().collect();
    if done.is_empty() {
        return done;
    }
    let run = journal::replay(home).ok().flatten();
    let spec = |id: &String| planned.iter().find(|spec| spec.id == *id);
    let is_known = |id: &String| {
        // Another program does not record what it has executed.
        let (Some(run), Some(spec)) = (run.as_ref(), spec(id)) else { return false };
        executed(run, home, id).is_some_and(|executed| executed == spec.digest)
            || own_spec::is_landed(run, home, spec, caller)
    };
    done.retain(|id| !is_known(id));
    done
}

/// Returns the digest of the spec that the last attempt of a workstream was given; of an older version's attempt, the digest
/// at the last start of the run. `None` if neither is known.
pub fn executed(run: &Run, home: &Home, id: &str) -> Option<String> {
    let at = run.plan.position(id)?;
    let attempts = (1..=run.jobs[at].attempt).rev();
    let mut orders = attempts.filter_map(|attempt| order::read_order(&home.attempt(id, attempt)).ok());
    let known = orders.next().and_then(|order| order.spec);
    known.or_else(|| of_plan(&run.plan, at)).filter(|digest| !digest.is_empty())
}

fn of_plan(plan: &Plan, at: usize) -> Option<String> {
    match &plan.jobs[at].work {
        Work::Spec(work) => Some(work.digest.clone()),
        Work::Command(_) => None,
    }
}
