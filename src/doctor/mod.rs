//! What is wrong with a state directory, its workers' leftovers and the machine: each
//! check looks, and says what it found, why that matters and what helps. Nothing is
//! changed but by [`Repair::apply`], which looks once more before it does.
//!
//! ```text
//! machine · store · processes · trees -> findings -> told, or repaired with consent
//! ```

mod finding;
mod machine;
mod processes;
mod repair;
mod store;
mod trees;

use std::path::PathBuf;

use swarm_model::Caller;

pub use self::finding::{Finding, Severity};
pub use self::repair::Repair;
use crate::adapters::views::{self, Registry};
use crate::paths::Paths;

/// What is looked at.
pub struct Patient {
    pub paths: Paths,
    pub caller: Caller,
    /// The registry, or why it cannot be read.
    registry: Result<Registry, String>,
    /// The repository that the caller is in.
    root: Option<PathBuf>,
}

/// A check by its name.
type Check = (&'static str, fn(&Patient) -> Vec<Finding>);

/// In the order in which they are told: without the first ones the rest means little.
const CHECKS: [Check; 12] = [
    ("disk", machine::disk),
    ("clock", machine::clock),
    ("git", machine::git),
    ("tmux", machine::tmux),
    ("login", machine::login),
    ("configuration", machine::configuration),
    ("supervisor", store::supervisor),
    ("registry", store::registry),
    ("modes", store::modes),
    ("leftovers", store::leftovers),
    ("processes", processes::processes),
    ("worktrees", trees::worktrees),
];

pub fn checks() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|(name, _)| *name)
}

impl Patient {
    pub fn new(paths: Paths, caller: Caller) -> Self {
        let registry = views::load(&paths).map_err(|refusal| refusal.cause);
        let root = crate::config::root_above(std::path::Path::new(&caller.cwd)).map(std::path::Path::to_owned);
        Self { paths, caller, registry, root }
    }

    /// What is wrong, the first to be mended first.
    pub fn findings(&self) -> Vec<Finding> {
        CHECKS.iter().flat_map(|(_, check)| check(self)).collect()
    }
}
