//! Reads `state.json` of a session folder, and changes it under the folder's lock.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use swarm_actors::sessions::recovery;
use swarm_model::Session;

use super::check::check;
use super::folder::{Folder, Lock, Stamp};
use swarm_sys::clock::wall_ms;

pub const STATE: &str = "state.json";
/// Time after which an unparsable, unchanged file counts as malformed. A program that writes in place leaves a torn
/// file for a moment.
const TORN_MAX: Duration = Duration::from_millis(60);
/// Time after which a file that is rewritten again and again, and never parses, counts as malformed.
const REWRITTEN_MAX: Duration = Duration::from_secs(2);
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// Error of reading or changing a session.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("no session in {}", .0.display())]
    NotFound(PathBuf),
    #[error("{} is malformed: {cause}", path.display())]
    Malformed { path: PathBuf, cause: String },
    /// The session belongs to another issue; contains the state that was found.
    #[error(
        "the session in {} belongs to '{}', not to '{wanted}'",
        path.display(),
        found.identifier().unwrap_or_default()
    )]
    Mismatch { path: PathBuf, found: Box<Session>, wanted: String },
    /// A running agent uses the session; it would have to give up if another session took its place.
    #[error("the session in {} is in use by a running agent", .0.display())]
    AtWork(PathBuf),
    /// The session has ended or belongs to another launch, so activity is not recorded any more.
    #[error("the session in {} {cause}", path.display())]
    Closed { path: PathBuf, cause: &'static str },
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Reads the session of `base`, the directory that contains the folder.
///
/// # Errors
/// Fails if the session does not exist or is malformed, or on I/O errors.
pub fn read(base: &Path) -> Result<Session, StoreError> {
    let folder = Folder::open(base)?.ok_or_else(|| StoreError::NotFound(base.to_owned()))?;
    load(&folder)?.ok_or_else(|| StoreError::NotFound(base.to_owned()))
}

/// Reads the session of `base`, which must belong to `wanted` or name no issue.
///
/// # Errors
/// Fails as [`read`] does, and with [`StoreError::Mismatch`] if the session belongs to another issue.
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

/// Replaces the session of `base`, and returns it as written. A malformed file is moved aside.
///
/// # Errors
/// Returns [`StoreError::AtWork`] if that would take the session from a running agent, or any I/O error.
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

/// Outcome of the closure passed to [`update`].
pub enum Change<T> {
    /// Write the session if it has changed.
    Write(T),
    /// Leave the file as it is.
    Keep(T),
}

/// Changes the session of `base` under its lock. A missing session starts with zero values; a malformed one is moved
/// aside first. If `change` fails or keeps the session, nothing is written.
///
/// # Errors
/// Returns the error of `change`, or any I/O error.
pub fn update<T, E: From<StoreError>>(
    base: &Path,
    change: impl FnOnce(&mut Session) -> Result<Change<T>, E>,
) -> Result<(Session, T), E> {
    let folder = Folder::make(base).map_err(StoreError::from)?;
    let lock = folder.lock().map_err(StoreError::from)?;
    let mut session = load_or_move_aside(&folder, &lock)?.unwrap_or_default();
    let before = session.render();
    match change(&mut session)? {
        Change::Write(result) if session.render() != before => {
            Ok((save(&folder, &lock, session, true).map_err(StoreError::from)?.0, result))
        }
        Change::Write(result) | Change::Keep(result) => Ok((session, result)),
    }
}

fn load_or_move_aside(folder: &Folder, lock: &Lock) -> Result<Option<Session>, StoreError> {
    match load(folder) {
        Err(StoreError::Malformed { path, cause }) => {
            let aside = folder.move_aside(STATE, "malformed", lock)?;
            tracing::warn!(path = %path.display(), cause, aside, "moved a malformed session aside");
            Ok(None)
        }
        loaded => loaded,
    }
}

/// Reads the session in the folder; `None` if there is no file.
///
/// # Errors
/// Fails if the file is malformed and not just being written, or on I/O errors.
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
        // There is no event for the end of a write in place.
        thread::sleep(LOOK_PAUSE);
    }
}

/// Writes the session under the lock, and sets `lastUpdatedAt` to the current time.
///
/// # Errors
/// Returns any I/O error; the old file then still exists.
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
