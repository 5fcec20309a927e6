//! What a person asks of one worker: spawn, kill, clean, respawn.

use std::sync::Arc;

use super::actor::State;
use super::launch::{self, Start, Tree};
use super::machine::Event;
use super::message::Removal;
use super::subject::Subject;
use super::{error, remove};
use crate::registry::{Mutation, Refused, RegistryError};
use swarm_model::Recovery;
use swarm_model::{
    Caller, Contract, EventKind, Held, Refusal, RefusalKind, Row, SpawnRequest, Spawned, WireStatus, WorkerLine,
    WorkerName,
};
use swarm_ports::{DirFacts, SessionError, SpecFacts};

impl State {
    pub(super) async fn spawn(&mut self, request: SpawnRequest) -> Result<Spawned, Refusal> {
        check_name(self.name())?;
        let subject = self.subject().await?;
        let (mut previous, mut tree) = (None, request.worktree.map_or(Tree::None, Tree::New));
        let taken_over = |row: &Row| request.takes_over.as_ref() == Some(&row.started);
        match &subject {
            Subject::None => {}
            Subject::Ours { row, facts } => {
                if let Some(spawned) = answered(row, facts, &request.caller) {
                    return Ok(spawned);
                }
                let asked = |prefix: &String| facts.spec.spec().is_some_and(|spec| spec.request.starts_with(prefix));
                let makes_way = request.replaces.as_ref().is_some_and(asked) || taken_over(row);
                if subject.is_running() || self.machine.is_live() || !makes_way {
                    return Err(launch::exists(self.name()));
                }
                if let (None, Some(lease)) = (&facts.exit, &facts.lease.content) {
                    // Nothing of the life before may be at work beside this one.
                    self.end_leftovers(lease).await;
                }
                previous = Some(Arc::clone(row));
            }
            Subject::Foreign { row, alive: None } if taken_over(row) => previous = Some(Arc::clone(row)),
            Subject::Foreign { .. } => return Err(launch::exists(self.name())),
        }
        if let (Tree::New(_), Some(worktree)) = (&tree, previous.as_ref().and_then(|row| row.worktree.clone())) {
            tree = Tree::Known { worktree, base: subject.base() };
        }
        let replaces = previous.is_some();
        let start = Start {
            name: self.name().to_owned(),
            contract: request.contract,
            tree,
            caller: request.caller,
            previous,
            wanted: None,
            fresh_logs: true,
            recovers: false,
            counts: false,
        };
        let spawned = self.start(start).await?;
        if replaces {
            self.remove_leftovers(Some(spawned.generation)).await;
        }
        Ok(spawned)
    }

    pub(super) async fn start(&mut self, start: Start) -> Result<Spawned, Refusal> {
        // What this actor knows of an earlier life of that name no longer counts.
        let _ = self.feed(Event::StartBegins(start.wanted.clone().unwrap_or_default())).await;
        match launch::launch(self.ports(), &self.arguments.registry, start).await {
            Ok(started) => {
                let spawned = started.spawned.clone();
                self.begin_life(started).await;
                Ok(spawned)
            }
            Err(refusal) => {
                let _ = self.feed(Event::StartFailed).await;
                Err(refusal)
            }
        }
    }

    pub(super) async fn kill(&mut self, caller: &Caller, removal: Removal) -> Result<WorkerLine, Refusal> {
        let subject = self.subject().await?;
        let Some(row) = subject.row().cloned() else { return Err(error::not_found(self.name())) };
        self.stop(&subject).await?;
        self.emit(EventKind::WorkerKilled);
        self.set_stopped(&row).await?;
        let mut notes = Vec::new();
        if removal.rm_worktree
            && let Some(tree) = &row.worktree
        {
            notes = remove::after_kill(self.ports(), self.name(), tree, removal, caller).await;
        }
        Ok(WorkerLine { name: self.name().to_owned(), done: "killed".to_owned(), notes })
    }

