//! Predicts what `swarm recover` would do with a worker, from the files and the kernel. Applies the supervisor's own
//! decision function to the same facts.

use swarm_actors::registry::reconcile;
use swarm_actors::worker::fate::{self, Facts, Fate};
use swarm_model::Recovery;
use swarm_model::{Spec, WireStatus, WorkerView};
use swarm_ports::DirFacts;

use super::records::DiskRecords;
use super::{loops, views};
use crate::sessions;
use swarm_sys::paths::Paths;

/// Returns the fate of a worker, and the contract that it was started with; the contract is `None` for a worker of
/// the original `swarm` and for one whose records are gone. `is_said_to_run` tells whether the stored row says `running`,
/// which may be out of date (see [`views::stored_as_running`]).
pub fn of(paths: &Paths, worker: &WorkerView, is_said_to_run: bool) -> (Fate, Option<Spec>) {
    let foreign = || (Fate::Leave("started by another program: run 'swarm respawn' to start it here".to_owned()), None);
    let Some(generation) = worker.row.swarm().map(|meta| meta.generation) else { return foreign() };
    let read = match DiskRecords::new(paths.clone()).read(&worker.row.name, generation) {
        Ok(read) => read,
        Err(error) => return (Fate::Leave(format!("cannot read its records: {error}")), None),
    };
    match read.filter(|facts| reconcile::belongs(&worker.row, facts)) {
        Some(facts) => (
            fate::decide(&Facts {
                in_loop: loops::goes_on(paths, &facts.name),
                ..facts_of(&facts, session_of(&facts), is_said_to_run)
            }),
            facts.spec.spec().cloned(),
        ),
        None => foreign(),
    }
}

/// Reports whether a stopped worker is expected to come back: it was lost without anyone ending it, or its loop is
/// about to start it. Whatever waits for the worker should then continue to wait. `worker` is `None` if it has no row.
pub fn comes_back(paths: &Paths, name: &str, worker: Option<&WorkerView>) -> bool {
    if loops::goes_on(paths, name) {
        return true;
    }
    let Some((worker, generation)) = worker.and_then(|worker| Some((worker, worker.row.swarm()?.generation))) else {
        return false;
    };
    match DiskRecords::new(paths.clone()).read(name, generation) {
        Ok(read) => read
            .filter(|facts| reconcile::belongs(&worker.row, facts))
            .is_some_and(|facts| fate::is_lost(&facts_of(&facts, None, is_row_running(paths, name)))),
        // Its state is unknown, so it must not be given up.
        Err(_) => true,
    }
}

fn facts_of(facts: &DirFacts, session: Option<Recovery>, is_said_to_run: bool) -> Facts {
    let known = Facts::of(facts, is_said_to_run, sessions::attempts_max());
    let asked = fate::unjudged_pane(facts).map(|pane| !swarm_tmux::has_server(pane));
    Facts { server_lost: asked.or(known.server_lost), session, ..known }
}

/// Reports whether the stored row says `running`, which may be out of date; views show the actual state.
fn is_row_running(paths: &Paths, name: &str) -> bool {
    views::row(paths, name).is_some_and(|row| row.status == WireStatus::Running)
}

fn session_of(facts: &DirFacts) -> Option<Recovery> {
    facts.spec.spec().and_then(Spec::session).map(|plan| sessions::answer(&plan))
}
