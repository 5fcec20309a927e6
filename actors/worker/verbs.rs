//! Verbs on one worker: spawn, kill, clean, respawn.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::actor::State;
use super::adopt::OwedStop;
use super::launch::{self, Start, Tree};
use super::machine::Event;
use super::message::{Meant, Removal};
use super::record::WorkerRecord;
use super::{error, remove};
use crate::registry::{Mutation, Refused, RegistryError};
use swarm_model::{
    Caller, Contract, EventKind, Held, Refusal, RefusalKind, Row, SpawnRequest, Spawned, Spec, Wanted, WantedState,
    WireStatus, WorkerLine, WorkerName, WorktreeRequest,
};
use swarm_model::{Recovery, RestartPolicy};
use swarm_ports::{DirFacts, ProcessError, SessionError, SpecFacts};

/// Maximum time in which a worker whose window was closed is expected to end.
const CLOSING_MAX: Duration = Duration::from_secs(1);

impl State {
    pub(super) async fn spawn(&mut self, request: SpawnRequest) -> Result<Spawned, Refusal> {
        check_name(self.name())?;
        let subject = self.subject().await?;
        let (mut previous, mut tree) = (None, request.worktree.map_or(Tree::None, Tree::New));
        let taken_over = |row: &Row| request.takes_over.as_ref() == Some(&row.started);
        match &subject {
            WorkerRecord::None => {}
            WorkerRecord::Ours { row, facts } => {
                let is_here = !is_elsewhere(row, &tree);
                if let Some(spawned) = answered(row, facts, &request.caller).filter(|_| is_here) {
                    return Ok(spawned);
                }
                // A respawn is a request of its own, and keeps the contract.
                let asked = |prefix: &String| {
                    let is_of =
                        |spec: &Spec| spec.request.starts_with(prefix) || spec.contract.series.as_ref() == Some(prefix);
                    facts.spec.spec().is_some_and(is_of)
                };
                let makes_way = (is_here && request.replaces.as_ref().is_some_and(asked)) || taken_over(row);
                let is_live = subject.is_running() || self.machine.is_live();
                if is_live || !makes_way {
                    return Err(in_the_way(self.name(), request.replaces.is_some(), is_live));
                }
                self.end_earlier(facts).await?;
                previous = Some(Arc::clone(row));
            }
            WorkerRecord::Foreign { row, alive: None } if taken_over(row) => previous = Some(Arc::clone(row)),
            WorkerRecord::Foreign { alive, .. } => {
                return Err(in_the_way(self.name(), request.replaces.is_some(), alive.is_some()));
            }
        }
        // A request for another branch gets a worktree of its own; the previous one stays.
        if let (Tree::New(asked), Some(worktree)) = (&tree, previous.as_ref().and_then(|row| row.worktree.as_ref()))
            && asked.branch.as_ref().is_none_or(|branch| *branch == worktree.branch)
        {
            tree = subject.tree();
        }
        let replaces = previous.is_some();
        let start = Start {
            name: self.name().to_owned(),
            contract: Contract { series: request.replaces, ..request.contract },
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
            self.remove_leftovers(Some(spawned.generation), Some(spawned.generation)).await;
        }
        Ok(spawned)
    }

    pub(super) async fn start(&mut self, start: Start) -> Result<Spawned, Refusal> {
        // Discard what this actor knows of an earlier generation.
        let _ = self.feed(Event::StartBegins(start.wanted.clone().unwrap_or_default())).await;
        match launch::launch(self.ports(), &self.arguments.registry, &self.arguments.sites, start).await {
            Ok(started) => {
                let spawned = started.spawned.clone();
                self.begin_life(started);
                Ok(spawned)
            }
            Err(refusal) => {
                let _ = self.feed(Event::StartFailed { passes: false }).await;
                Err(refusal)
            }
        }
    }

