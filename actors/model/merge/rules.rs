//! Rules by which the items of a merge queue are built, verified and landed.

use serde::{Deserialize, Serialize};

/// Form in which an item lands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// A merge commit on the base.
    #[default]
    Merge,
    /// One commit with all changes.
    Squash,
    /// The commits of the item, one by one, on top of the base.
    Rebase,
}

/// Rules by which items are built, verified and landed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Maximum number of items that are verified together. Without a verification, all queued items land together.
    pub batch: usize,
    /// Verify each item of a batch, not only the last.
    pub verify_each: bool,
    /// Command that verifies a commit. `None`: nothing is verified.
    pub verify: Option<String>,
    /// Time limit of a verification, and of a resolver, in milliseconds.
    pub timeout_ms: u64,
    /// Command that resolves conflicts. `None`: conflicts wait for a person.
    pub resolver: Option<String>,
    /// Maximum number of tries of the resolver for one item.
    pub resolver_tries: u32,
    pub strategy: Strategy,
    /// Base checkout of a repository that has no main worktree beside its `.git`, as it was when the item was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkout: Option<String>,
}

/// Default of [`Rules::timeout_ms`].
pub const TIMEOUT_MS: u64 = 30 * 60 * 1000;
/// Default of [`Rules::resolver_tries`].
pub const RESOLVER_TRIES: u32 = 2;

impl Default for Rules {
    fn default() -> Self {
        Self {
            batch: 1,
            verify_each: false,
            verify: None,
            timeout_ms: TIMEOUT_MS,
            resolver: None,
            resolver_tries: RESOLVER_TRIES,
            strategy: Strategy::Merge,
            checkout: None,
        }
    }
}
