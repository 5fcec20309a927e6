//! Loops that another program started and no longer runs. They continue here as our own, once the
//! record that says so is durable.

use std::ops::Deref;
use std::path::Path;

use super::loops::Desk;
use crate::loops::machine::Event as Happening;
use crate::loops::{Begin, sight};
use crate::worker::WorkerRecord;
use swarm_model::loops::progress::{Loop, Plan, Stage, Theirs};
use swarm_model::{Answer, Caller, Environment, Refusal, RefusalKind, RowWorktree, WorktreeRequest};
use swarm_ports::Found;

/// A loop, from our records or from those of another program.
pub struct Located {
    it: Loop,
    /// Set if the loop still belongs to another program.
    theirs: Option<Found>,
}

impl Deref for Located {
    type Target = Loop;

    fn deref(&self) -> &Loop {
        &self.it
    }
}

impl Desk {
    pub(super) async fn locate(&self, name: &str) -> Result<Located, Refusal> {
        let unreadable = |cause| Refusal::new(RefusalKind::Registry, cause).of(name);
        if let Some(it) = self.load(name).await? {
            return Ok(Located { it, theirs: None });
        }
        match self.ports.loops.found(name).await.map_err(unreadable)? {
            Some(found) => Ok(Located { it: found.it.clone(), theirs: Some(found) }),
            None => Err(Refusal::new(RefusalKind::NotFound, format!("worker '{name}' is not a ralph worker"))),
        }
    }

    /// Sends an event to a loop. A loop of another program is adopted first.
    pub(super) async fn ask_of(
        &self,
        located: Located,
        caller: &Caller,
        event: Happening,
        done: &str,
    ) -> Result<Answer, Refusal> {
        let name = located.it.name().to_owned();
        if let Some(found) = located.theirs {
            is_left(&found)?;
            let it = self.complete_plan(found.it, caller).await?;
            self.open(&name, Some(Begin::Adopt(Box::new(it)))).await?;
        }
        self.ask(&name, event, done).await
    }

    /// Ends a loop, so that it starts no more workers. A loop of another program is adopted first.
    pub(super) async fn end(&self, located: Located) -> Result<(), Refusal> {
        let name = located.it.name().to_owned();
        if let Some(found) = located.theirs {
            is_left(&found)?;
            self.open(&name, Some(Begin::Adopt(Box::new(found.it)))).await?;
        }
        self.ask(&name, Happening::Killed, "stopped").await.map(drop)
    }

    /// Refuses a request if another program still runs the loop, because two programs must never run
    /// the same loop.
    pub(super) async fn is_let_go(&self, name: &str) -> Result<(), Refusal> {
        match self.locate(name).await {
            Ok(Located { theirs: Some(found), .. }) => is_left(&found),
            Ok(_) => Ok(()),
            Err(refusal) if refusal.kind == RefusalKind::NotFound => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// Completes an adopted loop with data from its worker's row, and with the state of its worker.
    async fn complete_plan(&self, mut it: Loop, caller: &Caller) -> Result<Loop, Refusal> {
        let name = it.name().to_owned();
        let refused = |cause: String| Refusal::new(RefusalKind::Invalid, cause).of(&name);
        if let Some(Err(cause)) = it.plan.done_pattern.as_deref().map(sight::pattern) {
            let remedy = "use a regular expression without look-around and backreferences, and start the loop again \
                          with 'swarm ralph spawn --replace'";
            return Err(refused(format!("invalid done pattern: {cause}")).remedy(remedy));
        }
        let subject = WorkerRecord::read(&self.ports, &self.registry, &name).await?;
        let (Some(row), Some(contract)) = (subject.row().cloned(), subject.contract(caller)) else {
            let cause = format!("worker '{name}' is gone, and only its row says what the loop starts");
            return Err(refused(cause).remedy("run 'swarm ralph spawn' to start a new loop"));
        };
        if row.tmux.is_none() {
            return Err(refused(format!("worker '{name}' is not a tmux worker")));
        }
        // Like the original `swarm`, which stores the directory as it was typed.
        let cwd = Path::new(&caller.cwd).join(&contract.cwd).to_string_lossy().into_owned();
        it.plan = Plan {
            id: caller.request.clone(),
            contract: swarm_model::Contract { cwd, ..contract },
            worktree: row.worktree.as_ref().map(asked_for),
            caller: Caller { environment: Environment::default(), repeated: 0, ..caller.clone() },
            ..it.plan.as_ref().clone()
        }
        .into();
        if let Err(cause) = self.ports.loops.prompt(&it.plan).await {
            return Err(refused(cause).remedy("restore the file: the loop reads it before each iteration"));
        }
        it.theirs = Some(Theirs { started: row.started.clone(), process: None });
        match &subject {
            WorkerRecord::Foreign { alive: Some(process), .. } => {
                it.theirs = Some(Theirs { started: row.started.clone(), process: Some(process.clone()) });
                it.stage = Stage::Watching { generation: 0 };
            }
            WorkerRecord::Ours { facts, .. } if subject.is_running() => {
                it.stage = Stage::Watching { generation: facts.generation };
            }
            WorkerRecord::Foreign { .. } | WorkerRecord::Ours { .. } | WorkerRecord::None => {}
        }
        it.log_from = self.ports.loops.written(&name).await;
        Ok(it)
    }
}

/// Returns the request that creates the existing worktree again, in case it is deleted.
fn asked_for(worktree: &RowWorktree) -> WorktreeRequest {
    let path = Path::new(&worktree.path);
    let text = |part: Option<&Path>| part.map(|part| part.to_string_lossy().into_owned());
    WorktreeRequest {
        cwd: worktree.base_repo.clone(),
        branch: Some(worktree.branch.clone()),
        dir: text(path.parent()),
        base: None,
        leaf: text(path.file_name().map(Path::new)),
        resume: true,
        is_known: true,
        ..WorktreeRequest::default()
    }
}

/// Refuses if the program that started the loop still runs it.
fn is_left(found: &Found) -> Result<(), Refusal> {
    let Some(pid) = found.keeper else { return Ok(()) };
    let name = found.it.name();
    let cause = format!("the loop of '{name}' is run by another program (pid {pid})");
    let remedy = format!("run 'kill {pid}' to pause it there, then 'swarm ralph resume {name}' to continue it here");
    Err(Refusal::new(RefusalKind::Running, cause).of(name).remedy(remedy))
}
