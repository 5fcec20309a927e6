//! Loops on disk, below `ralph/NAME`:
//!
//! ```text
//!   loop.json        state and plan of the loop (mode 0600: contains the environment); written first
//!   iterations.log   events, in the format of the original `swarm`
//!   state.json       state in the format of the original `swarm`; fields of other programs are preserved
//! ```

mod earlier;
mod log;
mod monitor;
pub mod wire;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use swarm_actors::registry::store;
use swarm_model::WorkerName;
use swarm_model::loops::progress::{Earlier, Loop, Plan, Status, Wire};
use swarm_ports::{BoxFuture, Filed, Found, Loops, Survey};

use self::wire::{Fault, WireState};
use super::runs::home::make_all;
use swarm_sys::files;
use swarm_sys::files::compare_exchange::{self, Replaced};
use swarm_sys::files::{blocking, replace_durably};
use swarm_sys::paths::Paths;
use swarm_sys::strip_ansi::Plain;

const RECORD: &str = "loop.json";
const STATE: &str = "state.json";
pub const LOG: &str = "iterations.log";
/// Maximum number of output bytes that are searched for the pattern that ends a loop.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of attempts to write `state.json` while another program replaces it.
const WRITES_MAX: u32 = 64;

pub struct DiskLoops {
    paths: Paths,
    written: Arc<Written>,
}

/// Names of the loops to which this process has written. Their files are not repaired any more. Held during a repair, so
/// that nothing is written meanwhile.
type Written = Mutex<BTreeSet<String>>;

impl DiskLoops {
    pub fn new(paths: Paths) -> Self {
        Self { paths, written: Arc::default() }
    }

    /// Runs `work` on another thread, which changes files of the loop of this name.
    fn change<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<'static, io::Result<T>> {
        let (dir, written, name) = (self.dir(name), Arc::clone(&self.written), name.to_owned());
        blocking(move || {
            written.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
            work(&dir?)
        })
    }

    fn dir(&self, name: &str) -> io::Result<PathBuf> {
        dir(&self.paths, name).ok_or_else(|| io::Error::other(format!("invalid worker name '{name}'")))
    }
}

/// Returns the directory of a loop; `None` if the name is invalid and could lead out of the state directory.
pub fn dir(paths: &Paths, name: &str) -> Option<PathBuf> {
    WorkerName::parse(name).ok().map(|name| paths.loops().join(name.as_str()))
}

/// Returns the names of the loops below `ralph/`, sorted.
///
/// # Errors
/// Returns any I/O error.
pub fn names(paths: &Paths) -> io::Result<Vec<String>> {
    let entries = files::list_if_present(&paths.loops())?;
    let dirs = entries.into_iter().filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = dirs.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| WorkerName::parse(name).is_ok());
    names.sort_unstable();
    Ok(names)
}

/// A loop, as read for display.
pub struct Known {
    pub state: WireState,
    /// `None` if another program started the loop.
    pub record: Option<Loop>,
    /// Warning to print to stderr.
    pub warning: Option<String>,
}

/// Reads a loop for display; `None` if there is no loop of that name.
///
/// # Errors
/// Fails with a message for users if the loop's files cannot be read.
pub fn read(paths: &Paths, name: &str) -> Result<Option<Known>, String> {
    let Some(dir) = dir(paths, name) else { return Ok(None) };
    let record = load(&dir)?;
    match wire::read(&dir.join(STATE)) {
        Ok(Some(state)) => Ok(Some(Known { state, record, warning: None })),
        Ok(None) => {
            let made = |record: Loop| Known { state: WireState::of(&record), record: Some(record), warning: None };
            Ok(record.map(made))
        }
        Err(Fault::Unread(error)) => {
            let cause = format!("cannot read ralph state for '{name}' ({error})");
            let Some(record) = record else { return Err(cause) };
            let warning = Some(format!("{cause}, shown from the loop's own records"));
            Ok(Some(Known { state: WireState::of(&record), record: Some(record), warning }))
        }
        Err(Fault::Damaged(cause)) => {
            let kept = store::quarantine(&dir.join(STATE)).err().map(|error| format!("; {error}")).unwrap_or_default();
            let Some(record) = record else {
                return Err(format!("cannot read ralph state for '{name}' ({cause}){kept}"));
            };
            let warning =
                format!("corrupt ralph state for '{name}', restored from the loop's own records ({cause}){kept}");
            Ok(Some(Known { state: WireState::of(&record), record: Some(record), warning: Some(warning) }))
        }
    }
}

