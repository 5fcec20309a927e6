//! The board for all tabs of a browser. Files are watched and read only while a tab listens, and once when one asks.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use swarm_sys::clock::random_token;
use swarm_sys::paths::Paths;
use swarm_sys::readable::Readable;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::board::source::Source;
use crate::board::{Board, Kind, wire};

pub struct Hub {
    /// Name of the board: revisions count in it alone.
    id: String,
    state: Mutex<State>,
    /// Changes with each change of the state.
    changed: watch::Sender<(u64, u64)>,
    listeners: watch::Sender<usize>,
}

struct State {
    source: Source,
    board: Board,
    warnings: Vec<String>,
    /// Number of changes of the warnings.
    warned: u64,
}

/// A listener. Files are watched while one exists.
pub struct Listening {
    hub: Arc<Hub>,
    changed: watch::Receiver<(u64, u64)>,
}

impl Hub {
    /// Starts the task that reads while somebody listens. Must be called within a runtime.
    ///
    /// # Errors
    /// Fails if the kernel has no descriptor left.
    pub fn start(paths: &Paths) -> io::Result<Arc<Self>> {
        let source = Source::new(paths)?;
        let readable = Readable::new(source.as_fd().try_clone_to_owned()?)?;
        let state = State { source, board: Board::default(), warnings: Vec::new(), warned: 0 };
        let (changed, listeners) = (watch::Sender::default(), watch::Sender::default());
        let hub = Arc::new(Self { id: random_token(), state: Mutex::new(state), changed, listeners });
        tokio::spawn(Arc::clone(&hub).run(readable));
        Ok(hub)
    }

    async fn run(self: Arc<Self>, readable: Readable) {
        let mut listeners = self.listeners.subscribe();
        loop {
            if listeners.wait_for(|count| *count > 0).await.is_err() {
                return;
            }
            self.look();
            let due = self.state().source.due();
            let due = async {
                match due {
                    Some(due) => sleep_until(Instant::from_std(due)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ready = readable.wait() => if ready.is_err() { return },
                () = due => {}
                _ = listeners.wait_for(|count| *count == 0) => {}
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what has changed, unless the last look was just now.
    fn look(&self) {
        let mut state = self.state();
        let State { source, board, warnings, warned } = &mut *state;
        let before = board.rev();
        match source.look(board) {
            // Nothing was read, perhaps.
            Ok(found) if found.is_empty() && board.rev() == before => {}
            Ok(found) => set(warnings, found, warned),
            Err(refusal) => set(warnings, vec![refusal.cause], warned),
        }
        let now = (board.rev(), *warned);
        drop(state);
        self.changed.send_if_modified(|known| std::mem::replace(known, now) != now);
    }

    /// Returns what is newer than a revision of this board, or everything.
    pub fn since(&self, board: Option<&str>, rev: u64) -> String {
        self.look();
        self.told(board, rev)
    }

    fn told(&self, board: Option<&str>, rev: u64) -> String {
        let state = self.state();
        let is_whole = board != Some(&self.id) || state.board.since(rev).is_whole;
        if is_whole { wire::whole(&self.id, &state.board) } else { wire::change(&self.id, &state.board, rev) }
    }

    /// Brings the board up to date, also if nobody listens.
    pub fn read(&self) {
        self.look();
    }

    /// Returns a row of the board as JSON.
    pub fn row(&self, kind: Kind, key: &str) -> Option<String> {
        let state = self.state();
        let since = state.board.since(0);
        let mut rows = since.rows.into_iter().filter(|(_, row, _)| row.kind == kind && row.name == key);
        rows.next().map(|(_, _, text)| text.clone())
    }

    pub fn listen(self: &Arc<Self>) -> Listening {
        self.look();
        self.listeners.send_modify(|count| *count += 1);
        let mut changed = self.changed.subscribe();
        changed.mark_changed();
        Listening { hub: Arc::clone(self), changed }
    }
}

fn set(warnings: &mut Vec<String>, found: Vec<String>, count: &mut u64) {
    if *warnings != found {
        *warnings = found;
        *count += 1;
    }
}

impl Listening {
    /// Waits for a change; at first there is one.
    pub async fn wait(&mut self) {
        // The hub has the sender.
        let _ = self.changed.changed().await;
    }

    /// Returns the present revision, and what is newer than another one. `None`: nothing.
    pub fn since(&self, board: Option<&str>, rev: u64) -> (u64, Option<String>) {
        let now = self.hub.state().board.rev();
        let is_new = board != Some(&self.hub.id) || now != rev || rev == 0;
        (now, is_new.then(|| self.hub.told(board, rev)))
    }

    pub fn board(&self) -> &str {
        &self.hub.id
    }

    /// Returns the warnings, with the number of their changes so far.
    pub fn warnings(&self) -> (u64, Vec<String>) {
        let state = self.hub.state();
        (state.warned, state.warnings.clone())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.hub.listeners.send_modify(|count| *count -= 1);
    }
}
