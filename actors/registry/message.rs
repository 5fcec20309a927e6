//! Messages of the registry actor.

use std::sync::Arc;

use ractor::RpcReplyPort;

use super::Listing;
use super::error::{Refused, RegistryError, StoreError};
use super::machine::Mutation;
use swarm_model::Row;

/// Message to the registry actor.
#[derive(Debug)]
pub enum RegistryMessage {
    /// Changes one row. Answered once the change is durable.
    Mutate(Mutation, RpcReplyPort<Result<(), RegistryError>>),
    /// As `Mutate`, for a change that may wait a moment for others.
    MutatePatiently(Mutation, RpcReplyPort<Result<(), RegistryError>>),
    /// Sent after that moment.
    Due,
    /// Returns all rows that are on disk now.
    List(RpcReplyPort<Result<Listing, StoreError>>),
    /// Returns the row of this name, or `None`.
    Find(String, RpcReplyPort<Result<Option<Arc<Row>>, StoreError>>),
    /// Asks whether another program has written the file since the previous request.
    ChangedByOthers(RpcReplyPort<bool>),
    /// Records that no more changes follow. Answered once that is done or has failed.
    Close(RpcReplyPort<()>),
    /// Sent by the commit's thread when the commit ends.
    Committed(Result<Vec<Result<(), Refused>>, StoreError>),
    /// Sent by the commit's thread if the commit panicked. The actor then fails.
    Broken,
}
