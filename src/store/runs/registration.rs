//! Registration of runs in the state directory, so that a supervisor finds those that are not over. Their homes are
//! elsewhere, perhaps on a disk that does not answer.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use swarm_model::Caller;
use swarm_ports::Survey;
use swarm_sys::files;
use swarm_sys::paths::{Paths, digest};

use super::home::Home;
use super::{OpenRuns, journal};

pub(super) const CALLER: &str = "caller.json";
/// Name of `caller.json` once the run is over, until all its reports are written. Older programs do not know it, and
/// ignore the run.
pub(super) const OVER: &str = "over.json";
/// Maximum time that a survey waits for the disks of homes.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// Homes at which a thread looks. One whose disk does not answer is not looked at by a second one.
pub(super) type Looks = Arc<Mutex<BTreeSet<String>>>;

/// What is found at the home of a registered run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// Nothing. The home may be on a disk that is not mounted.
    Absent,
    Begun,
    /// The start of the run was interrupted.
    NotBegun,
}

/// Content of `caller.json`, which registers a run that is not over, with the caller on whose behalf it runs.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Active {
    pub home: String,
    pub caller: Caller,
}

impl Active {
    fn look(&self) -> Sight {
        match files::is_absent(Path::new(&self.home)) {
            true => Sight::Absent,
            false if self.has_begun() => Sight::Begun,
            false => Sight::NotBegun,
        }
    }

    /// Reports whether the journal of this request exists: a start may have been interrupted before writing it. Also
    /// true if the journal cannot be checked, so that the error is reported to the user later.
    fn has_begun(&self) -> bool {
        let home = Home::new(&self.home);
        match journal::request(&home) {
            Ok(begun) => begun.is_none_or(|begun| begun == self.caller.request),
            Err(error) => error.kind() != io::ErrorKind::NotFound || !home.path().is_dir(),
        }
    }
}

/// Returns the directory that registers the run of this home as active.
pub(super) fn place(paths: &Paths, home: &str) -> PathBuf {
    paths.runs().join(digest(home.as_bytes(), 8))
}

/// Returns the homes of all runs that are registered in this state directory. What cannot be read is left out.
pub fn registered(paths: &Paths) -> Vec<PathBuf> {
    let entries = files::list_if_present(&paths.runs()).unwrap_or_default();
    let home = |place: &Path| Some(PathBuf::from(read_active(place).ok()??.home));
    entries.iter().filter_map(|entry| home(&entry.path())).collect()
}

/// Returns the homes of all runs that are registered, also of those that are over and whose end is not reported yet.
pub fn shown(paths: &Paths) -> Vec<PathBuf> {
    let entries = files::list_if_present(&paths.runs()).unwrap_or_default();
    let home = |place: &Path| Some(PathBuf::from(read_any(place).ok()??.home));
    entries.iter().filter_map(|entry| home(&entry.path())).collect()
}

/// Reports whether a run of this home is active, even if no supervisor is running.
pub fn is_under_way(paths: &Paths, home: &Home) -> bool {
    let registered = read_active(&place(paths, &home.path().to_string_lossy()));
    // An unreadable registration counts as active.
    registered.map_or(true, |active| active.is_some_and(|active| active.has_begun()))
}