    pub(super) async fn kill(
        &mut self,
        caller: &Caller,
        removal: Removal,
        meant: &Meant,
    ) -> Result<WorkerLine, Refusal> {
        let subject = self.subject().await?;
        check_life(&subject, meant)?;
        let Some(row) = subject.row().cloned() else { return Err(error::not_found(self.name())) };
        self.stop(&subject).await?;
        self.emit(EventKind::WorkerKilled);
        let recorded = self.set_stopped(&row).await;
        recorded.map_err(|refusal| Refusal {
            cause: format!("killed, but the registry does not say so: {}", refusal.cause),
            ..refusal
        })?;
        let mut notes = Vec::new();
        if removal.rm_worktree
            && let Some(tree) = &row.worktree
        {
            notes = remove::after_kill(&self.arguments, tree, removal, caller).await;
        }
        Ok(WorkerLine { name: self.name().to_owned(), done: "killed".to_owned(), notes })
    }

    /// Ends the worker and ensures that nothing restarts it.
    async fn stop(&mut self, subject: &WorkerRecord) -> Result<(), Refusal> {
        match subject {
            WorkerRecord::None => Ok(()),
            WorkerRecord::Foreign { row, .. } => {
                let stopped = self.ports().processes.stop_foreign(row).await;
                stopped.map_err(|error| error::of_process(&error).of(self.name()))
            }
            WorkerRecord::Ours { facts, .. } => {
                let is_held = facts.lease.held && facts.lease.job.is_none();
                let shim = facts.lease.content.as_ref().map(|lease| &lease.shim).filter(|_| is_held);
                if is_held && shim.is_none() && !self.machine.knows(facts.generation) {
                    return Err(error::held_lease(self.name(), facts.generation));
                }
                if shim.is_some_and(|shim| !self.ports().processes.is_alive(shim)) {
                    // Before the stop is recorded.
                    self.check_ended(facts.generation).await?;
                }
                self.sync(facts).await;
                let ended = self.end_survivors(facts).await;
                if self.life.as_ref().is_some_and(|life| life.generation == facts.generation) {
                    return self.feed(Event::StopAsked).await.and(ended);
                }
                // A restart may be pending, but nothing is known about its processes. A recovery must still learn that
                // it was stopped.
                self.feed(Event::StopAsked).await?;
                let wanted = Wanted { state: WantedState::Stopped, next_start_ms: None, ..facts.wanted.clone() };
                let written = self.ports().records.write_wanted(self.name(), facts.generation, &wanted).await;
                written.map_err(|error| {
                    self.owe_stop(OwedStop { generation: facts.generation, keeps: true });
                    error::of_io("record what is wanted", &error).of(self.name())
                })?;
                ended
            }
        }
    }

    /// Tries again to end the processes that the shim of an ended generation could not end.
    async fn end_survivors(&self, facts: &DirFacts) -> Result<(), Refusal> {
        let survivors = &facts.lease.survivors;
        if survivors.is_empty() || facts.lease.held {
            return Ok(());
        }
        let ended = self.ports().processes.end_survivors(survivors).await;
        ended.map_err(|error| match error {
            ProcessError::Survivors(_) => error::survivors(self.name(), survivors),
            ProcessError::Tool(_) => error::of_process(&error).of(self.name()),
        })
    }

    /// Ends this generation, because its session was taken. Does nothing if another generation is
    /// current.
    pub(super) async fn abandon(&mut self, generation: u64) -> Result<(), Refusal> {
        let subject = self.subject().await?;
        match &subject {
            WorkerRecord::Ours { row, facts } if facts.generation == generation => {
                self.stop(&subject).await?;
                self.emit(EventKind::WorkerKilled);
                self.set_stopped(row).await
            }
            WorkerRecord::Ours { .. } | WorkerRecord::Foreign { .. } | WorkerRecord::None => Ok(()),
        }
    }

    pub(super) async fn set_stopped(&mut self, row: &Row) -> Result<(), Refusal> {
        let (name, expect) = (row.name.clone(), row.key());
        let mutation = Mutation::SetStatus { name, expect, status: WireStatus::Stopped };
        match self.arguments.registry.mutate(mutation).await {
            // Another program deleted or replaced the row, so its status is up to that program.
            Ok(()) | Err(RegistryError::Refused(_)) => Ok(()),
            Err(error) => {
                if let Some(meta) = row.swarm() {
                    self.owe_stop(OwedStop { generation: meta.generation, keeps: false });
                }
                Err(error::of_registry(&error).of(self.name()))
            }
        }
    }

