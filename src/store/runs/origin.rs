//! Where the records of a run come from. Records that came with a repository were written by whoever made the commit, and
//! nobody here agreed to what they say. The same is true of a journal that appeared in a worktree: an agent works there.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use swarm_git::repository::{brought, tracked};
use swarm_model::Caller;
use swarm_sys::files::replace_durably;
use swarm_sys::paths::{Paths, digest};

use super::home::{self, ARIAL, Home};
use super::registration::is_under_way;

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

/// Remembers that the journal in this home counts, if the home is in a worktree: a run begins there, before its journal is
/// written, or a person says so.
///
/// # Errors
/// Returns any I/O error.
pub fn record(paths: &Paths, home: &Home) -> io::Result<()> {
    let Some(place) = worktree_of(paths, home) else { return Ok(()) };
    home::make_all(&paths.begun())?;
    replace_durably(&paths.begun(), &name_of(&place), place.as_os_str().as_bytes())
}

/// Returns the path of the journal if it is in a worktree in which this state directory began no run. In the main checkout,
/// where agents have no business, every journal counts.
pub fn foreign(paths: &Paths, home: &Home) -> Option<PathBuf> {
    let place = worktree_of(paths, home).filter(|_| home.journal().symlink_metadata().is_ok())?;
    let is_known = paths.begun().join(name_of(&place)).exists() || is_under_way(paths, home);
    (!is_known).then(|| home.journal())
}

/// Returns the checkout of a home if it is anything but a main one: git made it as a worktree, or it is inside of the
/// worktree of a run, where an agent may make whole repositories.
fn worktree_of(paths: &Paths, home: &Home) -> Option<PathBuf> {
    let root = home.path().parent().filter(|_| is_of_repository(home))?;
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    let runs = paths.runs().canonicalize().unwrap_or_else(|_| paths.runs());
    let is_of_run = |above: &Path| {
        let home = above.parent().filter(|_| above.ends_with("worktrees"));
        home.is_some_and(|home| home.ends_with(ARIAL) || home.parent() == Some(&runs))
    };
    let is_main = root.join(".git").symlink_metadata().is_ok_and(|git| git.is_dir());
    (!is_main || root.ancestors().any(is_of_run)).then_some(root)
}

fn name_of(place: &Path) -> String {
    digest(place.as_os_str().as_bytes(), 8)
}

/// Reports whether this is the home of a repository, and not the directory of a job file's run.
pub fn is_of_repository(home: &Home) -> bool {
    home.path().file_name().is_some_and(|name| name == ARIAL)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_journal_in_a_worktree_counts_only_if_a_run_began_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path().join("state"));
        let at = |name: &str, git: &str| {
            let root = dir.path().join(name);
            fs::create_dir_all(root.join(ARIAL)).expect("made");
            if git.is_empty() {
                fs::create_dir(root.join(".git")).expect("made");
            } else {
                fs::write(root.join(".git"), git).expect("written");
            }
            Home::of(&root)
        };
        let link = "gitdir: /r/.git/worktrees/w";
        let homes = [
            (at("main", ""), false),
            (at("linked", link), true),
            (at("main/.arial/worktrees/a", link), true),
            (at("main/.arial/worktrees/a/own", ""), true),
            (at("state/run/0123/worktrees/a", ""), true),
            (Home::new(dir.path().join("state/run/0123")), false),
        ];
        for (home, is_worktree) in &homes {
            assert_eq!(foreign(&paths, home), None, "nothing to continue");
            fs::write(home.journal(), "{}").expect("written");
            assert_eq!(foreign(&paths, home).is_some(), *is_worktree, "{home:?}");
        }
        for (home, is_worktree) in &homes {
            record(&paths, home).expect("recorded");
            assert_eq!(foreign(&paths, home), None, "{home:?}");
            assert_eq!(paths.begun().join(name_of(home.path().parent().expect("has one"))).exists(), *is_worktree);
        }
    }
}
