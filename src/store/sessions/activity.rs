//! Reads and writes `activity.json`: what an agent does, as reported by itself or by the process that reads its events.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use swarm_model::{Activity, Doing, NeedKind, SessionStatus, TurnEnd};

use super::folder::Folder;
use super::store::{StoreError, load, save};
use super::{PROGRESS, PROGRESS_BYTES_MAX, TODOS, is_ours, progress};
use swarm_agents::hooks::{Heard, Word};
use swarm_sys::clock::wall_ms;
use swarm_sys::files::lock::lock_within;
use swarm_sys::files::{Durability, replace_private};

pub const ACTIVITY: &str = "activity.json";
/// Lock of [`ACTIVITY`] among the records of a worker without a session.
const LOCK: &str = "activity.lock";

/// Reported activity of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tool {
    pub at_ms: u64,
    pub calls: u64,
    pub operation: Option<String>,
    /// Question to a person that the agent waits for.
    pub waiting: Option<String>,
    /// The agent's turn is over; it waits for its next task. `waiting` then says so.
    pub idle: bool,
    /// The previous value of `waiting`. The supervisor reads reports with a delay, so its mark may still repeat this text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<String>,
    /// Kind of what the agent waits for. `None` unless it waits for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<NeedKind>,
    /// When what the agent does now began.
    pub since_ms: u64,
    /// When the agent's present or last turn began. 0 if that is unknown.
    pub turn_ms: u64,
    /// How the agent's last turn ended. `None` unless it is idle, and if the turn ended by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnEnd>,
}

impl Tool {
    /// Returns the activity after the agent reported `word`.
    pub fn after(self, word: Word, at_ms: u64) -> Self {
        self.after_both(word, None, at_ms)
    }

    /// Returns the activity after the agent reported `word`, while it still waits for what `beside` says.
    fn after_both(self, word: Word, beside: Option<Word>, at_ms: u64) -> Self {
        let before = self.clone();
        let now = self.reported(word, at_ms);
        let now = match beside {
            Some(beside) => now.reported(beside, at_ms),
            None => now,
        };
        let is_same = before.turn_ms == now.turn_ms
            && (now.doing(), &now.operation, &now.waiting) == (before.doing(), &before.operation, &before.waiting);
        Self { since_ms: if is_same && before.since_ms != 0 { before.since_ms } else { at_ms }, ..now }
    }

    /// Returns whether the agent works, is idle or waits.
    pub fn doing(&self) -> Doing {
        match &self.waiting {
            Some(_) if self.idle => Doing::Idle,
            Some(_) => Doing::Waiting,
            None => Doing::Working,
        }
    }

    fn reported(self, word: Word, at_ms: u64) -> Self {
        let Self { calls, operation, waiting, idle, kind, turn, .. } = self;
        let turn_ms = if idle || self.turn_ms == 0 { at_ms } else { self.turn_ms };
        let at_work = Self { at_ms, calls, waited: waiting.clone().or(self.waited), turn_ms, ..Self::default() };
        match word {
            // A prompt begins a turn, also if the end of the last one was not reported.
            Word::Working => Self { turn_ms: at_ms, ..at_work },
            Word::Tool(what) => Self { calls: calls.saturating_add(1), operation: Some(what), ..at_work },
            Word::Doing(what) => Self { operation: Some(what), ..at_work },
            // Another operation may have started in parallel; it stays.
            Word::Done(what) => Self { operation: operation.filter(|is| *is != what), ..at_work },
            Word::Waits(kind, what) => Self { operation, waiting: Some(what), kind: Some(kind), ..at_work },
            Word::StillWaits(what) => {
                let known = waiting.filter(|_| !idle);
                let kind = kind.filter(|_| known.is_some()).or(Some(NeedKind::Input));
                Self { operation, waiting: Some(known.unwrap_or(what)), kind, ..at_work }
            }
            // A reminder that it is idle says nothing about how its last turn ended.
            Word::Idle(_) if turn.is_some() => Self { waiting, idle, turn, ..at_work },
            Word::Idle(what) => Self { waiting: Some(what), idle: true, ..at_work },
            Word::Broken(end, cause) => {
                Self { waiting: Some(end.told(&cause)), idle: true, turn: Some(end), ..at_work }
            }
            Word::Over if idle => Self { waiting, idle, turn, ..at_work },
            Word::Over => at_work,
        }
    }
}

impl From<Tool> for Activity {
    fn from(tool: Tool) -> Self {
        let (doing, since_ms) = (tool.doing(), if tool.since_ms == 0 { tool.at_ms } else { tool.since_ms });
        let kind = (doing == Doing::Waiting).then(|| tool.kind.unwrap_or_default());
        Self { doing, what: tool.waiting.or(tool.operation), since_ms, kind, turn: tool.turn }
    }
}

/// Reads the activity of the agent in this folder; `None` if none is recorded.
pub fn read(folder: &Folder) -> Option<Tool> {
    let bytes = folder.read(ACTIVITY).ok()??;
    serde_json::from_slice(&bytes).ok()
}

/// Reads the activity of the agent in the session of `base`; `None` if none is recorded.
pub fn activity(base: &Path) -> Option<Tool> {
    read(&Folder::open(base).ok()??)
}

/// Writes the activity of an agent, and appends lines to its progress log.
///
/// # Errors
/// Returns any I/O error.
pub fn write_activity(base: &Path, tool: &Tool, lines: &[String]) -> io::Result<()> {
    let Some(folder) = Folder::open(base)? else { return Ok(()) };
    write(&folder, tool, lines)
}

