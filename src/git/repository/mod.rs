//! Access to a repository: the git command, libgit2, the index, locks, and parsing of git's output.

pub(crate) mod bare;
pub(crate) mod borrowed;
pub mod cli;
pub(crate) mod content;
pub(crate) mod deletion;
pub(crate) mod draft;
pub(crate) mod durable;
pub(crate) mod exclude;
pub(crate) mod exit;
mod explicit;
pub(crate) mod fault;
pub(crate) mod gc_lock;
mod held;
pub(crate) mod holders;
pub(crate) mod index;
pub(crate) mod listed;
pub(crate) mod lock;
pub(crate) mod markers;
pub(crate) mod objects;
pub(crate) mod parse;
pub(crate) mod pipes;
pub(crate) mod plain_ref;
pub(crate) mod query;
pub(crate) mod recorded;
pub(crate) mod shared;
pub(crate) mod site;
pub(crate) mod stale;
mod tracked;
pub(crate) mod version;
pub(crate) mod writer;

pub use bare::repair_bare;
pub use exclude::{exclude, exclude_at_root, exclude_files};
pub use listed::{Listed, default_dir, main_tree, worktrees_of};
pub use query::{
    branch_tip, common_dir, contains, content_in, drop_landed_branch, has_branch, is_branch_name, is_usable, lines,
    lines_in, remove_landed_branch,
};
pub use site::{Site, root, site};
pub use stale::{remove_stale_lock, stale_locks};
pub use tracked::{brought, tracked};
