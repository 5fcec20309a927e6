//! Buffered writes to the workstream's log and to the run's `events.jsonl`. Both are flushed after each batch of the
//! agent's output: much output costs few system calls, and little output is visible at once.

use std::path::PathBuf;

use swarm_model::run::words::Word;

use super::log::Log;
use swarm_store::runs::events;
use swarm_sys::clock::wall_ms;

/// Maximum size of each buffer, in bytes.
const BYTES_MAX: usize = 256 << 10;

pub struct Diary {
    log: Log,
    events: PathBuf,
    run: String,
    job: String,
    /// Unwritten part of the log.
    noted: Vec<u8>,
    /// Unwritten events.
    told: String,
}

impl Diary {
    pub fn new(log: Log, events: PathBuf, run: &str, job: &str) -> Self {
        let (run, job) = (run.to_owned(), job.to_owned());
        Self { log, events, run, job, noted: Vec::new(), told: String::new() }
    }

    pub fn note(&mut self, text: &str) {
        self.noted.extend_from_slice(text.as_bytes());
        self.noted.push(b'\n');
        self.write_much();
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.noted.extend_from_slice(bytes);
        self.write_much();
    }

    pub fn tell(&mut self, word: Word) {
        match events::line(&self.run, &self.job, wall_ms(), word) {
            Ok(line) => self.told.push_str(&line),
            Err(error) => swarm_sys::complain!("swarm: warning: {}: {error}", self.events.display()),
        }
        self.write_much();
    }

    fn write_much(&mut self) {
        if self.noted.len().max(self.told.len()) >= BYTES_MAX {
            self.write();
        }
    }

    /// Writes the buffers. On a full disk they are lost, and the agent continues.
    pub fn write(&mut self) {
        if !self.noted.is_empty() {
            self.log.raw(&self.noted);
            self.noted.clear();
        }
        if !self.told.is_empty() {
            if let Err(error) = events::report(&self.events, &self.told) {
                swarm_sys::complain!("swarm: warning: {}: {error}", self.events.display());
            }
            self.told.clear();
        }
    }
}

impl Drop for Diary {
    fn drop(&mut self) {
        self.write();
    }
}
