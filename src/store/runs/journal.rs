//! The journal of a run, `run.jsonl`. The first line is the run at its start, each further line an event with its time.
//! Appended lines are synced before anything acts on them, so a line torn by a crash had no effect.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead as _, BufReader};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use swarm_actors::run::machine::Machine;
use swarm_git::repository::is_branch_name;
use swarm_model::run::Event;
use swarm_model::run::progress::Run;

use super::home::{Home, append_lines};
use super::records;
use crate::lines::{Damage, is_torn};
use swarm_sys::files::{open_regular, replace_durably};

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

/// Content of a journal.
pub struct Journal {
    /// State of the run at its start.
    pub run: Run,
    /// Events since then. If the journal is damaged, these begin with [`Event::Repaired`].
    pub events: Happened,
    pub damage: Vec<Damage>,
    /// [`Event::Repaired`] is not in the file yet.
    pub is_repaired_now: bool,
}

/// Replaces the journal by a new one that contains only the first line.
///
/// # Errors
/// Returns any I/O error; the old journal then still exists.
pub fn begin(home: &Home, run: &Run, request: &str) -> io::Result<()> {
    let mut line = serde_json::to_vec(&FirstLine { version: VERSION, request: Some(request.to_owned()), run })?;
    line.push(b'\n');
    replace_durably(home.path(), "run.jsonl", &line)
}

/// Writes a journal anew that somebody deleted: the request that began the run, and its present state.
///
/// # Errors
/// Returns any I/O error.
pub fn restart(home: &Home, run: &Run, request: &str, at_ms: u64) -> io::Result<()> {
    let first = FirstLine { version: VERSION, request: Some(request.to_owned()), run };
    // Without an event, the run would begin once more when it is resumed.
    let event = (at_ms, Event::Repaired { run: Box::new(run.clone()) });
    let text = format!("{}\n{}\n", serde_json::to_string(&first)?, serde_json::to_string(&event)?);
    replace_durably(home.path(), "run.jsonl", text.as_bytes())
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
    let run = first_line::<Run>(home)?.run;
    check_names(&run).map_err(io::Error::other)?;
    Ok(run)
}

/// Checks the names in a run: those of branches, and parts of paths. A journal that a commit brought may contain any
/// text.
fn check_names(run: &Run) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !run.plan.slug.chars().all(is_plain) {
        return Err(format!("invalid prefix of workers '{}'", run.plan.slug));
    }
    if let Some(base) = run.plan.base.as_ref().filter(|base| !is_branch_name(base)) {
        return Err(format!("'{base}' is not a valid branch name"));
    }
    for job in &run.plan.jobs {
        if job.id.contains('/') || !is_branch_name(&format!("arial/{}", job.id)) {
            return Err(format!("invalid name of a workstream '{}'", job.id));
        }
        if let Some(branch) = job.branch.as_ref().filter(|branch| !is_branch_name(branch)) {
            return Err(format!("'{branch}' is not a valid branch name"));
        }
    }
    Ok(())
}

/// Reads only the first line; the events may be long.
fn first_line<R: DeserializeOwned>(home: &Home) -> io::Result<FirstLine<R>> {
    let mut line = Vec::new();
    BufReader::new(records::open(home.journal())?).read_until(b'\n', &mut line)?;
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
        let _ = open_regular(OpenOptions::new().write(true), &path).and_then(|file| file.set_len(length));
    }
    written
}

/// Reads the run at its start and all events since; `None` if there is no journal.
///
/// # Errors
/// Fails as [`read_all`] does.
pub fn read(home: &Home) -> Result<Option<(Run, Happened)>, String> {
    Ok(read_all(home)?.map(|journal| (journal.run, journal.events)))
}

/// Reads the journal; `None` if there is none. If lines in the middle cannot be read, the state is rebuilt from the
/// others and from the reports in `events.jsonl`, which are written after the journal.
///
/// # Errors
/// Fails with a message for users if the file cannot be read, its first line cannot be parsed, it has a newer version, or it
/// contains an invalid name.
pub fn read_all(home: &Home) -> Result<Option<Journal>, String> {
    let path = home.journal();
    // Read as bytes: a line may be torn within a character.
    let text = match records::read(&path) {
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
    check_names(&first.run).map_err(|cause| named(0, cause))?;
    first.run.record_topics();
    let (mut events, mut damage) = (Happened::new(), Vec::new());
    // Number of events before the first damaged line after the last repair.
    let mut sound = None;
    let lines: Vec<&[u8]> = lines.collect();
    for (at, line) in lines.iter().enumerate() {
        match serde_json::from_slice::<(u64, Event)>(line) {
            Ok((at_ms, event)) if matches!(event, Event::Repaired { .. }) => {
                if let Event::Repaired { run } = &event {
                    check_names(run).map_err(|cause| named(at + 1, cause))?;
                }
                sound = None;
                events = vec![(at_ms, event)];
            }
            Ok(event) => events.push(event),
            // A failed write may have left a part of a line, and was then repeated.
            Err(error) if at + 1 == lines.len() || is_torn(line, &error) => {}
            Err(error) => {
                sound.get_or_insert(events.len());
                damage.push(Damage { line: at + 2, cause: error.to_string() });
            }
        }
    }
    let is_repaired_now = sound.is_some();
    if let Some(sound) = sound {
        events = vec![repaired(home, first.run.clone(), &events, sound)];
    }
    Ok(Some(Journal { run: first.run, events, damage, is_repaired_now }))
}

/// Rebuilds the state of a run from the events that can be read, `sound` of which precede the first damaged line.
fn repaired(home: &Home, run: Run, events: &[(u64, Event)], sound: usize) -> (u64, Event) {
    let mut machine = Machine::new(run);
    // Reports of an earlier run may be about the same jobs.
    let since = machine.told;
    for (at, (at_ms, event)) in events.iter().enumerate() {
        if at >= sound {
            machine.catch_up(event, *at_ms);
        }
        machine.on(event, *at_ms);
    }
    let at_ms = events.last().map_or(0, |(at_ms, _)| *at_ms);
    let ends = super::events::ends(home, &machine.plan, since);
    let told = super::events::count(home, &machine.plan.id);
    (at_ms, Event::Repaired { run: Box::new(machine.repaired(&ends, told, at_ms)) })
}

/// Describes a damaged line, with the file.
pub fn shown(home: &Home, damage: &Damage) -> String {
    format!("{}, line {}: {}", home.journal().display(), damage.line, damage.cause)
}

/// Returns the present state of the run by replaying its journal; `None` if there is no journal.
///
/// # Errors
/// Fails as [`read`] does.
pub fn replay(home: &Home) -> Result<Option<Run>, String> {
    Ok(read_all(home)?.map(Journal::present))
}

impl Journal {
    /// Returns the present state of the run.
    pub fn present(self) -> Run {
        let mut run = Machine::new(self.run);
        for (at_ms, event) in &self.events {
            run.on(event, *at_ms);
        }
        Run::clone(&run)
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
