//! Start of workers in two phases: prepare (nothing is executed), then open the gate.

use super::BoxFuture;
use swarm_model::{Caller, Contract, Lease, Refusal, Spec};

/// Start that waits at its gate.
#[derive(Debug)]
pub struct Prepared {
    pub lease: Lease,
    /// `session:window`, as the row shows it. `None` if the worker is not in tmux.
    pub window: Option<String>,
    /// Handshake with the shim, opaque to all but the launcher. If it is dropped without `open`, the shim reads end
    /// of file, and decides by `state.json` whether to open the gate itself.
    pub gate: Box<dyn std::any::Any + Send>,
}

/// Reason why a start failed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The command could not be executed. Nothing ran.
    #[error("{0}")]
    Exec(String),
    /// The window or session could not be created.
    #[error("failed to create tmux window: {0}")]
    Tmux(String),
    /// The shim ended before the gate was opened. Nothing ran.
    #[error("{0}")]
    NotStarted(String),
    /// A file or process could not be created.
    #[error("{0}")]
    System(String),
}

/// Why a shim ends its worker. Written to the exit record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopOrder {
    /// A request.
    Stop,
    /// The worker exceeded its output limit.
    Output,
}

/// Start of workers.
pub trait Launcher: Send + Sync {
    /// Checks that the contract could be executed now. Called before a running worker is ended for it. `dir` is the
    /// working directory; `None` if it does not exist yet.
    ///
    /// # Errors
    /// Returns a refusal with the reason why it could not be executed.
    fn check<'a>(&'a self, contract: &'a Contract, dir: Option<&'a str>) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Creates the generation's directory with its `spec.pending`, durably. As the first step of a start, this
    /// reserves the generation.
    fn reserve<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Result<(), LaunchError>>;

    /// Starts the shim, or the window whose command it is, and waits until the child is at its gate. Tools run with
    /// the environment of `caller`.
    fn prepare<'a>(&'a self, spec: &'a Spec, caller: &'a Caller) -> BoxFuture<'a, Result<Prepared, LaunchError>>;

    /// Opens the gate, and waits until the kernel reports whether exec succeeded. Returns a warning for each attribute
    /// of the caller that the worker could not take over.
    fn open(&self, prepared: Prepared) -> BoxFuture<'_, Result<Vec<String>, LaunchError>>;

    /// Tells the shim to give up, and waits until it has ended.
    fn withdraw(&self, prepared: Prepared) -> BoxFuture<'_, ()>;
}
