//! `activity.json`: what an agent is at, by its own word or that of who listens to it.

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

/// What an agent itself, or who listens to it, says that it does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tool {
    pub at_ms: u64,
    pub calls: u64,
    pub operation: Option<String>,
    /// What it asks a person.
    pub waiting: Option<String>,
    /// It asks for what is next, since it has done what it was told.
    pub idle: bool,
}

impl Tool {
    /// The same after it has said this.
    pub fn after(self, word: Word, at_ms: u64) -> Self {
        let Self { calls, operation, waiting, idle, .. } = self;
        let at_work = Self { at_ms, calls, ..Self::default() };
        match word {
            Word::Working => at_work,
            Word::Tool(what) => Self { calls: calls.saturating_add(1), operation: Some(what), ..at_work },
            Word::Doing(what) => Self { operation: Some(what), ..at_work },
            // Another one may have been begun beside it.
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

/// What the agent whose folder this is says that it is at.
pub fn read(folder: &Folder) -> Option<Tool> {
    let bytes = folder.read(ACTIVITY).ok()??;
    serde_json::from_slice(&bytes).ok()
}

/// The same of the session in `base`.
pub fn activity(base: &Path) -> Option<Tool> {
    read(&Folder::open(base).ok()??)
}

/// What an agent is at, and what it did since this was last written.
///
/// # Errors
/// What the system says.
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

/// What an agent means to do.
///
/// # Errors
/// What the system says.
pub fn write_todos(base: &Path, todos: &serde_json::Value) -> io::Result<()> {
    let Some(folder) = Folder::open(base)? else { return Ok(()) };
    folder.replace(TODOS, format!("{todos:#}").as_bytes(), false).map(drop)
}

/// Notes what an agent has said in the session of `base`, under its lock, and gives what
/// it is at now. Only for the launch that the session is of, where one is named: what
/// comes late from an earlier agent says nothing of the one that is at work.
///
/// # Errors
/// When there is no such session or it is over, or what the system says; the lock is
/// waited for no longer than `limit`.
pub fn note(base: &Path, launch: Option<&str>, heard: Heard, limit: Duration) -> Result<Tool, StoreError> {
    let folder = Folder::open(base)?.ok_or_else(|| StoreError::NotFound(base.to_owned()))?;
    let lock = folder.lock_within(limit)?.ok_or_else(|| folder.is_locked(limit))?;
    let mut session = load(&folder)?.ok_or_else(|| StoreError::NotFound(base.to_owned()))?;
    let closed = |cause: &'static str| StoreError::Closed { path: folder.path().to_owned(), cause };
    if launch.is_some_and(|launch| !is_ours(&session, launch)) {
        return Err(closed("is that of another launch"));
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
    // Last: it is the slow part, once for each conversation.
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
