//! The event log (`events.jsonl`) and its live subscribers.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use swarm_model::{Event, EventKind};
use swarm_ports::Events;
use tokio::sync::broadcast;

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
}

impl EventLog {
    pub fn new(path: PathBuf) -> Self {
        Self { path, file: Mutex::new(None), listeners: broadcast::channel(LISTENER_LAG_MAX).0 }
    }

    pub fn listen(&self) -> broadcast::Receiver<Event> {
        self.listeners.subscribe()
    }

    fn append(&self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            let open = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.path)?;
            if is_torn(&open)? {
                // A crash or a full disk cut the last line short. It must not swallow this one.
                line.insert(0, b'\n');
            }
            *file = Some(open);
        }
        let Some(open) = file.as_mut() else { return Ok(()) };
        if let Err(error) = open.write_all(&line) {
            // Perhaps a part was written, so the next event checks.
            *file = None;
            return Err(error);
        }
        if open.metadata()?.len() >= EVENTS_BYTES_MAX {
            fs::rename(&self.path, self.rotated())?;
            *file = None;
        }
        Ok(())
    }

    fn rotated(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".1");
        path.into()
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
        if let Err(error) = self.append(&event) {
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
mod tests {
    use super::*;
    use swarm_model::EventKind;

    #[test]
    fn a_request_is_found_after_damaged_lines() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("events.jsonl");
        fs::write(&path, b"{\"at_ms\":1,\"\xff\"}\n\0\0\n").expect("written");
        let log = EventLog::new(path);
        let kind = EventKind::WorkerCleaned;
        log.emit(Event { at_ms: 2, worker: None, generation: None, request: Some("asked".into()), kind });
        assert!(log.seen("asked") && !log.seen("other"));
    }

    #[test]
    fn a_refusal_is_that_of_its_own_generation() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path().to_owned());
        let log = EventLog::new(paths.events());
        for (generation, cause) in [(1, "gone"), (2, "full"), (2, "still full")] {
            let kind = EventKind::MergeRefused { cause: cause.to_owned() };
            let (worker, generation) = (Some("w".to_owned()), Some(generation));
            log.emit(Event { at_ms: 2, worker, generation, request: None, kind });
        }
        let refused = |name, generation| refused(&paths, name, generation);
        assert_eq!([refused("w", 1), refused("w", 2)], [Some("gone".to_owned()), Some("still full".to_owned())]);
        assert_eq!([refused("w", 3), refused("v", 1)], [None, None]);
        assert!(!has_ended(&paths, "w", 1));
    }

    #[test]
    fn an_event_after_a_torn_line_is_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("events.jsonl");
        fs::write(&path, "{\"at_ms\":1,\"ty").expect("written");
        let log = EventLog::new(path.clone());
        for pid in [7, 8] {
            let kind = EventKind::SupervisorStarted { pid };
            log.emit(Event { at_ms: 2, worker: None, generation: None, request: None, kind });
        }
        let text = fs::read_to_string(&path).expect("readable");
        let lines: Vec<Option<Event>> = text.lines().map(|line| serde_json::from_str(line).ok()).collect();
        assert_eq!(lines.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, true], "{text}");
    }
}
