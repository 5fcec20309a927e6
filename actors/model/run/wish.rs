//! Request of a run or flow to land work.

use crate::{Caller, MergeSettings, RowWorktree};

/// Request to land the work of a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// Key of the queue item. A repeated request with the same key adds no second item.
    pub key: String,
    pub worker: String,
    /// Worktree of the work if no worker of that name is known any more. `None`: the name is that of a branch then.
    pub place: Option<RowWorktree>,
    /// Base branch. `None`: the one recorded when the worker was started.
    pub base: Option<String>,
    /// Items with a higher priority go first.
    pub priority: i32,
    pub settings: MergeSettings,
    /// Subject of the commit for uncommitted work. `None`: the worker's name.
    pub subject: Option<String>,
    /// Whether the requester starts the worker again if the worker can fix what keeps its work from landing. Such work
    /// is refused with [`RefusalKind::Worktree`](crate::RefusalKind::Worktree); otherwise it is queued and waits.
    pub mends: bool,
    pub caller: Caller,
}