    pub(super) async fn clean(
        &mut self,
        caller: &Caller,
        removal: Removal,
        meant: &Meant,
    ) -> Result<WorkerLine, Refusal> {
        let name = self.name().to_owned();
        let done = |notes| WorkerLine { name: name.clone(), done: "cleaned".to_owned(), notes };
        let subject = self.subject().await?;
        check_life(&subject, meant)?;
        let Some(row) = subject.row().cloned() else {
            // This may be a repeated request whose first answer was lost with its supervisor.
            if self.arguments.registry.list().await.is_ok_and(|listing| !listing.unjudged.covers(&name)) {
                self.remove_leftovers(None, None).await;
            }
            if caller.repeated > 0 && self.ports().events.seen(&caller.request) {
                return Ok(done(Vec::new()));
            }
            let notes = remove::kept(&self.arguments, removal, caller).await?;
            return notes.map(done).ok_or_else(|| error::not_found(&name));
        };
        let subject = self.without_closed_window(subject).await?;
        if subject.is_running() {
            let cause = format!("cannot clean running worker '{name}'");
            let remedy = format!("run 'swarm kill {name}' first");
            return Err(Refusal::new(RefusalKind::Running, cause).remedy(remedy).of(&name));
        }
        self.ports().events.emit(swarm_model::Event {
            at_ms: self.ports().clock.wall_ms(),
            worker: Some(name.clone()),
            generation: self.life.as_ref().map(|life| life.generation),
            request: Some(caller.request.clone()),
            kind: EventKind::WorkerCleaning,
        });
        if !self.has_ended_for_good(&subject).await {
            self.stop(&subject).await?;
        }
        let mut notes = Vec::new();
        if removal.rm_worktree
            && let Some(tree) = &row.worktree
        {
            let base = row.swarm().and_then(|meta| meta.base.as_ref());
            notes = remove::on_clean(&self.arguments, (tree, base), removal, caller).await?;
        }
        // A run that goes on starts another worker soon.
        let is_of_run = |facts: &DirFacts| facts.spec.spec().is_some_and(|spec| spec.request.starts_with("run/"));
        let may_wait = matches!(&subject, WorkerRecord::Ours { facts, .. } if is_of_run(facts));
        self.forget(&row, may_wait).await?;
        // After the row, which names the branch. What a forced removal has saved is restored onto its branch.
        if removal.rm_worktree && row.worktree.is_some() && removal.drop_branch && !removal.force_dirty {
            notes.extend(remove::drop_branch(self.ports(), &subject, caller).await);
        }
        self.emit(EventKind::WorkerCleaned);
        Ok(done(notes))
    }

    /// Waits for a moment until a worker has ended whose window was closed, and reads it again.
    async fn without_closed_window(&self, subject: WorkerRecord) -> Result<WorkerRecord, Refusal> {
        let WorkerRecord::Ours { row, facts } = &subject else { return Ok(subject) };
        let shim = facts.lease.content.as_ref().map(|lease| lease.shim.clone());
        let processes = self.ports().processes.clone();
        match shim.filter(|shim| row.tmux.is_some() && facts.lease.held && processes.has_hung_up(shim)) {
            Some(shim) => {
                let _ = tokio::time::timeout(CLOSING_MAX, processes.gone(shim)).await;
                self.subject().await
            }
            None => Ok(subject),
        }
    }

    /// Reports whether nothing runs or will start, so that no stop must be recorded: the worker stays recoverable if
    /// its cleaning fails.
    async fn has_ended_for_good(&mut self, subject: &WorkerRecord) -> bool {
        let WorkerRecord::Ours { facts, .. } = subject else { return false };
        let has_policy = facts.spec.spec().is_none_or(|spec| spec.contract.restart != RestartPolicy::Never);
        self.sync(facts).await;
        !has_policy && !subject.is_running() && !self.machine.is_live()
    }

