//! State of the supervisor's actor.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ractor::ActorRef;
use swarm_model::{FlowPlace, Target};
use swarm_ports::Ports;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::children::Children;
use super::machine::Machine;
use super::message::{Exit, SupervisorMessage};
use super::openings::Openings;
use super::survey::Owed;
use crate::flow::FlowHandle;
use crate::loops::LoopHandle;
use crate::merge::MergeHandle;
use crate::nudges::NudgesHandle;
use crate::registry::RegistryHandle;
use crate::run::RunHandle;
use crate::sessions::SessionsHandle;
use crate::worker::{Sites, WorkerHandle};

/// State of the supervisor: its children, and what it knows beside their own state. The modules of this room each
/// add the methods for one kind of child.
pub struct State {
    pub(super) root: PathBuf,
    pub(super) ports: Ports,
    pub(super) exit: watch::Sender<Option<Exit>>,
    pub(super) myself: ActorRef<SupervisorMessage>,
    pub(super) machine: Machine,
    pub(super) registry: RegistryHandle,
    /// Starts and removals of worktrees in progress.
    pub(super) sites: Sites,
    pub(super) workers: Children<String, WorkerHandle>,
    pub(super) merges: Children<Target, MergeHandle>,
    /// Queue of each item that has a key. Keys of items that a queue has dropped stay until this
    /// process exits.
    pub(super) queued: BTreeMap<String, Target>,
    /// Runs, by the directory of their files.
    pub(super) runs: Children<String, RunHandle>,
    pub(super) heartbeat: SessionsHandle,
    /// Loops, by the name of their worker.
    pub(super) loops: Children<String, LoopHandle>,
    pub(super) flows: Children<FlowPlace, FlowHandle>,
    pub(super) nudges: NudgesHandle,
    pub(super) openings: Openings,
    pub(super) owed: Owed,
    /// Idle timer, if it is armed.
    pub(super) idle: Option<AbortHandle>,
}
