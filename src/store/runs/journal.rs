//! The journal of a run, `run.jsonl`. The first line is the run at its start, each further line an event with its time.
//! Appended lines are synced before anything acts on them, so a line torn by a crash had no effect.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use swarm_actors::run::machine::Machine;
use swarm_model::run::Event;
use swarm_model::run::progress::Run;

use super::home::{Home, append_lines};
use swarm_sys::files::replace_durably;

/// Format version; increased if older programs could not read the file.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct FirstLine<R> {
    version: u32,
    /// Request that started the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<String>,
    run: R,
}

/// Events, each with its time in Unix milliseconds.
pub type Happened = Vec<(u64, Event)>;

/// Replaces the journal by a new one that contains only the first line.
///
/// # Errors
/// Returns any I/O error; the old journal then still exists.
pub fn begin(home: &Home, run: &Run, request: &str) -> io::Result<()> {
    let mut line = serde_json::to_vec(&FirstLine { version: VERSION, request: Some(request.to_owned()), run })?;
    line.push(b'\n');
    replace_durably(home.path(), "run.jsonl", &line)
}

/// Returns the request that started the run; `None` for runs of older programs, which did not record it.
///
/// # Errors
/// Returns I/O and parse errors; `NotFound` if there is no journal.
pub fn request(home: &Home) -> io::Result<Option<String>> {
    first_line::<IgnoredAny>(home).map(|first| first.request)
}

/// Returns the run at its start.
///
/// # Errors
/// Fails as [`request`] does.
pub fn begun(home: &Home) -> io::Result<Run> {
    first_line::<Run>(home).map(|first| first.run)
}

/// Reads only the first line; the events may be long.
fn first_line<R: DeserializeOwned>(home: &Home) -> io::Result<FirstLine<R>> {
    let mut line = Vec::new();
    BufReader::new(File::open(home.journal())?).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

/// Appends events durably.
///
/// # Errors
/// Returns any I/O error; the file is then truncated to its old length, if possible.
pub fn append(home: &Home, events: &[(u64, Event)]) -> io::Result<()> {
    let mut lines = String::new();
    for event in events {
        lines.push_str(&serde_json::to_string(event)?);
        lines.push('\n');
    }
    let path = home.journal();
    let length = fs::metadata(&path)?.len();
    let written = append_lines(&path, &lines).and_then(|file| file.sync_data());
    if written.is_err() {
        // The caller retries, and duplicate events would be reported twice. There is no other writer.
        let _ = OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(length));
    }
    written
}

/// Reads the run at its start and all events since; `None` if there is no journal.
///
/// # Errors
/// Fails with a message for users if the file cannot be read or parsed, or has a newer version.
pub fn read(home: &Home) -> Result<Option<(Run, Happened)>, String> {
    let path = home.journal();
    // Read as bytes: a line may be torn within a character.
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let mut lines = text.split(|byte| *byte == b'\n');
    let Some(first) = lines.next().filter(|first| !first.is_empty()) else { return Ok(None) };
    let named = |line: usize, cause: String| format!("{}, line {}: {cause}", path.display(), line + 1);
    let mut first: FirstLine<Run> = serde_json::from_slice(first).map_err(|error| named(0, error.to_string()))?;
    if first.version > VERSION {
        return Err(named(0, format!("unsupported version {} (this program supports {VERSION})", first.version)));
    }
    first.run.record_topics();
    // Unparsable lines are skipped: a failed write may have left a torn line, and was then repeated.
    let events = lines.filter_map(|line| serde_json::from_slice(line).ok());
    Ok(Some((first.run, events.collect())))
}

/// Returns the present state of the run by replaying its journal; `None` if there is no journal.
///
/// # Errors
/// Fails as [`read`] does.
pub fn replay(home: &Home) -> Result<Option<Run>, String> {
    let Some((run, events)) = read(home)? else { return Ok(None) };
    let mut run = Machine::new(run);
    for (at_ms, event) in &events {
        run.on(event, *at_ms);
    }
    Ok(Some(Run::clone(&run)))
}