    /// Ends it, and makes sure that it stays so.
    async fn stop(&mut self, subject: &Subject) -> Result<(), Refusal> {
        match subject {
            Subject::None => Ok(()),
            Subject::Foreign { row, .. } => {
                let stopped = self.ports().processes.stop_foreign(row).await;
                stopped.map_err(|error| error::of_process(&error).of(self.name()))
            }
            Subject::Ours { facts, .. } => {
                self.sync(facts).await;
                self.feed(Event::StopAsked).await
            }
        }
    }

    /// Its session is somebody else's. Another generation than this one is left alone.
    pub(super) async fn forsake(&mut self, generation: u64) -> Result<(), Refusal> {
        let subject = self.subject().await?;
        match &subject {
            Subject::Ours { row, facts } if facts.generation == generation => {
                self.stop(&subject).await?;
                self.emit(EventKind::WorkerKilled);
                self.set_stopped(row).await
            }
            Subject::Ours { .. } | Subject::Foreign { .. } | Subject::None => Ok(()),
        }
    }

    async fn set_stopped(&self, row: &Row) -> Result<(), Refusal> {
        let (name, expect) = (row.name.clone(), row.key());
        let mutation = Mutation::SetStatus { name, expect, status: WireStatus::Stopped };
        match self.arguments.registry.mutate(mutation).await {
            // Another program removed or remade the row: its status is that program's.
            Ok(()) | Err(RegistryError::Refused(_)) => Ok(()),
            Err(error) => Err(error::of_registry(&error).of(self.name())),
        }
    }

    pub(super) async fn clean(&mut self, caller: &Caller, removal: Removal) -> Result<WorkerLine, Refusal> {
        let name = self.name().to_owned();
        let done = |notes| WorkerLine { name: name.clone(), done: "cleaned".to_owned(), notes };
        let subject = self.subject().await?;
        let Some(row) = subject.row().cloned() else {
            // A repeated request whose first answer was lost with its supervisor.
            self.remove_leftovers(None).await;
            let answered = caller.repeated > 0 && self.ports().events.seen(&caller.request);
            return if answered { Ok(done(Vec::new())) } else { Err(error::not_found(&name)) };
        };
        if subject.is_running() {
            let cause = format!("cannot clean running worker '{name}'");
            return Err(Refusal::new(RefusalKind::Running, cause).remedy(format!("swarm kill {name}")).of(&name));
        }
        self.ports().events.emit(swarm_model::Event {
            at_ms: self.ports().clock.wall_ms(),
            worker: Some(name.clone()),
            generation: self.life.as_ref().map(|life| life.generation),
            request: Some(caller.request.clone()),
            kind: EventKind::WorkerCleaning,
        });
        self.stop(&subject).await?;
        let mut notes = Vec::new();
        if removal.rm_worktree
            && let Some(tree) = &row.worktree
        {
            notes = remove::on_clean(self.ports(), &name, tree, removal, caller).await?;
        }
        self.forget(&row).await?;
        self.emit(EventKind::WorkerCleaned);
        Ok(done(notes))
    }

    /// Row first, then what only the row led to: whatever is left when this is
    /// cut off lies in a directory without a row, which the next start removes.
    async fn forget(&mut self, row: &Row) -> Result<(), Refusal> {
        let remove = Mutation::Remove { name: row.name.clone(), expect: row.key() };
        match self.arguments.registry.mutate(remove).await {
            Ok(()) | Err(RegistryError::Refused(Refused::Missing(_))) => {}
            Err(error) => return Err(error::of_registry(&error).of(self.name())),
        }
        if let Err(error) = self.ports().records.remove_logs(self.name()).await {
            tracing::warn!(worker = self.name(), %error, "its logs stay");
        }
        self.remove_leftovers(None).await;
        self.life = None;
        self.feed(Event::Forgotten).await
    }

