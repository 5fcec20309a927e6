//! A machine without a batch system.

use swarm_model::{Refusal, RefusalKind};
use swarm_ports::{BoxFuture, Jobs};

/// Jobs of which there are none.
pub struct NoJobs;

impl Jobs for NoJobs {
    fn over(&self, _: &str, _: u64) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn stop<'a>(&'a self, name: &'a str, _: u64) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async move { Err(Refusal::new(RefusalKind::Tool, format!("worker '{name}' is no job"))) })
    }

    fn check_gone<'a>(&'a self, _: &'a str, _: u64) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async { Ok(()) })
    }
}
