//! Reports an agent's activity to the worker's output, the role's feed and the session.

use std::io::Write as _;
use std::time::{Duration, Instant};

use swarm_model::run::words::Word;

use super::Role;
use crate::processes::attempt::session::Doings;
use crate::processes::attempt::turn::Teller;
use swarm_store::flows::feed::Kind;

/// Minimum interval between two writes to the feed.
const PAUSE: Duration = Duration::from_secs(1);
/// Number of bytes that are kept of the end of the output.
const TAIL_BYTES: usize = 256 << 10;

/// Receiver of the activity of one agent.
pub struct Spoken<'a> {
    raw: bool,
    role: &'a Role<'a>,
    doings: Doings,
    /// Items that are not in the feed yet.
    items: Vec<(Kind, String)>,
    written: Option<Instant>,
    /// End of the output, for agents that print no events.
    tail: Vec<u8>,
}

impl<'a> Spoken<'a> {
    pub fn new(raw: bool, role: &'a Role<'a>) -> Self {
        Self { raw, role, doings: Doings::here(), items: Vec::new(), written: None, tail: Vec::new() }
    }

    /// Flushes the feed, and returns the end of the output of an agent that prints no events.
    pub fn end(mut self) -> String {
        let spoken = String::from_utf8_lossy(&self.tail).into_owned();
        if self.raw && !spoken.trim().is_empty() {
            self.items.push((Kind::Assistant, spoken.trim().to_owned()));
        }
        self.write();
        spoken
    }

    fn write(&mut self) {
        self.role.note(&std::mem::take(&mut self.items));
        self.written = Some(Instant::now());
    }
}

impl Teller for Spoken<'_> {
    fn session(&mut self, id: String) {
        self.doings.conversation(&id);
        // Recorded at its first line, so that an interrupted conversation can be resumed.
        let session = swarm_agents::Session { id, ..Default::default() };
        let known = self.role.files.open().is_ok_and(|open| {
            let side = open.sidecar.roles.get(&self.role.order.turn.role);
            side.and_then(|side| side.session.as_ref()).is_some_and(|known| known.id == session.id)
        });
        if !known && self.role.keep_session(Some(&session)).is_err() {
            swarm_sys::complain!("swarm: warning: cannot record the conversation");
        }
    }

    fn tell(&mut self, word: Word) {
        if let Word::Activity { text } = &word
            && !self.raw
        {
            swarm_sys::say!("{text}");
            let is_tool = self.items.last().is_some_and(|(kind, last)| *kind == Kind::Tool && last == text);
            if !is_tool {
                self.items.push((Kind::Assistant, text.clone()));
            }
        }
    }

    fn raw(&mut self, bytes: &[u8]) {
        let _ = std::io::stdout().write_all(bytes);
        self.tail.extend_from_slice(bytes);
        if self.tail.len() > 2 * TAIL_BYTES {
            self.tail.drain(..self.tail.len() - TAIL_BYTES);
        }
    }

    fn tool(&mut self, what: &str) {
        self.doings.tool(what);
        self.items.push((Kind::Tool, what.to_owned()));
    }

    fn says(&mut self) {
        self.doings.says();
    }

    fn todos(&mut self, items: &serde_json::Value) {
        self.doings.todos(items);
    }

    fn looked(&mut self) -> Option<Duration> {
        let doings = self.doings.write();
        let left = self.written.and_then(|written| PAUSE.checked_sub(written.elapsed()));
        if self.items.is_empty() {
            return doings;
        }
        let Some(left) = left.filter(|left| !left.is_zero()) else {
            self.write();
            return doings;
        };
        Some(doings.map_or(left, |doings| doings.min(left)))
    }

    fn wants_raw(&self) -> bool {
        self.raw
    }

    fn listens(&self) -> bool {
        true
    }
}
