//! What an agent is at, for whoever looks into its session: its conversation, its list of
//! what is to do, the operation of the moment. None of it is worth failing for.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use swarm_store::sessions::{self, Change, FOLDER, StoreError, Tool};
use swarm_sys::clock::wall_ms;

/// An agent that does much is noted this often.
const PAUSE: Duration = Duration::from_secs(1);
/// Lines of progress that are kept back at most.
const LINES_MAX: usize = 1_000;

pub struct Doings {
    /// The directory that has the session; none where there is none.
    base: Option<PathBuf>,
    now: Tool,
    /// Not yet written.
    lines: Vec<String>,
    changed: bool,
    written: Option<Instant>,
}

impl Doings {
    /// Those of the agent that works here.
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
            eprintln!("swarm: warning: the conversation is not noted in the session: {error}");
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

    /// It says something: it is at no tool.
    pub fn says(&mut self) {
        self.changed |= self.now.operation.take().is_some() || self.now.waiting.take().is_some();
    }

    pub fn waits(&mut self, what: &str) {
        self.now.waiting = Some(what.to_owned());
        self.changed = true;
        // It may say nothing more.
        self.written = None;
        self.write();
    }

    /// `items` as the agent wrote them: content, status, activeForm.
    pub fn todos(&self, items: &Value) {
        let Some(base) = &self.base else { return };
        let todos = json!({ "updatedAt": wall_ms(), "items": items });
        if let Err(error) = sessions::write_todos(base, &todos) {
            eprintln!("swarm: warning: its list of what is to do is not noted in the session: {error}");
        }
    }

    /// All that it had printed was looked at.
    pub fn write(&mut self) {
        let Some(base) = self.base.as_ref().filter(|_| self.changed) else { return };
        if self.written.is_some_and(|written| written.elapsed() < PAUSE) {
            return;
        }
        self.written = Some(Instant::now());
        self.changed = false;
        // A full disk loses it, as it loses reports.
        let _ = sessions::write_activity(base, &self.now, &std::mem::take(&mut self.lines));
    }
}
