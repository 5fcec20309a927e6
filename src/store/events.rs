//! The event log (`events.jsonl`) and its live subscribers.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use swarm_model::{Event, EventKind};
use swarm_ports::Events;
use tokio::sync::broadcast::{self, error::RecvError};

use crate::replay::{self, Place};
use swarm_sys::paths::Paths;

/// Size in bytes at which the file is rotated.
const EVENTS_BYTES_MAX: u64 = 8 << 20;
/// Upper bound on the length of one event line, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of events by which a slow listener may lag; beyond that it is told how many it missed.
const LISTENER_LAG_MAX: usize = 1024;

pub struct EventLog {
    path: PathBuf,
    file: Mutex<Option<File>>,
    listeners: broadcast::Sender<Event>,
    /// Listeners that miss nothing.
    followers: broadcast::Sender<Told>,
}

/// An event as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The place after it. `None` if it could not be written.
    pub place: Option<Place>,
    /// The event as one line of JSON.
    pub text: Arc<str>,
}

/// What a follower hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Event(Told),
    /// Events are missing here: the file with them was removed.
    Gap,
}

impl EventLog {
    pub fn new(path: PathBuf) -> Self {
        let (listeners, followers) = (broadcast::channel(LISTENER_LAG_MAX).0, broadcast::channel(LISTENER_LAG_MAX).0);
        Self { path, file: Mutex::new(None), listeners, followers }
    }

    pub fn listen(&self) -> broadcast::Receiver<Event> {
        self.listeners.subscribe()
    }

    /// Returns a follower that hears everything after `since`, or from now on.
    pub fn follow(self: &Arc<Self>, since: Option<Place>) -> Follower {
        // Before the place is determined, so that nothing is missed in between.
        let told = self.followers.subscribe();
        let is_behind = since.is_some();
        Follower { place: since.or_else(|| self.end()), log: Arc::clone(self), told, is_behind }
    }

    /// Returns the present end of the log.
    fn end(&self) -> Option<Place> {
        let _file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        [self.path.clone(), self.rotated()].iter().find_map(|path| Some(Place::end_of(&fs::metadata(path).ok()?)))
    }

    /// Writes an event, and tells the followers in the same order.
    fn record(&self, event: &Event) -> io::Result<()> {
        let text: Arc<str> = serde_json::to_string(event)?.into();
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let appended = self.append(&mut file, &text);
        let place = appended.as_ref().ok().copied().flatten();
        let _ = self.followers.send(Told { place, text });
        appended.map(drop)
    }

    /// Writes a line. Returns the place after it.
    fn append(&self, file: &mut Option<File>, text: &str) -> io::Result<Option<Place>> {
        let mut line = format!("{text}\n").into_bytes();
        if file.is_none() {
            let open = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.path)?;
            if is_torn(&open)? {
                // A crash or a full disk cut the last line short. It must not swallow this one.
                line.insert(0, b'\n');
            }
            *file = Some(open);
        }
        let Some(open) = file.as_mut() else { return Ok(None) };
        if let Err(error) = open.write_all(&line) {
            // Perhaps a part was written, so the next event checks.
            *file = None;
            return Err(error);
        }
        let meta = open.metadata()?;
        if meta.len() >= EVENTS_BYTES_MAX {
            fs::rename(&self.path, self.rotated())?;
            *file = None;
        }
        Ok(Some(Place::end_of(&meta)))
    }

    fn rotated(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".1");
        path.into()
    }
}

/// Hears each event once, whatever it misses while it is busy: it then reads the files.
pub struct Follower {
    log: Arc<EventLog>,
    told: broadcast::Receiver<Told>,
    /// The place after the last event that was heard.
    place: Option<Place>,
    /// Whether events after that place are in the files only.
    is_behind: bool,
}

impl Follower {
    /// Waits for what happens next. Returns `None` once nothing can happen any more.
    ///
    /// # Errors
    /// Returns an error if the files cannot be read.
    pub async fn next(&mut self) -> io::Result<Option<Vec<Heard>>> {
        loop {
            if self.is_behind {
                let heard = self.catch_up().await?;
                if !heard.is_empty() {
                    return Ok(Some(heard));
                }
                continue;
            }
            match self.told.recv().await {
                Ok(told) => {
                    let is_known = |place: &Place| self.place.is_some_and(|now| place.is_reached_by(&now));
                    if told.place.as_ref().is_some_and(is_known) {
                        continue;
                    }
                    self.place = told.place.or(self.place);
                    return Ok(Some(vec![Heard::Event(told)]));
                }
                Err(RecvError::Lagged(_)) => {
                    self.told = self.told.resubscribe();
                    self.is_behind = true;
                }
                Err(RecvError::Closed) => return Ok(None),
            }
        }
    }

