//! Record of the conversation and of its usage while a turn runs. An attempt may be killed with its agent; then this record
//! is all that is known of what it used.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use swarm_agents::Session;
use swarm_model::run::progress::Spent;
use swarm_store::runs::order;

/// Minimum interval between two writes. Answers take longer, so that nearly each is recorded at once.
const PAUSE: Duration = Duration::from_millis(100);

pub struct Usage {
    /// Directory of the attempt.
    dir: PathBuf,
    /// Conversation at the beginning of the turn.
    before: Option<Session>,
    now: Option<Session>,
    changed: bool,
    written: Option<Instant>,
}

impl Usage {
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, before: None, now: None, changed: false, written: None }
    }

    /// Starts the record of a turn. `session` is the conversation that the turn continues.
    pub fn begin(&mut self, session: Option<&Session>) {
        self.before = session.cloned();
        self.now = session.cloned();
        self.changed = false;
    }

    /// Records the id of the conversation at once, so that an interrupted conversation can be resumed.
    pub fn named(&mut self, id: String) {
        if self.before.as_ref().is_none_or(|before| before.id != id) {
            self.before = Some(Session { id, ..Session::default() });
        }
        self.now.clone_from(&self.before);
        self.changed = true;
        self.written = None;
        self.write();
        // The first answer is recorded at once as well.
        self.written = None;
    }

    /// Notes the usage of the turn so far.
    pub fn spent(&mut self, spent: Spent) {
        let Some(before) = &self.before else { return };
        self.now = Some(Session { unreported: before.unreported.plus(spent), ..before.clone() });
        self.changed = true;
    }

    /// Records the conversation after the end of the turn.
    pub fn end(&mut self, session: &Session) {
        self.changed = false;
        if let Err(error) = order::write_session(&self.dir, session) {
            swarm_sys::complain!("swarm: warning: cannot record the conversation: {error}");
        }
    }

    /// Writes changes, at most once per `PAUSE`. Returns the time after which changes that are held back can be written.
    pub fn write(&mut self) -> Option<Duration> {
        let now = self.now.as_ref().filter(|_| self.changed)?;
        let left = self.written.and_then(|written| PAUSE.checked_sub(written.elapsed()));
        if left.is_some_and(|left| !left.is_zero()) {
            return left;
        }
        // On a full disk this is lost, as reports are.
        let _ = order::write_session(&self.dir, now);
        self.written = Some(Instant::now());
        self.changed = false;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_recorded_while_the_turn_runs() {
        let dir = tempfile::tempdir().expect("a directory");
        let tokens = |input_tokens| Spent { input_tokens, unpriced: true, ..Spent::default() };
        let before = Session { id: "a".to_owned(), spent: tokens(10), unreported: tokens(1) };
        let mut usage = Usage::new(dir.path().to_owned());
        usage.begin(Some(&before));
        usage.named("a".to_owned());
        assert_eq!(order::read_session(dir.path()), Some(before.clone()));
        usage.spent(tokens(5));
        assert_eq!(usage.write(), None, "the first answer is recorded at once");
        usage.spent(tokens(7));
        usage.written = Some(Instant::now() + PAUSE);
        assert!(usage.write().is_some(), "it is held back");
        usage.written = None;
        assert_eq!(usage.write(), None);
        let recorded = order::read_session(dir.path()).expect("recorded");
        assert_eq!((recorded.spent, recorded.unreported), (tokens(10), tokens(8)));
        assert_eq!(recorded.since(Some(&before)), tokens(7));
        usage.named("b".to_owned());
        let other = order::read_session(dir.path()).expect("recorded");
        assert_eq!((other.id.as_str(), other.spent), ("b", Spent::default()), "another conversation");
    }
}