    pub(super) async fn respawn(&mut self, caller: &Caller, removal: Removal) -> Result<Spawned, Refusal> {
        let subject = self.subject().await?;
        let Some(mut row) = subject.row().cloned() else { return Err(error::not_found(self.name())) };
        check_name(self.name())?;
        if let Subject::Ours { row, facts } = &subject
            && caller.repeated > 0
            && let Some(spawned) = answered(row, facts, caller)
        {
            return Ok(spawned);
        }
        let contract = subject.contract(caller).ok_or_else(|| error::not_found(self.name()))?;
        if let Some(flow) = contract.tags.iter().find_map(|tag| tag.strip_prefix(swarm_model::flows::TAG)) {
            // It would be in the way of the turn that its flow begins next.
            let cause = format!("'{}' plays a role in flow {flow}, which begins its turns itself", self.name());
            let remedy = format!("swarm flow run {flow}; where it waits, swarm flow answer {flow} TEXT");
            return Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).of(self.name()));
        }
        let doomed = row.worktree.clone().filter(|_| removal.rm_worktree);
        if let Some(tree) = &doomed {
            // Asked before anything is stopped: a refusal must leave the worker running.
            let checked = remove::check(self.ports(), tree, removal, caller).await;
            checked.map_err(|error| remove::respawn_refusal(self.name(), tree, &error))?;
        }
        if subject.is_running() || self.machine.is_live() {
            self.check_again(&subject, &contract, doomed.is_some()).await?;
            self.stop(&subject).await?;
            self.set_stopped(&row).await?;
            // As it comes back when the start fails.
            row = Arc::new(Row { status: WireStatus::Stopped, ..row.as_ref().clone() });
        }
        if let Some(tree) = &doomed {
            let removed = remove::remove(self.ports(), self.name(), tree, removal, caller).await;
            removed.map_err(|error| remove::respawn_refusal(self.name(), tree, &error))?;
        }
        let tree = row.worktree.clone().map_or(Tree::None, |worktree| Tree::Known { worktree, base: subject.base() });
        let start = Start {
            name: self.name().to_owned(),
            contract,
            tree,
            caller: caller.clone(),
            previous: Some(row),
            wanted: None,
            fresh_logs: true,
            recovers: false,
            counts: false,
        };
        let spawned = self.start(start).await?;
        self.remove_leftovers(Some(spawned.generation)).await;
        Ok(spawned)
    }
}

impl State {
    /// What runs is not ended for a start that would be refused.
    async fn check_again(&self, subject: &Subject, contract: &Contract, makes_tree: bool) -> Result<(), Refusal> {
        let tree = subject.row().and_then(|row| row.worktree.as_ref());
        let dir = match tree {
            None => Some(contract.cwd.as_str()),
            Some(tree) => Some(tree.path.as_str()).filter(|path| !makes_tree && std::path::Path::new(path).is_dir()),
        };
        let checked = self.ports().launcher.check(contract, dir).await;
        checked.map_err(|refusal| refusal.of(self.name()))?;
        let Subject::Ours { facts, .. } = subject else { return Ok(()) };
        let Some(plan) = facts.spec.spec().and_then(swarm_model::Spec::session) else { return Ok(()) };
        match self.ports().sessions.check(&plan).await {
            Recovery::IdentifierMismatch { found } if !makes_tree => {
                Err(error::of_session(&SessionError::mismatch(&plan, found)).of(self.name()))
            }
            _ => Ok(()),
        }
    }
}

/// The answer of an earlier attempt of the same request.
pub(super) fn answered(row: &Row, facts: &DirFacts, caller: &Caller) -> Option<Spawned> {
    let SpecFacts::Executed(spec) = &facts.spec else { return None };
    let lease = facts.lease.content.as_ref()?;
    (spec.request == caller.request).then(|| Spawned {
        name: row.name.clone(),
        generation: facts.generation,
        pid: lease.worker.pid,
        window: row.tmux.as_ref().map(|tmux| format!("{}:{}", tmux.session, tmux.window)),
        pane: lease.pane.as_ref().map(|pane| pane.pane.clone()),
        socket_path: lease.pane.as_ref().map(|pane| pane.socket_path.clone()),
        worktree: row.worktree.as_ref().map(|worktree| worktree.path.clone()),
        notes: Vec::new(),
        warnings: lease.limits.as_ref().map(Held::warnings).unwrap_or_default(),
    })
}

fn check_name(name: &str) -> Result<(), Refusal> {
    WorkerName::parse(name).map(drop).map_err(|error| {
        Refusal::new(RefusalKind::Invalid, format!("invalid worker name {name:?}: {error}"))
            .remedy("a name is [A-Za-z0-9][A-Za-z0-9._-]{0,63}, without ..")
    })
}
