//! Whether this process runs below a worker, and therefore perhaps on behalf of an agent.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use crate::api::orphans::Sessions;
use crate::api::peer;
use crate::processes::{attempt, near};
use swarm_model::FlowPlace;
use swarm_store::flows::registered::is_run;
use swarm_store::flows::turns;
use swarm_store::runs::order;
use swarm_sys::paths::Paths;
use swarm_sys::procfs;

/// Maximum number of ancestors that are examined.
const ANCESTORS_MAX: usize = 4096;

const SUPERVISOR: &str = "__supervisor";

/// Internal processes below which no person types: what they start is written by agents, or prepares their work. What
/// serves another machine (`__stdio` and those below it) is not among them, because a person there types the verb.
const OURS: [&str; 9] = [
    SUPERVISOR,
    "__guard",
    "__forkserver",
    "__resolve",
    order::VERB,
    turns::VERB,
    attempt::GATE,
    near::CARRY,
    near::REACH,
];

/// Returns the worker that this process runs below, or whose work it verifies, resolves or sets up, as `worker 'NAME'`.
/// `None` if there is none. The shim of a worker is an ancestor of its processes, because those that lose their parent
/// become its children. A process that has left the shim may still have the environment of the worker. If the shim was
/// killed, its processes are still in the session of the worker, unless they have left it.
///
/// A process below the supervisor, or below a git that a verb of `swarm` has started, counts as well, and the answer says so: a
/// filter or a hook of git may be a script that some worker wrote. A tmux server that the supervisor
/// started is no child of it any more, so that only the shims of its panes count. If the supervisor is in a process
/// namespace above or beside that of this process, so may be a worker, and this process cannot see it: then the answer
/// says that.
pub fn worker_above() -> Option<String> {
    above(own(), |_| false)
}

/// Like [`worker_above`], for a flow: a worker counts also if the flow is run in its state directory, whatever
/// configuration directory this process names.
pub fn worker_above_flow(place: &FlowPlace) -> Option<String> {
    above(own(), |paths| is_run(paths, place))
}

/// Like [`worker_above`], for requests in a state directory: a worker of that directory counts as well, whatever
/// configuration directory this process names.
pub fn worker_above_in(state: &Paths) -> Option<String> {
    worker_above_any_in(&[own()], state)
}

/// Like [`worker_above_in`], for other processes: returns the worker above any of them.
pub fn worker_above_any_in(pids: &[i32], state: &Paths) -> Option<String> {
    let is_same = |theirs: &Paths| is_same_place(theirs.root(), state.root());
    pids.iter().find_map(|pid| visible_above(*pid, is_same)).or_else(hidden_above)
}

fn own() -> i32 {
    i32::try_from(std::process::id()).unwrap_or_default()
}

/// Returns the worker above a process that uses the configuration directory of this process, or whose state directory
/// `concerns` the caller.
fn above(pid: i32, concerns: impl Fn(&Paths) -> bool) -> Option<String> {
    visible_above(pid, concerns).or_else(hidden_above)
}

/// Returns the directories in which a worker may be that this process cannot see.
fn places() -> impl Iterator<Item = Paths> {
    [Paths::from_env().ok(), Paths::of_home().ok()].into_iter().flatten()
}

fn hidden_above() -> Option<String> {
    let is_hidden = places().any(|paths| peer::is_supervisor_hidden(&paths));
    is_hidden.then(|| "a process in another process namespace than the supervisor".to_owned())
}

fn visible_above(pid: i32, concerns: impl Fn(&Paths) -> bool) -> Option<String> {
    let (mut found, mut is_of_person) = (false, false);
    let mut sessions = Sessions::default();
    let mut child = Process::read(pid);
    for _ in 0..ANCESTORS_MAX {
        let Some(stat) = procfs::stat(child.pid) else { break };
        sessions.add(stat.session);
        let Some(pid) = Some(stat.parent).filter(|parent| *parent > 1) else { break };
        let process = Process::read(pid);
        is_of_person |= process.is_supervisor() && child.is_notification_of(&process);
        let worker = process.worker().or_else(|| process.work()).map(|worker| shown(&worker));
        let ours = || process.serves(&child).filter(|_| !is_of_person);
        if let Some(inside) = worker.or_else(ours) {
            found = true;
            if records_here(pid) || process.state().is_some_and(|paths| concerns(&paths)) {
                return Some(inside);
            }
        }
        child = process;
    }
    if found {
        return None;
    }
    let of = |name: &str| if pid == own() { std::env::var_os(name) } else { variable(pid, name) };
    if of("SWARM_TOKEN").is_some() {
        return Some(shown(&of("SWARM_WORKER").unwrap_or_default().to_string_lossy()));
    }
    places().find_map(|paths| sessions.worker(&paths)).map(|worker| shown(&worker))
}

