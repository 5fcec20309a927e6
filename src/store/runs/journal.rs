//! `run.jsonl`: the run as it began on the first line, and on each that follows what
//! has happened, with its time. Appended to and synced; a line that a crash tore is
//! one that nobody acted upon.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use swarm_actors::run::machine::Machine;
use swarm_model::run::Event;
use swarm_model::run::progress::Run;

use super::home::{Home, append_lines};
use swarm_sys::files::replace_durably;

/// Raised when an older program could not read what is written.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Beginning<R> {
    version: u32,
    /// The request that it began by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<String>,
    run: R,
}

/// What has happened, each with its time in Unix milliseconds.
pub type Happened = Vec<(u64, Event)>;

/// Begins a new journal in place of what is there.
///
/// # Errors
/// What the system says; the old one is there then.
pub fn begin(home: &Home, run: &Run, request: &str) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Beginning { version: VERSION, request: Some(request.to_owned()), run })?;
    line.push(b'\n');
    replace_durably(home.path(), "run.jsonl", &line)
}

/// The request that the run began by which is there; older ones do not say.
///
/// # Errors
/// What the system or the parser says; not found where none is there.
pub fn request(home: &Home) -> io::Result<Option<String>> {
    beginning::<IgnoredAny>(home).map(|begun| begun.request)
}

/// The run as it began.
///
/// # Errors
/// As [`request`].
pub fn begun(home: &Home) -> io::Result<Run> {
    beginning::<Run>(home).map(|begun| begun.run)
}

/// The first line alone: what follows may be long.
fn beginning<R: DeserializeOwned>(home: &Home) -> io::Result<Beginning<R>> {
    let mut line = Vec::new();
    BufReader::new(File::open(home.journal())?).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

/// Makes what happened durable.
///
/// # Errors
/// What the system says; nothing of it is there then, as far as the disk lets.
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
        // It is written again, and what happened twice would be told twice. Nobody
        // else writes here.
        let _ = OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(length));
    }
    written
}

/// The run as it began and what has happened since; `None` where there is no journal.
///
/// # Errors
/// A sentence for people.
pub fn read(home: &Home) -> Result<Option<(Run, Happened)>, String> {
    let path = home.journal();
    // A line may be torn within a character.
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let mut lines = text.split(|byte| *byte == b'\n');
    let Some(first) = lines.next().filter(|first| !first.is_empty()) else { return Ok(None) };
    let named = |line: usize, cause: String| format!("{}, line {}: {cause}", path.display(), line + 1);
    let beginning: Beginning<Run> = serde_json::from_slice(first).map_err(|error| named(0, error.to_string()))?;
    if beginning.version > VERSION {
        return Err(named(0, format!("it is of version {}, this program knows {VERSION}", beginning.version)));
    }
    // A write that failed half-way left a torn line, and was made again after it.
    let events = lines.filter_map(|line| serde_json::from_slice(line).ok());
    Ok(Some((beginning.run, events.collect())))
}

/// The run as it is now by its journal.
///
/// # Errors
/// As [`read`].
pub fn replay(home: &Home) -> Result<Option<Run>, String> {
    let Some((run, events)) = read(home)? else { return Ok(None) };
    let mut run = Machine::new(run);
    for (at_ms, event) in &events {
        run.on(event, *at_ms);
    }
    Ok(Some(Run::clone(&run)))
}
