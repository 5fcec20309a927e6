//! Directories of a project above a worktree. `claude` also starts the servers of each `.mcp.json` above the directory that
//! it works in, and a commit can bring such a file to where worktrees are.

use std::path::Path;

use super::{CLAUDE, Entry, Project, loaded};

/// Directories of a repository in which worktrees of runs are.
pub(super) const OF_WORKTREES: [&str; 2] = [".arial", ".arial/worktrees"];
/// File of the root of a checkout that counts below it.
const SERVERS: &str = ".mcp.json";

/// Returns the entries of the files that agents of a section may load from above `dir`: in the outermost checkout of the
/// project of `root` that contains it, the file with servers at the top, and everything in the directories below that.
/// Empty if `dir` is in no other checkout of the project.
///
/// # Errors
/// Fails if a directory cannot be found or is not UTF-8, or a file exists and cannot be read.
pub(super) fn files(root: &Path, dir: &Path, section: &str) -> Result<Vec<Entry>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    let (project, dir) = (Project::of(root).map_err(failed)?, dir.canonicalize().map_err(failed)?);
    let is_checkout = |above: &&Path| above.join(".git").symlink_metadata().is_ok();
    let checkouts = dir.ancestors().skip(1).filter(is_checkout);
    let ours = checkouts.filter(|above| Project::of(above).is_ok_and(|found| found == project));
    let Some(top) = ours.last() else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for between in dir.ancestors().skip(1).take_while(|above| *above != top) {
        let name = between.strip_prefix(top).ok().and_then(Path::to_str);
        let name = name.ok_or_else(|| format!("{}: name is not UTF-8", between.display()))?;
        loaded(top, &format!("{name}/"), &[section], &|_| true, &mut found)?;
    }
    if section == CLAUDE {
        loaded(top, "", &[CLAUDE], &|name| name == SERVERS, &mut found)?;
    }
    Ok(found)
}