pub(super) fn unregister(place: &Path) -> io::Result<()> {
    for file in [CALLER, OVER] {
        match fs::remove_file(place.join(file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    // Removes leftovers of killed writers as well.
    let _ = fs::remove_dir_all(place);
    Ok(())
}

/// Returns the runs that need a supervisor. Reads only the state directory itself, and looks at all homes at the same
/// time in other threads: those that do not answer are listed as unread.
pub(super) fn active(runs: &Path, open: &OpenRuns, looks: &Looks) -> io::Result<Survey<String>> {
    active_by(runs, open, looks, Active::look)
}

fn active_by(runs: &Path, open: &OpenRuns, looks: &Looks, look: fn(&Active) -> Sight) -> io::Result<Survey<String>> {
    let (mut survey, mut seen) = (Survey::default(), Vec::new());
    for entry in files::list_if_present(runs)? {
        let place = entry.path();
        match read_any(&place) {
            // It runs here, or is being started.
            Ok(Some(active)) if is_open(open, &active.home) => {}
            Ok(Some(active)) => seen.push((place, begin_look(active.clone(), looks, look), active)),
            Ok(None) => {}
            Err(error) => survey.miss(place.display(), error),
        }
    }
    let deadline = Instant::now() + LOOK_MAX;
    for (place, answer, active) in seen {
        let left = deadline.saturating_duration_since(Instant::now());
        let sight = answer.map_err(|_| RecvTimeoutError::Timeout).and_then(|answer| answer.recv_timeout(left));
        match sight {
            Ok(Sight::Absent) => {
                tracing::warn!(home = %active.home, "the home of a run that is not over does not exist");
            }
            Ok(Sight::Begun) => survey.found.push(active.home),
            Ok(Sight::NotBegun) => discard(&place, &active, open),
            Err(RecvTimeoutError::Timeout) => survey.miss(active.home, "its disk does not answer"),
            Err(RecvTimeoutError::Disconnected) => survey.miss(active.home, "internal error"),
        }
    }
    survey.found.retain(|home| !is_open(open, home));
    Ok(survey)
}

fn is_open(open: &OpenRuns, home: &str) -> bool {
    open.lock().unwrap_or_else(PoisonError::into_inner).contains_key(home)
}

/// Looks at a home in another thread.
///
/// # Errors
/// Fails if an earlier look has not ended, or if there can be no thread.
fn begin_look(active: Active, looks: &Looks, look: fn(&Active) -> Sight) -> Result<Receiver<Sight>, ()> {
    let homes = || looks.lock().unwrap_or_else(PoisonError::into_inner);
    if !homes().insert(active.home.clone()) {
        return Err(());
    }
    let (sender, receiver) = channel();
    let (home, looks) = (active.home.clone(), Arc::clone(looks));
    let thread = std::thread::Builder::new().name("look".to_owned()).spawn(move || {
        let sight = look(&active);
        looks.lock().unwrap_or_else(PoisonError::into_inner).remove(&active.home);
        let _ = sender.send(sight);
    });
    match thread {
        Ok(_) => Ok(receiver),
        Err(_) => {
            homes().remove(&home);
            Err(())
        }
    }
}

/// Removes the registration of a start that was interrupted, unless another run registers at the same time.
fn discard(place: &Path, active: &Active, open: &OpenRuns) {
    // Held, so that no run registers meanwhile.
    let open = open.lock().unwrap_or_else(PoisonError::into_inner);
    let is_same = |now: &Active| now.caller.request == active.caller.request;
    if open.contains_key(&active.home) || !matches!(read_any(place), Ok(Some(now)) if is_same(&now)) {
        return;
    }
    tracing::warn!(home = %active.home, "discarding a run whose start was interrupted");
    if let Err(error) = unregister(place) {
        tracing::warn!(%error, "cannot remove the registration of an interrupted start");
    }
}

/// Returns the registration of a run that is not over, or whose end is not reported yet.
pub(super) fn read_any(place: &Path) -> io::Result<Option<Active>> {
    match read_active(place) {
        Ok(None) => read_registration(&place.join(OVER)),
        active => active,
    }
}

/// Returns the registration of a run that is not over.
pub(super) fn read_active(place: &Path) -> io::Result<Option<Active>> {
    read_registration(&place.join(CALLER))
}

pub(super) fn read_registration(file: &Path) -> io::Result<Option<Active>> {
    match fs::read(file) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_whose_disk_does_not_answer_delays_no_other_run() {
        let root = tempfile::tempdir().expect("a directory");
        let (open, looks) = (OpenRuns::default(), Looks::default());
        for home in ["/dead", "/gone", "/sound"] {
            let active = Active { home: home.to_owned(), caller: Caller::default() };
            let place = root.path().join(digest(home.as_bytes(), 8));
            fs::create_dir(&place).expect("made");
            fs::write(place.join(CALLER), serde_json::to_vec(&active).expect("JSON")).expect("written");
        }
        let look = |active: &Active| match active.home.as_str() {
            "/dead" => loop {
                std::thread::park();
            },
            "/gone" => Sight::Absent,
            _ => Sight::Begun,
        };
        for _ in 0..2 {
            let survey = active_by(root.path(), &open, &looks, look).expect("listed");
            assert_eq!(survey.found, ["/sound"]);
            let unread: Vec<&str> = survey.unread.iter().map(|one| one.place.as_str()).collect();
            assert_eq!(unread, ["/dead"]);
        }
        assert_eq!(looks.lock().expect("sound").len(), 1, "one thread waits for it");
    }
}
