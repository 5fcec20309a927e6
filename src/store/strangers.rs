//! Users of a worktree that the rows of this state directory do not name: workers of another state directory, and agents
//! that another program runs.

use std::path::{Path, PathBuf};

use nix::errno::Errno;
use swarm_actors::registry::StoreError;
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
    let session = sessions::check(tree).map_err(|error| {
        unread(error.raw_os_error(), format!("cannot read the session in {}: {error}", tree.display()))
    })?;
    if recovery::is_alive(&session.facts(None)) {
        return Err(WorktreeError::InUse(format!("a running agent: {}", sessions::evidence(&session, tree))));
    }
    Ok(())
}

/// Checks that a state directory has no worker in a worktree. One that does not exist has none.
fn check_maker(tree: &Path, maker: &Path) -> Result<(), WorktreeError> {
    let paths = Paths::new(maker);
    let untold = |cause: String| format!("cannot tell which workers of {} use the worktree: {cause}", maker.display());
    let unknown = |cause: String| WorktreeError::Unknown(untold(cause));
    let trees = [tree.to_owned(), real(tree)];
    let used_by = |row: &Row| trees.iter().any(|tree| row.works_in(tree));
    let in_use =
        |name: &str| Err(WorktreeError::InUse(format!("worker '{name}' of the state directory {}", maker.display())));
    // Before the rows: a start has a contract until its row is written.
    if let Some(row) = starting::rows(&paths).iter().find(|row| used_by(row)) {
        return in_use(&row.name);
    }
    let refused = |error: StoreError| {
        let errno = error.errno().filter(|errno| !is_private(*errno));
        unread(errno, untold(error.to_string()))
    };
    match store::load(&paths.state()).map_err(refused)? {
        Loaded::Absent => Ok(()),
        Loaded::Damaged(cause) => Err(unknown(cause)),
        Loaded::Table(table) => table.entries.iter().try_for_each(|entry| match &entry.row {
            Ok(row) if used_by(row) => in_use(&row.name),
            Ok(_) => Ok(()),
            Err(_) => Err(unknown("a row of its registry cannot be read".to_owned())),
        }),
    }
}

/// Returns the error of a worktree about which something cannot be read. A link in place of a file is a fact about the
/// worktree, which must stay then. That a system call failed says nothing about it.
fn unread(errno: Option<i32>, cause: String) -> WorktreeError {
    match errno.map(Errno::from_raw) {
        None | Some(Errno::ELOOP | Errno::ENOTDIR | Errno::EISDIR) => WorktreeError::Unknown(cause),
        Some(_) => WorktreeError::Tool(cause),
    }
}

/// Reports whether the system refused to read what belongs to another user. A later try is refused too.
fn is_private(errno: i32) -> bool {
    matches!(Errno::from_raw(errno), Errno::EACCES | Errno::EPERM)
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_call_that_failed_says_nothing_about_the_worktree_and_a_link_does() {
        use Errno::{EACCES, EIO, EISDIR, ELOOP, EMFILE, ENFILE, ENOLCK, ENOMEM, ENOTDIR};
        for errno in [EACCES, EMFILE, ENFILE, ENOMEM, EIO, ENOLCK] {
            assert_eq!(unread(Some(errno as i32), "why".to_owned()), WorktreeError::Tool("why".to_owned()), "{errno}");
        }
        for errno in [Some(ELOOP as i32), Some(ENOTDIR as i32), Some(EISDIR as i32), None] {
            assert_eq!(unread(errno, "why".to_owned()), WorktreeError::Unknown("why".to_owned()), "{errno:?}");
        }
    }
}
