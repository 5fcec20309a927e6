//! Directories below the root of a repository that have a folder `.claude` of their own. `claude` loads skills and
//! commands from those that it works in.
//!
//! The directories of a checkout are searched, but not those in which tools put many files. What git tracks in these
//! comes with the repository like everything else, so it is looked up in the index.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::index::{self, Tracked};
use super::place;
use swarm_sys::files::list;

/// Name of the folder.
pub(super) const FOLDER: &str = ".claude";
/// Directory of git, in which nothing is tracked.
const GIT: &str = ".git";
/// Directories that are not searched. `claude` loads nothing from what git ignores; of that, only these are known here.
const NOT_SEARCHED: [&str; 3] = [GIT, "node_modules", FOLDER];

/// Directory of git with the records of worktrees.
const WORKTREES: &str = "worktrees";

/// A directory that is searched.
struct Searched {
    /// Relative to the root.
    dir: PathBuf,
    /// Whether it has an entry `.git`.
    is_checkout: bool,
    /// Whether nothing is left out because the index around it cannot be read.
    is_thorough: bool,
}

/// Returns the directories below `root`, relative to it and sorted. Worktrees are left out: each is a root of its own.
/// Symbolic links to directories are not followed, so that the search ends.
///
/// # Errors
/// Fails if a directory cannot be read for another reason than its permissions, or its name is not UTF-8.
pub(super) fn dirs(root: &Path) -> Result<Vec<String>, String> {
    let mut search = Search { root, found: BTreeSet::new(), waiting: Vec::new() };
    search.waiting.push(Searched { dir: PathBuf::new(), is_checkout: true, is_thorough: false });
    while let Some(Searched { dir, is_checkout, is_thorough }) = search.waiting.pop() {
        let is_thorough = if is_checkout { search.add_repository(&dir)? } else { is_thorough };
        search.list(&dir, is_thorough)?;
    }
    Ok(search.found.into_iter().collect())
}

struct Search<'a> {
    root: &'a Path,
    found: BTreeSet<String>,
    waiting: Vec<Searched>,
}

impl Search<'_> {
    /// Adds what one directory has, and the directories in it that must be searched.
    fn list(&mut self, dir: &Path, is_thorough: bool) -> Result<(), String> {
        let path = self.root.join(dir);
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let listed = match list(&path) {
            // The agent runs as the same user.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => return Ok(()),
            listed => listed.map_err(failed)?,
        };
        for file in listed {
            let name = file.file_name();
            if name == FOLDER && !dir.as_os_str().is_empty() {
                self.add(dir)?;
            }
            let below = dir.join(&name);
            let is_skipped =
                if is_thorough { name == GIT } else { NOT_SEARCHED.iter().any(|skipped| name == *skipped) };
            if is_skipped || !file.file_type().map_err(failed)?.is_dir() {
                continue;
            }
            let git = fs::symlink_metadata(self.root.join(&below).join(GIT)).ok();
            if !git.as_ref().is_some_and(|git| git.is_file() && is_worktree(&self.root.join(&below))) {
                self.waiting.push(Searched { dir: below, is_checkout: git.is_some(), is_thorough });
            }
        }
        Ok(())
    }

    fn add(&mut self, dir: &Path) -> Result<(), String> {
        let name = dir.to_str().ok_or_else(|| format!("{}: name is not UTF-8", self.root.join(dir).display()))?;
        self.found.insert(name.to_owned());
        Ok(())
    }

    /// Adds what the repository around `dir` tracks below it, also in directories that are not searched. Returns whether
    /// these must be searched after all, because only git can read the index.
    fn add_repository(&mut self, dir: &Path) -> Result<bool, String> {
        let path = self.root.join(dir);
        let path = path.canonicalize().unwrap_or(path);
        let Some(top) = crate::root_above(&path) else { return Ok(false) };
        let prefix = path.strip_prefix(top).unwrap_or(Path::new(""));
        let is_wanted = |path: &[u8], is_submodule: bool| is_submodule || has_folder(path);
        let git = place::git_dir_of(top).filter(|git| git.is_dir());
        let Some(tracked) = git.and_then(|git| index::tracked(&git.join("index"), &is_wanted)) else { return Ok(true) };
        for Tracked { path, is_submodule } in tracked {
            let Ok(below) = Path::new(OsStr::from_bytes(&path)).strip_prefix(prefix) else { continue };
            if is_submodule && is_left_out(below) && self.is_checkout(dir, below) {
                self.waiting.push(Searched { dir: dir.join(below), is_checkout: true, is_thorough: false });
            }
            let folders = below.ancestors().filter(|part| part.file_name().is_some_and(|name| name == FOLDER));
            for above in folders.filter_map(Path::parent).map(|above| dir.join(above)) {
                // claude does not load a folder that is not checked out.
                if !above.as_os_str().is_empty() && self.root.join(&above).join(FOLDER).symlink_metadata().is_ok() {
                    self.add(&above)?;
                }
            }
        }
        Ok(false)
    }

    /// Reports whether `below` is a checkout below `dir` that no symbolic link leads to.
    fn is_checkout(&self, dir: &Path, below: &Path) -> bool {
        let place = self.root.join(dir);
        let mut parts = below.ancestors().filter(|part| !part.as_os_str().is_empty());
        parts.all(|part| place.join(part).symlink_metadata().is_ok_and(|meta| meta.is_dir()))
            && place.join(below).join(GIT).symlink_metadata().is_ok()
    }
}

/// Reports whether a path has the folder below its first component.
fn has_folder(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').skip(1).any(|name| name == FOLDER.as_bytes())
}

/// Reports whether a path is not searched.
fn is_left_out(path: &Path) -> bool {
    path.iter().any(|name| NOT_SEARCHED.iter().any(|skipped| name == *skipped))
}

/// Reports whether the file `.git` of `dir` is that of a linked worktree. The record of a submodule, which may be in that of
/// a worktree, does not name a repository.
fn is_worktree(dir: &Path) -> bool {
    let Some(record) = place::git_dir_of(dir) else { return false };
    if record.is_dir() {
        return record.join("commondir").symlink_metadata().is_ok();
    }
    // It was removed, or the repository is elsewhere now.
    record.parent().and_then(Path::file_name).is_some_and(|name| name == WORKTREES)
}
