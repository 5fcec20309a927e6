//! The registry's whole protocol.

use std::sync::Arc;

use ractor::RpcReplyPort;

use super::error::{Refused, RegistryError, StoreError};
use super::machine::Mutation;
use swarm_model::Row;

/// What the registry is asked and told.
#[derive(Debug)]
pub enum RegistryMessage {
    /// Change one row; answered when the change is durable.
    Mutate(Mutation, RpcReplyPort<Result<(), RegistryError>>),
    /// All readable rows as they are on disk now.
    Rows(RpcReplyPort<Result<Arc<Vec<Arc<Row>>>, StoreError>>),
    /// One row, or none of that name.
    Find(String, RpcReplyPort<Result<Option<Arc<Row>>, StoreError>>),
    /// Whether another program wrote since this was last asked.
    ChangedByOthers(RpcReplyPort<bool>),
    /// From the commit's own thread.
    Committed(Result<Vec<Result<(), Refused>>, StoreError>),
    /// From the commit's own thread: it panicked, and this actor is to fail.
    Broken,
}
