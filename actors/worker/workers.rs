//! What the rooms above ask of workers, by way of the supervisor that has them all.

use std::time::Duration;

use swarm_model::{Caller, ExitRecord, Refusal, RefusalKind, SpawnRequest, Spawned};
use swarm_ports::{BoxFuture, Ports};

/// How often a step is tried that something outside may keep from happening: longer in
/// all than the beat of a predecessor that was killed counts as young (30 s) …
const TRIES_MAX: u32 = 7;
/// … and how long before the second time; twice as long before each one after.
const TRY_PAUSE: Duration = Duration::from_millis(500);
/// Pause after records that could not be read, or a lease that could not be waited for.
const ERROR_PAUSE: Duration = Duration::from_millis(200);

pub trait Workers: Send + Sync {
    /// Starts a worker, or tells of the one that this very request started before.
    fn spawn(&self, request: SpawnRequest) -> BoxFuture<'_, Result<Spawned, Refusal>>;

    /// Ends a worker.
    fn kill<'a>(&'a self, name: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Forgets a worker that has ended, with its worktree where that holds no work.
    fn clean<'a>(&'a self, name: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), Refusal>>;
}

/// Waits until nothing of this generation is left, and tells how it ended where that
/// is on record.
pub async fn ended(ports: &Ports, name: &str, generation: u64) -> Option<ExitRecord> {
    loop {
        match ports.records.observe(name, generation).await {
            Ok(None) => return None,
            Ok(Some(facts)) => {
                // The shim holds the lease, and the worker may outlive it.
                let lease = facts.lease.content.as_ref();
                let living = lease.and_then(|lease| {
                    [&lease.shim, &lease.worker].into_iter().find(|process| ports.processes.is_alive(process))
                });
                match living {
                    Some(process) => drop(ports.processes.gone(process.clone()).await),
                    None if !facts.lease.held => return facts.exit,
                    // A process below the shim, or one that is just starting, holds the lease.
                    None if ports.records.lease_is_let_go(name, generation).await => {}
                    None => tokio::time::sleep(ERROR_PAUSE).await,
                }
            }
            Err(_) => tokio::time::sleep(ERROR_PAUSE).await,
        }
    }
}

/// Says it again while something outside may be in the way.
///
/// # Errors
/// The last refusal, or the first that another try would not change.
pub async fn tried<T, F: Future<Output = Result<T, Refusal>>>(mut step: impl FnMut() -> F) -> Result<T, Refusal> {
    let mut pause = TRY_PAUSE;
    for _ in 1..TRIES_MAX {
        match step().await {
            Ok(done) => return Ok(done),
            Err(refusal) if is_final(refusal.kind) => return Err(refusal),
            Err(_) => tokio::time::sleep(pause).await,
        }
        pause *= 2;
    }
    step().await
}

/// Whether another try would be refused the same way.
pub fn is_final(kind: RefusalKind) -> bool {
    match kind {
        RefusalKind::NotFound | RefusalKind::Invalid | RefusalKind::Worktree | RefusalKind::Start => true,
        // It is told of a room that is just being restarted, too.
        RefusalKind::Stopping
        | RefusalKind::Exists
        | RefusalKind::Running
        | RefusalKind::Registry
        | RefusalKind::Tool
        | RefusalKind::Internal => false,
    }
}