    /// Deletes the row first, then logs and records. If the supervisor is killed in between, what is
    /// left lies in a directory without a row, which the next start deletes.
    async fn forget(&mut self, row: &Row, may_wait: bool) -> Result<(), Refusal> {
        let remove = Mutation::Remove { name: row.name.clone(), expect: row.key() };
        let registry = &self.arguments.registry;
        let removed = if may_wait { registry.mutate_patiently(remove).await } else { registry.mutate(remove).await };
        match removed {
            Ok(()) | Err(RegistryError::Refused(Refused::Missing(_))) => {}
            Err(error) => return Err(error::of_registry(&error).of(self.name())),
        }
        if let Err(error) = self.ports().records.remove_logs(self.name()).await {
            tracing::warn!(worker = self.name(), %error, "cannot delete the logs of a cleaned worker");
        }
        self.remove_leftovers(None, row.swarm().map(|meta| meta.generation)).await;
        (self.life, self.owed) = (None, None);
        self.feed(Event::Forgotten).await
    }

    pub(super) async fn respawn(
        &mut self,
        caller: &Caller,
        removal: Removal,
        meant: &Meant,
    ) -> Result<Spawned, Refusal> {
        let subject = self.subject().await?;
        let Some(mut row) = subject.row().cloned() else { return Err(error::not_found(self.name())) };
        check_name(self.name())?;
        if let WorkerRecord::Ours { row, facts } = &subject
            && caller.repeated > 0
            && let Some(spawned) = answered(row, facts, caller)
        {
            return Ok(spawned);
        }
        check_life(&subject, meant)?;
        let contract = subject.contract(caller).ok_or_else(|| error::not_found(self.name()))?;
        if let Some(flow) = contract.tags.iter().find_map(|tag| tag.strip_prefix(swarm_model::flow::TAG)) {
            // A respawned worker would block the next turn of its flow.
            let cause = format!("'{}' plays a role in flow {flow}, which starts its turns itself", self.name());
            let remedy = format!("run 'swarm flow run {flow}', or 'swarm flow answer {flow} TEXT' if it waits");
            return Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).of(self.name()));
        }
        let doomed = row.worktree.clone().filter(|_| removal.rm_worktree);
        if let Some(tree) = &doomed {
            // Check before anything is stopped: a refusal must leave the worker running.
            let checked = remove::check(&self.arguments, tree, removal, caller).await;
            checked.map_err(|error| remove::respawn_refusal(self.name(), tree, &error))?;
        }
        if subject.is_running() || self.machine.is_live() {
            self.check_again(&subject, &contract, doomed.is_some()).await?;
            self.stop(&subject).await?;
            self.set_stopped(&row).await?;
            // If the start fails, this is the row that is restored.
            row = Arc::new(Row { status: WireStatus::Stopped, ..row.as_ref().clone() });
        }
        if let Some(tree) = &doomed {
            let removed = remove::remove(&self.arguments, tree, removal, caller).await;
            removed.map_err(|error| remove::respawn_refusal(self.name(), tree, &error))?;
        }
        if let WorkerRecord::Ours { facts, .. } = &subject {
            self.check_job_gone(facts).await?;
        }
        let tree = subject.tree();
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
        self.remove_leftovers(Some(spawned.generation), Some(spawned.generation)).await;
        Ok(spawned)
    }
}

