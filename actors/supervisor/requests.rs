//! Requests about one worker or all workers, carried out concurrently.

use std::collections::BTreeSet;
use std::sync::Arc;

use ractor::ActorRef;
use tokio::sync::mpsc::UnboundedSender;

use super::CALL_MS_MAX;
use super::endings::Nudges;
use super::message::{Request, SupervisorMessage};
use crate::registry::RegistryHandle;
use crate::worker::{self, Meant, Removal, WorkerHandle};
use swarm_model::{Answer, Refusal, RefusalKind, Scope};
use swarm_ports::Ports;

/// Returns the names of the workers that a request is about. A kill of all is also about `actors`: one of them may be
/// starting a worker that is not registered yet.
///
/// # Errors
/// Fails if the request is about all workers and the registry cannot be read.
pub async fn names<'a>(
    request: &Request,
    registry: &RegistryHandle,
    actors: impl Iterator<Item = &'a String>,
) -> Result<Vec<String>, Refusal> {
    let scope = match request {
        Request::Spawn(request) => return Ok(vec![request.name.clone()]),
        Request::Respawn(request) => return Ok(vec![request.name.clone()]),
        Request::Recover(request) => return Ok(vec![request.name.clone()]),
        Request::Kill(request) => &request.scope,
        Request::Clean(request) => &request.scope,
    };
    match scope {
        Scope::Names(names) => Ok(names.clone()),
        Scope::All => {
            let rows = registry.rows().await.map_err(|error| worker::of_store(&error))?;
            let mut names: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
            if matches!(request, Request::Kill(_)) {
                let registered: BTreeSet<&str> = rows.iter().map(|row| row.name.as_str()).collect();
                names.extend(actors.filter(|name| !registered.contains(name.as_str())).cloned());
            }
            Ok(names)
        }
    }
}

/// What is needed to carry out a request, besides its workers.
#[derive(Clone)]
pub struct Desk {
    pub supervisor: ActorRef<SupervisorMessage>,
    pub ports: Ports,
    /// Set for requests that end workers.
    pub nudges: Option<Arc<Nudges>>,
}

/// Gives the request to each worker. Sends their answers in the order of the list, then `Done`.
pub async fn carry_out(
    request: Request,
    workers: Vec<(WorkerHandle, String)>,
    desk: Desk,
    answers: UnboundedSender<Answer>,
) {
    let all = request.is_about_all();
    let request = Arc::new(request);
    let begin = |(worker, name): (WorkerHandle, String)| {
        (name.clone(), tokio::spawn(one_or_next(Arc::clone(&request), worker, name, desk.clone())))
    };
    let tasks: Vec<_> = workers.into_iter().map(begin).collect();
    for (name, task) in tasks {
        let answer = match task.await {
            Ok(Ok(answer)) => answer,
            // `--all` means all existing workers; one that has gone in the meantime is done.
            Ok(Err(refusal)) if all && skipped(&request, &refusal) => continue,
            Ok(Err(refusal)) => Answer::Refused(refusal),
            Err(_) => Answer::Refused(
                Refusal::new(RefusalKind::Internal, "the request failed inside the supervisor").of(&name),
            ),
        };
        let _ = answers.send(answer);
    }
    // Sent together with the last answer, so that the client wakes only once.
    let _ = answers.send(Answer::Done);
}

pub fn refuse(refusal: Refusal, answers: &UnboundedSender<Answer>) {
    let _ = answers.send(Answer::Refused(refusal));
    let _ = answers.send(Answer::Done);
}

/// Reports whether `--all` ignores this refusal: `clean --all` only applies to stopped workers.
fn skipped(request: &Request, refusal: &Refusal) -> bool {
    use swarm_model::RefusalKind::{NotFound, Running};
    match request {
        Request::Clean(_) => matches!(refusal.kind, NotFound | Running),
        Request::Kill(_) => refusal.kind == NotFound,
        Request::Spawn(_) | Request::Respawn(_) | Request::Recover(_) => false,
    }
}

/// Passes the request to a worker actor. If that was just cleaned and takes no more messages, the
/// next actor of that name gets the request.
async fn one_or_next(request: Arc<Request>, worker: WorkerHandle, name: String, desk: Desk) -> Result<Answer, Refusal> {
    if let Request::Respawn(respawn) = request.as_ref() {
        super::loops::may_respawn(&desk.ports, respawn).await?;
    }
    let answer = match one(Request::clone(&request), &worker).await {
        Err(refusal) if refusal.kind == RefusalKind::Stopping && worker.is_cleaned() => {
            match ractor::call_t!(desk.supervisor, SupervisorMessage::Worker, CALL_MS_MAX, name.clone()) {
                Ok(next) => one(Request::clone(&request), &next).await,
                Err(_) => Err(refusal),
            }
        }
        answer => answer,
    };
    let Some(nudges) = &desk.nudges else { return answer };
    nudges.ended(&name, &answer).await;
    nudges.answer(&name, answer)
}

async fn one(request: Request, worker: &WorkerHandle) -> Result<Answer, Refusal> {
    let removal = |rm_worktree, force_dirty| Removal { rm_worktree, force_dirty, drop_branch: false };
    match request {
        Request::Spawn(request) => worker.spawn(*request).await.map(Answer::Spawned),
        Request::Recover(request) => worker.recover(request.caller).await.map(Answer::Spawned),
        Request::Respawn(request) => {
            let removal = removal(request.clean_first, request.force_dirty);
            let meant = Meant { started_by: None, generation: request.generation };
            worker.respawn(request.caller, removal, meant).await.map(Answer::Spawned)
        }
        Request::Kill(request) => {
            let removal = removal(request.rm_worktree, request.force_dirty);
            let meant = Meant { started_by: request.started_by, generation: request.generation };
            worker.kill(request.caller, removal, meant).await.map(Answer::Worker)
        }
        Request::Clean(request) => {
            let removal =
                Removal { drop_branch: request.drop_branch, ..removal(request.rm_worktree, request.force_dirty) };
            let meant = Meant { started_by: request.started_by, generation: None };
            worker.clean(request.caller, removal, meant).await.map(Answer::Worker)
        }
    }
}
