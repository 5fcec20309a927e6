//! Interface through which runs, loops and flows use workers; the supervisor implements it.

use std::time::Duration;

use swarm_model::{Caller, ExitRecord, Job, Refusal, RefusalKind, SpawnRequest, Spawned};
use swarm_ports::{BoxFuture, DirFacts, Ports, Processes, Records};

/// Maximum number of tries of a step that something outside may block. All tries together take
/// longer than the beat of a killed predecessor counts as recent (30 s).
const TRIES_MAX: u32 = 7;
/// Pause before the second try. Doubles before each further try.
const TRY_PAUSE: Duration = Duration::from_millis(500);
/// Pause after a failure to read the records or to wait for the lease.
const ERROR_PAUSE: Duration = Duration::from_millis(200);

/// Starting, ending and cleaning of workers.
pub trait Workers: Send + Sync {
    /// Starts a worker, or returns the one that the same request started before.
    fn spawn(&self, request: SpawnRequest) -> BoxFuture<'_, Result<Spawned, Refusal>>;

    /// Ends a worker.
    fn kill<'a>(&'a self, name: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Cleans a worker that has ended, with its worktree if that contains no unsaved work.
    fn clean<'a>(&'a self, name: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), Refusal>>;
}

/// Waits until all processes of this generation are gone, or until its job is over. Returns its exit record, if there is one.
pub async fn ended(ports: &Ports, name: &str, generation: u64) -> Option<ExitRecord> {
    let facts = ports.records.observe(name, generation).await.ok().flatten();
    let may_go_on = |facts: &DirFacts| facts.lease.held || facts.exit.as_ref().is_some_and(Job::may_refine);
    if facts.is_some_and(|facts| facts.lease.job.is_some() && may_go_on(&facts)) {
        ports.jobs.over(name, generation).await;
    }
    ended_of(&*ports.records, &*ports.processes, name, generation).await
}

/// Waits as [`ended`] does, outside of a supervisor.
pub async fn ended_of(
    records: &dyn Records,
    processes: &dyn Processes,
    name: &str,
    generation: u64,
) -> Option<ExitRecord> {
    loop {
        match records.observe(name, generation).await {
            Ok(None) => return None,
            Ok(Some(facts)) => {
                // The shim holds the lease, but the worker may outlive it.
                let lease = facts.lease.content.as_ref();
                let living = lease.and_then(|lease| {
                    [&lease.shim, &lease.worker].into_iter().find(|process| processes.is_alive(process))
                });
                match living {
                    Some(process) => drop(processes.gone(process.clone()).await),
                    None if !facts.lease.held => return facts.exit,
                    // Another holder of the lease: a child of the shim, or a shim that is just starting.
                    None if records.lease_is_let_go(name, generation).await => {}
                    None => tokio::time::sleep(ERROR_PAUSE).await,
                }
            }
            Err(_) => tokio::time::sleep(ERROR_PAUSE).await,
        }
    }
}

/// Repeats a step while something outside may block it, with a growing pause and a limited number of
/// tries.
///
/// # Errors
/// Returns the last refusal, or the first one that another try would not change.
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

/// Reports whether another try would be refused for the same reason.
pub fn is_final(kind: RefusalKind) -> bool {
    match kind {
        RefusalKind::NotFound | RefusalKind::Invalid | RefusalKind::Worktree | RefusalKind::Start => true,
        // `Stopping` is also the answer while an actor is being restarted.
        RefusalKind::Stopping
        | RefusalKind::Exists
        | RefusalKind::Running
        | RefusalKind::Registry
        | RefusalKind::Tool
        | RefusalKind::Internal => false,
    }
}
