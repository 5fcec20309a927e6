//! Where the records of a run come from. Records that came with a repository were written by whoever made the commit, and
//! nobody here agreed to what they say.

use std::path::PathBuf;

use swarm_git::repository::{brought, tracked};
use swarm_model::Caller;

use super::home::{ARIAL, Home};

/// The journal, which says which work is left and with which flags.
pub const JOURNAL: [&str; 1] = ["run.jsonl"];
/// All records that decide what a run does, relative to its home.
pub const RECORDS: [&str; 6] = ["run.jsonl", "state.json", "plan.json", "events.jsonl", "attempts", "context"];

/// Returns the path of the first of these records that exists and came with a repository: as a tracked file, in a
/// submodule, or behind a tracked symbolic link. If the home itself is such a submodule or link, it is returned.
///
/// # Errors
/// Returns a message if git cannot tell.
pub fn brought_along(home: &Home, records: &[&str], caller: &Caller) -> Result<Option<PathBuf>, String> {
    let (Some(dir), Some(name)) = (home.path().parent(), home.path().file_name()) else { return Ok(None) };
    if home.path().symlink_metadata().is_err() {
        return Ok(None);
    }
    let name = name.to_str().ok_or_else(|| format!("{} is not valid UTF-8", home.path().display()))?;
    let unknown = |cause| format!("cannot find out whether git tracks {}: {cause}", home.path().display());
    let entries = tracked(dir, name, caller).map_err(unknown)?;
    if entries.iter().any(|entry| entry == name) {
        return Ok(Some(home.path().to_owned()));
    }
    let comes = |record: &&&str| {
        home.path().join(record).symlink_metadata().is_ok() && brought(&entries, &format!("{name}/{record}")).is_some()
    };
    Ok(records.iter().find(comes).map(|record| home.path().join(record)))
}

/// Reports whether this is the home of a repository, and not the directory of a job file's run.
pub fn is_of_repository(home: &Home) -> bool {
    home.path().file_name().is_some_and(|name| name == ARIAL)
}
