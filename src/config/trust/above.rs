//! Directories of a project above a worktree. `claude` also starts the servers of each `.mcp.json` above the directory that
//! it works in. `gemini` and `qwen` take variables from the nearest directory that has a file of them. A commit can bring
//! such a file to where worktrees are, and to the checkout around them. In a linked worktree, `claude` also loads local
//! settings, skills and commands of the main checkout, wherever that is, and `codex` its hooks.

use std::path::Path;

use super::{CLAUDE, CODEX, Entry, GEMINI, Project, QWEN, VARIABLES, loaded};

/// Directories of a repository in which worktrees of runs are.
pub(super) const OF_WORKTREES: [&str; 2] = [".arial", ".arial/worktrees"];
/// File of the root of a checkout that counts below it, for `claude`.
const SERVERS: &str = ".mcp.json";

/// Files of the main checkout with hooks that `codex` executes in a linked worktree.
const HOOKS: [&str; 2] = [".codex/hooks.json", ".codex/config.toml"];

/// Returns the entries of the files that agents of a section may load from above `dir`: in the outermost checkout of the
/// project of `root` that contains it, the files with servers or variables at the top, and everything in the directories
/// below that. For `claude`, also those of the main checkout, and for `codex` those with its hooks. Empty if `dir` is no worktree of the project, and in no other
/// checkout of it.
///
/// # Errors
/// Fails if a directory cannot be found or is not UTF-8, or a file exists and cannot be read.
pub(super) fn files(root: &Path, dir: &Path, section: &str) -> Result<Vec<Entry>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    let (project, dir) = (Project::of(root).map_err(failed)?, dir.canonicalize().map_err(failed)?);
    let is_checkout = |above: &&Path| above.join(".git").symlink_metadata().is_ok();
    let checkouts = dir.ancestors().skip(1).filter(is_checkout);
    let ours = checkouts.filter(|above| Project::of(above).is_ok_and(|found| found == project));
    let mut found = Vec::new();
    let main = Path::new(project.shown());
    if [CLAUDE, CODEX].contains(&section) && main != dir && Project::of(&dir).is_ok_and(|found| found == project) {
        loaded(main, "", &[section], &|_| true, &mut found)?;
        found.retain(|entry| section == CLAUDE || HOOKS.contains(&entry.key.as_str()));
    }
    let Some(top) = ours.last() else { return Ok(found) };
    for between in dir.ancestors().skip(1).take_while(|above| *above != top) {
        let name = between.strip_prefix(top).ok().and_then(Path::to_str);
        let name = name.ok_or_else(|| format!("{}: name is not UTF-8", between.display()))?;
        loaded(top, &format!("{name}/"), &[section], &|_| true, &mut found)?;
    }
    loaded(top, "", &[section], &|name| counts_below(section, name), &mut found)?;
    Ok(found)
}

/// Reports whether agents of a section load a file of the root of a checkout also if they work in a directory below it.
fn counts_below(section: &str, name: &str) -> bool {
    match section {
        CLAUDE => name == SERVERS,
        GEMINI | QWEN => name.ends_with(VARIABLES),
        // aider looks in the root of its own worktree.
        _ => false,
    }
}
