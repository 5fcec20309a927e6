//! The worker that a name currently denotes. Read again before each operation, because another
//! program may have changed it.

use std::sync::Arc;

use super::error;
use super::launch::Tree;
use crate::registry::{RegistryHandle, reconcile};
use swarm_model::{BaseRef, Caller, Contract, FineState, ProcessId, Refusal, Row, TmuxPlace, WorkerView, WorktreePlan};
use swarm_ports::{DirFacts, Ports};

/// Default size at which a log is rotated, in bytes.
pub const LOG_LIMIT_BYTES: u64 = 32 << 20;

/// State of a worker name.
#[derive(Clone, Debug)]
pub enum WorkerRecord {
    /// The name has no row.
    None,
    /// A worker that this program started, with its records.
    Ours { row: Arc<Row>, facts: Box<DirFacts> },
    /// A worker that another program started, with its process while that lives.
    Foreign { row: Arc<Row>, alive: Option<ProcessId> },
}

impl WorkerRecord {
    /// Reads the row and the records of a worker.
    ///
    /// # Errors
    /// Fails if the registry or the records cannot be read.
    pub async fn read(ports: &Ports, registry: &RegistryHandle, name: &str) -> Result<Self, Refusal> {
        let found = registry.find(name).await.map_err(|error| error::of_store(&error))?;
        let Some(row) = found else { return Ok(Self::None) };
        if let Some(meta) = row.swarm() {
            let observed = ports.records.observe(name, meta.generation).await;
            let facts = observed.map_err(|error| error::of_io("read the worker's records", &error))?;
            if let Some(facts) = facts.filter(|facts| reconcile::belongs(&row, facts)) {
                return Ok(Self::Ours { row, facts: Box::new(facts) });
            }
        }
        let alive = ports.processes.foreign(&row).await.map_err(|error| error::of_process(&error))?;
        Ok(Self::Foreign { row, alive })
    }

    pub fn row(&self) -> Option<&Arc<Row>> {
        match self {
            Self::None => None,
            Self::Ours { row, .. } | Self::Foreign { row, .. } => Some(row),
        }
    }

    pub fn is_running(&self) -> bool {
        match self {
            Self::None => false,
            Self::Ours { row, facts } => view(row, facts).state.is_running(),
            Self::Foreign { alive, .. } => alive.is_some(),
        }
    }

    /// Returns the pid of the worker's own process, also if its row names only a window. `None` if it is not alive.
    pub fn pid(&self) -> Option<i32> {
        match self {
            Self::None => None,
            Self::Ours { row, facts } => view(row, facts).pid,
            Self::Foreign { alive, .. } => alive.as_ref().map(|process| process.pid),
        }
    }

    /// See [`WorkerView::is_at_work`].
    pub fn is_at_work(&self) -> bool {
        self.is_running() && self.left().is_empty()
    }

    /// See [`WorkerView::left`].
    pub fn left(&self) -> Vec<i32> {
        match self {
            Self::Ours { row, facts } => view(row, facts).left().to_vec(),
            Self::Foreign { .. } | Self::None => Vec::new(),
        }
    }

    pub fn will_be_restarted(&self) -> bool {
        matches!(self, Self::Ours { row, facts } if view(row, facts).state == FineState::Backoff)
    }

    /// Returns the launch contract. Ours is stored; for a worker of another program it is made from
    /// the row and the caller's environment, as the original `swarm` does.
    pub fn contract(&self, caller: &Caller) -> Option<Contract> {
        if let Self::Ours { facts, .. } = self
            && let Some(spec) = facts.spec.spec()
        {
            return Some(spec.contract.clone());
        }
        let row = self.row()?;
        Some(Contract {
            argv: row.cmd.clone(),
            // The original stores the directory as it was typed.
            cwd: std::path::Path::new(&caller.cwd).join(&row.cwd).to_string_lossy().into_owned(),
            environment: caller.environment.clone(),
            env: row.env.clone(),
            tags: row.tags.clone(),
            umask: caller.umask,
            rlimits: caller.rlimits.clone(),
            nice: caller.nice,
            attributes: caller.attributes.clone(),
            tmux: row.tmux.as_ref().map(|tmux| TmuxPlace {
                session: tmux.session.clone(),
                socket: tmux.socket.clone(),
                socket_path: None,
            }),
            log_limit_bytes: LOG_LIMIT_BYTES,
            ..Contract::default()
        })
    }

    /// Returns the worktree in which the worker starts again.
    pub fn tree(&self) -> Tree {
        let Some(worktree) = self.row().and_then(|row| row.worktree.clone()) else { return Tree::None };
        let plan = self.plan().filter(|plan| plan.branch == worktree.branch);
        let made_at = plan.and_then(|plan| plan.branch_origin().map(str::to_owned));
        Tree::Known { worktree, base: self.base(), made_at }
    }

    /// Returns the plan of the worktree with which the worker was started.
    pub fn plan(&self) -> Option<&WorktreePlan> {
        let Self::Ours { facts, .. } = self else { return None };
        facts.spec.spec()?.worktree.as_ref()
    }

    /// Returns the base of the worktree. Empty if it is unknown.
    pub fn base(&self) -> BaseRef {
        self.row().and_then(|row| row.swarm()).and_then(|meta| meta.base.clone()).unwrap_or_default()
    }
}

fn view(row: &Arc<Row>, facts: &DirFacts) -> WorkerView {
    reconcile::judge(Arc::clone(row), Some(facts.into()), None)
}
