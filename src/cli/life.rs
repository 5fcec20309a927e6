//! Watches one worker until it has ended for good; shared by `wait` and `logs --follow`.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use swarm_model::{FineState, ProcessId, RestartPolicy, WorkerView};

use super::error::Failure;
use super::watch::{Changes, open_process};
use swarm_sys::paths::Paths;

/// Polling interval for a worker without anything to wait on. Only rows of another writer are like that: they name a
/// window but no process.
pub const BLIND_LOOK: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchState {
    /// The worker ended or is no longer registered.
    Ended,
    /// The process of the worker is watched.
    Watched,
    /// The process ended after the registry was read: read it again.
    Gone,
    /// No process runs now, but one may start: watch the records, see [`watch_records`].
    Unwatched,
    /// There is neither a process nor a record: poll.
    Blind,
}

/// A watched worker, identified by its start.
pub struct WatchedWorker {
    pub name: String,
    started: String,
    process: Option<(ProcessId, OwnedFd)>,
    /// Process that is known to have ended and must not be watched again.
    gone: Option<ProcessId>,
    /// Time at which the end was first seen, if the worker was running before.
    pub ended: Option<Instant>,
    /// Whether its agent asked a person and ended; it is started again after the answer.
    is_parked: bool,
}

impl WatchedWorker {
    pub fn of(view: &WorkerView) -> Self {
        Self::since(&view.row.name, &view.row.started)
    }

    /// Watches the life that began at `started`, which may have ended.
    pub fn since(name: &str, started: &str) -> Self {
        let (name, started) = (name.to_owned(), started.to_owned());
        Self { name, started, process: None, gone: None, ended: None, is_parked: false }
    }

    /// Returns the start of the watched life.
    pub fn started(&self) -> &str {
        &self.started
    }

    /// Returns the descriptor to wait on, if the process is watched.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(|(_, fd)| fd.as_fd())
    }

    /// Judges as [`WatchedWorker::look`] does, for a wait that goes on while the worker `is_parked`. The start after the
    /// answer is then still the same life.
    pub fn look_beyond(&mut self, view: Option<&WorkerView>, is_parked: bool) -> Result<WatchState, Failure> {
        if let Some(view) = view.filter(|_| self.is_parked) {
            self.started.clone_from(&view.row.started);
        }
        self.is_parked = is_parked && view.is_some_and(|view| self.is_same_life(view));
        if self.is_parked {
            (self.process, self.gone) = (None, None);
            return Ok(WatchState::Unwatched);
        }
        self.look(view)
    }

    /// Judges the current row of the worker, and opens its process to wait on.
    pub fn look(&mut self, view: Option<&WorkerView>) -> Result<WatchState, Failure> {
        let Some(view) = view.filter(|view| self.is_same_life(view) && !has_ended(view)) else {
            if self.process.is_some() || self.gone.is_some() {
                self.ended.get_or_insert_with(Instant::now);
            }
            self.process = None;
            return Ok(WatchState::Ended);
        };
        let Some(watch) = &view.watch else {
            self.process = None;
            // The kernel reports no changes that another machine makes.
            if view.state == FineState::Elsewhere {
                return Ok(WatchState::Blind);
            }
            return Ok(if view.dir.is_some() { WatchState::Unwatched } else { WatchState::Blind });
        };
        if self.gone.as_ref() == Some(watch) {
            // The registry still lists the ended process as running; it will be updated shortly.
            return Ok(WatchState::Blind);
        }
        if self.process.as_ref().is_none_or(|(id, _)| id != watch) {
            self.process = open_process(watch)?.map(|fd| (watch.clone(), fd));
        }
        if self.process.is_none() {
            self.gone = Some(watch.clone());
            return Ok(WatchState::Gone);
        }
        Ok(WatchState::Watched)
    }

    /// Records that the watched process ended; call it when the descriptor is readable.
    pub fn process_ended(&mut self) {
        self.gone = self.process.take().map(|(id, _)| id);
    }

    /// Reports whether `view` is still the same life: a restart by policy is, a respawn is not.
    fn is_same_life(&self, view: &WorkerView) -> bool {
        view.row.started == self.started || view.restart != RestartPolicy::Never
    }
}

/// Reports whether nothing of this worker will run again unless a user starts it.
pub fn has_ended(view: &WorkerView) -> bool {
    match view.state {
        FineState::Starting
        | FineState::Queued
        | FineState::Running
        | FineState::Suspended
        | FineState::Unsupervised
        | FineState::Stopping
        | FineState::Backoff
        | FineState::Elsewhere => false,
        FineState::Exited
        | FineState::OutOfMemory
        | FineState::Stopped
        | FineState::Failed
        | FineState::Lost
        | FineState::Interrupted => true,
    }
}

/// Watches the files that change when a worker is started or given up: the registry, the directory of all generations,
/// and the directory of this generation.
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
    fn the_start_after_an_answer_is_the_same_life() {
        let asks = sample::ended("x", Ended::Code(1));
        let mut life = WatchedWorker::of(&asks);
        let mut next = WorkerView { state: FineState::Running, ..asks.clone() };
        std::sync::Arc::make_mut(&mut next.row).started = "2026-01-02T00:01:00.000000".into();
        let mut look = |view, is_parked| life.look_beyond(Some(view), is_parked).ok();
        assert_eq!(look(&asks, true), Some(WatchState::Unwatched));
        assert_eq!(look(&next, false), Some(WatchState::Unwatched), "it starts");
        let mut later = next.clone();
        std::sync::Arc::make_mut(&mut later.row).started = "2026-01-02T00:02:00.000000".into();
        assert_eq!(look(&later, false), Some(WatchState::Ended), "another start");
        let mut life = WatchedWorker::of(&asks);
        assert_eq!(life.look_beyond(Some(&asks), true).ok(), Some(WatchState::Unwatched));
        assert_eq!(life.look_beyond(Some(&asks), false).ok(), Some(WatchState::Ended), "nobody waits for the answer");
    }

    #[test]
    fn a_respawn_by_a_user_is_another_life() {
        let view = sample::process("x");
        let again = |restart| {
            let mut view = WorkerView { restart, ..view.clone() };
            std::sync::Arc::make_mut(&mut view.row).started = "2026-01-02T00:01:00.000000".into();
            view
        };
        let mut life = WatchedWorker::of(&view);
        assert_eq!(life.look(Some(&again(RestartPolicy::Never))).ok(), Some(WatchState::Ended));
        assert_eq!(life.look(Some(&again(RestartPolicy::Always))).ok(), Some(WatchState::Unwatched));
        assert_eq!(life.look(Some(&view)).ok(), Some(WatchState::Unwatched));
        assert_eq!(life.look(Some(&WorkerView { dir: None, ..view })).ok(), Some(WatchState::Blind));
        assert_eq!(life.look(None).ok(), Some(WatchState::Ended));
    }
}
