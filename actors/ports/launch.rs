//! Starting in two phases: prepare (nothing executed), then open the gate.

use super::BoxFuture;
use swarm_model::{Caller, Contract, Lease, Refusal, Spec};

/// A start that waits at its gate.
#[derive(Debug)]
pub struct Prepared {
    pub lease: Lease,
    /// `session:window` as the row is to show it, and the worker's place with
    /// its resolved socket, for tmux workers.
    pub window: Option<String>,
    /// Ends the handshake; what it is, only the launcher knows. Dropping it
    /// without `open` means end of file for the shim, which then decides by
    /// what `state.json` says.
    pub gate: Box<dyn std::any::Any + Send>,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The command could not be executed: nothing ran.
    #[error("{0}")]
    Exec(String),
    /// The window or session could not be made.
    #[error("failed to create tmux window: {0}")]
    Tmux(String),
    /// The shim ended before the gate opened: nothing ran.
    #[error("{0}")]
    NotStarted(String),
    /// A file or process could not be made.
    #[error("{0}")]
    System(String),
}

/// Why a shim is to end its worker, as the exit record tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopOrder {
    Stop,
    /// It wrote more than it may.
    Output,
}

pub trait Launcher: Send + Sync {
    /// Whether this could be executed as things are now: asked before what runs is ended for
    /// it. `dir` is where it will run; none where that is still to be made.
    fn check<'a>(&'a self, contract: &'a Contract, dir: Option<&'a str>) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Makes the generation's directory and its `spec.pending`, durably. First
    /// step of a start: it reserves the generation.
    fn reserve<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Result<(), LaunchError>>;

    /// Starts the shim (or the window whose command it is) and waits until the
    /// child stands at its gate. `caller` is the environment for the tools.
    fn prepare<'a>(&'a self, spec: &'a Spec, caller: &'a Caller) -> BoxFuture<'a, Result<Prepared, LaunchError>>;

    /// Opens the gate and waits for the kernel's word about the exec.
    fn open(&self, prepared: Prepared) -> BoxFuture<'_, Result<(), LaunchError>>;

    /// Tells the shim to give up, and waits until it has.
    fn withdraw(&self, prepared: Prepared) -> BoxFuture<'_, ()>;
}
