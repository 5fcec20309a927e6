//! Record of the conflicts with which a merge has stopped, in the entry of the role's worktree. The turn that resolves
//! them commits later, and then a file that is as the merge has left it is no resolution.

use std::io;

use serde::{Deserialize, Serialize};

use super::{Git, merge_head};
use crate::repository::fault::Fault;
use crate::repository::markers::{self, Conflict, Left};
use crate::worktrees::record as record_file;
use swarm_sys::files::replace_durably;

const RECORD: &str = "swarm-conflicts";

#[derive(Serialize, Deserialize)]
struct Stopped {
    /// Commit that is being merged.
    commit: String,
    left: Vec<(Vec<u8>, Left)>,
}

/// Records what the merge of `commit` has left, and returns its conflicts.
pub(super) fn record(git: &Git, commit: &str) -> Result<Vec<Conflict>, Fault> {
    let conflicts = markers::stopped(&|| git.read(), &git.place.git_dir, &git.place.tree)?;
    let left =
        conflicts.iter().filter_map(|conflict| Some((conflict.path.clone(), conflict.left().cloned()?))).collect();
    let stopped = Stopped { commit: commit.to_owned(), left };
    let text = serde_json::to_vec(&stopped).map_err(|error| Fault::new(error.to_string()))?;
    replace_durably(&git.place.git_dir, RECORD, &text).map_err(Fault::at(&git.place.git_dir))?;
    Ok(conflicts)
}

/// Returns a path among these conflicts that nobody has touched since the merge stopped. `None` also for a merge that the
/// role itself has started.
pub(super) fn untouched(git: &Git, open: &[Conflict]) -> Result<Option<String>, Fault> {
    if open.is_empty() {
        return Ok(None);
    }
    let path = git.place.git_dir.join(RECORD);
    let text = match record_file::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(Fault::at(&path))?,
    };
    let stopped: Stopped = serde_json::from_slice(&text).map_err(|error| Fault::at(&path)(error.into()))?;
    if merge_head(&git.place.git_dir).as_ref() != Some(&stopped.commit) {
        return Ok(None);
    }
    let known = |conflict: &Conflict| {
        let left = stopped.left.iter().find(|(path, _)| *path == conflict.path).map(|(_, left)| left.clone());
        conflict.clone().with(left)
    };
    let stopped: Vec<Conflict> = open.iter().map(known).collect();
    Ok(markers::untouched(&stopped, open, &git.place.tree)?.map(Conflict::shown))
}
