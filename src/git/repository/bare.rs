//! Repair of a repository that says by mistake that it is bare.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use swarm_model::Caller;

use super::cli::Cli;
use super::fault::Fault;
use super::objects;

/// Sets `core.bare` to false in the repository around `dir` if it is true although there is a working tree: `dir` is
/// beside a directory `.git` with an index, and a file of that index exists there. Returns whether it was set.
///
/// # Errors
/// Returns a message if the configuration cannot be read or written.
pub fn repair_bare(dir: &Path, caller: &Caller) -> Result<bool, String> {
    repair(dir, caller).map_err(|fault| fault.cause)
}

fn repair(dir: &Path, caller: &Caller) -> Result<bool, Fault> {
    let cli = Cli::new(caller)?;
    let Some(git_dir) = bare_git_dir(&cli, dir)? else { return Ok(false) };
    let Some(tree) = tree_of(&git_dir, dir) else { return Ok(false) };
    if !has_tracked_files(&cli, &git_dir, tree)? {
        return Ok(false);
    }
    unset(&cli, &git_dir)
}

/// Sets `core.bare` to false in the configuration of a git directory if it is true there. Returns whether it was set: the
/// value may come from elsewhere, for example from the worktree's own configuration.
pub(crate) fn unset(cli: &Cli, git_dir: &Path) -> Result<bool, Fault> {
    let config = git_dir.join("config");
    let call = cli.read(git_dir).args(["config", "--type=bool", "--file"]).arg(&config).arg("core.bare");
    if call.line_if_any()?.as_deref() != Some("true") {
        return Ok(false);
    }
    cli.write(git_dir).args(["config", "--file"]).arg(&config).args(["core.bare", "false"]).run()?;
    Ok(true)
}

/// Returns the git directory of the repository around `dir` if git takes that repository for bare.
fn bare_git_dir(cli: &Cli, dir: &Path) -> Result<Option<PathBuf>, Fault> {
    if objects::discover(cli, dir).is_ok_and(|repo| !repo.is_bare()) {
        return Ok(None);
    }
    // Outside of a repository, and in one of another user, git fails, and so will the start.
    let asked = ["rev-parse", "--is-bare-repository", "--absolute-git-dir"];
    let Ok(said) = cli.read(dir).args(asked).line() else { return Ok(None) };
    Ok(said.strip_prefix("true\n").map(PathBuf::from))
}

/// Returns the directory that contains `.git`, unless `dir` is inside of `.git`.
fn tree_of<'a>(git_dir: &'a Path, dir: &Path) -> Option<&'a Path> {
    let is_inside = dir.canonicalize().is_ok_and(|dir| git_dir.canonicalize().is_ok_and(|git| dir.starts_with(git)));
    git_dir.parent().filter(|_| git_dir.ends_with(".git") && !is_inside)
}

/// Reports whether a file of the index of `git_dir` exists in `tree`.
pub(crate) fn has_tracked_files(cli: &Cli, git_dir: &Path, tree: &Path) -> Result<bool, Fault> {
    let index = git_dir.join("index");
    if !index.try_exists().map_err(Fault::at(&index))? {
        return Ok(false);
    }
    let call = cli.read(tree).env("GIT_DIR", git_dir).env("GIT_WORK_TREE", tree).args(["-c", "core.bare=false"]);
    let listed = call.args(["ls-files", "-z"]).run()?;
    let mut paths = listed.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    Ok(paths.any(|path| fs::symlink_metadata(tree.join(OsStr::from_bytes(path))).is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Fixture, text};

    fn is_bare(fix: &Fixture, git_dir: &Path) -> String {
        let config = git_dir.join("config");
        text(&fix.at(&fix.root, &["config", "--file", config.to_str().unwrap(), "core.bare"]))
    }

    #[test]
    fn a_repository_with_a_working_tree_is_repaired() {
        let fix = Fixture::new();
        let below = fix.repo.join("below");
        fs::create_dir(&below).unwrap();
        assert_eq!(repair_bare(&below, &fix.caller), Ok(false), "it is not bare");
        fix.git(&["config", "core.bare", "true"]);
        assert!(fix.refusal("w", &fix.asked()).0.contains("bare repository"));
        assert_eq!(repair_bare(&fix.repo.join(".git"), &fix.caller), Ok(false), "this is no working tree");
        assert_eq!(repair_bare(&below, &fix.caller), Ok(true));
        assert_eq!(is_bare(&fix, &fix.repo.join(".git")), "false");
        assert_eq!(repair_bare(&below, &fix.caller), Ok(false));
        fix.made("w");
    }

    #[test]
    fn a_repository_without_an_evident_working_tree_stays_bare() {
        let fix = Fixture::new();
        // Linked worktrees beside a bare `.git`.
        fs::create_dir(fix.root.join("project")).unwrap();
        let git_dir = fix.root.join("project/.git");
        fix.at(&fix.root, &["clone", "-q", "--bare", "repo", git_dir.to_str().unwrap()]);
        fs::write(fix.root.join("project/f"), "of somebody else\n").unwrap();
        assert_eq!(repair_bare(&fix.root.join("project"), &fix.caller), Ok(false), "no index");
        // A tool has left an index, and none of its files exists here.
        fs::remove_file(fix.root.join("project/f")).unwrap();
        fs::copy(fix.repo.join(".git/index"), git_dir.join("index")).unwrap();
        assert_eq!(repair_bare(&fix.root.join("project"), &fix.caller), Ok(false), "no tracked file");
        assert_eq!(is_bare(&fix, &git_dir), "true");
        assert_eq!(repair_bare(&fix.root, &fix.caller), Ok(false), "no repository");
    }
}
