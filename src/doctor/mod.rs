//! Checks of a state directory, of leftovers of its workers and of the machine. Each check reports what it found, why
//! that matters and what helps. Only [`Repair::apply`] changes anything, after checking the condition again.
//!
//! ```text
//! machine · trust · store · processes · runs · trees -> findings -> reported, or repaired with consent
//! ```

mod finding;
mod machine;
mod processes;
mod repair;
mod runs;
mod store;
mod trees;
mod trust;

use std::path::PathBuf;

use swarm_model::Caller;

pub use self::finding::{Finding, Severity};
pub use self::repair::Repair;
use swarm_store::views::{self, Registry};
use swarm_sys::paths::Paths;

/// Subject of the checks.
pub struct Patient {
    pub paths: Paths,
    pub caller: Caller,
    /// Registry, or the reason why it cannot be read.
    registry: Result<Registry, String>,
    /// Root of the caller's repository.
    root: Option<PathBuf>,
}

/// Name and function of a check.
type Check = (&'static str, fn(&Patient) -> Vec<Finding>);

/// All checks in the order of their reports: later findings may be consequences of earlier ones.
const CHECKS: [Check; 16] = [
    ("disk", machine::disk),
    ("clock", machine::clock),
    ("git", machine::git),
    ("tmux", machine::tmux),
    ("login", machine::login),
    ("configuration", machine::configuration),
    ("trust", trust::trust),
    ("supervisor", store::supervisor),
    ("registry", store::registry),
    ("queues", store::queues),
    ("modes", store::modes),
    ("leftovers", store::leftovers),
    ("processes", processes::processes),
    ("runs", runs::runs),
    ("events", runs::events),
    ("worktrees", trees::worktrees),
];

pub fn checks() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|(name, _)| *name)
}

impl Patient {
    pub fn new(paths: Paths, caller: Caller) -> Self {
        let registry = views::load(&paths).map_err(|refusal| refusal.cause);
        let root = swarm_config::root_above(std::path::Path::new(&caller.cwd)).map(std::path::Path::to_owned);
        Self { paths, caller, registry, root }
    }

    /// Runs all checks and returns their findings, most fundamental first.
    pub fn findings(&self) -> Vec<Finding> {
        CHECKS.iter().flat_map(|(_, check)| check(self)).collect()
    }
}