impl State {
    /// Checks whether a start would be refused, before the running worker is ended for it.
    async fn check_again(&self, subject: &WorkerRecord, contract: &Contract, makes_tree: bool) -> Result<(), Refusal> {
        let tree = subject.row().and_then(|row| row.worktree.as_ref());
        let dir = match tree {
            None => Some(contract.cwd.as_str()),
            Some(tree) if !makes_tree && launch::is_dir(&tree.path).await? => Some(tree.path.as_str()),
            Some(_) => None,
        };
        let checked = self.ports().launcher.check(contract, dir).await;
        checked.map_err(|refusal| refusal.of(self.name()))?;
        let WorkerRecord::Ours { facts, .. } = subject else { return Ok(()) };
        let Some(plan) = facts.spec.spec().and_then(swarm_model::Spec::session) else { return Ok(()) };
        match self.ports().sessions.check(&plan).await {
            Recovery::IdentifierMismatch { found } if !makes_tree => {
                Err(error::of_session(&SessionError::mismatch(&plan, found)).of(self.name()))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the refusal of a start because of a worker that exists. A run or a flow, whose start would replace one of its
/// own, need not try again if that has ended: it stays until somebody removes it.
fn in_the_way(name: &str, would_replace: bool, is_live: bool) -> Refusal {
    if !would_replace {
        return Refusal::exists(name);
    }
    if is_live {
        let refusal = Refusal::new(RefusalKind::Exists, format!("worker '{name}' is still running")).of(name);
        return refusal.remedy(format!("wait until it has ended, or run 'swarm kill {name}'"));
    }
    let cause = format!("worker '{name}' already exists, and was started by something else");
    Refusal::new(RefusalKind::Invalid, cause).remedy(format!("run 'swarm clean {name}' to remove it")).of(name)
}

/// Reports whether a request that names the directory for worktrees means another one than that of the row, as a run does
/// in a copy of the row's repository.
fn is_elsewhere(row: &Row, tree: &Tree) -> bool {
    let (Some(known), Tree::New(WorktreeRequest { dir: Some(dir), .. })) = (&row.worktree, tree) else { return false };
    let dir = Path::new(dir);
    dir.is_absolute() && !Path::new(&known.path).starts_with(dir)
}

/// Returns the answer to an earlier delivery of the same request, if there was one.
pub(super) fn answered(row: &Row, facts: &DirFacts, caller: &Caller) -> Option<Spawned> {
    let spec = match &facts.spec {
        SpecFacts::Executed(spec) => spec,
        // A job that waits in the queue of the batch system.
        SpecFacts::Pending(spec) if spec.contract.job.is_some() => spec,
        SpecFacts::Pending(_) | SpecFacts::Missing => return None,
    };
    let lease = facts.lease.content.as_ref()?;
    (spec.request == caller.request).then(|| Spawned {
        name: row.name.clone(),
        generation: facts.generation,
        pid: lease.worker.pid,
        window: row.tmux.as_ref().map(|tmux| format!("{}:{}", tmux.session, tmux.window)),
        pane: lease.pane.as_ref().map(|pane| pane.pane.clone()),
        socket_path: lease.pane.as_ref().map(|pane| pane.socket_path.clone()),
        worktree: row.worktree.as_ref().map(|worktree| worktree.path.clone()),
        job: spec.place().map(|place| place.name),
        notes: Vec::new(),
        warnings: lease.limits.as_ref().map(Held::warnings).unwrap_or_default(),
    })
}

fn check_name(name: &str) -> Result<(), Refusal> {
    WorkerName::parse(name).map(drop).map_err(|error| {
        Refusal::new(RefusalKind::Invalid, format!("invalid worker name '{name}': {error}")).remedy(WorkerName::RULE)
    })
}

/// Fails if there is a worker, and it is not the one that a request is about. Requests about a name are carried out one
/// after the other, so no other life begins before the end of what follows.
fn check_life(subject: &WorkerRecord, meant: &Meant) -> Result<(), Refusal> {
    let Some(row) = subject.row() else { return Ok(()) };
    if meant.generation.is_some_and(|meant| row.swarm().is_none_or(|swarm| swarm.generation != meant)) {
        return Err(Refusal::started_again(&row.name));
    }
    let Some(started_by) = &meant.started_by else { return Ok(()) };
    let is_its = match subject {
        WorkerRecord::Ours { facts, .. } => facts.spec.spec().is_some_and(|spec| spec.request == *started_by),
        WorkerRecord::Foreign { .. } | WorkerRecord::None => false,
    };
    match is_its {
        true => Ok(()),
        false => {
            let cause = format!("worker '{}' was started again, by another request", row.name);
            Err(Refusal::new(RefusalKind::Exists, cause).of(&row.name))
        }
    }
}