fn write(folder: &Folder, tool: &Tool, lines: &[String]) -> io::Result<()> {
    folder.replace(ACTIVITY, &serde_json::to_vec(tool)?, false)?;
    if lines.is_empty() { Ok(()) } else { folder.append(PROGRESS, &lines.join("\n"), PROGRESS_BYTES_MAX) }
}

pub fn forget(folder: &Folder) {
    let _ = folder.remove(ACTIVITY);
}

/// Writes the to-do list of an agent.
///
/// # Errors
/// Returns any I/O error.
pub fn write_todos(base: &Path, todos: &serde_json::Value) -> io::Result<()> {
    let Some(folder) = Folder::open(base)? else { return Ok(()) };
    folder.replace(TODOS, format!("{todos:#}").as_bytes(), false).map(drop)
}

/// Reads the activity of the worker whose records are in `dir`; `None` if none is recorded.
pub fn recorded(dir: &Path) -> Option<Tool> {
    let bytes = std::fs::read(dir.join(ACTIVITY)).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Writes the activity of a worker among its records, from which listings read it.
///
/// # Errors
/// Returns any I/O error.
pub fn record(dir: &Path, tool: &Tool) -> io::Result<()> {
    replace_private(dir, ACTIVITY, &serde_json::to_vec(tool)?, Durability::None)
}

/// Records a report of an agent that has no session among the records of its worker.
///
/// # Errors
/// Fails if there are no such records, if another report holds the lock for longer than `limit`, or on I/O errors.
pub fn note_without_session(dir: &Path, heard: Heard, limit: Duration) -> io::Result<()> {
    note_recorded(dir, heard, None, limit)
}

/// Like [`note_without_session`]; with `seen`, only if nothing was reported since this activity.
fn note_recorded(dir: &Path, heard: Heard, seen: Option<&Tool>, limit: Duration) -> io::Result<()> {
    let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(dir.join(LOCK))?;
    let _lock = lock_within(lock, limit)?.ok_or(io::ErrorKind::TimedOut)?;
    let Some(word) = heard.word else { return Ok(()) };
    let before = recorded(dir).unwrap_or_default();
    if seen.is_some_and(|seen| *seen != before) {
        return Ok(());
    }
    record(dir, &before.after_both(word, heard.beside, wall_ms()))
}

/// Records a report of an agent in the session of `base`, under its lock, and returns the resulting activity. Also writes
/// it to `records`, the directory of the worker's records. If `launch` is given, the session must belong to it: a late
/// report of an earlier agent says nothing about the present one.
///
/// # Errors
/// Fails if there is no such session, if it has ended or belongs to another launch, if the lock is not free within
/// `limit`, or on I/O errors.
pub fn note(
    base: &Path,
    launch: Option<&str>,
    records: Option<&Path>,
    heard: Heard,
    limit: Duration,
) -> Result<Tool, StoreError> {
    note_in(base, launch, records, heard, None, limit)
}

/// Records how a turn ended that the agent itself does not report, in its session `base` if it has one, unless it has
/// reported something since `seen`.
///
/// # Errors
/// Fails like [`note`] and [`note_without_session`].
pub fn note_end(
    (base, launch): (Option<&Path>, &str),
    records: &Path,
    seen: &Tool,
    (end, cause): (TurnEnd, String),
    limit: Duration,
) -> Result<(), StoreError> {
    let heard = Heard { word: Some(Word::Broken(end, cause)), ..Heard::default() };
    match base {
        Some(base) => note_in(base, Some(launch), Some(records), heard, Some(seen), limit).map(drop),
        None => Ok(note_recorded(records, heard, Some(seen), limit)?),
    }
}

fn note_in(
    base: &Path,
    launch: Option<&str>,
    records: Option<&Path>,
    heard: Heard,
    seen: Option<&Tool>,
    limit: Duration,
) -> Result<Tool, StoreError> {
    let folder = Folder::open(base)?.ok_or_else(|| StoreError::NotFound(base.to_owned()))?;
    let lock = folder.lock_within(limit)?.ok_or_else(|| folder.lock_timeout(limit))?;
    let mut session = load(&folder)?.ok_or_else(|| StoreError::NotFound(base.to_owned()))?;
    let closed = |cause: &'static str| StoreError::Closed { path: folder.path().to_owned(), cause };
    if launch.is_some_and(|launch| !is_ours(&session, launch)) {
        return Err(closed("belongs to another launch"));
    }
    if session.status().is_some_and(SessionStatus::is_over) {
        return Err(closed("has ended"));
    }
    let before = read(&folder).unwrap_or_default();
    if seen.is_some_and(|seen| *seen != before) {
        return Ok(before);
    }
    let Some(word) = heard.word else { return Ok(before) };
    let line = match &word {
        Word::Tool(what) => vec![progress::line("tool", what)],
        _ => Vec::new(),
    };
    let now = before.after_both(word, heard.beside, wall_ms());
    write(&folder, &now, &line)?;
    if let Some(records) = records {
        record(records, &now)?;
    }
    if let Some(items) = heard.todos {
        let todos = json!({ "updatedAt": now.at_ms, "items": items });
        folder.replace(TODOS, format!("{todos:#}").as_bytes(), false)?;
    }
    // Last, because it is slow; it happens once per conversation.
    if let Some(id) = heard.conversation
        && session.text("providerSessionId").as_deref() != Some(&id)
    {
        session.set("providerSessionId", &id);
        save(&folder, &lock, session, true)?;
    }
    Ok(now)
}

#[cfg(test)]
#[path = "activity_tests.rs"]
mod tests;
