//! Evidence of how an attempt ended that left no result.

use std::io;
use std::path::{Path, PathBuf};

use swarm_agents::last_lines;
use swarm_model::run::plan::Work;
use swarm_model::run::progress::{Now, Spent};
use swarm_sys::paths::Paths;

use super::home::{self, Home};
use super::kept::output_of;
use super::order;

/// Number of lines of a command's standard error that are kept as evidence of a failure.
const EVIDENCE_LINES: usize = 40;

/// File in the directory of an attempt of an agent with what its worker on a host has printed to standard error.
pub const ERRORS: &str = "stderr.log";

/// Returns the file with the standard error of the worker of the present attempt.
pub fn errors_of(now: &Now, paths: &Paths) -> PathBuf {
    match now.progress.host {
        // A worker of that name here is somebody else's.
        Some(_) if matches!(now.job().work, Work::Spec(_)) => {
            Home::new(&now.plan.home).attempt(&now.job().id, now.progress.attempt).join(ERRORS)
        }
        Some(_) => output_of(&Home::new(&now.plan.home), &now.job().id, "stderr"),
        None => paths.log(&now.worker(), "stderr"),
    }
}

/// Returns what is known of the usage of an attempt without a result: that of the answers that it had recorded. The rest is
/// unknown, which is not the same as zero.
pub fn killed(dir: &Path, is_ours: impl Fn(&str) -> bool) -> Spent {
    let recorded = order::read_session(dir).and_then(|session| {
        let (order, digest) = order::read_with_digest(dir).ok()?;
        is_ours(&digest).then(|| session.since(order.session.as_ref()))
    });
    Spent { unpriced: true, ..recorded.unwrap_or_default() }
}

pub fn unknown_end() -> String {
    "ended".to_owned()
}

pub fn first(said: &Option<String>) -> String {
    let last = said.as_deref().and_then(|said| said.lines().rev().find(|line| !line.trim().is_empty()));
    last.map_or(String::new(), |line| format!(": {}", swarm_agents::short(line)))
}

/// Returns the last lines of a log; `None` if it is unreadable or blank.
pub fn tail(log: &Path) -> Option<String> {
    let text = last_lines(&end_of(log).ok()?, EVIDENCE_LINES);
    Some(text).filter(|text| !text.trim().is_empty())
}

/// Returns the last 16 KiB of a file as text.
fn end_of(path: &Path) -> io::Result<String> {
    const BYTES: u64 = 16 << 10;
    home::end_of(path, BYTES).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
