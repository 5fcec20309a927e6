//! Launch of one worker, in two phases (see `docs/design.md`): prepare everything, commit the row,
//! and only then execute the command. A step that fails rolls back the steps before it.
//!
//! | killed right after | what exists | what a later supervisor does |
//! |---|---|---|
//! | 1 reserve | directory with `spec.pending` | deletes it |
//! | 2 worktree | also a pristine worktree and branch | deletes them too |
//! | 3 prepare | also a shim at its gate, which sees end of file | the shim exits; then as above |
//! | 4 commit | also the row: the start is committed | the shim, alone, opens the gate |
//! | 5 open | the worker runs | adopts it |

use std::sync::Arc;

use super::sites::Sites;
use super::{error, remove};
use crate::registry::replay::Unsynced;
use crate::registry::{Mutation, RegistryError, RegistryHandle, StoreError, reconcile};
use swarm_model::{
    BaseRef, Caller, Contract, Held, Lease, Refusal, RefusalKind, Row, RowWorktree, Spawned, Spec, SwarmMeta, Wanted,
    WorktreePlan, WorktreeRequest, worker_dir_name,
};
use swarm_ports::{Opening, Ports, Prepared};

/// Worktree in which a worker is started.
#[derive(Clone, Debug)]
pub enum Tree {
    None,
    /// A new worktree for a new worker.
    New(WorktreeRequest),
    /// The worktree of an earlier generation. Created again if it is gone.
    Known {
        worktree: RowWorktree,
        base: BaseRef,
        /// Commit at which swarm created its branch. `None` if it was there before.
        made_at: Option<String>,
    },
}

/// Everything that is needed to start a worker.
#[derive(Clone, Debug)]
pub struct Start {
    pub name: String,
    pub contract: Contract,
    pub tree: Tree,
    pub caller: Caller,
    /// Row of the previous generation. `None` for a new worker.
    pub previous: Option<Arc<Row>>,
    /// Wanted state of the new generation, if it keeps part of the history.
    pub wanted: Option<Wanted>,
    /// Whether to start new logs. A respawn does; a restart by policy appends to the old ones.
    pub fresh_logs: bool,
    /// Whether the worker resumes the work of an earlier generation.
    pub recovers: bool,
    /// Whether the start counts as a recovery attempt, because a recovery was requested.
    pub counts: bool,
}

/// A worker that was started.
#[derive(Clone, Debug)]
pub struct Started {
    pub generation: u64,
    pub lease: Lease,
    pub row: Row,
    pub spec: Spec,
    pub spawned: Spawned,
}

/// Starts a worker. On failure, everything is rolled back.
///
/// # Errors
/// Returns why the worker was not started, worded for the user.
pub async fn launch(
    ports: &Ports,
    registry: &RegistryHandle,
    sites: &Sites,
    mut start: Start,
) -> Result<Started, Refusal> {
    check_over(ports, &start).await?;
    let plan = plan(ports, registry, &start).await?;
    // Until the row says where the worker is, or the start has failed.
    let mut claim = None;
    if let Some(plan) = &plan {
        claim = Some(sites.enter(&start.name, &plan.path).await?);
        give_port(ports, registry, &mut start, plan).await?;
    }
    if start.contract.merge && plan.as_ref().is_some_and(|plan| plan.base.branch.is_none()) {
        let refusal = Refusal::new(
            RefusalKind::Invalid,
            "--merge requires a base branch, but the worktree would start at a commit",
        );
        return Err(refusal.remedy("choose a branch with --base").of(&start.name));
    }
    let generation = next_generation(ports, &start)?;
    let mut spec = spec(ports, &start, plan, generation);
    if start.recovers {
        spec.resume = Some(ports.sessions.resume(&spec).await);
    }
    if spec.contract.job.is_none() {
        spec.hooked = ports.sessions.hooked(&spec).await;
        // Last: from here on, whatever fails removes the directory, which frees the slot. A job may be on another machine,
        // and has none.
        spec.exit_slot = ports.records.exit_slot(&spec.name, generation).await;
    }
    let opening = spec.session().map(|plan| Opening {
        plan,
        worker: spec.name.clone(),
        generation,
        session_id: spec.session_id(),
        again: start.recovers,
        counts: start.counts,
    });
    let attempt = Attempt { ports, registry, sites, start: &start, spec: &spec, opening };
    // Step 1. Meanwhile a thread finds the real name of a directory that is there already.
    let entering = async {
        match claim {
            Some(claim) => Ok(claim),
            None => sites.enter(&start.name, &start.contract.cwd).await,
        }
    };
    let (claim, reserved) = tokio::join!(entering, ports.launcher.reserve(&spec));
    let begun = reserved.map_err(|error| error::of_launch(&error).of(&start.name)).and(claim);
    let _claim = match begun {
        Ok(claim) => claim,
        Err(refusal) => {
            attempt.take_back_directory().await;
            return Err(refusal);
        }
    };
    match attempt.run().await {
        Ok((lease, row, note, warnings)) => {
            let notes = found(&start.tree, spec.worktree.as_ref()).into_iter().chain(note).collect();
            let mut started = started(&spec, lease, row, notes);
            started.spawned.warnings.extend(warnings);
            Ok(started)
        }
        Err(refusal) => Err(refusal.of(&start.name)),
    }
}

