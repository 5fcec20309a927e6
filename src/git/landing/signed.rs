//! Signed copies that a queue has made of its candidates, in `merge/ID/signed.json` of the state directory. The references to
//! them only keep them from being pruned: an agent may write references, and commits with headers that look like signatures.

use std::fs;
use std::path::{Path, PathBuf};

use swarm_sys::files::replace_durably;

use crate::repository::fault::Fault;

const FILE: &str = "signed.json";
/// Maximum number of copies that are remembered. An older one is made again if it is needed.
const COUNT_MAX: usize = 1_000;

/// Pairs of a candidate and its signed copy, oldest first.
#[derive(Debug)]
pub(super) struct Copies {
    place: PathBuf,
    all: Vec<(String, String)>,
}

impl Copies {
    /// Reads the copies of the queue with this directory. If they cannot be read, there are none, and candidates are signed
    /// again.
    pub(super) fn read(place: &Path) -> Self {
        let text = fs::read(place.join(FILE)).unwrap_or_default();
        Self { place: place.to_owned(), all: serde_json::from_slice(&text).unwrap_or_default() }
    }

    /// Returns the copy of a candidate.
    pub(super) fn of(&self, candidate: &str) -> Option<&str> {
        self.all.iter().rev().find(|(known, _)| known == candidate).map(|(_, copy)| copy.as_str())
    }

    /// Adds a copy durably.
    pub(super) fn add(&mut self, candidate: &str, copy: &str) -> Result<(), Fault> {
        self.all.retain(|(known, _)| known != candidate);
        self.all.push((candidate.to_owned(), copy.to_owned()));
        self.all.drain(..self.all.len().saturating_sub(COUNT_MAX));
        self.write()
    }

    /// Forgets the copies for which this is true.
    pub(super) fn forget(&mut self, is_over: impl Fn(&str) -> bool) -> Result<(), Fault> {
        let before = self.all.len();
        self.all.retain(|(_, copy)| !is_over(copy));
        if self.all.len() == before { Ok(()) } else { self.write() }
    }

    fn write(&self) -> Result<(), Fault> {
        let failed = Fault::at(&self.place);
        let text = serde_json::to_vec(&self.all).map_err(|error| failed(error.into()))?;
        replace_durably(&self.place, FILE, &text).map_err(&failed)
    }
}
