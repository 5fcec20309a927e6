//! Effects of `kill` and `clean` of workers on their loops and nudges.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::loops::Desk;
use super::message::Request;
use super::state::State;
use crate::loops::is_own_request;
use crate::nudges::NudgesHandle;
use swarm_model::{Answer, Refusal};

/// How workers are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Killed,
    Cleaned,
    /// By their loop, which may start the next iteration.
    ByTheirLoop,
}

/// Everything that ends together with a request's workers.
pub struct Ending {
    desk: Desk,
    /// Loops that end before the request, so that none starts its next iteration in the meantime.
    before: Vec<String>,
    /// Loops that end after the request, if the worker is then gone.
    after: Vec<String>,
    /// Loops whose records are removed.
    forget: Vec<String>,
    /// Generation of the workers that are meant. `None`: any generation.
    generation: Option<u64>,
    nudges: Arc<Nudges>,
}

/// The nudges of workers that are killed or cleaned.
pub struct Nudges {
    handle: NudgesHandle,
    how: How,
    /// Loops of workers that could not be ended, and why.
    loops_left: Mutex<BTreeMap<String, Refusal>>,
}

impl State {
    /// Returns what else ends with the workers that this request kills or cleans. `None` for other
    /// requests.
    pub(super) fn ending(&self, request: &Request, names: &[String]) -> Option<Ending> {
        let (by, cleans, removes_tree) = match request {
            Request::Kill(kill) => (&kill.caller.request, false, kill.rm_worktree),
            Request::Clean(clean) => (&clean.caller.request, true, false),
            Request::Spawn(_) | Request::Respawn(_) | Request::Recover(_) => return None,
        };
        let how = match (is_own_request(by), cleans) {
            (true, _) => How::ByTheirLoop,
            (false, true) => How::Cleaned,
            (false, false) => How::Killed,
        };
        let names_if = |applies: bool| if applies { names.to_vec() } else { Vec::new() };
        // The worker may have another life by now, whose loop goes on.
        let is_any_life = !matches!(request, Request::Kill(kill) if kill.started_by.is_some());
        let generation = match request {
            Request::Kill(kill) => kill.generation,
            _ => None,
        };
        Some(Ending {
            desk: self.loop_desk(),
            before: names_if(how == How::Killed && is_any_life),
            after: names_if(how == How::Cleaned),
            forget: names_if(how == How::Killed && is_any_life && removes_tree),
            generation,
            nudges: Arc::new(Nudges { handle: self.nudges.clone(), how, loops_left: Mutex::default() }),
        })
    }
}

impl Ending {
    pub fn nudges(&self) -> Arc<Nudges> {
        Arc::clone(&self.nudges)
    }

    /// Ends the loops around `work`, which ends the workers.
    pub async fn around(mut self, work: impl Future<Output = ()>) {
        if let Some(meant) = self.generation {
            let name = self.before.first().cloned().unwrap_or_default();
            let row = self.desk.registry.find(&name).await.ok().flatten();
            // The loop of a later generation goes on.
            if row.and_then(|row| row.swarm().map(|swarm| swarm.generation)) != Some(meant) {
                self.before.clear();
                self.forget.clear();
            }
        }
        for name in &self.before {
            if let Err(refusal) = self.desk.killed(name).await {
                tracing::warn!(worker = %name, cause = %refusal.cause, "cannot end the loop of a worker");
                self.nudges.left().insert(name.clone(), refusal);
            }
        }
        work.await;
        for name in &self.after {
            if self.desk.may_run(name).await
                && matches!(self.desk.registry.find(name).await, Ok(None))
                && let Err(refusal) = self.desk.killed(name).await
            {
                tracing::error!(worker = %name, cause = %refusal.cause, "cannot end the loop of a cleaned worker");
            }
        }
        for name in &self.forget {
            if let Err(refusal) = self.desk.forget(name).await {
                tracing::warn!(worker = %name, cause = %refusal.cause, "cannot delete the records of a loop");
            }
        }
    }
}

impl Nudges {
    fn left(&self) -> MutexGuard<'_, BTreeMap<String, Refusal>> {
        self.loops_left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the answer to a request that ended a worker: a refusal if its loop, which could not be ended, may start
    /// the worker again.
    pub fn answer(&self, worker: &str, answer: Result<Answer, Refusal>) -> Result<Answer, Refusal> {
        match (answer, self.left().remove(worker)) {
            (Ok(_), Some(left)) => {
                let cause = format!("killed, but the loop of '{worker}' could not be ended: {}", left.cause);
                Err(Refusal::new(left.kind, cause).remedy(format!("run 'swarm kill {worker}' again")).of(worker))
            }
            (answer, _) => answer,
        }
    }

    /// Ends the nudge of a worker before the request is answered: a nudge does not outlive the
    /// worker that a person ended.
    pub async fn ended(&self, worker: &str, answer: &Result<Answer, Refusal>) {
        match (self.how, answer) {
            // The loop may start the next worker, so the nudges check by themselves.
            (How::ByTheirLoop, _) => self.handle.doubt(worker.to_owned()),
            (How::Killed, Ok(_)) => self.handle.killed(worker).await,
            (How::Cleaned, Ok(_)) => self.handle.cleaned(worker).await,
            (How::Killed | How::Cleaned, Err(_)) => {}
        }
    }
}
