//! What would become of a worker by `swarm recover`, from the files and the kernel: the
//! same function over the same facts as in the supervisor.

use swarm_actors::registry::reconcile;
use swarm_actors::worker::fate::{self, Facts, Fate};
use swarm_model::Recovery;
use swarm_model::{Spec, WireStatus, WorkerView};
use swarm_ports::DirFacts;

use super::records::DiskRecords;
use super::{loops, views};
use crate::sessions;
use swarm_sys::paths::Paths;

/// The fate of a worker, and how it was started; none of the latter for one of the other
/// program, or one whose records are gone.
pub fn of(paths: &Paths, worker: &WorkerView) -> (Fate, Option<Spec>) {
    let foreign = || (Fate::Leave("it was started by another program: swarm respawn".to_owned()), None);
    let Some(generation) = worker.row.swarm().map(|meta| meta.generation) else { return foreign() };
    let read = DiskRecords::new(paths.clone()).read(&worker.row.name, generation).ok().flatten();
    match read.filter(|facts| reconcile::belongs(&worker.row, facts)) {
        Some(facts) => (
            fate::decide(&Facts {
                in_loop: loops::goes_on(paths, &facts.name),
                ..look(&facts, session_of(&facts), said_to_run(paths, &facts.name))
            }),
            facts.spec.spec().cloned(),
        ),
        None => foreign(),
    }
}

/// Whether a worker that does not run was ended by nobody, or is about to be started by
/// its loop: what waits for it goes on waiting. Of one that is not there, `worker` is none.
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
            .is_some_and(|facts| fate::is_lost(&look(&facts, None, said_to_run(paths, name)))),
        // Nobody knows: not the moment to give it up.
        Err(_) => true,
    }
}

fn look(facts: &DirFacts, session: Option<Recovery>, is_said_to_run: bool) -> Facts {
    let server_lives = fate::closed_pane(facts).map(swarm_tmux::has_server);
    Facts { server_lives, session, ..Facts::of(facts, is_said_to_run, sessions::attempts_max()) }
}

/// What the row itself says; a view says what is true.
fn said_to_run(paths: &Paths, name: &str) -> bool {
    views::row(paths, name).is_some_and(|row| row.status == WireStatus::Running)
}

fn session_of(facts: &DirFacts) -> Option<Recovery> {
    facts.spec.spec().and_then(Spec::session).map(|plan| sessions::answer(&plan))
}
