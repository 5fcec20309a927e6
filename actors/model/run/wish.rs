//! Work that a run or a flow wants landed.

use crate::{Caller, MergeSettings};

/// Work that is to land.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// It is asked for once under the same key.
    pub key: String,
    pub worker: String,
    pub base: Option<String>,
    pub priority: i32,
    pub settings: MergeSettings,
    /// What its commit is to be called.
    pub subject: Option<String>,
    pub caller: Caller,
}
