//! Workers that are jobs of Slurm (`swarm spawn --on`): their submission, one question to Slurm about all of them, and their
//! end. What follows from the answers is decided in `swarm_actors::jobs`.
//!
//! ```text
//! start -> submit (sbatch) ·· shim on a node: claim, exit record, mail
//! fleet: a thread while a job is open -> mail (each 5 s), squeue (each 30 s) -> machine -> job.json, end of the watch
//! stop  -> scancel TERM, after 20 s scancel
//! ```

mod fleet;
mod seen;
mod stop;
mod submit;

use std::sync::Arc;

use swarm_model::Refusal;
use swarm_ports::{BoxFuture, Jobs};
use swarm_sys::paths::Paths;

use self::fleet::Fleet;
pub use self::submit::{JobGate, open, prepare};

/// A start of a worker: its name and generation.
type Key = (String, u64);

/// Jobs, as the supervisor watches them.
pub struct SlurmJobs {
    paths: Paths,
    fleet: Arc<Fleet>,
}

impl SlurmJobs {
    pub fn new(paths: Paths) -> Self {
        Self { fleet: Arc::new(Fleet::new(paths.clone())), paths }
    }
}

impl Jobs for SlurmJobs {
    fn over(&self, name: &str, generation: u64) -> BoxFuture<'static, ()> {
        let over = self.fleet.watch((name.to_owned(), generation));
        Box::pin(async move {
            // A watch that is given up proves nothing.
            if over.await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }

    fn stop<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, Result<(), Refusal>> {
        let (paths, key, fleet) = (self.paths.clone(), (name.to_owned(), generation), Arc::clone(&self.fleet));
        blocking(move || stop::stop(&paths, &key, &fleet))
    }

    fn check_gone<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, Result<(), Refusal>> {
        let (paths, key) = (self.paths.clone(), (name.to_owned(), generation));
        blocking(move || stop::check_gone(&paths, &key))
    }
}

fn blocking(work: impl FnOnce() -> Result<(), Refusal> + Send + 'static) -> BoxFuture<'static, Result<(), Refusal>> {
    Box::pin(async move {
        let failed = |error| Refusal::new(swarm_model::RefusalKind::Internal, format!("a thread failed: {error}"));
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(failed(error)))
    })
}
