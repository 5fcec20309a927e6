//! Which state directory a worktree was made for, in git's record of it: what only lies where
//! ours do, or was made by another swarm, is nobody's to remove for us.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::admin;
use crate::repository::holders;

const MARK: &str = "swarm-made";
/// A start with commands of the user takes ten minutes at most.
const AGE_MIN: Duration = Duration::from_secs(1800);

/// Notes for whom it was made. Without the note it is never removed unasked.
pub(crate) fn note(tree: &Path, state_dir: &Path) {
    if let Ok(Some(entry)) = admin::link_of(tree) {
        let _ = fs::write(entry.join(MARK), state_dir.as_os_str().as_encoded_bytes());
    }
}

/// For whom it was made, and how long ago.
fn made(tree: &Path) -> Option<(PathBuf, Duration)> {
    let mark = admin::link_of(tree).ok()??.join(MARK);
    let age = SystemTime::now().duration_since(fs::metadata(&mark).ok()?.modified().ok()?).ok()?;
    Some((PathBuf::from(fs::read_to_string(&mark).ok()?), age))
}

/// Whether it was certainly made for this state directory, by a start that is long over, and
/// no process stands in it.
pub fn is_left_by(tree: &Path, state_dir: &Path) -> bool {
    let is_here = |maker: &Path| admin::resolved(maker) == admin::resolved(state_dir);
    let is_ours = |(maker, age): (PathBuf, Duration)| is_here(&maker) && age >= AGE_MIN;
    made(tree).is_some_and(is_ours) && !holders::is_anybody_in(tree)
}