    /// Reads a part of what was missed.
    async fn catch_up(&mut self) -> io::Result<Vec<Heard>> {
        let (files, from) = ([self.log.rotated(), self.log.path.clone()], self.place);
        let read = tokio::task::spawn_blocking(move || replay::read(&files, from.as_ref())).await;
        let part = read.map_err(io::Error::other)??;
        self.is_behind = part.more;
        self.place = part.next.or(self.place);
        let events = part.lines.into_iter().map(|(place, text)| Told { place: Some(place), text: text.into() });
        Ok(part.is_gap.then_some(Heard::Gap).into_iter().chain(events.map(Heard::Event)).collect())
    }
}

/// Reports whether the last line of a file is incomplete.
fn is_torn(file: &File) -> io::Result<bool> {
    let mut last = [0];
    match file.metadata()?.len().checked_sub(1) {
        Some(at) => file.read_exact_at(&mut last, at).map(|()| last != [b'\n']),
        None => Ok(false),
    }
}

/// Reports whether a line of a file contains a text. Lines are read as bytes: damage in one must not hide the others.
fn contains(path: &Path, text: &[u8]) -> io::Result<bool> {
    let mut file = match File::open(path) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut line = Vec::new();
    while file.read_until(b'\n', &mut line)? > 0 {
        if line.windows(text.len().max(1)).any(|part| part == text) {
            return Ok(true);
        }
        line.clear();
    }
    Ok(false)
}

/// Returns the time of the last recorded event in Unix milliseconds, or `None` if there is no event.
pub fn last_at_ms(paths: &Paths) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Dated {
        at_ms: u64,
    }
    let text = last_lines(&paths.events());
    let mut lines = text.rsplit(|byte| *byte == b'\n');
    lines.find_map(|line| serde_json::from_slice::<Dated>(line).ok()).map(|last| last.at_ms)
}

/// Reports whether the end of this generation is among the last recorded events.
pub fn has_ended(paths: &Paths, name: &str, generation: u64) -> bool {
    let is_end = |kind| matches!(kind, EventKind::WorkerExited { .. }).then_some(());
    newest(paths, name, generation, is_end).is_some()
}

/// Returns why the work of this generation was not added to a merge queue, if that is among the last recorded events.
pub fn refused(paths: &Paths, name: &str, generation: u64) -> Option<String> {
    let cause = |kind| if let EventKind::MergeRefused { cause } = kind { Some(cause) } else { None };
    newest(paths, name, generation, cause)
}

/// Returns what `read` finds in the newest of the last recorded events of this generation.
fn newest<T>(paths: &Paths, name: &str, generation: u64, read: impl Fn(EventKind) -> Option<T>) -> Option<T> {
    let path = paths.events();
    let mut older = path.clone().into_os_string();
    older.push(".1");
    let found = |line: &[u8]| {
        let event = serde_json::from_slice::<Event>(line).ok()?;
        let is_of_it = event.worker.as_deref() == Some(name) && event.generation == Some(generation);
        is_of_it.then(|| read(event.kind)).flatten()
    };
    [path, older.into()].iter().find_map(|path| last_lines(path).rsplit(|byte| *byte == b'\n').find_map(found))
}

/// Returns the end of a file. Empty if it cannot be read.
fn last_lines(path: &Path) -> Vec<u8> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        let from = file.metadata()?.len().saturating_sub(LINE_BYTES_MAX);
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut text)
    });
    if read.is_err() { Vec::new() } else { text }
}

impl Events for EventLog {
    /// Records and broadcasts an event. A failed write is only logged: no operation fails for lack of history.
    fn emit(&self, event: Event) {
        if let Err(error) = self.record(&event) {
            tracing::warn!(%error, "cannot record an event");
        }
        let _ = self.listeners.send(event);
    }

    fn seen(&self, request: &str) -> bool {
        [self.path.clone(), self.rotated()].iter().any(|path| {
            contains(path, request.as_bytes()).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), %error, "cannot read the recorded events");
                false
            })
        })
    }
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
