//! `state.json` of one folder: read, and changed under the folder's lock.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use swarm_actors::heartbeat::recovery;
use swarm_model::Session;

use super::check::check;
use super::folder::{Folder, Lock, Stamp};
use swarm_sys::clock::wall_ms;

pub const STATE: &str = "state.json";
/// A program that writes in place leaves a torn file for a moment: only one that stays
/// so for this long is malformed …
const TORN_MAX: Duration = Duration::from_millis(60);
/// … and one that is written again and again is given up after this.
const REWRITTEN_MAX: Duration = Duration::from_secs(2);
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// Why there is no session to be had.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("there is no session in {}", .0.display())]
    NotFound(PathBuf),
    #[error("{} is malformed: {cause}", path.display())]
    Malformed { path: PathBuf, cause: String },
    /// It is of another issue; the state that was found comes along.
    #[error("{} is the session of '{}', not of '{wanted}'", path.display(), found.identifier().unwrap_or_default())]
    Mismatch { path: PathBuf, found: Box<Session>, wanted: String },
    /// An agent is at work in it, which would take another session for a stranger's.
    #[error("an agent is at work in the session in {}", .0.display())]
    AtWork(PathBuf),
    /// Nothing of this kind is written there any more.
    #[error("the session in {} {cause}", path.display())]
    Closed { path: PathBuf, cause: &'static str },
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Reads the session of `base` (the directory that has the folder).
///
/// # Errors
/// Not found, malformed, or what the system says.
pub fn read(base: &Path) -> Result<Session, StoreError> {
    let folder = Folder::open(base)?.ok_or_else(|| StoreError::NotFound(base.to_owned()))?;
    load(&folder)?.ok_or_else(|| StoreError::NotFound(base.to_owned()))
}

/// The same, and it must be that of `wanted`. One that names nobody is.
///
/// # Errors
/// As [`read`], and [`StoreError::Mismatch`] with the state.
pub fn read_expect(base: &Path, wanted: &str) -> Result<Session, StoreError> {
    let session = read(base)?;
    match session.identifier() {
        Some(found) if found != wanted => {
            let path = base.join(super::FOLDER).join(STATE);
            Err(StoreError::Mismatch { path, found: Box::new(session), wanted: wanted.to_owned() })
        }
        _ => Ok(session),
    }
}

/// Replaces the session of `base`, and gives it as it was written. What was malformed is
/// put aside.
///
/// # Errors
/// [`StoreError::AtWork`] where that would take it from an agent at work, and what the
/// system says.
pub fn replace(base: &Path, session: Session) -> Result<Session, StoreError> {
    let at_work = check(base).is_ok_and(|checked| recovery::is_alive(&checked.facts(None)));
    update(base, |current| {
        if at_work && current.fence() != session.fence() {
            return Err(StoreError::AtWork(base.to_owned()));
        }
        *current = session;
        Ok(Change::Write(()))
    })
    .map(|(written, ())| written)
}

/// What is to become of a session that was looked at.
pub enum Change<T> {
    /// Write it, also when nothing in it is another.
    Write(T),
    /// Leave the file as it is.
    Keep(T),
}

/// Changes the session of `base`: from zero values where there is none. One that is
/// malformed is put aside first. When `change` fails or keeps it, nothing is written.
///
/// # Errors
/// What `change` says, or what the system says.
pub fn update<T, E: From<StoreError>>(
    base: &Path,
    change: impl FnOnce(&mut Session) -> Result<Change<T>, E>,
) -> Result<(Session, T), E> {
    let folder = Folder::make(base).map_err(StoreError::from)?;
    let lock = folder.lock().map_err(StoreError::from)?;
    let mut session = load_or_put_aside(&folder, &lock)?.unwrap_or_default();
    let before = session.render();
    match change(&mut session)? {
        Change::Write(told) if session.render() != before => {
            Ok((save(&folder, &lock, session, true).map_err(StoreError::from)?.0, told))
        }
        Change::Write(told) | Change::Keep(told) => Ok((session, told)),
    }
}

fn load_or_put_aside(folder: &Folder, lock: &Lock) -> Result<Option<Session>, StoreError> {
    match load(folder) {
        Err(StoreError::Malformed { path, cause }) => {
            let aside = folder.put_aside(STATE, "malformed", lock)?;
            tracing::warn!(path = %path.display(), cause, aside, "a malformed session was put aside");
            Ok(None)
        }
        loaded => loaded,
    }
}

/// The session in the folder; none where there is no file.
///
/// # Errors
/// When it is malformed, and stays so.
pub fn load(folder: &Folder) -> Result<Option<Session>, StoreError> {
    let began = Instant::now();
    let mut torn: Option<(Option<Stamp>, Instant)> = None;
    loop {
        let stamp = folder.stamp(STATE);
        let cause = match folder.read(STATE)? {
            None => return Ok(None),
            Some(bytes) => {
                match std::str::from_utf8(&bytes).map_err(|error| error.to_string()).and_then(Session::parse) {
                    Ok(session) => return Ok(Some(session)),
                    Err(cause) => cause,
                }
            }
        };
        let since = match torn {
            Some((same, since)) if same == stamp => since,
            _ => Instant::now(),
        };
        if since.elapsed() >= TORN_MAX || began.elapsed() >= REWRITTEN_MAX {
            return Err(StoreError::Malformed { path: folder.path().join(STATE), cause });
        }
        torn = Some((stamp, since));
        // Nothing tells when a writer in place is done.
        thread::sleep(LOOK_PAUSE);
    }
}

/// Writes it under the lock, with the time of now.
///
/// # Errors
/// What the system says; the old one is still there then.
pub fn save(folder: &Folder, lock: &Lock, mut session: Session, durably: bool) -> io::Result<(Session, Stamp)> {
    session.set("lastUpdatedAt", &wall_ms());
    session.settle();
    if durably {
        folder.tidy(lock);
    }
    let stamp = folder.replace(STATE, session.render().as_bytes(), durably)?;
    Ok((session, stamp))
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
