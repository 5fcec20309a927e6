//! Writes an agent's activity to its session: conversation, task list and current operation. Failures are only warned
//! of.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use swarm_store::sessions::{self, Change, FOLDER, StoreError, Tool};
use swarm_sys::clock::wall_ms;

/// Minimum interval between two writes.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of buffered progress lines.
const LINES_MAX: usize = 1_000;

pub struct Doings {
    /// Directory with the session; `None` if there is no session.
    base: Option<PathBuf>,
    now: Tool,
    /// Unwritten progress lines.
    lines: Vec<String>,
    changed: bool,
    written: Option<Instant>,
}

impl Doings {
    /// Returns the activity of the agent in the current directory.
    pub fn here() -> Self {
        let base = std::env::current_dir().ok().filter(|base| base.join(FOLDER).is_dir());
        Self { base, now: Tool::default(), lines: Vec::new(), changed: false, written: None }
    }

    pub fn conversation(&self, id: &str) {
        let Some(base) = &self.base else { return };
        let noted = sessions::update::<_, StoreError>(base, |session| {
            if session.text("providerSessionId").as_deref() == Some(id) {
                return Ok(Change::Keep(()));
            }
            session.set("providerSessionId", &id);
            Ok(Change::Write(()))
        });
        if let Err(error) = noted {
            eprintln!("swarm: warning: cannot record the conversation in the session: {error}");
        }
    }

    pub fn tool(&mut self, what: &str) {
        self.now.calls += 1;
        self.now.at_ms = wall_ms();
        self.now.operation = Some(what.to_owned());
        self.now.waiting = None;
        self.changed = true;
        if self.lines.len() < LINES_MAX {
            self.lines.push(sessions::progress_line("tool", what));
        }
    }

    /// The agent writes a message, so no tool is in use.
    pub fn says(&mut self) {
        self.changed |= self.now.operation.take().is_some() || self.now.waiting.take().is_some();
    }

    pub fn waits(&mut self, what: &str) {
        self.now.waiting = Some(what.to_owned());
        self.changed = true;
        // Written at once, because the agent may print nothing more.
        self.written = None;
        self.write();
    }

    /// Records the task list. Items are as the agent wrote them: content, status, activeForm.
    pub fn todos(&self, items: &Value) {
        let Some(base) = &self.base else { return };
        let todos = json!({ "updatedAt": wall_ms(), "items": items });
        if let Err(error) = sessions::write_todos(base, &todos) {
            eprintln!("swarm: warning: cannot record the task list in the session: {error}");
        }
    }

    /// Writes changes, at most once per `PAUSE`. Called after each batch of output.
    pub fn write(&mut self) {
        let Some(base) = self.base.as_ref().filter(|_| self.changed) else { return };
        if self.written.is_some_and(|written| written.elapsed() < PAUSE) {
            return;
        }
        self.written = Some(Instant::now());
        self.changed = false;
        // On a full disk this is lost, as reports are.
        let _ = sessions::write_activity(base, &self.now, &std::mem::take(&mut self.lines));
    }
}
