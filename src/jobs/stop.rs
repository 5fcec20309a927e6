//! End of a job on request.

use std::io;
use std::time::{Duration, Instant};

use swarm_actors::jobs::{Stage, Told};
use swarm_model::{Over, Refusal, RefusalKind};
use swarm_ports::MAY_WORK;
use swarm_store::jobs;
use swarm_sys::paths::Paths;

use super::Key;
use super::fleet::{Fleet, end};
use super::seen::{Known, told};

/// Time for the shim to end its worker, before the job is cancelled.
const GRACE: Duration = Duration::from_secs(20);
/// Time for a job to end that was cancelled.
const CANCEL_MAX: Duration = Duration::from_secs(40);
/// Pause between two looks for the exit record.
const LOOK: Duration = Duration::from_millis(250);
/// Pause between two questions to Slurm about a job that was cancelled.
const ASK: Duration = Duration::from_secs(3);

/// Ends a job, and waits until it has ended.
///
/// # Errors
/// Fails if Slurm does not answer, or if the job has not ended in time. It is then cancelled as soon as Slurm answers.
pub fn stop(paths: &Paths, key: &Key, fleet: &Fleet) -> Result<(), Refusal> {
    fleet.set_stopping(key, true);
    let stopped = stop_now(paths, key);
    fleet.set_stopping(key, false);
    if stopped.is_ok() {
        fleet.settle(key);
    }
    stopped
}

fn stop_now(paths: &Paths, key: &Key) -> Result<(), Refusal> {
    let Some(mut known) = Known::read(paths, key).map_err(unread)? else { return Ok(()) };
    let found = known.found();
    if found.has_record || known.job.over.is_some() {
        return Ok(());
    }
    let cancel = |known: &Known, at_once: bool| {
        known.cluster.cancel(&known.job.name, at_once).map_err(|cause| {
            let name = &known.job.name;
            let refusal = Refusal::new(RefusalKind::Tool, format!("cannot cancel job {name}: {cause}"));
            refusal.remedy("it is cancelled as soon as Slurm answers, while a supervisor runs")
        })
    };
    if found.executed {
        cancel(&known, false)?;
        if await_record(&known, GRACE) {
            return Ok(());
        }
    }
    cancel(&known, true)?;
    let deadline = Instant::now() + CANCEL_MAX;
    loop {
        if await_record(&known, ASK) {
            return Ok(());
        }
        if let Ok(answer) = known.cluster.ask() {
            let line = known.line(&answer);
            let told = told(line);
            if let Some(line) = line {
                known.note(line).map_err(unread)?;
            }
            let over = match told {
                Told::Has(Stage::Over) => Some(Over::Proven),
                Told::Has(Stage::Lost) => Some(Over::Unproven),
                // It was never there, or was removed from the queue before it began.
                Told::Absent if !jobs::is_executed(&known.dir) => Some(Over::Proven),
                Told::Absent => Some(Over::Unproven),
                Told::Has(Stage::Waits | Stage::Works) | Told::Silent => None,
            };
            if let Some(over) = over
                && !await_record(&known, LOOK)
            {
                let found = known.found();
                return end(&mut known, found, over).map_err(unread);
            }
        }
        if Instant::now() >= deadline {
            let word = known.job.state.as_deref().unwrap_or("unknown");
            let cause = format!("job {} did not end within a minute: Slurm says {word}", known.job.name);
            return Err(Refusal::new(RefusalKind::Running, cause));
        }
    }
}

/// Waits for the exit record, at most `limit`. A network file system tells nobody of changes.
fn await_record(known: &Known, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if known.found().has_record {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}

/// Checks that nothing of a job that is over may still work: Slurm reaches its node, which ends what was left there.
///
/// # Errors
/// Refuses it while that is not known.
pub fn check_gone(paths: &Paths, key: &Key) -> Result<(), Refusal> {
    let Some(mut known) = Known::read(paths, key).map_err(unread)? else { return Ok(()) };
    let node = known.node();
    if node.as_ref().is_some_and(|node| known.cluster.reaches(node) == Some(true)) {
        let found = known.found();
        return end(&mut known, found, Over::Proven).map_err(unread);
    }
    let place = node.map_or_else(|| "a node that is not known".to_owned(), |node| format!("node {node}"));
    let cause = format!("the job of worker '{}' was lost with {place}, which Slurm does not reach: {MAY_WORK}", key.0);
    let remedy = format!("wait until the node answers, or give the worker up with 'swarm clean {}'", key.0);
    Err(Refusal { passes: true, ..Refusal::new(RefusalKind::Tool, cause).remedy(remedy) })
}

fn unread(error: io::Error) -> Refusal {
    Refusal::new(RefusalKind::Internal, format!("cannot read or write the records of the job: {error}"))
}
