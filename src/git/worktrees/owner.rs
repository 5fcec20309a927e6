//! Records in a worktree's administrative directory for which state directory it was created.
//! A worktree that merely lies next to ours, or that another state directory created, must not be
//! removed unasked.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::admin;
use crate::repository::holders;

const MARK: &str = "swarm-made";
/// Minimum age of a leftover worktree. A start with the user's commands takes at most ten minutes.
const AGE_MIN: Duration = Duration::from_secs(1800);

/// Records the owner of a worktree. A worktree without this record is never removed unasked.
pub(crate) fn record_owner(common: &Path, tree: &Path, state_dir: &Path) {
    if let Ok(Some(entry)) = admin::entry_of(common, tree) {
        let _ = fs::write(entry.join(MARK), state_dir.as_os_str().as_encoded_bytes());
    }
}

/// Returns the state directory that created the worktree, and the age of that record.
fn read_owner(tree: &Path, base_repo: &Path) -> Option<(PathBuf, Duration)> {
    let common = admin::common_dir(base_repo).ok()?;
    let mark = admin::entry_of(&common, tree).ok()??.join(MARK);
    let age = SystemTime::now().duration_since(fs::metadata(&mark).ok()?.modified().ok()?).ok()?;
    Some((PathBuf::from(fs::read_to_string(&mark).ok()?), age))
}

/// Reports whether a worktree was certainly created for this state directory, by a start that
/// ended long ago, and no process runs in it.
pub fn is_abandoned_by(tree: &Path, base_repo: &Path, state_dir: &Path) -> bool {
    let is_here = |maker: &Path| admin::resolved(maker) == admin::resolved(state_dir);
    let is_ours = |(maker, age): (PathBuf, Duration)| is_here(&maker) && age >= AGE_MIN;
    read_owner(tree, base_repo).is_some_and(is_ours) && !holders::is_any_process_in(tree)
}