struct Attempt<'a> {
    ports: &'a Ports,
    registry: &'a RegistryHandle,
    sites: &'a Sites,
    start: &'a Start,
    spec: &'a Spec,
    opening: Option<Opening>,
}

impl Attempt<'_> {
    async fn run(&self) -> Result<(Lease, Row, Option<String>, Vec<String>), Refusal> {
        let (prepared, note) = match self.prepare().await {
            Ok(prepared) => prepared,
            Err(refusal) => {
                self.take_back().await;
                return Err(refusal);
            }
        };
        let lease = prepared.lease.clone();
        let row = self.row(&lease);
        // Step 4: the commit. If the supervisor is killed before it, nothing is started; if it
        // is killed after it, the worker runs.
        if let Err(error) = self.registry.mutate(self.commit(&row)).await {
            self.ports.launcher.withdraw(prepared).await;
            if matches!(error, RegistryError::Store(StoreError::Closed)) {
                // The commit may still be under way; what is withdrawn after it is committed after it.
                self.withdraw_row(&row).await;
            }
            let refusal = error::of_registry(&error);
            self.abandon(&refusal).await;
            self.take_back().await;
            return Err(refusal);
        }
        // Step 5.
        match self.ports.launcher.open(prepared).await {
            Ok(warnings) => Ok((lease, row, note, warnings)),
            Err(error) => {
                self.withdraw_row(&row).await;
                let refusal = error::of_launch(&error);
                self.abandon(&refusal).await;
                self.take_back().await;
                Err(refusal)
            }
        }
    }

    /// Steps 2 and 3.
    async fn prepare(&self) -> Result<(Prepared, Option<String>), Refusal> {
        let (ports, name) = (self.ports, &self.start.name);
        if let Some(wanted) = &self.start.wanted {
            let written = ports.records.write_wanted(name, self.spec.generation, wanted).await;
            written.map_err(|error| error::of_io("record the restart", &error))?;
        }
        if let Some(plan) = &self.spec.worktree {
            let made = ports.worktrees.make(plan, &self.start.caller).await;
            made.map_err(|error| error::of_worktree(&error))?;
        }
        if self.start.fresh_logs {
            let rotated = ports.records.rotate_logs(name).await;
            rotated.map_err(|error| error::of_io("rotate the old logs", &error))?;
        }
        let mut note = None;
        if let Some(opening) = &self.opening {
            let opened = ports.sessions.open(opening).await;
            note = opened.map_err(|error| error::of_session(&error))?;
        }
        match ports.launcher.prepare(self.spec, &self.start.caller).await {
            Ok(prepared) => Ok((prepared, note)),
            Err(error) => {
                let refusal = error::of_launch(&error);
                self.abandon(&refusal).await;
                Err(refusal)
            }
        }
    }

    /// Marks the session as abandoned, so that a worktree that remains does not look as if an agent
    /// were about to start in it.
    async fn abandon(&self, refusal: &Refusal) {
        if let Some(opening) = &self.opening {
            self.ports.sessions.abandon(opening, &refusal.cause).await;
        }
    }

    /// Returns the new row. Members that other programs keep in `metadata` are inherited.
    fn row(&self, lease: &Lease) -> Row {
        let mut row = reconcile::row_of(self.spec, lease.worker.pid, &self.ports.clock.host());
        if let Tree::Known { base, .. } = &self.start.tree
            && let Some(meta) = row.swarm()
            && !base.commit.is_empty()
        {
            // A worktree that is created again keeps the base of its first generation.
            row.metadata = row.metadata.with(SwarmMeta { base: Some(base.clone()), ..meta.clone() });
        }
        if let Some(previous) = &self.start.previous {
            row.metadata = row.metadata.inherit(&previous.metadata);
        }
        row
    }

    fn commit(&self, row: &Row) -> Mutation {
        // The contract's file was not synced. What the disk has of it after a power cut is written again from the
        // registry's journal.
        let text = (!self.spec.is_synced()).then(|| serde_json::to_string(self.spec).ok()).flatten();
        let dir = worker_dir_name(&self.spec.name, self.spec.generation);
        Mutation::Start {
            expect: self.start.previous.as_ref().map(|previous| previous.key()),
            row: Box::new(row.clone()),
            contract: text.map(|text| Unsynced { dir, text }),
        }
    }

    /// Restores the previous row, because the gate could not be opened.
    async fn withdraw_row(&self, row: &Row) {
        let mutation = match &self.start.previous {
            None => Mutation::Remove { name: row.name.clone(), expect: row.key() },
            Some(previous) => Mutation::Replace { expect: row.key(), row: Box::new(previous.as_ref().clone()) },
        };
        if let Err(error) = self.registry.mutate(mutation).await {
            tracing::error!(worker = %row.name, %error, "cannot roll back the row of a failed start");
        }
    }

    async fn take_back(&self) {
        if let Some(plan) = &self.spec.worktree
            && let Err(error) =
                remove::undo(self.ports, self.registry, self.sites, &self.start.name, plan, &self.start.caller).await
        {
            tracing::error!(worker = %self.start.name, path = %plan.path, %error, "cannot roll back a worktree");
            // Keep the directory: it lets a later supervisor try again.
            return;
        }
        self.take_back_directory().await;
    }

    async fn take_back_directory(&self) {
        // The child of a killed shim stays at the gate for a moment and still holds the lease.
        self.ports.records.lease_is_let_go(&self.start.name, self.spec.generation).await;
        let removed = self.ports.records.remove(&self.start.name, self.spec.generation).await;
        if let Err(error) = removed {
            tracing::error!(worker = %self.start.name, %error, "cannot delete the directory of a failed start");
        }
    }
}

