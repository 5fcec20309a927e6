//! Whether this process runs below a worker, and therefore perhaps on behalf of an agent.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use crate::api::peer;
use swarm_model::FlowPlace;
use swarm_store::flows::registered::is_run;
use swarm_sys::paths::Paths;
use swarm_sys::procfs;

/// Maximum number of ancestors that are examined.
const ANCESTORS_MAX: usize = 4096;

/// Returns the worker that this process runs below, or whose work it verifies, resolves or sets up, as `worker 'NAME'`.
/// `None` if there is none. If the supervisor is in a process namespace above or beside that of this process, so may be
/// such a worker, and this process cannot see it: then the answer says so. The shim of a worker is an ancestor of its processes, because those that lose their parent become its
/// children. A process that has left the shim may still have the environment of the worker.
pub fn worker_above() -> Option<String> {
    above(|_| false)
}

/// Like [`worker_above`], for a flow: a worker counts also if the flow is run in its state directory, whatever
/// configuration directory this process names.
pub fn worker_above_flow(place: &FlowPlace) -> Option<String> {
    above(|paths| is_run(paths, place))
}

/// Like [`worker_above`], for requests in a state directory: a worker of that directory counts as well, whatever
/// configuration directory this process names.
pub fn worker_above_in(state: &Paths) -> Option<String> {
    above(|theirs| is_same_place(theirs.root(), state.root()))
}

/// Returns the worker above this process that uses the same configuration directory, or whose state directory
/// `concerns` the caller.
fn above(concerns: impl Fn(&Paths) -> bool) -> Option<String> {
    let (mut found, mut pid) = (false, i32::try_from(std::process::id()).ok()?);
    for _ in 0..ANCESTORS_MAX {
        let Some(parent) = procfs::stat(pid).map(|stat| stat.parent).filter(|parent| *parent > 1) else { break };
        pid = parent;
        if let Some(worker) = worker_of_shim(pid).or_else(|| work_of_runner(pid)) {
            found = true;
            if records_here(pid) || state_of_shim(pid).is_some_and(|paths| concerns(&paths)) {
                return Some(shown(&worker));
            }
        }
    }
    let is_marked = !found && std::env::var_os("SWARM_TOKEN").is_some();
    if is_marked {
        return Some(shown(&std::env::var("SWARM_WORKER").unwrap_or_default()));
    }
    let places = [Paths::from_env().ok(), Paths::of_home().ok()];
    let is_hidden = places.iter().flatten().any(peer::is_supervisor_hidden);
    is_hidden.then(|| "a process in another process namespace than the supervisor".to_owned())
}

fn shown(worker: &str) -> String {
    format!("worker '{worker}'")
}

/// Returns the worker of a process that is a shim.
fn worker_of_shim(pid: i32) -> Option<String> {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut words = words.split(|byte| *byte == 0).skip(1);
    let dir = words.next().filter(|verb| *verb == b"__shim").and_then(|_| words.next())?;
    let leaf = Path::new(OsStr::from_bytes(dir)).file_name()?.to_string_lossy().into_owned();
    // The directory of a worker is named NAME.GENERATION.
    Some(leaf.rsplit_once('.').map_or_else(|| leaf.clone(), |(name, _)| name.to_owned()))
}

/// Returns the name of the work that a process runs a command for: a verification or a resolver of the merge queue, or a
/// hook of a worktree. What it executes may have been written by the worker, although the command itself was agreed to.
fn work_of_runner(pid: i32) -> Option<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    words.split(|byte| *byte == 0).nth(1).filter(|verb| *verb == b"__runner")?;
    // Commands for notifications have neither: they are those of a person.
    let leaf = |tree: OsString| PathBuf::from(tree).file_name().map(OsStr::to_owned);
    let name = variable(pid, "SWARM_MERGE_NAME").or_else(|| leaf(variable(pid, "SWARM_WORKTREE")?))?;
    Some(name.to_string_lossy().into_owned())
}

/// Returns a variable that is not empty from the environment with which a process was started.
fn variable(pid: i32, name: &str) -> Option<OsString> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let of = |pair: &[u8]| Some(pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?.to_owned());
    let value = environment.split(|byte| *byte == 0).find_map(of).filter(|value| !value.is_empty());
    value.map(OsString::from_vec)
}

/// Returns the state directory of a shim, whose working directory is `w/NAME.GENERATION` there.
fn state_of_shim(pid: i32) -> Option<Paths> {
    let dir = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    Some(Paths::new(dir.parent()?.parent()?))
}

/// Reports whether a process uses the same configuration directory, as far as it can be told. The tests of a program
/// that runs below a worker may have directories of their own.
fn records_here(pid: i32) -> bool {
    let of = |name: &str| variable(pid, name).map(PathBuf::from);
    let theirs = swarm_config::user_path_in(of("XDG_CONFIG_HOME"), of("HOME"));
    let (Some(theirs), Some(ours)) = (theirs, swarm_config::user_path()) else { return true };
    is_same_place(theirs.parent().unwrap_or(&theirs), ours.parent().unwrap_or(&ours))
}

/// Reports whether two directories, which need not exist yet, are the same one, however they are named. In doubt they
/// are.
fn is_same_place(one: &Path, other: &Path) -> bool {
    match (place_of(one), place_of(other)) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    }
}

/// Returns device and inode of the nearest directory that exists, and the path below it. `None` if it cannot be told
/// what the path leads to.
fn place_of(dir: &Path) -> Option<((u64, u64), PathBuf)> {
    for above in dir.ancestors() {
        match fs::metadata(above) {
            Ok(meta) => {
                let below = dir.strip_prefix(above).ok()?;
                let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
                return is_plain.then(|| ((meta.dev(), meta.ino()), below.to_owned()));
            }
            // A link to nowhere may lead anywhere later.
            Err(error) if error.kind() == io::ErrorKind::NotFound && above.symlink_metadata().is_err() => {}
            Err(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn one_directory_has_many_names() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        for name in ["a/config", "b"] {
            fs::create_dir_all(at(name)).expect("made");
        }
        symlink("a/config", at("link")).expect("linked");
        symlink("nowhere", at("dangling")).expect("linked");
        for same in
            ["b/../a/config/swarm", "link/swarm", "a/./config/swarm", "none/../a/config/swarm", "dangling/swarm"]
        {
            assert!(is_same_place(&at("a/config/swarm"), &at(same)), "{same}");
        }
        for other in ["b/swarm", "a/swarm", "a/config", "none/swarm"] {
            assert!(!is_same_place(&at("a/config/swarm"), &at(other)), "{other}");
        }
    }
}
