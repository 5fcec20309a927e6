//! One worker, watched until it has ended for good. `wait` and `logs --follow`
//! share it.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use swarm_model::{FineState, ProcessId, RestartPolicy, WorkerView};

use super::error::Failure;
use super::watch::{Changes, open_process};
use crate::paths::Paths;

/// How often a worker is looked at that offers nothing to wait on. Only rows
/// that another program made can be so: no process is known, only a window.
pub const BLIND_LOOK: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It ended, or is no longer registered.
    Ended,
    /// Its process is watched.
    Watched,
    /// Its process went between the reading of the registry and now: read again.
    Gone,
    /// Nothing runs that could be watched, but something will or may: the
    /// records tell, see [`watch_records`].
    Unwatched,
    /// There are no records either.
    Blind,
}

/// A worker as it was when the watching began.
pub struct Life {
    pub name: String,
    started: String,
    process: Option<(ProcessId, OwnedFd)>,
    /// A process known to have ended, not to be waited for again.
    gone: Option<ProcessId>,
}

impl Life {
    pub fn of(view: &WorkerView) -> Self {
        Self { name: view.row.name.clone(), started: view.row.started.clone(), process: None, gone: None }
    }

    /// The descriptor to wait on, while there is one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(|(_, fd)| fd.as_fd())
    }

    /// Judges what the registry says now, and opens what there is to wait on.
    pub fn look(&mut self, view: Option<&WorkerView>) -> Result<Verdict, Failure> {
        let Some(view) = view.filter(|view| self.is_same_life(view) && !has_ended(view)) else {
            self.process = None;
            return Ok(Verdict::Ended);
        };
        let Some(watch) = &view.watch else {
            self.process = None;
            return Ok(if view.dir.is_some() { Verdict::Unwatched } else { Verdict::Blind });
        };
        if self.gone.as_ref() == Some(watch) {
            // The registry still says that it runs, which it cannot do for long.
            return Ok(Verdict::Blind);
        }
        if self.process.as_ref().is_none_or(|(id, _)| id != watch) {
            self.process = open_process(watch)?.map(|fd| (watch.clone(), fd));
        }
        if self.process.is_none() {
            self.gone = Some(watch.clone());
            return Ok(Verdict::Gone);
        }
        Ok(Verdict::Watched)
    }

    /// To be called when the descriptor was readable.
    pub fn process_ended(&mut self) {
        self.gone = self.process.take().map(|(id, _)| id);
    }

    /// A respawn by hand is another life; a restart by policy is the same one.
    fn is_same_life(&self, view: &WorkerView) -> bool {
        view.row.started == self.started || view.restart != RestartPolicy::Never
    }
}

/// Whether nothing of this worker will run any more unless somebody asks.
pub fn has_ended(view: &WorkerView) -> bool {
    match view.state {
        FineState::Starting
        | FineState::Running
        | FineState::Suspended
        | FineState::Unsupervised
        | FineState::Stopping
        | FineState::Backoff => false,
        FineState::Exited
        | FineState::OutOfMemory
        | FineState::Stopped
        | FineState::Failed
        | FineState::Lost
        | FineState::Interrupted => true,
    }
}

/// Watches what changes when a worker is started or given up: the registry's
/// file, the directories of all generations, and that of this one.
pub fn watch_records(changes: &Changes, paths: &Paths, dir: Option<&str>) -> Result<(), Failure> {
    changes.add_dir(paths.root())?;
    changes.add_dir(&paths.workers())?;
    match dir {
        Some(dir) => changes.add_dir(&paths.workers().join(Path::new(dir))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use swarm_model::Ended;

    use super::*;
    use crate::cli::sample;

    #[test]
    fn a_worker_with_a_restart_due_has_not_ended() {
        let view = |state| WorkerView { state, ..sample::ended("x", Ended::Code(1)) };
        assert!(!has_ended(&view(FineState::Backoff)) && !has_ended(&view(FineState::Unsupervised)));
        for state in [FineState::Exited, FineState::Stopped, FineState::Failed, FineState::Lost] {
            assert!(has_ended(&view(state)), "{state:?}");
        }
    }

    #[test]
    fn a_respawn_by_hand_is_another_life() {
        let view = sample::process("x");
        let again = |restart| {
            let mut view = WorkerView { restart, ..view.clone() };
            std::sync::Arc::make_mut(&mut view.row).started = "2026-01-02T00:01:00.000000".into();
            view
        };
        let mut life = Life::of(&view);
        assert_eq!(life.look(Some(&again(RestartPolicy::Never))).ok(), Some(Verdict::Ended));
        assert_eq!(life.look(Some(&again(RestartPolicy::Always))).ok(), Some(Verdict::Unwatched));
        assert_eq!(life.look(Some(&view)).ok(), Some(Verdict::Unwatched));
        assert_eq!(life.look(Some(&WorkerView { dir: None, ..view })).ok(), Some(Verdict::Blind));
        assert_eq!(life.look(None).ok(), Some(Verdict::Ended));
    }
}