async fn plan(ports: &Ports, registry: &RegistryHandle, start: &Start) -> Result<Option<WorktreePlan>, Refusal> {
    let (mut request, known) = match &start.tree {
        Tree::None => return Ok(None),
        Tree::New(request) => (request.clone(), None),
        Tree::Known { worktree, base, made_at } => {
            let path = std::path::Path::new(&worktree.path);
            if is_dir(&worktree.path).await? {
                return Ok(Some(WorktreePlan {
                    path: worktree.path.clone(),
                    branch: worktree.branch.clone(),
                    base_repo: worktree.base_repo.clone(),
                    base: base.clone(),
                    makes_branch: false,
                    made_at: made_at.clone(),
                    makes_tree: false,
                }));
            }
            let parent = path.parent().map(|parent| parent.to_string_lossy().into_owned());
            let branch = Some(worktree.branch.clone());
            let cwd = worktree.base_repo.clone();
            let request = WorktreeRequest { cwd, branch, dir: parent, is_known: true, ..WorktreeRequest::default() };
            (request, Some(worktree))
        }
    };
    // The worktree of an earlier generation keeps its directory name, regardless of the worker's name.
    let leaf = known.and_then(|worktree| worktree.path.rsplit('/').next());
    let leaf = leaf.map(str::to_owned).or_else(|| request.leaf.clone()).unwrap_or_else(|| start.name.clone());
    let rows = registry.rows().await.map_err(|error| error::of_store(&error))?;
    let trees = rows.iter().filter_map(|row| row.worktree.as_ref());
    request.trees = trees.map(|tree| (tree.path.clone(), tree.base_repo.clone())).collect();
    let planned = ports.worktrees.plan(&leaf, &request, &start.caller).await;
    let mut planned = planned.map_err(|error| error::of_worktree(&error).of(&start.name))?;
    if let Tree::Known { base, made_at, .. } = &start.tree
        && !planned.makes_branch
    {
        planned.made_at.clone_from(made_at);
        if !base.commit.is_empty() {
            // Another branch may be checked out now.
            planned.base = base.clone();
        }
    }
    Ok(Some(planned))
}

/// Reports whether a directory exists, on another thread: its disk may not answer.
pub(super) async fn is_dir(path: &str) -> Result<bool, Refusal> {
    let path = std::path::PathBuf::from(path);
    let looked = tokio::task::spawn_blocking(move || path.is_dir()).await;
    looked.map_err(|error| Refusal::new(RefusalKind::Internal, format!("cannot look for a directory: {error}")))
}

