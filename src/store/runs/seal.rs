//! Seals of orders: what this state directory remembers of the orders that it wrote. The files of an attempt are in the
//! repository, where its history, or work that lands, could put others in their place.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use swarm_sys::files::{make_dirs, replace_durably};
use swarm_sys::paths::digest;

use super::order::{self, PROMPT};

/// Size of a digest in bytes.
const DIGEST: usize = 32;

/// The seals of one run. A run that an older version began has none.
pub struct Seals(PathBuf);

/// Content of a seal.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seal {
    /// Digest of the order's text.
    order: String,
}

/// Result of comparing the order of an attempt with its seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// The run has no seals.
    Unknown,
    /// This run has not written an order for the attempt.
    No,
    /// The run wrote an order for the attempt, and the file is missing or has another content.
    Changed,
    Intact,
}

impl Seals {
    /// Returns the seals of the run that is registered in the directory `place`.
    pub fn of(place: &Path) -> Self {
        Self(place.join("orders"))
    }

    /// Makes the seals of a run that begins: orders of earlier runs do not count.
    ///
    /// # Errors
    /// Returns any I/O error.
    pub fn begin(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        make_dirs(&self.0)
    }

    /// Seals an order durably, before it is written.
    ///
    /// # Errors
    /// Returns any I/O error.
    pub fn record(&self, job: &str, attempt: u32, order: &[u8]) -> io::Result<()> {
        if !self.0.try_exists()? {
            return Ok(());
        }
        let seal = Seal { order: digest_of(order) };
        replace_durably(&self.0, &name(job, attempt), &serde_json::to_vec(&seal)?)
    }

    /// Compares the order in `dir`, the directory of an attempt, with its seal. The prompt is written before the order and
    /// changed by the attempt itself, so that it is not compared; git overwrites neither with work that lands.
    ///
    /// # Errors
    /// Fails if the seal cannot be read.
    pub fn compare(&self, job: &str, attempt: u32, dir: &Path) -> io::Result<Sealed> {
        if !self.0.try_exists()? {
            return Ok(Sealed::Unknown);
        }
        let Some(seal) = self.seal(job, attempt)? else { return Ok(Sealed::No) };
        let is_intact = order::read_with_digest(dir).is_ok_and(|(_, digest)| digest == seal.order);
        Ok(if is_intact && dir.join(PROMPT).exists() { Sealed::Intact } else { Sealed::Changed })
    }

    /// Reports whether a result that names this order is one of the attempt.
    ///
    /// # Errors
    /// Fails if the seal cannot be read.
    pub fn accepts(&self, job: &str, attempt: u32, order: &str) -> io::Result<bool> {
        Ok(!self.0.try_exists()? || self.seal(job, attempt)?.is_some_and(|seal| seal.order == order))
    }

    fn seal(&self, job: &str, attempt: u32) -> io::Result<Option<Seal>> {
        match fs::read(self.0.join(name(job, attempt))) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns the digest by which a result names the order with this text.
pub fn digest_of(order: &[u8]) -> String {
    digest(order, DIGEST)
}

fn name(job: &str, attempt: u32) -> String {
    format!("{job}.{attempt}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::order::{AttemptResult, Order, read_result, write_order, write_result};
    use swarm_agents::Agent;
    use swarm_model::run::Outcome;
    use swarm_model::run::progress::Spent;

    fn order() -> Vec<u8> {
        let order = Order {
            run: "r".to_owned(),
            job: "a".to_owned(),
            attempt: 1,
            spec: None,
            root: None,
            agent: Agent::find("shell", &std::collections::BTreeMap::default()).expect("an agent"),
            events: PathBuf::from("e"),
            log: PathBuf::from("l"),
            context: PathBuf::from("c"),
            consent: None,
            rules: Vec::new(),
            session: None,
            deferred: None,
            fresh_id: "f".to_owned(),
            hold_ms: None,
        };
        serde_json::to_vec(&order).expect("is JSON")
    }

    #[test]
    fn only_an_order_that_this_run_wrote_counts() {
        let root = tempfile::tempdir().expect("a directory");
        let (dir, seals) = (root.path().join("a.1"), Seals::of(root.path()));
        fs::create_dir(&dir).expect("made");
        let compare = || seals.compare("a", 1, &dir).expect("read");
        seals.record("a", 1, b"x").expect("nothing to do");
        assert_eq!(compare(), Sealed::Unknown, "a run of an older version");
        seals.begin().expect("begun");
        write_order(&dir, &order()).expect("written");
        fs::write(dir.join(PROMPT), "true").expect("written");
        assert_eq!(compare(), Sealed::No, "the repository brought it");
        seals.record("a", 1, &order()).expect("sealed");
        assert_eq!(compare(), Sealed::Intact);
        let other = String::from_utf8(order()).expect("text").replace("\"f\"", "\"g\"");
        write_order(&dir, other.as_bytes()).expect("written");
        assert_eq!(compare(), Sealed::Changed);
        fs::write(root.path().join("orders/a.1"), "torn").expect("written");
        assert!(seals.compare("a", 1, &dir).is_err());
        seals.begin().expect("the next run begins");
        assert_eq!(compare(), Sealed::No, "an order of an earlier run");
    }

    #[test]
    fn only_a_result_of_the_sealed_order_counts() {
        let root = tempfile::tempdir().expect("a directory");
        let seals = Seals::of(root.path());
        assert!(seals.accepts("a", 1, "").expect("read"), "a run of an older version");
        seals.begin().expect("begun");
        assert!(!seals.accepts("a", 1, "").expect("read"));
        seals.record("a", 1, &order()).expect("sealed");
        assert!(seals.accepts("a", 1, &digest_of(&order())).expect("read"));
        assert!(!seals.accepts("a", 1, &digest_of(b"another")).expect("read"));
        assert!(!seals.accepts("a", 2, &digest_of(&order())).expect("read"));
    }

    #[test]
    fn a_conversation_id_that_looks_like_an_option_is_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let plain = "0198-ab_c";
        for (id, is_one) in [(plain, true), ("--dangerously-skip-permissions", false), ("a b", false), ("a\n", false)] {
            let session = swarm_agents::Session { id: id.to_owned(), ..Default::default() };
            crate::runs::order::write_session(dir.path(), &session).expect("written");
            assert_eq!(crate::runs::order::read_session(dir.path()).is_some(), is_one, "{id:?}");
        }
    }

    #[test]
    fn a_new_order_removes_the_result_of_an_earlier_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let result = AttemptResult::new(Outcome::Success { summary: None }, Spent::default());
        write_result(dir.path(), &result).expect("written");
        assert_eq!(read_result(dir.path()), Some(result));
        write_order(dir.path(), &order()).expect("written");
        assert_eq!(read_result(dir.path()), None);
    }
}
