//! Users of a worktree that the rows of this state directory do not name: workers of another state directory, and agents
//! that another program runs.

use std::path::{Path, PathBuf};

use swarm_actors::registry::store::{self, Loaded};
use swarm_actors::sessions::recovery;
use swarm_model::Row;
use swarm_ports::WorktreeError;
use swarm_sys::paths::Paths;

use crate::{sessions, starting};

/// Checks that nobody else uses a worktree. `entry` is git's record of it.
///
/// # Errors
/// Fails if the worktree was made for another state directory that has a worker in it, ended or not; if an agent is alive
/// in its session; or if that cannot be read.
pub fn check(tree: &Path, entry: &Path, state_dir: &Path) -> Result<(), WorktreeError> {
    if let Some(maker) = swarm_git::worktrees::maker(entry).filter(|maker| real(maker) != real(state_dir)) {
        check_maker(tree, &maker)?;
    }
    let unknown = |error| WorktreeError::Unknown(format!("cannot read the session in {}: {error}", tree.display()));
    let session = sessions::check(tree).map_err(unknown)?;
    if recovery::is_alive(&session.facts(None)) {
        return Err(WorktreeError::InUse(format!("a running agent: {}", sessions::evidence(&session))));
    }
    Ok(())
}

/// Checks that a state directory has no worker in a worktree. One that does not exist has none.
fn check_maker(tree: &Path, maker: &Path) -> Result<(), WorktreeError> {
    let paths = Paths::new(maker);
    let unknown = |cause: String| {
        WorktreeError::Unknown(format!("cannot tell which workers of {} use the worktree: {cause}", maker.display()))
    };
    let trees = [tree.to_owned(), real(tree)];
    let used_by = |row: &Row| trees.iter().any(|tree| row.works_in(tree));
    let in_use =
        |name: &str| Err(WorktreeError::InUse(format!("worker '{name}' of the state directory {}", maker.display())));
    // Before the rows: a start has a contract until its row is written.
    if let Some(row) = starting::rows(&paths).iter().find(|row| used_by(row)) {
        return in_use(&row.name);
    }
    match store::load(&paths.state()).map_err(|error| unknown(error.to_string()))? {
        Loaded::Absent => Ok(()),
        Loaded::Damaged(cause) => Err(unknown(cause)),
        Loaded::Table(table) => table.entries.iter().try_for_each(|entry| match &entry.row {
            Ok(row) if used_by(row) => in_use(&row.name),
            Ok(_) => Ok(()),
            Err(_) => Err(unknown("a row of its registry cannot be read".to_owned())),
        }),
    }
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