/// Reports whether the loop of this name is over: it will not start another iteration.
pub fn is_over(paths: &Paths, name: &str) -> bool {
    read(paths, name).ok().flatten().is_some_and(|known| matches!(known.state.status, Status::Stopped | Status::Failed))
}

/// Reports whether the loop of this name will start its worker again. An unreadable record counts as such a loop.
pub fn goes_on(paths: &Paths, name: &str) -> bool {
    let Some(dir) = dir(paths, name) else { return false };
    load(&dir).map_or(true, |it| it.is_some_and(|it| it.goes_on()))
}

fn load(dir: &Path) -> Result<Option<Loop>, String> {
    let path = dir.join(RECORD);
    match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| format!("{}: {error}", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn save(dir: &Path, it: &Loop) -> io::Result<Filed> {
    make_all(dir)?;
    replace_durably(dir, RECORD, &serde_json::to_vec(it)?)?;
    log::complete(&dir.join(LOG), it)?;
    Ok(write_state(dir, it, true).unwrap_or_else(|error| {
        tracing::warn!(worker = it.name(), %error, "cannot update state.json of a loop");
        Filed::Behind
    }))
}

fn write_state(dir: &Path, it: &Loop, durably: bool) -> io::Result<Filed> {
    write_state_between(dir, it, durably, &mut || {})
}

/// Writes `state.json`, preserving fields of other programs; a corrupt file is quarantined first. `between` is called
/// after each read of the file, for tests.
fn write_state_between(dir: &Path, it: &Loop, durably: bool, between: &mut dyn FnMut()) -> io::Result<Filed> {
    let path = dir.join(STATE);
    for _ in 0..WRITES_MAX {
        let mut state = WireState::of(it);
        let seen = compare_exchange::read(&path)?;
        match seen.as_deref().map(wire::parse) {
            Some(Ok(found)) if it.is_anothers(found.wire()) => return Ok(Filed::Others(found.wire())),
            Some(Ok(found)) => state.keep(found),
            Some(Err(cause)) => quarantine(&path, &cause)?,
            None => {}
        }
        between();
        match compare_exchange::replace(&path, seen.as_deref(), state.render()?.as_bytes(), durably)? {
            Replaced::Done => return Ok(Filed::Current),
            Replaced::Overtaken => {}
        }
    }
    Err(io::Error::other("another program keeps writing it"))
}

fn quarantine(path: &Path, cause: &str) -> io::Result<()> {
    tracing::warn!(file = %path.display(), cause, "quarantining a corrupt file; it is rebuilt from the loop's records");
    store::quarantine(path).map_err(io::Error::other)
}

/// Updates log and state if a crash kept them from being written after the record.
fn repair(dir: &Path, it: &Loop) -> io::Result<()> {
    // Before anything is read: a kill between two swaps left the present version in another file.
    for kept in compare_exchange::recover(&dir.join(STATE))? {
        tracing::warn!(file = %kept.display(), "kept a version of state.json that another program wrote");
    }
    super::runs::home::remove_torn(dir);
    log::complete(&dir.join(LOG), it)?;
    let is_behind = match wire::read(&dir.join(STATE)) {
        Ok(Some(state)) => state.wire() != it.wire() && !it.is_anothers(state.wire()),
        Ok(None) | Err(_) => true,
    };
    if is_behind { write_state(dir, it, true).map(drop) } else { Ok(()) }
}

/// Reports whether another program changed the state file of an inactive loop.
fn is_changed(dir: &Path, it: &Loop) -> io::Result<bool> {
    if !it.may_go_on() {
        return Ok(false);
    }
    match wire::read(&dir.join(STATE)) {
        Ok(state) => Ok(state.is_some_and(|state| it.is_anothers(state.wire()))),
        Err(Fault::Damaged(_)) => Ok(false),
        Err(Fault::Unread(error)) => Err(error),
    }
}

fn active(paths: &Paths, written: &Written) -> io::Result<Survey<String>> {
    let mut survey = Survey::default();
    for name in names(paths)? {
        let dir = paths.loops().join(&name);
        let written = written.lock().unwrap_or_else(PoisonError::into_inner);
        match load(&dir) {
            Ok(Some(it)) => {
                if !written.contains(&name)
                    && let Err(error) = repair(&dir, &it)
                {
                    tracing::warn!(worker = name, %error, "cannot repair the files of a loop after a crash");
                }
                let needs_one = if it.is_active() { Ok(true) } else { is_changed(&dir, &it) };
                match needs_one {
                    Ok(true) => survey.found.push(name),
                    Ok(false) => {}
                    Err(error) => survey.miss(dir.join(STATE).display(), error),
                }
            }
            Ok(None) => {}
            Err(cause) => survey.miss(dir.display(), cause),
        }
    }
    Ok(survey)
}

impl Loops for DiskLoops {
    fn active(&self) -> BoxFuture<'_, io::Result<Survey<String>>> {
        let (paths, written) = (self.paths.clone(), Arc::clone(&self.written));
        blocking(move || active(&paths, &written))
    }

    fn load<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Loop>, String>> {
        let dir = dir(&self.paths, name);
        let loaded = blocking(move || Ok(dir.map_or(Ok(None), |dir| load(&dir))));
        Box::pin(async move { loaded.await.unwrap_or_else(|error| Err(error.to_string())) })
    }

    fn found<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Found>, String>> {
        let (paths, name) = (self.paths.clone(), name.to_owned());
        let read = blocking(move || Ok(found(&paths, &name)));
        Box::pin(async move { read.await.unwrap_or_else(|error| Err(error.to_string())) })
    }

    fn save<'a>(&'a self, it: &'a Loop) -> BoxFuture<'a, io::Result<Filed>> {
        let saved = it.clone();
        self.change(it.name(), move |dir| save(dir, &saved))
    }

    fn note<'a>(&'a self, it: &'a Loop) -> BoxFuture<'a, ()> {
        let noted = it.clone();
        let noted = self.change(it.name(), move |dir| write_state(dir, &noted, false));
        Box::pin(async move {
            if let Err(error) = noted.await {
                tracing::warn!(worker = it.name(), %error, "cannot update state.json of a loop");
            }
        })
    }

    fn wire<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<Wire>> {
        let (dir, name) = (dir(&self.paths, name), name.to_owned());
        let read = blocking(move || Ok(dir.and_then(|dir| wire_or_repair(&dir, &name))));
        Box::pin(async move { read.await.unwrap_or_default() })
    }

    fn log_length<'a>(&'a self, name: &'a str) -> BoxFuture<'a, u64> {
        let dir = self.dir(name);
        length(move || Ok(dir?.join(LOG)))
    }

    fn earlier<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Option<Earlier>>> {
        let dir = self.dir(name);
        blocking(move || earlier::read(&dir?))
    }

    fn withdraw<'a>(&'a self, it: &'a Loop) -> BoxFuture<'a, io::Result<()>> {
        match it.earlier.clone() {
            Some(earlier) => self.change(it.name(), move |dir| earlier::restore(dir, &earlier)),
            None => Box::pin(async move { self.forget(it.name()).await.map(drop) }),
        }
    }

    fn forget<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<bool>> {
        if dir(&self.paths, name).is_none() {
            return Box::pin(std::future::ready(Ok(false)));
        }
        self.change(name, |dir| {
            // The record goes first: a partly removed loop must not continue.
            match fs::remove_file(dir.join(RECORD)) {
                Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                    return Err(error);
                }
                _ => {}
            }
            match fs::remove_dir_all(dir) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    fn prompt<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Result<String, String>> {
        let file = plan.prompt_file.clone();
        Box::pin(async move {
            let read = blocking({
                let file = file.clone();
                move || fs::read_to_string(file)
            });
            read.await.map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => format!("prompt file not found: {file}"),
                _ => format!("cannot read prompt file: {file}: {error}"),
            })
        })
    }

    fn written<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, u64> {
        let log = self.paths.log(worker, "tmux");
        length(move || Ok(log))
    }

    fn output<'a>(&'a self, worker: &'a str, from: u64) -> BoxFuture<'a, String> {
        let path = self.paths.log(worker, "tmux");
        let read = blocking(move || output_since(&path, from));
        Box::pin(async move { read.await.unwrap_or_default() })
    }
}

/// Reads a loop of another program: it has a state file but no record of ours.
fn found(paths: &Paths, name: &str) -> Result<Option<Found>, String> {
    let unreadable = |cause: String| format!("cannot read ralph state for '{name}' ({cause})");
    let Some(dir) = dir(paths, name) else { return Ok(None) };
    if dir.join(RECORD).try_exists().map_err(|error| unreadable(error.to_string()))? {
        return Ok(None);
    }
    let Some(state) = wire::read(&dir.join(STATE)).map_err(|fault| unreadable(fault.to_string()))? else {
        return Ok(None);
    };
    let keeper = monitor::find(paths, name, state.monitor_pid);
    let keeper = keeper.map_err(|error| format!("cannot find out who runs the loop of '{name}': {error}"))?;
    Ok(Some(Found { it: state.into_loop(name), keeper }))
}

/// Reports whether a loop of this name was started or taken over by this program.
pub fn is_ours(paths: &Paths, name: &str) -> bool {
    // If the lookup fails, the file may exist.
    dir(paths, name).is_some_and(|dir| dir.join(RECORD).try_exists().unwrap_or(true))
}

/// Reads the wire state; a corrupt file is quarantined, and rebuilt if the loop is ours.
fn wire_or_repair(dir: &Path, name: &str) -> Option<Wire> {
    match wire::read(&dir.join(STATE)) {
        Ok(state) => state.map(|state| state.wire()),
        Err(Fault::Unread(error)) => {
            tracing::warn!(worker = name, %error, "cannot read a ralph state");
            None
        }
        Err(Fault::Damaged(cause)) => {
            let repaired = quarantine(&dir.join(STATE), &cause).and_then(|()| match load(dir) {
                Ok(Some(it)) => write_state(dir, &it, true).map(drop),
                Ok(None) | Err(_) => Ok(()),
            });
            if let Err(error) = repaired {
                tracing::error!(worker = name, %error, "cannot repair a corrupt ralph state");
            }
            None
        }
    }
}

/// Returns the length of a file in bytes; 0 if it does not exist.
fn length(path: impl FnOnce() -> io::Result<PathBuf> + Send + 'static) -> BoxFuture<'static, u64> {
    let length = blocking(move || Ok(fs::metadata(path()?)?.len()));
    Box::pin(async move { length.await.unwrap_or(0) })
}

/// Returns the output after offset `from` as plain text, at most `OUTPUT_BYTES_MAX`; the whole log if it was truncated
/// since.
fn output_since(path: &Path, from: u64) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    let from = if from <= length { from } else { 0 };
    file.seek(SeekFrom::Start(from.max(length.saturating_sub(OUTPUT_BYTES_MAX))))?;
    let (mut bytes, mut plain) = (Vec::new(), Vec::new());
    file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    Plain::new().feed(&bytes, &mut plain);
    Ok(String::from_utf8_lossy(&plain).into_owned())
}

#[cfg(test)]
mod tests;
