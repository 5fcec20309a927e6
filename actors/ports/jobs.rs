//! Workers that are jobs of a batch system.

use super::BoxFuture;
use swarm_model::Refusal;

/// End of the cause with which [`Jobs::check_gone`] refuses a start.
pub const MAY_WORK: &str = "it may still work";

/// Jobs that the batch system and the nodes know. Each is found by the name and generation of its worker.
pub trait Jobs: Send + Sync {
    /// Watches the job, and resolves once it has an exit record, or is known to be over without one. Submits it again if it
    /// was never executed and the batch system does not have it.
    fn over(&self, name: &str, generation: u64) -> BoxFuture<'static, ()>;

    /// Ends the job: asks its shim to end the worker, and cancels the job if that takes too long. Resolves once it has
    /// ended.
    ///
    /// # Errors
    /// Fails if the batch system does not answer, or if the job has not ended in time.
    fn stop<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Checks that nothing of a job that is over may still work on a node, so that another may begin in its place.
    ///
    /// # Errors
    /// Refuses it while the batch system does not reach the node.
    fn check_gone<'a>(&'a self, name: &'a str, generation: u64) -> BoxFuture<'a, Result<(), Refusal>>;
}
