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
            swarm_sys::complain!("swarm: warning: cannot record the conversation in the session: {error}");
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
        // Both are taken: an agent whose tool was denied has an operation and waits.
        let (operation, waiting) = (self.now.operation.take(), self.now.waiting.take());
        self.changed |= operation.is_some() || waiting.is_some();
    }

    /// A person has answered. `what` is the use of a tool that goes on, if one was allowed.
    pub fn answered(&mut self, what: Option<String>) {
        self.changed |= self.now.waiting.take().is_some() || what.is_some();
        if what.is_some() {
            (self.now.at_ms, self.now.operation) = (wall_ms(), what);
        }
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
            swarm_sys::complain!("swarm: warning: cannot record the task list in the session: {error}");
        }
    }

    /// Writes changes, at most once per `PAUSE`. Called after each batch of output. Returns the time after which the
    /// changes that are held back can be written; `None` if there are none.
    pub fn write(&mut self) -> Option<Duration> {
        let base = self.base.as_ref().filter(|_| self.changed)?;
        let left = self.written.and_then(|written| PAUSE.checked_sub(written.elapsed()));
        if left.is_some_and(|left| !left.is_zero()) {
            return left;
        }
        self.written = Some(Instant::now());
        self.changed = false;
        // On a full disk this is lost, as reports are.
        let _ = sessions::write_activity(base, &self.now, &std::mem::take(&mut self.lines));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_are_held_back_are_written_later() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(dir.path().join(FOLDER)).expect("made");
        let base = Some(dir.path().to_owned());
        let mut doings = Doings { base, now: Tool::default(), lines: Vec::new(), changed: false, written: None };
        assert_eq!(doings.write(), None, "nothing has changed");
        doings.tool("Bash rm");
        doings.waits("nobody could be asked");
        doings.says();
        let left = doings.write().expect("the last write was less than a second ago");
        assert!(!left.is_zero() && left <= PAUSE && doings.changed, "{left:?}");
        doings.written = None;
        assert_eq!((doings.write(), doings.changed), (None, false));
        assert_eq!((&doings.now.operation, &doings.now.waiting), (&None, &None), "a message ends both");
        doings.waits("request 1: make");
        doings.answered(Some("Bash: make".to_owned()));
        assert_eq!((doings.now.operation.as_deref(), &doings.now.waiting), (Some("Bash: make"), &None));
        doings.answered(None);
        assert_eq!(doings.now.operation.as_deref(), Some("Bash: make"), "it goes on");
    }
}