fn shown(worker: &str) -> String {
    format!("worker '{worker}'")
}

/// A process and its command line. An agent may give its processes any command line. It can only count as inside by
/// that, since the process above it keeps its own.
#[derive(Debug)]
struct Process {
    pid: i32,
    words: Vec<OsString>,
}

impl Process {
    /// Reads the command line of a process, which is empty if it has ended.
    fn read(pid: i32) -> Self {
        let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = text.split(|byte| *byte == 0).map(|word| OsStr::from_bytes(word).to_owned()).collect();
        Self { pid, words }
    }

    /// Returns the verb of an internal process.
    fn verb(&self) -> &str {
        self.words.get(1).and_then(|verb| verb.to_str()).unwrap_or_default()
    }

    fn is_supervisor(&self) -> bool {
        self.verb() == SUPERVISOR
    }

    /// Returns the worker of a process that is a shim.
    fn worker(&self) -> Option<String> {
        let dir = self.words.get(2).filter(|_| self.verb() == "__shim")?;
        let leaf = Path::new(dir).file_name()?.to_string_lossy().into_owned();
        // The directory of a worker is named NAME.GENERATION.
        Some(leaf.rsplit_once('.').map_or_else(|| leaf.clone(), |(name, _)| name.to_owned()))
    }

    /// Returns the name of the work that a process runs a command for: a verification or a resolver of the merge queue,
    /// or a hook of a worktree. What it executes may have been written by the worker, although the command itself was
    /// agreed to. A command for notifications has neither.
    fn work(&self) -> Option<String> {
        if self.verb() != "__runner" {
            return None;
        }
        let leaf = |tree: OsString| PathBuf::from(tree).file_name().map(OsStr::to_owned);
        let name = variable(self.pid, "SWARM_MERGE_NAME").or_else(|| leaf(variable(self.pid, "SWARM_WORKTREE")?))?;
        Some(name.to_string_lossy().into_owned())
    }

    /// Reports whether a child of the supervisor executes the command for notifications of the supervisor's user: it is
    /// the word of a person. A runner of an agent's making has another parent, or executes this very command.
    fn is_notification_of(&self, supervisor: &Self) -> bool {
        let of = |name: &str| variable(supervisor.pid, name).map(PathBuf::from);
        crate::notify::config::executes(&self.words, swarm_config::user_path_in(of("XDG_CONFIG_HOME"), of("HOME")))
    }

    /// Returns what `child` is if this process executes it for the work of agents.
    fn serves(&self, child: &Self) -> Option<String> {
        if OURS.contains(&self.verb()) {
            return Some("a process that the supervisor started".to_owned());
        }
        let is_swarm = names(self.words.first(), "swarm") || is_this_program(self.pid);
        let is_git = names(child.words.first(), "git");
        (is_swarm && is_git).then(|| "a process that git started for 'swarm'".to_owned())
    }

    /// Returns the state directory of a shim, whose working directory is `w/NAME.GENERATION` there, or of the supervisor
    /// or its guard.
    fn state(&self) -> Option<Paths> {
        if [SUPERVISOR, "__guard"].contains(&self.verb()) {
            return self.words.get(2).map(Paths::new);
        }
        let dir = fs::read_link(format!("/proc/{}/cwd", self.pid)).ok()?;
        Some(Paths::new(dir.parent()?.parent()?))
    }
}

/// Reports whether the first word of a command line is this program, by its name.
fn names(word: Option<&OsString>, program: &str) -> bool {
    word.is_some_and(|word| Path::new(word).file_name() == Some(OsStr::new(program)))
}

/// Reports whether a process executes the program of this one.
fn is_this_program(pid: i32) -> bool {
    let place = |path: &str| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    place(&format!("/proc/{pid}/exe")).is_some_and(|theirs| place("/proc/self/exe") == Some(theirs))
}

/// Returns a variable that is not empty from the environment with which a process was started.
fn variable(pid: i32, name: &str) -> Option<OsString> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let of = |pair: &[u8]| Some(pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?.to_owned());
    let value = environment.split(|byte| *byte == 0).find_map(of).filter(|value| !value.is_empty());
    value.map(OsString::from_vec)
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
