//! What an agent does, for whoever reads its worker's output and its role's feed.

use std::io::Write as _;

use swarm_actors::run::words::Word;

use super::Role;
use crate::attempt::session::Doings;
use crate::attempt::turn::Teller;

/// What is kept of the end of what it printed, in bytes.
const TAIL_BYTES: usize = 256 << 10;

/// Listens to one agent.
pub struct Spoken<'a> {
    raw: bool,
    role: &'a Role<'a>,
    doings: Doings,
    /// The last of what it printed, for agents that print no events.
    tail: Vec<u8>,
}

impl<'a> Spoken<'a> {
    pub fn new(raw: bool, role: &'a Role<'a>) -> Self {
        Self { raw, role, doings: Doings::here(), tail: Vec::new() }
    }

    /// All that it said.
    pub fn end(self) -> String {
        String::from_utf8_lossy(&self.tail).into_owned()
    }
}

impl Teller for Spoken<'_> {
    fn session(&mut self, id: String) {
        self.doings.conversation(&id);
        // Known from its first line on, so that what is cut off can be gone on with.
        let session = crate::agents::Session { id, ..Default::default() };
        let known = self.role.files.open().is_ok_and(|open| {
            let side = open.sidecar.roles.get(&self.role.order.turn.role);
            side.and_then(|side| side.session.as_ref()).is_some_and(|known| known.id == session.id)
        });
        if !known && self.role.keep_session(Some(&session)).is_err() {
            eprintln!("swarm: warning: the conversation cannot be kept");
        }
    }

    fn tell(&mut self, word: Word) {
        if let Word::Activity { text } = &word
            && !self.raw
        {
            println!("{text}");
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
    }

    fn says(&mut self) {
        self.doings.says();
    }

    fn todos(&mut self, items: &serde_json::Value) {
        self.doings.todos(items);
    }

    fn looked(&mut self) {
        self.doings.write();
    }

    fn wants_raw(&self) -> bool {
        self.raw
    }

    fn listens(&self) -> bool {
        true
    }
}
