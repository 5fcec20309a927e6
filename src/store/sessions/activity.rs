//! Reads and writes `activity.json`: what an agent does, as reported by itself or by the process that reads its events.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use swarm_model::SessionStatus;

use super::folder::Folder;
use super::store::{StoreError, load, save};
use super::{PROGRESS, PROGRESS_BYTES_MAX, TODOS, is_ours, progress_line};
use swarm_agents::hooks::{Heard, Word};
use swarm_sys::clock::wall_ms;

const ACTIVITY: &str = "activity.json";

/// Reported activity of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tool {
    pub at_ms: u64,
    pub calls: u64,
    pub operation: Option<String>,
    /// Question to a person that the agent waits for.
    pub waiting: Option<String>,
    /// The agent has finished its task and waits for the next one.
    pub idle: bool,
}

impl Tool {
    /// Returns the activity after the agent reported `word`.
    pub fn after(self, word: Word, at_ms: u64) -> Self {
        let Self { calls, operation, waiting, idle, .. } = self;
        let at_work = Self { at_ms, calls, ..Self::default() };
        match word {
            Word::Working => at_work,
            Word::Tool(what) => Self { calls: calls.saturating_add(1), operation: Some(what), ..at_work },
            Word::Doing(what) => Self { operation: Some(what), ..at_work },
            // Another operation may have started in parallel; it stays.
            Word::Done(what) => Self { operation: operation.filter(|is| *is != what), ..at_work },
            Word::Waits(what) => Self { operation, waiting: Some(what), ..at_work },
            Word::StillWaits(what) => {
                let known = waiting.filter(|_| !idle);
                Self { operation, waiting: Some(known.unwrap_or(what)), ..at_work }
            }
            Word::Idle(what) => Self { waiting: Some(what), idle: true, ..at_work },
        }
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

/// Records a report of an agent in the session of `base`, under its lock, and returns the resulting activity. If
/// `launch` is given, the session must belong to it: a late report of an earlier agent says nothing about the
/// present one.
///
/// # Errors
/// Fails if there is no such session, if it has ended or belongs to another launch, if the lock is not free within
/// `limit`, or on I/O errors.
pub fn note(base: &Path, launch: Option<&str>, heard: Heard, limit: Duration) -> Result<Tool, StoreError> {
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
    let Some(word) = heard.word else { return Ok(before) };
    let line = match &word {
        Word::Tool(what) => vec![progress_line("tool", what)],
        _ => Vec::new(),
    };
    let now = before.after(word, wall_ms());
    write(&folder, &now, &line)?;
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