/// Assigns a port to a worker that has a worktree, for a server that it may want to run. The port is
/// stored in the contract, so that every later start gets the same one.
async fn give_port(
    ports: &Ports,
    registry: &RegistryHandle,
    start: &mut Start,
    plan: &WorktreePlan,
) -> Result<(), Refusal> {
    let rows = registry.rows().await.map_err(|error| error::of_store(&error))?;
    let others = rows.iter().filter(|row| row.name != start.name);
    let taken: Vec<u16> = others.filter_map(|row| row.swarm()?.port).collect();
    if start.contract.port.is_some_and(|port| !taken.contains(&port)) {
        return Ok(());
    }
    let port = ports.worktrees.port(plan, &taken).await;
    start.contract.port = port.map_err(|error| error::of_worktree(&error).of(&start.name))?;
    Ok(())
}

/// Fails if the shim of the generation that this start replaces lives.
async fn check_over(ports: &Ports, start: &Start) -> Result<(), Refusal> {
    let previous = start.previous.as_ref().filter(|row| row.place().is_none());
    let Some(meta) = previous.and_then(|row| row.swarm()) else { return Ok(()) };
    let observed = ports.records.observe(&start.name, meta.generation).await;
    let observed = observed.map_err(|error| error::of_io("read the worker's records", &error).of(&start.name))?;
    match observed {
        Some(facts) if facts.lease.held && facts.lease.job.is_none() => {
            Err(error::held_lease(&start.name, meta.generation))
        }
        _ => Ok(()),
    }
}

fn next_generation(ports: &Ports, start: &Start) -> Result<u64, Refusal> {
    let in_row = start.previous.as_ref().and_then(|row| row.swarm()).map_or(0, |meta| meta.generation);
    let free = ports.records.next_free(&start.name, in_row);
    free.map_err(|error| error::of_io("read the workers' records", &error))
}

fn spec(ports: &Ports, start: &Start, plan: Option<WorktreePlan>, generation: u64) -> Spec {
    let logs: &[&str] = if start.contract.tmux.is_some() { &["tmux"] } else { &["stdout", "stderr"] };
    Spec {
        name: start.name.clone(),
        generation,
        token: ports.clock.token(),
        request: start.caller.request.clone(),
        started: ports.clock.started(),
        contract: start.contract.clone(),
        worktree: plan,
        logs: logs.iter().map(|kind| format!("{}.{kind}.log", start.name)).collect(),
        resume: None,
        hooked: None,
        machine: Some(ports.clock.machine()),
        exit_slot: None,
    }
}

fn started(spec: &Spec, lease: Lease, row: Row, notes: Vec<String>) -> Started {
    let window = row.tmux.as_ref().map(|tmux| format!("{}:{}", tmux.session, tmux.window));
    let held = lease.limits.as_ref();
    let spawned = Spawned {
        name: spec.name.clone(),
        generation: spec.generation,
        pid: lease.worker.pid,
        window,
        pane: lease.pane.as_ref().map(|pane| pane.pane.clone()),
        socket_path: lease.pane.as_ref().map(|pane| pane.socket_path.clone()),
        worktree: row.worktree.as_ref().map(|worktree| worktree.path.clone()),
        job: spec.place().map(|place| place.name),
        notes: notes.into_iter().chain(held.map(Held::notes).unwrap_or_default()).collect(),
        warnings: held.map(Held::warnings).unwrap_or_default(),
    };
    Started { generation: spec.generation, lease, row, spec: spec.clone(), spawned }
}

/// Returns a note if the worker continues in a worktree or branch that already exists, although the
/// request did not ask to resume.
fn found(tree: &Tree, plan: Option<&WorktreePlan>) -> Option<String> {
    let (Tree::New(asked), Some(plan)) = (tree, plan) else { return None };
    match (plan.makes_tree, plan.makes_branch || asked.branch.is_some()) {
        _ if asked.resume => None,
        (false, _) => Some(format!("worktree already exists and is used with its content: {}", plan.path)),
        (true, false) => {
            let base = plan.base.branch.as_ref().map(|base| format!("; its base is '{base}'")).unwrap_or_default();
            Some(format!("branch '{}' already exists and is continued from its tip{base}", plan.branch))
        }
        (true, true) => None,
    }
}

/// Returns the caller for an action that nobody requested, from the worker's own contract.
pub fn caller_of(contract: &Contract, request: &str) -> Caller {
    Caller {
        request: request.to_owned(),
        repeated: 0,
        cwd: contract.cwd.clone(),
        environment: contract.environment.clone(),
        umask: contract.umask,
        rlimits: contract.rlimits.clone(),
        nice: contract.nice,
        attributes: contract.attributes.clone(),
        // A request inside this process: its caller is not another one.
        namespaces: None,
        below: None,
    }
}
